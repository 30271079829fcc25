"""Handlers of a remoting connection: routes, hooks for outgoing requests, and handlers of runs of frames."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kerolox.front.handlers import Gate, Guard, Handlers
from kerolox.front.lanes import Lane
from kerolox.front.requests import Answer, Request

if TYPE_CHECKING:
    from kerolox.net.peer import Peer
    from kerolox.protocol.command import Command
    from kerolox.protocol.frame import Frame

# Takes many requests of a peer at once, as frames, beginning at an index of the list. Returns the number of
# frames taken; or, for a frame that is left to the handlers, its command if it was decoded. For requests that
# arrive by the hundred thousand.
RunHandler = Callable[["Peer", "list[Frame]", int], "int | Command"]


class Hook:
    """Sees requests before they are sent. (Gates see received requests.)"""

    def before_request(self, peer: Peer, request: Command) -> None:
        """Called with each request; may change its fields."""


class RemotingHandlers(Handlers):
    """The handlers of a server or dialer."""

    def __init__(
        self, guard: Guard | None = None, answered: Callable[[Request[Any], Answer], None] | None = None
    ) -> None:
        super().__init__(guard, answered)
        self.hooks: list[Hook] = []
        # First bytes of a header → the handler of runs of such requests, and its lane.
        self.runs: dict[bytes, tuple[RunHandler, Lane]] = {}

    def add_run(self, start: bytes, handler: RunHandler, lane: Lane) -> None:
        """Offer frames whose header begins with these bytes to this handler first. Runs bypass gates, so no
        gate may exist; they bypass the guard too, so the handler must check what the guard checks."""
        if self.gates:
            raise ValueError(f"runs of {start!r} would bypass {len(self.gates)} gates: do not register runs")
        self.runs[start] = (handler, lane)

    def add_gate(self, gate: Gate) -> None:
        """Let this gate check every request before it is handled. It disables runs."""
        self.runs.clear()
        super().add_gate(gate)
