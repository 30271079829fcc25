"""Columns of rows to be sent, converted to one Arrow type each.

The same table comes in many forms: ``split(...)`` gives lists whose elements are never null, ``array()``
lists of nothing, a setting of Spark texts with 64-bit lengths, a literal NULL a column without a type. All
are brought into one form here, so that what follows knows that one only.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from kerolox.client.errors import InvalidMessage
from kerolox.spark.columns import MAP, TIMESTAMP

LIST: Final = pa.list_(pa.string())

INT_MAX: Final = (1 << 31) - 1
_TEXT: Final = pa.string()
_INT: Final = pa.int64()


class RowColumn(NamedTuple):
    """Column of a table that is sent."""

    types: str  # accepted types, for people
    forms: tuple[pa.DataType, ...]  # types of its values here; the first also for columns of nulls
    doc: str = ""  # meaning, in docs/SPARK.md
    range: tuple[int, int] | None = None  # of numbers; a larger one would be truncated silently


COLUMNS: Final[dict[str, RowColumn]] = {
    "body": RowColumn("binary or string", (pa.binary(),), "neither null nor empty"),
    "topic": RowColumn("string", (_TEXT,), "if the option `topic` is not given"),
    "tags": RowColumn("string", (_TEXT,), "one"),
    "keys": RowColumn("string or array<string>", (_TEXT, LIST)),
    "properties": RowColumn(
        "map<string,string>, or a packed string", (_TEXT, MAP),
        "packed as the source gives it with `properties=string`",
    ),
    "ordering_key": RowColumn(
        "string", (_TEXT,),
        "rows with the same go to the same queue, in their order within a partition of the table",
    ),
    "queue_id": RowColumn("int", (_INT,), "a certain queue", (0, INT_MAX)),
    "broker": RowColumn("string", (_TEXT,), "the broker of that queue"),
    "delay_level": RowColumn("int", (_INT,), "delivered later", (0, INT_MAX)),
    "deliver_at": RowColumn("timestamp", (TIMESTAMP,), "delivered then"),
    "flag": RowColumn("int", (_INT,), "", (-INT_MAX - 1, INT_MAX)),
}  # fmt: skip


def in_one_form(batch: pa.RecordBatch, first_row: int = 0) -> pa.RecordBatch:
    """Return the batch with every column in its type. Columns of that type are not copied.

    ``first_row``: the number of the batch's first row, for errors. Raises InvalidMessage for a number that
    does not fit into a message.
    """
    arrays = []
    for field, column in zip(batch.schema, batch.columns, strict=True):
        arrays.append(_formed(column, COLUMNS[field.name].forms))
        if COLUMNS[field.name].range is not None:
            _check_range(field.name, arrays[-1], first_row)
    return pa.RecordBatch.from_arrays(arrays, names=batch.schema.names)


def _formed(column: pa.Array, forms: tuple[pa.DataType, ...]) -> pa.Array:
    nested = pa.types.is_nested(column.type)
    form = next((each for each in forms if pa.types.is_nested(each) == nested), forms[0])
    if column.type == form:
        return column
    # Times finer than microseconds are truncated: messages cannot hold them.
    return column.cast(form, safe=not pa.types.is_timestamp(form))


def _check_range(name: str, column: pa.Array, first_row: int) -> None:
    low, high = COLUMNS[name].range or (0, 0)
    numbers = np.asarray(column.fill_null(0))
    wrong = (numbers < low) | (numbers > high)
    if wrong.any():
        place = int(np.argmax(wrong))
        raise InvalidMessage(
            f"row {first_row + place}: {name} {numbers[place]}; expected {low} to {high}, or null for none"
        )
