"""The format ``rocketmq`` in Spark: batch and streaming queries against a broker."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from kerolox.blocking import Producer
from kerolox.cli.main import app
from kerolox.client.messages import Message, Queue
from kerolox.client.sockets.socket_cluster import SocketCluster
from kerolox.spark import fill_metrics
from kerolox.testing.threads import BrokerThread

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import DataStreamReader, StreamingQuery

Send = Callable[[Sequence[Message]], Any]
NewTopic = Callable[..., str]


@pytest.fixture
def read(spark: SparkSession, broker: BrokerThread) -> Callable[..., DataFrame]:
    """``read(topic, option=...)``."""

    def load(topic: str, schema: str = "", **options: Any) -> DataFrame:
        reader = spark.read.format("rocketmq").option("nameServer", broker.nameserver_address)
        if schema:
            reader = reader.schema(schema)
        return reader.option("topic", topic).options(**options).load()

    return load


@pytest.fixture
def stream(spark: SparkSession, broker: BrokerThread) -> Callable[..., DataStreamReader]:
    def load(topic: str, **options: Any) -> DataStreamReader:
        reader = spark.readStream.format("rocketmq").option("nameServer", broker.nameserver_address)
        return reader.option("topic", topic).options(**options)

    return load


@pytest.fixture
def cluster(broker: BrokerThread) -> Iterator[SocketCluster]:
    with SocketCluster(broker.nameserver_address) as plain:
        yield plain


def texts(topic: str, begin: int, end: int) -> list[Message]:
    return [Message(topic, f"m{number:03d}", tags="ab"[number % 2]) for number in range(begin, end)]


def names(begin: int, end: int) -> list[str]:
    return [f"m{number:03d}" for number in range(begin, end)]


def bodies(frame: DataFrame) -> list[str]:
    return sorted(row.body.decode() for row in frame.select("body").collect())


class Taken:
    """What a query gave, batch by batch."""

    def __init__(self, fails_in: int | None = None) -> None:
        self.batches: dict[int, list[str]] = {}
        self.fails_in = fails_in

    def __call__(self, frame: DataFrame, number: int) -> None:
        self.batches[number] = bodies(frame)
        if number == self.fails_in:
            raise RuntimeError("power cut")

    @property
    def all(self) -> list[str]:
        return sorted(body for batch in self.batches.values() for body in batch)


def until(is_so: Callable[[], bool], query: StreamingQuery | None = None) -> None:
    deadline_s = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < deadline_s, "it did not happen"
        if query is not None and query.exception() is not None:
            raise query.exception()  # type: ignore[misc]
        time.sleep(0.02)


# --- batch -------------------------------------------------------------------------------------------


def test_a_dataframe_used_again_and_filtered(read: Callable[..., DataFrame], topic: str, send: Send) -> None:
    """Filters are Spark's work: a source that takes them over gives wrong answers when used again."""
    send(texts(topic, 0, 40))
    frame = read(topic)
    assert frame.filter("queue_id = 1").count() == 10
    assert frame.count() == 40
    both = frame.filter("queue_id = 1").union(frame.filter("queue_id = 3"))
    assert {row.queue_id: row["count"] for row in both.groupBy("queue_id").count().collect()} == {
        1: 10,
        3: 10,
    }
    assert bodies(frame.filter("tags = 'b'")) == names(0, 40)[1::2]
    send(texts(topic, 40, 44))
    assert frame.count() == 40  # planned once; loaded anew it has what came since
    assert read(topic).count() == 44


def test_columns_and_their_types(read: Callable[..., DataFrame], topic: str, send: Send) -> None:
    send([Message(topic, "hello", tags="x", keys="k", properties={"a": "1"})])
    frame = read(topic)
    assert dict(frame.dtypes)["properties"] == "map<string,string>"
    (row,) = frame.collect()
    assert (row.body, row.tags, row["keys"], row.properties["a"]) == (bytearray(b"hello"), "x", "k", "1")
    (row,) = read(topic, properties="string").select("properties").collect()
    assert "a\x011" in row.properties
    assert "properties" not in read(topic, properties="none").columns
    few = read(topic, schema="queue_offset bigint, body binary")
    assert few.collect() == [(0, bytearray(b"hello"))]


def test_an_empty_topic(read: Callable[..., DataFrame], topic: str) -> None:
    assert read(topic).count() == 0
    assert read(topic).collect() == []


def test_ranges_become_tasks(read: Callable[..., DataFrame], topic: str, send: Send) -> None:
    send(texts(topic, 0, 20))
    frame = read(topic, minPartitions=6, schema="body binary")
    assert frame.rdd.getNumPartitions() == 6
    assert bodies(frame) == names(0, 20)


def test_what_is_wrong_is_said_when_it_is_written(
    read: Callable[..., DataFrame], stream: Callable[..., DataStreamReader], topic: str
) -> None:
    with pytest.raises(Exception, match="startingOffsets, perhaps"):
        read(topic, startingOfsets="latest")
    with pytest.raises(Exception, match="startingOffsets, perhaps"):
        stream(topic, startingOfsets="latest").load()
    with pytest.raises(Exception, match=r"columns of: topic string, broker string"):
        read(topic, schema="value binary").count()
    with pytest.raises(Exception, match="no-such-topic"):
        read("no-such-topic").count()


def first_line(work: Callable[[], Any]) -> str:
    """What a user reads first of what went wrong."""
    with pytest.raises(Exception) as raised:
        work()
    text = str(raised.value)
    assert "Traceback" not in text
    line = next(line for line in text.splitlines() if "kerolox." in line)
    assert text.splitlines().index(line) < 2  # Spark puts a sentence of its own before some
    return line


def test_errors_are_told_first_and_without_the_way_they_took(
    spark: SparkSession,
    read: Callable[..., DataFrame],
    stream: Callable[..., DataStreamReader],
    topic: str,
    send: Send,
    broker: BrokerThread,
    tmp_path: Path,
) -> None:
    send(texts(topic, 0, 1))

    def run(**options: Any) -> None:
        frame = stream(topic, startingOffsets="earliest", **options).load()
        writer = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint"))
        writer.trigger(availableNow=True).start().awaitTermination()

    def write(columns: str, **options: Any) -> None:
        writer = spark.sql(f"select {columns}").write.format("rocketmq").mode("append")
        writer.options(nameserver=broker.nameserver_address, topic=topic, **options).save()

    assert "option group = 'no good'" in first_line(lambda: read(topic, group="no good").count())
    assert "no-such-topic" in first_line(lambda: read("no-such-topic").count())
    assert "a batch query (spark.read) with it. Remove it" in first_line(lambda: run(endingOffsets="latest"))
    assert "no route to topic" in first_line(lambda: run(nameserver="127.0.0.1:1", retryForMs=0))
    assert "column price is not one of a message" in first_line(lambda: write("'x' as body, 1 as price"))
    assert "have no body, row 0 the first" in first_line(lambda: write("cast(null as string) as body"))
    lost = read(topic, startingOffsets=json.dumps({topic: {"broker-a": {"0": 77}}}))
    assert "offset 77 was to be read next" in first_line(lost.count)
    store = spark.read.format("rocketmq-store")
    assert "a directory that is there" in first_line(lambda: store.load(str(tmp_path / "none")).count())
    # What is not ours keeps its traceback, also in the workers that told of ours.
    with pytest.raises(Exception, match=r"(?s)Traceback .*division by zero"):
        read(topic).rdd.map(lambda row: 1 / 0).count()


def test_in_sql(spark: SparkSession, broker: BrokerThread, topic: str, send: Send) -> None:
    send(texts(topic, 0, 6))
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW messages USING rocketmq "
        f"OPTIONS (nameserver '{broker.nameserver_address}', topic '{topic}', tags 'a')"
    )
    rows = spark.sql("SELECT CAST(body AS string) AS text FROM messages ORDER BY text").collect()
    assert [row.text for row in rows] == names(0, 6)[::2]


def test_spark_finds_the_format_by_itself() -> None:
    import pyspark_rocketmq
    from kerolox.spark.datasource import RocketMQ

    assert pyspark_rocketmq.DefaultSource is RocketMQ


def test_no_filters_are_taken_over() -> None:
    """Of this version of Spark: with pushFilters defined a reused DataFrame gives wrong answers."""
    from pyspark.sql.datasource import DataSourceReader

    from kerolox.spark.source.batch import BatchSource

    assert BatchSource.pushFilters is DataSourceReader.pushFilters


# --- streaming ---------------------------------------------------------------------------------------


def test_batch_by_batch_and_on_from_the_checkpoint(
    stream: Callable[..., DataStreamReader], topic: str, send: Send, tmp_path: Path, cluster: SocketCluster
) -> None:
    send(texts(topic, 0, 50))

    def run() -> tuple[Taken, StreamingQuery]:
        taken = Taken()
        frame = stream(topic, startingOffsets="earliest", maxOffsetsPerTrigger=20).load()
        writer = frame.writeStream.foreachBatch(taken).option("checkpointLocation", str(tmp_path))
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        return taken, query

    taken, query = run()
    assert [len(batch) for batch in taken.batches.values()] == [20, 20, 10]
    assert taken.all == names(0, 50)
    source = json.loads(query.recentProgress[0].sources[0].json)
    behind = total(source["latestOffset"]) - total(source["endOffset"])
    assert behind == 30
    assert source["latestOffset"]["behind"] == {"avg": 7.5, "max": 8, "min": 7, "sum": 30}
    progress = query.recentProgress[0]
    figures = fill_metrics(progress).sources[0].metrics
    assert figures["avgOffsetsBehindLatest"] == "7.5"
    assert (figures["maxOffsetsBehindLatest"], figures["minOffsetsBehindLatest"]) == ("8", "7")
    assert figures["offsetsRead"] == str(progress.sources[0].numInputRows) == "20"
    # Told under a group of its own.
    queues = cluster.route(topic).readable
    until(lambda: sum(cluster.all_committed(queues, figures["group"]).values()) == 50)
    send(texts(topic, 50, 55))
    taken, _ = run()
    assert taken.batches == {3: names(50, 55)}


def total(offset: dict[str, Any]) -> int:
    tree: dict[str, dict[str, dict[str, int]]] = offset["q"]
    return sum(at for brokers in tree.values() for queues in brokers.values() for at in queues.values())


def test_messages_as_they_come_and_the_lag_of_the_group(
    stream: Callable[..., DataStreamReader],
    topic: str,
    send: Send,
    tmp_path: Path,
    cluster: SocketCluster,
    broker: BrokerThread,
) -> None:
    send(texts(topic, 0, 5))
    taken = Taken()
    frame = stream(topic, startingOffsets="latest", group="lagging", discoveryIntervalMs=50).load()
    query = frame.writeStream.foreachBatch(taken).option("checkpointLocation", str(tmp_path)).start()
    queues = cluster.route(topic).readable

    def reported() -> int:
        return sum(cluster.all_committed(queues, "lagging").values())

    try:
        until(lambda: reported() == 5, query)  # where it begins is told too
        send(texts(topic, 5, 12))
        until(lambda: len(taken.all) == 7, query)
        assert taken.all == names(5, 12)
        # The last batch as well, although none follows: 3 in each queue, and none is doubled or left out.
        until(lambda: reported() == 12, query)
        # More queues, while it runs: read from their beginning, although the query began with the latest.
        broker.create_topic(topic, queues=len(queues) + 1)
        with Producer(broker.nameserver_address, group="grown") as producer:
            producer.send_many(texts(topic, 12, 15), queue=Queue(topic, "broker-a", len(queues)))
        until(lambda: len(taken.all) == 10, query)
        assert taken.all == names(5, 15)
        queues = cluster.route(topic, fresh=True).readable
        until(lambda: reported() == 15, query)
    finally:
        query.stop()
    send(texts(topic, 15, 18))
    command = ["group", "lag", "lagging", "--topic", topic, "--json", "-n", broker.nameserver_address]
    assert json.loads(CliRunner().invoke(app, command, catch_exceptions=False).stdout)["lag"] == 3


def test_a_crash_in_the_first_batch_with_latest(
    stream: Callable[..., DataStreamReader], new_topic: NewTopic, send: Send, tmp_path: Path
) -> None:
    """Spark does not keep where a first batch began: done again, it begins there all the same."""
    topic = new_topic(queues=1)
    send(texts(topic, 0, 5))
    # It waits for messages before its first batch ends, so that the batch has some.
    frame = stream(topic, startingOffsets="latest", idleWaitMs=5000).load()

    def start(taken: Taken) -> StreamingQuery:
        return frame.writeStream.foreachBatch(taken).option("checkpointLocation", str(tmp_path)).start()

    crashing, again = Taken(fails_in=0), Taken()
    query = start(crashing)
    sent = 5
    while query.isActive:
        send(texts(topic, sent, sent + 1))
        sent += 1
        time.sleep(0.05)
    assert query.exception() is not None
    query = start(again)
    try:
        until(lambda: f"m{sent - 1:03d}" in again.all, query)
    finally:
        query.stop()
    first = crashing.batches[0]
    assert first
    assert again.batches[0] == first
    assert again.all == names(int(first[0][1:]), sent)
