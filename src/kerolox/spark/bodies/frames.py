"""Decoding and encoding of bodies in any DataFrame: of archives, other sources, or steps of a query."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql import functions
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from kerolox.errors import OptionError
from kerolox.spark.bodies.declared import read_declared
from kerolox.spark.bodies.options import COLUMN, FAIL, OF_SINKS, OF_SOURCES
from kerolox.spark.bodies.rows import BadRow, check_fields, encode_batch
from kerolox.spark.bodies.table import (
    BODY,
    ERROR,
    PLACE,
    BadBody,
    fields_of,
    only_bad,
    place_of,
    reasons_array,
    spark_schema_of,
    struct_of,
)
from kerolox.spark.option_table import Option, OptionTable, Values, one_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

DECODED: Final = OptionTable("kerolox.spark.bodies.decoded", *OF_SOURCES)
ENCODED: Final = OptionTable(
    "kerolox.spark.bodies.encoded",
    *OF_SINKS,
    Option("onBadBody", one_of(FAIL, COLUMN), f"{FAIL} or {COLUMN}", "a row that does not fit", default=FAIL),
)
# Columns of messages that the sink takes beside the body.
MESSAGES: Final = (
    "topic", "tags", "keys", "properties", "ordering_key", "queue_id", "broker", "delay_level",
    "deliver_at", "flag",
)  # fmt: skip


def decoded(frame: DataFrame, column: str = BODY, **options: str) -> DataFrame:
    """Decode a binary column of a frame: return its other columns, then those of the schema.

    ``options`` are those of the source: ``bodyFormat``, ``bodySchema``, ``schemaRegistry`` and so on. With
    ``onBadBody="column"`` come the bytes of rows that do not fit, under the column's name, and
    ``body_error``.
    """
    declared = read_declared(_given(DECODED.parse(options)), ())
    if column not in frame.columns or not isinstance(frame.schema[column].dataType, BinaryType):
        raise OptionError("column", column, f"a binary column of {', '.join(frame.columns)}")
    others = [name for name in frame.columns if name != column]
    fields = spark_schema_of(fields_of(declared)).fields
    kept = [StructField(column, BinaryType()), StructField(ERROR, StringType())] if declared.keep_bad else []
    taken = [field.name for field in fields if field.name in others or field.name in (column, ERROR)]
    if taken:
        raise OptionError(
            "bodySchema",
            ", ".join(taken),
            "names that are not in the frame; drop or rename its columns first",
        )
    schema = StructType([*(frame.schema[name] for name in others), *fields, *kept])

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        form = declared.opened()
        for batch in batches:
            bodies = batch.column(column)
            found = form.decode(bodies.cast(pa.binary()))
            if found.reasons and not declared.keep_bad:
                place = min(found.reasons)
                raise BadBody(place_of(batch, place), found.reasons[place], len(found.reasons))
            columns = found.columns
            if declared.into:
                columns = [struct_of(columns, form.schema, found.reasons)]
            arrays = [*(batch.column(name) for name in others), *columns]
            names = [*others, *fields_of(declared).names]
            if declared.keep_bad:
                arrays += [only_bad(bodies, found.reasons), reasons_array(found.reasons, len(bodies))]
                names += [column, ERROR]
            yield pa.RecordBatch.from_arrays(arrays, names=names)

    return frame.mapInArrow(work, schema)


def encoded(frame: DataFrame, **options: str) -> DataFrame:
    """Encode all columns that are not columns of messages (or the struct column ``value``) into ``body``.

    ``options`` are those of the sink, and ``onBadBody``: with ``column`` a row that does not fit has no
    body, and the reason in ``body_error``.
    """
    values = ENCODED.parse(options)
    keep_bad = values["onBadBody"] == COLUMN
    declared = read_declared(_given(values), (), sink=True)
    schema = check_fields(frame.schema, declared, MESSAGES)
    if keep_bad:
        schema = schema.add(ERROR, StringType())

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            made, reasons = encode_batch(batch, declared, MESSAGES)
            if reasons and not keep_bad:
                place = min(reasons)
                raise BadRow(place, reasons[place], len(reasons))
            yield made.append_column(ERROR, reasons_array(reasons, batch.num_rows)) if keep_bad else made

    return frame.mapInArrow(work, schema)


def set_aside(batch: DataFrame, number: int, folder: str) -> DataFrame:
    """Write the rows with a ``body_error`` as Parquet below the folder, and return the others.

    For ``foreachBatch``. The files have the queue and offset, the reason and the bytes. Each batch of a
    query has its own folder, which a repeated batch overwrites: a bad row is stored once.
    """
    query = batch.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId") or "batch"
    bad = batch.where(functions.col(ERROR).isNotNull())
    if not bad.isEmpty():
        names = [name for name in (*PLACE, "store_timestamp", ERROR, BODY) if name in batch.columns]
        bad.select(*names).write.mode("overwrite").parquet(
            f"{folder.rstrip('/')}/query={query}/batch={number}"
        )
    return batch.where(functions.col(ERROR).isNull()).drop(ERROR, BODY)


def _given(values: Values) -> Values:
    if values["bodyFormat"] is None:
        raise OptionError("bodyFormat", None, "json, avro, protobuf or text")
    return values
