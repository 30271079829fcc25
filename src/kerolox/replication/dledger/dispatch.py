"""The leader's next request to one follower. Decisions only.

The leader first finds the last common entry (COMPARE, backwards from its own end), then has the follower's
log truncated there (TRUNCATE), then sends the following entries (APPEND), many requests at a time. A request
that is not answered in time is repeated; an answer that does not match starts the comparison again.
"""

from __future__ import annotations

from collections import OrderedDict
from enum import Enum
from typing import NamedTuple

from kerolox.protocol.bodies.dledger import LedgerStatus, PushAnswer
from kerolox.protocol.ledger_entry import NO_INDEX, LedgerEntry

BATCH_BYTES = 64 << 10  # of the entries of one request, where many may be in one
WINDOW_BYTES_MAX = 32 << 20  # sent and not answered


class Stage(Enum):
    COMPARE = "compare"
    TRUNCATE = "truncate"
    APPEND = "append"


class Step(NamedTuple):
    stage: Stage
    at: int  # the index that is compared, the last that stays, or the first to send


class DispatchFailed(Exception):
    """The follower said something that leaves nothing but to begin anew."""


def after_compare(index: int, begin: int, end: int, answer: PushAnswer) -> Step:
    """Return the step after the answer to COMPARE of an entry. ``begin`` and ``end`` are the leader's."""
    if answer.code == LedgerStatus.SUCCESS:
        if answer.end_index == index:
            return Step(Stage.APPEND, index + 1)
        return Step(Stage.TRUNCATE, index)
    if answer.code != LedgerStatus.INCONSISTENT_STATE:
        raise DispatchFailed(f"compared entry {index}, and was answered {answer.code}")
    if answer.end_index < begin or answer.begin_index > end or index < answer.begin_index:
        return Step(Stage.TRUNCATE, begin)  # nothing is in both
    lower = answer.end_index if index > answer.end_index else index - 1
    return Step(Stage.TRUNCATE, begin) if lower < begin else Step(Stage.COMPARE, lower)


class Sent(NamedTuple):
    """A request that is not answered."""

    last: int
    sent_s: float
    size: int


class Window:
    """Requests to one follower in the APPEND stage, and its acknowledgements."""

    def __init__(self, first: int, requests_max: int) -> None:
        self.next_index = first
        self.acked = first - 1  # it has all up to here
        self._requests_max = requests_max
        self._open: OrderedDict[int, Sent] = OrderedDict()  # by the first index
        self._open_bytes = 0

    def __len__(self) -> int:
        return len(self._open)

    @property
    def room(self) -> int:
        """How many requests may be sent now."""
        return 0 if self._open_bytes > WINDOW_BYTES_MAX else self._requests_max - len(self._open)

    def sent(self, entries: list[LedgerEntry], now_s: float) -> None:
        """For the first time, or again."""
        first, last = entries[0].index, entries[-1].index
        self._forget(first)
        size = sum(entry.size for entry in entries)
        self._open[first] = Sent(last, now_s, size)
        self._open_bytes += size
        self.next_index = max(self.next_index, last + 1)

    def answered(self, index: int, count: int) -> bool:
        """It has these. Whether that is news."""
        last = index + max(1, count) - 1
        if last >= self.next_index:
            raise DispatchFailed(f"has entry {last}, of which it was sent none from {self.next_index} on")
        self._forget(index)
        if last <= self.acked:
            return False
        self.acked = last
        for first in [first for first, sent in self._open.items() if sent.last <= last]:
            self._forget(first)  # it takes them in order
        return True

    def overdue(self, now_s: float, after_s: float) -> tuple[int, int] | None:
        """The first and last entry of the oldest request, if it has waited for too long."""
        if not self._open:
            return None
        first = min(self._open)
        sent = self._open[first]
        return (first, sent.last) if now_s - sent.sent_s >= after_s else None

    def _forget(self, first: int) -> None:
        sent = self._open.pop(first, None)
        if sent is not None:
            self._open_bytes -= sent.size


def batches(entries: list[LedgerEntry], *, many: bool) -> list[list[LedgerEntry]]:
    """Cut entries into requests: of one each, or of many."""
    if not many:
        return [[entry] for entry in entries]
    cut: list[list[LedgerEntry]] = []
    size = BATCH_BYTES
    for entry in entries:
        if size >= BATCH_BYTES:
            cut.append([])
            size = 0
        cut[-1].append(entry)
        size += entry.size
    return cut


class Quota:
    """Bytes per second for a follower that lacks very much, so that the others are served as well."""

    def __init__(self, bytes_per_s: int) -> None:
        self._bytes_per_s = bytes_per_s
        self._second = -1.0
        self._left = 0

    def take(self, size: int, now_s: float) -> float:
        """How long to wait before sending that much; 0: now, and it is counted."""
        if now_s - self._second >= 1.0:
            self._second, self._left = now_s, self._bytes_per_s
        if self._left <= 0:
            return self._second + 1.0 - now_s
        self._left -= size
        return 0.0


def first_step(end: int) -> Step | None:
    """Return the first step; None while there is nothing to send."""
    return None if end == NO_INDEX else Step(Stage.COMPARE, end)
