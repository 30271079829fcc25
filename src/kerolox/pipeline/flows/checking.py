"""Checks of a pipeline before it runs, beyond its file: places, options, functions, plans.

The checks without Spark come first: a wrong topic or an address that is not writable is reported within a
second. Then Spark analyses the plans, without reading a row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from kerolox.errors import KeroloxError
from kerolox.pipeline.flows.batch_checks import look, split
from kerolox.pipeline.flows.definition import (
    ArchiveFlow,
    LakeSink,
    Pipeline,
    PythonStep,
    TopicSink,
    TopicSource,
)
from kerolox.pipeline.flows.document import Document, PipelineInvalid, Place, Problem
from kerolox.pipeline.flows.functions import load_function
from kerolox.pipeline.flows.plan import Plan
from kerolox.pipeline.flows.run import own_session, writer_of
from kerolox.pipeline.flows.tables import Tables, spark_text, topic_options
from kerolox.pipeline.flows.writers import topic_sink_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def check_places(pipeline: Pipeline, document: Document) -> None:
    """Check options, topics, addresses and functions. Problems are added to the document."""
    for name, source in pipeline.sources.items():
        place = ("sources", name)
        if isinstance(source, TopicSource):
            _check_topics(document, place, pipeline, source)
        elif hasattr(source, "store"):
            _try(
                document,
                place,
                lambda options: _store_options(options),
                {"path": source.store, **source.options},
            )
    for name, step in pipeline.steps.items():
        if isinstance(step, PythonStep):
            _try(
                document,
                ("steps", name, "python"),
                lambda text: load_function(text, document.folder),
                step.python,
            )
    for name, sink in pipeline.sinks.items():
        place = ("sinks", name)
        if isinstance(sink, TopicSink):
            _check_topic_sink(document, place, pipeline, sink)
        elif isinstance(sink, LakeSink):
            _try(document, place, partial(_lake, pipeline, name), sink)
    for name, archive in pipeline.archives.items():
        _check_archive(document, ("archives", name), pipeline, archive)
    if pipeline.bad_rows is not None:
        _try(document, ("bad_rows",), partial(_lake, pipeline, "bad_rows"), pipeline.bad_rows)
    if pipeline.storage:
        _try(document, ("storage",), partial(_writable, options=pipeline.storage_options), pipeline.storage)


def _try(document: Document, place: Place, work: Callable[[Any], object], given: Any) -> bool:
    try:
        work(given)
    except (KeroloxError, OSError) as error:
        document.add(place, str(error))
        return False
    return True


def _writable(address: str, options: Mapping[str, str] | None = None) -> None:
    from kerolox.pipeline.flows.probing import check_writable
    from kerolox.pipeline.lake.storage import open_storage

    check_writable(open_storage(address, options))


def _lake(pipeline: Pipeline, name: str, table: Any) -> None:
    from kerolox.pipeline.flows.lake_tables import open_lake

    open_lake(table, pipeline.name, name).check()


def _store_options(options: Mapping[str, str]) -> None:
    from kerolox.spark.store.options import OPTIONS

    OPTIONS.parse(options)


def _check_topics(document: Document, place: Place, pipeline: Pipeline, source: TopicSource) -> None:
    from kerolox.spark.source.options import read_wanted

    options = topic_options(pipeline, source, document)
    if not options["nameserver"]:
        document.add(place, "nameserver is missing, here and at the top")
        return
    mode = "streaming" if source.stream else "batch"
    if _try(document, place, lambda given: read_wanted(given, mode), options):
        wanted = read_wanted(options, mode)
        _try(document, (*place, "topic"), lambda topics: _find(wanted.cluster, topics), wanted.topics)


def _find(cluster_options: Any, topics: Iterable[str]) -> None:
    """Look up the routes of these topics, in one try."""
    from kerolox.client.sockets.socket_cluster import SocketCluster

    with SocketCluster(cluster_options, tries=1) as cluster, cluster.once():
        for topic in topics:
            cluster.route(topic)


def _check_topic_sink(document: Document, place: Place, pipeline: Pipeline, sink: TopicSink) -> None:
    from kerolox.spark.sink.options import read_settings

    options = topic_sink_options(pipeline, sink)
    if not options["nameserver"]:
        document.add(place, "nameserver is missing, here and at the top")
        return
    if _try(document, place, read_settings, options):
        settings = read_settings(options)
        if not settings.create_topics:
            _try(document, (*place, "topic"), lambda topic: _find(settings.cluster, [topic]), settings.topic)
        else:
            _try(document, (*place, "topic"), lambda _: _find(settings.cluster, ()), None)


def _check_archive(document: Document, place: Place, pipeline: Pipeline, archive: ArchiveFlow) -> None:
    from kerolox.pipeline.flows.archive_flow import archive_options, format_of
    from kerolox.pipeline.flows.lake_tables import catalog_place
    from kerolox.pipeline.flows.probing import check_catalog_file
    from kerolox.spark.source.options import read_wanted

    options = archive_options(pipeline.nameserver_of(archive), archive)
    if not options["nameserver"]:
        document.add(place, "nameserver is missing, here and at the top")
    elif _try(document, place, lambda given: read_wanted(given, "batch"), options):
        wanted = read_wanted(options, "batch")
        _try(document, (*place, "topics"), lambda topics: _find(wanted.cluster, topics), wanted.topics)
    _try(document, place, format_of, archive)
    if archive.format == "iceberg":
        uri = catalog_place(archive.catalog, archive.path).uri
        _try(document, (*place, "catalog"), check_catalog_file, uri)
    else:
        _try(document, (*place, "path"), partial(_writable, options=archive.storage_options), archive.path)


# --- with Spark ---------------------------------------------------------------------------------------


def check_plans(spark: SparkSession, plan: Plan, document: Document) -> dict[str, str]:
    """Analyse all plans in Spark, and try checks and sinks on empty batches. Returns columns by name."""
    own = own_session(spark, plan.pipeline)
    _check_checkpoints(own, plan.pipeline, document)
    tables = Tables(own, plan, document)
    columns: dict[str, str] = {}
    unmade: set[str] = set()
    for name in plan.order:
        reads = plan.reads.get(name, ())
        if name.lower() in document.broken or any(each in unmade for each in reads):
            document.add(
                ("steps", name),
                "not checked, because a source or step it reads has problems",
                level="warning",
            )
            unmade.add(name)
            continue
        try:
            tables.make([name])
            columns[name] = tables.made[name].schema.simpleString().removeprefix("struct<").removesuffix(">")
        except PipelineInvalid as error:
            unmade.add(name)
            told = _failed(document)  # already reported by the check of places, in other words
            document.problems += [each for each in error.problems if _named(each) not in told]
    for name, sink in plan.pipeline.sinks.items():
        reads = plan.reads[f"sink {name}"]
        if not reads or reads[0] not in tables.made:
            continue
        table = tables.made[reads[0]]
        mode = "append" if isinstance(sink, LakeSink) else sink.mode
        try:
            _check_mode(own, table, mode)
            empty = own.createDataFrame([], table.schema)
            _check_columns(plan.pipeline, name, empty)
        except PipelineInvalid as error:
            document.problems += error.problems
        except (KeroloxError, OSError) as error:
            document.add(("sinks", name), str(error))
        except Exception as error:
            document.add(("sinks", name), spark_text(error))
        else:
            _check_checks(document, plan.pipeline, name, empty)
    return columns


def _check_checkpoints(spark: SparkSession, pipeline: Pipeline, document: Document) -> None:
    """Check that Spark can reach the storage: it writes checkpoints with its own file systems."""
    jvm: Any = spark._jvm
    context: Any = spark.sparkContext._jsc
    try:
        place = jvm.org.apache.hadoop.fs.Path(pipeline.storage)
        place.getFileSystem(context.hadoopConfiguration())
    except Exception as error:
        document.add(
            ("storage",),
            f"Spark cannot write checkpoints to {pipeline.storage}: {spark_text(error)}. Add the file system "
            "of the store to its class path (spark.conf: spark.jars.packages) with its settings "
            "(spark.hadoop.fs...), or use a folder that all its machines share",
        )


def _failed(document: Document) -> set[tuple[str, ...]]:
    return {_named(problem) for problem in document.problems if problem.level == "error"}


def _named(problem: Problem) -> tuple[str, ...]:
    """Return section and name of the entry with the problem."""
    return tuple(problem.place.split(".")[:2])


def _check_mode(spark: SparkSession, table: DataFrame, mode: str) -> None:
    """Run the check of output modes that Spark makes when the query starts."""
    if not table.isStreaming:
        return
    jvm: Any = spark._jvm
    output = {"append": "Append", "update": "Update", "complete": "Complete"}[mode]
    checker = jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker
    kind = getattr(jvm.org.apache.spark.sql.streaming.OutputMode, output)()
    checker.checkForStreaming(table._jdf.queryExecution().analyzed(), kind)


def _check_columns(pipeline: Pipeline, name: str, empty: DataFrame) -> None:
    """Check that the sink accepts these columns."""
    sink = pipeline.sinks[name]
    if isinstance(sink, TopicSink):
        from kerolox.spark.sink.options import check_columns, read_settings

        check_columns(empty.schema, read_settings(topic_sink_options(pipeline, sink)))
    elif isinstance(sink, LakeSink):
        from kerolox.pipeline.flows.lake_files import arrow_columns, divisions

        divisions(sink.partition_by, arrow_columns(empty).names, transforms=sink.format == "iceberg")
        writer_of(pipeline, name, sink, "")


def _check_checks(document: Document, pipeline: Pipeline, sink: str, empty: DataFrame) -> None:
    from kerolox.pipeline.flows.batch_checks import Outcome

    for name, check in pipeline.checks.items():
        if check.of != sink:
            continue
        try:
            look(empty, {name: check})
            if check.then == "set_aside":
                split(empty, {name: check}, [Outcome(name, check.then, False)])
        except Exception as error:
            document.add(("checks", name, check.kind), spark_text(error))
