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

# Takes many requests of a peer at once, as frames: from an index of the list on, as many as it can. Returns
# how many it took. For requests that come by the hundred thousand.
RunHandler = Callable[["Peer", "list[Frame]", int], int]


class Hook:
    """Looks at requests before they are sent. Gates look at requests that come."""

    def before_request(self, peer: Peer, request: Command) -> None:
        """May change the request's fields."""


class RemotingHandlers(Handlers):
    """The table of a server or dialer."""

    def __init__(self) -> None:
        super().__init__()
        self.hooks: list[Hook] = []
        # First bytes of a header → the function that takes runs of such requests.
        self.runs: dict[bytes, tuple[RunHandler, Lane]] = {}

    def add_run(self, start: bytes, handler: RunHandler, lane: Lane) -> None:
        """Offer frames whose header begins with these bytes to this function first. Runs go past gates, so
        there must be no gate; and past the guard, so whoever takes them does what the guard does."""
        if self.gates:
            raise ValueError(f"runs of {start!r} would go past {len(self.gates)} gates: take none in runs")
        self.runs[start] = (handler, lane)

    def add_gate(self, gate: Gate) -> None:
        """Show every request to this gate before the request is handled. From then on no request is taken in
        runs."""
        self.runs.clear()
        super().add_gate(gate)
