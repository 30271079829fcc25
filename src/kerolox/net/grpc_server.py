"""Listener of the gRPC port, with its connections. TLS and plaintext clients use the same port."""

from __future__ import annotations

import asyncio
import logging

import msgspec

from kerolox.clock import SYSTEM_CLOCK, Clock, TimerHandle
from kerolox.net.grpc_peer import Call, CallHandler, GrpcLimits, GrpcPeer, GrpcService
from kerolox.net.listener import Listener
from kerolox.net.peer import Budgets
from kerolox.net.tls import ServerTls
from kerolox.net.turns import Turns

log = logging.getLogger(__name__)

IDLE_SCAN_S = 1.0
DRAIN_TRIES = 100  # of 10 ms, for answers that are being written when the server stops
ALPN = ("h2",)  # gRPC clients require that TLS agrees on it
DEFAULT_LIMITS = GrpcLimits()


class GrpcServer:
    """Listener with its connections. ``async with`` starts and stops it."""

    def __init__(
        self,
        service: GrpcService,
        *,
        host: str,
        port: int = 0,
        limits: GrpcLimits = DEFAULT_LIMITS,
        tls: ServerTls = ServerTls(),
        budgets: Budgets | None = None,
        for_each_address: int = 0,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.peers: set[GrpcPeer] = set()
        self.listener = Listener(
            self._accept,
            host=host,
            port=port,
            tls=msgspec.structs.replace(tls, alpn=ALPN),
            for_each_address=for_each_address,
            silent_s_max=lambda: limits.idle_s_max,
            about=" for gRPC",
            clock=clock,
        )
        self._service = service
        self._limits = limits
        self._budgets = budgets or Budgets(turns=Turns(clock))
        self._clock = clock
        self._scan: TimerHandle | None = None
        self._closing = False

    @property
    def address(self) -> str:
        return self.listener.address

    @property
    def port(self) -> int:
        return self.listener.port

    async def bind(self) -> None:
        """Bind the port without accepting connections."""
        await self.listener.bind()

    async def start(self) -> None:
        await self.listener.start()
        self._scan = self._clock.beat(IDLE_SCAN_S, self._check_peers)

    async def close(self) -> None:
        """Stop listening, let calls under way end, and close every connection."""
        if self._closing:
            return
        self._closing = True
        if self._scan is not None:
            self._scan.cancel()
        self.listener.close()
        for peer in list(self.peers):
            peer.leave("the server stops")
        for peer in list(self.peers):
            peer.close("the server stops")
        for _ in range(DRAIN_TRIES):  # let transports flush; a client that does not read is aborted below
            if not self.peers:
                return
            await asyncio.sleep(0.01)
        for peer in list(self.peers):
            peer.abort()

    async def __aenter__(self) -> GrpcServer:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    # --- the connections' service -----------------------------------------------------------------

    def begin(self, call: Call) -> CallHandler:
        return self._service.begin(call)

    def connected(self, peer: GrpcPeer) -> None:
        self.peers.add(peer)
        self.listener.places.add(peer)
        self._service.connected(peer)

    def closed(self, peer: GrpcPeer, reason: str) -> None:
        self.peers.discard(peer)
        self.listener.places.leave(peer)
        log.debug("grpc_peer_closed peer=%s reason=%r", peer.address, reason)
        self._service.closed(peer, reason)

    def _accept(self) -> GrpcPeer:
        return GrpcPeer(self, limits=self._limits, budgets=self._budgets, clock=self._clock)

    def _check_peers(self) -> None:
        now_s = self._clock.monotonic_s()
        for peer in list(self.peers):
            peer.check_idle(now_s)
        self._scan = self._clock.beat(IDLE_SCAN_S, self._check_peers)
