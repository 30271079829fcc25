"""Users' properties of a row: packed, without names reserved by the system."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from kerolox.client.errors import InvalidMessage
from kerolox.protocol import properties as names
from kerolox.spark.records import Numbers, PropertyPairs

Mask = npt.NDArray[np.bool_]
# Properties that may come as columns of their own.
COLUMN_OF: Final = {names.KEYS: "keys", names.TAGS: "tags", names.SHARDING_KEY: "ordering_key"}


def _constant(value: bytes) -> pa.Scalar:
    """Return a scalar without ``pa.scalar``, which imports pandas: half of the cost of planning a write."""
    ends = pa.py_buffer(np.array([0, len(value)], np.int32))
    return pa.Array.from_buffers(pa.binary(), 1, [None, ends, pa.py_buffer(value)])[0]


NOTHING: Final = _constant(b"")
VALUE_END: Final = _constant(b"\x02")


class OwnProperties(NamedTuple):
    """The user's properties, and the rows that have a delay or an id among them."""

    packed: pa.Array
    delayed: Mask
    named: Mask
    replaces_ids: bool  # some rows had one, which is not kept


def own_properties(column: pa.Array, dropped: set[str], *, once: bool) -> OwnProperties:
    """Pack the user's properties, without reserved names and empty values."""
    if pa.types.is_map(column.type):
        rows, keys, values = np.asarray(column.offsets), column.keys, column.items
    else:
        rows, keys, values = PropertyPairs.of(column.fill_null("")).parts
    encoded = keys.dictionary_encode()
    codes, known = np.asarray(encoded.indices), encoded.dictionary.to_pylist()
    kept = np.array([_keeps(name, dropped, once=once) for name in known], bool)
    keep = kept[codes] if len(codes) else np.zeros(0, bool)
    keep &= np.asarray(pc.fill_null(pc.greater(pc.binary_length(values), 0), fill_value=False))
    if not keep.all():
        chosen = pa.array(np.flatnonzero(keep))
        keys, values = keys.take(chosen), values.take(chosen)
        rows = np.concatenate(([0], np.cumsum(keep)))[rows]
    refuse_separators(values, "properties")
    delayed, named = (
        _having(name, keys, rows) if name in known else np.zeros(len(rows) - 1, bool)
        for name in (names.DELAY, names.UNIQUE_KEY)
    )
    packed = pc.binary_join_element_wise(
        keys.cast(pa.binary()),
        pa.scalar(b"\x01", pa.binary()),
        values.cast(pa.binary()),
        VALUE_END,
        NOTHING,
    )
    ends = np.frombuffer(packed.buffers()[1], np.int32)[packed.offset : packed.offset + len(packed) + 1]
    offsets = pa.py_buffer(ends[rows].astype(np.int32))
    whole = pa.Array.from_buffers(pa.binary(), len(column), [None, offsets, packed.buffers()[2]])
    if column.null_count:
        whole = pc.if_else(column.is_valid(), whole, pa.scalar(None, pa.binary()))
    return OwnProperties(whole, delayed, named, replaces_ids=once and names.UNIQUE_KEY in known)


def _keeps(name: str, dropped: set[str], *, once: bool) -> bool:
    if not name or "\x01" in name or "\x02" in name:
        raise InvalidMessage(f"property name {name!r}: it must not be empty, nor hold \\x01 or \\x02")
    if name in COLUMN_OF:
        return name not in dropped
    if name == names.UNIQUE_KEY:  # as RocketMQ's clients do: an id that is given stays
        return not once
    return name == names.DELAY or name not in names.RESERVED


def refuse_separators(values: pa.Array, column: str) -> None:
    _, _, data = values.buffers()
    if data is None or b"\x02" not in memoryview(data).tobytes():
        return
    if pc.any(pc.match_substring(values, "\x02")).as_py():
        raise InvalidMessage(
            f"a value in column {column} holds \\x02, which separates properties: encode it, "
            "as Base64 for instance"
        )


def _having(name: str, keys: pa.Array, rows: Numbers) -> Mask:
    """Return the rows that have a property; ``rows``: begin of each row's properties."""
    hits = np.flatnonzero(np.asarray(pc.fill_null(pc.equal(keys, name), False)))
    hits = hits[(hits >= rows[0]) & (hits < rows[-1])]  # a slice of a column has the keys of all of it
    found = np.zeros(len(rows) - 1, bool)
    found[np.searchsorted(rows, hits, "right") - 1] = True
    return found
