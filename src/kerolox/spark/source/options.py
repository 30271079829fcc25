"""The options of a query that reads topics, and their values."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from kerolox.client.calls.pulls import SCAN_BYTES, SCAN_BYTES_MAX, SCAN_COUNT_MAX
from kerolox.client.calls.readers import FOLLOWER, LEADER
from kerolox.client.messages import Queue
from kerolox.client.names import check_group, with_namespace
from kerolox.client.options import ClientOptions
from kerolox.client.sockets.socket_cluster import SocketCluster
from kerolox.errors import InvalidRequest, OptionError
from kerolox.protocol.subscription import SQL92, TAG, subscription
from kerolox.sizes import size_bytes
from kerolox.spark.bodies.options import OF_SOURCES, find_declared
from kerolox.spark.offsets import QueueOffsets, in_namespace, read_offsets
from kerolox.spark.option_table import (
    CLUSTER,
    MOMENT,
    SPAN,
    YES_NO,
    Option,
    OptionTable,
    cluster_options,
    flag,
    moment,
    number,
    numbers,
    one_of,
    span,
    text,
    words,
)
from kerolox.spark.times import Times, read_times

if TYPE_CHECKING:
    from kerolox.spark.bodies.declared import Declared

GROUP: Final = "spark_reader"
_OFFSETS: Final = (
    'earliest, latest, group, or {"topic": {"broker": {"0": 23, "1": -2}}} (-2 earliest, -1 latest)'
)
_TIMES: Final = '{"topic": TIME} or {"topic": {"broker": {"0": TIME}}}, each as in startingTimestamp'


def _scan_size(value: str) -> int:
    found = 0 if value.strip() == "0" else size_bytes(value)
    if found > SCAN_BYTES_MAX:
        raise ValueError("out of range")
    return found


SOURCE: Final = OptionTable(
    "the rocketmq source",
    *CLUSTER,
    # --- what
    Option("topic", words, "a name, or several with commas", "topics to read", aliases=("topics",)),
    Option("topicPattern", text, "a regular expression", "read all matching topics, including later ones"),
    Option("queueIds", numbers, "numbers with commas", "read only these queues of each topic and broker"),
    Option("tags", text, "a || b", "read only messages with one of these tags; the broker filters",
           aliases=("subExpression",)),
    Option("sql92", text, "a condition", "read only messages whose properties match; the broker filters"),
    Option("properties", one_of("map", "string", "none"), "map, string or none",
           "form of this column: a map, the stored text, or no column", default="map"),
    # --- from where to where
    Option("startingOffsets", read_offsets, _OFFSETS,
           "start of a new query (default: streaming latest, batch earliest)"),
    Option("startingTimestamp", moment, MOMENT, "start at the first message stored at this time or later"),
    Option("startingOffsetsByTimestamp", read_times, _TIMES,
           "start times by topic or queue; others start at the earliest offset"),
    Option("startingOffsetsByTimestampStrategy", one_of("latest", "error"), "latest or error",
           "for a queue without a message since the time: start at its end, or fail",
           default="latest"),
    Option("endingOffsets", read_offsets, _OFFSETS, "end of a batch query, exclusive",
           default="latest", only="batch"),
    Option("endingTimestamp", moment, MOMENT, "end before the first message stored at this time or later",
           only="batch"),
    Option("endingOffsetsByTimestamp", read_times, _TIMES,
           "end times by topic or queue; others end at the latest offset",
           only="batch"),
    Option("failOnDataLoss", flag, YES_NO,
           "fail if messages to be read do not exist any more; false: warn, and skip them",
           default=True),
    # --- how much at a time
    Option("maxOffsetsPerTrigger", number(1), "a number of messages", "maximum number of messages in a batch",
           only="streaming"),
    Option("maxBytesPerTrigger", size_bytes, "bytes, or 64m",
           "approximate maximum size of a batch, estimated from the first messages of each queue",
           only="streaming"),
    Option("minOffsetsPerTrigger", number(1), "a number of messages", "minimum number of messages in a batch",
           only="streaming"),
    Option("maxTriggerDelayMs", span(0), SPAN, "maximum wait for minOffsetsPerTrigger", default=900_000,
           aliases=("maxTriggerDelay",), only="streaming"),
    Option("minPartitions", number(1), "a number",
           "minimum number of tasks; long ranges are cut. Without it and maxRowsPerPartition, each queue "
        "has a task, and queues with few messages share one"),
    Option("maxRowsPerPartition", number(1), "a number of messages", "maximum number of messages in a task",
           aliases=("maxRecordsPerPartition",)),
    # --- how
    Option("group", text, "a name",
           "consumer group for access rights, lag and progress. A streaming query without one uses "
        f"its own group, {GROUP}- and eight letters, stored in the checkpoint",
           default=GROUP),
    Option("readFrom", one_of(LEADER, FOLLOWER), "leader or follower",
           "follower: read from followers if possible, to relieve the leader. If the leader is down, "
        "followers are read in either case", default=LEADER),
    Option("pullBatchSize", number(1, 1 << 20), "a number of messages",
           "messages requested per pull; brokers return at most 32 by default. kerolox's brokers use "
        "scanBytes if this is not set", default=1024),
    Option("scanBytes", _scan_size, "bytes, or 1m; at most 12m",
           "bytes requested per pull from kerolox's brokers, up to their own limit "
        "(maxTransferBytesOfScan, 1m), instead of 32 messages. 0: ordinary pulls",
           default=SCAN_BYTES),
    Option("pullsAhead", number(1, 256), "a number", "concurrent pulls per task", default=8),
    Option("discoveryIntervalMs", span(1), SPAN, "interval of the search for new queues and topics",
           default=10_000, only="streaming"),
    Option("idleWaitMs", span(0, 5_000), f"{SPAN}; at most 5s",
           "time an idle query waits for messages before Spark asks again", default=500,
           only="streaming"),
    # --- bodies
    *OF_SOURCES,
)  # fmt: skip


@dataclass(frozen=True)
class Start:
    """A place to begin or end at: a word, offsets, or times. ``option`` is what said so."""

    word: str = ""
    offsets: QueueOffsets | None = None
    times: Times | None = None
    option: str = ""
    must_match: bool = False  # a queue without a message at its time is an error


@dataclass(frozen=True)
class Wanted:
    """Settings of a query that reads topics. Sent to the tasks."""

    cluster: ClientOptions
    patience_s: float
    topics: tuple[str, ...]  # as they travel; empty: by the pattern
    pattern: str
    queue_ids: frozenset[int]
    expression: str
    expression_kind: str
    tags: frozenset[str]  # brokers compare hashes of tags: they are compared again
    start: Start
    end: Start
    fail_on_data_loss: bool
    rows_max: int | None
    bytes_max: int | None
    rows_min: int | None
    trigger_delay_s: float
    pieces_min: int | None
    piece_rows_max: int | None
    group: str
    has_own_group: bool  # none was given: each query tells its progress under another
    read_from: str
    pull_count: int
    scan_bytes: int
    scan_count: int
    pulls_ahead: int
    discovery_s: float
    idle_wait_s: float
    bodies: Declared | None = None  # they become columns

    @property
    def nameserver(self) -> str:
        return ";".join(self.cluster.addresses())

    def open_cluster(self) -> SocketCluster:
        return SocketCluster(self.cluster, patience_s=self.patience_s, read_from=self.read_from)


def read_wanted(given: Mapping[str, str], mode: str) -> Wanted:
    """From Spark's options. Raises OptionError for what is unknown, wrong or contradictory."""
    values = SOURCE.parse(given, mode)
    values.exactly_one("topic", "topicPattern")
    values.at_most_one("tags", "sql92")
    if mode == "streaming":
        values.need("maxTriggerDelayMs", "minOffsetsPerTrigger")
    cluster = cluster_options(values)
    group = values["group"]
    check_group(group)
    pattern = values["topicPattern"] or ""
    try:
        re.compile(pattern)
    except re.error as error:
        raise OptionError("topicPattern", pattern, f"a regular expression of Python ({error})") from None
    if values["sql92"]:
        from kerolox.protocol.filters.lexer import FilterError  # few queries have a condition
        from kerolox.protocol.filters.sql import compile_filter

        try:
            compile_filter(values["sql92"])
        except FilterError as error:
            raise OptionError("sql92", values["sql92"], f"a condition ({error})") from None
    starting = values.at_most_one("startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp")
    ending = values.at_most_one("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
    if starting in (None, "startingOffsets"):
        values.need("startingOffsetsByTimestampStrategy", "startingTimestamp")
    start = replace(
        _place(starting or "", values[starting] if starting else _FIRST[mode], cluster),
        must_match=values["startingOffsetsByTimestampStrategy"] == "error",
    )
    end = _place(ending or "", values[ending or "endingOffsets"], cluster)
    if end.word in ("earliest", "group"):
        raise OptionError("endingOffsets", end.word, "latest, or offsets: nothing lies before that")
    if start.word == "group" and not values.has("group"):
        raise OptionError(starting or "", "group", "group to be given as well: a new query has none before")
    _check_order(start, end)
    rows_min, rows_max = values["minOffsetsPerTrigger"], values["maxOffsetsPerTrigger"]
    if rows_min and rows_max and rows_min > rows_max:
        raise OptionError("minOffsetsPerTrigger", rows_min, f"at most maxOffsetsPerTrigger = {rows_max}")
    return Wanted(
        cluster=cluster,
        patience_s=values["retryForMs"] / 1000,
        topics=tuple(with_namespace(cluster.namespace, topic) for topic in values["topic"] or ()),
        pattern=pattern,
        queue_ids=frozenset(values["queueIds"] or ()),
        expression=values["sql92"] or values["tags"] or "*",
        expression_kind=SQL92 if values["sql92"] else TAG,
        tags=_tags(values["tags"]),
        start=start,
        end=end,
        fail_on_data_loss=values["failOnDataLoss"],
        rows_max=rows_max,
        bytes_max=values["maxBytesPerTrigger"],
        rows_min=rows_min,
        trigger_delay_s=values["maxTriggerDelayMs"] / 1000,
        pieces_min=values["minPartitions"],
        piece_rows_max=values["maxRowsPerPartition"],
        group=with_namespace(cluster.namespace, group),
        has_own_group=not values.has("group"),
        read_from=values["readFrom"],
        pull_count=values["pullBatchSize"],
        scan_bytes=values["scanBytes"],
        scan_count=values["pullBatchSize"] if values.has("pullBatchSize") else SCAN_COUNT_MAX,
        pulls_ahead=values["pullsAhead"],
        discovery_s=values["discoveryIntervalMs"] / 1000,
        idle_wait_s=values["idleWaitMs"] / 1000,
        bodies=find_declared(values, values["topic"] or ()),
    )


def _check_order(start: Start, end: Start) -> None:
    """Refuse a range of times that has no message, whatever is stored."""
    if start.times is not None and end.times is not None:
        places = [*start.times.queues, *end.times.queues]
        places += [Queue(topic, "", 0) for topic in (*start.times.topics, *end.times.topics)]
        for place in places or [Queue("", "", 0)]:
            begin, until = start.times.of(place), end.times.of(place)
            if begin is not None and until is not None and begin >= until:
                of = f" of {place.topic}" if place.topic else ""
                raise OptionError(
                    start.option,
                    begin,
                    f"a time{of} before {end.option} = {until} (ms since 1970): nothing lies between them",
                )


def _tags(expression: str | None) -> frozenset[str]:
    try:
        return subscription("", expression, 0).tags_set
    except InvalidRequest:
        raise OptionError("tags", expression, "tags with || between them; leave it out for all") from None


_FIRST: Final = {"batch": "earliest", "streaming": "latest"}


def _place(option: str, value: str | int | QueueOffsets | Times, cluster: ClientOptions) -> Start:
    if isinstance(value, str):
        return Start(word=value, option=option)
    if isinstance(value, int):
        return Start(times=Times(value), option=option)
    if isinstance(value, Times):
        return Start(times=value.in_namespace(cluster.namespace), option=option)
    return Start(offsets=in_namespace(value, cluster.namespace), option=option)
