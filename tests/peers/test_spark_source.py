"""Topics of Apache's broker as Spark tables; its own tools see how far a query is."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from kerolox.blocking import Producer
from kerolox.client.messages import Message
from kerolox.client.options import ProducerOptions

from .driver import JavaDriver
from .processes import JavaBroker, JavaNameServer

pytest.importorskip("pyspark")

from kerolox.spark.source.queues import DataLoss
from tests.spark.source_kit import Query, batch_read, close_all

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Unique = Callable[[str], str]
NewTopic = Callable[..., str]


@pytest.fixture(scope="module")
def spark() -> SparkSession:
    from kerolox.spark.session import session

    quick = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
    return session("kerolox-peers", "local[2,2]", conf=quick)


@pytest.fixture
def peer(java_nameserver: JavaNameServer, java_broker: JavaBroker) -> Iterator[Any]:
    yield SimpleNamespace(nameserver_address=java_nameserver.address, address=java_broker.address)
    close_all()


@pytest.fixture
def new_topic(peer: Any, java_driver: JavaDriver, unique: Unique) -> NewTopic:
    def make(queues: int = 4) -> str:
        topic = unique("topic")
        java_driver.create_topic(peer.nameserver_address, peer.address, topic, queues)
        return topic

    return make


def send(peer: Any, messages: list[Message], **options: Any) -> None:
    with Producer(peer.nameserver_address, group="sender", options=ProducerOptions(**options)) as producer:
        for message in messages:  # one after the other: Apache's broker takes what comes at once in any order
            producer.send(message)


def names(begin: int, end: int) -> list[str]:
    return [f"m{number:03d}" for number in range(begin, end)]


def texts(topic: str, begin: int, end: int) -> list[Message]:
    return [Message(topic, body) for body in names(begin, end)]


def gathered(query: Query, count: int) -> list[str]:
    found: list[str] = []
    wait_until(lambda: found.extend(query.next()) or len(found) >= count)  # type: ignore[func-returns-value]
    return found


def wait_until(is_so: Callable[[], bool], timeout_s: float = 60.0) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < deadline_s
        time.sleep(0.1)


def test_where_queries_begin_and_end(peer: Any, new_topic: NewTopic, java_driver: JavaDriver) -> None:
    topic = new_topic(queues=1)
    assert batch_read(peer, topic) == []
    late = Query(peer, topic, startingOffsets="latest", group="late", discoveryIntervalMs=1)
    assert late.next() == []
    send(peer, texts(topic, 0, 5))
    time.sleep(0.05)
    between_ms = round(time.time() * 1000)
    time.sleep(0.05)
    send(peer, texts(topic, 5, 8))
    broker = next(iter(late.source.initialOffset()["q"][topic]))
    at: Callable[[int], Any] = lambda offset: {topic: {broker: {"0": offset}}}  # noqa: E731
    assert batch_read(peer, topic) == names(0, 8)
    assert batch_read(peer, topic, startingOffsets=at(2), endingOffsets=at(6)) == names(2, 6)
    assert batch_read(peer, topic, startingTimestamp=between_ms) == names(5, 8)
    assert batch_read(peer, topic, endingTimestamp=between_ms) == names(0, 5)
    assert batch_read(peer, topic, startingTimestamp=between_ms + 3_600_000) == []
    assert batch_read(peer, topic, startingTimestamp=1) == names(0, 8)
    assert late.next() == names(0, 8)
    with pytest.raises(DataLoss, match="offset 99"):
        batch_read(peer, topic, startingOffsets=at(99))
    # More queues, for a query that runs; and none.
    java_driver.create_topic(peer.nameserver_address, peer.address, topic, 3)
    with Producer(peer.nameserver_address, group="sender") as producer:
        sent = producer.send_many([Message(topic, f"{n}") for n in range(9)])
    assert {receipt.queue.queue_id for receipt in sent} == {0, 1, 2}
    assert sorted(gathered(late, 9)) == [f"{n}" for n in range(9)]
    java_driver.mqadmin("deleteTopic", "-n", peer.nameserver_address, "-c", "DefaultCluster", "-t", topic)
    with pytest.raises(DataLoss, match=rf"{topic}/{broker}/0: offset .*failOnDataLoss"):
        gathered(late, 1)


def test_a_topic_made_anew_while_a_query_is_stopped(
    peer: Any, new_topic: NewTopic, java_driver: JavaDriver
) -> None:
    topic = new_topic(queues=1)
    send(peer, texts(topic, 0, 5))
    query = Query(peer, topic, startingOffsets="earliest")
    assert gathered(query, 5) == names(0, 5)
    java_driver.mqadmin("deleteTopic", "-n", peer.nameserver_address, "-c", "DefaultCluster", "-t", topic)
    java_driver.create_topic(peer.nameserver_address, peer.address, topic, 1)
    send(peer, texts(topic, 10, 17))
    again, tolerant = Query(peer, topic), Query(peer, topic, failOnDataLoss="false")
    again.at = tolerant.at = query.at
    assert gathered(tolerant, 7) == names(10, 17)
    with pytest.raises(DataLoss, match=rf"{topic}/.*: offset 5 .*deleted and made anew"):
        again.next()
    send(peer, texts(topic, 17, 19))
    assert gathered(tolerant, 2) == names(17, 19)


def test_messages_of_all_kinds(peer: Any, new_topic: NewTopic) -> None:
    topic = new_topic(queues=1)
    rng = random.Random(1)
    bodies = [rng.randbytes(rng.choice((1, 100, 5_000, 60_000))).hex() for _ in range(200)]
    tags = ["Aa", "BB", "other"]  # Java has one hash for the first two
    messages = [Message(topic, body, tags=tags[number % 3]) for number, body in enumerate(bodies)]
    send(peer, messages[:100], compression="")
    send(peer, messages[100:], compression="zstd")
    for ahead in (1, 8):
        assert batch_read(peer, topic, pullsAhead=ahead) == bodies
    assert batch_read(peer, topic, tags="Aa") == bodies[::3]


def test_in_spark(
    spark: SparkSession,
    peer: Any,
    new_topic: NewTopic,
    java_driver: JavaDriver,
    unique: Unique,
    tmp_path: Path,
) -> None:
    topic, group = new_topic(queues=4), unique("group")

    def frame(reader: Any, **options: Any) -> DataFrame:
        reader = reader.format("rocketmq").options(nameserver=peer.nameserver_address, topic=topic, **options)
        found: DataFrame = reader.load()
        return found

    def progress() -> str:
        return java_driver.mqadmin("consumerProgress", "-n", peer.nameserver_address, "-g", group)

    assert frame(spark.read).count() == 0
    with Producer(peer.nameserver_address, group="sender") as producer:
        producer.send_many([Message(topic, f"{n}", tags="ab"[n % 2], keys=f"k{n}") for n in range(100)])
    rows = frame(spark.read).collect()
    assert sorted(int(row.body) for row in rows) == list(range(100))
    assert all(row["keys"] == f"k{row.body.decode()}" for row in rows)
    assert frame(spark.read, tags="a").count() == 50

    taken: list[int] = []

    def take(batch: DataFrame, number: int) -> None:
        taken.extend(int(row.body) for row in batch.collect())

    stream = frame(spark.readStream, startingOffsets="earliest", maxOffsetsPerTrigger=40, group=group)
    writer = stream.writeStream.foreachBatch(take).option("checkpointLocation", str(tmp_path / "checkpoint"))
    writer.trigger(availableNow=True).start().awaitTermination()
    assert sorted(taken) == list(range(100))
    wait_until(lambda: "Diff Total: 0" in progress())
    assert len(re.findall(r" 25 +25 +0 ", progress())) == 4
    with Producer(peer.nameserver_address, group="sender") as producer:
        producer.send_many([Message(topic, f"{n}") for n in range(100, 107)])
    assert "Diff Total: 7" in progress()
    writer.trigger(availableNow=True).start().awaitTermination()
    assert sorted(taken) == list(range(107))
    wait_until(lambda: "Diff Total: 0" in progress())
