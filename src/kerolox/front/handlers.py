"""Dispatch of requests to handlers, the same for every transport."""

from __future__ import annotations

import inspect
import logging
import traceback
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, cast

from kerolox.errors import Closed, KeroloxError, ProtocolError
from kerolox.front.lanes import Lane
from kerolox.front.needs import Rule
from kerolox.front.refusals import Refusal, not_supported
from kerolox.front.requests import Answer, Handler, Later, Request
from kerolox.front.rows import Row
from kerolox.protocol.codes import ResponseCode, request_name
from kerolox.protocol.header import Header

log = logging.getLogger(__name__)


class HandlerRoute:
    """The handler of one request code, with its header type, lane and rule of access."""

    __slots__ = ("code", "handler", "header", "lane", "rule", "waits")

    def __init__(
        self, code: int, handler: Handler, header: type[Header] | None, lane: Lane, rule: Rule | None
    ) -> None:
        self.code = code
        self.waits = inspect.iscoroutinefunction(handler)
        self.handler = handler
        self.header = header
        self.lane = lane
        self.rule = rule


# Checks a request after its header was decoded and before its handler runs. It may raise to reject the
# request with the error's code.
Gate = Callable[[Request[Any]], None]


class Guard(Protocol):
    """Authenticates and authorizes every request. It answers the requests that it rejects."""

    def admits(self, asked: Request[Any], /) -> bool:
        """Authenticate a request before any of it is decoded, and set its identity. Return False if it was
        rejected."""

    def allows(self, asked: Request[Any], rule: Rule | None, /) -> bool:
        """Authorize a request by the rule of its code. Its header is decoded, unless no handler serves its
        code: then there is no rule. Return False if it was rejected."""


class Handlers:
    """The handlers of a server or client, by request code.

    ``guard``: None allows every request. ``answered`` is called for every answer, for metrics.
    """

    def __init__(
        self, guard: Guard | None = None, answered: Callable[[Request[Any], Answer], None] | None = None
    ) -> None:
        self.guard = guard
        self.answered = answered
        self.routes: dict[int, HandlerRoute] = {}
        self.gates: tuple[Gate, ...] = ()
        # Called at the end of every pass, in which a transport handles all requests that have arrived: a
        # handler may defer work to do it once for the whole pass.
        self.after_pass: list[Callable[[], None]] = []

    def add(
        self,
        code: int,
        handler: Handler,
        header: type[Header] | None,
        lane: Lane,
        rule: Rule | None = None,
    ) -> None:
        """Add a handler. Servers with a guard need a rule of access for it."""
        if code in self.routes:
            raise ValueError(f"code {code} has a handler already: {self.routes[code].handler}")
        if rule is None and self.guard is not None:
            raise ValueError(f"code {code} has no rule of access")
        self.routes[code] = HandlerRoute(int(code), handler, header, lane, rule)

    def serve(self, rows: Iterable[Row], lanes: Mapping[str, Lane]) -> None:
        """Add the handlers of these rows."""
        for row in rows:
            self.add(row.code, row.handler, row.header, lanes[row.lane], row.rule)

    def add_gate(self, gate: Gate) -> None:
        """Let this gate check every request before it is handled."""
        self.gates += (gate,)

    def remove_gate(self, gate: Gate) -> None:
        self.gates = tuple(one for one in self.gates if one is not gate)

    def handle(self, asked: Request[Any], now_s: float) -> None:
        """Decode the request's header and answer the request: now, or when its handler has an answer; or
        reject it."""
        answer_it = asked.caller.answer
        guard = self.guard
        try:
            if guard is not None and not guard.admits(asked):
                return
        except ProtocolError as error:  # fields that cannot be decoded
            answer_it(asked, refusal(error, asked))
            return
        route = self.routes.get(asked.code)
        if route is None:
            if guard is not None and not guard.allows(asked, None):
                return
            answer_it(asked, not_supported(f"{asked.code} ({request_name(asked.code)})").answer())
            return
        lane = route.lane
        if len(asked.body) > lane.body_bytes_max:
            answer_it(asked, lane.too_long(asked).answer())
            return
        if now_s - asked.received_s > lane.age_s_max:
            refused = lane.too_old(asked, now_s)
            if refused is not None:
                answer_it(asked, refused.answer())
                return
        if lane.held:
            lane.submit(asked, lambda: self._handle_held(asked))
            return
        try:
            if route.header is not None:
                asked.header = asked.ticket.header(route.header)
            if guard is not None and not guard.allows(asked, route.rule):
                return
            for gate in self.gates:
                gate(asked)
            if route.waits:
                lane.submit(asked, lambda: _run(lambda: cast("Any", route.handler(asked)), asked))
                return
            answer = route.handler(asked)
        except Exception as error:
            answer_it(asked, refusal(error, asked))
            return
        if type(answer) is Answer:
            answer_it(asked, answer)
        elif answer is not None:
            later = cast(Later, answer)
            lane.submit(asked, lambda: _run(later, asked))

    async def _handle_held(self, asked: Request[Any]) -> None:
        self.handle(asked, asked.received_s)
        self.end_pass()

    def end_pass(self) -> None:
        for finish in self.after_pass:
            finish()


async def _run(handling: Later, asked: Request[Any]) -> None:
    try:
        answer = await handling()
    except Exception as error:
        answer = refusal(error, asked)
    if answer is not None:
        asked.answer(answer)


def refusal(error: Exception, asked: Request[Any]) -> Answer:
    """Return the answer for a failed handler: kerolox errors explain themselves, others get their source
    line."""
    if isinstance(error, KeroloxError):
        if not isinstance(error, Closed):
            log.debug("request_refused peer=%s code=%d error=%r", asked.caller.address, asked.code, error)
        return Refusal.of(error).answer()
    log.exception("request_failed peer=%s request=%s", asked.caller.address, request_name(asked.code))
    frame = traceback.extract_tb(error.__traceback__)[-1]
    place = f"{frame.filename.rsplit('/', 1)[-1]}:{frame.lineno}"
    return Answer(code=ResponseCode.SYSTEM_ERROR, remark=f"{type(error).__name__}: {error} ({place})")
