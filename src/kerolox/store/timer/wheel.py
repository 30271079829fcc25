"""Timer wheel: for every moment, the chain of its messages in the timer log. See FORMAT.md.

The file has a slot for each of 1,209,600 moments, 39 MB; RocketMQ keeps all of it in memory. Here only pages
with waiting messages are in memory: a timer is never further ahead than the roll window, so two days of
seconds cost at most 6 MB, and a broker without timers nothing. Changed slots are written separately: the
other slots of the file, of past moments, are not changed.

A moment is a time divided by the precision. One event loop owns the wheel; loading and writing run in
threads.
"""

from __future__ import annotations

import heapq
import os
import struct
from collections.abc import Iterator
from typing import NamedTuple

from kerolox.store.disk.files import File, Files, PathLike
from kerolox.store.errors import WrongFileSize

_SLOT = struct.Struct(
    ">q"  # the moment
    "q"  # offset of the moment's first unit in the timer log
    "q"  # offset of its last unit
    "i"  # number of waiting messages
    "i"  # always 0
)
SLOT_BYTES = _SLOT.size
SLOTS = 7 * 86_400 * 2
WHEEL_BYTES = SLOTS * SLOT_BYTES
PAGE_SLOTS = 128
_PAGES = SLOTS // PAGE_SLOTS
_PAGE_BYTES = PAGE_SLOTS * SLOT_BYTES
_READ_PAGES = 64
_COUNT_MIN, _COUNT_MAX = -(2**31), 2**31 - 1

_PIECES_MAX = 4  # maximum ranges of a page that are written separately


class Change(NamedTuple):
    """Page of the file: its offset, its bytes, and a bit mask of the slots to be written."""

    offset: int
    data: bytes
    dirty: int


class Slot(NamedTuple):
    """Slot of a moment: its first and last unit in the timer log, and the number of waiting messages."""

    first: int
    last: int
    waiting: int


class _Page:
    """Page of 128 consecutive moments, with bit masks of those with messages and those not yet written."""

    __slots__ = ("data", "dirty", "used")

    def __init__(self) -> None:
        self.data = bytearray(_PAGE_BYTES)
        self.used = 0
        self.dirty = 0


class TimerWheel:
    """Moments with waiting messages."""

    def __init__(self, files: Files, path: PathLike) -> None:
        self.path = os.fspath(path)
        self.waiting = 0  # waiting messages in all slots
        self.missing = False  # True if there was no file to load
        self.emptied: set[int] = (
            set()
        )  # moments that the file marks as empty: delivered before the clock was set back
        self._files = files
        self._file: File | None = None
        self._pages: dict[int, _Page] = {}  # by moment // 128
        self._order: list[int] = []  # a heap of page numbers; some may be empty or dropped

    # --- slots ---------------------------------------------------------------------------------------

    def get(self, moment: int) -> Slot | None:
        page = self._pages.get(moment // PAGE_SLOTS)
        at = moment % PAGE_SLOTS
        if page is None or not page.used >> at & 1:
            return None
        _, first, last, count, _ = _SLOT.unpack_from(page.data, at * SLOT_BYTES)
        return Slot(first, last, count)

    def put(self, moment: int, first: int, last: int, count: int) -> None:
        page = self._page(moment)
        at = moment % PAGE_SLOTS
        bit = 1 << at
        if page.used & bit:
            self.waiting -= _SLOT.unpack_from(page.data, at * SLOT_BYTES)[3]
        elif not page.used:
            heapq.heappush(self._order, moment // PAGE_SLOTS)
        count = min(max(count, _COUNT_MIN), _COUNT_MAX)
        _SLOT.pack_into(page.data, at * SLOT_BYTES, moment, first, last, count, 0)
        self.waiting += count
        page.used |= bit
        page.dirty |= bit

    def done(self, moment: int) -> None:
        """Mark a moment as done. The file keeps its slot, because it is in the past."""
        page = self._pages.get(moment // PAGE_SLOTS)
        at = moment % PAGE_SLOTS
        if page is not None and page.used >> at & 1:
            self.waiting -= _SLOT.unpack_from(page.data, at * SLOT_BYTES)[3]
            page.used &= ~(1 << at)
            self._drop_if_idle(moment // PAGE_SLOTS, page)

    def pass_to(self, moment: int) -> None:
        """Mark all moments before this one as done, because another broker has delivered them."""
        while (earliest := self.first()) is not None and earliest < moment:
            self.done(earliest)

    def first(self) -> int | None:
        """Return the earliest moment with messages."""
        order = self._order
        while order:
            page = self._pages.get(order[0])
            if page is not None and page.used:
                return order[0] * PAGE_SLOTS + (page.used & -page.used).bit_length() - 1
            heapq.heappop(order)
        return None

    def clear(self, start: int, end: int) -> None:
        """Mark slots without messages as empty, after the wall clock was set back: their messages in the file
        were delivered, and these moments occur again."""
        start = max(start, end - SLOTS)
        for number in range(start // PAGE_SLOTS, -(-end // PAGE_SLOTS)):
            low, high = max(start - number * PAGE_SLOTS, 0), min(end - number * PAGE_SLOTS, PAGE_SLOTS)
            page = self._page(number * PAGE_SLOTS)
            stale = ((1 << high) - (1 << low)) & ~page.used
            for at in _bits(stale):
                # Not zeros, because an emptied slot must not look like a lost one.
                _SLOT.pack_into(page.data, at * SLOT_BYTES, number * PAGE_SLOTS + at, -1, -1, 0, 0)
            page.dirty |= stale

    def slots(self) -> Iterator[tuple[int, Slot]]:
        """Yield all moments with messages, page by page in order."""
        for number in sorted(self._pages):
            page = self._pages[number]
            for at in _bits(page.used):
                _, first, last, count, _ = _SLOT.unpack_from(page.data, at * SLOT_BYTES)
                yield number * PAGE_SLOTS + at, Slot(first, last, count)

    def count_between(self, start: int, end: int) -> int:
        """Return the number of messages that wait for moments from ``start`` on, before ``end``."""
        total = 0
        for number, page in self._pages.items():
            low = max(start - number * PAGE_SLOTS, 0)
            high = min(end - number * PAGE_SLOTS, PAGE_SLOTS)
            if low < high:
                wanted = page.used & ((1 << high) - (1 << low))
                total += sum(_SLOT.unpack_from(page.data, at * SLOT_BYTES)[3] for at in _bits(wanted))
        return total

    def _page(self, moment: int) -> _Page:
        number = moment // PAGE_SLOTS
        page = self._pages.get(number)
        if page is None:
            page = self._pages[number] = _Page()
        return page

    def _drop_if_idle(self, number: int, page: _Page) -> None:
        if not page.used and not page.dirty:
            del self._pages[number]

    # --- the file ------------------------------------------------------------------------------------

    def load(self, since: int) -> None:
        """Read the slots of moments from ``since`` on. Runs in a thread, before anything else."""
        try:
            self._load(since)
        finally:
            self.close()

    def is_there(self) -> bool:
        """Return True if the file exists. Raise WrongFileSize for a file of another size. Wait for the
        disk."""
        if not self._files.exists(self.path) or not (size := self._files.size(self.path)):
            return False
        if size != WHEEL_BYTES:
            raise WrongFileSize(self.path, size, WHEEL_BYTES)
        return True

    def _load(self, since: int) -> None:
        if not self.is_there():
            self.missing = True
            return
        file = self._file = self._files.open(self.path, read_only=True)
        # All ranges first: a read makes the system read ahead, and pages in memory count as written.
        for low, high in list(file.written_ranges(0, WHEEL_BYTES)):
            low -= low % _PAGE_BYTES
            while low < high:
                data = file.pread(min(_READ_PAGES * _PAGE_BYTES, high - low), low)
                if not data:
                    break
                self._take(data[: len(data) - len(data) % SLOT_BYTES], low // SLOT_BYTES, since)
                low += _READ_PAGES * _PAGE_BYTES

    def _take(self, data: bytes, index: int, since: int) -> None:
        for place, (moment, first, last, count, _) in enumerate(_SLOT.iter_unpack(data), index):
            if moment >= since and moment > 0 and moment % SLOTS == place and 0 <= first <= last:
                self.put(moment, first, last, count)
                self._pages[moment // PAGE_SLOTS].dirty &= ~(1 << moment % PAGE_SLOTS)
            elif first == last == -1 and moment % SLOTS == place:
                self.emptied.add(moment)

    def forget(self) -> None:
        """Remove the file, with all slots. Runs in a thread, before anything else."""
        self.close()
        self._files.remove(self.path)
        self._pages.clear()
        self._order.clear()
        self.waiting = 0

    def take_changes(self) -> list[Change]:
        """Return the changes since the last call, for :meth:`write`. Runs on the loop."""
        changes: list[Change] = []
        for number in list(self._pages):
            page = self._pages[number]
            if page.dirty:
                # The loop only copies; the thread decides how to write.
                changes.append(Change(number % _PAGES * _PAGE_BYTES, bytes(page.data), page.dirty))
                page.dirty = 0
            self._drop_if_idle(number, page)
        return changes

    def write(self, changes: list[Change]) -> None:
        """Write the changes and flush. Runs in a thread."""
        if not changes:
            return
        file = self._file
        if file is None:
            file = self._file = self._open()
        for offset, data, dirty in changes:
            if dirty.bit_count() > _PIECES_MAX:
                # Slots of past moments are not changed.
                page = bytearray(file.pread(_PAGE_BYTES, offset))
                for low, high in _runs(dirty):
                    page[low * SLOT_BYTES : high * SLOT_BYTES] = data[low * SLOT_BYTES : high * SLOT_BYTES]
                file.pwrite(page, offset)
            else:
                for low, high in _runs(dirty):
                    file.pwrite(data[low * SLOT_BYTES : high * SLOT_BYTES], offset + low * SLOT_BYTES)
        file.sync()

    def _open(self) -> File:
        directory = os.path.dirname(self.path)
        if not self._files.exists(self.path):
            for made in self._files.make_dirs(directory):
                self._files.sync_dir(os.path.dirname(made))
            self._files.create(self.path).close()
            self._files.sync_dir(directory)
        file = self._files.open(self.path)
        if file.size != WHEEL_BYTES:
            file.truncate(WHEEL_BYTES)  # sparse: blocks are allocated when slots are written
        return file

    def close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()


def _bits(mask: int) -> Iterator[int]:
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def _runs(mask: int) -> Iterator[tuple[int, int]]:
    """Yield the ranges of set bits."""
    while mask:
        low = (mask & -mask).bit_length() - 1
        shifted = mask >> low
        length = (~shifted & (shifted + 1)).bit_length() - 1
        yield low, low + length
        mask &= ~(((1 << length) - 1) << low)
