"""Sources and steps of a pipeline as DataFrames and named views."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from kerolox.errors import KeroloxError
from kerolox.pipeline.flows.casts import failing_casts, is_row_by_row, reason_expression
from kerolox.pipeline.flows.definition import (
    ArchiveSource,
    Pipeline,
    PythonStep,
    Source,
    SparkSource,
    SqlStep,
    Step,
    StoreSource,
    TopicSource,
    Watermark,
)
from kerolox.pipeline.flows.document import Document, PipelineInvalid
from kerolox.pipeline.flows.functions import load_function
from kerolox.pipeline.flows.plan import Plan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

log = logging.getLogger(__name__)

BODY_ERROR = "body_error"


class Tables:
    """The DataFrames of a pipeline, in a session with its own views."""

    def __init__(
        self,
        spark: SparkSession,
        plan: Plan,
        document: Document,
        begin: Callable[[str, dict[str, str]], dict[str, str]] = lambda source, options: options,
    ) -> None:
        """``begin`` adds the common start offsets to the options of a stream of messages."""
        self.spark = spark
        self.plan = plan
        self._document = document
        self._begin = begin
        self.made: dict[str, DataFrame] = {}
        self.misfits: dict[str, DataFrame] = {}  # by name: rows that do not fit, bodies or casts

    def make(self, wanted: Iterable[str]) -> None:
        """Create these and all tables they read. Raises PipelineInvalid with Spark's error."""
        names = set(wanted)
        needed = names.union(*(self.plan.needed(name) for name in names))
        for name in self.plan.order:
            if name in needed and name not in self.made:
                section = "sources" if name in self.plan.pipeline.sources else "steps"
                try:
                    self._keep(name, self._source(name) if section == "sources" else self._step(name))
                except (KeroloxError, OSError) as error:
                    raise PipelineInvalid([self._document.problem((section, name), str(error))]) from error
                except Exception as error:  # from Spark or the user's function
                    text = spark_text(error)
                    raise PipelineInvalid([self._document.problem((section, name), text)]) from error

    def _keep(self, name: str, table: DataFrame) -> None:
        entry = (self.plan.pipeline.sources | self.plan.pipeline.steps)[name]
        if BODY_ERROR in table.columns and self.plan.pipeline.bad_rows is not None:
            self.misfits[name] = table.where(f"{BODY_ERROR} IS NOT NULL")
            table = table.where(f"{BODY_ERROR} IS NULL").drop(BODY_ERROR, *_of_misfits(entry))
        table = _watermarked(table, entry.watermark)
        table.createOrReplaceTempView(name)
        self.made[name] = table

    # --- sources ----------------------------------------------------------------------------------------

    def _source(self, name: str) -> DataFrame:
        source = self.plan.pipeline.sources[name]
        if isinstance(source, ArchiveSource):
            return self._archive(source)
        stream, format, options = reader_of(self.plan.pipeline, source, self._document)
        if stream and isinstance(source, TopicSource):
            options = self._begin(name, options)
        reader: Any = (self.spark.readStream if stream else self.spark.read).format(format).options(**options)
        if isinstance(source, TopicSource) and source.columns:
            reader = reader.schema(_columns(source, options))
        elif isinstance(source, SparkSource) and source.schema:
            reader = reader.schema(source.schema)
        path = source.path if isinstance(source, SparkSource) else ""
        return reader.load(path) if path else reader.load()  # type: ignore[no-any-return]

    def _archive(self, source: ArchiveSource) -> DataFrame:
        reader = self.spark.read.options(**source.options)
        if source.format == "parquet":
            return reader.parquet(source.archive)
        from kerolox.pipeline.flows.lake_reading import files_of

        found = files_of(source)
        if not found.files:
            return self.spark.createDataFrame([], found.schema)
        if found.base:
            reader = reader.option("basePath", found.base)
        return reader.schema(found.schema).parquet(*found.files)  # older files may have fewer columns

    # --- steps ------------------------------------------------------------------------------------------

    def _step(self, name: str) -> DataFrame:
        from pyspark.sql import DataFrame

        step = self.plan.pipeline.steps[name]
        if isinstance(step, SqlStep):
            return self._query(name, step.sql)
        assert isinstance(step, PythonStep)
        work = load_function(step.python, self._document.folder)
        given = work(*(self.made[each] for each in self.plan.reads[name]), **step.arguments)
        if not isinstance(given, DataFrame):
            raise KeroloxError(f"{step.python} returned {type(given).__name__}, not a DataFrame")
        return given

    def _query(self, name: str, sql: str) -> DataFrame:
        """Return a query. In a pipeline with bad rows, rows on which one of its casts fails are removed
        first.
        """
        made = self.spark.sql(sql)
        if self.plan.pipeline.bad_rows is None or len(self.plan.reads[name]) != 1:
            return made
        read = self.plan.reads[name][0]
        table = self.made[read]
        found = failing_casts(made)
        if found is None or BODY_ERROR in table.columns or not is_row_by_row(table):
            return made
        from pyspark.errors import AnalysisException
        from pyspark.sql import functions as f

        named = table.alias(found.alias)
        try:
            marked = named.withColumn(BODY_ERROR, f.expr(reason_expression(found.casts)))
        except AnalysisException as error:  # some plans cannot be written as SQL again
            log.info("casts_not_looked_at step=%s error=%r", name, spark_text(error))
            return made
        self.misfits[name] = marked.where(f"{BODY_ERROR} IS NOT NULL")
        good = marked.where(f"{BODY_ERROR} IS NULL").drop(BODY_ERROR)
        good.createOrReplaceTempView(read)
        try:
            return self.spark.sql(sql)
        finally:
            table.createOrReplaceTempView(read)


def reader_of(pipeline: Pipeline, source: Source, document: Document) -> tuple[bool, str, dict[str, str]]:
    """Return a source's reader: True for a stream, the format, and the options."""
    if isinstance(source, TopicSource):
        return source.stream, "rocketmq", topic_options(pipeline, source, document)
    if isinstance(source, StoreSource):
        return False, "rocketmq-store", {"path": source.store, **source.options}
    assert isinstance(source, SparkSource)
    return source.stream, source.format, dict(source.options)


def topic_options(pipeline: Pipeline, source: TopicSource, document: Document) -> dict[str, str]:
    """Return the options of the format ``rocketmq`` for a source."""
    options = {"nameserver": pipeline.nameserver_of(source)}
    if source.topics_named():
        options["topic"] = ",".join(source.topics_named())
    if source.topic_pattern:
        options["topicPattern"] = source.topic_pattern
    if source.group:
        options["group"] = source.group
    if source.body is not None:
        options["bodyFormat"] = source.body.format
        if source.body.schema:
            beside = document.folder / source.body.schema
            is_file = "\n" not in source.body.schema and len(source.body.schema) < 255 and beside.is_file()
            options["bodySchema"] = os.fspath(beside.absolute()) if is_file else source.body.schema
        if source.body.registry:
            options["schemaRegistry"] = source.body.registry
        if pipeline.bad_rows is not None:
            options["onBadBody"] = "column"
    return options | source.options


def _columns(source: TopicSource, options: dict[str, str]) -> str | StructType:
    """Return the requested columns and those of the bodies."""
    from kerolox.spark.bodies.options import find_declared
    from kerolox.spark.columns import SPARK_TYPES, arrow_schema
    from kerolox.spark.source.options import SOURCE

    properties = source.options.get("properties", "map")
    declared = find_declared(SOURCE.parse(options), source.topics_named())
    if declared is not None:
        from kerolox.spark.bodies.table import chosen_schema

        return chosen_schema(declared, source.columns, properties=properties)
    schema = arrow_schema(source.columns, properties=properties)
    return ", ".join(f"{field.name} {SPARK_TYPES[field.type]}" for field in schema)


def _of_misfits(entry: Source | Step) -> list[str]:
    """Return columns of a source that are needed only for rows that do not fit."""
    if not isinstance(entry, TopicSource) or entry.body is None:
        return []
    from kerolox.spark.bodies.table import BODY, PLACE

    return [BODY, *(name for name in PLACE if entry.columns and name not in entry.columns)]


def _watermarked(table: DataFrame, watermark: Watermark | None) -> DataFrame:
    if watermark is None:
        return table
    return table.withWatermark(watermark.column, f"{round(watermark.delay * 1000)} milliseconds")


def spark_text(error: BaseException) -> str:
    """Return Spark's error message on one line, without stack traces."""
    text = str(getattr(error, "_desc", "") or error)
    told = re.split(r"\n\s*(?:JVM stacktrace|== SQL|at org\.apache|;\n)", text, maxsplit=1)[0]
    return " ".join(told.split())[:600] or type(error).__name__
