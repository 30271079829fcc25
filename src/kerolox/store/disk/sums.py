"""Checksums of what follows the log: ``kerolox.sums``, our own note beside RocketMQ's files.

Queue entries and index entries carry no CRC, so a flipped byte in one of them looks like another entry: a
message that cannot be reached, or one that no filter finds. Both only grow, so a sum of what a file began
with holds for as long as the file is there. A start believes what its sum vouches for, and makes the rest
again from the log.

The file is written anew and swapped in, after what it vouches for was flushed: at a clean stop, at a start,
and whenever the log has grown by :data:`STEP_BYTES`. So after a kill little is without a sum.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from typing import NamedTuple
from zlib import crc32

import msgspec

from kerolox.store.disk.files import Files, PathLike
from kerolox.store.disk.segments import Segments
from kerolox.store.errors import StoreError

log = logging.getLogger(__name__)

NAME = "kerolox.sums"
STEP_BYTES = 32 << 20
CHECKED_BYTES = 16 << 20  # of the log are checked at every start
UNKNOWN = -1
_READ_BYTES = 1 << 20
_CRC_DIGITS = 10


class FileSum(NamedTuple):
    """The CRC-32 of the first ``size`` bytes of the file that begins at ``start``."""

    start: int
    size: int
    crc: int


class IndexSum(NamedTuple):
    """A file of the key index: its header in hex, and the CRC-32 of the entries that header counts.

    ``slots`` is that of the slots; :data:`UNKNOWN` while they are in memory only.
    """

    name: str
    header: str
    entries: int
    slots: int = UNKNOWN


class QueueSums(msgspec.Struct, array_like=True):
    """One queue: its files, and those of its extension."""

    topic: str
    queue_id: int
    files: list[FileSum]
    extension: list[FileSum] = []

    @property
    def end(self) -> int:
        """So many bytes of the queue have a sum."""
        return self.files[-1].start + self.files[-1].size if self.files else 0


class Sums(msgspec.Struct):
    """What was summed, and how far the log was followed then."""

    end: int = UNKNOWN  # every record before this place is in what was summed
    before: int = UNKNOWN  # a record begins here, CHECKED_BYTES before the end or a little more
    queues: list[QueueSums] = []
    index: list[IndexSum] = []


class SumsFile:
    """Reads and writes the sums of one store."""

    def __init__(self, files: Files, directory: PathLike) -> None:
        self.path = os.path.join(os.fspath(directory), NAME)
        self._files = files

    def load(self) -> Sums | None:
        """None when there is no file, or it does not read."""
        try:
            data = self._files.read_if_exists(self.path)
            if data is None:
                return None
            line, _, rest = data.partition(b"\n")
            if int(rest[:_CRC_DIGITS]) != crc32(line):
                raise ValueError("its CRC is another one")
            return msgspec.json.decode(line, type=Sums)
        except (ValueError, msgspec.DecodeError, StoreError) as error:
            log.warning(
                "sums_ignored path=%s reason=%r next='queues and index are compared with the log'",
                self.path,
                str(error),
            )
            return None

    def save(self, sums: Sums) -> None:
        """Write, flush and swap in. Waits for the disk: for a thread."""
        line = msgspec.json.encode(sums)
        self._files.write_atomic(self.path, b"%b\n%0*d\n" % (line, _CRC_DIGITS, crc32(line)))

    def remove(self) -> None:
        """Nothing is vouched for any more: before what was summed is changed in place."""
        if self._files.remove(self.path):
            self._files.sync_dir(os.path.dirname(self.path))


def sum_up(segments: Segments, known: Iterable[FileSum], end: int) -> list[FileSum]:
    """The sums of all files up to ``end``, reading only what was added to the ``known``. For a thread."""
    by_start = {known_sum.start: known_sum for known_sum in known}
    sums: list[FileSum] = []
    for segment in segments.all:
        size = min(segment.end, end) - segment.start
        if size < 0:
            break  # one with no byte yet has a sum, too: it says where the queue ends
        old = by_start.get(segment.start)
        if old is None or old.size > size:
            old = FileSum(segment.start, 0, 0)
        sums.append(FileSum(segment.start, size, _crc(segments, old, size)))
    return sums


def sums_before(sums: Iterable[FileSum], end: int) -> list[FileSum]:
    """Those that still hold when a queue is cut here."""
    return [known for known in sums if known.start + known.size <= end]


def first_unlike(segments: Segments, sums: Iterable[FileSum]) -> int | None:
    """Where the first file begins that is not what its sum says; None when all are. Waits for the disk."""
    for known in sums:
        segment = segments.segment_at(known.start)
        if segment is None or segment.start != known.start or segments.committed < known.start + known.size:
            return known.start
        if _crc(segments, FileSum(known.start, 0, 0), known.size) != known.crc:
            return known.start
    return None


def _crc(segments: Segments, known: FileSum, size: int) -> int:
    """The CRC of the first ``size`` bytes of a file of which some are known."""
    at, crc = known.size, known.crc
    while at < size:
        data = segments.read(known.start + at, min(_READ_BYTES, size - at))
        crc = crc32(data, crc)
        at += len(data)
    return crc
