"""HttpPeer: one connection of an HTTP port. It serves one request and closes. For guards it is a caller."""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol, cast

from kerolox.clock import Clock, TimerHandle
from kerolox.errors import ConnectionLost, KeroloxError
from kerolox.front.handlers import Guard
from kerolox.front.needs import Rule
from kerolox.front.proof import NoProof
from kerolox.front.refusals import NOT_AUTHENTICATED, NOT_AUTHORIZED
from kerolox.front.requests import Answer, Request
from kerolox.net.address import address_text, is_loopback, source_of
from kerolox.net.http_pages import Page, Pages, Render
from kerolox.net.places import SPOKE, STRANGER
from kerolox.protocol.codes import Language
from kerolox.protocol.http1 import (
    HEAD_BYTES_MAX,
    HEAD_END,
    HttpError,
    HttpHead,
    check_no_body,
    encode_answer,
    parse_head,
)

log = logging.getLogger(__name__)

TIMEOUT_S = 10.0  # for the request, and again for the answer
PAGE_CODE = -1  # code of requests for pages, which no command has
_STATUS = {NOT_AUTHENTICATED: 401, NOT_AUTHORIZED: 403}
_ASK_FOR_PASSWORD = {"WWW-Authenticate": 'Basic realm="kerolox", charset="UTF-8"'}


class HttpSite(NamedTuple):
    """The pages of a port. The guard decides about those with a rule; the others are open."""

    pages: Pages
    rules: Mapping[str, Rule]
    guard: Guard | None


class HttpEvents(Protocol):
    """Callbacks when connections open and close."""

    def connected(self, peer: HttpPeer, /) -> None: ...

    def closed(self, peer: HttpPeer, reason: str, /) -> None: ...


class HttpTicket(NamedTuple):
    head: HttpHead
    is_one_way: bool = False
    remark: str | None = None
    version: int = 0

    @property
    def fields(self) -> Mapping[str, str]:
        return self.head.fields

    def header(self, cls: type[Any], /) -> Any:
        raise TypeError(f"a request for a page has no {cls.__name__}")


class PageRequest(Request[None]):
    """A request for a page."""

    __slots__ = ()

    @property
    def name(self) -> str:
        head: HttpHead = self.ticket.head
        return f"{head.method} {head.path}"


class Password(NoProof):
    """Proof of a request with a user's name and password."""

    def __init__(self, user: str, password: str) -> None:
        self.user = user
        self._password = password

    def holds(self, secret: str, /, *, any_release: bool = False) -> bool:
        return hmac.compare_digest(secret.encode(), self._password.encode())


class HttpPeer(asyncio.Protocol):
    """One connection."""

    language = Language.HTTP
    version = 0
    is_stalled = False

    def __init__(self, site: HttpSite, events: HttpEvents, clock: Clock) -> None:
        self.address = ""
        self.local_address = ""
        self.source = ""
        self.data: dict[str, Any] = {}
        self.rank = STRANGER
        self.silent_since_s = clock.monotonic_s()
        self.close_reason: str | None = None
        self._site = site
        self._events = events
        self._clock = clock
        self._received = b""
        self._head: HttpHead | None = None
        self._is_tls = False
        self._transport: asyncio.Transport | None = None
        self._deadline: TimerHandle | None = None
        self._rendering: asyncio.Task[None] | None = None

    # --- the connection -------------------------------------------------------------------------------

    @property
    def is_closed(self) -> bool:
        return self.close_reason is not None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._is_tls = transport.get_extra_info("ssl_object") is not None
        self.address = address_text(transport.get_extra_info("peername"))
        self.local_address = address_text(transport.get_extra_info("sockname"))
        self.source = source_of(self.address)
        self._expect("no complete request")
        self._events.connected(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.close_reason = self.close_reason or f"connection lost: {exc or 'closed by the client'}"
        self._transport = None
        self._stop_waiting()
        if self._rendering is not None:
            self._rendering.cancel()
        self._events.closed(self, self.close_reason)

    def data_received(self, data: bytes) -> None:
        if self._head is not None or self.close_reason is not None:
            return  # a connection serves one request
        self._received += data
        end = self._received.find(HEAD_END)
        if max(end, len(self._received) if end < 0 else 0) > HEAD_BYTES_MAX:
            self._show(Page(f"the head of the request is longer than {HEAD_BYTES_MAX} bytes\n", 431))
        elif end >= 0:
            try:
                self._serve(parse_head(self._received[:end]))
            except HttpError as error:
                self._show(Page(f"{error}\n", error.status))

    def close(self, reason: str, *, at_once: bool = False) -> None:
        """Close the connection. A page is still written, unless ``at_once``."""
        if self.close_reason is None:
            log.debug("http_closed peer=%s reason=%r", self.address, reason)
            self.close_reason = reason
        if self._transport is not None:
            if at_once:
                self._transport.abort()
            else:
                self._transport.close()
                self._expect("the answer was not read")

    def _expect(self, otherwise: str) -> None:
        """Abort the connection if it has not come further in time."""
        self._stop_waiting()
        self._deadline = self._clock.call_later(
            TIMEOUT_S, lambda: self.close(f"{otherwise} in {TIMEOUT_S:g} s", at_once=True)
        )

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    # --- the request ----------------------------------------------------------------------------------

    def _serve(self, head: HttpHead) -> None:
        self._head = head
        self._received = b""
        self.rank = SPOKE
        self._stop_waiting()
        if head.method not in ("GET", "HEAD"):
            raise HttpError(405, "only GET and HEAD")
        check_no_body(head)
        site = self._site
        render = site.pages.get(head.path)
        if render is None:
            raise HttpError(404, f"no such page; available: {', '.join(sorted(site.pages))}")
        rule = site.rules.get(head.path)
        if rule is None or site.guard is None or self._may_see(head, site.guard, rule):
            self._rendering = asyncio.get_running_loop().create_task(self._render(head.path, render))

    def _may_see(self, head: HttpHead, guard: Guard, rule: Rule) -> bool:
        if head.credentials[0] and not self._is_tls and not is_loopback(self.source):
            raise HttpError(403, "passwords are accepted only over TLS, or from this host: use https")
        now_s = self._clock.monotonic_s()
        asked = PageRequest(self, PAGE_CODE, None, b"", now_s, HttpTicket(head))
        return guard.admits(asked) and guard.allows(asked, rule)

    async def _render(self, path: str, render: Render) -> None:
        try:
            page = await render()
        except Exception as error:
            log.exception("page_failed path=%r", path)
            page = Page(f"{type(error).__name__}: {error}\n", 500)
        self._show(page)

    def _show(self, page: Page, fields: Mapping[str, str] = {}) -> None:
        """Send a page and close the connection."""
        if self._transport is None or self.close_reason is not None:
            return
        body = page.text.encode("utf-8", "replace")
        with_body = self._head is None or self._head.method != "HEAD"
        self._transport.write(
            encode_answer(page.status, page.content_type, body, fields, with_body=with_body)
        )
        self.close("answered")

    # --- as guards use it -----------------------------------------------------------------------------

    def proof(self, asked: Request[Any], /) -> Password:
        head: HttpHead = asked.ticket.head
        return Password(*head.credentials)

    def answer(self, asked: Request[Any], answer: Answer) -> None:
        """Show the rejection of a request."""
        status = _STATUS.get(answer.reason, 503)
        self._show(Page(f"{answer.remark}\n", status), _ASK_FOR_PASSWORD if status == 401 else {})

    async def call(self, code: int, header: Any = None, body: bytes = b"", **_: Any) -> Answer:
        raise _unreachable(self.address)

    def tell(self, code: int, header: Any = None, body: bytes = b"", **_: Any) -> None:
        raise _unreachable(self.address)


def _unreachable(address: str) -> KeroloxError:
    return ConnectionLost(address, "HTTP clients take no requests")
