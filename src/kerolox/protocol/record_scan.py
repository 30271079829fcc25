"""Fast walk over the records of a log: it decodes only what dispatch, recovery and rebuilding need.

A walk never raises for invalid bytes. It returns the records before them, its end position and the reason:
see MESSAGE.md, "Reading a log". Positions are relative to the given bytes.
"""

from __future__ import annotations

import struct
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias
from zlib import crc32

from kerolox.compiled import compiled
from kerolox.protocol.record import (
    CRC_MASK,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_BYTES_MIN,
    record_crc_ok,
)

if TYPE_CHECKING:
    import mmap

# Types that can be walked. Not memoryview: its slices can neither be dict keys nor be searched.
LogBytes: TypeAlias = "bytes | mmap.mmap"

# A plain tuple, because a named one costs as much as the rest of the walk:
# (size, magic, queue_id, queue_offset, physical_offset, sys_flag, store_timestamp, topic, properties)
Entry: TypeAlias = tuple[int, int, int, int, int, int, int, bytes, bytes]

SIZE: Final = 0
MAGIC: Final = 1
QUEUE_ID: Final = 2
QUEUE_OFFSET: Final = 3
PHYSICAL_OFFSET: Final = 4
SYS_FLAG: Final = 5
STORE_TIMESTAMP: Final = 6
TOPIC: Final = 7
PROPERTIES: Final = 8

# Levels of verification.
CHECK_NONE: Final = 0
CHECK_BODY: Final = 1  # the body against its CRC
CHECK_RECORD: Final = 2  # the whole record against the CRC in its properties, which must be there


class Stop(Enum):
    """The reason why a walk ended."""

    END = "end"  # the bytes are used up, or count_max is reached
    INCOMPLETE = "incomplete"  # a record begins but is incomplete: continue when more bytes exist
    BLANK = "blank"  # the rest of the file is empty: continue in the next file
    UNWRITTEN = "unwritten"  # zeros: no record was ever written here
    CORRUPT = "corrupt"  # `what` and `position` have the details; skip_bytes, if known, leads past the record


class Scan(NamedTuple):
    """The result of a walk."""

    entries: list[Entry]
    position: int  # end of the last valid record
    stop: Stop
    what: str = ""
    skip_bytes: int = 0  # > 0: the size that the damaged record claims; the log may continue after it


def _layout(born: int, store: int) -> struct.Struct:
    # size, magic, crc, queue id, [flag], queue offset, physical offset, sys flag, [born timestamp,
    # born host], store timestamp, [store host, reconsume times, prepared offset], body length
    return struct.Struct(f">iIii4xqqi8x{born}xq{store}x12xi")


_LAYOUTS: Final = (_layout(8, 8), _layout(20, 8), _layout(8, 20), _layout(20, 20))
_unpack_ipv4 = _LAYOUTS[0].unpack_from
_unpack_head = struct.Struct(">iI").unpack_from
assert _LAYOUTS[0].size == 88


def scan(
    data: LogBytes,
    start: int = 0,
    end: int | None = None,
    check: int = CHECK_NONE,
    count_max: int = 65536,
    *,
    lies_at: int | None = None,
) -> Scan:
    """Walk the records from ``start``, up to ``end`` or ``count_max`` of them.

    The physical offset in a record is verified only if ``lies_at``, the log offset of the first byte, is
    given.
    """
    end = len(data) if end is None else min(end, len(data))
    entries: list[Entry] = []
    position = start
    while position < end and len(entries) < count_max:
        left = count_max - len(entries)
        if check == CHECK_NONE:
            more, position = plain_records(data, position, end, left, lies_at)
        else:
            more, position = _plain_checked(data, position, end, left, lies_at, check)
        entries = entries + more if entries else more
        if position >= end or len(more) == left:
            break
        found = _scan_one(data, position, end, check, lies_at)
        if isinstance(found, Scan):
            return found._replace(entries=entries)
        entries.append(found)
        position += found[SIZE]
    return Scan(entries, position, Stop.END)


def _plain_records(
    data: LogBytes, start: int, end: int, count_max: int, lies_at: int | None
) -> tuple[list[Entry], int]:
    """Return the common records from ``start`` on, and the position of the first other one or of the end."""
    return _plain_checked(data, start, end, count_max, lies_at, CHECK_NONE)


def _plain_checked(
    data: LogBytes, position: int, end: int, count_max: int, lies_at: int | None, check: int
) -> tuple[list[Entry], int]:
    entries: list[Entry] = []
    append = entries.append
    last = end - 91
    try:
        for _ in range(count_max):
            if position > last:
                break
            (
                size,
                magic,
                body_crc,
                queue_id,
                queue_offset,
                physical_offset,
                sys_flag,
                store_timestamp,
                body_length,
            ) = _unpack_ipv4(data, position)
            if magic != 0xDAA320A7 or sys_flag & 0x30 or body_length < 0 or check == CHECK_RECORD:
                break
            if lies_at is not None and physical_offset != lies_at + position:
                break
            topic_at = position + 89 + body_length
            topic_length = data[topic_at - 1]
            topic_end = topic_at + topic_length
            length_high = data[topic_end]
            stop = topic_end + 2 + (length_high << 8 | data[topic_end + 1])
            if stop - position != size or stop > end or (topic_length | length_high) > 127:
                break
            if check and body_length and crc32(data[position + 88 : topic_at - 1]) & 0x7FFF_FFFF != body_crc:
                break
            append(
                (
                    size,
                    magic,
                    queue_id,
                    queue_offset,
                    physical_offset,
                    sys_flag,
                    store_timestamp,
                    data[topic_at:topic_end],
                    data[topic_end + 2 : stop],
                )
            )
            position = stop
    except IndexError:
        pass  # lengths that lead out of the bytes
    return entries, position


plain_records = compiled("plain_records", _plain_records)


def _scan_one(data: LogBytes, at: int, end: int, check: int, lies_at: int | None) -> Entry | Scan:
    """Return one record of any kind, or the reason why it is none. The order of the checks is RocketMQ's."""
    here = end - at
    if here < 8:
        return Scan([], at, Stop.INCOMPLETE, f"{here} bytes of a record's size and magic")
    size, magic = _unpack_head(data, at)
    if magic not in (MAGIC_V1, MAGIC_V2, MAGIC_BLANK):
        if size == 0 and magic == 0:
            return Scan([], at, Stop.UNWRITTEN, "zeros instead of a record")
        return Scan([], at, Stop.CORRUPT, f"record magic 0x{magic:08X}")
    if size > here:
        return Scan([], at, Stop.INCOMPLETE, f"{here} bytes of a record of {size}")
    if magic == MAGIC_BLANK:
        return Scan([], at, Stop.BLANK, f"blank record of {size} bytes")
    if end - at < RECORD_BYTES_MIN:
        return _corrupt(at, f"record size {size}; the smallest has {RECORD_BYTES_MIN} bytes", 0)
    (_, _, body_crc, queue_id, queue_offset, physical_offset, sys_flag, store_timestamp, body_length) = (
        _unpack_ipv4(data, at)
    )
    layout = _LAYOUTS[sys_flag >> 4 & 3]
    body_at = at + layout.size
    if sys_flag & 0x30:
        if body_at > end:
            return _corrupt(at, f"record of {size} bytes is too small for its IPv6 hosts", 0)
        (*_, store_timestamp, body_length) = layout.unpack_from(data, at)
    topic_at = body_at + max(body_length, 0) + (1 if magic == MAGIC_V1 else 2)
    if topic_at > end:
        return _corrupt(at, f"body length {body_length} in a record of {size} bytes", 0)
    if check == CHECK_BODY and body_length > 0:
        crc = crc32(data[body_at : body_at + body_length]) & CRC_MASK
        if crc != body_crc:
            return _corrupt(at, f"body CRC 0x{crc:08X}, the record says 0x{body_crc & 0xFFFFFFFF:08X}", 0)
    if magic == MAGIC_V1:
        topic_length = _signed(data[topic_at - 1], 8)
    else:
        topic_length = _signed(data[topic_at - 2] << 8 | data[topic_at - 1], 16)
    topic_end = topic_at + topic_length
    if topic_length < 0 or topic_end + 2 > end:
        return _corrupt(at, f"topic length {topic_length} in a record of {size} bytes", 0)
    properties_length = _signed(data[topic_end] << 8 | data[topic_end + 1], 16)
    record_end = topic_end + 2 + properties_length
    if record_end > end:
        return _corrupt(at, f"properties length {properties_length} in a record of {size} bytes", 0)
    # Here every length could be read, so the size may be right and what is wrong one of them:
    # RocketMQ then lets its dispatcher go on behind the record, if the parts it copied were no
    # longer than the size.
    if body_length < 0 or properties_length < 0 or record_end != at + size:
        lengths = f"body {body_length}, topic {topic_length} and properties {properties_length} bytes"
        host_bytes = 20 if sys_flag & 0x30 else 8
        skip_bytes = size if size >= max(host_bytes, topic_length, properties_length) else 0
        return _corrupt(at, f"record size {size} with {lengths}", skip_bytes)
    if lies_at is not None and physical_offset != lies_at + at:
        return _corrupt(at, f"the record says it lies at {physical_offset}", 0)
    if check == CHECK_RECORD and not record_crc_ok(data[at:record_end]):
        return _corrupt(at, "record CRC missing or wrong", 0)
    return (
        size,
        magic,
        queue_id,
        queue_offset,
        physical_offset,
        sys_flag,
        store_timestamp,
        data[topic_at:topic_end],
        data[topic_end + 2 : record_end],
    )


def _corrupt(at: int, what: str, skip_bytes: int) -> Scan:
    return Scan([], at, Stop.CORRUPT, what, skip_bytes)


def _signed(number: int, bits: int) -> int:
    return number - (1 << bits) if number >> bits - 1 else number
