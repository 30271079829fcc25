"""Log as readers see it: records by physical offset."""

from __future__ import annotations

import struct
from collections.abc import Iterable

from kerolox.protocol.ledger_scan import Mark
from kerolox.protocol.record_scan import Entry, Stop, scan
from kerolox.store.disk.segments import Segments
from kerolox.store.errors import Cold, CorruptRecord, OffsetOutOfRange
from kerolox.store.log.framing import head_bytes, position_of, scan_at, size_at

# Records with short gaps between them are still fetched by one read.
GAP_BYTES_MAX = 16 << 10
_SIZE = struct.Struct(">i")
_HEAD_BYTES = 36
_MAGICS = (b"\xda\xa3\x20\xa7", b"\xda\xa3\x20\xab")


class ReadableLog:
    """Reader of records. Methods that may wait for the disk are for threads."""

    def __init__(self, segments: Segments) -> None:
        self.segments = segments

    @property
    def min_offset(self) -> int:
        return max(0, self.segments.min_offset)

    @property
    def max_offset(self) -> int:
        """Return the end of the written log; consumers see only the confirmed part."""
        return self.segments.wrote

    def read_hot(self, offset: int, size: int) -> bytes | None:
        """Return a record if it is in memory; None: call :meth:`read` in a thread."""
        return self.segments.read_hot(offset, size)

    def read(self, offset: int, size: int) -> bytes:
        """Return a record of known size. May wait for the disk: call it in a thread."""
        return self.segments.read(offset, size)

    def read_ranges(self, ranges: list[tuple[int, int]], *, may_wait: bool) -> list[bytes]:
        """Return the bytes of all ranges; neighbours with small gaps are fetched by one read. Raise
        :class:`Cold` if some are not in memory, unless ``may_wait``."""
        file_bytes = self.segments.size
        parts: list[bytes] = []
        number = 0
        while number < len(ranges):
            low, high = ranges[number]
            upto = number + 1
            while upto < len(ranges) and 0 <= ranges[upto][0] - high <= GAP_BYTES_MAX:
                if low // file_bytes != (ranges[upto][1] - 1) // file_bytes:
                    break
                high = ranges[upto][1]
                upto += 1
            data = self.read(low, high - low) if may_wait else self.read_hot(low, high - low)
            if data is None:
                raise Cold
            if upto == number + 1:
                parts.append(data)
            else:
                parts += [data[a - low : b - low] for a, b in ranges[number:upto]]
            number = upto
        return parts

    def record_at(self, offset: int) -> bytes:
        """Return the record that starts here. Raise CorruptRecord if none does. Runs in a thread."""
        size = self._size_at(offset)
        data = self.segments.read(offset, size)
        found = scan(data, count_max=1)
        if not found.entries or found.entries[0][4] != offset:
            raise CorruptRecord(
                f"no record starts at {offset}: {found.what or 'it names another offset'}", offset=offset
            )
        return data

    def record_if_there(self, offset: int) -> bytes | None:
        """Return the record that starts here; None if none does: deleted, cut off, or never written. Runs in
        a thread.

        Raise Unreadable if that is unknown at the moment.
        """
        try:
            return self.record_at(offset)
        except (CorruptRecord, OffsetOutOfRange):
            return None

    def has_record(self, offset: int, size: int) -> bool:
        """Return True if a record of this size starts here, or one was deleted here. Runs in a thread."""
        if offset < self.min_offset:
            return True
        if self.segments.readable(offset) < max(size, _HEAD_BYTES):
            return False
        head = self.segments.read(offset, _HEAD_BYTES)
        return (
            int.from_bytes(head[:4], "big") == size
            and head[4:8] in _MAGICS
            and int.from_bytes(head[28:36], "big") == offset
        )

    def store_timestamp_at(self, offset: int) -> int:
        """Return the store time of the record that starts here, or -1 if there is none. Runs in a thread.
        Raise Unreadable if the log cannot be read there now."""
        if not self.min_offset <= offset < self.segments.committed:
            return -1
        try:
            head = self.segments.read(offset, min(76, self.segments.readable(offset)))
        except OffsetOutOfRange:
            return -1  # deleted meanwhile
        return store_timestamp_of(head)

    @property
    def earliest_ms(self) -> int:
        """Return the store time of the first existing record, or -1 if there is none. Runs in a thread."""
        return self.store_timestamp_at(self.min_offset + head_bytes(self.segments, self.min_offset))

    def position_of(self, physical: int) -> int:
        """Return the position at which a read gets this record first: see :meth:`entries_from`."""
        return position_of(self.segments, physical)

    def entries_from(
        self, offset: int, end: int, piece_bytes: int = 4 << 20
    ) -> Iterable[tuple[list[Entry], int]]:
        """Yield the entries between two positions, read piece by piece, with the position of the next one.

        Stops early at bytes that are not a whole record below ``end``. Runs in a thread.
        """
        after: Mark | None = None
        while offset < end:
            readable = min(self.segments.readable(offset), end - offset)
            if readable <= 0:
                return
            data = self.segments.read(offset, min(readable, piece_bytes))
            at = offset
            found, after = scan_at(self.segments, data, at, after=after)
            offset += found.position
            if found.entries:
                yield found.entries, offset
            if found.stop is Stop.BLANK:
                segment = self.segments.segment_at(offset)
                if segment is None:
                    return
                offset = segment.end
                yield [], offset
            elif found.stop is Stop.INCOMPLETE and len(data) == piece_bytes and found.position:
                continue
            elif found.stop is Stop.INCOMPLETE and len(data) == piece_bytes:
                piece_bytes = max(piece_bytes * 2, size_at(self.segments, at, data))
            elif found.stop is not Stop.END:
                return

    def _size_at(self, offset: int) -> int:
        readable = self.segments.readable(offset)
        if offset < self.min_offset or readable < 8:
            raise CorruptRecord(
                f"no record starts at {offset}: the log holds {self.min_offset} to {self.max_offset}",
                offset=offset,
            )
        head = self.segments.read(offset, 8)
        (size,) = _SIZE.unpack_from(head)
        # The offset may come from a peer: without the magic, the size could be any bytes of a body.
        if not 0 < size <= readable or head[4:] not in _MAGICS:
            raise CorruptRecord(f"no record starts at {offset}: its size would be {size}", offset=offset)
        return int(size)


def store_timestamp_of(head: bytes) -> int:
    """Return the store time from the first 76 bytes of a record; -1 if they are not a record."""
    if len(head) < 64:
        return -1
    sys_flag = int.from_bytes(head[36:40], "big")
    at = 68 if sys_flag & 0x10 else 56
    if len(head) < at + 8 or head[4:8] not in _MAGICS:
        return -1
    return int.from_bytes(head[at : at + 8], "big", signed=True)
