"""Retention: which files are deleted, and when the disk is too full for messages.

This module only decides; MessageStore acts. Commit-log files are deleted oldest first and never the last one:
by age at the configured hours or when the disk is filling, and before they expire when it is nearly full.
Queues and index follow the log's new beginning.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import msgspec

from kerolox.store.options import StoreOptions

MS_PER_HOUR = 3_600_000
MANUAL_ROUNDS = 20  # rounds for which a deletion order counts, as in RocketMQ


class LogFile(msgspec.Struct, frozen=True):
    """Commit-log file as retention sees it."""

    start: int
    end: int
    modified_ms: int


class RetentionVerdict(msgspec.Struct, frozen=True):
    """Decision of one retention round."""

    delete_before: int | None  # log offset; None: delete nothing
    disk_full: bool  # True: reject messages
    reason: str


def judge(
    files: Sequence[LogFile],
    disk_ratio: float,
    now_ms: int,
    options: StoreOptions,
    *,
    ordered: bool = False,
    queue_disk_ratio: float | None = None,
    was_full: bool = False,
) -> RetentionVerdict:
    """Decide which files to delete. ``disk_ratio`` is used/total, below 0 when it is unknown.

    With several directories the emptiest one decides, because new files can still go there. A disk that
    ``was_full`` stays full until its usage has fallen to the level at which files are no longer deleted
    before they expire.
    """
    ratio = disk_ratio if queue_disk_ratio is None else max(disk_ratio, queue_disk_ratio)
    full = ratio > (options.disk_percent_force if was_full else options.disk_percent_full) / 100
    forced = ratio > options.disk_percent_force / 100 and options.force_clean
    unknown = disk_ratio < 0 or (queue_disk_ratio is not None and queue_disk_ratio < 0)
    filling = ratio > options.disk_percent_max / 100 or unknown
    hour = time.localtime(now_ms / 1000).tm_hour
    due = hour in delete_hours(options.delete_hours)
    if not (due or filling or forced or ordered or full):
        return RetentionVerdict(None, False, "nothing is due")
    if ratio > options.disk_percent_max / 100 or forced or full:
        why = f"the disk is {ratio * 100:.0f}% full"
    elif unknown:
        why = "the disk usage is unknown"
    else:
        why = "a deletion was ordered" if ordered else f"it is {hour} o'clock"
    before: int | None = None
    for count, file in enumerate(files[:-1], start=1):
        old = file.modified_ms + options.keep_hours * MS_PER_HOUR <= now_ms
        if count > options.delete_batch_max or not (old or forced):
            break
        before = file.end
    return RetentionVerdict(
        before, full, why if before is not None else f"{why}, but no file may be deleted yet"
    )


def delete_hours(text: str) -> frozenset[int]:
    """Return the hours of the day in ``04;16``. Words that are no hour are ignored."""
    words = [word.strip() for word in text.split(";")]
    return frozenset(int(word) for word in words if word.isascii() and word.isdigit() and int(word) < 24)
