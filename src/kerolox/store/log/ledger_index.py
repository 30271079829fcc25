"""Index of the entries of a DLedger log: the index files beside its data files. See FORMAT.md, "DLedger".

Each entry has a unit of 32 bytes, at 32 times its index. The heads of the entries hold all of it too, so
missing or wrong units are rewritten from them, and no unit must be flushed before its entry counts.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

from kerolox.protocol.ledger_entry import ENTRY_HEAD_BYTES
from kerolox.protocol.ledger_scan import UNIT_BYTES, Unit, decode_head, decode_unit, encode_unit, scan_heads
from kerolox.store.disk.files import Files
from kerolox.store.disk.segment import OpenFiles
from kerolox.store.disk.segments import Segments
from kerolox.store.errors import CorruptRecord, OffsetOutOfRange

log = logging.getLogger(__name__)

INDEX_FILE_BYTES = 5_242_880 * UNIT_BYTES  # Apache's size; it opens files of no other size
_PIECE_BYTES = 8 << 20  # more than the largest entry
_WRITTEN_AT_ONCE = 4096  # number of units rewritten at once


class LedgerIndex:
    """Index of entries by number. The loop appends; any thread may read."""

    def __init__(self, files: Files, directory: str, open_files: OpenFiles) -> None:
        self.segments = Segments(
            files, directory, INDEX_FILE_BYTES, open_files=open_files, grows=True, remade=True
        )
        self._is_torn = False  # units of an append that failed lie behind the end

    # --- writing -----------------------------------------------------------------------------------------

    def append(self, first: int, units: bytes) -> None:
        """Add the units of the entries from ``first`` on. Raises with some of them written, maybe: the next
        append cuts these."""
        segments = self.segments
        if self._is_torn:
            self.cut(first)
        self._is_torn = True
        if segments.last is None:
            segments.start_at(first * UNIT_BYTES)
        assert segments.wrote == first * UNIT_BYTES, "a unit lies where its index says"
        at = 0
        while at < len(units):
            if not segments.room:
                segments.roll()
            piece = units[at : at + segments.room]
            segments.append(piece)
            at += len(piece)
        self._is_torn = False

    def take_back(self) -> None:
        """Note that the entries of the last append are not in the log: the next one cuts their units. Not
        cut here: what kept the entries from the log may keep the index from being cut, too."""
        self._is_torn = True

    def cut(self, end: int) -> None:
        """Remove the units from this index on. Wait for the disk."""
        if self.segments.last is None:
            return
        if end * UNIT_BYTES <= self.segments.min_offset:
            self.segments.delete_all()
        elif end * UNIT_BYTES < self.segments.last.end:
            self.segments.truncate_to(end * UNIT_BYTES)

    def delete_before(self, begin: int) -> None:
        """Remove whole files whose entries are deleted with their data files. Wait for the disk."""
        self.segments.delete_before(begin * UNIT_BYTES)

    # --- reading -----------------------------------------------------------------------------------------

    def units(self, first: int, count: int, *, may_wait: bool) -> list[Unit] | None:
        """Return up to ``count`` units from an index on, at least one, all of one file. None if they are not
        in memory and ``may_wait`` is false. Raise StoreError if none exists."""
        size = min(self.segments.readable(first * UNIT_BYTES), max(1, count) * UNIT_BYTES)
        read = self.segments.read if may_wait else self.segments.read_hot
        data = read(first * UNIT_BYTES, size)
        if data is None:
            return None
        found: list[Unit] = []
        for number in range(len(data) // UNIT_BYTES):
            unit = decode_unit(data, number * UNIT_BYTES)
            if unit is None or unit.index != first + number:
                break
            found.append(unit)
        if not found:
            raise CorruptRecord(
                f"the index in {self.segments.directories[0]} has no entry {first}. Stop the broker, move "
                "that directory away and restart: the index is rebuilt from the entries.",
                path=self.segments.directories[0],
                offset=first,
            )
        return found

    # --- at a start --------------------------------------------------------------------------------------

    def fit(self, data: Segments, start: int, end: int) -> tuple[Unit, Unit] | None:
        """Make the index agree with the valid entries from position ``start`` to ``end``, and end where they
        do. Return the first and the last existing entry; None without any.

        The part before ``start`` is trusted if the unit of the entry there is right, and the one before it.
        Waits for the disk.
        """
        first = first_entry(data, end)
        if first is None:
            self.segments.delete_all()
            return None
        begin = _next_entry(data, max(start, first.pos), end) or _last_file_with_entries(data, first, end)
        if not self._knows(begin, first):
            if self.segments.last is not None:
                log.warning(
                    "ledger_index_made_again path=%s reason='it has no valid entry %d' next='no action "
                    "needed: all entries are read'",
                    self.segments.directories[0], begin.index,
                )  # fmt: skip
            self.segments.delete_all()
            begin = first
        last = self._write_again(data, begin, end)
        self.cut(last.index + 1)
        return first, last

    def _knows(self, unit: Unit, first: Unit) -> bool:
        """Return True if the index has this entry, and the one before it ends before this one, if there is
        one."""
        before = max(unit.index - 1, first.index)
        try:
            known = self.units(before, unit.index - before + 1, may_wait=True)
        except (CorruptRecord, OffsetOutOfRange):
            return False
        assert known is not None
        return known[-1] == unit if before == unit.index else known[0].end <= unit.pos and known[-1] == unit

    def _write_again(self, data: Segments, begin: Unit, end: int) -> Unit:
        """Compare the units with the entries from ``begin`` on, and rewrite them from the first that differs.
        Return the last entry."""
        if self.segments.last is not None:
            index_end = self.segments.wrote // UNIT_BYTES
        else:
            index_end = begin.index
        unlike = False
        last = begin
        waiting: list[Unit] = []

        def write() -> None:
            if waiting:
                self.append(waiting[0].index, b"".join(map(encode_unit, waiting)))
                waiting.clear()

        for found in heads(data, begin.pos, end):
            last = found[-1]
            if not unlike:
                known = self._known(found[0].index, len(found)) if found[0].index < index_end else []
                same = next((n for n, unit in enumerate(found) if n >= len(known) or known[n] != unit), None)
                if same is None:
                    continue
                unlike = True
                log.warning(
                    "ledger_index_written_again path=%s from=%d",
                    self.segments.directories[0], found[same].index,
                )  # fmt: skip
                self.cut(found[same].index)
                found = found[same:]
            for at in range(0, len(found), _WRITTEN_AT_ONCE):
                waiting += found[at : at + _WRITTEN_AT_ONCE]
                write()
        return last

    def _known(self, first: int, count: int) -> list[Unit]:
        found: list[Unit] = []
        try:
            while len(found) < count:
                more = self.units(first + len(found), count - len(found), may_wait=True)
                assert more is not None
                found += more
        except (CorruptRecord, OffsetOutOfRange):
            pass  # the index ends there
        return found


def _entry_at(data: Segments, position: int) -> Unit | None:
    if data.readable(position) < ENTRY_HEAD_BYTES:
        return None
    unit = decode_head(data.read(position, ENTRY_HEAD_BYTES))
    return unit if unit is not None and unit.pos == position else None


def first_entry(data: Segments, end: int) -> Unit | None:
    """Return the first existing entry; None if there is none before ``end``."""
    for segment in data.all:
        if segment.start >= data.entries_from:
            return _entry_at(data, segment.start) if segment.start < end else None
    return None


def _next_entry(data: Segments, position: int, end: int) -> Unit | None:
    """Return the entry that begins here, or in the next file if the rest of this one is blank."""
    segment = data.segment_at(position)
    found = _entry_at(data, position) if position < end else None
    if found is None and segment is not None and segment.end < end:
        found = _entry_at(data, segment.end)
    return found


def _last_file_with_entries(data: Segments, first: Unit, end: int) -> Unit:
    starts = [segment.start for segment in data.all if first.pos < segment.start < end]
    found = (_entry_at(data, start) for start in reversed(starts))
    return next((unit for unit in found if unit is not None), first)


def heads(data: Segments, position: int, end: int) -> Iterator[list[Unit]]:
    """Yield the heads of the entries between two positions, a piece at a time."""
    while position < end:
        readable = min(data.readable(position), end - position)
        if readable <= 0:
            return
        found = scan_heads(data.read(position, min(readable, _PIECE_BYTES)), position)
        if found:
            yield found
            position = found[-1].end
            continue
        segment = data.segment_at(position)
        assert segment is not None
        position = segment.end  # after its blank record
