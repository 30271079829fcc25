"""Rows by the million to requests: Arrow columns become bodies of batch requests, without a step per message.

The inverse of :mod:`kerolox.spark.records`. A message in a batch is a fixed head, the body, and the packed
properties; each of these pieces is a column, and joining columns row by row gives all messages of a table as
one column, whose bytes are the bodies of requests: cut where a request is full, they are sent as they lie.

Messages that cannot travel in a batch (delayed ones, those to retry topics, those to be compressed) are cut
out of the same column and sent one by one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from kerolox.client.errors import InvalidMessage
from kerolox.client.messages import Queue
from kerolox.client.names import check_topic_for_sending, with_namespace
from kerolox.protocol import properties as names
from kerolox.protocol.java import java_hash
from kerolox.protocol.limits import MESSAGE_BODY_BYTES_MAX, PROPERTIES_BYTES_MAX
from kerolox.spark.records import Numbers
from kerolox.spark.sink.own_properties import (
    COLUMN_OF,
    NOTHING,
    VALUE_END,
    Mask,
    own_properties,
    refuse_separators,
)
from kerolox.spark.sink.row_columns import LIST, in_one_form
from kerolox.spark.sink.row_ids import RowIds

HEAD: Final = np.dtype(
    [("size", ">i4"), ("magic", ">i4"), ("crc", ">i4"), ("flag", ">i4"), ("body_length", ">i4")]
)
ITEM_OVERHEAD_BYTES: Final = 22
WAIT: Final = b"WAIT\x01true\x02"


log = logging.getLogger(__name__)

Queues = Callable[[str], Sequence[Queue]]  # of a topic, those that can be written


class Rows:
    """The messages of one table, each as it lies in a batch, and where each has to go."""

    def __init__(self, items: pa.Array, lonely: npt.NDArray[np.bool_] | None) -> None:
        self.items = items
        self.lonely = lonely  # messages that cannot travel with others
        self.offsets = np.frombuffer(items.buffers()[1], np.int32)[
            items.offset : items.offset + len(items) + 1
        ]
        self.data = memoryview(items.buffers()[2]) if len(items) else memoryview(b"")

    def slice(self, start: int, stop: int) -> Rows:
        lonely = None if self.lonely is None else self.lonely[start:stop]
        return Rows(self.items.slice(start, stop - start), lonely)

    def take(self, chosen: Numbers) -> Rows:
        lonely = None if self.lonely is None else self.lonely[chosen]
        return Rows(self.items.take(pa.array(chosen)), lonely)


class Properties(NamedTuple):
    """The pieces that packed properties are joined of."""

    pieces: list[pa.Array | pa.Scalar]
    lengths: npt.NDArray[np.int32]
    delayed: Mask  # rows with a delay among the user's properties


class Encoder:
    """Makes messages of the rows of one task."""

    def __init__(
        self,
        ids: RowIds,
        *,
        topic: str | None = None,
        namespace: str = "",
        compress_from: int = 0,
        message_bytes_max: int = MESSAGE_BODY_BYTES_MAX,
        once: bool = False,
    ) -> None:
        """``once``: messages are found again by their ids, so all have ours, and none may be delayed."""
        self.topic = topic
        self._message_bytes_max = message_bytes_max
        self._once = once
        self._has_replaced_ids = False
        self.row = 0  # number of the next row
        self._ids = ids
        self._namespace = namespace
        self._compress_from = compress_from
        self._ending = WAIT
        if namespace:
            self._ending += names.pack({names.INSTANCE_ID: namespace})
        self._wire_topics: dict[str, str] = {}

    # --- messages -------------------------------------------------------------------------------------

    def encode(self, batch: pa.RecordBatch) -> Rows:
        """All messages of a table in one form (:mod:`kerolox.spark.sink.row_columns`), in its order. Raises
        InvalidMessage."""
        count = batch.num_rows
        columns = {name: batch.column(place) for place, name in enumerate(batch.schema.names)}
        body = self._bodies(columns["body"])
        body_lengths = _lengths(body)
        if (body_lengths == 0).any():
            raise InvalidMessage(
                f"row {self._row(int(np.argmin(body_lengths)))} has an empty body; brokers take none without"
            )
        if int(body_lengths.max()) > self._message_bytes_max:
            place = int(np.argmax(body_lengths))
            raise InvalidMessage(
                f"row {self._row(place)} has a body of {body_lengths[place]} bytes; "
                f"at most {self._message_bytes_max} may be in a message (maxMessageSize, of the sink and of "
                "the brokers)"
            )
        properties = self._properties(columns, count)
        pieces, lengths = properties.pieces, properties.lengths
        if int(lengths.max()) > PROPERTIES_BYTES_MAX:
            raise InvalidMessage(
                f"row {self._row(int(np.argmax(lengths)))} has properties of {int(lengths.max())} bytes; "
                f"at most {PROPERTIES_BYTES_MAX} fit into a message"
            )
        heads = np.zeros(count, HEAD)
        heads["size"] = ITEM_OVERHEAD_BYTES + body_lengths + lengths
        heads["body_length"] = body_lengths
        if "flag" in columns:
            heads["flag"] = _integers(columns["flag"], 0)
        items = pc.binary_join_element_wise(
            _fixed(heads.view(np.uint8), HEAD.itemsize),
            body,
            _fixed(lengths.astype(">i2").view(np.uint8), 2),
            *pieces,
            NOTHING,
            null_handling="skip",
        )
        self.row += count
        return Rows(items, self._lonely(columns, body_lengths, properties.delayed))

    def _row(self, place: int) -> int:
        return self.row + place

    def _bodies(self, column: pa.Array) -> pa.Array:
        if column.null_count:
            place = int(np.argmax(np.asarray(column.is_null())))
            raise InvalidMessage(
                f"{column.null_count} of {len(column)} rows have no body, row {self._row(place)} the first: "
                "drop them (where body is not null), or give them one (coalesce)"
            )
        return column

    def _lonely(
        self, columns: dict[str, pa.Array], body_lengths: npt.NDArray[np.int32], delayed: Mask
    ) -> Mask | None:
        lonely = delayed.copy()
        if "delay_level" in columns:
            lonely |= _integers(columns["delay_level"], 0) != 0
        if "deliver_at" in columns:
            lonely |= np.asarray(columns["deliver_at"].is_valid())
        if self._compress_from:
            lonely |= body_lengths >= self._compress_from
        # The largest possible message would not fit into a batch with what a batch adds.
        lonely |= body_lengths > self._message_bytes_max - PROPERTIES_BYTES_MAX - 1024
        return lonely if lonely.any() else None

    # --- properties -----------------------------------------------------------------------------------

    def _properties(self, columns: dict[str, pa.Array], count: int) -> Properties:
        """The pieces the packed properties are joined of, and how long they are together."""
        pieces: list[pa.Array | pa.Scalar] = []
        lengths = np.zeros(count, np.int32)
        delayed = named = np.zeros(count, bool)
        if "properties" in columns:
            told = {name for name in COLUMN_OF if COLUMN_OF[name] in columns}
            own = own_properties(columns["properties"], told, once=self._once)
            if own.replaces_ids and not self._has_replaced_ids:
                self._has_replaced_ids = True
                log.warning(
                    "message_ids_replaced property=%s reason='messages sent once have ids of the sink' "
                    "next='to keep them, write at-least-once, or copy them to a property of another name'",
                    names.UNIQUE_KEY,
                )
            pieces.append(own.packed)
            lengths += _lengths(own.packed)
            delayed, named = own.delayed, own.named
            self._check_delays(columns, delayed)
        for column, name in (
            ("ordering_key", names.SHARDING_KEY),
            ("keys", names.KEYS),
            ("tags", names.TAGS),
        ):
            if column in columns:
                lengths += self._one(name, column, _texts(columns[column]), pieces)
        if "delay_level" in columns or "deliver_at" in columns:
            lengths += self._delays(columns, count, pieces)
        ids = self._ids.column(self.row, count, self._ending)
        made = _fixed(ids.reshape(-1), ids.shape[1])
        if named.any():
            made = pc.if_else(pa.array(named), pa.scalar(self._ending, pa.binary()), made)
        pieces.append(made)
        lengths += _lengths(made)
        return Properties(pieces, lengths, delayed)

    def _check_delays(self, columns: dict[str, pa.Array], delayed: Mask) -> None:
        """A delay among the properties counts as a column does."""
        if not delayed.any():
            return
        row = self._row(int(np.argmax(delayed)))
        if self._once:
            raise InvalidMessage(
                f"row {row} has a property {names.DELAY}: a delayed message is not in its queue before its "
                "time, so nobody can tell whether it was sent. Write it at-least-once"
            )
        given = np.zeros(len(delayed), bool)
        if "delay_level" in columns:
            given |= _integers(columns["delay_level"], 0) != 0
        if "deliver_at" in columns:
            given |= np.asarray(columns["deliver_at"].is_valid())
        if (both := delayed & given).any():
            raise InvalidMessage(
                f"row {self._row(int(np.argmax(both)))} has a property {names.DELAY}, and a delay in a "
                "column of its own; give one of them"
            )

    def _one(
        self, name: str, column: str, values: pa.Array, pieces: list[pa.Array | pa.Scalar]
    ) -> npt.NDArray[np.int32]:
        """One property; null and empty texts are none."""
        refuse_separators(values, column)
        mark = f"{name}\x01".encode()
        lengths = _lengths(values)
        there = lengths > 0
        if there.all():
            pieces += (pa.scalar(mark, pa.binary()), values, VALUE_END)
            return lengths + np.int32(len(mark) + 1)
        values = pc.if_else(pa.array(there), values, pa.scalar(None, pa.binary()))
        pieces.append(pc.binary_join_element_wise(pa.scalar(mark, pa.binary()), values, VALUE_END, NOTHING))
        return np.where(there, lengths + np.int32(len(mark) + 1), 0).astype(np.int32)

    def _delays(
        self, columns: dict[str, pa.Array], count: int, pieces: list[pa.Array | pa.Scalar]
    ) -> npt.NDArray[np.int32]:
        nothing = pa.nulls(count, pa.string())
        levels = at = nothing
        if "delay_level" in columns:
            numbers = _integers(columns["delay_level"], 0)
            levels = pa.array(numbers, mask=numbers == 0).cast(pa.string())
        if "deliver_at" in columns:
            at = pa.array(_milliseconds(columns["deliver_at"])).cast(pa.string())
        both = np.asarray(levels.is_valid()) & np.asarray(at.is_valid())
        if both.any():
            raise InvalidMessage(
                f"row {self._row(int(np.argmax(both)))} has a delay_level and a deliver_at; give one of them"
            )
        lengths = self._one(names.DELAY, "delay_level", _texts(levels), pieces)
        lengths += self._one(names.TIMER_DELIVER_MS, "deliver_at", _texts(at), pieces)
        return lengths

    # --- where to -------------------------------------------------------------------------------------

    def groups(self, batch: pa.RecordBatch, queues: Queues) -> Iterator[tuple[str, Queue | None, Rows]]:
        """The messages of a table by topic and queue, in order within each; None: any queue."""
        batch = in_one_form(batch, self.row)
        rows = self.encode(batch)
        for topic, chosen in self._by_topic(batch):
            wire = self._wire_topic(topic)
            part = rows if chosen is None else rows.take(chosen)
            places = self._queues_of(batch, topic, wire, chosen, queues)
            if places is None:
                yield wire, None, part
                continue
            known = queues(wire)
            order = np.argsort(places, kind="stable")
            part, places = part.take(order), places[order]
            edges = np.flatnonzero(np.diff(places, prepend=places[0] - 1))
            for start, stop in zip(edges, [*edges[1:], len(places)], strict=True):
                place = int(places[start])
                yield wire, None if place < 0 else known[place], part.slice(int(start), int(stop))

    def _wire_topic(self, topic: str) -> str:
        wire = self._wire_topics.get(topic)
        if wire is None:
            check_topic_for_sending(topic)
            wire = self._wire_topics[topic] = with_namespace(self._namespace, topic)
        return wire

    def _by_topic(self, batch: pa.RecordBatch) -> Iterator[tuple[str, Numbers | None]]:
        if self.topic is not None:
            yield self.topic, None
            return
        column = batch.column("topic")
        if column.null_count:
            raise InvalidMessage(
                f"{column.null_count} rows have no topic: fill the column, or give the option topic for all"
            )
        encoded = column.dictionary_encode()
        known = encoded.dictionary.to_pylist()
        if len(known) == 1:
            yield known[0], None
            return
        codes = np.asarray(encoded.indices)
        for code, topic in enumerate(known):
            yield topic, np.flatnonzero(codes == code)

    def _queues_of(
        self, batch: pa.RecordBatch, topic: str, wire: str, chosen: Numbers | None, queues: Queues
    ) -> Numbers | None:
        """For each row the place of its queue among the topic's, -1 for any; None when all are free."""
        present = [name for name in ("ordering_key", "queue_id") if name in batch.schema.names]
        if not present:
            return None
        picked = {
            name: _picked(batch.column(name), chosen)
            for name in ("ordering_key", "queue_id", "broker")
            if name in batch.schema.names
        }
        count = batch.num_rows if chosen is None else len(chosen)
        places = np.full(count, -1, np.int64)
        if "ordering_key" in picked:
            keys = _texts(picked["ordering_key"])
            hashes = np.abs(java_hashes(keys).astype(np.int64)) % len(queues(wire))
            places = np.where(_lengths(keys) > 0, hashes, places)
        if "queue_id" in picked:
            self._given_queues(picked, topic, queues(wire), places)
        return None if (places < 0).all() else places

    def _given_queues(
        self, picked: dict[str, pa.Array], topic: str, known: Sequence[Queue], places: Numbers
    ) -> None:
        ids = _integers(picked["queue_id"], -1)
        brokers = picked.get("broker")
        if brokers is None:
            brokers = pa.nulls(len(ids), pa.string())
        encoded = brokers.dictionary_encode()
        broker_names: list[str | None] = [*encoded.dictionary.to_pylist(), None]
        codes = np.asarray(encoded.indices.fill_null(len(broker_names) - 1)).astype(np.int64)
        both = codes << 32 | (ids & 0xFFFF_FFFF)
        for each in np.unique(both[ids >= 0]):
            broker, queue_id = broker_names[int(each) >> 32], int(each) & 0xFFFF_FFFF
            places[both == each] = _place_of(topic, broker, queue_id, known)


def _place_of(topic: str, broker: str | None, queue_id: int, known: Sequence[Queue]) -> int:
    found = [
        place
        for place, queue in enumerate(known)
        if queue.queue_id == queue_id and broker in (None, queue.broker)
    ]
    if len(found) == 1:
        return found[0]
    shown = ", ".join(f"{queue.broker}:{queue.queue_id}" for queue in known)
    if found:
        raise InvalidMessage(
            f"queue {queue_id} of topic {topic!r} is there on several brokers: give the column broker "
            f"as well. The topic's queues are {shown}"
        )
    at = "" if broker is None else f" at broker {broker!r}"
    raise InvalidMessage(f"topic {topic!r} has no queue {queue_id}{at} that can be written, but {shown}")


# --- columns ------------------------------------------------------------------------------------------


def java_hashes(texts: pa.Array) -> npt.NDArray[np.int32]:
    """Java's string hash of many texts."""
    count = len(texts)
    _, offsets, data = texts.buffers()
    edges = np.frombuffer(offsets, np.int32)[texts.offset : texts.offset + count + 1].astype(np.int64)
    low, high = int(edges[0]), int(edges[-1])
    hashes = np.zeros(count, np.uint32)
    if low == high:
        return hashes.view(np.int32)
    units = np.frombuffer(data, np.uint8)[low:high]
    if (units > 127).any():  # what counts are UTF-16 units, not bytes
        encoded = texts.dictionary_encode()
        known = [0 if text is None else java_hash(text) for text in encoded.dictionary.to_pylist()]
        chosen: Numbers = np.asarray(encoded.indices.fill_null(0))
        return np.array(known, np.int32)[chosen]
    lengths = np.diff(edges)
    powers = np.ones(int(lengths.max()) + 1, np.uint32)
    np.multiply.accumulate(np.full(len(powers) - 1, 31, np.uint32), out=powers[1:])
    left = np.repeat(edges[1:] - low, lengths) - 1 - np.arange(high - low)
    filled = lengths > 0
    hashes[filled] = np.add.reduceat(units * powers[left], (edges[:-1] - low)[filled], dtype=np.uint32)
    return hashes.view(np.int32)


def _fixed(raw: npt.NDArray[np.uint8], width: int) -> pa.Array:
    """Rows of bytes of one width as a column."""
    count = raw.size // width
    offsets = np.arange(0, (count + 1) * width, width, dtype=np.int32)
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(raw)])


def _lengths(column: pa.Array) -> npt.NDArray[np.int32]:
    """Bytes of each; 0 where it is null."""
    lengths = pc.binary_length(column)
    found: npt.NDArray[np.int32] = np.asarray(lengths.fill_null(0) if lengths.null_count else lengths)
    return found


def _texts(column: pa.Array) -> pa.Array:
    """A text column as bytes; a list is one text with blanks between."""
    if pa.types.is_list(column.type):
        if column.flatten().null_count:
            cleaned = [None if row is None else [each for each in row if each] for row in column.to_pylist()]
            column = pa.array(cleaned, LIST)
        column = pc.binary_join(column, " ")
    return column.cast(pa.binary())


def _integers(column: pa.Array, absent: int) -> Numbers:
    return np.asarray(column.fill_null(absent))


def _milliseconds(column: pa.Array) -> pa.Array:
    """Timestamps as numbers, rounded down."""
    return pc.divide(column.cast(pa.int64()), 1000)


def _picked(column: pa.Array, chosen: Numbers | None) -> pa.Array:
    return column if chosen is None else column.take(pa.array(chosen))
