"""HttpServer: an HTTP port for pages, with TLS and users as on the other ports.

A connection serves one request. Its head is limited in size, number of fields and time; the number of
connections is limited as well, and silent ones make room for others.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from kerolox.clock import SYSTEM_CLOCK, Clock
from kerolox.front.handlers import Guard
from kerolox.front.needs import Rule
from kerolox.net.http_pages import Pages
from kerolox.net.http_peer import TIMEOUT_S, HttpPeer, HttpSite
from kerolox.net.listener import Listener
from kerolox.net.tls import ServerTls

log = logging.getLogger(__name__)

AT_ONCE_MAX = 32  # connections
NO_RULES: Mapping[str, Rule] = {}


class HttpServer:
    """Listener with its connections. ``async with`` starts and stops it.

    Pages with a rule need a user whom the guard allows to see them; HTTP clients send name and password.
    """

    def __init__(
        self,
        pages: Pages,
        *,
        host: str,
        port: int,
        tls: ServerTls = ServerTls(),
        guard: Guard | None = None,
        rules: Mapping[str, Rule] = NO_RULES,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.pages = pages
        self.peers: set[HttpPeer] = set()
        self.listener = Listener(
            lambda: HttpPeer(self._site, self, self._clock),
            host=host,
            port=port,
            tls=tls,
            silent_s_max=lambda: TIMEOUT_S,
            connections_max=AT_ONCE_MAX,
            about=" for HTTP",
            clock=clock,
        )
        self._site = HttpSite(pages, rules, guard)
        self._clock = clock

    @property
    def address(self) -> str:
        return self.listener.address

    @property
    def port(self) -> int:
        return self.listener.port

    async def start(self) -> None:
        await self.listener.start()
        log.info("http_ready address=%r pages=%r", self.address, ",".join(sorted(self.pages)))

    async def close(self) -> None:
        self.listener.close()
        for peer in list(self.peers):
            peer.close("the server stops", at_once=True)
        await asyncio.sleep(0)  # transports report their end

    async def __aenter__(self) -> HttpServer:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    def connected(self, peer: HttpPeer, /) -> None:
        self.peers.add(peer)
        self.listener.places.add(peer)

    def closed(self, peer: HttpPeer, reason: str, /) -> None:
        self.peers.discard(peer)
        self.listener.places.leave(peer)
