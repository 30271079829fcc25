"""Ports of a broker: one for clients, a second one for requests that must not wait behind pulls, and one for
followers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from kerolox.access.guard import Guard
from kerolox.broker.options import BrokerOptions
from kerolox.clock import Clock
from kerolox.errors import Refused
from kerolox.front.caller import CallerEvents
from kerolox.front.lanes import Lane
from kerolox.front.requests import Answer, Request
from kerolox.front.rows import Row
from kerolox.net.handlers import RemotingHandlers
from kerolox.net.listener import ListenFailed
from kerolox.net.peer import Budgets, PeerLimits
from kerolox.net.server import Server
from kerolox.net.turns import Turns
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.replication.ha_port import HaPort

BIND_TRIES = 50  # attempts to find a free port whose neighbours, two below and one above, are also free
# Requests that the second port does not serve, so that no request waits long there.
NOT_ON_VIP_PORT = frozenset({
    RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE, RequestCode.POP_MESSAGE,
    RequestCode.PEEK_MESSAGE, RequestCode.NOTIFICATION, RequestCode.POLLING_INFO,
})  # fmt: skip


# Requests of a follower to its leader before it copies, and between brokers.
FOR_FOLLOWERS = frozenset({
    RequestCode.GET_BROKER_RUNTIME_INFO, RequestCode.VIEW_MESSAGE_BY_ID, RequestCode.GET_BROKER_HA_STATUS,
    RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE, RequestCode.EXCHANGE_BROKER_HA_INFO,
})  # fmt: skip


def _refuse_clients(request: Request[Any]) -> None:
    if request.code not in FOR_FOLLOWERS:
        raise Refused(
            ResponseCode.SERVICE_NOT_AVAILABLE,
            "this broker is starting: it leads when its followers are connected. Try again in a moment.",
        )


class Ports:
    """Ports of a broker. ``events`` is notified of their callers, ``answered`` of answers."""

    server: Server
    vip_server: Server
    followers: HaPort

    def __init__(
        self,
        options: BrokerOptions,
        clock: Clock,
        events: CallerEvents,
        guard: Guard,
        answered: Callable[[Request[Any], Answer], None] | None,
    ) -> None:
        self.handlers = RemotingHandlers(guard, answered)
        self.vip_handlers = RemotingHandlers(guard, answered)
        self._options = options
        self._events = events
        self._clock = clock
        self._open = False
        self._budgets = Budgets(turns=Turns(clock))  # shared by the connections of both ports

    @property
    def servers(self) -> tuple[Server, Server]:
        return self.server, self.vip_server

    def serve(self, rows: Sequence[Row], lanes: Mapping[str, Lane]) -> None:
        """Add these requests to the ports that serve them."""
        self.handlers.serve(rows, lanes)
        self.vip_handlers.serve([row for row in rows if row.code not in NOT_ON_VIP_PORT], lanes)

    async def bind(self, host: str) -> tuple[int, int, int]:
        """Bind the ports without accepting clients. Return their numbers, in the order of Endpoints."""
        options = self._options
        for tries in range(1, BIND_TRIES + 1):
            server = self._listener(self.handlers, host, options.listen_port)
            await server.bind()
            vip_port = options.vip_port if options.vip_port >= 0 else max(0, server.port - 2)
            vip_server = self._listener(self.vip_handlers, host, vip_port)
            followers = HaPort(
                host,
                options.ha_port if options.ha_port >= 0 else server.port + 1,
                tls=options.tls,
                silent_s_max=lambda: options.ha_silence_ms / 1000,
                clock=self._clock,
            )
            is_chosen = options.vip_port >= 0
            try:
                await vip_server.bind(fresh=not options.listen_port)
                is_chosen = options.ha_port >= 0
                await followers.start()
                break
            except ListenFailed:
                await vip_server.close()
                await server.close()
                if is_chosen or options.listen_port or tries == BIND_TRIES:  # else other ports may be free
                    raise
        self.server, self.vip_server, self.followers = server, vip_server, followers
        return server.port, vip_server.port, followers.port

    async def open(self) -> None:
        """Accept clients."""
        if not self._open:
            self._open = True
            for server in self.servers:
                await server.start()

    @asynccontextmanager
    async def only_followers(self) -> AsyncIterator[None]:
        """Open the ports. Serve only followers in this context, and only the requests they need to copy from
        here."""
        doors = (self.handlers, self.vip_handlers)
        for handlers in doors:
            handlers.add_gate(_refuse_clients)
        try:
            await self.open()
            yield
        finally:
            for handlers in doors:
                handlers.remove_gate(_refuse_clients)

    async def close(self) -> None:
        """Accept no more clients, and close all connections."""
        await self.vip_server.close()
        await self.server.close()

    def _listener(self, handlers: RemotingHandlers, host: str, port: int) -> Server:
        return Server(
            handlers,
            host=host,
            port=port,
            events=self._events,
            limits=PeerLimits(idle_s_max=self._options.idle_s_max),
            for_each_address=self._options.connections_for_each_address,
            budgets=self._budgets,
            tls=self._options.tls,
            clock=self._clock,
        )
