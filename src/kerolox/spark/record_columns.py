"""Conversion of records to Arrow columns in one pass, with the compiled core.

The core fills the buffers of Arrow arrays: each needed byte is copied once, and each record is read once.
:mod:`kerolox.spark.records` makes the same columns with numpy, and reports errors in invalid records.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kerolox.compiled import compiled
from kerolox.protocol.compression import decompress
from kerolox.protocol.hosts import host_text
from kerolox.spark.columns import COLUMNS, MAP, PACKED

# Text column: number of nulls, validity bitmap, offsets, bytes.
Texts = tuple[int, bytes | None, bytes, bytes]


def _record_columns(
    block: Any,
    positions: Any,
    kinds: bytes,
    inflate: Callable[[bytes, int], bytes],
    host_text: Callable[[bytes], str],
) -> list[Any] | None:
    """Return the buffers of each column; None for invalid or unusual records, which numpy decodes."""
    return None


record_columns = compiled("record_columns", _record_columns)


def at_once(
    block: bytes | memoryview,
    positions: npt.NDArray[np.int64],
    schema: pa.Schema,
    broker: str | None,
    inflate: Callable[[bytes, int], bytes] = decompress,
) -> pa.RecordBatch | None:
    """Return the columns of ``schema`` for the records at these positions; None if numpy must do it."""
    kinds = bytes([number for field in schema if (number := _number(field)) is not None])
    found = record_columns(block, np.ascontiguousarray(positions, np.int64), kinds, inflate, host_text)
    if found is None:
        return None
    count = len(positions)
    columns = iter(found)
    arrays = [
        pa.repeat(pa.scalar(broker, pa.string()), count)
        if field.name == "broker"
        else _array(field.type, count, next(columns))
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _number(field: pa.Field) -> int | None:
    is_packed = field.name == "properties" and field.type != MAP
    return PACKED if is_packed else COLUMNS[field.name].number


def _array(kind: pa.DataType, count: int, made: Any) -> pa.Array:
    if isinstance(made, bytes):
        return pa.Array.from_buffers(kind, count, [None, pa.py_buffer(made)], 0)
    if kind != MAP:
        return _texts(kind, count, made)
    offsets, keys, values = made
    pairs = len(keys[2]) // 4 - 1
    rows = pa.Array.from_buffers(pa.int32(), count + 1, [None, pa.py_buffer(offsets)], 0)
    return pa.MapArray.from_arrays(rows, _texts(pa.string(), pairs, keys), _texts(pa.string(), pairs, values))


def _texts(kind: pa.DataType, count: int, made: Texts) -> pa.Array:
    nulls, valid, offsets, data = made
    bitmap = None if valid is None else pa.py_buffer(valid)
    return pa.Array.from_buffers(kind, count, [bitmap, pa.py_buffer(offsets), pa.py_buffer(data)], nulls)
