"""The format ``rocketmq-store``: store directories read as a table, without a broker.

A directory may be Apache RocketMQ's or ours, a copy or one that is in use. Nothing is locked or written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from kerolox.errors import OptionError
from kerolox.spark.bodies.options import find_declared
from kerolox.spark.columns import spark_schema
from kerolox.spark.option_table import Values
from kerolox.spark.short_errors import RefusedStream, tells_shortly
from kerolox.spark.store.options import parse, read_choice
from kerolox.spark.store.plan import Split, plan

if TYPE_CHECKING:
    from kerolox.spark.bodies.table import BodyTable
    from kerolox.spark.source.reading import MessageTable


@tells_shortly
class RocketMQStore(DataSource):
    """``spark.read.format("rocketmq-store").load("/data/broker-a/store")``."""

    @classmethod
    def name(cls) -> str:
        return "rocketmq-store"

    def schema(self) -> str | StructType:
        from kerolox.spark.store.reading import REPORT_SCHEMA

        values = parse(self.options)
        if values["report"]:
            return REPORT_SCHEMA
        bodies = find_declared(values, values["topic"] or ())
        if bodies is None:
            return spark_schema(properties=values["properties"])
        from kerolox.spark.bodies.table import whole_schema

        return whole_schema(bodies, properties=values["properties"])

    def reader(self, schema: StructType) -> DataSourceReader:
        return StoreReader(dict(self.options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return RefusedStream(
            OptionError(
                "format",
                self.name(),
                "batch reading only: a stream comes from the broker, by the format rocketmq",
            )
        )


class StorePiece(InputPartition):
    """The piece of a store that one task reads."""

    def __init__(self, split: Split) -> None:
        super().__init__(0)
        self.split = split


@tells_shortly
class StoreReader(DataSourceReader):
    """Plans once for a DataFrame: a second action on it gives the same rows, also while the store grows."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._values = parse(options)
        self._choice = read_choice(self._values)
        self._table = _table(schema, self._values, report=self._choice.report)

    def partitions(self) -> Sequence[InputPartition]:
        return [StorePiece(split) for split in plan(self._values)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from kerolox.spark.store.reading import read_split

        if isinstance(partition, StorePiece):  # Spark makes one up where there is none
            yield from self._table.of_all(read_split(partition.split, self._choice, self._table.needed))


def _table(schema: StructType, values: Values, *, report: bool) -> MessageTable | BodyTable:
    from kerolox.spark.source.reading import MessageTable, chosen_table
    from kerolox.spark.store.reading import REPORT, REPORT_SCHEMA

    if not report:
        return chosen_table(schema, find_declared(values, values["topic"] or ()))
    found = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in schema.fields)
    if found != REPORT_SCHEMA:
        raise OptionError("schema", found, f"{REPORT_SCHEMA}, or none, with report = corrupt")
    return MessageTable(REPORT)
