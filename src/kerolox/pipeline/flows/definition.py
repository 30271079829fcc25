"""Typed definition of a pipeline file. The key tables of docs/PIPELINES.md are generated from it.

Sources, steps and sinks have several kinds; the keys of an entry determine its kind (see ``KINDS``). Names
of sources and steps are table names in SQL.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar, Final, Literal

import msgspec
from msgspec import Meta

from kerolox.times import span_s

LAKES: Final = ("parquet", "delta", "iceberg")
NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,62}")


class Span(float):
    """A length of time in seconds, read from ``500ms``, ``10s``, ``15m``, ``2h`` or ``30d``."""

    @classmethod
    def read(cls, text: object) -> Span:
        found = span_s(str(text))
        if found is None:
            raise ValueError(f"{text!r} is not a span of time: expected 500ms, 10s, 15m, 2h or 30d")
        return cls(found)


class Trigger:
    """Trigger of a flow: ``once`` (the rows present at the start), ``continuous``, or an interval.

    Neither a struct nor a dataclass: msgspec would decode those itself.
    """

    EXPECTED: ClassVar = "once, continuous, or a span of time such as 10s (also: every 10s)"
    __slots__ = ("every_s", "once")

    def __init__(self, *, once: bool = False, every_s: float = 0.0) -> None:
        self.once = once
        self.every_s = every_s

    @classmethod
    def read(cls, text: object) -> Trigger:
        word = str(text).strip()
        if word in ("once", "continuous"):
            return cls(once=word == "once")
        try:
            return cls(every_s=float(Span.read(word.removeprefix("every").strip())))
        except ValueError:
            raise ValueError(f"{word!r}: expected {cls.EXPECTED}") from None

    def text(self) -> str:
        return "once" if self.once else f"every {self.every_s:g} s" if self.every_s else "continuous"


def decode_own(kind: type[Any], value: object) -> Any:
    """Decode the types above from text, for msgspec."""
    if kind is Span or kind is Trigger:
        return kind.read(value)
    raise NotImplementedError(kind)


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Part of the file. An unknown key is an error."""


Options = Annotated[dict[str, str], Meta(description="options of the Spark format")]
Topic = Annotated[str, Meta(description="topic name")]
Nameserver = Annotated[str, Meta(description="name servers, HOST:PORT;HOST:PORT. Default: the pipeline's")]
From = Annotated[str, Meta(description="source or step to read")]
Mode = Annotated[
    Literal["append", "update", "complete"],
    Meta(description="Spark's output mode: append (final rows), update (changed rows) or complete (all rows; "
     "formats of Spark only)"),
]  # fmt: skip
OwnTrigger = Annotated[Trigger | None, Meta(description="trigger of this flow. Default: the pipeline's")]


class Watermark(Entry, frozen=True, kw_only=True):
    """Watermark: bound on late rows."""

    column: Annotated[str, Meta(description="a column of times")]
    delay: Annotated[Span, Meta(description="rows later than this may be dropped, such as 10m")]


Late = Annotated[
    Watermark | None, Meta(description="bound on late rows, required by joins and aggregates over streams")
]


class Body(Entry, frozen=True, kw_only=True):
    """Format of message bodies."""

    format: Annotated[Literal["json", "avro", "protobuf", "text"], Meta(description="format of the bodies")]
    schema: Annotated[str, Meta(description="schema: a file beside the pipeline file, or its text")] = ""
    registry: Annotated[str, Meta(description="URL of a schema registry")] = ""


# --- sources ------------------------------------------------------------------------------------------


class TopicSource(Entry, frozen=True, kw_only=True):
    """Topics of a cluster."""

    topic: Annotated[str, Meta(description="topic, or several separated by commas")] = ""
    topics: Annotated[list[str], Meta(description="topics as a list")] = []
    topic_pattern: Annotated[
        str, Meta(description="regular expression: all matching topics, including later ones")
    ] = ""
    nameserver: Nameserver = ""
    group: Annotated[str, Meta(description="consumer group for progress and access rights")] = ""
    columns: Annotated[
        list[str], Meta(description="columns to read; others are not decoded. Default: all")
    ] = []
    body: Annotated[Body | None, Meta(description="decode bodies into columns by a schema")] = None
    stream: Annotated[
        bool, Meta(description="true: a stream; false: the messages stored at the start, as a table")
    ] = True
    watermark: Late = None
    options: Annotated[
        dict[str, str], Meta(description="all options of the format rocketmq: docs/SPARK.md#options")
    ] = {}

    def topics_named(self) -> tuple[str, ...]:
        return tuple(word.strip() for word in (*self.topic.split(","), *self.topics) if word.strip())


class StoreSource(Entry, frozen=True, kw_only=True):
    """Store files of a broker, read without the broker."""

    store: Annotated[str, Meta(description="store directory, several separated by commas, or a pattern")]
    watermark: Late = None
    options: Annotated[
        dict[str, str], Meta(description="all options of the format rocketmq-store: docs/SPARK.md#options")
    ] = {}


class ArchiveSource(Entry, frozen=True, kw_only=True):
    """Current rows of a lake table: an archive, or any table of these formats."""

    archive: Annotated[str, Meta(description="folder or address; for Iceberg the table: space.name")]
    format: Annotated[Literal["parquet", "delta", "iceberg"], Meta(description="table format")] = "parquet"
    catalog: Annotated[
        dict[str, str], Meta(description="Iceberg only: uri (or name), warehouse, and pyiceberg's properties")
    ] = {}
    path: Annotated[
        str, Meta(description="Iceberg without catalog: the path of the pipeline sink that wrote the table")
    ] = ""
    watermark: Late = None
    options: Options = {}


class SparkSource(Entry, frozen=True, kw_only=True):
    """Any format that Spark reads."""

    format: Annotated[str, Meta(description="format of Spark: json, csv, jdbc, rate, kafka, ...")]
    path: Annotated[str, Meta(description="path of the data, for formats that need one")] = ""
    schema: Annotated[str, Meta(description="columns and types, for formats without a schema")] = ""
    stream: Annotated[bool, Meta(description="true: read as a stream")] = False
    watermark: Late = None
    options: Options = {}


Source = TopicSource | StoreSource | ArchiveSource | SparkSource

# --- steps --------------------------------------------------------------------------------------------


class SqlStep(Entry, frozen=True, kw_only=True):
    """Query over sources and other steps, by their names."""

    sql: Annotated[str, Meta(description="a SELECT of Spark SQL")]
    watermark: Late = None


class PythonStep(Entry, frozen=True, kw_only=True):
    """Function that takes DataFrames and returns one."""

    python: Annotated[
        str, Meta(description="module:function, or file.py:function with the file beside the pipeline file")
    ]
    from_: Annotated[
        list[str], Meta(description="sources and steps passed to the function as DataFrames, in this order")
    ] = msgspec.field(name="from")
    arguments: Annotated[dict[str, Any], Meta(description="keyword arguments of the function")] = {}
    watermark: Late = None


Step = SqlStep | PythonStep

# --- sinks --------------------------------------------------------------------------------------------


class TopicSink(Entry, frozen=True, kw_only=True):
    """Topic to write to. The rows need a column ``body``; see docs/SPARK.md#write-to-a-topic."""

    from_: From = msgspec.field(name="from")
    topic: Topic
    once: Annotated[
        bool, Meta(description="effectively once: a repeated batch sends only missing messages")
    ] = False
    nameserver: Nameserver = ""
    mode: Mode = "append"
    trigger: OwnTrigger = None
    options: Annotated[
        dict[str, str], Meta(description="all options of the sink rocketmq: docs/SPARK.md#options")
    ] = {}


class LakeTable(Entry, frozen=True, kw_only=True):
    """Table of Parquet files that contains every batch once."""

    format: Annotated[Literal["parquet", "delta", "iceberg"], Meta(description="table format")]
    path: Annotated[
        str, Meta(description="folder or address (for Iceberg: of the warehouse, if the catalog has none)")
    ] = ""
    table: Annotated[str, Meta(description="Iceberg only: table, space.name")] = ""
    catalog: Annotated[
        dict[str, str], Meta(description="Iceberg only: uri (or name), warehouse, and pyiceberg's properties")
    ] = {}
    partition_by: Annotated[
        list[str],
        Meta(description="partition columns; for Iceberg also year(C), month(C), day(C), hour(C)"),
    ] = []
    compression: Annotated[
        Literal["zstd", "snappy", "gzip", "lz4", "none"], Meta(description="compression of the files")
    ] = "zstd"
    options: Annotated[
        dict[str, str],
        Meta(description="fsspec options of the address: endpoint_url, key, secret, ..."),
    ] = {}
    files: Annotated[
        int, Meta(ge=0, description="maximum number of tasks that write a batch; 0: no limit")
    ] = 0


class LakeSink(LakeTable, frozen=True, kw_only=True):
    """Lake table as a sink. It contains every batch once."""

    from_: From = msgspec.field(name="from")
    trigger: OwnTrigger = None


class SparkSink(Entry, frozen=True, kw_only=True):
    """Any format that Spark writes."""

    from_: From = msgspec.field(name="from")
    format: Annotated[str, Meta(description="format of Spark: json, csv, jdbc, console, noop, ...")]
    path: Annotated[str, Meta(description="output path, for formats that need one")] = ""
    mode: Mode = "append"
    stream: Annotated[
        bool, Meta(description="true: Spark's own streaming sink, without checks; false: batch by batch")
    ] = False
    trigger: OwnTrigger = None
    options: Options = {}


Sink = TopicSink | LakeSink | SparkSink

# --- checks -------------------------------------------------------------------------------------------


class RowCount(Entry, frozen=True, kw_only=True):
    """Bounds on the number of rows of a batch."""

    min: Annotated[int, Meta(ge=0, description="minimum")] = 0
    max: Annotated[int | None, Meta(description="maximum")] = None


class Fresh(Entry, frozen=True, kw_only=True):
    """Bound on the age of the newest row of a batch."""

    column: Annotated[str, Meta(description="a column of times")]
    within: Annotated[Span, Meta(description="maximum age of the newest row, such as 10m")]


class Check(Entry, frozen=True, kw_only=True):
    """Check of each batch before a sink writes it. An entry has exactly one of the first six keys."""

    rows: Annotated[RowCount | None, Meta(description="number of rows, min and max")] = None
    not_null: Annotated[list[str], Meta(description="columns without nulls")] = []
    unique: Annotated[list[str], Meta(description="columns that together are unique in the batch")] = []
    fresh: Annotated[Fresh | None, Meta(description="age of the newest row")] = None
    where: Annotated[str, Meta(description="SQL condition that must be true for every row")] = ""
    total: Annotated[
        str, Meta(description="SQL condition on aggregates of the batch: sum(amount) < 1000")
    ] = ""
    of: Annotated[str, Meta(description="sink to check")]
    then: Annotated[
        Literal["warn", "set_aside", "stop", "fail"],
        Meta(description="action on failure: warn; set_aside (rows go to bad_rows; only not_null, unique and "
         "where); stop this flow; fail the run"),
    ] = "fail"  # fmt: skip

    KINDS: ClassVar = ("rows", "not_null", "unique", "fresh", "where", "total")
    OF_ROWS: ClassVar = ("not_null", "unique", "where")

    @property
    def kind(self) -> str:
        return next(kind for kind in self.KINDS if getattr(self, kind))


# --- archives, retries --------------------------------------------------------------------------------


class ArchiveFlow(Entry, frozen=True, kw_only=True):
    """Archive of topics, every message once. ``kerolox pipeline archive`` makes one of its options."""

    EVERY_S_MIN: ClassVar = 0.1
    EXPIRE_S_MIN: ClassVar = 3600.0  # an hour that is not over still receives messages

    topics: Annotated[list[str], Meta(min_length=1, description="topics to archive")]
    path: Annotated[
        str, Meta(description="folder or address (for Iceberg: of the warehouse, if the catalog has none)")
    ] = ""
    format: Annotated[Literal["parquet", "delta", "iceberg"], Meta(description="archive format")] = "parquet"
    table: Annotated[str, Meta(description="Iceberg only: table, space.name")] = ""
    catalog: Annotated[
        dict[str, str], Meta(description="Iceberg only: uri (or name), warehouse, and pyiceberg's properties")
    ] = {}
    every: Annotated[Span, Meta(description="time between commits; full rounds come earlier")] = Span(3600)
    nameserver: Nameserver = ""
    group: Annotated[str, Meta(description="consumer group under which progress is committed")] = (
        "kerolox_archive"
    )
    partition_by: Annotated[
        list[str], Meta(description="partitions: topic, date, hour, then tag or property.NAME")
    ] = []
    properties: Annotated[
        Literal["map", "string", "none"], Meta(description="column of properties; string: as stored")
    ] = "map"
    compression: Annotated[
        Literal["zstd", "snappy", "gzip", "lz4", "none"], Meta(description="compression of the files")
    ] = "zstd"
    max_rows_per_file: Annotated[int, Meta(ge=1, description="maximum number of messages of a file")] = (
        1_000_000
    )
    compact: Annotated[bool, Meta(description="join small files of past hours")] = True
    expire: Annotated[Span | None, Meta(description="remove hours that ended longer ago, such as 30d")] = None
    storage_options: Annotated[
        dict[str, Any], Meta(description="fsspec options of the address: endpoint_url, key, secret, ...")
    ] = {}
    options: Annotated[
        dict[str, str], Meta(description="all options of the format rocketmq: docs/SPARK.md#options")
    ] = {}

    @property
    def place(self) -> str:
        """Table or address, as it is shown."""
        return self.table or self.path


class Retry(Entry, frozen=True, kw_only=True):
    """Retries of a flow after temporary errors."""

    tries: Annotated[int, Meta(ge=0, description="restarts in a row without a completed batch")] = 5
    wait: Annotated[Span, Meta(description="pause before the first restart; doubled each time")] = Span(1.0)
    wait_max: Annotated[Span, Meta(description="maximum pause")] = Span(60.0)

    def wait_s(self, failures: int) -> float:
        """Return the pause in seconds after ``failures`` failures in a row; the first is 1."""
        return min(float(self.wait_max), float(self.wait) * 2.0 ** min(failures - 1, 30))


class SparkSettings(Entry, frozen=True, kw_only=True):
    """Spark session."""

    memory: Annotated[str, Meta(description="memory of the driver, such as 2g")] = "1g"
    conf: Annotated[dict[str, str], Meta(description="Spark settings")] = {}


class Pipeline(Entry, frozen=True, kw_only=True):
    """Pipeline file."""

    name: Annotated[str, Meta(description="name of the pipeline: letters, digits and _")]
    storage: Annotated[
        str, Meta(description="folder for checkpoints and reports of runs; each pipeline needs its own")
    ]
    storage_options: Annotated[
        dict[str, str],
        Meta(description="fsspec options of an object store: keys, endpoint"),
    ] = {}
    nameserver: Annotated[str, Meta(description="name servers, HOST:PORT;HOST:PORT")] = ""
    sources: Annotated[dict[str, Source], Meta(description="sources by name")] = {}
    steps: Annotated[dict[str, Step], Meta(description="steps by name")] = {}
    sinks: Annotated[dict[str, Sink], Meta(description="sinks by name; each is a flow")] = {}
    checks: Annotated[dict[str, Check], Meta(description="checks by name")] = {}
    archives: Annotated[
        dict[str, ArchiveFlow], Meta(description="archives of topics by name; each is a flow")
    ] = {}
    bad_rows: Annotated[
        LakeTable | None,
        Meta(description="table for bodies that do not fit their schema, and rows that checks set aside"),
    ] = None
    trigger: Annotated[Trigger, Meta(description=f"trigger of flows: {Trigger.EXPECTED}")] = Trigger()
    retry: Annotated[Retry, Meta(description="retries of failed flows")] = Retry()
    keep_going: Annotated[
        bool, Meta(description="other flows continue after one failed permanently; the run fails at the end")
    ] = False
    spark: Annotated[SparkSettings, Meta(description="Spark session")] = SparkSettings()

    def nameserver_of(self, entry: TopicSource | TopicSink | ArchiveFlow) -> str:
        return entry.options.get("nameserver", "") or entry.nameserver or self.nameserver


# Keys that determine the kind of an entry, in order of precedence.
KINDS: Final[dict[str, tuple[tuple[str, type[Entry]], ...]]] = {
    "sources": (
        ("topic", TopicSource),
        ("topics", TopicSource),
        ("topic_pattern", TopicSource),
        ("store", StoreSource),
        ("archive", ArchiveSource),
        ("format", SparkSource),
    ),
    "steps": (("sql", SqlStep), ("python", PythonStep)),
    "sinks": (("topic", TopicSink), ("format", SparkSink)),
    "checks": (),
    "archives": (),
}
ALONE: Final[dict[str, type[Entry]]] = {"checks": Check, "archives": ArchiveFlow}
