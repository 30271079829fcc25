"""Writers of batches to topics and to Spark's own formats."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import pyarrow as pa

from kerolox.pipeline.flows.definition import Pipeline, SparkSink, TopicSink
from kerolox.spark.short_errors import short_errors

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from kerolox.spark.sink.sink import StreamSink

_SENT: Final = pa.schema([("rows", pa.int64())])


class Unfit(NamedTuple):
    """Rows that a table rejects: an SQL condition for them, and the reason."""

    condition: str
    reason: str


class Writer(Protocol):
    """Writer of batches."""

    @property
    def may_refuse_rows(self) -> bool:
        """True if some values may make a batch fail."""

    def unfit(self, error: BaseException) -> Unfit | None:
        """Return the rows that caused the error; None if no rows did."""

    def check(self) -> None:
        """Raise the errors now that would occur later."""

    def write(self, batch: DataFrame, number: int, query: str) -> int:
        """Write batch ``number`` of a query, or its missing rows, and return the number of rows.

        ``query`` is empty for tables that are not streams.
        """


# --- topics -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Send:
    """Task that sends its rows."""

    sink: StreamSink

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with short_errors():
            sent: Any = self.sink.write(batches)
        yield pa.RecordBatch.from_arrays([pa.array([sent.rows + sent.there])], schema=_SENT)


class AllFit:
    """Base of writers for which no single row makes a batch fail."""

    may_refuse_rows = False

    def unfit(self, error: BaseException) -> Unfit | None:
        return None


class TopicWriter(AllFit):
    """Writer to a topic, by the sink of the format ``rocketmq``.

    The sink works as in a streaming query, with its notes in the checkpoint, but on rows that have passed
    the checks.
    """

    def __init__(self, options: Mapping[str, str], checkpoint: str) -> None:
        self._options = dict(options)
        self._checkpoint = checkpoint

    def check(self) -> None:
        from kerolox.spark.sink.options import read_settings

        read_settings(self._options)

    def write(self, batch: DataFrame, number: int, query: str) -> int:
        from kerolox.spark.sink.sink import CHECKPOINT, StreamSink

        if not query:
            return SparkWriter("rocketmq", "", "append", self._options).write(batch, number, query)
        sink = StreamSink({**self._options, CHECKPOINT: self._checkpoint}, batch.schema, False)
        sent = batch.mapInArrow(_Send(sink), "rows bigint").collect()
        sink.commit((), number)
        return sum(row.rows for row in sent)


def topic_sink_options(pipeline: Pipeline, sink: TopicSink) -> dict[str, str]:
    from kerolox.spark.sink.options import AT_LEAST_ONCE, EFFECTIVELY_ONCE

    return {
        "nameserver": pipeline.nameserver_of(sink),
        "topic": sink.topic,
        "deliveryGuarantee": EFFECTIVELY_ONCE if sink.once else AT_LEAST_ONCE,
        **sink.options,
    }


# --- what Spark writes --------------------------------------------------------------------------------


class SparkWriter(AllFit):
    """Writer of each batch as a table in one of Spark's formats. A repeated batch is written again."""

    def __init__(self, format: str, path: str, mode: str, options: Mapping[str, str]) -> None:
        self._format = format
        self._path = path
        self._mode = "overwrite" if mode == "complete" else "append"
        self._options = dict(options)

    @classmethod
    def of(cls, sink: SparkSink) -> SparkWriter:
        return cls(sink.format, sink.path, sink.mode, sink.options)

    def check(self) -> None:
        pass

    def write(self, batch: DataFrame, number: int, query: str) -> int:
        from pyspark.sql import Observation
        from pyspark.sql import functions as f

        counted = Observation()
        rows = batch.observe(counted, f.count(f.lit(1)).alias("rows"))
        writer = rows.write.format(self._format).mode(self._mode).options(**self._options)
        if self._path:
            writer.save(self._path)
        else:
            writer.save()
        return int(counted.get["rows"])
