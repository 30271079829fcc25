"""What a remoting door has beside its routes: hooks that see its questions, and runs that take frames."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from kerolox.front.handlers import Gate, Handlers
from kerolox.front.lanes import Lane

if TYPE_CHECKING:
    from kerolox.net.peer import Peer
    from kerolox.protocol.command import Command
    from kerolox.protocol.frame import Frame

# Takes many requests of a peer at once, in the frames they came in: from a place on, as many as it likes. How
# many it took. For conversations that come by the hundred thousand.
RunHandler = Callable[["Peer", "list[Frame]", int], int]


class Hook:
    """Looks at requests before they are sent. Those that come are looked at by gates."""

    def before_request(self, peer: Peer, request: Command) -> None:
        """May change the request's fields."""


class RemotingHandlers(Handlers):
    """The table of a server or dialer."""

    def __init__(self) -> None:
        super().__init__()
        self.hooks: list[Hook] = []
        # By the first bytes of their header: what may be taken in runs.
        self.runs: dict[bytes, tuple[RunHandler, Lane]] = {}

    def add_run(self, start: bytes, handler: RunHandler, lane: Lane) -> None:
        """Offer frames whose header begins so to this one first. Runs go past gates: there must be none."""
        if self.gates:
            raise ValueError(f"runs of {start!r} would go past {len(self.gates)} gates: take none in runs")
        self.runs[start] = (handler, lane)

    def add_gate(self, gate: Gate) -> None:
        """Show every request to this one before it is handled. So nothing is taken in runs any more."""
        self.runs.clear()
        super().add_gate(gate)
