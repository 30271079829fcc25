"""Read a log from one end to the other, over damage if need be."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from kerolox.protocol.record_scan import CHECK_BODY, SIZE, Entry, Stop, scan
from kerolox.store.disk.segments import Segments
from kerolox.store.recovery import PIECE_BYTES, _first_bad, find_record_after


class Damage(msgspec.Struct, frozen=True):
    """Bytes that are no record, in front of bytes that are."""

    offset: int
    what: str
    path: str
    in_file: int
    valid_from: int  # where the next whole record begins
    valid_ms: int  # its store time


class Walk:
    """The records of a log, batch by batch.

    Iterating gives lists of entries. It ends at ``end``, at the end of what was written (``stop`` says
    what is there instead of a record), or at damage: then ``damage`` says where, and :meth:`resume` goes
    on behind it.
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

    def resume(self) -> None:
        assert self.damage is not None
        self.position = self.damage.valid_from
        self.damage = None

    def __iter__(self) -> Iterator[list[Entry]]:
        piece_bytes = PIECE_BYTES
        while self.position < self._end:
            segment = self._segments.segment_at(self.position)
            if segment is None:
                self._end_at("the files that should follow are missing")
                return
            readable = min(segment.end, self._end) - self.position
            data = self._segments.read(self.position, min(readable, piece_bytes))
            result = scan(data, check=self._check)
            entries, what = result.entries, ""
            if (bad := _first_bad(entries, self.position, data)) is not None:  # as recovery judges
                entries, what = entries[: bad[0]], bad[1]
            if entries:
                self.position += sum(entry[SIZE] for entry in entries)
                yield entries
            if what:
                self._end_at(what)
                return
            if result.stop is Stop.BLANK:
                self.position = segment.end
            elif result.stop is Stop.INCOMPLETE and len(data) < readable:
                # Not all of it was looked at; without any record in it, look at all.
                piece_bytes = PIECE_BYTES if entries else readable
                continue
            elif result.stop is not Stop.END:
                self._end_at(result.what)
                return
            piece_bytes = PIECE_BYTES

    def _end_at(self, what: str) -> None:
        self.stop = what
        behind = find_record_after(self._segments, self.position + 1)  # what lies here is bad
        if behind is None or behind[0] >= self._end:
            return
        segment = self._segments.segment_at(self.position)
        if segment is None:
            path, in_file = self._segments.directories[0], 0
        else:
            path, in_file = segment.path, self.position - segment.start
        self.damage = Damage(self.position, what, path, in_file, behind[0], behind[1])
