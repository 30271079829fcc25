"""Commit log read in blocks of records, across damage, for the audit.

Damage is defined as in ``kerolox store verify``, with one difference: a body that fails its checksum is a
finding, not the end of the readable log, because the record still gives the start of the next one.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kerolox.protocol.record import MAGIC_V1, MAGIC_V2, RECORD_BYTES_MIN
from kerolox.protocol.record_scan import PHYSICAL_OFFSET, Stop, scan
from kerolox.spark.records import FIXED, FIXED_BYTES, IPV6_HOSTS, Numbers
from kerolox.spark.store.files import FileRun, LogFiles

Bytes = npt.NDArray[np.uint8]

BLOCK_BYTES = 8 << 20
GONE = "the file was deleted or truncated during the audit. Run the audit again"
_PAD = 64  # zero bytes after a block, so that reads of a short last record stay inside
_head = struct.Struct(">iI").unpack_from


class LogSpan(NamedTuple):
    """Part of one file of a log. It begins at a record, or at an offset where one should begin."""

    store: int  # index of the store
    start: int
    end: int


class LogDamage(NamedTuple):
    """Bytes that are not a record, followed by valid records."""

    place: int
    what: str
    valid_from: int


class Heads:
    """Fixed fields of the records of a block, for all host widths and topic lengths."""

    __slots__ = (
        "body_at", "body_crc", "body_length", "born_ms", "end", "magic", "physical", "positions", "queue_id",
        "queue_offset", "reconsume_times", "size", "store_host", "stored_ms", "sys_flag",
        "topic_at", "topic_end",
    )  # fmt: skip

    def __init__(self, block: Bytes, positions: Numbers) -> None:
        fixed = every_byte(block, f"V{FIXED_BYTES}")[positions].view(FIXED)
        self.positions = positions
        self.size = fixed["size"].astype(np.int64)
        self.end = positions + self.size
        self.magic = fixed["magic"].astype(np.uint32)
        self.body_crc = fixed["body_crc"].astype(np.int64)
        self.queue_id = fixed["queue_id"].astype(np.int32)
        self.queue_offset = fixed["queue_offset"].astype(np.int64)
        self.physical = fixed["physical_offset"].astype(np.int64)
        self.sys_flag = fixed["sys_flag"].astype(np.int32)
        self.born_ms = fixed["born_timestamp"].astype(np.int64)
        self.stored_ms = fixed["store_timestamp"].astype(np.int64)
        self.store_host = np.ascontiguousarray(fixed["store_host"]).view(">i8").astype(np.int64)
        self.reconsume_times = fixed["reconsume_times"].astype(np.int32)
        self.body_length = fixed["body_length"].astype(np.int64)
        self.body_at = positions + FIXED_BYTES
        wide = np.flatnonzero(self.sys_flag & IPV6_HOSTS)
        if len(wide):
            self._shift(block, wide)
        body_end = self.body_at + np.clip(self.body_length, 0, self.size)
        width = np.where(self.magic == MAGIC_V2, 2, 1)
        low = np.minimum(body_end, self.end)
        lengths = np.where(width == 1, block[low], every_byte(block, ">u2")[low]).astype(np.int64)
        self.topic_at = body_end + width
        self.topic_end = self.topic_at + lengths

    def _shift(self, block: Bytes, rows: Numbers) -> None:
        """Move the fields behind IPv6 hosts, which are 12 bytes longer than IPv4 hosts."""
        flags, at = self.sys_flag[rows], self.positions[rows]
        born = at + np.where(flags & 0x10, 12, 0)
        both = born + np.where(flags & 0x20, 12, 0)
        longs, ints = every_byte(block, ">i8"), every_byte(block, ">i4")
        self.stored_ms[rows] = longs[born + 56]
        self.store_host[rows] = longs[born + 64]
        self.reconsume_times[rows] = ints[both + 72]
        self.body_length[rows] = ints[both + 84]
        self.body_at[rows] = both + 88

    def first_bad(self, block: Bytes, base: int) -> int | None:
        """Return the index of the first record with inconsistent lengths or another physical offset."""
        known = self.topic_end + 2 <= self.end
        at = np.where(known, self.topic_end, self.positions)
        properties: Numbers = every_byte(block, ">i2")[at].astype(np.int64)
        good = known & (self.topic_end + 2 + properties == self.end) & (properties >= 0)
        good &= (self.body_length >= 0) & (self.physical == base + self.positions)
        good &= self.topic_end - self.topic_at <= np.where(self.magic == MAGIC_V2, 32767, 127)
        if good.all():
            return None
        return int(np.argmin(good))


class LogBlock(NamedTuple):
    """Block of records: bytes, offset of the block in the log, and fixed fields."""

    bytes: Bytes
    base: int
    heads: Heads


class LogBlocks:
    """Iterator over the blocks of one span. ``damages``, ``end`` and ``stop`` are valid after the last
    block.
    """

    def __init__(self, span: LogSpan, run: FileRun, block_bytes: int = BLOCK_BYTES) -> None:
        self.damages: list[LogDamage] = []
        self.end = span.start  # end of the last record
        self.stop = ""  # description of the bytes at ``end`` if no record follows
        self._doubtful = -1
        self._span = span
        self._run = run
        self._block_bytes = block_bytes

    def __iter__(self) -> Iterator[LogBlock]:
        span, run = self._span, self._run
        piece = run.piece_at(span.start)
        if piece is None:
            return
        at, wanted = span.start, self._block_bytes
        with LogFiles(run.between(span.start, span.end)) as log:
            while at < span.end:
                size = min(wanted, piece.end - at)
                array = np.zeros(size + _PAD, np.uint8)
                got = log.read_into(array.data[:size], at)
                heads, stopped = _heads(array, got, min(got, span.end - at), at)
                if heads is not None:
                    self.end = at + stopped
                    yield LogBlock(array, at, heads)
                    # Bytes that are not a record are examined at the start of the next block.
                    at, wanted = self.end, self._block_bytes
                    continue
                step = self._judge(array[:got].tobytes(), at, piece.end)
                if step is None:
                    return
                at, wanted = step

    def _judge(self, rest: bytes, at: int, file_end: int) -> tuple[int, int] | None:
        """Handle a non-record. Return the offset to continue at and the bytes to read; None at the end."""
        if not rest:
            # A file that shrank is damage, not the end of the log: the part must not count as read.
            self.end = min(file_end, self._span.end)
            self.damages.append(LogDamage(at, GONE, self.end))
            return None
        result = scan(rest, count_max=1)
        if result.stop is Stop.BLANK:
            self.end = min(file_end, self._span.end)
            return None
        if result.stop is Stop.INCOMPLETE and len(rest) < file_end - at:
            size = int.from_bytes(rest[:4], "big") if len(rest) >= 8 else len(rest) + 8
            if len(rest) < size <= file_end - at:
                return at, size
        what = result.what
        if result.entries:
            what = f"a record has the physical offset {result.entries[0][PHYSICAL_OFFSET]}"
        with LogFiles(self._run) as log:
            behind = log.next_record(at + 1, self._run.end)
            if behind < self._run.end and at != self._doubtful:
                # A broker may have written here between the two reads: read again once.
                self._doubtful = at
                return at, self._block_bytes
        if behind == self._run.end:
            self.stop = what
            return None
        self.damages.append(LogDamage(at, what, behind))
        if behind >= self._span.end:
            self.end = self._span.end
            return None
        return behind, self._block_bytes


def _heads(array: Bytes, got: int, limit: int, base: int) -> tuple[Heads | None, int]:
    """Return the complete, consistent records that begin before ``limit``, and their end."""
    found: list[int] = []
    append = found.append
    view = array.data
    at, last = 0, got - 8
    while at < limit and at <= last:
        size, magic = _head(view, at)
        if (magic != MAGIC_V1 and magic != MAGIC_V2) or size < RECORD_BYTES_MIN or at + size > got:
            break
        append(at)
        at += size
    if not found:
        return None, 0
    heads = Heads(array, np.array(found, np.int64))
    bad = heads.first_bad(array, base)
    if bad is None:
        return heads, at
    return (Heads(array, heads.positions[:bad]), found[bad]) if bad else (None, 0)


def every_byte(block: Bytes, kind: str) -> npt.NDArray[np.void]:
    """Return a view of the block with an item at every byte. Only index it: other operations copy it."""
    dtype = np.dtype(kind)
    return np.ndarray((len(block) - dtype.itemsize + 1,), dtype, block.data, strides=(1,))
