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
ROUND_S: Final = 0.05


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
        self._ready: dict[str, dict[Holder, None]] = {}  # source address → its connections, in turn
        self._count = 0
        self._is_due = False  # a round comes in the next turn of the loop
        self.ends_s = inf  # from then on what is read has to wait for its turn
        self.turn_s_max = PASS_S_MAX  # length of one connection's turn
        self._waiting: dict[str, _Line] = {}

    def __len__(self) -> int:
        return self._count

    def add(self, holder: Holder) -> None:
        """Give a connection a turn, after the others of its address."""
        line = self._ready.setdefault(holder.source, {})
        if holder not in line:
            line[holder] = None
            self._counted(1)
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
        ready = self._ready.get(holder.source, {})
        if holder in ready:
            self._remove(holder, ready)
        line = self._waiting.get(holder.source)
        if line is not None:
            line.holders.pop(holder, None)
            if not line.holders:
                line.timer.cancel()
                del self._waiting[holder.source]

    def _remove(self, holder: Holder, ready: dict[Holder, None]) -> None:
        del ready[holder]
        self._counted(-1)
        if not ready:
            del self._ready[holder.source]

    def _counted(self, change: int) -> None:
        self._count += change
        self.turn_s_max = max(PASS_S_MIN, min(PASS_S_MAX, ROUND_S / (self._count + 1)))

    def _round(self) -> None:
        self._is_due = False
        self.ends_s = inf
        ends_s = self._clock.monotonic_s() + ROUND_S
        try:
            for _ in range(self._count):  # each connection has one turn in a round
                if not self._ready:
                    return
                source, ready = next(iter(self._ready.items()))
                holder = next(iter(ready))
                self._remove(holder, ready)
                if ready:
                    self._ready[source] = self._ready.pop(source)  # the line comes after all others
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
