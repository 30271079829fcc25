"""What a handler sees, and what it gives back. No frames here, so that another front door can use it too."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from kerolox.protocol.command import Command
from kerolox.protocol.header import Header

if TYPE_CHECKING:
    from kerolox.front.lanes import Lane
    from kerolox.net.peer import Peer
    from kerolox.protocol.frame import Frame

H = TypeVar("H")


class Answer(msgspec.Struct):
    """What a handler answers. ``body`` may come in parts, which are joined once when written."""

    code: int = 0
    header: Header | None = None
    body: bytes | Sequence[bytes] = b""
    remark: str | None = None


class Request(Generic[H]):
    """One request of a peer: its typed header and body, and the way to answer it later."""

    __slots__ = ("command", "header", "peer", "received_s")

    def __init__(self, command: Command, header: H, peer: Peer, received_s: float) -> None:
        self.command = command
        self.header = header
        self.peer = peer
        self.received_s = received_s

    @property
    def body(self) -> bytes:
        return self.command.body

    def answer(self, answer: Answer) -> None:
        """Answer now or later, once. Nothing is sent for a one-way request or a closed connection."""
        self.peer.answer(self, answer)


class HeldRequest(Request[H]):
    """One that was held until there was something to answer."""

    __slots__ = ()


# Takes many requests of a peer at once, in the frames they came in: from a place on, as many as it likes. How
# many it took. For conversations that come by the hundred thousand.
RunHandler = Callable[["Peer", "list[Frame]", int], int]

# A handler decides at once and returns its answer; or returns None and answers later (or never); or is
# a coroutine function, for work that has to wait. Plain functions run inside the read pass; one that finds
# that just this request has to wait returns a coroutine function, to be called when its turn has come.
Later = Callable[[], Coroutine[Any, Any, "Answer | None"]]
Handler = Callable[[Request[Any]], "Answer | Awaitable[Answer | None] | Later | None"]


# What a part of a server serves: code, handler, type of its header.
Row = tuple[int, Handler, type[Header] | None]


class Route:
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


class Hook:
    """Looks at requests before they are sent. Those that come are looked at by gates."""

    def before_request(self, peer: Peer, request: Command) -> None:
        """May change the request's fields."""


class Handlers:
    """The table of a server or client: code to route."""

    def __init__(self) -> None:
        self.routes: dict[int, Route] = {}
        self.hooks: list[Hook] = []
        self.gates: tuple[Gate, ...] = ()
        # By the first bytes of their header: what may be taken in runs.
        self.runs: dict[bytes, tuple[RunHandler, Lane]] = {}
        # Called at the end of every read pass, before its answers are written: a handler may put off
        # work until then and do it once for all requests of the pass (a broker writes its log here).
        self.after_pass: list[Callable[[], None]] = []
        # Hears of every answer but those of runs, for figures: the request, and the code of its answer.
        self.answered: Callable[[Request[Any], int], None] | None = None

    def add(self, code: int, handler: Handler, header: type[Header] | None, lane: Lane) -> None:
        if code in self.routes:
            raise ValueError(f"code {code} has a handler already: {self.routes[code].handler}")
        self.routes[code] = Route(int(code), handler, header, lane)

    def add_run(self, start: bytes, handler: RunHandler, lane: Lane) -> None:
        """Offer frames whose header begins so to this one first. Runs go past gates: there must be none."""
        if self.gates:
            raise ValueError(f"runs of {start!r} would go past {len(self.gates)} gates: take none in runs")
        self.runs[start] = (handler, lane)

    def add_gate(self, gate: Gate) -> None:
        """Show every request to this one before it is handled. So nothing is taken in runs any more."""
        self.runs.clear()
        self.gates += (gate,)
