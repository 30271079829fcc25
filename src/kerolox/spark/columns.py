"""Columns of message tables and archives: type, meaning, and how they are read and written.

Readers build only the requested columns: a table without properties and message ids costs a fraction of the
full one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

import pyarrow as pa

from kerolox.errors import OptionError
from kerolox.protocol import properties as names
from kerolox.protocol.hosts import host_text
from kerolox.protocol.message import StoredMessage

TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
MAP: Final = pa.map_(pa.string(), pa.string())

SPARK_TYPES: Final = {
    pa.string(): "string",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.binary(): "binary",
    MAP: "map<string,string>",
    TIMESTAMP: "timestamp",
}

# Number of the properties as packed text in the compiled core.
PACKED: Final = 2


class Column(NamedTuple):
    """Column of message tables and archives."""

    type: pa.DataType
    number: int | None  # number in the compiled core; None: not in the record
    read: Callable[[StoredMessage], object] | None  # value in one record, for those that numpy cannot decode
    doc: str = ""  # meaning, in docs/SPARK.md
    repeats: bool = False  # few distinct values: archives keep them in a dictionary
    skips: bool = False  # archives have statistics, by which readers skip row groups; useless for bodies


def _microseconds(ms: int) -> int:
    """Return microseconds wrapped to 64 bits, for any value in the record."""
    return (ms * 1000 + (1 << 63)) % (1 << 64) - (1 << 63)


_TEXT, _INT, _LONG = pa.string(), pa.int32(), pa.int64()

# In table order. All columns are nullable, because Spark compares nullability too.
COLUMNS: Final[dict[str, Column]] = {
    "topic": Column(_TEXT, 0, lambda message: message.topic),
    "broker": Column(_TEXT, None, None, repeats=True, skips=True),
    "queue_id": Column(_INT, 10, lambda message: message.queue_id, repeats=True, skips=True),
    "queue_offset": Column(_LONG, 11, lambda message: message.queue_offset, "in the queue", skips=True),
    "physical_offset": Column(_LONG, 12, lambda message: message.physical_offset, "in the broker's log"),
    "msg_id": Column(_TEXT, 6, lambda message: message.message_id, "the producer's id"),
    "offset_msg_id": Column(_TEXT, 7, lambda message: message.offset_id, "id made of the place in the log"),
    "keys": Column(
        _TEXT, 4, lambda message: message.properties.get(names.KEYS), "separated by blanks", skips=True
    ),
    "tags": Column(
        _TEXT, 5, lambda message: message.properties.get(names.TAGS), repeats=True, skips=True
    ),
    "body": Column(
        pa.binary(), 1, None,
        "decompressed; null when it cannot be decompressed, or to more than 32 MiB: the log of the task names"
        " the queue, the offset and the reason. With `bodyFormat` such a body does not fit: it fails the"
        " query, or comes with `body_error`",
    ),
    "properties": Column(
        MAP, 3, lambda message: list(message.properties.items()),
        "all of them; with `properties=string` as they are stored, with `none` no such column",
    ),
    "born_timestamp": Column(
        TIMESTAMP, 13, lambda message: _microseconds(message.born_timestamp), "time of the send", skips=True
    ),
    "store_timestamp": Column(
        TIMESTAMP, 14, lambda message: _microseconds(message.store_timestamp), "time of the append",
        skips=True,
    ),
    "born_host": Column(_TEXT, 8, lambda message: host_text(message.born_host), "`ip:port`", repeats=True),
    "store_host": Column(_TEXT, 9, lambda message: host_text(message.store_host), "`ip:port`", repeats=True),
    "reconsume_times": Column(_INT, 15, lambda message: message.reconsume_times, repeats=True),
    "sys_flag": Column(_INT, 16, lambda message: message.sys_flag, repeats=True),
    "flag": Column(_INT, 17, lambda message: message.flag, repeats=True),
}  # fmt: skip

# Metadata of a batch of one row: the reason why its body, kept as stored, cannot be decompressed.
NOT_INFLATED: Final = "kerolox.not_inflated"


def not_inflated(batch: pa.RecordBatch) -> str:
    """Return the reason why the body of the batch's only row cannot be decompressed, or an empty text."""
    return ((batch.schema.metadata or {}).get(NOT_INFLATED.encode()) or b"").decode()


def column_names(properties: str = "map") -> list[str]:
    """Return the columns of the whole table. ``properties``: ``map``, ``string`` or ``none``."""
    return [name for name in COLUMNS if properties != "none" or name != "properties"]


def arrow_schema(names: Iterable[str] | None = None, *, properties: str = "map") -> pa.Schema:
    """Return the Arrow schema of these columns, or of the whole table.

    ``properties``: ``map``, ``string`` for packed text, or ``none``.
    """
    fields = []
    for name in column_names(properties) if names is None else names:
        column = COLUMNS.get(name)
        if column is None:
            raise OptionError("schema", name, f"columns of {', '.join(COLUMNS)}")
        is_packed = name == "properties" and properties == "string"
        fields.append(pa.field(name, pa.string() if is_packed else column.type))
    return pa.schema(fields)


def spark_schema(*, properties: str = "map") -> str:
    """Return the schema of the whole table as DDL: ``topic string, broker string, ...``."""
    if properties not in ("map", "string", "none"):
        raise OptionError("properties", properties, "map, string or none")
    schema = arrow_schema(properties=properties)
    return ", ".join(f"{field.name} {SPARK_TYPES[field.type]}" for field in schema)
