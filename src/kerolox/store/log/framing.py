"""Framing of records in the files of a log: back to back, or each in an entry of a ledger.

A plain log is records. A DLedger log is entries, each a head and one record (protocol/ledger_scan.py). A log
that began as a plain one and continued in a DLedger group has both: ``Segments.entries_from`` is the offset
of the first entry.

There are two kinds of offsets. *Positions* are where records or entries begin: the ends of the log, its
flushed and its dispatched offset. *Physical offsets* are where records begin: those in queues, index,
messages and message ids. In a plain log they are equal. In a ledger a record begins one head after its entry.
Both end at the same place, so the end of a record is always a position.
"""

from __future__ import annotations

from typing import NamedTuple

from kerolox.protocol.ledger_entry import ENTRY_BYTES_MAX, ENTRY_HEAD_BYTES
from kerolox.protocol.ledger_scan import Mark, decode_head, encode_entry_blank, scan_entries
from kerolox.protocol.record import BLANK_BYTES, encode_blank
from kerolox.protocol.record_scan import CHECK_NONE, Scan, scan
from kerolox.store.disk.segments import Segments


class Framing(NamedTuple):
    """Layout of the records that are appended to a log."""

    lead_bytes: int = 0  # bytes before each record
    framed_bytes_max: int | None = None  # largest size of a record with these bytes; None: a file

    def record_bytes_max(self, file_bytes: int) -> int:
        """Return the size of the largest record that can be appended to files of this size."""
        in_file = file_bytes - BLANK_BYTES
        framed = in_file if self.framed_bytes_max is None else min(in_file, self.framed_bytes_max)
        return framed - self.lead_bytes


PLAIN = Framing()
ENTRIES = Framing(ENTRY_HEAD_BYTES, ENTRY_BYTES_MAX)


def head_bytes(segments: Segments, offset: int) -> int:
    """Return the number of bytes before each record, around this offset."""
    return ENTRY_HEAD_BYTES if offset >= segments.entries_from else 0


def position_of(segments: Segments, physical: int) -> int:
    """Return the position of the record, or of its entry, that begins at this physical offset."""
    position = physical - ENTRY_HEAD_BYTES
    return position if position >= segments.entries_from else physical


def blank_at(segments: Segments, position: int, free_bytes: int) -> bytes:
    """Return the blank record or entry that marks the rest of a file as empty."""
    return encode_entry_blank(free_bytes) if position >= segments.entries_from else encode_blank(free_bytes)


def scan_at(
    segments: Segments,
    data: bytes,
    position: int,
    check: int = CHECK_NONE,
    count_max: int = 65536,
    after: Mark | None = None,
) -> tuple[Scan, Mark | None]:
    """Scan the records in bytes that were read at a position and do not cross the end of its file.

    Entries are checked against ``after``, the last one before them; the last one scanned is returned. For a
    plain log the offsets in the records are not checked here.
    """
    if position >= segments.entries_from:
        return scan_entries(data, position, check, count_max, after=after)
    return scan(data, check=check, count_max=count_max), None


def size_at(segments: Segments, position: int, data: bytes) -> int:
    """Return the size of the record or entry that begins here, as its first eight bytes state it."""
    at = 4 if position >= segments.entries_from else 0
    return int.from_bytes(data[at : at + 4], "big", signed=True)


def term_at(segments: Segments, physical: int) -> int:
    """Return the term of the entry around this record; -1 in a plain log. May wait for the disk."""
    position = position_of(segments, physical)
    if position == physical:
        return -1
    head = decode_head(segments.read(position, ENTRY_HEAD_BYTES))
    return -1 if head is None else head.term
