"""Conversion of blocks of stored messages to Arrow columns, without a Python step per message.

A block is the answer to a pull, or a part of a log file. Two techniques make it fast. The fixed fields of
records are copied by one indexing of a view in which an item begins at every byte. And an Arrow text column
is a byte buffer with offsets, so the block itself is the buffer: the edges of all fields of all records form
one list of offsets, and ``take`` selects the needed pieces. With the compiled core all of this is one pass,
several times as fast (:mod:`kerolox.spark.record_columns`).

Records with IPv6 addresses or long topic names have other edges; they, and texts that are not UTF-8, take a
slower path to the same columns.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from kerolox.compiled import compiled
from kerolox.errors import ProtocolError
from kerolox.protocol import properties as names
from kerolox.protocol.compression import decompress
from kerolox.protocol.flags import COMPRESSED
from kerolox.protocol.hosts import host_text
from kerolox.protocol.limits import INFLATED_BLOCK_BYTES_MAX
from kerolox.protocol.record import decode_record
from kerolox.spark.columns import COLUMNS, MAP, TIMESTAMP
from kerolox.spark.record_columns import at_once

Numbers = npt.NDArray[np.int64]
Positions = Numbers
Block = bytes | memoryview
Inflate = Callable[[bytes, int], bytes]  # body and flags → the uncompressed body

MAGIC = 0xDAA320A7  # magic number of records with a topic length of one byte
IPV6_HOSTS = 0x30
FIXED = np.dtype([
    ("size", ">i4"), ("magic", ">u4"), ("body_crc", ">u4"), ("queue_id", ">i4"), ("flag", ">i4"),
    ("queue_offset", ">i8"), ("physical_offset", ">i8"), ("sys_flag", ">i4"), ("born_timestamp", ">i8"),
    ("born_host", "V8"), ("store_timestamp", ">i8"), ("store_host", "V8"), ("reconsume_times", ">i4"),
    ("prepared_offset", ">i8"), ("body_length", ">i4"),
])  # fmt: skip
FIXED_BYTES = FIXED.itemsize
TOPIC_MAX = 127  # lengths are signed
PROPERTIES_MAX = 32767
_HEX = np.frombuffer("".join(f"{byte:02X}" for byte in range(256)).encode(), "V2")
_size = struct.Struct(">i").unpack_from


def positions_of(block: Block, at: int = 0, end: int | None = None) -> Positions:
    """Return the begins of consecutive records in a block, such as a pull's answer."""
    end = len(block) if end is None else end
    starts, stop = record_starts(block, at, end)
    if stop < end:
        size = int.from_bytes(block[stop : stop + 4], signed=True) if stop + 4 <= end else 0
        raise ProtocolError(f"no record begins here: its size would be {size}", at=stop)
    return np.frombuffer(starts, np.int64)


def _record_starts(block: Block, at: int, end: int) -> tuple[bytes, int]:
    """Return the begins of records as a packed array, and the end of the last record."""
    found = []
    while end - at >= 4:
        (size,) = _size(block, at)
        if size <= 0:
            break
        found.append(at)
        at += size
    return np.array(found, np.int64).tobytes(), at


record_starts = compiled("record_starts", _record_starts)


class _BlockTooLarge(ProtocolError):
    """The decompressed bodies of a block do not fit into one batch."""


class DecodedBlock(NamedTuple):
    """Rows of a block. With a reason: one row whose body, kept as stored, cannot be decompressed."""

    batch: pa.RecordBatch
    reason: str


def decode_in_parts(
    block: Block, positions: Positions, schema: pa.Schema, broker: str | None = None
) -> Iterator[DecodedBlock]:
    """Decode in batches, each with at most INFLATED_BLOCK_BYTES_MAX of decompressed bodies."""
    count = len(positions)
    size_bytes = 0

    def inflate(body: bytes, flags: int) -> bytes:
        nonlocal size_bytes
        plain = decompress(body, flags)
        size_bytes += len(plain)
        if size_bytes > INFLATED_BLOCK_BYTES_MAX and count > 1:
            raise _BlockTooLarge(f"bodies of a block inflate to {size_bytes} bytes")
        return plain

    try:
        yield DecodedBlock(decode(block, positions, schema, broker, inflate), "")
        return
    except ProtocolError as error:
        if count == 1:
            if not _is_compressed(block, int(positions[0])):
                raise  # the record itself is broken
            yield DecodedBlock(decode(block, positions, schema, broker, lambda body, _: body), str(error))
            return
    for part in (positions[: count // 2], positions[count // 2 :]):
        yield from decode_in_parts(block, part, schema, broker)


def _is_compressed(block: Block, at: int) -> bool:
    return bool(np.frombuffer(block, FIXED, 1, at)[0]["sys_flag"] & COMPRESSED)


def decode(
    block: Block,
    positions: Positions,
    schema: pa.Schema,
    broker: str | None = None,
    inflate: Inflate = decompress,
) -> pa.RecordBatch:
    """Return the columns of ``schema`` for the records at these ascending positions."""
    if not len(positions):
        return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)
    if len(block) < int(positions[-1]) + FIXED_BYTES:
        raise ProtocolError("the last record is cut off")
    batch = at_once(block, positions, schema, broker, inflate)
    return decode_by_numpy(block, positions, schema, broker, inflate) if batch is None else batch


def decode_by_numpy(
    block: Block,
    positions: Positions,
    schema: pa.Schema,
    broker: str | None,
    inflate: Inflate = decompress,
) -> pa.RecordBatch:
    """Decode at least one record like :func:`decode`, without the compiled core."""
    fixed = _every_byte(block, f"V{FIXED_BYTES}")[positions].view(FIXED)
    usual = (fixed["magic"] == MAGIC) & (fixed["sys_flag"] & IPV6_HOSTS == 0)
    if usual.all():
        return Columns(block, positions, fixed, inflate).batch(schema, broker)
    fast, slow = np.flatnonzero(usual), np.flatnonzero(~usual)
    parts = [_slowly(block, positions[slow], schema, broker, inflate)]
    if len(fast):
        parts.insert(0, Columns(block, positions[fast], fixed[fast], inflate).batch(schema, broker))
    order = np.argsort(np.concatenate([fast, slow]))
    whole = pa.Table.from_batches(parts).combine_chunks().to_batches()[0]
    return whole.take(pa.array(order))


class Columns:
    """Columns of ordinary records, made on demand."""

    def __init__(
        self, block: Block, positions: Positions, fixed: npt.NDArray[np.void], inflate: Inflate = decompress
    ) -> None:
        self._fixed = fixed
        self._inflate = inflate
        self._count = len(positions)
        self._data = pa.py_buffer(block)
        self._positions = positions
        self._block = block
        bytes_ = np.frombuffer(block, np.uint8)
        body = positions + FIXED_BYTES
        body_end = body + fixed["body_length"]
        if (fixed["body_length"] < 0).any() or int(body_end.max()) >= len(block):
            raise ProtocolError("a body reaches beyond the block")
        topic = body_end + 1
        topic_end = topic + bytes_[body_end]
        if int(topic_end.max()) + 2 > len(block):
            raise ProtocolError("a topic reaches beyond the block")
        packed = topic_end + 2
        packed_length = _every_byte(block, ">u2")[topic_end]
        if (bytes_[body_end] > TOPIC_MAX).any() or (packed_length > PROPERTIES_MAX).any():
            raise ProtocolError("a topic or properties have a negative length")
        packed_end = packed + packed_length
        if (packed_end != positions + fixed["size"]).any():
            raise ProtocolError("the lengths of a record do not add up to its size")
        if int(packed_end[-1]) > len(block):
            raise ProtocolError("the last record is cut off")
        edges = np.empty(6 * self._count + 1, np.int32)
        for place, edge in enumerate((body, body_end, topic, topic_end, packed, packed_end)):
            edges[place:-1:6] = edge
        edges[-1] = packed_end[-1]
        self._edges = edges
        self._packed: pa.Array | None = None
        self._cuts: Cuts | None = None
        self._pairs: PropertyPairs | None = None

    def batch(self, schema: pa.Schema, broker: str | None) -> pa.RecordBatch:
        if "properties" in schema.names and schema.field("properties").type == MAP:
            self._pairs = PropertyPairs.of(self.packed)  # first: single properties can then be taken from it
        return pa.RecordBatch.from_arrays([self.column(field, broker) for field in schema], schema=schema)

    def column(self, field: pa.Field, broker: str | None) -> pa.Array:
        name = field.name
        fixed = self._fixed
        if name == "broker":
            return pa.repeat(pa.scalar(broker, pa.string()), self._count)
        if name == "body":
            return self._bodies()
        if name == "topic":
            return checked_text(self._pieces(2, pa.string()))
        if name == "properties":
            return self.packed if field.type == pa.string() else self.pairs.map()
        if name == "keys":
            return self._pick(names.KEYS)
        if name == "tags":
            return self._pick(names.TAGS)
        if name == "msg_id":
            unique = self._pick(names.UNIQUE_KEY)
            return pc.coalesce(unique, self._offset_ids()) if unique.null_count else unique
        if name == "offset_msg_id":
            return self._offset_ids()
        if name in ("born_timestamp", "store_timestamp"):
            return pa.array(fixed[name].astype(np.int64) * 1000).view(TIMESTAMP)
        if name in ("born_host", "store_host"):
            return _hosts(fixed[name])
        return pa.array(fixed[name].astype(np.dtype(field.type.to_pandas_dtype())))

    @property
    def packed(self) -> pa.Array:
        """The packed properties of the records."""
        if self._packed is None:
            self._packed = checked_text(self._pieces(4, pa.string()))
        return self._packed

    @property
    def pairs(self) -> PropertyPairs:
        if self._pairs is None:
            self._pairs = PropertyPairs.of(self.packed)
        return self._pairs

    def _pick(self, name: str) -> pa.Array:
        """One property, null where a message has none."""
        if self._pairs is None:
            self._cuts = self._cuts or Cuts.of(self.packed)
            if self._cuts is not None:
                return self._cuts.pick(name)
        return self.pairs.pick(name)

    def _pieces(self, first: int, kind: pa.DataType) -> pa.Array:
        whole = pa.Array.from_buffers(kind, 6 * self._count, [None, pa.py_buffer(self._edges), self._data])
        return whole.take(pa.array(np.arange(first, 6 * self._count, 6, dtype=np.int32)))

    def _bodies(self) -> pa.Array:
        bodies = self._pieces(0, pa.binary())
        flags = self._fixed["sys_flag"]
        compressed = np.flatnonzero(flags & COMPRESSED)
        if not len(compressed):
            return bodies
        plain: list[bytes] = bodies.to_pylist()
        for place in compressed:
            plain[place] = self._inflate(plain[place], int(flags[place]))
        return pa.array(plain, pa.binary())

    def _offset_ids(self) -> pa.Array:
        """Return offset message ids: store host and physical offset in hexadecimal digits."""
        raw = np.empty((self._count, 16), np.uint8)
        raw[:, :8] = np.ascontiguousarray(self._fixed["store_host"]).view(np.uint8).reshape(-1, 8)
        places = np.ascontiguousarray(self._fixed["physical_offset"])
        raw[:, 8:] = places.view(np.uint8).reshape(-1, 8)
        offsets = np.arange(0, 32 * (self._count + 1), 32, dtype=np.int32)
        digits = pa.py_buffer(_HEX[raw].tobytes())
        return pa.Array.from_buffers(pa.string(), self._count, [None, pa.py_buffer(offsets), digits])


# --- properties ---------------------------------------------------------------------------------


class PropertyPairs:
    """Properties of many messages: all names, all values, and the begin of each message's properties."""

    def __init__(self, rows: npt.NDArray[np.int32], keys: pa.Array, values: pa.Array) -> None:
        self._rows = rows
        self._keys = keys
        self._values = values
        # There are few distinct names, so a search compares dictionary codes.
        encoded = pc.dictionary_encode(keys)
        self._codes = np.asarray(encoded.indices)
        self._names: list[str] = encoded.dictionary.to_pylist()

    @classmethod
    def of(cls, packed: pa.Array) -> PropertyPairs:
        cuts = Cuts.of(packed)
        pairs = None if cuts is None else cuts.pairs()
        return _split_slowly(packed) if pairs is None or pairs.has_repeated() else pairs

    @property
    def parts(self) -> tuple[npt.NDArray[np.int32], pa.Array, pa.Array]:
        """Begins of each message's properties, all names, all values."""
        return self._rows, self._keys, self._values

    def map(self) -> pa.Array:
        return pa.MapArray.from_arrays(pa.array(self._rows), self._keys, self._values)

    def pick(self, name: str) -> pa.Array:
        """One property, null where a message has none."""
        if name not in self._names:
            return pa.nulls(len(self._rows) - 1, pa.string())
        hits = np.flatnonzero(self._codes == self._names.index(name))
        chosen = np.full(len(self._rows) - 1, -1, np.int32)
        chosen[np.searchsorted(self._rows, hits, "right") - 1] = hits
        return self._values.take(pa.array(chosen, mask=chosen < 0))

    def has_repeated(self) -> bool:
        """Return True if a message has a name twice: the last counts, and a Spark map may have only one."""
        if len(self._names) > 62:
            owner = np.repeat(np.arange(len(self._rows) - 1, dtype=np.int64), np.diff(self._rows))
            both = owner * len(self._names) + self._codes
            return len(np.unique(both)) != len(both)
        bits = np.left_shift(1, self._codes, dtype=np.int64)
        filled = self._rows[:-1][self._rows[:-1] < self._rows[1:]]
        if not len(filled):
            return False
        # One bit per name: the sum of a message's bits differs from their union if a name occurs twice.
        return bool((np.add.reduceat(bits, filled) != np.bitwise_or.reduceat(bits, filled)).any())


class Cuts:
    """Positions of names and values in packed properties. Texts are made on demand."""

    def __init__(
        self,
        data: pa.Buffer,
        rows: npt.NDArray[np.int32],
        starts: npt.NDArray[np.int32],
        equals: npt.NDArray[np.int32],
        ends: npt.NDArray[np.int32],
    ) -> None:
        self._data = data
        self._rows = rows
        self._starts = starts
        self._equals = equals
        self._ends = ends

    @classmethod
    def of(cls, packed: pa.Array) -> Cuts | None:
        r"""``name \x01 value \x02 ...``; None when one of them is not like that."""
        count = len(packed)
        _, offsets, data = packed.buffers()
        rows = np.frombuffer(offsets, np.int32)[packed.offset : packed.offset + count + 1]
        low, high = int(rows[0]), int(rows[-1])
        if low == high:
            nothing = np.empty(0, np.int32)
            return cls(data, rows, nothing, nothing, nothing)
        text = np.frombuffer(data, np.uint8)[:high]
        equals = np.flatnonzero(text[low:] == 1).astype(np.int32) + np.int32(low)
        begins = np.zeros(high + 1, bool)
        begins[low + 1 :] = text[low:] == 2  # after every \x02
        begins[rows[:-1][rows[:-1] < rows[1:]]] = True  # and where a message's properties begin
        begins[high] = False
        starts = np.flatnonzero(begins).astype(np.int32)
        if len(starts) != len(equals) or (equals < starts).any() or (equals[:-1] >= starts[1:]).any():
            return None
        ends = np.append(starts[1:], np.int32(high)).astype(np.int32)
        ends -= text[ends - 1] == 2
        if (ends <= equals + 1).any() or (equals == starts).any():
            return None  # an empty name or value, which readers drop
        return cls(data, rows, starts, equals, ends)

    def pick(self, name: str) -> pa.Array:
        """One property, null where a message has none. Of several of one name the last counts."""
        count = len(self._rows) - 1
        raw = name.encode()
        hits = np.flatnonzero(self._equals - self._starts == len(raw))
        if len(hits):
            hits = hits[_every_byte(self._data, f"S{len(raw)}")[self._starts[hits]] == raw]
        if not len(hits):
            return pa.nulls(count, pa.string())
        edges = np.empty(2 * len(hits) + 1, np.int32)
        edges[:-1:2] = self._equals[hits] + 1
        edges[1::2] = self._ends[hits]
        edges[-1] = edges[-2]
        whole = pa.Array.from_buffers(pa.string(), 2 * len(hits), [None, pa.py_buffer(edges), self._data])
        chosen = np.full(count, -1, np.int32)
        owners = np.searchsorted(self._rows, self._starts[hits], "right") - 1
        chosen[owners] = np.arange(0, 2 * len(hits), 2, dtype=np.int32)
        missing = chosen < 0
        return whole.take(pa.array(chosen, mask=missing) if missing.any() else pa.array(chosen))

    def pairs(self) -> PropertyPairs:
        """Return all properties."""
        count = len(self._starts)
        if not count:
            nothing = pa.array([], pa.string())
            return PropertyPairs(np.zeros(len(self._rows), np.int32), nothing, nothing)
        edges = np.empty(4 * count + 1, np.int32)
        for place, edge in enumerate((self._starts, self._equals, self._equals + 1, self._ends)):
            edges[place:-1:4] = edge
        edges[-1] = self._ends[-1]
        whole = pa.Array.from_buffers(pa.string(), 4 * count, [None, pa.py_buffer(edges), self._data])
        keys, values = (
            whole.take(pa.array(np.arange(first, 4 * count, 4, dtype=np.int32))) for first in (0, 2)
        )
        return PropertyPairs(np.searchsorted(self._starts, self._rows).astype(np.int32), keys, values)


def _split_slowly(packed: pa.Array) -> PropertyPairs:
    rows = [0]
    keys: list[str] = []
    values: list[str] = []
    for text in packed.to_pylist():
        table = names.unpack(text.encode())
        keys += table.keys()
        values += table.values()
        rows.append(len(keys))
    return PropertyPairs(np.array(rows, np.int32), pa.array(keys, pa.string()), pa.array(values, pa.string()))


# --- hosts, texts, and the slow way -------------------------------------------------------------------


def _every_byte(block: Block, kind: str) -> npt.NDArray[np.void]:
    """Return a view of the block with an item at every byte. Only index it: other operations copy it."""
    dtype = np.dtype(kind)
    return np.ndarray((len(block) - dtype.itemsize + 1,), dtype, block, strides=(1,))


def _hosts(column: npt.NDArray[np.void]) -> pa.Array:
    known, place = np.unique(np.ascontiguousarray(column).view(">u8"), return_inverse=True)
    texts = pa.array([host_text(int(host).to_bytes(8, "big")) for host in known], pa.string())
    return texts.take(pa.array(place.reshape(-1)))


def checked_text(column: pa.Array) -> pa.Array:
    """Return a valid text column: replace bytes that are not UTF-8."""
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        raw = column.cast(pa.binary()).to_pylist()
        return pa.array([text.decode("utf-8", "replace") for text in raw], pa.string())
    return column


def _slowly(
    block: Block, positions: Positions, schema: pa.Schema, broker: str | None, inflate: Inflate
) -> pa.RecordBatch:
    data = bytes(block)
    messages = [decode_record(data, int(at)) for at in positions]
    arrays = []
    for field in schema:
        if field.name == "broker":
            values: Sequence[object] = [broker] * len(messages)
        elif field.name == "properties" and field.type != MAP:
            values = [message.packed_properties.decode("utf-8", "replace") for message in messages]
        elif field.name == "body":
            values = [
                inflate(message.body, message.sys_flag) if message.sys_flag & COMPRESSED else message.body
                for message in messages
            ]
        else:
            read = COLUMNS[field.name].read
            assert read is not None
            values = [read(message) for message in messages]
        arrays.append(pa.array(values, field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
