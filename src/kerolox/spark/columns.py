"""Columns of a message table, with their types.

Readers build only the requested columns: a table without properties and message ids costs a fraction of the
full one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import pyarrow as pa

from kerolox.errors import OptionError

TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
MAP: Final = pa.map_(pa.string(), pa.string())

# In table order. All columns are nullable, because Spark compares nullability too.
COLUMNS: Final[dict[str, pa.DataType]] = {
    "topic": pa.string(),
    "broker": pa.string(),
    "queue_id": pa.int32(),
    "queue_offset": pa.int64(),
    "physical_offset": pa.int64(),
    "msg_id": pa.string(),
    "offset_msg_id": pa.string(),
    "keys": pa.string(),
    "tags": pa.string(),
    "body": pa.binary(),
    "properties": MAP,
    "born_timestamp": TIMESTAMP,
    "store_timestamp": TIMESTAMP,
    "born_host": pa.string(),
    "store_host": pa.string(),
    "reconsume_times": pa.int32(),
    "sys_flag": pa.int32(),
    "flag": pa.int32(),
}

# Metadata of a batch of one row: the reason why its body, kept as stored, cannot be decompressed.
NOT_INFLATED: Final = "kerolox.not_inflated"

SPARK_TYPES: Final = {
    pa.string(): "string",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.binary(): "binary",
    MAP: "map<string,string>",
    TIMESTAMP: "timestamp",
}


def not_inflated(batch: pa.RecordBatch) -> str:
    """Return the reason why the body of the batch's only row cannot be decompressed, or an empty text."""
    return ((batch.schema.metadata or {}).get(NOT_INFLATED.encode()) or b"").decode()


def arrow_schema(names: Iterable[str] = COLUMNS, *, properties: str = "map") -> pa.Schema:
    """Return the Arrow schema of these columns. ``properties``: ``map``, or ``string`` for packed text."""
    fields = []
    for name in names:
        kind = COLUMNS.get(name)
        if kind is None:
            raise OptionError("schema", name, f"columns of {', '.join(COLUMNS)}")
        fields.append(
            pa.field(name, pa.string() if name == "properties" and properties == "string" else kind)
        )
    return pa.schema(fields)


def spark_schema(*, properties: str = "map") -> str:
    """Return the schema of the whole table as DDL: ``topic string, broker string, ...``."""
    if properties not in ("map", "string", "none"):
        raise OptionError("properties", properties, "map, string or none")
    names = [name for name in COLUMNS if properties != "none" or name != "properties"]
    schema = arrow_schema(names, properties=properties)
    return ", ".join(f"{field.name} {SPARK_TYPES[field.type]}" for field in schema)
