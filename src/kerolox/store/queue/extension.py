"""Extension of queue entries: ``consumequeue_ext/<topic>/<queue id>/``.

It holds units of different sizes, one per message: its tag hash, its store time, and the bits of the filters
that it passes. In place of the tag hash, a queue entry then has the unit's address: a number below all
hashes. See FORMAT.md, "Consume queue extension".

Units are collected in memory and written with the queue, before it: no entry in a file points to a missing
unit. The event loop adds and writes. Any thread may read.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from kerolox.store.disk.segments import Segments
from kerolox.store.disk.tail import Tail

# See FORMAT.md, "Consume queue extension".
UNIT = struct.Struct(
    ">h"  # size of the unit, bytes
    "q"  # tag hash, or the value the queue entry would have in its place
    "q"  # store time, ms
    "h"  # bytes of bits that follow
)
UNIT_BYTES_MIN: Final = UNIT.size
assert UNIT_BYTES_MIN == 20
UNIT_BYTES_MAX: Final = 0x7FFF
FILE_BYTES: Final = 48 << 20

ADDRESS_MAX: Final = -(2**31) - 1  # largest address; tag hashes begin above it
_ADDRESS_OF_0: Final = -(2**63)
_OFFSET_MAX: Final = ADDRESS_MAX - _ADDRESS_OF_0
_END_OF_FILE: Final = b"\xff\xff"  # a unit of size -1: the next unit is in the next file
_END_BYTES: Final = 4  # space always reserved for it
_SPAN_MAX: Final = 256 << 10  # units within this distance are read together
_SIZE_GUESS: Final = 256

Read = Callable[[int, int], bytes | None]


class Unit(NamedTuple):
    """Unit of one message in the extension."""

    tags_code: int
    stored_ms: int
    bits: bytes

    @property
    def size(self) -> int:
        return UNIT_BYTES_MIN + len(self.bits)


class NotInMemory(Exception):
    """Units must be read from the disk."""


def is_address(tags_code: int) -> bool:
    return tags_code <= ADDRESS_MAX


def offset_of(address: int) -> int:
    return address - _ADDRESS_OF_0


class QueueExtension:
    """Units of one queue. ``end`` is the offset of the next one."""

    __slots__ = ("_pending", "end", "segments")

    def __init__(self, segments: Segments) -> None:
        self.segments = segments
        self.end = 0
        self._pending: list[Tail] = []  # replaced, never shrunk: readers hold the old one

    # Growing

    def put(self, tags_code: int, stored_ms: int, bits: bytes) -> int | None:
        """Add a unit and return its address; None if it is too large. No system call."""
        size = UNIT_BYTES_MIN + len(bits)
        if size > UNIT_BYTES_MAX or self.end + size > _OFFSET_MAX:
            return None
        pending = self._pending
        file_size = self.segments.size
        if size > file_size - self.end % file_size - _END_BYTES:
            if not pending:
                pending.append(Tail.at(self.end))
            pending[-1] += _END_OF_FILE
            self.end += file_size - self.end % file_size
            pending.append(Tail.at(self.end))
        if not pending:
            pending.append(Tail.at(self.end))
        pending[-1] += UNIT.pack(size, tags_code, stored_ms, len(bits)) + bits
        offset = self.end
        self.end = offset + size
        return offset + _ADDRESS_OF_0

    def write(self) -> None:
        """Write the units in memory to the files. After a failure they stay, and the next call writes
        them."""
        segments = self.segments
        for run in self._pending:
            if segments.last is None:
                segments.start_at(run.start)
            at = segments.wrote
            if at < run.start or not segments.room:
                at = segments.roll()
            if at < run.start + len(run):
                segments.append(bytes(run[at - run.start :]))
        self._pending = []

    # Reading

    def units(self, addresses: Iterable[int], *, may_wait: bool = True) -> dict[int, Unit]:
        """Return the units by address, without invalid ones. Raise :class:`NotInMemory` rather than wait."""
        # Memory first: units that it does not hold are in the files, and stay there.
        pending = self._pending
        in_files_to = pending[0].start if pending else self.end
        found: dict[int, Unit] = {}
        offsets = sorted({address - _ADDRESS_OF_0 for address in addresses if address <= ADDRESS_MAX})
        number = 0
        while number < len(offsets):
            low = offsets[number]
            if low >= in_files_to:
                self._from_memory(pending, offsets[number:], found)
                break
            file_end = low - low % self.segments.size + self.segments.size
            upto = number + 1
            while upto < len(offsets) and offsets[upto] < min(file_end, low + _SPAN_MAX, in_files_to):
                upto += 1
            self._from_file(offsets[number:upto], found, may_wait)
            number = upto
        return found

    def _from_memory(self, pending: list[Tail], offsets: list[int], found: dict[int, Unit]) -> None:
        for offset in offsets:
            for run in pending:
                if run.start <= offset < run.start + len(run):
                    unit = _unit_at(bytes(run[offset - run.start : offset - run.start + UNIT_BYTES_MAX]), 0)
                    if unit is not None:
                        found[offset + _ADDRESS_OF_0] = unit
                    break

    def _from_file(self, offsets: list[int], found: dict[int, Unit], may_wait: bool) -> None:
        low = offsets[0]
        data = self._read(low, offsets[-1] - low + _SIZE_GUESS, may_wait)
        for offset in offsets:
            unit = _unit_at(data, offset - low)
            if unit is None and len(data) >= offset - low + 2:
                unit = _unit_at(self._read(offset, UNIT_BYTES_MAX, may_wait), 0)  # larger than the guess
            if unit is not None:
                found[offset + _ADDRESS_OF_0] = unit

    def _read(self, offset: int, size: int, may_wait: bool) -> bytes:
        segments = self.segments
        size = min(size, segments.readable(offset))
        if size <= 0:
            return b""
        data = segments.read(offset, size) if may_wait else segments.read_hot(offset, size)
        if data is None:
            raise NotInMemory
        return data

    # Start, and truncation

    def load(self) -> None:
        self.segments.load()
        self.end = self.segments.max_offset

    def end_at(self, offset: int) -> None:
        """Truncate at ``offset``. Wait for the disk."""
        self.segments.truncate_to(offset)
        self.end = self.segments.wrote

    def lower_to(self, offset: int) -> None:
        """Truncate at ``offset`` without the disk: the files are not changed until
        ``segments.clear_behind``."""
        self._pending = [
            Tail.at(run.start, run[: offset - run.start]) for run in self._pending if run.start < offset
        ]
        if offset < self.segments.wrote:
            self.segments.lower_to(offset)
        self.end = offset

    def end_behind(self, address: int, unit: Unit) -> None:
        """Truncate after this unit."""
        self.end_at(address - _ADDRESS_OF_0 + unit.size)

    def skip_past(self, address: int) -> None:
        """Skip lost units up to this address: the next one gets an address that none of them had."""
        size = self.segments.size
        offset = address - _ADDRESS_OF_0
        self.segments.delete_all()
        self.end = offset - offset % size + size

    def find_end(self) -> int:
        """Return the end of the last unit, scanning from one to the next. Wait for the disk."""
        end = max(0, self.segments.min_offset)
        for segment in self.segments.all:
            end = segment.start
            while end < segment.end:
                head = self._read(end, 2, may_wait=True)
                size = int.from_bytes(head, "big", signed=True) if len(head) == 2 else 0
                if size <= 0:
                    break
                end += size
        return min(end, self.segments.max_offset)

    def delete_before(self, address: int) -> int:
        """Remove files whose units all lie before this address, never the last one; return their number."""
        return self.segments.delete_before(address - _ADDRESS_OF_0) if is_address(address) else 0

    def delete_all(self, aside: Callable[[], str] | None = None) -> None:
        self.segments.delete_all(aside)
        self._pending = []
        self.end = 0

    def forget_files(self) -> None:
        """Forget the files, because their directory was moved aside."""
        self.segments.forget_all()
        self._pending = []
        self.end = 0


def _unit_at(data: bytes, at: int) -> Unit | None:
    if len(data) < at + UNIT_BYTES_MIN:
        return None
    size, tags_code, stored_ms, bits_size = UNIT.unpack_from(data, at)
    if size < UNIT_BYTES_MIN or bits_size < 0 or size != UNIT_BYTES_MIN + bits_size or len(data) < at + size:
        return None
    return Unit(tags_code, stored_ms, data[at + UNIT_BYTES_MIN : at + size])
