"""The options of a query that writes topics, and the columns its table may have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql import types as kinds

from kerolox.client.names import check_group, check_topic_for_sending, with_namespace
from kerolox.client.options import ClientOptions
from kerolox.client.sockets.sending import IN_FLIGHT, RETRIES
from kerolox.errors import KeroloxError, OptionError
from kerolox.protocol.limits import MESSAGE_BODY_BYTES_MAX
from kerolox.sizes import size_bytes
from kerolox.spark.bodies.options import OF_SINKS, find_declared
from kerolox.spark.columns import MAP, TIMESTAMP
from kerolox.spark.option_table import (
    CLUSTER,
    SPAN,
    YES_NO,
    Option,
    OptionTable,
    cluster_options,
    flag,
    number,
    one_of,
    span,
    text,
)
from kerolox.spark.sink.requests import BATCH_BYTES, BATCH_BYTES_MAX, BATCH_COUNT
from kerolox.spark.sink.row_columns import COLUMNS, LIST

if TYPE_CHECKING:
    from kerolox.spark.bodies.declared import Declared

GROUP: Final = "spark_writer"
MESSAGE_BYTES_MAX: Final = 15 << 20
AT_LEAST_ONCE: Final = "at-least-once"
EFFECTIVELY_ONCE: Final = "effectively-once"

SINK: Final = OptionTable(
    "the rocketmq sink",
    *CLUSTER,
    Option("topic", text, "a name", "topic of all rows; overrides the column topic"),
    Option("group", text, "a name", "producer group, for access rights", default=GROUP),
    Option("deliveryGuarantee", one_of(AT_LEAST_ONCE, EFFECTIVELY_ONCE),
           f"{AT_LEAST_ONCE} or {EFFECTIVELY_ONCE}",
           "a repeated task or batch sends all its rows again, or only missing ones",
           default=AT_LEAST_ONCE),
    Option("batchBytes", size_bytes, f"bytes, or 256k; at most {BATCH_BYTES_MAX}",
           "maximum size of a batch request", default=BATCH_BYTES),
    Option("batchRows", number(1, 65_536), "a number of messages", "maximum number of messages in a request",
           default=BATCH_COUNT),
    Option("inFlight", number(1, 256), "a number",
           "unanswered requests per connection; one per queue for ordered rows",
           default=IN_FLIGHT),
    Option("retries", number(0), "a number",
           "retries after an error or timeout, on other brokers if the queue is not fixed",
           default=RETRIES),
    Option("sendTimeoutMs", span(1), SPAN, "timeout of a request including all retries", default=120_000),
    Option("compressFromBytes", number(0), "bytes; 0: never",
           "compress bodies of at least this size (zlib), and send them one by one", default=0),
    Option("maxMessageSize", size_bytes, f"bytes, or 4m; at most {MESSAGE_BYTES_MAX}",
           "maximum size of a body, as in the brokers' setting of this name. Larger ones are rejected before "
        "they are sent; a batch has at most a quarter of it",
           default=MESSAGE_BODY_BYTES_MAX),
    Option("createTopics", flag, YES_NO, "create missing topics, if the brokers allow it",
           default=True),
    Option("settleMs", span(0), SPAN,
           "time a repeated task waits for messages of the attempt before that may still arrive",
           default=2_000),
    *OF_SINKS,
)  # fmt: skip
# Given to the writer by Spark, or meant for it.
SPARKS_OWN: Final = ("checkpointlocation", "queryname")


@dataclass(frozen=True)
class SinkSettings:
    """How a query writes. It travels to the tasks."""

    cluster: ClientOptions
    patience_s: float
    topic: str | None
    group: str
    once: bool
    batch_bytes: int
    batch_rows: int
    in_flight: int
    retries: int
    give_up_s: float
    compress_from: int
    create_topics: bool
    message_bytes_max: int
    settle_s: float
    bodies: Declared | None = None  # they are made of columns


def read_settings(given: Mapping[str, str]) -> SinkSettings:
    """From Spark's options. Raises OptionError for what is unknown, wrong or contradictory."""
    values = SINK.parse(given, ignore=SPARKS_OWN)
    cluster = cluster_options(values)
    topic = values["topic"]
    if topic is not None:
        try:
            check_topic_for_sending(topic)
        except KeroloxError as error:
            raise OptionError("topic", topic, str(error)) from None
    check_group(values["group"])
    if values["batchBytes"] > BATCH_BYTES_MAX:
        raise OptionError(
            "batchBytes",
            values["batchBytes"],
            f"at most {BATCH_BYTES_MAX}: brokers take requests up to 4 MiB, "
            "and count more bytes for a message than are sent",
        )
    if values["maxMessageSize"] > MESSAGE_BYTES_MAX:
        raise OptionError(
            "maxMessageSize",
            values["maxMessageSize"],
            f"at most {MESSAGE_BYTES_MAX}: a request has 16 MiB at most, with all that is in it",
        )
    once = values["deliveryGuarantee"] == EFFECTIVELY_ONCE
    if values.has("settleMs") and not once:
        raise OptionError("settleMs", values["settleMs"], f"deliveryGuarantee = {EFFECTIVELY_ONCE} as well")
    return SinkSettings(
        cluster=cluster,
        patience_s=values["retryForMs"] / 1000,
        topic=topic,
        group=with_namespace(cluster.namespace, values["group"]),
        once=once,
        # Brokers compare the records of a batch with it, and those are larger than what is sent.
        batch_bytes=min(values["batchBytes"], values["maxMessageSize"] // 4),
        batch_rows=values["batchRows"],
        in_flight=values["inFlight"],
        retries=values["retries"],
        give_up_s=values["sendTimeoutMs"] / 1000,
        compress_from=values["compressFromBytes"],
        create_topics=values["createTopics"],
        message_bytes_max=values["maxMessageSize"],
        settle_s=values["settleMs"] / 1000,
        bodies=find_declared(values, (topic,) if topic else (), sink=True),
    )


# --- columns ------------------------------------------------------------------------------------------

_NUMBERS = (kinds.ByteType, kinds.ShortType, kinds.IntegerType, kinds.LongType)


def _fits(kind: kinds.DataType, form: pa.DataType) -> bool:
    """Return True for a type of Spark whose values become this type.

    Columns, elements and values may be null or not: a table has both kinds. A NULL without a type is void; so
    are the elements of array().
    """
    if form == pa.binary():
        return isinstance(kind, kinds.StringType | kinds.BinaryType)  # a body is never null
    if isinstance(kind, kinds.NullType):
        return True
    if form == LIST:
        return isinstance(kind, kinds.ArrayType) and _fits(kind.elementType, pa.string())
    if form == MAP:
        return isinstance(kind, kinds.MapType) and all(
            _fits(each, pa.string()) for each in (kind.keyType, kind.valueType)
        )
    if form == TIMESTAMP:
        return isinstance(kind, kinds.TimestampType)
    return isinstance(kind, kinds.StringType if form == pa.string() else _NUMBERS)


NO_ZONE: Final = (
    ". A time without a zone is no moment: cast(deliver_at as timestamp) takes it to be in the session's zone"
)


class WrongColumns(KeroloxError):
    """A table that cannot be made messages of."""


def check_columns(schema: kinds.StructType, settings: SinkSettings) -> None:
    """Raises WrongColumns, which names the columns there can be."""
    if settings.bodies is not None:
        from kerolox.spark.bodies.rows import check_fields

        schema = check_fields(schema, settings.bodies, COLUMNS)
    shown = ", ".join(f"{name} ({column.types})" for name, column in COLUMNS.items())
    given = schema.fieldNames()
    if "body" not in given:
        raise WrongColumns(
            f"there is no column body, which every message has; given are {', '.join(given)}. For a whole "
            "row as JSON: to_json(struct(*)) as body"
        )
    unknown = [name for name in given if name not in COLUMNS]
    if unknown:
        raise WrongColumns(
            f"column {', '.join(unknown)} is not one of a message: {shown}. Drop it, rename it, or put it "
            "into the body (to_json(struct(*)) as body)"
        )
    for field in schema.fields:
        column = COLUMNS[field.name]
        if not any(_fits(field.dataType, form) for form in column.forms):
            raise WrongColumns(
                f"column {field.name} is {field.dataType.simpleString()}; it has to be {column.types}. "
                f"Nothing was sent{NO_ZONE if isinstance(field.dataType, kinds.TimestampNTZType) else ''}"
            )
    if "topic" not in given and settings.topic is None:
        raise WrongColumns("no topic: give the option topic, or a column of that name")
    if "broker" in given and "queue_id" not in given:
        raise WrongColumns("column broker says which queue_id is meant; give that column too, or drop broker")
    if settings.once:
        delays = [name for name in ("delay_level", "deliver_at") if name in given]
        if delays:
            raise WrongColumns(
                f"column {', '.join(delays)}: a delayed message is not in its queue before its time, so "
                f"nobody can tell whether it was sent. Write it {AT_LEAST_ONCE}, in a query of its own"
            )
