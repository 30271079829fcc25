"""File of the key index: a hash table of chains, newest entry first.

A header of 40 bytes, then slots of 4 bytes (the number of the newest entry of a chain), then entries of 20
bytes, numbered from 1, each with the number of the previous one in its chain. See FORMAT.md.

While a file is written its slots are in memory, and new entries collect in a tail. The slots can be rebuilt
from the entries, so they are written only when the file is full or closed; entries are written in every
round, and after them the header, which counts them.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Iterable, Iterator
from typing import TypeAlias
from zlib import crc32

from kerolox.compiled import compiled
from kerolox.protocol.limits import INT32_MAX
from kerolox.store.disk.files import PAGE, File
from kerolox.store.disk.segment import OpenFiles, Segment
from kerolox.store.disk.tail import Tail
from kerolox.store.errors import FsyncFailed, StoreError

HEADER = struct.Struct(
    ">q"  # store time of the first entry
    "q"  # store time of the last one
    "q"  # physical offset of the first entry
    "q"  # physical offset of the last one
    "i"  # slots in use
    "i"  # number of the next entry; the first is 1
)
ENTRY = struct.Struct(
    ">i"  # hash of topic#key
    "q"  # physical offset
    "i"  # seconds since the first entry
    "i"  # the previous entry of the chain, 0 without one
)
ITEM = struct.Struct(
    ">i"  # hash of topic#key
    "q"  # physical offset
    "q"  # store time
)
assert (HEADER.size, ENTRY.size, ITEM.size) == (40, 20, 20)
SLOT_SIZE = 4
# Pages of slots are pages of the file, shifted by ten slots because of the header.
_SHIFT = HEADER.size // SLOT_SIZE
_PAGE_SLOTS = PAGE // SLOT_SIZE
_PAGE_BITS = _PAGE_SLOTS.bit_length() - 1
_SCAN = 4096
_SUMMED_AT_ONCE = 50_000
_SWAP = sys.byteorder == "little"

IndexItem: TypeAlias = tuple[int, int, int]
"""Hash, physical offset, store time in milliseconds."""


def file_size(slots: int, entries: int) -> int:
    return HEADER.size + slots * SLOT_SIZE + entries * ENTRY.size


def _index_entries(
    items: list[IndexItem], table: array[int], count: int, begin_ms: int
) -> tuple[bytes, int, set[int]]:
    """Enter items, the first with number ``count``, into the table of slots. Return their entries, the number
    of slots that were not in use before, and the changed pages of the table."""
    slots = len(table)
    entries: list[tuple[int, int, int, int]] = []
    used = 0
    pages: set[int] = set()
    seconds = last_ms = -1
    for key_hash, physical, time_ms in items:
        slot = key_hash % slots
        previous = table[slot]
        if not previous:
            used += 1
        elif not 0 < previous < count:
            previous = 0
        if time_ms != last_ms:  # messages of one pass have the same time
            last_ms = time_ms
            seconds = (time_ms - begin_ms) // 1000
            if not 0 <= seconds <= INT32_MAX or begin_ms <= 0:
                seconds = 0 if seconds < 0 or begin_ms <= 0 else INT32_MAX
        entries.append((key_hash, physical, seconds, previous))
        table[slot] = count
        pages.add((slot + _SHIFT) >> _PAGE_BITS)
        count += 1
    pack = ENTRY.pack
    return b"".join([pack(*entry) for entry in entries]), used, pages


index_entries = compiled("index_entries", _index_entries)


def _index_block(
    items: bytes, table: array[int], count: int, begin_ms: int, first_begin_ms: int
) -> tuple[bytes, int]:
    """Enter packed items (hash, physical offset, store time) into the table of slots. Return their entries,
    and the number of slots that were not in use before.

    The time of the first item is counted from ``first_begin_ms``. Changed pages are not returned, because
    nearly all change.
    """
    found = list(ITEM.iter_unpack(items))
    first, used, _ = index_entries(found[:1], table, count, first_begin_ms)
    rest, more, _ = index_entries(found[1:], table, count + 1, begin_ms)
    return first + rest, used + more


index_block = compiled("index_block", _index_block)


class IndexFile:
    """File of the key index. ``count`` is the number of the next entry. The event loop adds and writes; any
    thread may look up."""

    def __init__(self, open_files: OpenFiles, path: str, slots: int, entries: int, *, named: bool) -> None:
        self.path = path
        self.slots = slots
        self.entries = entries
        self.segment = Segment(path, 0, file_size(slots, entries), named=named)
        self.begin_ms = 0
        self.end_ms = 0
        self.begin_physical = 0
        self.end_physical = 0
        self.used_slots = 0
        self.count = 1
        self._open_files = open_files
        self._entries_at = HEADER.size + slots * SLOT_SIZE
        self._table: array[int] | None = None
        self._changed: set[int] = set()  # pages of the table that are newer than in the file
        self._tail = Tail.at(1)
        # Written and unflushed data: places and bytes of entries, and pages of the table.
        self._unflushed: list[tuple[int, bytes]] = []
        self._pages_unflushed: set[int] = set()
        self._in_doubt = False  # a flush failed: the kernel may have dropped them
        self._summed = (1, 0)  # number of the next unsummed entry, and the CRC of those before it
        self._slots_summed: int | None = None  # set once they do not change any more

    @property
    def room(self) -> int:
        return self.entries - self.count

    @property
    def header(self) -> bytes:
        return HEADER.pack(
            self.begin_ms, self.end_ms, self.begin_physical, self.end_physical, self.used_slots, self.count
        )

    # Writing

    def inherit(self, older: IndexFile) -> None:
        """Begin where the previous file ends, as RocketMQ does."""
        self.begin_ms = self.end_ms = older.end_ms
        self.begin_physical = self.end_physical = older.end_physical

    def new_table(self) -> None:
        self._table = array("i", bytes(self.slots * SLOT_SIZE))

    def put(self, items: list[IndexItem]) -> None:
        """Add entries, at most :attr:`room` of them, in the order of their log offsets."""
        if not items:
            return
        table = self._load_table()
        self._slots_summed = None
        if self.count == 1:
            _, self.begin_physical, self.begin_ms = items[0]
        packed, used, pages = index_entries(items, table, self.count, self.begin_ms)
        self._tail += packed
        self._changed |= pages
        self.used_slots += used
        self.count += len(items)
        _, self.end_physical, self.end_ms = items[-1]

    def put_packed(self, items: bytes, *, inherits: bool) -> None:
        """Add packed items, at most :attr:`room` of them. ``inherits``: the first entry of a file counts its
        seconds from the end of the previous file, as Apache's broker does."""
        if not items:
            return
        table = self._load_table()
        self._slots_summed = None
        first_begin_ms = self.begin_ms
        if self.count == 1:
            _, self.begin_physical, self.begin_ms = ITEM.unpack_from(items)
            first_begin_ms = first_begin_ms if inherits else self.begin_ms
        packed, used = index_block(items, table, self.count, self.begin_ms, first_begin_ms)
        self._tail += packed
        self._changed = set(range((self.slots - 1 + _SHIFT) // _PAGE_SLOTS + 1))
        self.used_slots += used
        self.count += len(items) // ITEM.size
        _, self.end_physical, self.end_ms = ITEM.unpack_from(items, len(items) - ITEM.size)

    @property
    def unwritten(self) -> int:
        """Return the bytes of entries that are only in memory."""
        return len(self._tail)

    def write_entries(self) -> None:
        tail = self._tail
        if tail:
            data, at = bytes(tail), self._entries_at + tail.start * ENTRY.size
            with _Opened(self._open_files, self.segment) as file:
                file.pwrite(data, at)
            self._unflushed.append((at, data))
            self._tail = Tail.at(self.count)

    def write_table(self) -> None:
        """Write the changed pages of slots. Runs in a thread, but not while entries are added."""
        table = self._table
        if table is None:
            return
        pages, self._changed = self._changed, set()
        try:
            with _Opened(self._open_files, self.segment) as file:
                for first, last in _runs(sorted(pages)):
                    low = max(0, first * _PAGE_SLOTS - _SHIFT)
                    high = min(self.slots, (last + 1) * _PAGE_SLOTS - _SHIFT)
                    part = table[low:high]
                    if _SWAP:
                        part.byteswap()
                    file.pwrite(part.tobytes(), HEADER.size + low * SLOT_SIZE)
        except StoreError:
            self._changed |= pages
            raise
        self._pages_unflushed |= pages

    def write_header(self, header: bytes) -> None:
        with _Opened(self._open_files, self.segment) as file:
            file.pwrite(header, 0)

    def sync(self) -> None:
        """Flush. After a failed flush all data that it covered is written again before."""
        with _Opened(self._open_files, self.segment) as file:
            covered = list(self._unflushed)
            if self._in_doubt:
                for at, data in covered:
                    file.pwrite(data, at)
            try:
                file.sync()
            except FsyncFailed:
                self._in_doubt = True
                self._changed |= self._pages_unflushed  # written again by write_table
                self._pages_unflushed = set()
                raise
        self._in_doubt = False
        del self._unflushed[: len(covered)]
        self._pages_unflushed = set()

    def drop_table(self) -> None:
        """Release the memory of the slots once they are written."""
        if not self._changed:
            self._table = None

    # Reading

    def load_header(self) -> bool:
        """Read the header; return False if it is invalid for a file of this size."""
        with _Opened(self._open_files, self.segment) as file:
            data = file.pread(HEADER.size, 0)
        return self.take_header(data)

    def take_header(self, data: bytes) -> bool:
        """Use the counts of this header instead of those in the file; return False if they are invalid."""
        self.begin_ms, self.end_ms, self.begin_physical, self.end_physical, self.used_slots, count = (
            HEADER.unpack(data)
        )
        self.count = max(1, count)
        valid = self.count <= self.entries
        if not valid:
            self.count = 1
        self._tail = Tail.at(self.count)
        return valid

    def _load_table(self) -> array[int]:
        if self._table is None:
            table = array("i")
            with _Opened(self._open_files, self.segment) as file:
                table.frombytes(file.pread(self.slots * SLOT_SIZE, HEADER.size))
            if _SWAP:
                table.byteswap()
            self._table = table
        return self._table

    def covers(self, begin_ms: int, end_ms: int) -> bool:
        """Return True if some of its entries may be from between these times."""
        return self.count > 1 and self.begin_ms <= end_ms and begin_ms <= self.end_ms

    def collect(self, key_hash: int, count_max: int, begin_ms: int, end_ms: int, found: list[int]) -> None:
        """Add the physical offsets under this hash from between these times, newest first. May wait.

        Raise SegmentGone if the file was deleted meanwhile, Unreadable if it cannot be read now.
        """
        try:
            self._collect(key_hash, count_max, begin_ms, end_ms, found)
        except StoreError as error:
            raise self._open_files.read_failed(self.segment, error, 0, HEADER.size) from error

    def _collect(self, key_hash: int, count_max: int, begin_ms: int, end_ms: int, found: list[int]) -> None:
        slot = key_hash % self.slots
        table = self._table
        with _Opened(self._open_files, self.segment) as file:
            if table is not None:
                number = table[slot]
            else:
                (number,) = struct.unpack(">i", file.pread(SLOT_SIZE, HEADER.size + slot * SLOT_SIZE))
            while 0 < number < self.count and len(found) < count_max:
                entry_hash, physical, seconds, previous = self._entry(file, number)
                time_ms = self.begin_ms + seconds * 1000
                if seconds < 0:
                    break
                if entry_hash == key_hash and begin_ms <= time_ms <= end_ms and physical not in found:
                    found.append(physical)
                # A chain leads to older entries only; otherwise it is damaged.
                if time_ms < begin_ms or previous >= number:
                    break
                number = previous

    def _entry(self, file: File, number: int) -> tuple[int, int, int, int]:
        tail = self._tail
        if number >= tail.start:
            return ENTRY.unpack_from(tail, (number - tail.start) * ENTRY.size)
        return ENTRY.unpack(file.pread(ENTRY.size, self._entries_at + number * ENTRY.size))

    def _scan(self, file: File, low: int, high: int) -> Iterator[tuple[int, tuple[int, int, int, int]]]:
        for first in range(low, high, _SCAN):
            count = min(_SCAN, high - first)
            data = file.pread(count * ENTRY.size, self._entries_at + first * ENTRY.size)
            yield from enumerate(ENTRY.iter_unpack(data), first)

    # Sums

    def sum_entries(self, header: bytes) -> int:
        """Return the CRC of the entries that a header counts, which are in the file. Runs in a thread."""
        count = HEADER.unpack(header)[5]
        number, crc = self._summed if self._summed[0] <= count else (1, 0)
        with _Opened(self._open_files, self.segment) as file:
            while number < count:
                some = min(_SUMMED_AT_ONCE, count - number)
                crc = crc32(file.pread(some * ENTRY.size, self._entries_at + number * ENTRY.size), crc)
                number += some
        self._summed = (number, crc)
        return crc

    def sum_slots(self) -> int:
        """Return the CRC of the slots, once they are all in the file. Runs in a thread."""
        if self._slots_summed is not None:
            return self._slots_summed
        crc = 0
        with _Opened(self._open_files, self.segment) as file:
            for at in range(HEADER.size, self._entries_at, _SUMMED_AT_ONCE):
                crc = crc32(file.pread(min(_SUMMED_AT_ONCE, self._entries_at - at), at), crc)
        if self._table is None and not self._changed:
            self._slots_summed = crc
        return crc

    @property
    def slots_in_memory(self) -> bool:
        return self._table is not None

    # After a crash

    def rebuild(self) -> bool:
        """Rebuild the slots from the entries that the header counts; return False if some of them are
        damaged.

        An entry is good if it continues its chain and does not point before its predecessor. At the first bad
        one the file ends, and the last message before it, whose entries may be incomplete, is removed too: it
        is expected again from the log.
        """
        self.new_table()
        self._slots_summed = None
        table = self._load_table()
        slots = self.slots
        last = 0
        good = 1
        used = 0
        with _Opened(self._open_files, self.segment) as file:
            for number, (key_hash, physical, seconds, previous) in self._scan(file, 1, self.count):
                slot = key_hash % slots
                if previous != table[slot] or physical < last or key_hash < 0 or seconds < 0:
                    break
                used += not previous
                table[slot] = number
                last = physical
                good = number + 1
        self._changed = set(range((self.slots - 1 + _SHIFT) // _PAGE_SLOTS + 1))
        self.used_slots = used
        # A torn header may name a later end than its count does: then the log must fill the gap.
        if good == self.count and (good == 1 or last == self.end_physical):
            return True
        self._tail = Tail.at(good)
        self.count = good
        self._cut(self.first_at(last))
        return False

    def first_at(self, physical: int) -> int:
        """Return the number of the first entry at or after this log offset."""
        with _Opened(self._open_files, self.segment) as file:
            low, high = 1, self.count
            while low < high:
                middle = (low + high) // 2
                if self._entry(file, middle)[1] < physical:
                    low = middle + 1
                else:
                    high = middle
        return low

    def truncate_to(self, physical: int) -> None:
        """Remove the entries at or after this log offset."""
        self._cut(self.first_at(physical))

    def _cut(self, count: int) -> None:
        if count >= self.count:
            return
        self._summed, self._slots_summed = (1, 0), None
        self.write_entries()
        table = self._load_table()
        with _Opened(self._open_files, self.segment) as file:
            for _, (key_hash, _, _, previous) in reversed(list(self._scan(file, count, self.count))):
                slot = key_hash % self.slots
                table[slot] = previous
                self.used_slots -= not previous
                self._changed.add((slot + _SHIFT) >> _PAGE_BITS)
            self.count = count
            self._tail = Tail.at(count)
            if count > 1:
                _, self.end_physical, seconds, _ = self._entry(file, count - 1)
                self.end_ms = self.begin_ms + seconds * 1000
            else:
                self.end_physical, self.end_ms = self.begin_physical, self.begin_ms


class _Opened:
    """Open file of a segment, held for the duration of a ``with``."""

    __slots__ = ("_open_files", "_segment")

    def __init__(self, open_files: OpenFiles, segment: Segment) -> None:
        self._open_files = open_files
        self._segment = segment

    def __enter__(self) -> File:
        return self._open_files.acquire(self._segment)

    def __exit__(self, *_: object) -> None:
        self._open_files.release(self._segment)


def _runs(pages: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Yield neighbouring numbers as (first, last)."""
    first = last = -1
    for page in pages:
        if page != last + 1 or first < 0:
            if first >= 0:
                yield first, last
            first = page
        last = page
    if first >= 0:
        yield first, last
