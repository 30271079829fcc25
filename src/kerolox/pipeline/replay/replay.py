"""Replay: messages of an archive or of a broker's files are sent to topics again.

The order within each source queue is kept, and each source queue goes to one target queue. A copy has the
properties of its message, and two marks: the id of the replay and the place of the message. By these marks a
killed replay continues (``send_task.py``) without sending a message twice.

Two cases are not covered. If a broker stores a request of a dead sender more than ``SETTLE_S`` after the
next run has looked for it, its messages are sent again. And the source must not change: messages added to a
queue below the offsets already sent are skipped.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kerolox.client.calls.readers import LEADER_ALONE
from kerolox.client.errors import NoPermission
from kerolox.client.messages import Queue
from kerolox.client.names import check_topic_for_sending
from kerolox.client.options import ClientOptions
from kerolox.client.sockets.socket_cluster import SocketCluster
from kerolox.clock import SYSTEM_CLOCK, Clock
from kerolox.errors import OptionError
from kerolox.pipeline.lake.iceberg_catalog import CatalogPlace
from kerolox.pipeline.replay.iceberg_source import PREFIX
from kerolox.pipeline.replay.lifeline import DriverEnd
from kerolox.pipeline.replay.plan import (
    PlanFile,
    ReplayChoice,
    ReplayPlan,
    SourceQueue,
    check_same,
    check_times,
    target_of,
    tasks_of,
)
from kerolox.pipeline.replay.send_task import COLUMNS, RESULT_COLUMNS, SendTasks
from kerolox.pipeline.replay.source import check_topics, chosen, find_source
from kerolox.protocol.reserved import is_of_system

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


@dataclass
class Replayed:
    """Result of a replay: numbers of messages sent, or planned in a dry run."""

    id: str
    dry_run: bool = False
    planned: int = 0
    sent: int = 0  # by this run
    before: int = 0  # by earlier runs of the same id
    repeated: int = 0  # messages that occur more than once in the source
    queues: list[dict[str, Any]] = field(default_factory=list)
    stopped: list[str] = field(default_factory=list)  # errors, if it is not complete

    @property
    def is_complete(self) -> bool:
        return not self.stopped and (self.dry_run or self.sent + self.before >= self.planned)


def new_id(now_ms: int) -> str:
    from datetime import UTC, datetime

    return f"{datetime.fromtimestamp(now_ms / 1000, UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}"


def replay(
    spark: SparkSession,
    source: str,
    cluster: ClientOptions | str,
    *,
    choice: ReplayChoice = ReplayChoice(),  # noqa: B008
    id: str = "",
    state: Path,
    rate: float = 0.0,
    dry_run: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    catalog: CatalogPlace | None = None,
    on_plan: Callable[[ReplayPlan], object] = lambda plan: None,
    on_progress: Callable[[int], object] = lambda done: None,
    clock: Clock = SYSTEM_CLOCK,
) -> Replayed:
    """Send the chosen messages of a source. With the id of an unfinished replay, continue it.

    Raises ReplayError if it cannot start; if it cannot be completed, the result has the errors.
    """
    options = cluster if isinstance(cluster, ClientOptions) else ClientOptions(cluster)
    id = id or new_id(clock.wall_ms())
    is_name = "://" in source or source.startswith(PREFIX)
    where = source if is_name else str(Path(source).resolve())
    found = find_source(source, storage_options, catalog)
    check_topics(found, choice)
    if dry_run:
        places = chosen(found.table(spark, choice, places_only=True), choice)
        with SocketCluster(options, read_from=LEADER_ALONE) as sockets:
            plan = make_plan(id, where, choice, places, sockets, clock.wall_ms())
        on_plan(plan)
        return _result(plan, {}, dry_run=True)
    with PlanFile(state, id) as file:
        plan_before = file.read()
        if plan_before is None:
            places = chosen(found.table(spark, choice, places_only=True), choice)
            with SocketCluster(options, read_from=LEADER_ALONE) as sockets:
                plan = make_plan(id, where, choice, places, sockets, clock.wall_ms())
            file.write(plan)
        else:
            plan = plan_before
            check_same(plan, where, choice)
        on_plan(plan)
        if plan.finished_ms is not None:
            return _result(plan, {}, before=plan.count)
        messages = chosen(found.table(spark, plan.choice), plan.choice)
        rows = send(
            spark,
            messages,
            plan,
            options,
            rate=rate,
            resumed=plan_before is not None,
            on_progress=on_progress,
        )
        result = _result(plan, rows)
        if result.is_complete:
            plan.finished_ms = clock.wall_ms()
            file.write(plan)
        return result


def check(
    source: str,
    options: ClientOptions,
    *,
    choice: ReplayChoice,
    id: str,
    state: Path,
    dry_run: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    catalog: CatalogPlace | None = None,
    **_: object,
) -> None:
    """Check the request without Spark, which takes seconds to start.

    The condition in ``where`` is not checked, because that needs Spark's SQL.
    """
    found = find_source(source, storage_options, catalog)
    check_topics(found, choice)
    plan = None
    if not dry_run:
        with PlanFile(state, id) as file:
            plan = file.read()
    if plan is None:
        check_times(choice)
    else:
        check_same(plan, str(Path(source).resolve()) if "://" not in source else source, choice)
    if choice.to_topic:
        targets = {choice.to_topic}
    else:
        topics = choice.topics or [topic for topic in found.topics or () if not is_of_system(topic)]
        targets = {choice.target(topic) for topic in topics} or set(choice.topic_map.values())
    with SocketCluster(options) as sockets, sockets.once():
        if not targets:
            sockets.topics()  # check that the name servers answer
        for topic in sorted(targets):
            check_topic_for_sending(topic)
            if not sockets.route(topic).writable:
                raise NoPermission(topic, "written")


# --- plan -------------------------------------------------------------------------------------------------


def make_plan(
    id: str, source: str, choice: ReplayChoice, messages: DataFrame, cluster: SocketCluster, now_ms: int
) -> ReplayPlan:
    """Count the messages of each queue, and find their targets."""
    from pyspark.sql import functions as f

    check_times(choice)
    found = (
        messages.groupBy("topic", f.coalesce("broker", f.lit("")).alias("broker"), "queue_id")
        .agg(
            f.min("queue_offset").alias("first"),
            f.max("queue_offset").alias("last"),
            f.count("*").alias("count"),
        )
        .collect()
    )
    ends: dict[Queue, int] = {}
    queues = []
    for row in sorted(found, key=lambda each: (each["topic"], each["broker"], each["queue_id"])):
        if not choice.topics and is_of_system(row["topic"]):
            continue
        topic = choice.target(row["topic"])
        check_topic_for_sending(topic)
        writable = cluster.route(topic).writable
        if not writable:
            raise NoPermission(topic, "written")
        queue = Queue(row["topic"], row["broker"], row["queue_id"])
        target = target_of(queue, writable)
        if target not in ends:
            ends[target] = cluster.max_offset(target)
        queues.append(SourceQueue(queue, row["first"], row["last"], row["count"], target, ends[target]))
    return ReplayPlan(id=id, begun_ms=now_ms, source=source, choice=choice, queues=queues)


# --- sending ------------------------------------------------------------------------------------------------


def send(
    spark: SparkSession,
    messages: DataFrame,
    plan: ReplayPlan,
    options: ClientOptions,
    *,
    rate: float = 0.0,
    resumed: bool = False,
    on_progress: Callable[[int], object] = lambda done: None,
) -> dict[int, dict[str, Any]]:
    """Send the messages of the plan. Returns a row for each queue with messages."""
    from pyspark.sql import functions as f

    if not plan.queues:
        return {}
    context = spark.sparkContext
    numbered = {source: number for number, source in enumerate(plan.queues)}
    tasks = [
        sorted((numbered[source], source) for source in task)
        for task in tasks_of(plan.queues, context.defaultParallelism)
    ]
    places = [
        (*source.queue, source.first, source.last, task, number)
        for task, part in enumerate(tasks)
        for number, source in part
    ]
    table = spark.createDataFrame(
        places,
        "topic string, broker string, queue_id int, first bigint, last bigint, task int, source int",
    )
    rows = messages.withColumn("broker", f.coalesce("broker", f.lit("")))
    rows = rows.join(f.broadcast(table), ["topic", "broker", "queue_id"])
    rows = rows.filter("queue_offset BETWEEN first AND last").select(*_columns(rows))
    # All tasks run at the same time, and each gets its rows in order.
    rows = rows.repartitionById(len(tasks), "task").sortWithinPartitions("source", "queue_offset")
    host = context.getConf().get("spark.driver.host") or "127.0.0.1"
    with DriverEnd(host, on_progress) as lifeline:
        work = SendTasks(plan.id, options, tasks, rate, resumed, host, lifeline.port, lifeline.token)
        found = rows.mapInArrow(work, RESULT_COLUMNS).collect()
    return {row["source"]: row.asDict() for row in found}


def _columns(rows: DataFrame) -> list[Column]:
    """Return the input columns of tasks, computed from the columns of the source."""
    from pyspark.sql import functions as f

    made: dict[str, Column] = {}
    if "born_timestamp" in rows.columns:
        made["born_ms"] = f.unix_millis("born_timestamp")
    if "properties" in rows.columns and dict(rows.dtypes)["properties"] == "string":
        text = f.regexp_replace("properties", "\x02$", "")
        made["properties"] = f.str_to_map(text, f.lit("\x02"), f.lit("\x01"))
    columns = []
    for column in COLUMNS.split(", "):
        name, kind = column.split(" ", 1)
        value = made.get(name, f.col(name) if name in rows.columns else f.lit(None))
        columns.append(value.cast(kind).alias(name))
    return columns


def _result(
    plan: ReplayPlan, rows: dict[int, dict[str, Any]], *, dry_run: bool = False, before: int = 0
) -> Replayed:
    result = Replayed(plan.id, dry_run=dry_run, planned=plan.count, before=before)
    for number, source in enumerate(plan.queues):
        row = rows.get(number, {})
        queue = {
            "from": source.name,
            "to": "/".join(map(str, source.target)),
            "first": source.first,
            "last": source.last,
            "messages": source.count,
            "sent": row.get("sent", 0),
            "sentBefore": row.get("before", 0),
        }
        result.queues.append(queue)
        result.sent += row.get("sent", 0)
        result.before += row.get("before", 0)
        result.repeated += row.get("repeated", 0)
        if row.get("error"):
            result.stopped.append(row["error"])
    result.planned -= result.repeated
    return result


def parse_map(pairs: Sequence[str]) -> dict[str, str]:
    """Parse a topic map such as ``["orders=orders-copy"]``."""
    table: dict[str, str] = {}
    for pair in pairs:
        old, equals, new = pair.partition("=")
        if not (old and equals and new):
            raise OptionError("--topic-map", pair, "OLD=NEW")
        table[old] = new
    return table


def parse_rate(text: str) -> float:
    """Parse a rate, ``500`` or ``500/s``, in messages per second; 0 means unlimited."""
    try:
        rate = float(text.strip().removesuffix("/s"))
    except ValueError:
        rate = -1.0
    if not 0 <= rate < float("inf"):
        raise OptionError("--rate", text, "messages per second: 500, 500/s, or 0 for no limit")
    return rate
