"""Server: one listener and its peers."""

from __future__ import annotations

import asyncio
import logging

from kerolox.clock import SYSTEM_CLOCK, Clock, TimerHandle
from kerolox.front.caller import CallerEvents
from kerolox.net.handlers import RemotingHandlers
from kerolox.net.listener import Listener
from kerolox.net.peer import Budgets, Peer, PeerEvents, PeerLimits
from kerolox.net.tls import ServerTls
from kerolox.net.turns import Turns

log = logging.getLogger(__name__)

IDLE_SCAN_S = 1.0


class Server:
    """Listener with its peers. ``async with`` starts and stops it."""

    def __init__(
        self,
        handlers: RemotingHandlers,
        *,
        host: str = "0.0.0.0",
        port: int = 0,
        events: PeerEvents | None = None,
        limits: PeerLimits = PeerLimits(),
        tls: ServerTls = ServerTls(),
        budgets: Budgets | None = None,
        for_each_address: int = 0,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.handlers = handlers
        self.peers: set[Peer] = set()
        self.listener = Listener(
            self._accept,
            host=host,
            port=port,
            tls=tls,
            for_each_address=for_each_address,
            silent_s_max=lambda: limits.idle_s_max,
            clock=clock,
        )
        self._events: PeerEvents = events or CallerEvents()
        self._limits = limits
        self._budgets = budgets or Budgets(turns=Turns(clock))  # shared where a process has several ports
        self._clock = clock
        self._scan: TimerHandle | None = None
        self._closing = False

    @property
    def host(self) -> str:
        return self.listener.host

    @property
    def port(self) -> int:
        return self.listener.port

    @property
    def address(self) -> str:
        return self.listener.address

    async def bind(self, *, fresh: bool = False) -> None:
        """Bind the port without accepting connections (:meth:`Listener.bind`)."""
        await self.listener.bind(fresh=fresh)

    async def start(self) -> None:
        await self.listener.start()
        self._scan = self._clock.beat(IDLE_SCAN_S, self._check_peers)

    async def close(self) -> None:
        """Stop listening and close every connection; pending answers are still written."""
        if self._closing:
            return
        self._closing = True
        if self._scan is not None:
            self._scan.cancel()
        self.listener.close()
        for peer in list(self.peers):
            peer.close("the server shuts down")
        lanes = {route.lane for route in self.handlers.routes.values()}
        for lane in lanes:
            await lane.close()
        for _ in range(100):  # let transports flush; a peer that does not read is aborted below
            if not self.peers:
                return
            await asyncio.sleep(0.01)
        for peer in list(self.peers):
            if peer._transport is not None:
                peer._transport.abort()

    async def __aenter__(self) -> Server:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    # --- events of peers ---------------------------------------------------------------------

    def connected(self, peer: Peer, /) -> None:
        self.peers.add(peer)
        self.listener.places.add(peer)
        self._events.connected(peer)

    def closed(self, peer: Peer, reason: str, /) -> None:
        self.peers.discard(peer)
        self.listener.places.leave(peer)
        log.debug("peer_closed peer=%s reason=%r", peer.address, reason)
        self._events.closed(peer, reason)

    def _accept(self) -> Peer:
        return Peer(self.handlers, self, limits=self._limits, clock=self._clock, budgets=self._budgets)

    def _check_peers(self) -> None:
        now_s = self._clock.monotonic_s()
        for peer in list(self.peers):
            peer.check_idle(now_s)
        self._scan = self._clock.beat(IDLE_SCAN_S, self._check_peers)
