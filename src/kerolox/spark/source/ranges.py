"""Ranges of queues that tasks read: how they are chosen, cut and joined."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from pyspark.sql.datasource import InputPartition

from kerolox.client.messages import Queue

# Of ranges that one task reads together. A task in Python costs about as much as ten thousand rows; but what
# a query does with each row may cost anything, and then tasks are what it runs side by side.
TOGETHER_ROWS: Final = 256


@dataclass(frozen=True)
class Range(InputPartition):
    """Offsets of a queue from ``start`` up to ``end``, not including it."""

    queue: Queue
    start: int
    end: int

    @property
    def value(self) -> str:  # what Spark shows
        return repr(self)

    def __repr__(self) -> str:
        queue = self.queue
        return f"{queue.topic}/{queue.broker}/{queue.queue_id}[{self.start}, {self.end})"

    @property
    def count(self) -> int:
        return self.end - self.start


@dataclass(frozen=True)
class Ranges(InputPartition):
    """Short ranges that one task reads, one after the other."""

    parts: tuple[Range, ...]

    @property
    def value(self) -> str:
        return repr(self)

    def __repr__(self) -> str:
        return ", ".join(map(repr, self.parts))


def tasks(
    wanted: Iterable[Range], *, pieces_min: int | None = None, rows_max: int | None = None
) -> list[Ranges]:
    """Return the ranges of each task. Short ones are joined, unless the user set number or size of tasks."""
    pieces = split(wanted, pieces_min=pieces_min, rows_max=rows_max)
    if pieces_min is not None or rows_max is not None:
        return [Ranges((piece,)) for piece in pieces]
    found: list[Ranges] = []
    together: list[Range] = []
    rows = 0
    for piece in pieces:
        if together and rows + piece.count > TOGETHER_ROWS:
            found.append(Ranges(tuple(together)))
            together, rows = [], 0
        together.append(piece)
        rows += piece.count
    return [*found, Ranges(tuple(together))] if together else found


def ranges(starts: Mapping[Queue, int], ends: Mapping[Queue, int]) -> list[Range]:
    """Return the ranges between two offsets of each queue; none where the end is not after the start."""
    return [
        Range(queue, starts[queue], end)
        for queue, end in sorted(ends.items())
        if queue in starts and starts[queue] < end
    ]


def split(
    wanted: Iterable[Range], *, pieces_min: int | None = None, rows_max: int | None = None
) -> list[Range]:
    """Cut ranges so that there are at least ``pieces_min`` (long ones first), none with over ``rows_max``."""
    whole = list(wanted)
    counts = [1 if rows_max is None else -(-each.count // rows_max) for each in whole]
    total = sum(each.count for each in whole)
    if pieces_min is not None and sum(counts) < pieces_min and total:
        # By length; rounding down leaves some pieces over, which go where pieces are longest.
        counts = [
            max(count, pieces_min * each.count // total) for count, each in zip(counts, whole, strict=True)
        ]
        while sum(counts) < min(pieces_min, total):
            longest = max(range(len(whole)), key=lambda at: whole[at].count / counts[at])
            counts[longest] += 1
    return [piece for each, count in zip(whole, counts, strict=True) for piece in _cut(each, count)]


def _cut(whole: Range, count: int) -> list[Range]:
    count = max(1, min(count, whole.count))
    edges = [whole.start + whole.count * number // count for number in range(count + 1)]
    return [Range(whole.queue, low, high) for low, high in pairwise(edges)]


def shares(
    backlog: Mapping[Queue, int], limit: float, *, sizes: Mapping[Queue, float] | None = None, turn: int = 0
) -> dict[Queue, int]:
    """Divide ``limit`` messages among the queues by their backlogs, so that no queue starves.

    With ``sizes``, the mean size of a message in each queue, the limit is one of bytes. At least one message
    goes through. When the limit is too small for one of each queue, they take turns: ``turn`` is any number
    that grows.
    """
    queues = [queue for queue, count in sorted(backlog.items()) if count > 0]
    cost = dict.fromkeys(queues, 1.0) if sizes is None else {queue: sizes[queue] for queue in queues}
    if sum(backlog[queue] * cost[queue] for queue in queues) <= limit:
        return {queue: backlog[queue] for queue in queues}
    begin = turn % len(queues)
    found: dict[Queue, int] = {}
    for queue in queues[begin:] + queues[:begin]:
        if limit >= cost[queue] or not found:
            found[queue] = 1
            limit -= cost[queue]
    if limit > 0 and len(found) == len(queues):
        rest = {queue: (backlog[queue] - 1) * cost[queue] for queue in found}
        part = limit / sum(rest.values())
        for queue in found:
            more = int((backlog[queue] - 1) * part)
            found[queue] += more
            limit -= more * cost[queue]
        for queue in found:  # what rounding down left over
            if limit >= cost[queue] and found[queue] < backlog[queue]:
                found[queue] += 1
                limit -= cost[queue]
    return found
