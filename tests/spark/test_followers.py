"""Queries over a leader that dies, and its follower that is left."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable

from kerolox.blocking import Producer
from kerolox.client.messages import Message
from kerolox.spark.source.queues import DataLoss
from kerolox.testing.threads import BrokerThread, broker_in_thread
from tests.spark.source_kit import Query, batch_read, close_all

QUEUES = 2
Send = Callable[[int, int], None]


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[BrokerThread]:
    with broker_in_thread(followers=1, directory=tmp_path / "brokers") as running:
        running.create_topic("T", queues=QUEUES)
        running.caught_up()
        yield running
        close_all()


@pytest.fixture
def send(brokers: BrokerThread) -> Iterator[Send]:
    with Producer(brokers.nameserver_address, group="p") as producer:

        def send(start: int, end: int) -> None:
            receipts = producer.send_many([Message("T", str(number)) for number in range(start, end)])
            assert all(receipt.ok for receipt in receipts)

        yield send


def texts(start: int, end: int) -> list[str]:
    return sorted(map(str, range(start, end)))


def served_by(brokers: BrokerThread, broker_id: int) -> list[int]:
    """How many messages a broker gives with each pull, from now on."""
    counts: list[int] = []

    def note(group: str, topic: str, queue_id: int, count: int, size: int, behind: int) -> None:
        counts.append(count)

    brokers.cluster.broker("broker-a", broker_id).broker.consuming.reads.on_served.append(note)
    return counts


# --- the source alone --------------------------------------------------------------------------------


def test_a_batch_goes_on_where_the_leader_left_off(brokers: BrokerThread, send: Send) -> None:
    send(0, 200)
    brokers.caught_up()
    assert sorted(batch_read(brokers, "T")) == texts(0, 200)
    brokers.kill("broker-a")
    assert sorted(batch_read(brokers, "T")) == texts(0, 200)


def test_a_stream_waits_for_what_the_follower_lacks(brokers: BrokerThread, send: Send) -> None:
    """It has read further than the follower: nothing is read again, nothing left out."""
    send(0, 20)
    brokers.caught_up()
    query = Query(brokers, "T", startingOffsets="earliest", retryForMs=60_000, discoveryIntervalMs=1)
    assert sorted(query.next()) == texts(0, 20)
    brokers.link("broker-a", 1).cut()
    send(20, 40)
    assert sorted(query.next()) == texts(20, 40)
    brokers.kill("broker-a")
    at = query.at
    assert query.next() == []
    assert query.at == at
    brokers.link("broker-a", 1).heal()
    brokers.start_again("broker-a")
    brokers.caught_up()
    send(40, 60)
    found: list[str] = []
    while len(found) < 20:
        found += query.next()
    assert sorted(found) == texts(40, 60)


@pytest.mark.parametrize("fails", [True, False])
def test_a_leader_that_does_not_return_is_told_of(brokers: BrokerThread, send: Send, fails: bool) -> None:
    send(0, 20)
    brokers.caught_up()
    query = Query(brokers, "T", startingOffsets="earliest", retryForMs=300, failOnDataLoss=fails)
    assert sorted(query.next()) == texts(0, 20)
    brokers.link("broker-a", 1).cut()
    send(20, 40)
    assert sorted(query.next()) == texts(20, 40)
    brokers.kill("broker-a")
    follower = brokers.cluster.followers("broker-a")[1].address
    if fails:
        with pytest.raises(DataLoss) as failed:
            run_dry(query)
        told = str(failed.value)
        assert f"was to be read next, but follower {follower} has 0 to 10, and its leader is gone" in told
        assert "start the leader" in told.lower()
    else:
        at = query.at
        for _ in range(20):
            assert query.next() == []
        assert query.at == at


@pytest.mark.parametrize("fails", [True, False])
def test_a_range_that_was_planned_by_the_leader(brokers: BrokerThread, send: Send, fails: bool) -> None:
    send(0, 20)
    brokers.caught_up()
    brokers.link("broker-a", 1).cut()
    send(20, 40)
    query = Query(brokers, "T", startingOffsets="earliest", retryForMs=1000, failOnDataLoss=fails)
    start = query.source.initialOffset()
    end = query.source.latestOffset(start, ReadAllAvailable())
    brokers.kill("broker-a")
    if fails:
        with pytest.raises(DataLoss, match="has 0 to 10, and its leader is gone"):
            query.read(start, end)
    else:
        assert sorted(query.read(start, end)) == texts(0, 20)


def test_a_query_that_ends_reads_all_it_aimed_at(brokers: BrokerThread, send: Send) -> None:
    """Trigger.AvailableNow: it ends at what the leader had when it began, not at what the follower has."""
    send(0, 20)
    brokers.caught_up()
    brokers.link("broker-a", 1).cut()
    send(20, 40)
    query = Query(brokers, "T", startingOffsets="earliest", retryForMs=60_000, maxOffsetsPerTrigger=10)
    query.source.prepareForTriggerAvailableNow()
    found = query.next()
    brokers.kill("broker-a")
    while len(found) < 20:
        found += query.next()
    returned = threading.Timer(1.0, brokers.start_again, ["broker-a"])
    returned.start()
    while batch := query.next():
        found += batch
    returned.join()
    assert sorted(found) == texts(0, 40)


def run_dry(query: Query) -> None:
    while not query.next():
        pass
    raise AssertionError("there was something to read")


# --- in Spark ----------------------------------------------------------------------------------------


def test_a_table_is_read_from_the_follower(spark: SparkSession, brokers: BrokerThread, send: Send) -> None:
    send(0, 300)
    brokers.caught_up()
    by_leader, by_follower = served_by(brokers, 0), served_by(brokers, 1)
    table = (
        spark.read.format("rocketmq")
        .option("nameserver", brokers.nameserver_address)
        .option("topic", "T")
        .option("readFrom", "follower")
        .load()
    )
    assert sorted(row.body.decode() for row in table.select("body").collect()) == texts(0, 300)
    assert sum(by_follower) == 300
    assert by_leader == []


def test_a_query_survives_its_leader(
    spark: SparkSession, brokers: BrokerThread, send: Send, tmp_path: Path
) -> None:
    found: list[str] = []
    came = threading.Event()

    def take(batch: DataFrame, number: int) -> None:
        found.extend(row.body.decode() for row in batch.select("body").collect())
        came.set()

    def until(count: int) -> None:
        while len(found) < count:
            assert query.exception() is None, query.exception()
            came.wait(1.0)
            came.clear()

    send(0, 100)
    brokers.caught_up()
    by_follower = served_by(brokers, 1)
    query = (
        spark.readStream.format("rocketmq")
        .option("nameserver", brokers.nameserver_address)
        .option("topic", "T")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 40)
        .option("discoveryIntervalMs", 500)
        .load()
        .writeStream.foreachBatch(take)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    try:
        until(40)
        brokers.kill("broker-a")
        until(100)
        assert sum(by_follower) > 0
        brokers.start_again("broker-a")
        brokers.caught_up()
        send(100, 150)
        until(150)
    finally:
        query.stop()
    assert sorted(found) == texts(0, 150)
