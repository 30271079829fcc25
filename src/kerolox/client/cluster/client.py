"""Client: connections, routes, heartbeats and identity, shared by producers and consumers.

::

    async with Client("127.0.0.1:9876") as client:
        async with Producer(client, group="orders") as producer, PushConsumer(client, group="billing"):
            ...

A producer or consumer that is given an address instead of a client creates its own client. A client stays
open until all its users have closed it.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Coroutine, Iterable, Sequence
from contextvars import Context
from typing import Any, Self, TypeVar

from kerolox.client.calls.readers import Reader, Replica
from kerolox.client.calls.routes import MASTER, Route, cluster_info, masters_of
from kerolox.client.calls.signing import adds_no_fields, frame_signer
from kerolox.client.cluster.heartbeats import Heartbeats
from kerolox.client.cluster.home import Home
from kerolox.client.cluster.incoming import Incoming
from kerolox.client.cluster.members import ConsumingMember, Member, ProducingMember
from kerolox.client.cluster.routes import Routes
from kerolox.client.cluster.signing import Signing
from kerolox.client.errors import BrokerNotRegistered, BrokerUnreachable, failure
from kerolox.client.ids import client_id
from kerolox.client.messages import Received
from kerolox.client.names import with_namespace, without_namespace
from kerolox.client.nameservers import NameServers
from kerolox.client.options import ClientOptions
from kerolox.clock import SYSTEM_CLOCK, Clock
from kerolox.errors import Closed, ConnectFailed, KeroloxError, OptionError
from kerolox.net.dialer import Dialer
from kerolox.net.handlers import RemotingHandlers
from kerolox.net.peer import Peer, PeerEvents
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.command import Command
from kerolox.protocol.header import Header
from kerolox.protocol.headers.heartbeat import UnregisterClientRequest

log = logging.getLogger(__name__)

LEAVE_TIMEOUT_S = 1.0  # brokers notice a closed connection anyway
VIP_PORT_STEP = 2

T = TypeVar("T")
M = TypeVar("M", bound=Member)


class Client(PeerEvents):
    """Connections, routes and heartbeats, shared by several producers and consumers."""

    def __init__(
        self, where: ClientOptions | str | Sequence[str] | None = None, *, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self.options = where if isinstance(where, ClientOptions) else ClientOptions(where or "")
        self.clock = clock
        self.client_id = client_id(self.options.instance, self.options.unit)
        self.producers: dict[str, ProducingMember] = {}  # by group, with namespace
        self.consumers: dict[str, ConsumingMember] = {}
        self.replies: dict[str, asyncio.Future[Received]] = {}  # correlation id → waiting request
        self.handlers = RemotingHandlers()
        self.signer = frame_signer(self.options)
        if not adds_no_fields(self.options):
            self.handlers.hooks.append(Signing(self.options))
        # This number of hooks does not need the fields of templates; further hooks may change fields.
        self.template_hooks = 0 if self.signer is None else len(self.handlers.hooks)
        self.dialer = Dialer(
            self.handlers,
            events=self,
            connect_timeout_s=self.options.connect_timeout_s,
            tls=self.options.tls,
            encoding=self.options.encoding,
            clock=clock,
        )
        addresses = self.options.addresses()
        random.shuffle(addresses)  # so that not all clients ask the same name server
        self.nameservers = NameServers(addresses, self.dialer, self.options.request_timeout_s, clock)
        self.routes = Routes(self.nameservers, self._route_changed, clock)
        self.heartbeats = Heartbeats(self)
        self.incoming = Incoming(self, self.handlers)
        self._peers: dict[str, Peer] = {}  # brokers that received a heartbeat, by advertised address
        self._tasks: set[asyncio.Task[Any]] = set()
        self._held = 0
        self._closed = False
        self._home: Home | None = None

    # --- life ---------------------------------------------------------------------------------

    async def open(self) -> Self:
        """Open the client, or add a user to an open one. Each call requires a call of ``close``."""
        if self._closed:
            raise Closed("this client is closed; make a new one")
        self._held += 1
        if self._held == 1:
            self._home = Home()
            self.spawn(self._run_route_refresh())
            self.spawn(self._run_heartbeats())
        return self

    async def close(self) -> None:
        """Remove a user of the client. The last one closes the connections."""
        if self._closed or not self._held:
            return
        self._held -= 1
        if self._held:
            return
        self._closed = True
        if self.is_of_parent:
            return  # connections and tasks belong to the parent process
        self.check_home()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.routes.close()
        for waiting in self.replies.values():
            waiting.cancel()
        await self.incoming.close()
        await self.dialer.close()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    @property
    def is_open(self) -> bool:
        return self._held > 0 and not self._closed

    def check_open(self) -> None:
        """Raise Closed, AfterFork or OtherLoop unless the client can be used here."""
        if not self.is_open:
            raise Closed("this client is not open: use it in `async with`, before it is closed")
        self.check_home()

    @property
    def is_of_parent(self) -> bool:
        """True if this process is a forked child of the one that opened the client."""
        return self._home is not None and self._home.in_parent

    def check_home(self) -> None:
        """Raise AfterFork or OtherLoop outside the process and the loop that opened the client."""
        if self._home is not None:
            self._home.check()

    def end_program(self, error: BaseException) -> None:
        """Raise an error out of the event loop, as a SystemExit in any task would be."""

        def raise_it() -> None:
            raise error

        asyncio.get_running_loop().call_soon(raise_it)

    def spawn(self, work: Coroutine[Any, Any, T], context: Context | None = None) -> asyncio.Task[T]:
        """Run a coroutine in the background, until it ends or the client is closed."""
        task = asyncio.get_running_loop().create_task(work, context=context)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("background_failed task=%r", task, exc_info=task.exception())

    def __repr__(self) -> str:
        state = "open" if self.is_open else "closed"
        return (
            f"<client {self.client_id} {state}, {len(self.producers)} producers, "
            f"{len(self.consumers)} consumers, {len(self._peers)} brokers>"
        )

    # --- names --------------------------------------------------------------------------------

    def wire_name(self, name: str) -> str:
        """Return the wire name of a topic or group, with the namespace."""
        return with_namespace(self.options.namespace, name)

    def user_name(self, name: str) -> str:
        """Return the user's name of a topic or group, without the namespace."""
        return without_namespace(self.options.namespace, name)

    # --- members ------------------------------------------------------------------------------

    def add_producer(self, producer: ProducingMember) -> None:
        _add(self.producers, producer, self.client_id)

    def add_consumer(self, consumer: ConsumingMember) -> None:
        _add(self.consumers, consumer, self.client_id)

    async def remove_producer(self, producer: ProducingMember) -> None:
        """Remove a member, and unregister it at the brokers."""
        if self.producers.get(producer.group) is producer:
            del self.producers[producer.group]
            await self._leave(
                UnregisterClientRequest(client_id=self.client_id, producer_group=producer.group)
            )

    async def remove_consumer(self, consumer: ConsumingMember) -> None:
        """Remove a member, and unregister it at the brokers."""
        if self.consumers.get(consumer.group) is consumer:
            del self.consumers[consumer.group]
            await self._leave(
                UnregisterClientRequest(client_id=self.client_id, consumer_group=consumer.group)
            )

    async def _leave(self, asked: UnregisterClientRequest) -> None:
        peers = [peer for peer in self._peers.values() if not peer.is_closed]
        await asyncio.gather(
            *(
                peer.request(RequestCode.UNREGISTER_CLIENT, asked, timeout_s=LEAVE_TIMEOUT_S)
                for peer in peers
            ),
            return_exceptions=True,
        )

    def _members(self) -> list[Member]:
        return [*self.producers.values(), *self.consumers.values()]

    def _route_changed(self, route: Route) -> None:
        for member in self._members():
            member.route_changed(route)

    # --- connections --------------------------------------------------------------------------

    def ready_peer(self, address: str) -> Peer | None:
        """Return the connection to a broker that received a heartbeat; None unless it is open."""
        peer = self._peers.get(address)
        return peer if peer is not None and peer.close_reason is None else None

    async def peer(self, address: str, timeout_s: float | None = None, code: int = 0) -> Peer:
        """Return the connection to a broker, opened if needed. The first request over it is a heartbeat."""
        known = self._peers.get(address)
        if known is not None and known.close_reason is None:
            return known
        self.check_open()
        try:
            peer = await self.dialer.connect(address, timeout_s or self.options.request_timeout_s, code)
        except ConnectFailed as error:
            raise BrokerUnreachable(
                self.routes.known.broker_at(address), address, error.__cause__ or error
            ) from error
        if self._peers.get(address) is not peer:
            self._peers[address] = peer
            self.heartbeats.greet(address, peer)
        return peer

    def retire(self, address: str, peer: Peer) -> None:
        """Retire a connection after GO_AWAY: the next request opens a new one."""
        if self._peers.get(address) is peer:
            del self._peers[address]
        self.dialer.retire(peer)

    def closed(self, peer: Peer, reason: str, /) -> None:
        self.heartbeats.forget(peer)

    def address(self, broker: str, broker_id: int = MASTER, *, exact: bool = False) -> str:
        """Return the address of a broker from the cached routes. Raises BrokerNotRegistered."""
        found = self.routes.known.address(broker, broker_id, exact=exact)
        if found is None:
            raise BrokerNotRegistered(
                "", self.nameservers.addresses[0], f"no broker {broker!r} with id {broker_id} is registered"
            )
        return found

    def replica(self, broker: str, reader: Reader) -> Replica:
        """Return the replica of a broker name to read from. Raises BrokerNotRegistered."""
        found = reader.choose(self.routes.known.replicas(broker), self.clock.monotonic_s())
        if found is None:
            raise BrokerNotRegistered(
                "", self.nameservers.addresses[0], f"no broker {broker!r} is registered"
            )
        return found

    def vip(self, address: str) -> str:
        """Return the address of the broker's second port, if this client uses it."""
        if not self.options.vip_channel:
            return address
        host, _, port = address.rpartition(":")
        return f"{host}:{int(port) - VIP_PORT_STEP}"

    async def ask(
        self,
        address: str,
        code: int,
        header: Header | None = None,
        body: bytes = b"",
        *,
        ok: Iterable[int] = (0,),
        timeout_s: float | None = None,
        vip: bool = False,
    ) -> Command:
        """Send a request to a broker. Raises a subclass of RequestFailed if the code is not in ``ok``.

        ``vip``: the request may use the broker's second port, which accepts no pulls and heartbeats.
        """
        timeout_s = timeout_s or self.options.request_timeout_s
        began_s = self.clock.monotonic_s()
        if vip and self.options.vip_channel:
            address = self.vip(address)
        else:
            await self.peer(address, timeout_s, code)
        left_s = timeout_s - (self.clock.monotonic_s() - began_s)
        answer = await self.dialer.call(address, code, header, body, timeout_s=left_s)
        if answer.code not in ok:
            raise failure(answer, address=address, code=code)
        return answer

    async def masters(self) -> dict[str, str]:
        """Return broker name → address of its master, for all registered brokers."""
        return masters_of(await self.nameservers.patiently(lambda: cluster_info(self.nameservers.order)))

    # --- periodic work ------------------------------------------------------------------------

    async def heartbeat(self) -> int:
        """Send heartbeats to all brokers of the routes now. Return how many accepted."""
        wanted: list[str] = []
        for addresses in self.routes.known.brokers().values():
            for broker_id, address in sorted(addresses.items()):
                # Only consumers use slaves.
                if broker_id == MASTER or self.consumers:
                    wanted.append(address)
        if any(member.everywhere for member in self._members()):
            try:
                wanted += (await self.masters()).values()
            except KeroloxError as error:
                log.warning("brokers_not_found error=%r next='heartbeats go to those known'", str(error))
        taken = await asyncio.gather(*(self._heartbeat_to(address) for address in dict.fromkeys(wanted)))
        return sum(taken)

    async def _heartbeat_to(self, address: str) -> bool:
        try:
            peer = await self.peer(address, code=RequestCode.HEART_BEAT)
        except KeroloxError as error:
            self.heartbeats.failed(address, error)
            return False
        return await self.heartbeats.tell(address, peer, self.heartbeats.data())

    async def refresh_routes(self) -> None:
        """Refresh the routes of all topics that the members use."""
        topics = {topic for member in self._members() for topic in member.topics()}
        await self.routes.refresh_all(sorted(topics))

    async def _run_route_refresh(self) -> None:
        while True:
            await self.clock.sleep(self.options.route_refresh_s)
            await self.refresh_routes()

    async def _run_heartbeats(self) -> None:
        while True:
            await self.clock.sleep(self.options.heartbeat_s)
            await self.heartbeat()


def _add(table: dict[str, M], member: M, client: str) -> None:
    if member.group in table:
        raise OptionError(
            "group", member.group, f"one member of a group per client ({client}); create another client"
        )
    table[member.group] = member
