"""Checksums of queues and index: ``kerolox.sums``, kerolox's own note beside RocketMQ's files.

Queue entries and index entries have no CRC, so a flipped byte in one of them looks like another entry: a
message that cannot be reached, or one that no filter finds. Both files only grow, so a sum of the beginning
of a file holds as long as the file exists. A start trusts the data that its sum covers, and rebuilds the rest
from the log.

The file is rewritten and swapped in after the data it covers was flushed: at a clean stop, at a start, and
whenever the log has grown by :data:`STEP_BYTES`. So after a kill little data has no sum.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import NamedTuple
from zlib import crc32

import msgspec

from kerolox.store.disk.files import Files, PathLike
from kerolox.store.disk.json_note import JsonNote
from kerolox.store.disk.segments import Segments
from kerolox.store.errors import StoreError

log = logging.getLogger(__name__)

NAME = "kerolox.sums"
STEP_BYTES = 32 << 20
CHECKED_BYTES = 16 << 20  # bytes of the log that are checked at every start
UNKNOWN = -1
_READ_BYTES = 1 << 20


class FileSum(NamedTuple):
    """CRC-32 of the first ``size`` bytes of the file that begins at ``start``."""

    start: int
    size: int
    crc: int


class IndexSum(NamedTuple):
    """File of the key index: its header in hex, and the CRC-32 of the entries that the header counts.

    ``slots`` is the CRC-32 of the slots; :data:`UNKNOWN` while they are only in memory.
    """

    name: str
    header: str
    entries: int
    slots: int = UNKNOWN


class QueueSums(msgspec.Struct, array_like=True):
    """Sums of one queue: its files, and those of its extension."""

    topic: str
    queue_id: int
    files: list[FileSum]
    extension: list[FileSum] = []

    @property
    def end(self) -> int:
        """Return the number of bytes of the queue that have a sum."""
        return self.files[-1].start + self.files[-1].size if self.files else 0


class Sums(msgspec.Struct):
    """Sums of queues and index, and the log offset they follow."""

    end: int = UNKNOWN  # the sums cover every record before this log offset
    before: int = UNKNOWN  # offset at which a record begins, CHECKED_BYTES before the end or a little more
    queues: list[QueueSums] = []
    index: list[IndexSum] = []


class SumsFile:
    """File with the sums of one store."""

    def __init__(self, files: Files, directory: PathLike) -> None:
        self._note = JsonNote(files, directory, NAME, Sums)
        self.remove = self._note.remove  # call it before data that the sums cover is changed in place

    def load(self) -> Sums | None:
        """Return the sums; None if the file does not exist, or is damaged."""
        try:
            return self._note.read()
        except (ValueError, StoreError) as error:
            log.warning(
                "sums_ignored path=%s reason=%r next='no action needed: queues and index are compared with "
                "the log'",
                self._note.path,
                str(error),
            )
            return None

    def save(self, sums: Sums) -> None:
        """Write, flush and swap in the sums. Waits for the disk: call it in a thread."""
        self._note.write(sums)


def sum_up(segments: Segments, known: Iterable[FileSum], end: int) -> list[FileSum]:
    """Return the sums of all files up to ``end``, reading only data added since the ``known`` ones. Runs in a
    thread."""
    by_start = {known_sum.start: known_sum for known_sum in known}
    sums: list[FileSum] = []
    for segment in segments.all:
        size = min(segment.end, end) - segment.start
        if size < 0:
            break  # an empty file has a sum, too: it shows the end of the queue
        old = by_start.get(segment.start)
        if old is None or old.size > size:
            old = FileSum(segment.start, 0, 0)
        sums.append(FileSum(segment.start, size, _crc(segments, old, size)))
    return sums


def sums_before(sums: Iterable[FileSum], end: int) -> list[FileSum]:
    """Return the sums that still hold when a queue is cut here."""
    return [known for known in sums if known.start + known.size <= end]


def first_unlike(segments: Segments, sums: Iterable[FileSum]) -> int | None:
    """Return the start of the first file that does not match its sum; None if all match. Wait for the
    disk."""
    for known in sums:
        segment = segments.segment_at(known.start)
        if segment is None or segment.start != known.start or segments.committed < known.start + known.size:
            return known.start
        if _crc(segments, FileSum(known.start, 0, 0), known.size) != known.crc:
            return known.start
    return None


def _crc(segments: Segments, known: FileSum, size: int) -> int:
    """Return the CRC of the first ``size`` bytes of a file, continuing from a ``known`` sum."""
    at, crc = known.size, known.crc
    while at < size:
        data = segments.read(known.start + at, min(_READ_BYTES, size - at))
        crc = crc32(data, crc)
        at += len(data)
    return crc
