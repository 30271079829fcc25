"""The gRPC port of a broker, for RocketMQ 5's clients. Nothing of it is imported unless it is opened."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kerolox.broker.base import Base, Room
from kerolox.broker.members.room import Membership
from kerolox.broker.tables.room import Tables
from kerolox.errors import OptionError
from kerolox.front.caller import CallerEvents
from kerolox.front.handlers import Handlers

if TYPE_CHECKING:
    from kerolox.net.grpc_server import GrpcServer
    from kerolox.proxy.service import Service


class Proxy(Room):
    """The service and its port."""

    def __init__(
        self, base: Base, tables: Tables, membership: Membership, handlers: Handlers, events: CallerEvents
    ) -> None:
        self.address = ""
        self._base = base
        self._tables = tables
        self._membership = membership
        self._handlers = handlers
        self._events = events
        self._server: GrpcServer | None = None
        self._service: Service | None = None

    async def start(self) -> None:
        options, base = self._base.options, self._base
        if not options.grpc_listen:
            return
        try:
            from kerolox.broker.proxy.local import LocalBackend
            from kerolox.net.grpc_server import GrpcServer
            from kerolox.proxy.service import Addresses, Service
        except ImportError as error:
            raise OptionError(
                "grpcListen", options.grpc_listen, f"the extra grpc ({error}): pip install 'kerolox[grpc]'"
            ) from error
        host, port = _host_and_port("grpcListen", options.grpc_listen)
        if options.grpc_advertised:
            _host_and_port("grpcAdvertised", options.grpc_advertised)
        backend = LocalBackend(
            name=options.broker_name,
            host=base.endpoints.host,
            leadership=base.leadership,
            topics=self._tables.topics,
            groups=self._membership.groups,
            handlers=self._handlers,
            guard=base.guard,
            events=self._events,
            clock=base.clock,
            is_serving=lambda: base.leadership.leads,
        )
        self._service = Service(
            backend, base.clock, addresses=Addresses(advertised=options.grpc_advertised or None)
        )
        self._server = GrpcServer(
            self._service,
            host=host,
            port=port,
            tls=options.tls,
            for_each_address=options.connections_for_each_address,
            clock=base.clock,
        )
        self._service.start()
        await self._server.start()
        self.address = self._server.address

    async def close(self) -> None:
        """Give back what clients work on, then close their connections."""
        if self._service is not None:
            await self._service.close()
        if self._server is not None:
            await self._server.close()


def _host_and_port(key: str, text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise OptionError(key, text, "HOST:PORT")
    return host.strip("[]"), int(port)
