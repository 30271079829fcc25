"""One flow: the streaming query that writes one sink, batch by batch."""

from __future__ import annotations

import json
import logging
import re
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from kerolox.errors import KeroloxError
from kerolox.pipeline.flows.batch_checks import REASON, CheckFailed, look, split
from kerolox.pipeline.flows.definition import Check, SparkSink, Trigger
from kerolox.pipeline.flows.figures import RunFigures
from kerolox.pipeline.flows.side_table import examples, side_rows
from kerolox.pipeline.flows.tables import spark_text
from kerolox.pipeline.flows.writers import Writer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

log = logging.getLogger(__name__)

# Names of permanent errors in Spark and kerolox, for which a retry would fail the same way.
FOR_GOOD: Final = re.compile(
    r"OptionError|NotThere|CheckFailed|DataLoss|PipelineInvalid|WrongColumns|InvalidMessage|BadBody|"
    r"AnalysisException|ParseException|"
    r"UNRESOLVED_|PARSE_SYNTAX_ERROR|DATATYPE_MISMATCH|STREAMING_OUTPUT_MODE|STREAM_CHECKPOINT|"
    r"SQLSTATE: 22|was to be read next, but"
)


AFTER_CAST: Final = (
    "Spark does not report the row. Add bad_rows to set such rows aside with their queue and offset, or use "
    "TRY_CAST, which gives null for invalid values"
)


class Halted(KeroloxError):
    """The run is stopping: no further batch starts."""


class BatchFlow:
    """Work of a flow on each batch: run the checks, set rows aside, write the rest.

    Without a ``writer`` all rows go to the side table: they are those whose bodies do not fit their schema.
    """

    def __init__(
        self,
        name: str,
        pipeline: str,
        writer: Writer | None,
        checks: Mapping[str, Check],
        side: Writer | None,
        figures: RunFigures,
    ) -> None:
        self.name = name
        self._pipeline = pipeline
        self._writer = writer
        self._checks = dict(checks)
        self._side = side
        self._figures = figures
        self.error: BaseException | None = None  # error of the last batch
        self.halt = threading.Event()  # set: finish the running batch, start no other

    def __call__(self, batch: DataFrame, number: int) -> None:
        if self.halt.is_set():
            raise Halted(f"{self.name}: the run is stopping")
        try:
            self.error = None
            self.run(batch, number, _query_of(batch))
        except BaseException as error:
            self.error = error
            raise

    def run(self, batch: DataFrame, number: int, query: str) -> int:
        """Write one batch and return the number of its rows, or of rows written."""
        if self._writer is None:
            return self._set_aside(batch, number, query)
        if not self._checks:
            written = self._write(self._writer, batch, number, query)
            self._figures.add_written(self.name, written)
            return written
        kept = batch.persist()
        try:
            rows, outcomes = look(kept, self._checks)
            self._figures.add_checks(self.name, outcomes)
            failed = [outcome for outcome in outcomes if not outcome.held]
            for outcome in failed:
                log.warning(
                    "check_failed pipeline=%s flow=%s check=%s batch=%d text=%r then=%s",
                    self._pipeline, self.name, outcome.name, number, outcome.text, outcome.then,
                )  # fmt: skip
            for outcome in failed:
                if outcome.then in ("stop", "fail"):
                    raise CheckFailed(outcome, number)
            aside = [outcome for outcome in failed if outcome.then == "set_aside"]
            good = kept
            if aside:
                good, bad = split(kept, self._checks, aside)
                self._set_aside(bad, number, query)
            written = self._write(self._writer, good, number, query)
            self._figures.add_written(self.name, written)
            return rows
        finally:
            kept.unpersist()

    def _write(self, writer: Writer, batch: DataFrame, number: int, query: str) -> int:
        """Write a batch. If the table rejects some rows and there is a side table, set these rows aside.

        Such rows are rare, so they are searched for only after a failed write.
        """
        try:
            return writer.write(batch, number, query)
        except Exception as error:
            unfit = writer.unfit(error)
            if self._side is None or unfit is None:
                raise
            from pyspark.sql import functions as f

            bad = batch.where(unfit.condition).withColumn(REASON, f.lit(unfit.reason))
            self._set_aside(bad, number, f"{query}.unfit")  # rows of checks have the same number
            return writer.write(batch.where(f"NOT ({unfit.condition})"), number, query)

    def _set_aside(self, bad: DataFrame, number: int, query: str) -> int:
        assert self._side is not None
        rows = side_rows(bad, self._pipeline, self.name, number).persist()
        try:
            count = self._side.write(rows, number, query)
            if count:
                self._figures.add_bad(self.name, count, examples(rows))
            return count
        finally:
            rows.unpersist()


def _query_of(batch: DataFrame) -> str:
    """Return the id of the batch's streaming query, which is stored in its checkpoint."""
    return batch.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId") or ""


class StreamFlow:
    """A flow as a streaming query that can be started again."""

    def __init__(
        self,
        name: str,
        pipeline: str,
        table: DataFrame,
        work: BatchFlow,
        checkpoint: str,
        trigger: Trigger,
        *,
        mode: str = "append",
        native: SparkSink | None = None,
    ) -> None:
        self.name = name
        self.query_name = f"{pipeline}.{name}"
        self.work = work
        self._table = table
        self._checkpoint = checkpoint
        self._trigger = trigger
        self._mode = mode
        self._native = native
        self.query: StreamingQuery | None = None
        self._told: tuple[int, str] | None = None  # batch and time of the last progress returned by told()

    def start(self) -> None:
        """Start the query, from its checkpoint if it has one. Raises Spark's errors."""
        from kerolox.spark import start

        self.work.error = None
        if self._native is not None:
            writer = self._own_sink(self._native)
        else:
            writer = self._table.writeStream.foreachBatch(self.work)
        writer = (
            writer.outputMode(self._mode)
            .queryName(self.query_name)
            .option("checkpointLocation", self._checkpoint)
        )
        if self._trigger.once:
            writer = writer.trigger(availableNow=True)
        elif self._trigger.every_s:
            writer = writer.trigger(processingTime=f"{round(self._trigger.every_s * 1000)} milliseconds")
        self.query, self._told = start(writer), None

    def _own_sink(self, sink: SparkSink) -> Any:
        from pyspark.sql import functions as f

        counted = self._table.observe("kerolox", f.count(f.lit(1)).alias("rows"))
        options = dict(sink.options) | ({"path": sink.path} if sink.path else {})
        return counted.writeStream.format(sink.format).options(**options)

    @property
    def is_active(self) -> bool:
        return self.query is not None and self.query.isActive

    @property
    def is_idle(self) -> bool:
        """True between two batches."""
        return self.query is None or not self.query.isActive or not self.query.status["isTriggerActive"]

    def told(self) -> list[dict[str, Any]]:
        """Return the progress of the batches completed since the last call."""
        if self.query is None:
            return []
        recent = self.query._jsq.recentProgress()
        found = []
        for at in reversed(range(len(recent))):
            if (recent[at].batchId(), recent[at].timestamp()) == self._told:
                break
            found.append(json.loads(recent[at].json()))
        if found:
            self._told = found[0]["batchId"], found[0]["timestamp"]
        return found[::-1]

    def halt(self) -> None:
        """Start no other batch."""
        self.work.halt.set()

    def failure(self) -> BaseException | None:
        """Return the error that ended the query, or None."""
        if isinstance(self.work.error, Halted):
            return None
        if self.work.error is not None:
            return self.work.error
        return None if self.query is None else self.query.exception()

    def stop(self) -> None:
        if self.query is not None:
            self.query.stop()


def is_for_good(error: BaseException) -> bool:
    """Return True for errors that a retry would only repeat."""
    kinds = " ".join(kind.__name__ for kind in type(error).__mro__)
    return FOR_GOOD.search(f"{kinds}: {error}") is not None


def failure_text(error: BaseException) -> str:
    """Return the informative line of an error, without stack traces of Spark and Python."""
    if isinstance(error, KeroloxError):
        return " ".join(str(error).split())
    text = str(error)
    own = re.findall(r"kerolox\.[\w.]+: (.+)", text)
    if own:
        return " ".join(own[-1].split())[:600]
    if "CAST_INVALID_INPUT" in text:
        return f"{spark_text(error)} {AFTER_CAST}"
    python = re.findall(r"^(?:\w+\.)*(\w*(?:Error|Exception): .+)$", text, re.MULTILINE)
    return " ".join(python[-1].split())[:600] if python else spark_text(error)
