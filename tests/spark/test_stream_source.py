"""How far streaming queries go, without Spark: the source's methods in Spark's order, a real broker."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows, ReadMinRows

from kerolox.blocking import Producer
from kerolox.client.errors import TopicNotFound
from kerolox.client.messages import Message, Queue
from kerolox.client.sockets import socket_cluster as plain
from kerolox.client.sockets.socket_cluster import Edges, SocketCluster
from kerolox.errors import ConnectionLost, KeroloxError, OptionError, ProtocolError
from kerolox.spark import fill_metrics
from kerolox.spark.source.queues import DataLoss
from kerolox.testing.threads import BrokerThread, broker_in_thread
from tests.spark.source_kit import Query, batch_read, close_all, delete_topic, schema, through_json

Send = Callable[[Sequence[Message]], Any]
NewTopic = Callable[..., str]


def texts(topic: str, begin: int, end: int) -> list[Message]:
    return [Message(topic, f"m{number:03d}") for number in range(begin, end)]


def names(begin: int, end: int) -> list[str]:
    return [f"m{number:03d}" for number in range(begin, end)]


@pytest.fixture
def cluster(broker: BrokerThread) -> Iterator[SocketCluster]:
    with SocketCluster(broker.nameserver_address) as plain:
        yield plain


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    close_all()


# --- whose progress it is ----------------------------------------------------------------------------


def test_queries_without_a_group_have_one_each_and_keep_it(
    broker: BrokerThread, new_topic: NewTopic, send: Send, cluster: SocketCluster
) -> None:
    topic = new_topic(queues=1)
    send(texts(topic, 0, 5))
    slow = Query(broker, topic, startingOffsets="earliest", maxOffsetsPerTrigger=2)
    fast = Query(broker, topic, startingOffsets="earliest")
    assert (slow.next(), fast.next()) == (names(0, 2), names(0, 5))
    assert slow.at is not None
    assert fast.at is not None
    slow_group, fast_group = slow.at["group"], fast.at["group"]
    assert slow_group != fast_group
    assert slow_group.startswith("spark_reader-")
    for query in (fast, slow):
        query.source.commit(query.at or {})
    (queue,) = cluster.route(topic).readable
    assert [cluster.committed(queue, group) for group in (slow_group, fast_group)] == [2, 5]
    again = Query(broker, topic, maxOffsetsPerTrigger=2)  # from its checkpoint
    again.at = slow.at
    assert again.next() == names(2, 4)
    assert again.at["group"] == slow_group
    renamed = Query(broker, topic, group="mine", maxOffsetsPerTrigger=2)
    renamed.at = slow.at
    renamed.next()
    assert renamed.at["group"] == "mine"


def test_how_far_behind_is_told_with_the_latest_offset(broker: BrokerThread, new_topic: NewTopic) -> None:
    topic = new_topic(queues=2)
    with Producer(broker.nameserver_address, group="p") as producer:
        for queue, count in ((0, 6), (1, 3)):
            producer.send_many(
                [Message(topic, f"{n}") for n in range(count)], queue=Queue(topic, "broker-a", queue)
            )
    query = Query(broker, topic, startingOffsets="earliest", maxOffsetsPerTrigger=3)
    start = query.source.initialOffset()
    query.next()
    latest = query.source.reportLatestOffset()
    assert latest is not None
    assert latest["behind"] == {"avg": 3.0, "max": 4, "min": 2, "sum": 6}
    source = {"startOffset": None, "endOffset": json.dumps(query.at), "latestOffset": json.dumps(latest)}
    other = {"startOffset": "7", "endOffset": "8", "latestOffset": "9", "metrics": {"own": "1"}}
    progress = fill_metrics({"sources": [source, other]})
    assert progress["sources"][0]["metrics"] == {
        "avgOffsetsBehindLatest": "3.0",
        "maxOffsetsBehindLatest": "4",
        "minOffsetsBehindLatest": "2",
        "offsetsRead": "3",
        "group": start["group"],
    }
    assert progress["sources"][1]["metrics"] == {"own": "1"}
    while query.next():
        pass
    latest = query.source.reportLatestOffset()
    assert latest is not None
    assert latest["behind"] == {"avg": 0.0, "max": 0, "min": 0, "sum": 0}


# --- where a query begins ----------------------------------------------------------------------------


def test_earliest_latest_and_what_comes_later(broker: BrokerThread, topic: str, send: Send) -> None:
    send(texts(topic, 0, 20))
    early, late, default = (
        Query(broker, topic, startingOffsets="earliest"),
        Query(broker, topic, startingOffsets="latest"),
        Query(broker, topic),
    )
    assert (sorted(early.next()), late.next(), default.next()) == (names(0, 20), [], [])
    send(texts(topic, 20, 30))
    assert sorted(early.next()) == sorted(late.next()) == sorted(default.next()) == names(20, 30)
    assert early.next() == late.next() == default.next() == []


def test_offsets_per_queue(broker: BrokerThread, new_topic: NewTopic) -> None:
    topic = new_topic(queues=4)
    with Producer(broker.nameserver_address, group="p") as producer:
        for queue in range(4):
            producer.send_many(
                [Message(topic, f"q{queue}-{n}") for n in range(5)], queue=Queue(topic, "broker-a", queue)
            )
    given = {topic: {"broker-a": {"0": 3, "1": -1, "2": -2}}}
    query = Query(broker, topic, startingOffsets=given)
    everything = [f"q{queue}-{n}" for queue in (2, 3) for n in range(5)]
    assert query.next() == ["q0-3", "q0-4", *everything]  # queues that are not named: from the earliest on


def test_offsets_that_are_not_there(broker: BrokerThread, new_topic: NewTopic, send: Send) -> None:
    topic = new_topic(queues=1)
    send(texts(topic, 0, 5))
    far = {topic: {"broker-a": {"0": 99}}}
    with pytest.raises(DataLoss, match=r"offset 99 .* ends at 5.*failOnDataLoss"):
        Query(broker, topic, startingOffsets=far).next()
    assert Query(broker, topic, startingOffsets=far, failOnDataLoss="false").next() == names(0, 5)
    with pytest.raises(OptionError, match=rf"{topic}/broker-a/7.*{topic}/broker-a/0"):
        Query(broker, topic, startingOffsets={topic: {"broker-a": {"7": 0}}}).next()


def test_where_the_group_is(
    broker: BrokerThread, new_topic: NewTopic, send: Send, cluster: SocketCluster
) -> None:
    topic = new_topic(queues=1)
    send(texts(topic, 0, 5))
    (queue,) = cluster.route(topic).readable
    assert Query(broker, topic, startingOffsets="group", group="not-begun").next() == names(0, 5)
    list(cluster.blocks(queue, 0, 1, group="begun"))  # a group begins by pulling
    cluster.commit(queue, "begun", 3)
    assert Query(broker, topic, startingOffsets="group", group="begun").next() == names(3, 5)


def test_a_point_in_time(broker: BrokerThread, new_topic: NewTopic, send: Send) -> None:
    topic = new_topic(queues=1)
    send(texts(topic, 0, 5))
    time.sleep(0.02)
    between_ms = round(time.time() * 1000)
    time.sleep(0.02)
    send(texts(topic, 5, 8))
    assert Query(broker, topic, startingTimestamp=between_ms).next() == names(5, 8)
    later = Query(broker, topic, startingTimestamp=between_ms + 3_600_000)
    assert later.next() == []
    send(texts(topic, 8, 9))
    assert later.next() == names(8, 9)
    assert Query(broker, topic, startingTimestamp="2001-01-01T00:00:00Z").next() == names(0, 9)


def test_a_point_in_time_for_each_topic_and_queue(
    broker: BrokerThread, new_topic: NewTopic, cluster: SocketCluster
) -> None:
    one, two = new_topic(queues=2), new_topic(queues=1)
    with Producer(broker.nameserver_address, group="p") as producer:
        for topic, queue in ((one, 0), (one, 1), (two, 0)):
            for n in range(3):
                producer.send(
                    Message(topic, f"{'ab'[topic == two]}{queue}-{n}"), queue=Queue(topic, "broker-a", queue)
                )
                time.sleep(0.002)
    times = {
        queue: [message.store_timestamp for message in cluster.read(queue, 0, 3, group="look")]
        for topic in (one, two)
        for queue in cluster.route(topic).readable
    }
    first, second, third = (
        times[Queue(one, "broker-a", 0)],
        times[Queue(one, "broker-a", 1)],
        times[Queue(two, "broker-a", 0)],
    )
    given = {one: {"broker-a": {"0": first[2]}}, two: third[1]}
    query = Query(broker, f"{one},{two}", startingOffsetsByTimestamp=given)
    assert sorted(query.next()) == ["a0-2", "a1-0", "a1-1", "a1-2", "b0-1", "b0-2"]
    ending = {one: {"broker-a": {"1": second[1]}}, two: third[0]}
    assert sorted(batch_read(broker, f"{one},{two}", endingOffsetsByTimestamp=ending)) == [
        "a0-0",
        "a0-1",
        "a0-2",
        "a1-0",
    ]
    with pytest.raises(
        OptionError, match=rf"startingOffsetsByTimestamp = 'nobody, {one}/broker-a/9'.*are there"
    ):
        Query(broker, one, startingOffsetsByTimestamp={one: {"broker-a": {"9": 1}}, "nobody": 1}).next()


def test_a_time_after_the_last_message(broker: BrokerThread, new_topic: NewTopic, send: Send) -> None:
    topic = new_topic(queues=1)
    send(texts(topic, 0, 5))
    later = round(time.time() * 1000) + 3_600_000
    said = (
        rf"startingTimestamp = {later}: expected a message stored then or later in queue {topic}/broker-a/0"
    )
    with pytest.raises(OptionError, match=said):
        Query(broker, topic, startingTimestamp=later, startingOffsetsByTimestampStrategy="error").next()
    strict = Query(broker, topic, startingTimestamp="1h", startingOffsetsByTimestampStrategy="error")
    assert strict.next() == names(0, 5)
    latest = Query(broker, topic, startingTimestamp=later, startingOffsetsByTimestampStrategy="latest")
    assert latest.next() == []
    send(texts(topic, 5, 6))
    assert latest.next() == names(5, 6)


def test_the_first_offset_is_the_same_when_asked_again(broker: BrokerThread, topic: str, send: Send) -> None:
    send(texts(topic, 0, 5))
    query = Query(broker, topic)
    first = query.source.initialOffset()
    send(texts(topic, 5, 9))
    assert query.source.initialOffset() == first
    assert sorted(query.next()) == names(5, 9)


def test_a_first_batch_that_is_done_again_is_the_same(broker: BrokerThread, topic: str, send: Send) -> None:
    """Spark keeps where the first batch ends, not where it began: after a crash in it ``latest`` is later."""
    send(texts(topic, 0, 5))
    crashed = Query(broker, topic, startingOffsets="latest")
    start = through_json(crashed.source.initialOffset())
    send(texts(topic, 5, 12))
    end = through_json(crashed.source.latestOffset(start, crashed.limit))
    assert sorted(crashed.read(start, end)) == names(5, 12)
    send(texts(topic, 12, 15))
    again = Query(broker, topic, startingOffsets="latest")
    assert sorted(again.read(through_json(again.source.initialOffset()), end)) == names(5, 12)
    again.at = end
    assert sorted(again.next()) == names(12, 15)


def test_an_empty_first_batch_loses_nothing(broker: BrokerThread, topic: str, send: Send) -> None:
    crashed = Query(broker, topic, startingOffsets="latest")
    start = through_json(crashed.source.initialOffset())
    end = through_json(crashed.source.latestOffset(start, crashed.limit))
    assert end == start
    send(texts(topic, 0, 5))
    again = Query(broker, topic, startingOffsets="latest")
    assert again.read(through_json(again.source.initialOffset()), end) == []
    again.at = end
    assert sorted(again.next()) == names(0, 5)


# --- how much in a batch -----------------------------------------------------------------------------


def test_so_many_messages_in_a_batch(broker: BrokerThread, topic: str, send: Send) -> None:
    send(texts(topic, 0, 100))
    query = Query(broker, topic, startingOffsets="earliest", maxOffsetsPerTrigger=30)
    assert query.limit == ReadMaxRows(30)
    batches = [query.next() for _ in range(5)]
    assert [len(batch) for batch in batches] == [30, 30, 30, 10, 0]
    assert sorted(body for batch in batches for body in batch) == names(0, 100)


def test_queues_share_by_what_they_have(broker: BrokerThread, new_topic: NewTopic) -> None:
    topic = new_topic(queues=2)
    with Producer(broker.nameserver_address, group="p") as producer:
        producer.send_many([Message(topic, f"long{n}") for n in range(90)], queue=Queue(topic, "broker-a", 0))
        producer.send_many([Message(topic, "short")] * 10, queue=Queue(topic, "broker-a", 1))
    query = Query(broker, topic, startingOffsets="earliest", maxOffsetsPerTrigger=20)
    first = query.next()
    assert (first.count("short"), len(first)) == (2, 20)


def test_so_many_bytes_in_a_batch(broker: BrokerThread, new_topic: NewTopic, send: Send) -> None:
    topic = new_topic(queues=1)
    send([Message(topic, f"{n:010d}" * 100) for n in range(60)])
    query = Query(broker, topic, startingOffsets="earliest", maxBytesPerTrigger="24k")
    assert query.limit == ReadMaxBytes(24 << 10)
    sizes = [len(query.next()) for _ in range(4)]
    assert all(17 <= size <= 21 for size in sizes[:2])  # 1000 bytes each, and about 200 around them
    assert sum(sizes) == 60
    both = Query(broker, topic, startingOffsets="earliest", maxBytesPerTrigger="24k", maxOffsetsPerTrigger=5)
    assert len(both.next()) == 5


def test_one_message_larger_than_the_limit(broker: BrokerThread, new_topic: NewTopic, send: Send) -> None:
    topic = new_topic(queues=1)
    send([Message(topic, "x" * 5000), Message(topic, "y" * 5000)])
    query = Query(broker, topic, startingOffsets="earliest", maxBytesPerTrigger=100)
    assert [body[0] for _ in range(2) for body in query.next()] == ["x", "y"]


def test_once_means_everything(broker: BrokerThread, topic: str, send: Send) -> None:
    send(texts(topic, 0, 50))
    query = Query(broker, topic, startingOffsets="earliest", maxOffsetsPerTrigger=5)
    assert len(query.next(ReadAllAvailable())) == 50


def test_waiting_until_it_is_worth_it(broker: BrokerThread, topic: str, send: Send) -> None:
    send(texts(topic, 0, 5))
    query = Query(broker, topic, startingOffsets="earliest", minOffsetsPerTrigger=8, maxTriggerDelayMs=60_000)
    assert query.limit == ReadMinRows(8)
    assert query.next() == []
    send(texts(topic, 5, 9))
    assert sorted(query.next()) == names(0, 9)
    send(texts(topic, 9, 10))
    assert query.next() == []
    impatient = Query(broker, topic, startingOffsets="earliest", minOffsetsPerTrigger=99, maxTriggerDelayMs=0)
    assert sorted(impatient.next()) == names(0, 10)


# --- idle --------------------------------------------------------------------------------------------


def test_an_idle_query_waits_and_wakes(broker: BrokerThread, topic: str, send: Send) -> None:
    query = Query(broker, topic, idleWaitMs=300)
    query.next()
    began_s = time.monotonic()
    assert query.next() == []
    assert time.monotonic() - began_s >= 0.29
    later = threading.Timer(0.1, lambda: send(texts(topic, 0, 1)))
    later.start()
    patient = Query(broker, topic, startingOffsets="earliest", idleWaitMs=5000)
    began_s = time.monotonic()
    assert patient.next() == names(0, 1)
    assert time.monotonic() - began_s < 4
    later.join()


def test_nothing_new_is_the_same_text(broker: BrokerThread, topic: str, send: Send) -> None:
    """Spark compares texts: another order of keys would be a batch."""
    send(texts(topic, 0, 9))
    query = Query(broker, topic, startingOffsets="earliest")
    query.next()
    assert query.at is not None
    before = json.dumps(query.at)
    assert json.dumps(query.source.latestOffset(query.at, query.limit)) == before
    assert query.source.partitions(query.at, query.at) == []


def test_available_now_ends_with_a_busy_producer(broker: BrokerThread, topic: str, send: Send) -> None:
    send(texts(topic, 0, 10))
    query = Query(broker, topic, startingOffsets="earliest", maxOffsetsPerTrigger=6, idleWaitMs=5000)
    query.source.prepareForTriggerAvailableNow()
    send(texts(topic, 10, 20))
    first, second = query.next(), query.next()
    assert sorted(first + second) == names(0, 10)
    began_s = time.monotonic()
    assert query.next() == []
    assert time.monotonic() - began_s < 2  # it does not wait for more
    following = Query(broker, topic)
    following.at = query.at
    following.source.prepareForTriggerAvailableNow()
    assert sorted(following.next()) == names(10, 20)


def test_latest_now_is_nothing(broker: BrokerThread, topic: str, send: Send) -> None:
    send(texts(topic, 0, 5))
    query = Query(broker, topic, startingOffsets="latest")
    query.source.prepareForTriggerAvailableNow()
    send(texts(topic, 5, 10))
    assert query.next() == []


# --- queues come and go -----------------------------------------------------------------------------


def test_new_queues_are_read_from_their_beginning(broker: BrokerThread, new_topic: NewTopic) -> None:
    topic = new_topic(queues=1)
    query = Query(broker, topic, discoveryIntervalMs=1)
    assert query.next() == []
    broker.create_topic(topic, queues=3)
    assert query.next() == []  # an empty queue makes no batch
    with Producer(broker.nameserver_address, group="p") as producer:
        for queue in (2, 0):
            producer.send_many(
                [Message(topic, f"q{queue}-{n}") for n in range(3)], queue=Queue(topic, "broker-a", queue)
            )
    start = query.at
    assert query.next() == [f"q{queue}-{n}" for queue in (0, 2) for n in range(3)]
    assert start is not None
    assert query.at is not None
    assert query.at["from"][topic]["broker-a"]["2"] == 0
    assert "2" not in start["q"][topic]["broker-a"]


def test_new_topics_of_a_pattern(broker: BrokerThread, new_topic: NewTopic, send: Send) -> None:
    first = new_topic(queues=1)
    send(texts(first, 0, 3))
    prefix = f"pat-{first}"
    query = Query(broker, topicPattern=f"{prefix}-.*", startingOffsets="earliest", discoveryIntervalMs=1)
    assert query.next() == []
    for number in range(2):
        broker.create_topic(f"{prefix}-{number}", queues=1)
        send(texts(f"{prefix}-{number}", number, number + 1))
        assert query.next() == names(number, number + 1)
    broker.create_topic(f"%RETRY%{prefix}-", queues=1)
    everything = Query(broker, topicPattern=".*", startingOffsets="latest")
    first_offset = everything.source.initialOffset()
    assert {first, f"{prefix}-0", f"{prefix}-1"} <= set(first_offset["q"])
    assert not [
        name for name in first_offset["q"] if name.startswith(("%", "broker-", "TBW", "SCHEDULE", "rmq"))
    ]


def test_some_queues_only(broker: BrokerThread, topic: str, send: Send) -> None:
    send(texts(topic, 0, 20))
    query = Query(broker, topic, startingOffsets="earliest", queueIds="1,3")
    assert len(query.next()) == 10
    assert query.at is not None
    assert list(query.at["q"][topic]["broker-a"]) == ["1", "3"]


def test_several_topics(broker: BrokerThread, new_topic: NewTopic, send: Send) -> None:
    one, two = new_topic(queues=1), new_topic(queues=1)
    send(texts(one, 0, 2) + texts(two, 2, 4))
    assert sorted(Query(broker, f"{one}, {two}", startingOffsets="earliest").next()) == names(0, 4)


def test_a_topic_that_is_not_there(broker: BrokerThread) -> None:
    with pytest.raises(TopicNotFound, match="no-such-topic"):
        Query(broker, "no-such-topic").next()


@pytest.mark.parametrize("available_now", [False, True])
def test_a_topic_of_the_checkpoint_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, available_now: bool
) -> None:
    """A query goes on after everything was restarted: a name server may not know its topic yet."""
    monkeypatch.setattr(plain, "QUEUES", plain.QUEUES._replace(unknown_topic_s=0.0))
    with broker_in_thread(2) as two:
        second = two.cluster.brokers[1]
        two.run(lambda: second.create_topic("orders", queues=1))
        with Producer(two.nameserver_address, group="p") as producer:
            producer.send_many(texts("orders", 0, 3))
            before = Query(two, "orders", startingOffsets="earliest")
            assert before.next() == names(0, 3)
            producer.send_many(texts("orders", 3, 5))
        two.stop(1)

        waiting = [lambda: two.start(1)]

        def sleep(seconds: float) -> None:
            if waiting:
                waiting.pop()()
            time.sleep(seconds)

        monkeypatch.setattr(plain, "time", SimpleNamespace(monotonic=time.monotonic, sleep=sleep))
        again = Query(two, "orders", retryForMs=60_000)
        again.at = before.at
        if available_now:
            again.source.prepareForTriggerAvailableNow()
        assert again.next() == names(3, 5)
        close_all()


def test_a_topic_deleted_and_made_again(broker: BrokerThread, new_topic: NewTopic, send: Send) -> None:
    topic = new_topic(queues=1)
    send(texts(topic, 0, 5))
    strict = Query(broker, topic, startingOffsets="earliest", discoveryIntervalMs=1)
    easy = Query(broker, topic, startingOffsets="earliest", failOnDataLoss="false", discoveryIntervalMs=1)
    assert strict.next() == easy.next() == names(0, 5)
    delete_topic(broker, topic)
    with pytest.raises(DataLoss, match=rf"{topic}/broker-a/0: offset 5 .*ends at 0.*failOnDataLoss"):
        strict.next()
    assert easy.next() == []
    broker.create_topic(topic, queues=1)
    send(texts(topic, 5, 8))
    assert easy.next() == names(5, 8)
    send(texts(topic, 8, 9))
    assert easy.next() == names(8, 9)


def test_messages_deleted_before_they_were_read() -> None:
    with broker_in_thread(commit_log_file_bytes=16 << 10, delete_pause_ms=0) as broker:
        broker.create_topic("aging", queues=1)
        options: dict[str, object] = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": 10}
        with Producer(broker.nameserver_address, group="p") as producer:
            producer.send_many(texts("aging", 0, 20))
            strict = Query(broker, "aging", **options)
            easy = Query(broker, "aging", failOnDataLoss="false", **options)
            for query in (strict, easy):
                assert query.next() == names(0, 10)
            planned = (easy.at, through_json(easy.source.latestOffset(easy.at or {}, easy.limit)))
            producer.send_many(texts("aging", 20, 200))
        store = broker.cluster.brokers[0].broker.store
        broker.run(lambda: store.expiry.delete_before(16 << 10))
        first = store.queues.min_offset("aging", 0)
        assert first > 20
        with pytest.raises(
            DataLoss, match=rf"aging/broker-a/0: offset 10 .*first there is is {first}.*failOnDataLoss"
        ):
            strict.next()
        # A batch that was planned before: its task finds nothing.
        assert planned[0] is not None
        assert easy.read(planned[0], planned[1]) == []
        with pytest.raises(DataLoss, match="offset 10"):
            strict.read(*planned)
        assert easy.next() == names(first, first + 10)
        assert easy.next() == names(first + 10, first + 20)


def test_brokers_come_and_go() -> None:
    with broker_in_thread(2) as broker:
        both = broker.cluster.brokers
        broker.run(lambda: both[0].create_topic("spread", queues=1))
        with Producer(broker.nameserver_address, group="p") as producer:
            producer.send_many(texts("spread", 0, 3), queue=Queue("spread", "broker-a", 0))
        options: dict[str, object] = {"startingOffsets": "earliest", "discoveryIntervalMs": 1}
        query = Query(broker, "spread", retryForMs=500, **options)
        easy = Query(broker, "spread", failOnDataLoss="false", **options)
        assert query.next() == easy.next() == names(0, 3)
        broker.run(lambda: both[1].create_topic("spread", queues=1))
        with Producer(broker.nameserver_address, group="p") as producer:
            producer.send_many(texts("spread", 3, 5), queue=Queue("spread", "broker-b", 0))
        assert query.next() == easy.next() == names(3, 5)
        broker.stop(1)
        with Producer(broker.nameserver_address, group="p") as producer:
            producer.send_many(texts("spread", 5, 7), queue=Queue("spread", "broker-a", 0))
        assert query.next() == easy.next() == names(5, 7)  # the others are read meanwhile
        with pytest.raises(
            DataLoss, match=r"spread/broker-b/0: offset 2 .*its broker is gone or does not answer"
        ):
            until_there_is_something(query)
        assert easy.next() == []
        broker.start(1)
        with Producer(broker.nameserver_address, group="p") as producer:
            producer.send_many(texts("spread", 7, 8), queue=Queue("spread", "broker-b", 0))
        assert until_there_is_something(easy) == names(7, 8)


def test_a_broker_that_dies_does_not_hold_up_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """The name server still names it: it did not say goodbye."""
    with broker_in_thread(2) as broker:
        broker.create_topic("spread", queues=1)
        query = Query(broker, "spread", startingOffsets="earliest")
        assert query.next() == []
        plain = query.source.offsets.cluster
        ask = plain.edges

        def edges(queues: Sequence[Queue]) -> dict[Queue, Edges]:
            if any(queue.broker == "broker-b" for queue in queues):
                raise ConnectionLost("broker-b", "it is dead")
            return ask(queues)

        with Producer(broker.nameserver_address, group="p") as producer:
            producer.send_many(texts("spread", 0, 2), queue=Queue("spread", "broker-a", 0))
            producer.send_many(texts("spread", 2, 4), queue=Queue("spread", "broker-b", 0))
        with monkeypatch.context() as patch:
            patch.setattr(plain, "edges", edges)
            assert query.next() == names(0, 2)
            assert query.next() == []
        assert query.next() == names(2, 4)


def until_there_is_something(query: Query) -> list[str]:
    deadline_s = time.monotonic() + 20
    found: list[str] = []
    while not found and time.monotonic() < deadline_s:
        found = query.next()
    return found


def test_a_broker_restarts_under_a_query() -> None:
    with broker_in_thread() as broker:
        broker.create_topic("t", queues=2)
        with Producer(broker.nameserver_address, group="p") as producer:
            producer.send_many(texts("t", 0, 4))
        query = Query(broker, "t", startingOffsets="earliest", discoveryIntervalMs=1, retryForMs=30_000)
        assert sorted(query.next()) == names(0, 4)
        assert query.at is not None
        broker.stop()
        back = threading.Timer(0.7, broker.start)
        back.start()
        assert query.next() == []
        query.source.commit(query.at)
        back.join()
        with Producer(broker.nameserver_address, group="p") as producer:
            producer.send_many(texts("t", 4, 6))
        assert sorted(query.next()) == names(4, 6)


def test_patience_ends() -> None:
    with broker_in_thread() as broker:
        broker.create_topic("t", queues=1)
        query = Query(broker, "t", retryForMs=300)
        query.next()
        broker.stop()
        with pytest.raises(KeroloxError, match=broker.address):
            query.next()


# --- the group ---------------------------------------------------------------------------------------


def test_the_group_hears_how_far_it_is_and_never_back(
    broker: BrokerThread, new_topic: NewTopic, send: Send, cluster: SocketCluster
) -> None:
    topic = new_topic(queues=1)
    send(texts(topic, 0, 10))
    (queue,) = cluster.route(topic).readable
    query = Query(broker, topic, startingOffsets="earliest", maxOffsetsPerTrigger=4, group="watched")
    query.next()
    assert cluster.committed(queue, "watched") is None
    assert query.at is not None
    query.source.commit(query.at)
    assert cluster.committed(queue, "watched") == 4  # the next to be read
    cluster.commit(queue, "watched", 9)
    query.source.commit(query.at)
    assert cluster.committed(queue, "watched") == 9


def test_a_group_is_there_before_it_has_read_anything(
    broker: BrokerThread, new_topic: NewTopic, send: Send, cluster: SocketCluster
) -> None:
    topic = new_topic(queues=1)
    send(texts(topic, 0, 3))
    query = Query(broker, topic, startingOffsets="latest", group="waits-for-news")
    query.next()
    assert query.at is not None
    query.source.commit(query.at)
    assert cluster.committed(cluster.route(topic).readable[0], "waits-for-news") == 3


def test_how_far_behind(broker: BrokerThread, new_topic: NewTopic, send: Send) -> None:
    topic = new_topic(queues=1)
    send(texts(topic, 0, 10))
    query = Query(broker, topic, startingOffsets="earliest", maxOffsetsPerTrigger=4)
    assert query.source.reportLatestOffset() is None
    query.next()
    latest = query.source.reportLatestOffset()
    assert latest is not None
    assert query.at is not None
    assert latest["q"][topic]["broker-a"]["0"] - query.at["q"][topic]["broker-a"]["0"] == 6


def test_a_checkpoint_of_something_else(broker: BrokerThread, topic: str) -> None:
    query = Query(broker, topic)
    with pytest.raises(ProtocolError, match="separate checkpointLocation"):
        query.source.latestOffset({"offset": 3}, query.limit)


def test_what_travels_to_tasks_holds_no_connection(broker: BrokerThread, topic: str) -> None:
    import pickle

    query = Query(broker, topic)
    query.next()
    copy = pickle.loads(pickle.dumps(query.source))
    assert copy._offsets is None
    assert copy._table.needed.names == schema("queue_id", "queue_offset", "body").fieldNames()


# --- topics deleted and made anew while a query is stopped -------------------------------------------


def anew(broker: BrokerThread, topic: str, send: Send, begin: int, end: int, queues: int = 1) -> None:
    """Delete the topic, make it again and send other messages."""
    delete_topic(broker, topic)
    broker.create_topic(topic, queues=queues)
    send([Message(topic, f"new{number:03d}") for number in range(begin, end)])


def stopped(broker: BrokerThread, topic: str, **options: object) -> dict[str, Any]:
    """The checkpoint of a query that has read all there was."""
    query = Query(broker, topic, startingOffsets="earliest", **options)
    while query.next():
        pass
    assert query.at is not None
    return query.at


@pytest.mark.parametrize("count", [5, 8])  # as many as were read, and more
def test_a_topic_made_anew_is_not_gone_on_with(
    count: int, broker: BrokerThread, new_topic: NewTopic, send: Send
) -> None:
    topic = new_topic(queues=1)
    send(texts(topic, 0, 5))
    at = stopped(broker, topic)
    anew(broker, topic, send, 0, count)
    again = Query(broker, topic)
    again.at = at
    with pytest.raises(DataLoss) as failed:
        again.next()
    said = str(failed.value)
    assert f"queue {topic}/broker-a/0: offset 5 was to be read next" in said
    assert "the message at offset 4 is not the one that was read there" in said
    assert "deleted and made anew" in said
    assert "set failOnDataLoss to false for one start" in said
    tolerant = Query(broker, topic, failOnDataLoss="false")
    tolerant.at = at
    assert tolerant.next() == [f"new{number:03d}" for number in range(count)]
    later = Query(broker, topic)  # its checkpoint knows the new topic
    later.at = tolerant.at
    send(texts(topic, 90, 91))
    assert later.next() == names(90, 91)


def test_a_topic_made_anew_while_a_query_runs_is_noticed_with_the_next_message(
    broker: BrokerThread, new_topic: NewTopic, send: Send
) -> None:
    topic = new_topic(queues=1)
    send(texts(topic, 0, 5))
    query = Query(broker, topic, startingOffsets="earliest")
    assert query.next() == names(0, 5)
    assert query.next() == []
    anew(broker, topic, send, 0, 7)
    with pytest.raises(DataLoss, match="deleted and made anew"):
        query.next()


def test_a_batch_planned_of_the_former_topic_is_not_read_from_the_new_one(
    broker: BrokerThread, new_topic: NewTopic, send: Send
) -> None:
    topic = new_topic(queues=1)
    send(texts(topic, 0, 5))
    at = stopped(broker, topic)
    send(texts(topic, 5, 9))
    planned = Query(broker, topic)
    end = through_json(planned.source.latestOffset(at, planned.limit))
    anew(broker, topic, send, 0, 20)
    again = Query(broker, topic)
    with pytest.raises(DataLoss, match=f"{topic}/broker-a/0: offset 9 .* deleted and made anew"):
        again.read(at, end)
    tolerant = Query(broker, topic, failOnDataLoss="false")
    assert tolerant.read(at, end) == []
    tolerant.at = end
    assert tolerant.next() == [f"new{number:03d}" for number in range(20)]


def test_checkpoints_of_older_versions_are_read_and_learn_the_last_message(
    broker: BrokerThread, new_topic: NewTopic, send: Send
) -> None:
    topic = new_topic(queues=1)
    send(texts(topic, 0, 5))
    at = stopped(broker, topic)
    assert at.pop("last")[topic]["broker-a"].keys() == {"0"}
    query = Query(broker, topic)
    query.at = at
    assert query.next() == []
    send(texts(topic, 5, 7))
    assert query.next() == names(5, 7)
    assert query.at["last"][topic]["broker-a"].keys() == {"0"}


def test_a_last_message_deleted_by_its_age_is_no_loss() -> None:
    with broker_in_thread(commit_log_file_bytes=16 << 10, delete_pause_ms=0) as broker:
        broker.create_topic("aging", queues=1)
        with Producer(broker.nameserver_address, group="p") as producer:
            producer.send_many(texts("aging", 0, 200))
        query = Query(broker, "aging", startingOffsets="earliest", maxOffsetsPerTrigger=1)
        marks = []
        while query.next():
            marks.append(query.at)
        store = broker.cluster.brokers[0].broker.store
        broker.run(lambda: store.expiry.delete_before(16 << 10))
        first = store.queues.min_offset("aging", 0)
        again = Query(broker, "aging")
        again.at = marks[first - 1]  # the last message it read is gone, and the next one is there
        assert again.next() == names(first, 200)
        close_all()
