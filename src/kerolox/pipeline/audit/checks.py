"""Audit task for one part of a log: all checks and counts, one block of records at a time.

Only the checksums take a Python step per record, and these are single calls of zlib. The results are small
(sums, runs, faults), except for unique keys (``duplicates.py``) and open transactions. All results go to
files of columns, which are joined and added up later. See :data:`TABLES`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kerolox.clock import SYSTEM_CLOCK
from kerolox.pipeline.audit.copies import RESENT_FROM, makers_of, place_of
from kerolox.pipeline.audit.duplicates import KeyFiles
from kerolox.pipeline.audit.heads import Bytes, Heads, every_byte
from kerolox.pipeline.audit.plan import BLOCK_BYTES, LogSpan, StorePlan, is_users
from kerolox.pipeline.audit.queues import QueueComparison
from kerolox.protocol import properties as names
from kerolox.protocol.flags import TRANSACTION_COMMIT, TRANSACTION_MASK
from kerolox.protocol.record import record_crc_ok
from kerolox.protocol.reserved import DEAD_LETTER_PREFIX, HALF_DONE_TOPIC, HALF_TOPIC, RETRY_PREFIX
from kerolox.spark.records import Numbers, PropertyPairs, checked_text
from kerolox.spark.store.files import LogFiles
from kerolox.spark.store.walking import LogDamage, LogWalk

_STORE = ("store", pa.int32())
_TOPIC = ("topic", pa.string())
_QUEUE = ("queue_id", pa.int32())
_MINUTE = ("minute", pa.int64())  # minutes since 1970
_PLACE = ("physical_offset", pa.int64())
_COUNT = ("messages", pa.int64())

# Tables that tasks write, one file per task and table.
TABLES: dict[str, pa.Schema] = {
    "faults": pa.schema([
        _STORE, ("kind", pa.string()), _PLACE, ("valid_from", pa.int64()), _TOPIC, _QUEUE,
        ("queue_offset", pa.int64()), ("msg_id", pa.string()), ("what", pa.string()),
    ]),
    "volume": pa.schema([
        _STORE, _TOPIC, ("tag", pa.string()), _MINUTE, _COUNT, ("bytes", pa.int64()),
        ("body_bytes", pa.int64()),
    ]),
    "latency": pa.schema([_TOPIC, ("latency_ms", pa.int64()), _COUNT]),
    "latency_by_minute": pa.schema([_MINUTE, ("latency_ms", pa.int64()), _COUNT]),
    "sizes": pa.schema([_TOPIC, ("body_bytes", pa.int64()), _COUNT]),
    "runs": pa.schema([
        _STORE, _TOPIC, _QUEUE, ("first", pa.int64()), ("last", pa.int64()), ("first_place", pa.int64()),
        ("last_place", pa.int64()),
    ]),
    "wrong_entries": pa.schema([
        _STORE, ("kind", pa.string()), _TOPIC, _QUEUE, ("first", pa.int64()), ("last", pa.int64()), _PLACE,
        ("wanted", pa.int64()), ("found", pa.int64()),
    ]),
    "keys": pa.schema([
        _STORE, _TOPIC, ("msg_id", pa.string()), ("reconsume_times", pa.int32()), ("copy_of", pa.string()),
        _QUEUE, ("queue_offset", pa.int64()), _PLACE, ("store_host", pa.int64()), ("stored_ms", pa.int64()),
    ]),
    "copies": pa.schema([_STORE, _TOPIC, ("made_by", pa.string()), _COUNT, _PLACE]),
    "halves": pa.schema([
        _STORE, ("queue_offset", pa.int64()), _PLACE, ("msg_id", pa.string()), ("real_topic", pa.string()),
        ("producer_group", pa.string()), ("checks", pa.string()), ("first_offset", pa.string()),
        ("born_ms", pa.int64()), ("stored_ms", pa.int64()),
    ]),
    "ended_halves": pa.schema([_STORE, ("queue_offset", pa.int64())]),
    "commits": pa.schema([_STORE, ("msg_id", pa.string())]),
    "retries": pa.schema([
        _STORE, ("kind", pa.string()), ("group", pa.string()), _TOPIC, ("tag", pa.string()), _MINUTE, _COUNT,
        ("reconsume_times_max", pa.int32()), _PLACE,
    ]),
    "dead": pa.schema([_STORE, ("group", pa.string()), _TOPIC, ("store_host", pa.int64()), _PLACE]),
    "resent": pa.schema([("store_host", pa.int64()), _PLACE]),  # offsets of dead letters that were sent again
}  # fmt: skip

# One row per part of the log, returned to the driver.
SUMMARY = pa.schema([
    _STORE, ("start", pa.int64()), ("end", pa.int64()), ("stop", pa.string()), _COUNT, ("bytes", pa.int64()),
    ("bodies", pa.int64()), ("entries", pa.int64()), ("first_ms", pa.int64()), ("last_ms", pa.int64()),
    ("went_back", pa.int64()), ("halves", pa.int64()),
])  # fmt: skip

DAY_MS = 86_400_000
APART_MS_MAX = 366 * DAY_MS  # plausible gap between born and stored; a larger one is damage
FIELDS_MAX = 1000  # damaged fields reported per part
TAGS_MAX = 5000  # distinct tags counted per block
OTHER_TAGS = "(other tags)"
# Properties of messages that are stored long after their birth on purpose.
_DELAYED = (
    names.DELAY, names.TIMER_DELAY_S, names.TIMER_DELAY_MS, names.TIMER_DELIVER_MS, names.TIMER_OUT_MS,
    names.REAL_TOPIC, RESENT_FROM,
)  # fmt: skip


class Block(NamedTuple):
    """Records of a block: bytes and fixed fields."""

    bytes: Bytes
    heads: Heads


class PartAudit:
    """Audit of one part of the log of one store."""

    def __init__(
        self,
        store: StorePlan,
        span: LogSpan,
        directory: Path,
        topics: Collection[str] = (),
        block_bytes: int = BLOCK_BYTES,
    ) -> None:
        self._store = store
        self._span = span
        self._directory = directory
        self._topics = frozenset(topics)
        self._queues = QueueComparison(store, self._topics)
        self._found: dict[str, list[pa.Table]] = {name: [] for name in TABLES}
        self._block_bytes = block_bytes
        self._keys = KeyFiles(directory, self._name)
        self._writers: dict[str, pq.ParquetWriter] = {}
        self._sums = dict.fromkeys(("messages", "bytes", "bodies", "went_back", "halves"), 0)
        self._first_ms = self._last_ms = 0
        self._fields = 0  # damaged fields so far
        self._now_ms = SYSTEM_CLOCK.wall_ms()
        self._strange_birth: npt.NDArray[np.bool_] = np.empty(0, np.bool_)  # for the current block

    def run(self) -> pa.RecordBatch:
        """Check the part, write the files, and return one summary row."""
        span = self._span
        with LogFiles(self._store.log) as log:
            walk = LogWalk(log, span.start, span.end, block_bytes=self._block_bytes, open_end=True)
            for found in walk:
                if isinstance(found, LogDamage):
                    self._add("faults", kind=["damaged log"], physical_offset=[found.start],
                              what=[found.what], valid_from=[found.end])  # fmt: skip
                else:
                    self._check(Block(found.bytes, Heads(found.bytes, found.positions)))
        runs, wrong = self._queues.finish()
        self._add("runs", **runs)
        self._add("wrong_entries", **wrong)
        self._write()
        row = {
            "store": self._store.number, "start": span.start, "end": walk.end,
            "stop": walk.stop, "entries": self._queues.right, "first_ms": self._first_ms,
            "last_ms": self._last_ms, **self._sums,
        }  # fmt: skip
        return pa.RecordBatch.from_pylist([row], schema=SUMMARY)

    def _check(self, block: Block) -> None:
        heads = block.heads
        topic, packed = _texts(block)
        pairs = PropertyPairs.of(packed)
        encoded = pc.dictionary_encode(topic)
        codes = np.asarray(encoded.indices).astype(np.int64)
        known: list[str] = encoded.dictionary.to_pylist()
        wanted = np.array([not self._topics or name in self._topics for name in known])[codes]
        self._check_fields(block, topic, pairs, wanted)
        self._note_times(heads)
        self._check_sums(block, topic, pairs, wanted)
        self._queues.check(heads, codes, known, pairs)
        self._sums["messages"] += int(wanted.sum())
        self._sums["bytes"] += int(heads.size[wanted].sum())
        rows = np.flatnonzero(wanted)
        if len(rows):
            self._count(heads, codes, known, pairs, rows)
            self._note_keys(heads, codes, known, topic, pairs, rows)
        self._note_transactions(block, codes, known, pairs)
        self._note_retries(heads, codes, known, pairs)

    # --- checks -------------------------------------------------------------------------------------

    def _check_fields(
        self, block: Block, topic: pa.Array, pairs: PropertyPairs, wanted: npt.NDArray[np.bool_]
    ) -> None:
        """Report fields with values that no broker writes, and keep them out of the counts."""
        heads = block.heads
        stored = heads.stored_ms
        bad = (stored <= 0) | (stored > self._now_ms + DAY_MS)
        self._note_fields("store time", block, np.flatnonzero(bad & wanted), stored, topic, pairs)
        if bad.any():  # replaced by the time of the message before
            good = np.where(bad, -1, np.arange(len(stored)))
            last = np.maximum.accumulate(good)
            first = int(stored[int(np.argmax(~bad))]) if not bad.all() else self._now_ms
            heads.stored_ms = stored = np.where(last < 0, self._last_ms or first, stored[np.maximum(last, 0)])
        born = heads.born_ms
        self._strange_birth = (born <= 0) | (np.abs(stored // 2 - born // 2) > APART_MS_MAX // 2)
        if self._strange_birth.any():  # a delayed, retried or resent message may really be that old
            self._strange_birth &= ~(_has_waited(pairs) & (born > 0) & (born < stored))
        rows = np.flatnonzero(self._strange_birth & wanted)
        self._note_fields("born time", block, rows, born, topic, pairs)
        for name, values in (("queue", heads.queue_id), ("attempts", heads.reconsume_times)):
            self._note_fields(name, block, np.flatnonzero((values < 0) & wanted), values, topic, pairs)

    def _note_fields(
        self,
        name: str,
        block: Block,
        rows: Numbers,
        values: npt.NDArray[Any],
        topic: pa.Array,
        pairs: PropertyPairs,
    ) -> None:
        rows = rows[: max(0, FIELDS_MAX - self._fields)]
        self._fields += len(rows)
        for row in rows.tolist():
            what = f"the {name} in its head is {int(values[row])}"
            if name == "born time":
                what += f", and it was stored at {int(block.heads.stored_ms[row])}"
            self._note_faults("damaged field", block, np.array([row]), topic, pairs, what)

    def _note_times(self, heads: Heads) -> None:
        stored = heads.stored_ms
        reached = np.maximum.accumulate(np.maximum(stored, self._last_ms))
        self._sums["went_back"] += int((stored < reached).sum())
        self._first_ms = self._first_ms or int(stored[0])
        self._last_ms = int(reached[-1])

    def _check_sums(
        self, block: Block, topic: pa.Array, pairs: PropertyPairs, wanted: npt.NDArray[np.bool_]
    ) -> None:
        heads, view = block.heads, block.bytes.data
        filled = np.flatnonzero((heads.body_length > 0) & wanted)
        begins = heads.body_at[filled]
        cuts = map(slice, begins.tolist(), (begins + heads.body_length[filled]).tolist())
        sums = np.fromiter(map(crc32, map(view.__getitem__, cuts)), np.int64, len(filled))
        bad = filled[(sums & 0x7FFF_FFFF) != heads.body_crc[filled]]
        self._sums["bodies"] += len(filled)
        self._note_faults("body checksum", block, bad, topic, pairs, "the body breaks its checksum")
        # Records may have a checksum of the whole record as their last property.
        marks = every_byte(block.bytes, "V9")[np.maximum(heads.end - 20, 0)]
        own = np.flatnonzero((marks == np.void(b"__CRC32#\x01")) & wanted)
        broken = [
            row for row in own.tolist() if not record_crc_ok(view[heads.positions[row] : heads.end[row]])
        ]
        self._note_faults(
            "record checksum", block, np.setdiff1d(broken, bad).astype(np.int64), topic, pairs,
            "the record breaks its own checksum",
        )  # fmt: skip

    def _note_faults(
        self, kind: str, block: Block, rows: Numbers, topic: pa.Array, pairs: PropertyPairs, what: str
    ) -> None:
        if not len(rows):
            return
        heads = block.heads
        self._add(
            "faults", kind=[kind] * len(rows), physical_offset=heads.physical[rows],
            valid_from=heads.physical[rows] + heads.size[rows], topic=topic.take(pa.array(rows)),
            queue_id=heads.queue_id[rows], queue_offset=heads.queue_offset[rows],
            msg_id=pairs.pick(names.UNIQUE_KEY).take(pa.array(rows)), what=[what] * len(rows),
        )  # fmt: skip

    # --- counts -------------------------------------------------------------------------------------

    def _count(
        self, heads: Heads, codes: Numbers, known: list[str], pairs: PropertyPairs, rows: Numbers
    ) -> None:
        tags = pc.dictionary_encode(pc.fill_null(pairs.pick(names.TAGS), ""))
        tag_codes = np.asarray(tags.indices).astype(np.int64)
        tag_names = tags.dictionary
        if len(tag_names) > TAGS_MAX:  # these are identities, not tags: counted together
            tag_names = pa.concat_arrays([tag_names.slice(0, TAGS_MAX), pa.array([OTHER_TAGS])])
            tag_codes = np.minimum(tag_codes, TAGS_MAX)
        minutes = heads.stored_ms // 60_000
        (topic, tag, minute), (count, size, body) = grouped(
            (codes[rows], tag_codes[rows], minutes[rows]), (heads.size[rows], heads.body_length[rows])
        )
        known_topics = pa.array(known, pa.string())
        self._add(
            "volume", topic=known_topics.take(pa.array(topic)), tag=tag_names.take(pa.array(tag)),
            minute=minute, messages=count, bytes=size, body_bytes=body,
        )  # fmt: skip
        (topic, size), (count,) = grouped((codes[rows], heads.body_length[rows]), ())
        self._add("sizes", topic=known_topics.take(pa.array(topic)), body_bytes=size, messages=count)
        direct = np.array([is_users(name) for name in known])[codes]
        direct &= ~self._strange_birth
        direct &= (heads.reconsume_times == 0) & (heads.sys_flag & TRANSACTION_MASK == 0)
        direct &= ~_has_waited(pairs)
        sent = rows[direct[rows]]
        if len(sent):
            latency = heads.stored_ms[sent] - heads.born_ms[sent]
            (topic, value), (count,) = grouped((codes[sent], latency), ())
            self._add(
                "latency", topic=known_topics.take(pa.array(topic)), latency_ms=value, messages=count
            )  # fmt: skip
            (minute, value), (count,) = grouped((minutes[sent], latency), ())
            self._add("latency_by_minute", minute=minute, latency_ms=value, messages=count)

    def _note_keys(
        self,
        heads: Heads,
        codes: Numbers,
        known: list[str],
        topic: pa.Array,
        pairs: PropertyPairs,
        rows: Numbers,
    ) -> None:
        keys = pairs.pick(names.UNIQUE_KEY)
        users = np.array([is_users(name) for name in known])[codes] & np.asarray(keys.is_valid())
        rows = rows[users[rows]]
        if not len(rows):
            return
        at = pa.array(rows)
        topic = topic.take(at)
        made_by, copy_of = makers_of(pairs, at)
        if made_by.null_count < len(rows):
            table = pa.table({"topic": topic, "made_by": made_by, "place": heads.physical[rows]})
            sums = table.filter(pc.is_valid(made_by)).group_by(["topic", "made_by"])
            copies = sums.aggregate([("place", "count"), ("place", "min")])
            self._add(
                "copies", topic=copies["topic"], made_by=copies["made_by"], messages=copies["place_count"],
                physical_offset=copies["place_min"],
            )  # fmt: skip
        found = {
            "topic": topic, "msg_id": keys.take(at), "reconsume_times": heads.reconsume_times[rows],
            "copy_of": copy_of, "queue_id": heads.queue_id[rows], "queue_offset": heads.queue_offset[rows],
            "physical_offset": heads.physical[rows], "store_host": heads.store_host[rows],
            "stored_ms": heads.stored_ms[rows],
        }  # fmt: skip
        self._keys.add(self._table("keys", found))

    def _note_transactions(
        self, block: Block, codes: Numbers, known: list[str], pairs: PropertyPairs
    ) -> None:
        heads = block.heads
        commits = np.flatnonzero(heads.sys_flag & TRANSACTION_MASK == TRANSACTION_COMMIT)
        if len(commits):
            found = pairs.pick(names.UNIQUE_KEY).take(pa.array(commits)).drop_null()
            self._stream("commits", msg_id=found)
        halves = _rows_of(HALF_TOPIC, codes, known)
        self._sums["halves"] += len(halves)
        # The broker has finished the older ones, so most audits have none to check.
        halves = halves[heads.queue_offset[halves] >= self._store.half_progress]
        if len(halves):
            at = pa.array(halves)
            self._stream(
                "halves", queue_offset=heads.queue_offset[halves], physical_offset=heads.physical[halves],
                msg_id=pairs.pick(names.UNIQUE_KEY).take(at),
                real_topic=pairs.pick(names.REAL_TOPIC).take(at),
                producer_group=pairs.pick(names.PRODUCER_GROUP).take(at),
                checks=pairs.pick(names.TRANSACTION_CHECK_TIMES).take(at),
                first_offset=pairs.pick(names.TRANSACTION_PREPARED_QUEUE_OFFSET).take(at),
                born_ms=heads.born_ms[halves], stored_ms=heads.stored_ms[halves],
            )  # fmt: skip
        notes = _rows_of(HALF_DONE_TOPIC, codes, known)
        if len(notes):
            # A body holds many offsets separated by commas (5.x), or one (4.x).
            view = block.bytes.data
            bodies = (
                bytes(view[heads.body_at[row] : heads.body_at[row] + heads.body_length[row]]) for row in notes
            )
            ended = [
                int(word) for body in bodies for word in body.split(b",") if word.isdigit() and len(word) < 19
            ]
            self._stream("ended_halves", queue_offset=np.array(ended, np.int64))

    def _note_retries(self, heads: Heads, codes: Numbers, known: list[str], pairs: PropertyPairs) -> None:
        marks = pairs.pick(RESENT_FROM).drop_null().to_pylist()
        if places := [place for mark in marks if (place := place_of(mark)) is not None]:
            hosts, at = zip(*places, strict=True)
            self._stream("resent", store_host=list(hosts), physical_offset=list(at))
        for code, name in enumerate(known):
            if not name.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX)):
                continue
            kind, prefix = (
                ("retries", RETRY_PREFIX)
                if name.startswith(RETRY_PREFIX)
                else ("dead letters", DEAD_LETTER_PREFIX)
            )
            rows = np.flatnonzero(codes == code)
            at = pa.array(rows)
            table = pa.table({
                "topic": pc.fill_null(pairs.pick(names.RETRY_TOPIC).take(at), name),
                "tag": pc.fill_null(pairs.pick(names.TAGS).take(at), ""),
                "minute": heads.stored_ms[rows] // 60_000,
                "times": heads.reconsume_times[rows],
                "place": heads.physical[rows],
                "host": heads.store_host[rows],
            })  # fmt: skip
            if self._topics and name not in self._topics:
                table = table.filter(pc.is_in(table["topic"], pa.array(sorted(self._topics), pa.string())))
            if kind == "dead letters":
                self._stream(
                    "dead", group=[name.removeprefix(prefix)] * len(table), topic=table["topic"],
                    store_host=table["host"], physical_offset=table["place"],
                )  # fmt: skip
            sums = table.group_by(["topic", "tag", "minute"]).aggregate(
                [("place", "count"), ("times", "max"), ("place", "min")]
            )
            self._add(
                "retries", kind=[kind] * len(sums), group=[name.removeprefix(prefix)] * len(sums),
                topic=sums["topic"], tag=sums["tag"], minute=sums["minute"], messages=sums["place_count"],
                reconsume_times_max=sums["times_max"], physical_offset=sums["place_min"],
            )  # fmt: skip

    # --- results -----------------------------------------------------------------------------------

    def _table(self, name: str, columns: dict[str, Any]) -> pa.Table:
        schema = TABLES[name]
        rows = len(next(iter(columns.values())))
        arrays = []
        for field in schema:
            if field.name == "store":
                arrays.append(pa.repeat(pa.scalar(self._store.number, field.type), rows))
            elif field.name in columns:
                value = columns[field.name]
                if isinstance(value, pa.ChunkedArray):
                    value = value.combine_chunks()
                arrays.append(
                    value.cast(field.type) if isinstance(value, pa.Array) else pa.array(value, field.type)
                )
            else:
                arrays.append(pa.nulls(rows, field.type))
        return pa.Table.from_arrays(arrays, schema=schema)

    def _add(self, name: str, **columns: Any) -> None:
        table = self._table(name, columns)
        if len(table):
            self._found[name].append(table)

    def _stream(self, name: str, **columns: Any) -> None:
        """Write rows at once. Unlike :meth:`_add`, for tables that may have a row per message."""
        table = self._table(name, columns)
        if not len(table):
            return
        writer = self._writers.get(name)
        if writer is None:
            path = self._path(name)
            path.parent.mkdir(parents=True, exist_ok=True)
            few = [field.name for field in TABLES[name] if field.name in _FEW]
            writer = self._writers[name] = pq.ParquetWriter(
                f"{path}.part", TABLES[name], compression="lz4", use_dictionary=few, write_statistics=False
            )
        writer.write_table(table)

    @property
    def _name(self) -> str:
        return f"{self._span.store:05d}-{self._span.start:020d}"

    def _path(self, name: str) -> Path:
        return self._directory / name / f"{self._name}.parquet"

    def _write(self) -> None:
        self._keys.write()
        for name, tables in self._found.items():
            if not tables:
                continue
            table = pa.concat_tables(tables)
            if _SUMS.get(name):
                keys = [field.name for field in table.schema if field.name not in _SUMS[name]]
                sums = table.group_by(keys).aggregate([(column, "sum") for column in _SUMS[name]])
                table = sums.rename_columns([column.removesuffix("_sum") for column in sums.column_names])
                table = table.select(TABLES[name].names).cast(TABLES[name])
            self._stream_table(name, table)
        # Renamed only when complete: a retried task replaces the files of the failed try.
        for name, writer in self._writers.items():
            writer.close()
            os.replace(f"{self._path(name)}.part", self._path(name))

    def _stream_table(self, name: str, table: pa.Table) -> None:
        self._stream(name, **{column: table[column] for column in table.column_names if column != "store"})


_FEW = ("topic", "tag", "kind", "group", "producer_group", "real_topic")  # columns of few distinct values
_SUMS = {
    "volume": ("messages", "bytes", "body_bytes"),
    "latency": ("messages",),
    "latency_by_minute": ("messages",),
    "sizes": ("messages",),
}  # fmt: skip


def _has_waited(pairs: PropertyPairs) -> npt.NDArray[np.bool_]:
    """Return the messages whose properties explain a long time between birth and storage."""
    found = np.zeros(0, np.bool_)
    for name in _DELAYED:
        has = np.asarray(pairs.pick(name).is_valid())
        found = found | has if len(found) else has
    return found


def _texts(block: Block) -> tuple[pa.Array, pa.Array]:
    """Return topics and packed properties of the records."""
    heads = block.heads
    count = len(heads.positions)
    edges = np.empty(4 * count + 1, np.int32)
    for place, edge in enumerate((heads.topic_at, heads.topic_end, heads.topic_end + 2, heads.end)):
        edges[place:-1:4] = edge
    edges[-1] = heads.end[-1]
    data = pa.py_buffer(block.bytes)
    whole = pa.Array.from_buffers(pa.string(), 4 * count, [None, pa.py_buffer(edges), data])
    pick: Callable[[int], pa.Array] = lambda first: checked_text(  # noqa: E731
        whole.take(pa.array(np.arange(first, 4 * count, 4, dtype=np.int32)))
    )
    return pick(0), pick(2)


def _rows_of(topic: str, codes: Numbers, known: list[str]) -> Numbers:
    return np.flatnonzero(codes == known.index(topic)) if topic in known else np.empty(0, np.int64)


def grouped(
    keys: tuple[Numbers, ...], sums: tuple[npt.NDArray[Any], ...]
) -> tuple[list[Numbers], list[Numbers]]:
    """Group rows by number columns; return the distinct groups, and for each its row count and sums."""
    lows = [int(key.min()) for key in keys]
    widths = [int(key.max()) - low + 1 for key, low in zip(keys, lows, strict=True)]
    room = 1
    for width in widths:
        room *= width
    if room >= 1 << 62:  # ranges too wide to pack into one number
        distinct, inverse = np.unique(np.stack(keys), axis=1, return_inverse=True)
        columns = list(distinct)
    else:
        whole = np.zeros(len(keys[0]), np.int64)
        for key, low, width in zip(keys, lows, widths, strict=True):
            whole = whole * width + (key - low)
        packed, inverse = np.unique(whole, return_inverse=True)
        columns = []
        for low, width in zip(reversed(lows), reversed(widths), strict=True):
            columns.insert(0, packed % width + low)
            packed = packed // width
    inverse = inverse.reshape(-1)
    counts = np.bincount(inverse, minlength=len(columns[0])).astype(np.int64)
    totals = [np.bincount(inverse, values, len(counts)).astype(np.int64) for values in sums]
    return columns, [counts, *totals]
