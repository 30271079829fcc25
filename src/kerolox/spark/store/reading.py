"""One piece of a store to Arrow batches.

Along the log (:mod:`kerolox.spark.store.walking`), or by the entries of queues, from blocks of some thousand
records. Every record is checked before it is decoded. Damage is an error, or a warning and a row of the
report.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Iterator
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kerolox.protocol.record_scan import CHECK_BODY, CHECK_NONE
from kerolox.spark.records import IPV6_HOSTS, Positions, decode, decode_in_parts
from kerolox.spark.store.faults import RECORD_BYTES_MIN, Mask, faults, fixed_parts
from kerolox.spark.store.files import NO_FILE, FileRun, LogFiles, QueueFiles, QueueRange
from kerolox.spark.store.options import StoreChoice
from kerolox.spark.store.plan import Split
from kerolox.spark.store.walking import LogDamage, LogWalk
from kerolox.store.errors import CorruptRecord
from kerolox.store.log.readable_log import store_timestamp_of
from kerolox.store.queue.entry import BLANK_SIZE, HOLE_TAGS, SIMPLE
from kerolox.store.recovery import FILLER_TOPIC

logger = logging.getLogger(__name__)

BLOCK_BYTES: Final = 2 << 20
ROWS: Final = 8192  # of a batch at most
ROWS_READ: Final = 4 * ROWS
# Messages closer than this are read together with what lies between them: copying it costs less than a call.
NEAR_BYTES: Final = 16 << 10
WARNINGS_MAX: Final = 100  # of a task
NO_ENTRY: Final = "the entry is missing"

REPORT: Final = pa.schema([
    ("broker", pa.string()), ("path", pa.string()), ("offset", pa.int64()), ("bytes", pa.int64()),
    ("reason", pa.string()),
])  # fmt: skip
REPORT_SCHEMA: Final = "broker string, path string, offset bigint, bytes bigint, reason string"

_size_at = struct.Struct(">i").unpack_from


class Region(NamedTuple):
    """Bytes of a file that are not what they must be."""

    path: str
    offset: int
    bytes: int
    reason: str


def read_split(split: Split, choice: StoreChoice, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The messages of a piece; with ``choice.report`` its damage instead."""
    reading = SplitReading(split, choice, schema)
    with LogFiles(split.log) as log:
        walk = reading.by_log(log) if split.queues is None else reading.by_queues(log, split.queues)
        try:
            yield from walk  # nothing, with a report
        finally:
            if not choice.report:
                reading.warn()
    if choice.report and reading.regions:
        rows = [(split.broker, *region) for region in reading.regions]
        yield pa.RecordBatch.from_arrays(
            [
                pa.array(column, field.type)
                for column, field in zip(zip(*rows, strict=True), REPORT, strict=True)
            ],
            schema=REPORT,
        )


class SplitReading:
    """Reads one piece, and knows what was wrong in it."""

    def __init__(self, split: Split, choice: StoreChoice, schema: pa.Schema) -> None:
        self.regions: list[Region] = []
        self._split = split
        self._choice = choice
        self._schema = schema
        self._kind = ""  # of the last region
        self._buffer = bytearray()

    # --- along the log ---------------------------------------------------------------------------

    def by_log(self, log: LogFiles) -> Iterator[pa.RecordBatch]:
        """Batches of all records of the range."""
        walk = LogWalk(
            log, self._split.start, self._split.end,
            block_bytes=BLOCK_BYTES, check_bodies=self._choice.verify_crc,
        )  # fmt: skip
        for found in walk:
            if isinstance(found, LogDamage):
                self._damaged(log.run, found.start, found.end, found.what)
            else:
                yield from self._rows(
                    found.bytes.data, found.positions, found.positions + found.base, log.run
                )

    # --- by queues -------------------------------------------------------------------------------

    def by_queues(self, log: LogFiles, queues: tuple[QueueRange, ...]) -> Iterator[pa.RecordBatch]:
        """The messages the entries point at, in the order of the log, each once."""
        places, sizes = self._entries(log, queues)
        ends = places + sizes
        starts = np.array([piece.start for piece in log.run.pieces], np.int64)
        file = np.searchsorted(starts, places, "right")
        # True where a new read begins: in another file, or far after the message before.
        apart = np.ones(len(places), bool)
        apart[1:] = (places[1:] - np.maximum.accumulate(ends)[:-1] > NEAR_BYTES) | (file[1:] != file[:-1])
        costs = np.where(apart, sizes, np.diff(np.maximum.accumulate(ends), prepend=0))
        done = np.cumsum(costs)
        first = 0
        while first < len(places):
            before = int(done[first - 1]) if first else 0
            last = int(np.searchsorted(done, before + BLOCK_BYTES, "right"))
            last = max(first + 1, min(last, first + ROWS_READ))
            yield from self._pointed_at(log, places[first:last], sizes[first:last], apart[first:last])
            first = last

    def _entries(self, log: LogFiles, queues: tuple[QueueRange, ...]) -> tuple[Positions, Positions]:
        """Offsets and sizes of the messages, ascending."""
        parts = []
        for queue in queues:
            with QueueFiles(queue.run) as files:
                entries = files.entries(queue.first, queue.end)
            places = entries["place"].astype(np.int64)
            sizes = entries["size"].astype(np.int64)
            real = (sizes != BLANK_SIZE) & (entries["code"] != HOLE_TAGS)
            good = (sizes >= RECORD_BYTES_MIN) & (places >= self._split.start) & (places < self._split.end)
            good &= places + sizes <= log.run.end
            for place in np.flatnonzero(good & (sizes > BLOCK_BYTES)).tolist():
                good[place] = log.read(int(places[place]), 4) == int(sizes[place]).to_bytes(4, "big")
            for number in np.flatnonzero(real & ~good).tolist():
                at = (queue.first + number) * SIMPLE.size
                if not sizes[number]:
                    what = NO_ENTRY
                else:
                    what = f"the entry points at {sizes[number]} bytes at {places[number]} of the log"
                reason = f"{what}: {queue.topic} queue {queue.queue_id} offset {queue.first + number}"
                kind = reason if sizes[number] else NO_ENTRY
                self._damaged(queue.run, at, at + SIMPLE.size, reason, kind)
            parts.append((places[real & good], sizes[real & good]))
        places = np.concatenate([part[0] for part in parts])
        sizes = np.concatenate([part[1] for part in parts])
        # Entries of lost messages point at the next message, and light queues share messages.
        places, once = np.unique(places, return_index=True)
        return places, sizes[once]

    def _pointed_at(
        self, log: LogFiles, places: Positions, sizes: Positions, apart: Mask
    ) -> Iterator[pa.RecordBatch]:
        firsts = np.flatnonzero(apart)
        if not len(firsts) or firsts[0]:
            firsts = np.insert(firsts, 0, 0)
        ends = np.maximum.accumulate(places + sizes)
        lasts = np.append(firsts[1:], len(places)) - 1
        lengths = ends[lasts] - places[firsts]
        fills = np.cumsum(lengths) - lengths
        total = int(lengths.sum())
        if total > len(self._buffer):
            self._buffer = bytearray(max(total, BLOCK_BYTES))
        view = memoryview(self._buffer)
        for fill, length, place in zip(
            fills.tolist(), lengths.tolist(), places[firsts].tolist(), strict=True
        ):
            got = log.read_into(view[fill : fill + length], place)
            if got < length:  # the file was deleted, or is cut off
                view[fill + got : fill + length] = bytes(length - got)
        shift = np.repeat(fills - places[firsts], np.diff(np.append(firsts, len(places))))
        positions = places + shift
        block = view[:total]
        bad = self._faults(block, positions, sizes, places)
        if bad.any():
            for number in np.flatnonzero(bad).tolist():
                place = int(places[number])
                reason = log.fault_at(place, check=self._check) or "its queue entry says another size"
                self._damaged(log.run, place, place + int(sizes[number]), reason)
            positions, places = positions[~bad], places[~bad]
        if len(positions):
            yield from self._rows(block, positions, places, log.run)

    # --- both ------------------------------------------------------------------------------------

    @property
    def _check(self) -> int:
        return CHECK_BODY if self._choice.verify_crc else CHECK_NONE

    def _faults(self, block: memoryview, positions: Positions, sizes: Positions, places: Positions) -> Mask:
        return faults(block, positions, sizes, places, check_bodies=self._choice.verify_crc)

    def _rows(
        self, block: memoryview, positions: Positions, places: Positions, run: FileRun
    ) -> Iterator[pa.RecordBatch]:
        """Batches of the records that are wanted. All of them were checked. ``places``: in the log."""
        wanted = self._wanted(block, positions)
        if wanted is not None:
            positions, places = positions[wanted], places[wanted]
        count = len(positions)
        parts = -(-count // ROWS)
        edges = [count * part // parts for part in range(parts + 1)] if parts else [0]
        for low, high in pairwise(edges):
            yield from self._decoded(block, positions[low:high], places[low:high], run)

    def _decoded(
        self, block: memoryview, positions: Positions, places: Positions, run: FileRun
    ) -> Iterator[pa.RecordBatch]:
        if self._choice.report:
            return
        done = 0
        for batch, reason in decode_in_parts(block, positions, self._schema, self._split.broker):
            if reason:  # one record, whose body does not decompress
                place = int(places[done])
                with LogFiles(run) as log:
                    found = log.fault_at(place, check=self._check) or reason
                (size,) = _size_at(block, int(positions[done]))
                self._damaged(run, place, place + size, found)
            else:
                yield batch
            done += len(batch)

    def _wanted(self, block: memoryview, positions: Positions) -> Mask | None:
        choice = self._choice
        mask: Mask | None = None
        timed = choice.after_ms is not None or choice.before_ms is not None
        if self._split.queues is not None and not timed:
            return None
        fixed = fixed_parts(block, positions)
        if timed:
            stored = fixed["store_timestamp"].astype(np.int64)
            for number in np.flatnonzero(fixed["sys_flag"] & IPV6_HOSTS).tolist():
                at = int(positions[number])
                stored[number] = store_timestamp_of(bytes(block[at : at + 76]))
            mask = np.ones(len(positions), bool)
            if choice.after_ms is not None:
                mask &= stored >= choice.after_ms
            if choice.before_ms is not None:
                mask &= stored < choice.before_ms
        if self._split.queues is not None:
            return mask
        # Queues hold only what was chosen. The log holds all, and what a repair put in place of damage.
        rolled_back = fixed["sys_flag"] & 0xC == 0xC
        if not choice.chooses_topics and not rolled_back.any():
            return mask
        schema = pa.schema([("topic", pa.string())])
        topics = decode(block, positions, schema).column(0)
        known = pc.dictionary_encode(topics)
        texts: list[str] = known.dictionary.to_pylist()
        codes = np.asarray(known.indices)
        filler = FILLER_TOPIC.decode()
        named = np.array([choice.has(topic) for topic in texts], bool)[codes]
        fill = np.array([filler.startswith(topic) for topic in texts], bool)[codes] & rolled_back
        keep: Mask = named & ~fill if mask is None else mask & named & ~fill
        return keep

    def _damaged(self, run: FileRun, start: int, end: int, reason: str, kind: str = "") -> None:
        path, offset = run.where(start)
        if not self._choice.skip:
            raise CorruptRecord(
                f"{path} at byte {offset}: {reason} ({end - start} bytes). To read around it: "
                "onCorrupt = skip. To see all of it: report = corrupt. To repair it: kerolox store repair.",
                path=path,
                offset=offset,
            )
        kind = kind or reason
        if self.regions:
            last = self.regions[-1]
            near = kind == NO_FILE or last.offset + last.bytes == offset
            if last.path == path and self._kind == kind and near:
                self.regions[-1] = last._replace(bytes=offset + end - start - last.offset)
                return
        self._kind = kind
        self.regions.append(Region(path, offset, end - start, reason))

    def warn(self) -> None:
        """Log the skipped regions."""
        for region in self.regions[:WARNINGS_MAX]:
            logger.warning(
                "corrupt_region_skipped path=%s offset=%d bytes=%d reason=%r next='kerolox store verify'",
                *region,
            )
        if (more := len(self.regions) - WARNINGS_MAX) > 0:
            logger.warning("corrupt_regions_skipped more=%d next='read with report=corrupt'", more)
