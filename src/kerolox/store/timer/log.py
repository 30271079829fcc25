"""Timer log: one unit of 52 bytes for each timer message, chained backwards by moment. See FORMAT.md.

A unit holds the message's offset in the commit log and the offset of the previous unit of the same moment in
this log; the wheel holds the last one. Files have a fixed size and end with a blank of 16 bytes.
"""

from __future__ import annotations

import logging
import struct
from array import array
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from kerolox.store.disk.files import Files, PathLike
from kerolox.store.disk.segment import OpenFiles
from kerolox.store.disk.segments import Segments
from kerolox.store.errors import FsyncFailed, OffsetOutOfRange

log = logging.getLogger(__name__)

_UNIT = struct.Struct(
    ">i"  # size of the unit: 52
    "q"  # offset of the previous unit of the same moment; -1: it is the first
    "i"  # magic: the bits below
    "q"  # time it was entered, ms
    "i"  # delay until it is due, ms
    "q"  # offset of the message in the commit log
    "i"  # size of its record
    "i"  # Java's hash of its destination topic
    "q"  # always 0
)
UNIT_BYTES = _UNIT.size
_PREVIOUS = struct.Struct(">q")
_PREVIOUS_AT = 4
_BLANK = struct.Struct(">iqI")
BLANK_BYTES = _BLANK.size
BLANK_MAGIC = 0xCBD43194

PLAIN = 1  # in every unit
ROLL = 2  # not due at its moment: it is entered again
DELETE = 4  # recalls another message
_MAGIC_BITS = 0xF

_WINDOW = UNIT_BYTES * 1260  # 64 KiB: chains mostly have short steps back
_SCAN = UNIT_BYTES * 5040


class TimerUnit(NamedTuple):
    previous: int
    magic: int
    entered_ms: int
    delay_ms: int
    physical: int
    size: int
    topic_hash: int

    @property
    def due_ms(self) -> int:
        return self.entered_ms + self.delay_ms


class Chain(NamedTuple):
    """Offsets of a moment's units, newest first; those that recall others are separate."""

    places: array[int]
    deletes: array[int]


def encode_unit(unit: TimerUnit | tuple[int, int, int, int, int, int, int]) -> bytes:
    return _UNIT.pack(UNIT_BYTES, *unit, 0)


def encode_blank(free_bytes: int) -> bytes:
    """Return the blank that ends a file with this many bytes left."""
    return _BLANK.pack(free_bytes, 0, BLANK_MAGIC)


class TimerLog:
    """Units by their offset. One thread appends; any thread may read."""

    def __init__(
        self, files: Files, directory: PathLike, file_bytes: int, open_files: OpenFiles | None = None
    ) -> None:
        self.segments = Segments(files, directory, file_bytes, open_files=open_files, remade=True)

    @property
    def end(self) -> int:
        return self.segments.wrote

    @property
    def start(self) -> int:
        return max(0, self.segments.min_offset)

    @property
    def room(self) -> int:
        """Return the number of units that fit in the current file; if none, call :meth:`roll` first."""
        return max(0, self.segments.room - BLANK_BYTES) // UNIT_BYTES

    def append(self, units: list[bytes]) -> int:
        """Write units, no more than there is room for; return the offset of the first one."""
        return self.segments.append(units)

    def roll(self) -> None:
        """Continue in a new file. Allocates it: call it in a thread, while no other code appends."""
        self.segments.ensure_next()  # first, because without room for it the old file must stay open
        free = self.segments.room
        if free >= BLANK_BYTES:
            self.segments.append(encode_blank(free))
        self.segments.roll()

    # --- reading -------------------------------------------------------------------------------------

    def chain(self, last: int, behind: int = -1) -> Chain:
        """Return the units of a moment after the offset ``behind``. Wait for the disk. Raise Unreadable if
        the log cannot be read now: a partial chain would lose its older messages."""
        places, deletes = array("q"), array("q")
        reader = _Backwards(self.segments)
        at = last
        while at > behind and at >= self.start:  # earlier units have left the log long ago
            try:
                unit = reader.unit(at)
            except OffsetOutOfRange as error:
                unit = None
                why = str(error)
            else:
                why = "" if unit is not None else "there is no unit"
            if unit is None:
                log.error(
                    "timer_chain_broken last=%d at=%d reason=%r next='send its older messages again if "
                    "they are known: they are lost'",
                    last, at, why,
                )  # fmt: skip
                break
            (deletes if unit.magic & (DELETE | ROLL) == DELETE else places).append(at)
            if unit.previous >= at:
                log.error("timer_chain_broken last=%d at=%d previous=%d", last, at, unit.previous)
                break
            at = unit.previous
        return Chain(places, deletes)

    def units(self, places: Sequence[int]) -> list[TimerUnit]:
        """Return the units at offsets given newest first. Wait for the disk."""
        reader = _Backwards(self.segments)
        found = (reader.unit(at) for at in places)
        return [unit for unit in found if unit is not None]

    def cut(self, place: int) -> None:
        """Make this unit the first of its moment, because earlier ones were delivered. Runs in a thread."""
        segments = self.segments
        segment = segments.segment_at(place)
        if segment is None:
            return
        file = segments.open_files.acquire(segment)
        try:
            file.pwrite(_PREVIOUS.pack(-1), place - segment.start + _PREVIOUS_AT)
            file.sync()
        except FsyncFailed as error:
            segments.doubt(error)  # units of the same file may be lost, too
            raise
        finally:
            segments.open_files.release(segment)

    def unit_before(self, end: int) -> TimerUnit | None:
        """Return the unit that ends here, if there is one. Wait for the disk."""
        segment = self.segments.segment_at(end - 1) if end > 0 else None
        if segment is None:
            return None
        if end == segment.end:  # after the blank
            end = segment.start + (segment.size - BLANK_BYTES) // UNIT_BYTES * UNIT_BYTES
        if (end - segment.start) % UNIT_BYTES or end - segment.start < UNIT_BYTES:
            return None
        return decode_unit(self.segments.read(end - UNIT_BYTES, UNIT_BYTES))

    def scan(self, start: int) -> Iterator[tuple[int, TimerUnit | None]]:
        """Yield units from an offset on, to the first invalid one: then its offset and None. Runs in a
        thread."""
        at = start
        for segment in self.segments.all:
            if segment.end <= start:
                continue
            at = max(at, segment.start)
            at += -(at - segment.start) % UNIT_BYTES
            stop = min(segment.end, self.segments.committed)
            while at + BLANK_BYTES <= stop:
                size = min(_SCAN, (stop - at) // UNIT_BYTES * UNIT_BYTES) or BLANK_BYTES
                data = self.segments.read(at, size)
                blank = False
                for offset in range(0, size, UNIT_BYTES):
                    unit = decode_unit(data[offset : offset + UNIT_BYTES])
                    if unit is None:
                        head = data[offset : offset + BLANK_BYTES].ljust(BLANK_BYTES, b"\0")
                        blank = _BLANK.unpack(head)[2] == BLANK_MAGIC
                        if not blank:
                            yield at + offset, None
                            return
                        break
                    yield at + offset, unit
                if blank:
                    break
                at += size
            at = stop
        yield max(at, self.start), None

    def delete_before(self, physical: int) -> int:
        """Remove the oldest files, never the last, whose messages all lie before this commit-log offset;
        return their number. Runs in a thread."""
        keep = self.start
        for segment in self.segments.all[:-1]:
            try:
                last = self.unit_before(segment.end)
            except OffsetOutOfRange:
                break
            if last is None or last.physical >= physical:
                break
            keep = segment.end
        return self.segments.delete_before(keep)


class _Backwards:
    """Reader of units at decreasing offsets, through a window that ends with the requested one."""

    def __init__(self, segments: Segments) -> None:
        self._segments = segments
        self._start = 0
        self._data = b""

    def unit(self, at: int) -> TimerUnit | None:
        offset = at - self._start
        if not 0 <= offset <= len(self._data) - UNIT_BYTES:
            segment = self._segments.segment_at(at)
            if segment is None or at + UNIT_BYTES > self._segments.committed:
                raise OffsetOutOfRange(
                    "no unit", path=self._segments.directories[0], offset=at,
                    low=self._segments.min_offset, high=self._segments.committed,
                )  # fmt: skip
            self._start = max(segment.start, at + UNIT_BYTES - _WINDOW)
            self._data = self._segments.read(self._start, at + UNIT_BYTES - self._start)
            offset = at - self._start
        return decode_unit(self._data[offset : offset + UNIT_BYTES])


def decode_unit(data: bytes) -> TimerUnit | None:
    """Return the unit; None if these bytes are not one."""
    if len(data) != UNIT_BYTES:
        return None
    size, previous, magic, entered_ms, delay_ms, physical, record_size, topic_hash, _ = _UNIT.unpack(data)
    if (
        size != UNIT_BYTES
        or not magic & PLAIN
        or magic & ~_MAGIC_BITS
        or previous < -1
        or physical < 0
        or record_size <= 0
    ):
        return None
    return TimerUnit(previous, magic, entered_ms, delay_ms, physical, record_size, topic_hash)
