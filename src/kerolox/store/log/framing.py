"""How the records of a log lie in its files: one behind the other, or each in an entry of a ledger.

A plain log is records. A DLedger log is entries, each a head and one record (protocol/ledger_scan.py). A log
that began plainly and went on in a DLedger group is both: ``Segments.entries_from`` says from where on.

Two kinds of offsets come of it. *Positions* are where records or entries begin: where the log begins and
ends, how far it was flushed and dispatched. *Physical offsets* are where records begin: what queues, index,
messages and their ids have. In a plain log they are the same. In a ledger a record begins a head behind its
entry. Both end at the same place, so the end of a record is always a position.
"""

from __future__ import annotations

from kerolox.protocol.ledger_entry import ENTRY_HEAD_BYTES
from kerolox.protocol.ledger_scan import Mark, decode_head, scan_entries
from kerolox.protocol.record_scan import CHECK_NONE, Scan, scan
from kerolox.store.disk.segments import Segments


def head_bytes(segments: Segments, offset: int) -> int:
    """How many bytes lie before each record, around this offset."""
    return ENTRY_HEAD_BYTES if offset >= segments.entries_from else 0


def position_of(segments: Segments, physical: int) -> int:
    """Where the record that begins at this physical offset, or its entry, begins."""
    position = physical - ENTRY_HEAD_BYTES
    return position if position >= segments.entries_from else physical


def scan_at(
    segments: Segments,
    data: bytes,
    position: int,
    check: int = CHECK_NONE,
    count_max: int = 65536,
    after: Mark | None = None,
) -> tuple[Scan, Mark | None]:
    """Walk the records in bytes that were read at a position, none of them beyond the end of its file.

    Entries are held against ``after``, the last one before them; the last one walked is given back. Whether
    records of a plain log lie where they say is not asked here.
    """
    if position >= segments.entries_from:
        return scan_entries(data, position, check, count_max, after=after)
    return scan(data, check=check, count_max=count_max), None


def size_at(segments: Segments, position: int, data: bytes) -> int:
    """How long the record or entry that begins here says it is, by its first eight bytes."""
    at = 4 if position >= segments.entries_from else 0
    return int.from_bytes(data[at : at + 4], "big", signed=True)


def term_at(segments: Segments, physical: int) -> int:
    """The term of the entry around this record; -1 in a plain log. May wait for the disk."""
    position = position_of(segments, physical)
    if position == physical:
        return -1
    head = decode_head(segments.read(position, ENTRY_HEAD_BYTES))
    return -1 if head is None else head.term
