"""Reading of a whole log, past damage if requested."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from kerolox.protocol.ledger_scan import Mark
from kerolox.protocol.record_scan import CHECK_BODY, PHYSICAL_OFFSET, Entry, Stop
from kerolox.store.disk.segments import Segments
from kerolox.store.log.framing import head_bytes, scan_at, term_at
from kerolox.store.recovery import PIECE_BYTES, end_of, find_record_after, first_bad


class Damage(msgspec.Struct, frozen=True):
    """Bytes that are no record, followed by a record."""

    offset: int
    what: str
    path: str
    in_file: int
    valid_from: int  # offset of the next whole record
    valid_ms: int  # its store time


class Walk:
    """Records of a log, batch by batch.

    Iteration yields lists of entries. It ends at ``end``, at the end of the written data (``stop`` describes
    the bytes found instead of a record), or at damage: then ``damage`` names its place, and :meth:`resume`
    continues after it.
    """

    def __init__(
        self, segments: Segments, start: int, end: int | None = None, *, check: int = CHECK_BODY
    ) -> None:
        self.position = start
        self.stop = ""
        self.damage: Damage | None = None
        self._segments = segments
        self._end = segments.max_offset if end is None else end
        self._check = check
        self._after: Mark | None = None  # the last entry of a ledger, which the next must continue
        self._term = -1

    def resume(self) -> None:
        assert self.damage is not None
        self.position = self.damage.valid_from
        self.damage = None
        self._after = None  # entries are missing before the next one

    def __iter__(self) -> Iterator[list[Entry]]:
        piece_bytes = PIECE_BYTES
        while self.position < self._end:
            segment = self._segments.segment_at(self.position)
            if segment is None:
                self._end_at("the files that should follow are missing")
                return
            readable = min(segment.end, self._end) - self.position
            data = self._segments.read(self.position, min(readable, piece_bytes))
            result, self._after = scan_at(self._segments, data, self.position, self._check, after=self._after)
            entries, what = result.entries, ""
            head = head_bytes(self._segments, self.position)
            # checked as in recovery
            if (bad := first_bad(entries, self.position, data, head)) is not None:
                entries, what = entries[: bad[0]], bad[1]
            if entries:
                self.position = end_of(entries[-1])
                self._term = term_at(self._segments, entries[-1][PHYSICAL_OFFSET])
                yield entries
            if what:
                self._end_at(what)
                return
            if result.stop is Stop.BLANK:
                self.position = segment.end
            elif result.stop is Stop.INCOMPLETE and len(data) < readable:
                # Not all of it was read; if it has no record, read all.
                piece_bytes = PIECE_BYTES if entries else readable
                continue
            elif result.stop is not Stop.END:
                self._end_at(result.what)
                return
            piece_bytes = PIECE_BYTES

    def _end_at(self, what: str) -> None:
        self.stop = what
        # The bytes here are bad.
        behind = find_record_after(self._segments, self.position + 1, self._term)
        if behind is None or behind[0] >= self._end:
            return
        segment = self._segments.segment_at(self.position)
        if segment is None:
            path, in_file = self._segments.directories[0], 0
        else:
            path, in_file = segment.path, self.position - segment.start
        self.damage = Damage(self.position, what, path, in_file, behind[0], behind[1])
