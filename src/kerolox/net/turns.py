"""Turns of connections that sent more than one turn of the event loop can handle.

Frames are handled as soon as they are read, while the loop has time. A connection that sent more takes turns
with the others: the connections of one source address form a line, and the lines rotate, so that an address
with ten thousand busy connections delays only itself. All turns of one round of the loop take ROUND_S
together, however many connections are busy; frames that the loop reads between two rounds take as long.

Connections that wait until their address has paid back its cost form a line too. Only the first of them
continues, then the next: the others cost nothing meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf
from typing import Final, Protocol

from kerolox.clock import SYSTEM_CLOCK, Clock, TimerHandle

PASS_S_MAX: Final = 0.01  # of one turn
PASS_S_MIN: Final = 0.0005
ROUND_S: Final = 0.01


class Holder(Protocol):
    """A connection."""

    source: str  # its source address

    def take_turn(self) -> None:
        """Handle what waits, for a short time; ask for another turn if it was not enough."""

    def waited(self) -> None:
        """Go on after a wait for the source address."""


class _Line:
    """The connections of one source address that wait, and when the first of them goes on."""

    def __init__(self, timer: TimerHandle) -> None:
        self.holders: dict[Holder, None] = {}
        self.timer = timer


class Turns:
    """Order in which busy connections are handled."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        # Source address and kind of work → its connections, in turn.
        self._ready: dict[tuple[str, bool], dict[Holder, None]] = {}
        self._line_of: dict[Holder, tuple[str, bool]] = {}
        self._is_due = False  # a round comes in the next turn of the loop
        self.ends_s = inf  # from then on what is read has to wait for its turn
        self.turn_s_max = PASS_S_MAX  # length of one connection's turn
        self._waiting: dict[str, _Line] = {}

    def __len__(self) -> int:
        return len(self._line_of)

    def add(self, holder: Holder, *, is_short: bool = False) -> None:
        """Give a connection a turn, after the others of its address; ``is_short`` work has a line apart, for
        a small request must not wait behind megabytes."""
        if holder not in self._line_of:
            line = self._line_of[holder] = (holder.source, is_short)
            self._ready.setdefault(line, {})[holder] = None
            self._counted()
        self.begin()

    def begin(self) -> None:
        """Note that something took a while: what the loop reads now shares ROUND_S."""
        if not self._is_due:
            self._is_due = True
            self.ends_s = self._clock.monotonic_s() + ROUND_S
            asyncio.get_running_loop().call_soon(self._round)

    def wait(self, holder: Holder, wait_s: Callable[[], float]) -> None:
        """Let a connection go on when its address may: ``wait_s`` tells how long that takes from now."""
        line = self._waiting.get(holder.source)
        if line is None:
            source = holder.source
            timer = self._clock.call_later(wait_s(), lambda: self._waited(source, wait_s))
            line = self._waiting[source] = _Line(timer)
        line.holders[holder] = None

    def leave(self, holder: Holder) -> None:
        """Forget a connection."""
        if holder in self._line_of:
            self._remove(holder)
        line = self._waiting.get(holder.source)
        if line is not None:
            line.holders.pop(holder, None)
            if not line.holders:
                line.timer.cancel()
                del self._waiting[holder.source]

    def _remove(self, holder: Holder) -> None:
        line = self._line_of.pop(holder)
        ready = self._ready[line]
        del ready[holder]
        if not ready:
            del self._ready[line]
        self._counted()

    def _counted(self) -> None:
        self.turn_s_max = max(PASS_S_MIN, min(PASS_S_MAX, ROUND_S / (len(self) + 1)))

    def _round(self) -> None:
        self._is_due = False
        self.ends_s = inf
        ends_s = self._clock.monotonic_s() + ROUND_S
        try:
            for _ in range(len(self)):  # each connection has one turn in a round
                if not self._ready:
                    return
                line, ready = next(iter(self._ready.items()))
                holder = next(iter(ready))
                self._remove(holder)
                if ready:
                    self._ready[line] = self._ready.pop(line)  # the line comes after all others
                holder.take_turn()
                if self._clock.monotonic_s() > ends_s:
                    return
        finally:
            if self._ready:
                self.begin()
            if self._is_due:
                self.ends_s = self._clock.monotonic_s() + ROUND_S

    def _waited(self, source: str, wait_s: Callable[[], float]) -> None:
        line = self._waiting[source]
        try:
            if wait_s() <= 0:
                holder = next(iter(line.holders))
                del line.holders[holder]
                if not line.holders:
                    del self._waiting[source]
                holder.waited()
        finally:
            if self._waiting.get(source) is line:
                line.timer = self._clock.call_later(wait_s(), lambda: self._waited(source, wait_s))
