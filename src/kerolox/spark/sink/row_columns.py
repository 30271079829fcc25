"""Columns of rows to be sent, converted to one Arrow type each.

The same table comes in many forms: ``split(...)`` gives lists whose elements are never null, ``array()``
lists of nothing, a setting of Spark texts with 64-bit lengths, a literal NULL a column without a type. All
are brought into one form here, so that what follows knows that one only.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa

from kerolox.client.errors import InvalidMessage
from kerolox.spark.columns import MAP, TIMESTAMP

LIST: Final = pa.list_(pa.string())

# Accepted types of each column; the first also for columns of nulls.
FORMS: Final[dict[str, tuple[pa.DataType, ...]]] = {
    "body": (pa.binary(),),
    "topic": (pa.string(),),
    "tags": (pa.string(),),
    "keys": (pa.string(), LIST),
    "properties": (pa.string(), MAP),
    "ordering_key": (pa.string(),),
    "queue_id": (pa.int64(),),
    "broker": (pa.string(),),
    "delay_level": (pa.int64(),),
    "deliver_at": (TIMESTAMP,),
    "flag": (pa.int64(),),
}
INT_MAX: Final = (1 << 31) - 1
# Ranges of a message's numbers; a larger one would be truncated silently.
RANGES: Final = {
    "queue_id": (0, INT_MAX),
    "delay_level": (0, INT_MAX),
    "flag": (-INT_MAX - 1, INT_MAX),
}


def in_one_form(batch: pa.RecordBatch, first_row: int = 0) -> pa.RecordBatch:
    """Return the batch with every column in its type. Columns of that type are not copied.

    ``first_row``: the number of the batch's first row, for errors. Raises InvalidMessage for a number that
    does not fit into a message.
    """
    arrays = []
    for field, column in zip(batch.schema, batch.columns, strict=True):
        arrays.append(_formed(column, FORMS[field.name]))
        if field.name in RANGES:
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
    low, high = RANGES[name]
    numbers = np.asarray(column.fill_null(0))
    wrong = (numbers < low) | (numbers > high)
    if wrong.any():
        place = int(np.argmax(wrong))
        raise InvalidMessage(
            f"row {first_row + place}: {name} {numbers[place]}; expected {low} to {high}, or null for none"
        )
