"""The way of a request from its door to its answer, the same for every door."""

from __future__ import annotations

import inspect
import logging
import traceback
from collections.abc import Callable
from typing import Any, Protocol, cast

from kerolox.errors import Closed, KeroloxError, ProtocolError
from kerolox.front.lanes import Lane
from kerolox.front.requests import Answer, Handler, Later, Request
from kerolox.protocol.codes import ResponseCode, request_name
from kerolox.protocol.header import Header

log = logging.getLogger(__name__)


class HandlerRoute:
    """Where requests of one code go."""

    __slots__ = ("code", "handler", "header", "lane", "waits")

    def __init__(self, code: int, handler: Handler, header: type[Header] | None, lane: Lane) -> None:
        self.code = code
        self.waits = inspect.iscoroutinefunction(handler)
        self.handler = handler
        self.header = header
        self.lane = lane


# Looks at a request that came, after its header was read and before it is handled. May raise to refuse it
# with the error's code.
Gate = Callable[[Request[Any]], None]


class Guard(Protocol):
    """Decides about every request: who asks, and whether they may. It answers by itself what it refuses."""

    def admits(self, asked: Request[Any], /) -> bool:
        """Whether somebody known asks, before anything of the request is read. Notes who it is."""

    def allows(self, asked: Request[Any], /, *, served: bool = True) -> bool:
        """Whether that one may do what is asked. The header has been read, unless nobody serves it."""


class Handlers:
    """The table of a server or client: code to route."""

    def __init__(self) -> None:
        self.routes: dict[int, HandlerRoute] = {}
        self.gates: tuple[Gate, ...] = ()
        self.guard: Guard | None = None  # without one, everybody may do everything
        # Called at the end of every pass, in which a door handles all that has come to it: a handler may put
        # off work until then and do it once for all requests of the pass.
        self.after_pass: list[Callable[[], None]] = []
        # The doors report every answer here, for figures: the request, and the answer's code.
        self.answered: Callable[[Request[Any], int], None] | None = None

    def add(self, code: int, handler: Handler, header: type[Header] | None, lane: Lane) -> None:
        if code in self.routes:
            raise ValueError(f"code {code} has a handler already: {self.routes[code].handler}")
        self.routes[code] = HandlerRoute(int(code), handler, header, lane)

    def add_gate(self, gate: Gate) -> None:
        """Show every request to this gate before the request is handled."""
        self.gates += (gate,)

    def handle(self, asked: Request[Any], now_s: float) -> None:
        """Answer a request, now or when its handler has an answer; or refuse it. The header of the request is
        read here."""
        answer_it = asked.caller.answer
        guard = self.guard
        try:
            if guard is not None and not guard.admits(asked):
                return
        except ProtocolError as error:  # fields that cannot be read
            answer_it(asked, refusal(error, asked))
            return
        route = self.routes.get(asked.code)
        if route is None:
            if guard is not None and not guard.allows(asked, served=False):
                return
            remark = f" request type {asked.code} ({request_name(asked.code)}) not supported"
            answer_it(asked, Answer(code=ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=remark))
            return
        lane = route.lane
        if len(asked.body) > lane.body_bytes_max:
            answer_it(asked, lane.too_long(asked))
            return
        if now_s - asked.received_s > lane.age_s_max:
            refused = lane.too_old(asked, now_s)
            if refused is not None:
                answer_it(asked, refused)
                return
        if lane.held:
            lane.submit(asked, lambda: self._handle_held(asked))
            return
        try:
            if route.header is not None:
                asked.header = asked.ticket.header(route.header)
            if guard is not None and not guard.allows(asked):
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
    """The answer of a failed handler: our own errors explain themselves, others say where they came from."""
    if isinstance(error, Closed):
        return Answer(code=error.code, remark=str(error))
    if isinstance(error, KeroloxError):
        log.debug("request_refused peer=%s code=%d error=%r", asked.caller.address, asked.code, error)
        return Answer(code=error.code, remark=str(error))
    log.exception("request_failed peer=%s request=%s", asked.caller.address, request_name(asked.code))
    frame = traceback.extract_tb(error.__traceback__)[-1]
    place = f"{frame.filename.rsplit('/', 1)[-1]}:{frame.lineno}"
    return Answer(code=ResponseCode.SYSTEM_ERROR, remark=f"{type(error).__name__}: {error} ({place})")
