"""What a pipeline file says, typed. Each key has its meaning beside it: docs/PIPELINES.md is made of these.

A source, a step or a sink is of one of several kinds; which one, its keys tell (see ``KINDS``). Names of
sources and steps are names of tables in SQL.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar, Final, Literal

import msgspec
from msgspec import Meta

LAKES: Final = ("parquet", "delta", "iceberg")
NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,62}")
UNITS_S: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_SPAN: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)")


class Span(float):
    """A length of time in seconds, read from ``500ms``, ``10s``, ``15m``, ``2h`` or ``30d``."""

    @classmethod
    def read(cls, text: object) -> Span:
        found = _SPAN.fullmatch(str(text).strip())
        if found is None:
            raise ValueError(f"{text!r} is no span of time: expected 500ms, 10s, 15m, 2h or 30d")
        return cls(float(found[1]) * UNITS_S[found[2]])


class Trigger:
    """When a flow looks for rows: ``once`` (what is there now), ``continuous``, or every so often.

    Neither a struct nor a dataclass: msgspec would read those by itself."""

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
    """For msgspec: the types above, from their texts."""
    if kind is Span or kind is Trigger:
        return kind.read(value)
    raise NotImplementedError(kind)


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A part of the file. An unknown key is an error."""


Options = Annotated[dict[str, str], Meta(description="options as Spark knows them, by name")]
Topic = Annotated[str, Meta(description="a topic")]
Nameserver = Annotated[str, Meta(description="name servers, HOST:PORT;HOST:PORT. The pipeline's, if absent")]
From = Annotated[str, Meta(description="the source or step whose rows are taken")]
Mode = Annotated[
    Literal["append", "update", "complete"],
    Meta(description="which rows of a result that changes are written, as Spark calls it: append (those that "
         "are final), update (those that changed) or complete (all; formats of Spark only)"),
]  # fmt: skip
OwnTrigger = Annotated[Trigger | None, Meta(description="when this flow looks for rows; else the pipeline's")]


class Watermark(Entry, frozen=True, kw_only=True):
    """How late rows may be."""

    column: Annotated[str, Meta(description="a column of times")]
    delay: Annotated[Span, Meta(description="rows that are later than this may be dropped: 10m")]


Late = Annotated[
    Watermark | None, Meta(description="how late rows may be: joins and aggregates over streams need it")
]


class Body(Entry, frozen=True, kw_only=True):
    """What is in the bodies of messages."""

    format: Annotated[Literal["json", "avro", "protobuf", "text"], Meta(description="what the bodies are")]
    schema: Annotated[
        str, Meta(description="their schema: a file beside the pipeline's, or the text of it")
    ] = ""
    registry: Annotated[str, Meta(description="the URL of a schema registry")] = ""


# --- sources ------------------------------------------------------------------------------------------


class TopicSource(Entry, frozen=True, kw_only=True):
    """Topics of a cluster."""

    topic: Annotated[str, Meta(description="a topic, or several with commas")] = ""
    topics: Annotated[list[str], Meta(description="the same as a list")] = []
    topic_pattern: Annotated[
        str, Meta(description="a regular expression: all topics it matches, also later ones")
    ] = ""
    nameserver: Nameserver = ""
    group: Annotated[str, Meta(description="the consumer group that progress and rights go by")] = ""
    columns: Annotated[
        list[str], Meta(description="columns to read; others are not decoded. All, if absent")
    ] = []
    body: Annotated[Body | None, Meta(description="the bodies become columns by a schema")] = None
    stream: Annotated[bool, Meta(description="false: what is there when the run starts, as a table")] = True
    watermark: Late = None
    options: Annotated[
        dict[str, str], Meta(description="all options of the format rocketmq: docs/SPARK.md#options")
    ] = {}

    def topics_named(self) -> tuple[str, ...]:
        return tuple(word.strip() for word in (*self.topic.split(","), *self.topics) if word.strip())


class StoreSource(Entry, frozen=True, kw_only=True):
    """The files of a broker, without a broker."""

    store: Annotated[str, Meta(description="a store directory, several with commas, or a pattern")]
    watermark: Late = None
    options: Annotated[
        dict[str, str], Meta(description="all options of the format rocketmq-store: docs/SPARK.md#options")
    ] = {}


class ArchiveSource(Entry, frozen=True, kw_only=True):
    """What a lake has now: an archive, or any table of these formats."""

    archive: Annotated[str, Meta(description="its folder or address; for Iceberg the table: space.name")]
    format: Annotated[Literal["parquet", "delta", "iceberg"], Meta(description="of the table")] = "parquet"
    catalog: Annotated[
        dict[str, str], Meta(description="of Iceberg: uri (or name), warehouse, and pyiceberg's properties")
    ] = {}
    path: Annotated[
        str, Meta(description="of Iceberg without catalog: the path that the sink of a pipeline wrote it to")
    ] = ""
    watermark: Late = None
    options: Options = {}


class SparkSource(Entry, frozen=True, kw_only=True):
    """Anything Spark reads."""

    format: Annotated[str, Meta(description="a format Spark knows: json, csv, jdbc, rate, kafka, ...")]
    path: Annotated[str, Meta(description="where it is, for formats that ask for a path")] = ""
    schema: Annotated[str, Meta(description="columns and types, for formats that do not tell")] = ""
    stream: Annotated[bool, Meta(description="true: read as a stream")] = False
    watermark: Late = None
    options: Options = {}


Source = TopicSource | StoreSource | ArchiveSource | SparkSource

# --- steps --------------------------------------------------------------------------------------------


class SqlStep(Entry, frozen=True, kw_only=True):
    """A query over sources and other steps, by their names."""

    sql: Annotated[str, Meta(description="a SELECT of Spark SQL")]
    watermark: Late = None


class PythonStep(Entry, frozen=True, kw_only=True):
    """A function that takes DataFrames and gives one."""

    python: Annotated[
        str, Meta(description="module:function, or file.py:function with the file beside the pipeline's")
    ]
    from_: Annotated[
        list[str], Meta(description="sources and steps: the function's DataFrames, in this order")
    ] = msgspec.field(name="from")
    arguments: Annotated[dict[str, Any], Meta(description="given to the function by name, after them")] = {}
    watermark: Late = None


Step = SqlStep | PythonStep

# --- sinks --------------------------------------------------------------------------------------------


class TopicSink(Entry, frozen=True, kw_only=True):
    """A topic. The rows need a column ``body``; see docs/SPARK.md#write-to-a-topic."""

    from_: From = msgspec.field(name="from")
    topic: Topic
    once: Annotated[
        bool, Meta(description="effectively once: a repeated batch sends only what is missing")
    ] = False
    nameserver: Nameserver = ""
    mode: Mode = "append"
    trigger: OwnTrigger = None
    options: Annotated[
        dict[str, str], Meta(description="all options of the sink rocketmq: docs/SPARK.md#options")
    ] = {}


class LakeTable(Entry, frozen=True, kw_only=True):
    """A table of Parquet files. Every batch is in it once."""

    format: Annotated[Literal["parquet", "delta", "iceberg"], Meta(description="of the table")]
    path: Annotated[
        str, Meta(description="its folder or address (for Iceberg the warehouse's, if the catalog has none)")
    ] = ""
    table: Annotated[str, Meta(description="for Iceberg: space.name")] = ""
    catalog: Annotated[
        dict[str, str], Meta(description="of Iceberg: uri (or name), warehouse, and pyiceberg's properties")
    ] = {}
    partition_by: Annotated[
        list[str],
        Meta(
            description="columns the table is divided by; for Iceberg also year(C), month(C), day(C), hour(C)"
        ),
    ] = []
    compression: Annotated[
        Literal["zstd", "snappy", "gzip", "lz4", "none"], Meta(description="of the files")
    ] = "zstd"
    options: Annotated[
        dict[str, str],
        Meta(description="for the address, as fsspec knows them: endpoint_url, key, secret, ..."),
    ] = {}
    files: Annotated[
        int, Meta(ge=0, description="at most so many tasks write a batch, for fewer files; 0: all there are")
    ] = 0


class LakeSink(LakeTable, frozen=True, kw_only=True):
    """A table of Parquet files. Every batch is in it once."""

    from_: From = msgspec.field(name="from")
    trigger: OwnTrigger = None


class SparkSink(Entry, frozen=True, kw_only=True):
    """Anything Spark writes."""

    from_: From = msgspec.field(name="from")
    format: Annotated[str, Meta(description="a format Spark knows: json, csv, jdbc, console, noop, ...")]
    path: Annotated[str, Meta(description="where it goes, for formats that ask for a path")] = ""
    mode: Mode = "append"
    stream: Annotated[
        bool, Meta(description="true: by Spark's own streaming sink, and without checks; else batch by batch")
    ] = False
    trigger: OwnTrigger = None
    options: Options = {}


Sink = TopicSink | LakeSink | SparkSink

# --- checks -------------------------------------------------------------------------------------------


class RowCount(Entry, frozen=True, kw_only=True):
    """How many rows a batch may have."""

    min: Annotated[int, Meta(ge=0, description="at least")] = 0
    max: Annotated[int | None, Meta(description="at most")] = None


class Fresh(Entry, frozen=True, kw_only=True):
    """How old the newest row of a batch may be."""

    column: Annotated[str, Meta(description="a column of times")]
    within: Annotated[Span, Meta(description="the newest is not older than this: 10m")]


class Check(Entry, frozen=True, kw_only=True):
    """What must hold for the rows of each batch that a sink is about to write. One of the first six."""

    rows: Annotated[RowCount | None, Meta(description="how many there are, min and max")] = None
    not_null: Annotated[list[str], Meta(description="columns without nulls")] = []
    unique: Annotated[list[str], Meta(description="columns that together are unique in the batch")] = []
    fresh: Annotated[Fresh | None, Meta(description="how old the newest row may be")] = None
    where: Annotated[str, Meta(description="a condition in SQL that is true of every row")] = ""
    total: Annotated[
        str, Meta(description="a condition in SQL over the batch as a whole: sum(amount) < 1000")
    ] = ""
    of: Annotated[str, Meta(description="the sink")]
    then: Annotated[
        Literal["warn", "set_aside", "stop", "fail"],
        Meta(description="if not: warn; set_aside (rows go to bad_rows; not_null, unique and where only); "
             "stop this flow; fail the run"),
    ] = "fail"  # fmt: skip

    KINDS: ClassVar = ("rows", "not_null", "unique", "fresh", "where", "total")
    OF_ROWS: ClassVar = ("not_null", "unique", "where")

    @property
    def kind(self) -> str:
        return next(kind for kind in self.KINDS if getattr(self, kind))


# --- archives, retries --------------------------------------------------------------------------------


class ArchiveFlow(Entry, frozen=True, kw_only=True):
    """Topics to a lake as they are, every message once: what ``kerolox pipeline archive`` does."""

    topics: Annotated[list[str], Meta(min_length=1, description="what is archived")]
    path: Annotated[str, Meta(description="folder or address of the archive")]
    format: Annotated[Literal["parquet", "delta"], Meta(description="of the archive")] = "parquet"
    every: Annotated[Span, Meta(description="time between commits; sooner when much came")] = Span(3600)
    nameserver: Nameserver = ""
    group: Annotated[str, Meta(description="the consumer group that progress is told under")] = (
        "kerolox_archive"
    )
    partition_by: Annotated[
        list[str], Meta(description="what folders tell: topic, date, hour, then tag or property.NAME")
    ] = []
    compact: Annotated[bool, Meta(description="join small files of hours that are over")] = True
    expire: Annotated[Span | None, Meta(description="remove hours that were over longer ago: 30d")] = None
    options: Annotated[
        dict[str, str], Meta(description="all options of the format rocketmq: docs/SPARK.md#options")
    ] = {}


class Retry(Entry, frozen=True, kw_only=True):
    """What happens when a flow fails for a reason that may pass."""

    tries: Annotated[
        int, Meta(ge=0, description="how often it is started again without a batch done between")
    ] = 5
    wait: Annotated[Span, Meta(description="before the first time; doubled each time")] = Span(1.0)
    wait_max: Annotated[Span, Meta(description="but never longer")] = Span(60.0)

    def wait_s(self, failures: int) -> float:
        """How long to wait after so many failures in a row, 1 being the first."""
        return min(float(self.wait_max), float(self.wait) * 2.0 ** min(failures - 1, 30))


class SparkSettings(Entry, frozen=True, kw_only=True):
    """The session."""

    memory: Annotated[str, Meta(description="of the driver: 2g")] = "1g"
    conf: Annotated[dict[str, str], Meta(description="settings of Spark")] = {}


class Pipeline(Entry, frozen=True, kw_only=True):
    """The file."""

    name: Annotated[str, Meta(description="of the pipeline: letters, digits and _")]
    storage: Annotated[
        str, Meta(description="a folder for checkpoints and for what runs tell; one pipeline, one folder")
    ]
    storage_options: Annotated[
        dict[str, str],
        Meta(description="of an object store: keys, endpoint, as fsspec names them"),
    ] = {}
    nameserver: Annotated[str, Meta(description="name servers, HOST:PORT;HOST:PORT")] = ""
    sources: Annotated[dict[str, Source], Meta(description="what is read, by name")] = {}
    steps: Annotated[dict[str, Step], Meta(description="what is made of it, by name")] = {}
    sinks: Annotated[dict[str, Sink], Meta(description="where it goes, by name; each is a flow")] = {}
    checks: Annotated[dict[str, Check], Meta(description="what must hold for it, by name")] = {}
    archives: Annotated[
        dict[str, ArchiveFlow], Meta(description="topics archived as they are, by name; each is a flow")
    ] = {}
    bad_rows: Annotated[
        LakeTable | None,
        Meta(description="a table for bodies that do not fit their schema, and rows that checks set aside"),
    ] = None
    trigger: Annotated[Trigger, Meta(description=f"when flows look for rows: {Trigger.EXPECTED}")] = Trigger()
    retry: Annotated[Retry, Meta(description="what happens when a flow fails")] = Retry()
    keep_going: Annotated[
        bool, Meta(description="other flows go on when one has failed for good; the run fails in the end")
    ] = False
    spark: Annotated[SparkSettings, Meta(description="the session")] = SparkSettings()

    def nameserver_of(self, entry: TopicSource | TopicSink | ArchiveFlow) -> str:
        return entry.options.get("nameserver", "") or entry.nameserver or self.nameserver


# Which keys tell which kind, in the order they are looked for.
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
