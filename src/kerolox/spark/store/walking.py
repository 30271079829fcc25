"""Walk along a range of a log: blocks of checked records, and the damage between them.

Every record is checked before it is used, without a Python step per record
(:mod:`kerolox.spark.store.faults`): its magic number, its lengths and its physical offset.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from kerolox.protocol.record_scan import CHECK_BODY, CHECK_NONE
from kerolox.spark.records import Positions, record_starts
from kerolox.spark.store.faults import RECORD_BYTES_MIN, faults
from kerolox.spark.store.files import GONE, NO_FILE, LogFiles

_PAD: Final = 64  # bytes behind a block, so that reads of a short last record stay inside


class LogBlock(NamedTuple):
    """Consecutive records of a log. The bytes are valid until the next block."""

    bytes: npt.NDArray[np.uint8]  # with room behind the last record
    base: int  # offset of the block in the log
    positions: Positions  # begins of the records in the block
    sizes: Positions

    @property
    def end(self) -> int:
        return self.base + int(self.positions[-1]) + int(self.sizes[-1])


class LogDamage(NamedTuple):
    """Bytes of the log that are not a record. ``end``: begin of the next record, or end of the range."""

    start: int
    end: int
    what: str


class LogWalk:
    """Walk along one range, which begins at a record or where one should begin.

    ``open_end``: the log may end within the range, and a broker may be writing to it. Bytes without a record
    behind them are then its end, not damage. ``end`` and ``stop`` are valid after the walk.
    """

    def __init__(
        self,
        log: LogFiles,
        start: int,
        end: int,
        *,
        block_bytes: int,
        check_bodies: bool = False,
        open_end: bool = False,
    ) -> None:
        self.end = start  # end of the last record or damage
        self.stop = ""  # description of the bytes at ``end`` if the log ends there
        self._log = log
        self._limit = end
        self._open_end = open_end
        self._check_bodies = check_bodies
        self._buffer = np.zeros(block_bytes + _PAD, np.uint8)
        self._doubtful = -1  # offset of bytes that are read a second time

    def __iter__(self) -> Iterator[LogBlock | LogDamage]:
        log, run = self._log, self._log.run
        while self.end < self._limit:
            piece = run.piece_at(self.end)
            if piece is None:
                following = run.next_start(self.end)
                yield self._damage(following if following > self.end else self._limit, NO_FILE)
                continue
            limit = min(piece.end, self._limit)
            got = log.read_into(
                self._buffer.data[: min(limit - self.end, len(self._buffer) - _PAD)], self.end
            )
            if not got:
                yield self._damage(limit, GONE)
                continue
            block, is_whole = self._records(self._buffer.data[:got])
            if block is not None:
                self.end = block.end
                yield block
                if self.end >= limit or is_whole:
                    continue
            if log.is_blank(self.end):
                self.end = limit
            elif (damage := self._examine(limit, got)) is not None:
                yield damage
            elif self.stop:
                return

    def _records(self, data: memoryview) -> tuple[LogBlock | None, bool]:
        """Return the records at the begin of the data; and True if all complete ones are good."""
        positions, sizes = _chain(data)
        bad = faults(data, positions, sizes, positions + self.end, check_bodies=self._check_bodies)
        hits = np.flatnonzero(bad)
        if len(hits):
            positions, sizes = positions[: hits[0]], sizes[: hits[0]]
        if not len(positions):
            return None, False
        return LogBlock(self._buffer, self.end, positions, sizes), not len(hits)

    def _examine(self, limit: int, seen_bytes: int) -> LogDamage | None:
        """Examine bytes that are not a checked record.

        Return the damage; None if the log ends here, or if they must be read again: as a larger block, or a
        second time.
        """
        log, place = self._log, self.end
        what = log.fault_at(place, check=CHECK_BODY if self._check_bodies else CHECK_NONE)
        if not what:
            size = int.from_bytes(log.read(place, 4), "big")
            if place + size > limit:
                what = f"a record of {size} bytes reaches into the next one"
            elif size > seen_bytes:
                self._buffer = np.zeros(size + _PAD, np.uint8)
                return None
            else:
                what = "no record"
        if not self._open_end:
            return self._damage(log.next_record(place + 1, self._limit), what)
        following = log.next_record(place + 1, log.run.end)
        if following >= log.run.end:
            self.stop = what
            return None
        if place != self._doubtful:
            self._doubtful = place
            return None
        return self._damage(following, what)

    def _damage(self, following: int, what: str) -> LogDamage:
        damage = LogDamage(self.end, following, what)
        self.end = min(following, self._limit)
        return damage


def _chain(data: memoryview) -> tuple[Positions, Positions]:
    """Return begins and sizes of the complete records in the data, by their size fields only."""
    starts, stop = record_starts(data, 0, len(data))
    positions = np.frombuffer(starts, np.int64)
    sizes = np.diff(positions, append=stop)
    # Not those behind a size that none can have, nor one that is not complete.
    good = int(np.argmax(sizes < RECORD_BYTES_MIN)) if (sizes < RECORD_BYTES_MIN).any() else len(sizes)
    if good == len(sizes) and stop > len(data):
        good -= 1
    return positions[:good], sizes[:good]
