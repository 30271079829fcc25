"""A small HTTP responder for probes and scrapers: GET of a few paths, one answer per connection."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from kerolox.clock import SYSTEM_CLOCK, Clock
from kerolox.net.address import address_text, source_of
from kerolox.net.listener import ListenFailed
from kerolox.net.places import SPOKE, STRANGER, Places

log = logging.getLogger(__name__)

HEAD_BYTES_MAX = 8192
TIMEOUT_S = 10.0  # for the request, and again for the answer
AT_ONCE_MAX = 32
_REASONS = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    500: "Internal Server Error",
    503: "Service Unavailable",
}


@dataclass(frozen=True)
class Page:
    """The answer of a path."""

    text: str
    status: int = 200
    content_type: str = "text/plain; charset=utf-8"


Pages = Mapping[str, Callable[[], Awaitable[Page]]]


class _Visit:
    """One connection."""

    rank = STRANGER

    def __init__(self, task: asyncio.Task[None], source: str, now_s: float) -> None:
        self.source = source
        self.silent_since_s = now_s
        self._task = task

    def close(self, reason: str, /, *, at_once: bool = False) -> None:
        log.debug("http_closed peer=%s reason=%r", self.source, reason)
        self._task.cancel()


class HttpResponder:
    """HTTP listener for the given pages. ``async with`` starts and stops it."""

    def __init__(self, pages: Pages, *, host: str, port: int, clock: Clock = SYSTEM_CLOCK) -> None:
        self.pages = pages
        self.host = host
        self.port = port
        self.address = ""
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._places = Places(lambda: AT_ONCE_MAX)
        self._clock = clock

    async def start(self) -> None:
        try:
            self._server = await asyncio.start_server(
                self._accept, self.host, self.port, limit=HEAD_BYTES_MAX
            )
        except OSError as error:
            raise ListenFailed(f"{self.host}:{self.port}", error) from error
        name = self._server.sockets[0].getsockname()
        self.port = name[1]
        self.address = address_text(name)
        log.info("http_ready address=%r pages=%r", self.address, ",".join(sorted(self.pages)))

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def __aenter__(self) -> HttpResponder:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        now_s = self._clock.monotonic_s()
        visit = _Visit(task, source_of(address_text(writer.get_extra_info("peername"))), now_s)
        if not self._places.take(visit, now_s):
            writer.close()
            return
        self._tasks.add(task)
        try:
            async with asyncio.timeout(TIMEOUT_S):
                head = await reader.readuntil(b"\r\n\r\n")
            visit.rank = SPOKE
            page, with_body = await self._page(head)
            writer.write(_encode(page, with_body))
            async with asyncio.timeout(TIMEOUT_S):
                await writer.drain()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            log.debug("http_dropped error=%r", str(error))
        finally:
            self._tasks.discard(task)
            self._places.leave(visit)
            writer.close()

    async def _page(self, head: bytes) -> tuple[Page, bool]:
        words = head.partition(b"\r\n")[0].decode("latin-1").split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            return Page("not an HTTP/1 request\n", 400), True
        method, target, _ = words
        with_body = method != "HEAD"
        if method not in ("GET", "HEAD"):
            return Page("only GET and HEAD\n", 405), with_body
        render = self.pages.get(target.partition("?")[0])
        if render is None:
            return Page(f"no such page; available: {', '.join(sorted(self.pages))}\n", 404), with_body
        try:
            return await render(), with_body
        except Exception as error:
            log.exception("page_failed target=%r", target)
            return Page(f"{type(error).__name__}: {error}\n", 500), with_body


def _encode(page: Page, with_body: bool) -> bytes:
    body = page.text.encode("utf-8", "replace")
    head = (
        f"HTTP/1.1 {page.status} {_REASONS.get(page.status, 'Other')}\r\n"
        f"Content-Type: {page.content_type}\r\n"
        f"Content-Length: {len(body)}\r\n"
        "Cache-Control: no-store\r\n"
        "Connection: close\r\n\r\n"
    )
    return head.encode("latin-1", "replace") + (body if with_body else b"")
