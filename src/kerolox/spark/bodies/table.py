"""Message tables with bodies as columns: their schema, and conversion of batches of messages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from kerolox.errors import KeroloxError, OptionError, sentences
from kerolox.spark.bodies.declared import Declared
from kerolox.spark.bodies.format import Decoded
from kerolox.spark.columns import COLUMNS, arrow_schema, column_names, not_inflated

BODY: Final = "body"
ERROR: Final = "body_error"
PLACE: Final = ("topic", "broker", "queue_id", "queue_offset")  # columns that identify a message


class BadBody(KeroloxError):
    """A body that does not fit its schema, in a query without a column for it."""

    def __init__(self, place: str, reason: str, count: int) -> None:
        more = f" (and {count - 1} more of this batch)" if count > 1 else ""
        super().__init__(
            sentences(
                f"the body of {place} does not fit{more}: {reason}",
                "set onBadBody to column to keep such rows, with the reason in body_error and the "
                "bytes in body; "
                "a retry does not help",
            )
        )


@dataclass(frozen=True)
class BodyTable:
    """Table of a query with decoded bodies."""

    declared: Declared
    columns: pa.Schema  # all of it, in order
    needed: pa.Schema  # columns of the messages it is made of

    def of(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Convert messages with the needed columns to rows. Raises BadBody."""
        bodies = batch.column(BODY)
        form = self.declared.opened()
        into = self.declared.into
        names = None if into else [name for name in self.columns.names if name not in COLUMNS]
        reason = not_inflated(batch)
        decoded = (
            _nulls(form.decode(bodies.slice(0, 0), names), reason) if reason else form.decode(bodies, names)
        )
        if decoded.reasons and not self.declared.keep_bad:
            place = min(decoded.reasons)
            raise BadBody(place_of(batch, place), decoded.reasons[place], len(decoded.reasons))
        made: dict[str, pa.Array] = {}
        if into:
            made[into] = struct_of(decoded.columns, form.schema, decoded.reasons)
        else:
            kept = [field.name for field in form.schema if field.name in (names or ())]
            made = dict(zip(kept, decoded.columns, strict=True))
        for name in self.columns.names:
            if name == ERROR:
                made[name] = reasons_array(decoded.reasons, len(bodies))
            elif name == BODY:  # rows that fit have it as columns
                made[name] = only_bad(bodies, decoded.reasons)
            elif name in COLUMNS:
                made[name] = batch.column(name)
        return pa.RecordBatch.from_arrays([made[name] for name in self.columns.names], schema=self.columns)

    def of_all(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield self.of(batch)


def whole_schema(declared: Declared, *, properties: str = "map") -> StructType:
    """Return the schema of the table with all columns."""
    names = column_names(properties)
    if not declared.keep_bad:
        names.remove(BODY)
    return chosen_schema(declared, names, properties="map" if properties == "none" else properties)


def chosen_schema(declared: Declared, names: Sequence[str], *, properties: str = "map") -> StructType:
    """Return the schema with these columns of messages and all columns of bodies.

    If bad rows are kept, it also has their place and bytes.
    """
    names = [*names, *(name for name in (*PLACE, BODY) if declared.keep_bad and name not in names)]
    return spark_schema_of(pa.schema([*arrow_schema(names, properties=properties), *body_columns(declared)]))


def spark_schema_of(schema: pa.Schema) -> StructType:
    return from_arrow_schema(schema, prefer_timestamp_ntz=True)


def fields_of(declared: Declared) -> pa.Schema:
    """Return the columns of decoded bodies."""
    schema = declared.opened().schema
    return pa.schema([pa.field(declared.into, pa.struct(list(schema)))]) if declared.into else schema


def body_columns(declared: Declared) -> pa.Schema:
    """Return the columns of decoded bodies and of reasons. Raises OptionError for names already in use."""
    fields = list(fields_of(declared))
    taken: dict[str, str] = {name.lower(): "a column of messages" for name in (*COLUMNS, ERROR)}
    for field in fields:
        if field.name.lower() in taken:
            raise OptionError(
                "bodyInto" if declared.into else "bodySchema",
                field.name,
                f"other names: this is {taken[field.name.lower()]}. bodyInto = value, for "
                "example, puts all fields of "
                "the schema into one struct column",
            )
        taken[field.name.lower()] = "a field of the schema already (Spark ignores case)"
    if declared.keep_bad:
        fields.append(pa.field(ERROR, pa.string()))
    return pa.schema(fields)


def message_part(schema: StructType) -> StructType:
    """Return the columns of messages in a requested schema."""
    return StructType([field for field in schema.fields if field.name in COLUMNS])


def body_table(declared: Declared, schema: StructType, messages: pa.Schema) -> BodyTable:
    """Return the requested table. ``messages``: its columns of messages, already checked."""
    ours = body_columns(declared)
    expected = {field.name: field.dataType for field in spark_schema_of(ours).fields}
    fields: list[pa.Field] = []
    for field in schema.fields:
        if field.name in messages.names:
            fields.append(messages.field(field.name))
            continue
        kind = expected.get(field.name)
        if kind is None:
            shown = ", ".join(f"{name} {kind.simpleString()}" for name, kind in expected.items())
            raise OptionError(
                "schema", field.name, f"columns of messages, or of the schema of bodies: {shown}"
            )
        if field.dataType != kind or not field.nullable:
            found = f"{field.name} {field.dataType.simpleString()}{'' if field.nullable else ' NOT NULL'}"
            raise OptionError("schema", found, f"{field.name} {kind.simpleString()}, which may be null")
        fields.append(ours.field(field.name))
    columns = pa.schema(fields)
    if declared.keep_bad and ERROR not in columns.names:
        raise OptionError(
            "onBadBody",
            "column",
            f"the column {ERROR} in the requested schema: rows that do not fit would be nulls",
        )
    if BODY in columns.names and not declared.keep_bad:
        raise OptionError(
            "schema",
            BODY,
            "no such column with bodyFormat: it holds the bytes of rows that do not fit, with "
            "onBadBody = column",
        )
    needed = list(messages.names)
    needed += [name for name in (BODY, *(() if declared.keep_bad else PLACE)) if name not in needed]
    properties = (
        "string"
        if "properties" in messages.names and messages.field("properties").type == pa.string()
        else "map"
    )
    return BodyTable(declared, columns, arrow_schema(needed, properties=properties))


def _nulls(empty: Decoded, reason: str) -> Decoded:
    """Return one row of nulls with a reason."""
    return Decoded([pa.nulls(1, column.type) for column in empty.columns], {0: reason})


# --- rows ----------------------------------------------------------------------------------------------


def reasons_array(reasons: dict[int, str], count: int) -> pa.Array:
    if not reasons:
        return pa.nulls(count, pa.string())
    texts: list[str | None] = [None] * count
    for place, text in reasons.items():
        texts[place] = text
    return pa.array(texts, pa.string())


def only_bad(bodies: pa.Array, reasons: dict[int, str]) -> pa.Array:
    """Return the bodies of rows with reasons, null for others."""
    if not reasons:
        return pa.nulls(len(bodies), pa.binary())
    places = np.arange(len(bodies))
    good = np.ones(len(bodies), bool)
    good[list(reasons)] = False
    return bodies.take(pa.array(places, mask=good))


def struct_of(columns: Sequence[pa.Array], schema: pa.Schema, reasons: dict[int, str]) -> pa.Array:
    mask = None
    if reasons:
        missing = np.zeros(len(columns[0]), bool)
        missing[list(reasons)] = True
        mask = pa.array(missing)
    return pa.StructArray.from_arrays(columns, fields=list(schema), mask=mask)


def place_of(batch: pa.RecordBatch, row: int) -> str:
    """Return topic, queue and offset of a row as text, as far as the table has them."""
    found: dict[str, Any] = {
        name: batch.column(name)[row].as_py() for name in PLACE if name in batch.schema.names
    }
    if not found:
        return f"row {row} of a batch"
    return "the message at " + ", ".join(f"{name} {value}" for name, value in found.items())
