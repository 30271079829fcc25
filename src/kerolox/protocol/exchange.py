"""Assignment of answers to requests: open calls by opaque, with their deadlines. No I/O."""

from __future__ import annotations

from collections.abc import Callable

from kerolox.errors import Overloaded
from kerolox.protocol.command import Command

# Called once, with the answer or with the error.
OnAnswer = Callable[[Command | Exception], None]


class Exchange:
    """The requests of one connection that wait for an answer."""

    __slots__ = ("_next_opaque", "_waiting", "in_flight_max")

    def __init__(self, in_flight_max: int) -> None:
        self.in_flight_max = in_flight_max
        self._next_opaque = 0
        self._waiting: dict[int, tuple[OnAnswer, float, Command]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def next_opaque(self) -> int:
        """Return a number that no open request has. It is a signed 32-bit number that wraps to negative as in
        Java."""
        while True:
            opaque = self._next_opaque
            self._next_opaque = opaque + 1 if opaque < 0x7FFFFFFF else -0x80000000
            if opaque not in self._waiting:
                return opaque

    def ask(self, command: Command, on_answer: OnAnswer, deadline_s: float) -> None:
        """Record a request that is about to be written."""
        if len(self._waiting) >= self.in_flight_max:
            raise Overloaded(
                f"{len(self._waiting)} requests wait for answers on this connection, "
                f"the limit is {self.in_flight_max}. Wait for answers, or raise in_flight_max."
            )
        self._waiting[command.opaque] = (on_answer, deadline_s, command)

    def take(self, opaque: int) -> OnAnswer | None:
        """Remove and return the callback of an answer; None if no request waits for it (any more)."""
        entry = self._waiting.pop(opaque, None)
        return None if entry is None else entry[0]

    def take_expired(self, now_s: float) -> list[tuple[OnAnswer, Command]]:
        """Remove and return the requests whose deadline has passed."""
        expired = [opaque for opaque, (_, deadline_s, _) in self._waiting.items() if deadline_s <= now_s]
        taken = []
        for opaque in expired:
            on_answer, _, command = self._waiting.pop(opaque)
            taken.append((on_answer, command))
        return taken

    def take_all(self) -> list[OnAnswer]:
        """Remove and return all requests, because the connection is closed."""
        waiting = [on_answer for on_answer, _, _ in self._waiting.values()]
        self._waiting.clear()
        return waiting
