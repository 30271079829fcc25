"""Cuts of a log: ranges for tasks, each of which begins where a record or a file begins."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from kerolox.protocol.record_scan import CHECK_BODY, PHYSICAL_OFFSET, SIZE, scan
from kerolox.spark.store.files import LogFiles, QueueFiles, QueueRange

_GUIDES: Final = 8  # queues asked for a place where a record begins
_CHAIN: Final = 16  # records that must follow one found by its looks
_CHAIN_BYTES: Final = 8 << 20  # more than a body may have


def cut(
    log: LogFiles, low: int, high: int, step: int, queues: Sequence[QueueRange] = ()
) -> list[tuple[int, int]]:
    """Cut the log from ``low`` to ``high`` into ranges of about ``step`` bytes.

    ``queues`` of the store show where records begin; without them, records are searched for.
    """
    if high <= low:
        return []
    starts = list(_starts(log, low, high, step, queues))
    return list(zip(starts, [*starts[1:], high], strict=True))


def _starts(log: LogFiles, low: int, high: int, step: int, queues: Sequence[QueueRange]) -> Iterator[int]:
    guides = sorted(queues, key=lambda queue: queue.first - queue.end)[:_GUIDES]
    last = low
    yield last
    for piece in log.run.between(low, high).pieces:
        if piece.start - last > step - step // 4 and high - piece.start > step // 4:
            last = piece.start
            yield last
        end = min(piece.end, high)
        while (target := last + step) < end - step // 4:
            place = _record_near(log, guides, max(target, piece.start), end)
            if place >= end:
                break
            last = place
            yield last


def _record_near(log: LogFiles, guides: Sequence[QueueRange], target: int, end: int) -> int:
    """Return the first offset from ``target`` on where a record is known to begin; ``end`` without any."""
    found = end
    for queue in guides:
        with QueueFiles(queue.run) as files:
            entry = files.first_at(queue.first, queue.end, target)
            place = files.entry(entry)[0] if entry < queue.end else end
        if target <= place < found and not log.fault_at(place):
            found = place
    if found < end:
        return found
    # No queue has one. A body may contain a record, but hardly one with this physical offset that is followed
    # by others.
    while (target := log.next_record(target, end)) < end:
        chain = scan(log.read(target, _CHAIN_BYTES), check=CHECK_BODY, count_max=_CHAIN).entries
        place = target
        for record in chain:
            if record[PHYSICAL_OFFSET] != place:
                break
            place += record[SIZE]
        else:
            long = len(chain) == _CHAIN or place - target > _CHAIN_BYTES // 2
            if long or log.is_blank(place) or place >= end:
                return target
        target += 1
    return end
