"""Conversion of rows to bodies: the inverse of :mod:`kerolox.spark.bodies.table`."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final

import pyarrow as pa
from pyspark.sql import types as kinds

from kerolox.errors import KeroloxError, sentences
from kerolox.spark.bodies.declared import Declared
from kerolox.spark.bodies.format import Reasons, SchemaError
from kerolox.spark.bodies.shapes import reason, shown, told
from kerolox.spark.bodies.table import BODY, spark_schema_of

VALUE: Final = "value"  # struct column with all fields, for fields named like columns of messages


class BadRow(KeroloxError):
    """A row that cannot be encoded with the schema of bodies."""

    def __init__(self, row: int, why: str, count: int) -> None:
        more = f" (and {count - 1} more of its batch)" if count > 1 else ""
        super().__init__(
            sentences(
                f"row {row} of its partition does not fit the schema of bodies{more}: {why}",
                "a retry does not help; kerolox.spark.bodies.encoded with onBadBody = column sets "
                "such rows aside",
            )
        )


def check_fields(schema: kinds.StructType, declared: Declared, messages: Collection[str]) -> kinds.StructType:
    """Check the fields of a table and return its schema with ``body`` in their place.

    ``messages``: names of columns of messages. Raises SchemaError for missing or unknown fields, or other
    types.
    """
    expected = spark_schema_of(declared.opened().schema)
    given = schema.fieldNames()
    rest = kinds.StructType([field for field in schema.fields if field.name in messages])
    if BODY in given:
        raise SchemaError("the table has a column body already: drop it, or remove bodyFormat")
    if VALUE in given and isinstance(schema[VALUE].dataType, kinds.StructType):
        fields = {field.name: field.dataType for field in schema[VALUE].dataType.fields}
        others = [name for name in given if name not in messages and name != VALUE]
    else:
        clash = [name for name in expected.fieldNames() if name in messages]
        if clash:
            raise SchemaError(
                f"{', '.join(clash)} is a field of the schema and a column of messages. Give the "
                "fields as a struct "
                f"column named {VALUE}: struct(...) as {VALUE}"
            )
        fields = {field.name: field.dataType for field in schema.fields if field.name not in messages}
        others = []
    unknown = [name for name in fields if name not in expected.fieldNames()] + others
    if unknown:
        raise SchemaError(
            f"column {', '.join(unknown)} is neither one of messages nor in the schema of bodies: "
            f"{expected.simpleString()}"
        )
    shape = declared.opened().shape
    for field in shape.fields:
        kind = fields.get(field.name)
        wanted = expected[field.name].dataType
        if kind is None and field.needed:
            raise SchemaError(
                f"there is no column {field.name} {wanted.simpleString()}, which every body needs"
            )
        if kind is not None and not _becomes(kind, wanted):
            raise SchemaError(
                f"column {field.name} is {kind.simpleString()}, and the schema of bodies says "
                f"{wanted.simpleString()}: cast it"
            )
    return kinds.StructType([*rest.fields, kinds.StructField(BODY, kinds.BinaryType())])


_WHOLE: Final = (kinds.ByteType, kinds.ShortType, kinds.IntegerType, kinds.LongType)


def _becomes(given: kinds.DataType, wanted: kinds.DataType) -> bool:
    """Return True if a column type can be converted; numbers out of range are found row by row."""
    if isinstance(given, kinds.NullType) or given.simpleString() == wanted.simpleString():
        return True
    if isinstance(given, _WHOLE):
        return isinstance(wanted, (*_WHOLE, kinds.DecimalType, kinds.DoubleType))
    return isinstance(given, kinds.FloatType) and isinstance(wanted, kinds.DoubleType)


def encode_batch(
    batch: pa.RecordBatch, declared: Declared, messages: Collection[str]
) -> tuple[pa.RecordBatch, Reasons]:
    """Encode the other columns into ``body``, beside columns of messages; null for rows with a reason."""
    form = declared.opened()
    names = batch.schema.names
    columns = {name: batch.column(name) for name in names}
    kept = [name for name in names if name in messages and name != BODY]
    if VALUE in columns and pa.types.is_struct(columns[VALUE].type):
        value = columns[VALUE]
        columns = {field.name: array for field, array in zip(value.type, value.flatten(), strict=True)}
    reasons: Reasons = {}
    arrays = []
    for field in form.schema:
        column = columns.get(field.name)
        if column is None:
            column = pa.nulls(batch.num_rows, field.type)
        elif column.type != field.type:
            column = _cast(column, field, reasons)
        arrays.append(column)
    table = pa.StructArray.from_arrays(arrays, fields=list(form.schema))
    bodies, unfit = form.encode(table)
    made = pa.RecordBatch.from_arrays([*(batch.column(name) for name in kept), bodies], names=[*kept, BODY])
    return made, {**unfit, **reasons}


def _cast(column: pa.Array, field: pa.Field, reasons: Reasons) -> pa.Array:
    try:
        return column.cast(field.type)
    except pa.ArrowException:
        pieces = []
        for place in range(len(column)):
            try:
                pieces.append(column.slice(place, 1).cast(field.type))
            except pa.ArrowException as error:
                why = f"field {field.name}: {told(error)}; found {shown(column[place].as_py())}"
                reasons.setdefault(place, reason(why))
                pieces.append(pa.nulls(1, field.type))
        return pa.concat_arrays(pieces)


def with_bodies(
    batches: Iterator[pa.RecordBatch], declared: Declared | None, messages: Collection[str]
) -> Iterator[pa.RecordBatch]:
    """Yield batches with encoded bodies. Raises BadRow for the first row that does not fit."""
    if declared is None:
        yield from batches
        return
    row = 0
    for batch in batches:
        made, reasons = encode_batch(batch, declared, messages)
        if reasons:
            place = min(reasons)
            raise BadRow(row + place, reasons[place], len(reasons))
        row += batch.num_rows
        yield made
