"""The bytes of a DLedger log: entries in data files, units in index files. See store/FORMAT.md, "DLedger".

An entry is a head of 48 bytes and a body, which is one record of a commit log. The record says that it lies
where the body does: 48 bytes behind the beginning of the entry. A unit says where the entry of an index lies.

A walk never raises for bad bytes, like :mod:`kerolox.protocol.record_scan`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

import msgspec

from kerolox.protocol.ledger_entry import ENTRY_HEAD_BYTES, ENTRY_MAGIC
from kerolox.protocol.record_scan import CHECK_NONE, Entry, Scan, Stop, plain_records, scan

# See FORMAT.md, "DLedger".
_HEAD = struct.Struct(
    ">i"  # magic
    "i"  # size of the entry, its head counted
    "q"  # index, from 0
    "q"  # term
    "q"  # where the entry begins in the log
    "i"  # channel, 0
    "i"  # CRC of the chain, 0
    "i"  # CRC of the body, 0
    "i"  # length of the body
)
_UNIT = struct.Struct(
    ">i"  # magic
    "q"  # where the entry begins in the log
    "i"  # its size
    "q"  # index
    "q"  # term
)
_BLANK = struct.Struct(">ii")
assert _HEAD.size == ENTRY_HEAD_BYTES
UNIT_BYTES: Final = _UNIT.size
BLANK_MAGIC: Final = -1
_pack_head, _pack_unit, _unpack_head = _HEAD.pack, _UNIT.pack, _HEAD.unpack_from


class Mark(msgspec.Struct, frozen=True, gc=False):
    """The last entry before an offset. Later entries continue its index, and never have an older term."""

    index: int
    term: int


class Unit(msgspec.Struct, frozen=True, gc=False):
    """The position of an entry, by its index."""

    index: int
    term: int
    pos: int
    size: int

    @property
    def end(self) -> int:
        return self.pos + self.size


def encode_head(index: int, term: int, pos: int, body_length: int) -> bytes:
    size = ENTRY_HEAD_BYTES + body_length
    return _pack_head(ENTRY_MAGIC, size, index, term, pos, 0, 0, 0, body_length)


def decode_head(data: bytes, at: int = 0) -> Unit | None:
    """Decode an entry head; None if the bytes are not a head."""
    if len(data) - at < ENTRY_HEAD_BYTES:
        return None
    magic, size, index, term, pos, _, _, _, body_length = _unpack_head(data, at)
    if magic != ENTRY_MAGIC or body_length < 0 or size != ENTRY_HEAD_BYTES + body_length:
        return None
    return Unit(index, term, pos, size)


def encode_unit(unit: Unit) -> bytes:
    return _pack_unit(ENTRY_MAGIC, unit.pos, unit.size, unit.index, unit.term)


def decode_unit(data: bytes, at: int = 0) -> Unit | None:
    """Decode an index unit; None if none was written."""
    magic, pos, size, index, term = _UNIT.unpack_from(data, at)
    return Unit(index, term, pos, size) if magic == ENTRY_MAGIC else None


def frame(records: Iterable[bytes], first_index: int, term: int, pos: int) -> tuple[list[bytes], bytes]:
    """Return the pieces of all entries for these records, the first at ``pos``, and their index units."""
    pieces: list[bytes] = []
    units: list[bytes] = []
    index = first_index
    for record in records:
        length = len(record)
        size = ENTRY_HEAD_BYTES + length
        pieces += (_pack_head(ENTRY_MAGIC, size, index, term, pos, 0, 0, 0, length), record)
        units.append(_pack_unit(ENTRY_MAGIC, pos, size, index, term))
        pos += size
        index += 1
    return pieces, b"".join(units)


def encode_entry_blank(free_bytes: int) -> bytes:
    """Return the 8 bytes that mark the last ``free_bytes`` of a data file as empty; they are written at their
    beginning."""
    return _BLANK.pack(BLANK_MAGIC, free_bytes)


def scan_heads(data: bytes, lies_at: int, start: int = 0) -> list[Unit]:
    """Return the complete entries in some bytes, from ``start`` on, from their heads only."""
    found: list[Unit] = []
    at = start
    while (unit := decode_head(data, at)) is not None and unit.pos == lies_at + at:
        if at + unit.size > len(data):
            break
        found.append(unit)
        at += unit.size
    return found


def scan_entries(
    data: bytes,
    lies_at: int,
    check: int = CHECK_NONE,
    count_max: int = 65536,
    *,
    after: Mark | None = None,
) -> tuple[Scan, Mark | None]:
    """Walk entries. ``lies_at`` is the log offset of the first byte, ``after`` the entry before it.

    The entries returned are those of the records, as for a plain log; positions are those of DLedger entries.
    """
    found: list[Entry] = []
    before = None if after is None else (after.index, after.term)
    end = len(data)
    at = 0
    stop: Scan | None = None
    while at < end and len(found) < count_max:
        stop = _bad_head(data, at, lies_at, before)
        if stop is not None:
            break
        _, size, index, term, *_ = _unpack_head(data, at)
        body, body_end = at + ENTRY_HEAD_BYTES, at + size
        records: list[Entry] = []
        if check == CHECK_NONE:
            records, _ = plain_records(data, body, body_end, 1, lies_at)
        if not records:
            result = scan(data, body, body_end, check, 1, lies_at=lies_at)
            records = result.entries
            if not records:
                what = f"entry {index} holds no record: {result.what or result.stop.value}"
                stop = Scan([], at, Stop.CORRUPT, what)
                break
        if records[0][0] != size - ENTRY_HEAD_BYTES:
            what = f"entry {index} has {size - ENTRY_HEAD_BYTES} bytes, its record {records[0][0]}"
            stop = Scan([], at, Stop.CORRUPT, what)
            break
        found.append(records[0])
        before = index, term
        at = body_end
    last = None if before is None else Mark(*before)
    return (Scan(found, at, Stop.END) if stop is None else stop._replace(entries=found)), last


def _bad_head(data: bytes, at: int, lies_at: int, before: tuple[int, int] | None) -> Scan | None:
    """Return why no complete entry begins here; None if one does. The order of the checks is DLedger's."""
    here = len(data) - at
    if here < 8:
        return Scan([], at, Stop.INCOMPLETE, f"{here} bytes of an entry's magic and size")
    magic, size = _BLANK.unpack_from(data, at)
    if magic == BLANK_MAGIC:
        return Scan([], at, Stop.BLANK, f"blank entry of {size} bytes")
    if magic == 0 and size == 0:
        return Scan([], at, Stop.UNWRITTEN, "zeros instead of an entry")
    if magic != ENTRY_MAGIC:
        return Scan([], at, Stop.CORRUPT, f"entry magic {magic}")
    if here < ENTRY_HEAD_BYTES:
        return Scan([], at, Stop.INCOMPLETE, f"{here} bytes of an entry's head")
    _, size, index, term, pos, _, _, _, body_length = _unpack_head(data, at)
    if body_length < 0 or size != ENTRY_HEAD_BYTES + body_length:
        return Scan([], at, Stop.CORRUPT, f"entry of {size} bytes with a body of {body_length}")
    if pos != lies_at + at:
        return Scan([], at, Stop.CORRUPT, f"an entry says it lies at {pos}")
    if before is not None and index != before[0] + 1:
        return Scan([], at, Stop.CORRUPT, f"entry {index} follows entry {before[0]}")
    if before is not None and term < before[1]:
        return Scan([], at, Stop.CORRUPT, f"an entry of term {term} follows one of term {before[1]}")
    if size > here:
        return Scan([], at, Stop.INCOMPLETE, f"{here} bytes of an entry of {size}")
    return None
