"""Layout of queue entries, and the check for valid ones. See FORMAT.md, "Consume queue entry"."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Final, TypeAlias, cast

from kerolox.store.disk.files import PAGE
from kerolox.store.disk.segments import Segments

QueueEntry: TypeAlias = tuple[int, int, int]
"""Physical offset, size and tags code."""

BLANK_SIZE: Final = 0x7FFF_FFFF
_RECORD_MAX = 0x7F00_0000

# Tags code of a queue offset whose message is lost: the entry points at the next message of the queue that is
# not lost. No hash is as large. See FORMAT.md, "Lost messages".
HOLE_TAGS: Final = 0x6B65_726F_6C6F_7865

NOWHERE = (-1, -1)
_SCAN_COUNT = 4096


class EntryFormat:
    """Layout of queue entries, and of the files that hold them.

    ``fields`` are names and types as numpy writes them; ``per_file``: entries in a file of RocketMQ's default
    size; ``pack`` makes the bytes of an entry, ``each`` yields the entries of bytes, ``unpack_from`` returns
    the one at a byte.
    """

    __slots__ = ("blank", "each", "fields", "pack", "per_file", "size", "unpack_from")

    def __init__(self, fields: tuple[tuple[str, str], ...], per_file: int) -> None:
        codes = {">i4": "i", ">i8": "q"}
        entry = struct.Struct(">" + "".join(codes[kind] for _, kind in fields))
        self.fields = fields
        self.per_file = per_file
        self.size = entry.size
        self.pack: Callable[[int, int, int], bytes] = entry.pack
        self.each = cast(
            "Callable[[bytes | bytearray | memoryview], Iterator[QueueEntry]]", entry.iter_unpack
        )
        self.unpack_from: Callable[..., QueueEntry] = cast("Callable[..., QueueEntry]", entry.unpack_from)
        self.blank = entry.pack(0, BLANK_SIZE, 0)

    def count(self, data: bytes | bytearray) -> int:
        """Return the number of entries in ``data``. Raise ValueError if it ends within one."""
        if len(data) % self.size:
            raise ValueError(f"{len(data)} bytes are not a multiple of the entry size, {self.size}")
        return len(data) // self.size

    def at(self, data: bytes | bytearray, number: int = 0) -> QueueEntry:
        return self.unpack_from(data, number * self.size)

    def last(self, data: bytes | bytearray) -> QueueEntry:
        return self.unpack_from(data, len(data) - self.size)

    def part(self, data: bytes, first: int, end: int | None = None) -> bytes:
        """Return the entries from number ``first`` on, up to number ``end``."""
        return data[first * self.size : None if end is None else end * self.size]

    def valid_bytes(
        self, segments: Segments, start: int, previous: tuple[int, int]
    ) -> tuple[int, tuple[int, int]]:
        """Return the number of bytes of the file that are valid entries, and the range of the last one's
        message. ``previous`` is the range of the entry before the first."""
        entry = self.size
        done = 0
        while done < segments.size:
            chunk = segments.read(start + done, min(_SCAN_COUNT * entry, segments.size - done))
            count = self._count_valid(chunk)
            # Check the entries across two pages, each with the one before it.
            for page in range(done // PAGE + 1, (done + count * entry) // PAGE + 1):
                number = page * PAGE // entry - done // entry
                if page * PAGE % entry == 0 or number >= count:
                    continue
                if number:
                    previous = self._range_at(chunk, number - 1)
                physical = self.at(chunk, number)[0]
                # An entry with the same message again marks lost messages before it.
                if physical < previous[1] and physical != previous[0]:
                    count = number
                    break
            if count:
                previous = self._range_at(chunk, count - 1)
            done += count * entry
            if count * entry < len(chunk):
                break
        return done, previous

    def _range_at(self, chunk: bytes, number: int) -> tuple[int, int]:
        """Return the begin and end of an entry's message."""
        physical, size, _ = self.at(chunk, number)
        return NOWHERE if size == BLANK_SIZE else (physical, physical + size)

    def _count_valid(self, chunk: bytes) -> int:
        """Return the number of entries from the beginning with an offset of at least 0 and a size above 0.

        A size near that of blank entries, larger than any record, is a blank entry half written.
        """
        # All at once, by byte columns of the fields: a file has 300,000 entries, a store thousands of files.
        sizes = [chunk[byte :: self.size] for byte in (8, 9, 10, 11)]
        if max(chunk[:: self.size]) < 0x80 and max(sizes[0]) < 0x7F:
            bits = 0
            for column in sizes:
                bits |= int.from_bytes(column, "big")
            zero = bits.to_bytes(len(sizes[0]), "big").find(0)
            return len(sizes[0]) if zero < 0 else zero
        count = 0
        for physical, size, _ in self.each(chunk):
            if physical < 0 or size <= 0 or _RECORD_MAX <= size < BLANK_SIZE:
                break
            count += 1
        return count


# RocketMQ's SimpleCQ: place in the log; stored size, bytes; tag hash, or the due time of a delayed message.
SIMPLE: Final = EntryFormat((("place", ">i8"), ("size", ">i4"), ("code", ">i8")), per_file=300_000)
assert SIMPLE.size == 20
