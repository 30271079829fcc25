"""What batch queries and tasks read, without Spark."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, LongType, MapType, StringType, StructField, StructType

from kerolox.blocking import Producer
from kerolox.client.messages import Message, Queue
from kerolox.client.options import ClientOptions, ProducerOptions
from kerolox.client.sockets.socket_cluster import SocketCluster
from kerolox.errors import KeroloxError, OptionError
from kerolox.spark.bodies.table import BadBody
from kerolox.spark.source.batch import BatchSource
from kerolox.spark.source.options import read_wanted
from kerolox.spark.source.queues import DataLoss
from kerolox.spark.source.ranges import Range
from kerolox.spark.source.reading import chosen_columns, read_range
from kerolox.spark.store.options import parse, read_choice
from kerolox.testing.threads import BrokerThread, broker_in_thread
from tests.spark.source_kit import batch_read, batch_table, close_all, schema

Send = Callable[[Sequence[Message]], Any]
NewTopic = Callable[..., str]


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    close_all()


def bodies(begin: int, end: int) -> list[str]:
    return [f"m{number:03d}" for number in range(begin, end)]


def fill(send: Send, topic: str, begin: int, end: int) -> None:
    send([Message(topic, body) for body in bodies(begin, end)])


# --- from where to where -----------------------------------------------------------------------------


def test_everything_by_default(broker: BrokerThread, topic: str, send: Send) -> None:
    fill(send, topic, 0, 40)
    assert sorted(batch_read(broker, topic)) == bodies(0, 40)
    assert batch_read(broker, topic, startingOffsets="latest") == []


def test_an_empty_topic_has_no_ranges_and_no_rows(broker: BrokerThread, topic: str) -> None:
    options = {"nameserver": broker.nameserver_address, "topic": topic}
    source = BatchSource(options, schema())
    assert source.partitions() == []
    assert list(source.read(None)) == []  # what Spark makes of no partitions


def test_between_offsets_and_times(broker: BrokerThread, new_topic: NewTopic, send: Send) -> None:
    topic = new_topic(queues=1)
    fill(send, topic, 0, 10)
    time.sleep(0.02)
    between_ms = round(time.time() * 1000)
    time.sleep(0.02)
    fill(send, topic, 10, 15)

    def at(offset: int) -> dict[str, Any]:
        return {topic: {"broker-a": {"0": offset}}}

    assert batch_read(broker, topic, startingOffsets=at(3), endingOffsets=at(12)) == bodies(3, 12)
    assert batch_read(broker, topic, startingOffsets=at(12), endingOffsets=at(3)) == []
    assert batch_read(broker, topic, startingOffsets=at(-2), endingOffsets=at(-1)) == bodies(0, 15)
    assert batch_read(broker, topic, startingTimestamp=between_ms) == bodies(10, 15)
    assert batch_read(broker, topic, endingTimestamp=between_ms) == bodies(0, 10)
    assert batch_read(broker, topic, startingOffsets=at(8), endingTimestamp=between_ms) == bodies(8, 10)
    with pytest.raises(DataLoss, match="offset 99"):
        batch_read(broker, topic, endingOffsets=at(99))


def test_ranges_are_cut(broker: BrokerThread, topic: str, send: Send) -> None:
    fill(send, topic, 0, 100)
    options = {"nameserver": broker.nameserver_address, "topic": topic}
    assert len(BatchSource(options, schema()).partitions()) == 1  # few messages: the queues share a task
    many = BatchSource({**options, "minpartitions": "10"}, schema("body"))
    assert len(many.partitions()) == 10
    small = BatchSource({**options, "maxrowsperpartition": "7"}, schema("body"))
    assert len(small.partitions()) == 16
    for source in (many, small):
        rows = [
            row for part in source.partitions() for batch in source.read(part) for row in batch.to_pylist()
        ]
        assert sorted(row["body"].decode() for row in rows) == bodies(0, 100)


# --- columns -----------------------------------------------------------------------------------------


def test_all_columns(broker: BrokerThread, new_topic: NewTopic, send: Send) -> None:
    topic = new_topic(queues=1)
    (receipt,) = send([Message(topic, "hello", tags="x", keys=["k1", "k2"], properties={"a": "1"}, flag=7)])
    (row,) = batch_table(broker, topic)
    assert row["msg_id"] == receipt.msg_id
    assert row["offset_msg_id"] == receipt.offset_msg_id
    expected = {"topic": topic, "broker": "broker-a", "queue_id": 0, "queue_offset": 0, "keys": "k1 k2",
                "tags": "x", "body": b"hello", "reconsume_times": 0, "flag": 7}  # fmt: skip
    assert {key: row[key] for key in expected} == expected
    assert ("a", "1") in row["properties"]
    assert abs(row["store_timestamp"].timestamp() - time.time()) < 60


def test_only_the_columns_asked_for_in_their_order(broker: BrokerThread, topic: str, send: Send) -> None:
    fill(send, topic, 0, 3)
    rows = batch_table(broker, topic, "body", "queue_offset")
    assert [list(row) for row in rows] == [["body", "queue_offset"]] * 3


def test_properties_as_text() -> None:
    columns = chosen_columns(StructType([StructField("properties", StringType())]))
    assert str(columns.field("properties").type) == "string"


@pytest.mark.parametrize(
    ("field", "said"),
    [
        (StructField("value", BinaryType()), r"value.*columns of: topic string, broker string, queue_id int"),
        (StructField("body", StringType()), "'body string': expected body binary"),
        (StructField("properties", LongType()), "map<string,string> or string"),
        (StructField("body", BinaryType(), nullable=False), "which may be null"),
        (
            StructField("properties", MapType(StringType(), StringType(), valueContainsNull=False)),
            "properties map<string,string> without nulls': expected its values to be nullable",
        ),
    ],
)
def test_columns_there_are_not(field: StructField, said: str) -> None:
    with pytest.raises(OptionError, match=said):
        chosen_columns(StructType([field]))


def test_compressed_bodies(broker: BrokerThread, new_topic: NewTopic) -> None:
    topic = new_topic(queues=1)
    large = ["x" * 10_000, "y" * 20, "z" * 100_000]
    for compression in ("zlib", "lz4", "zstd"):
        with Producer(
            broker.nameserver_address, group="p", options=ProducerOptions(compression=compression)
        ) as producer:
            producer.send_many([Message(topic, body) for body in large])
    assert batch_read(broker, topic) == large * 3


def test_bodies_that_inflate_to_much(
    broker: BrokerThread, new_topic: NewTopic, caplog: pytest.LogCaptureFixture
) -> None:
    """Each is a row: those that fit in batches of bounded size, others without a body, or with the reason."""
    topic = new_topic(queues=1)
    sizes = [10, 30 << 20, 40 << 20, 30 << 20, 30 << 20, 20]
    options = ProducerOptions(message_bytes_max=64 << 20, compress_from_bytes=1, timeout_s=30)
    with Producer(broker.nameserver_address, group="p", options=options) as producer:
        for size in sizes:
            producer.send(Message(topic, b"x" * size))

    def read(columns: StructType, **more: str) -> Iterator[pa.RecordBatch]:
        given = {"nameserver": broker.nameserver_address, "topic": topic, "retryForMs": "5000", **more}
        source = BatchSource({key.lower(): value for key, value in given.items()}, columns)
        return (batch for part in source.partitions() for batch in source.read(part))

    lengths: list[int | None] = []
    for batch in read(schema("queue_offset", "body")):
        assert batch.nbytes < 70 << 20
        lengths += [None if body is None else len(body) for body in batch.column("body").to_pylist()]
    assert lengths == [10, 30 << 20, None, 30 << 20, 30 << 20, 20]
    assert f"{topic}/broker-a/0 offset 2: zlib body" in caplog.text

    texts = schema("queue_offset", "body").add("text", StringType()).add("body_error", StringType())
    found = [row for batch in read(texts, bodyFormat="text", onBadBody="column") for row in batch.to_pylist()]
    assert [row["text"] and len(row["text"]) for row in found] == lengths
    assert [row["queue_offset"] for row in found if row["body_error"]] == [2]
    assert "INFLATED_BODY_BYTES_MAX" in found[2]["body_error"]
    assert 0 < len(found[2]["body"]) < 100_000
    with pytest.raises(BadBody, match=r"offset 2.*[Ss]et onBadBody to column"):
        list(read(schema("queue_offset").add("text", StringType()), bodyFormat="text"))


def test_messages_of_all_sizes(broker: BrokerThread, new_topic: NewTopic) -> None:
    """Pulls end where the broker's limits on count and bytes are; nothing is lost or doubled there."""
    topic = new_topic(queues=1)
    rng = random.Random(1)
    sent = [rng.randbytes(rng.choice((1, 100, 5_000, 60_000))).hex() for _ in range(300)]
    with Producer(broker.nameserver_address, group="p", options=ProducerOptions(compression="")) as producer:
        producer.send_many([Message(topic, body) for body in sent], order_key="one")
    for ahead in (1, 3, 16):
        for count in (1, 7, 32, 1024):
            assert batch_read(broker, topic, pullsAhead=ahead, pullBatchSize=count) == sent
    for scan_bytes in ("0", "1", "50k", "300k", "1m", "12m"):
        assert batch_read(broker, topic, scanBytes=scan_bytes) == sent


# --- filters -----------------------------------------------------------------------------------------


def test_tags_are_compared_not_their_hashes(broker: BrokerThread, new_topic: NewTopic, send: Send) -> None:
    topic = new_topic(queues=1)
    tags = ["Aa", "BB", "other", ""]  # Java has one hash for the first two
    send([Message(topic, f"{tags[n % 4]}-{n}", tags=tags[n % 4]) for n in range(200)])
    assert batch_read(broker, topic, tags="Aa") == [f"Aa-{n}" for n in range(0, 200, 4)]
    both = sorted([f"Aa-{n}" for n in range(0, 200, 4)] + [f"other-{n}" for n in range(2, 200, 4)])
    assert sorted(batch_read(broker, topic, tags="Aa || other")) == both
    assert len(batch_read(broker, topic, tags="*")) == 200
    rows = batch_table(broker, topic, "body", "tags", tags="BB")
    assert {row["tags"] for row in rows} == {"BB"}


def test_a_filtered_range_ends_where_it_ends(broker: BrokerThread, new_topic: NewTopic, send: Send) -> None:
    topic = new_topic(queues=1)
    send([Message(topic, f"{n}", tags="ab"[n % 10 == 0]) for n in range(200)])
    end = {topic: {"broker-a": {"0": 95}}}
    assert batch_read(broker, topic, tags="b", endingOffsets=end) == [f"{n}" for n in range(0, 95, 10)]


def test_conditions() -> None:
    with broker_in_thread(property_filter=True) as broker:
        broker.create_topic("t", queues=2)
        with Producer(broker.nameserver_address, group="p") as producer:
            producer.send_many([Message("t", f"{n}", properties={"price": str(n)}) for n in range(100)])
        found = batch_read(broker, "t", sql92="price > 89 OR price = 3")
        assert sorted(map(int, found)) == [3, *range(90, 100)]


def test_conditions_where_the_broker_has_none() -> None:
    with broker_in_thread(property_filter=False) as broker:
        with Producer(broker.nameserver_address, group="p") as producer:
            producer.send(Message("t", "x"))
        with pytest.raises(KeroloxError, match=r"SQL92|enablePropertyFilter"):
            batch_read(broker, "t", sql92="price > 1", retryForMs=0)


# --- names, and the rest -----------------------------------------------------------------------------


def test_namespaces(broker: BrokerThread, new_topic: NewTopic) -> None:
    topic = new_topic(queues=1)
    broker.create_topic(f"ns%{topic}", queues=1)
    with Producer(ClientOptions(broker.nameserver_address, namespace="ns"), group="p") as producer:
        producer.send(Message(topic, "inside"))
    (row,) = batch_table(broker, topic, "topic", "body", namespace="ns")
    assert (row["topic"], row["body"]) == (topic, b"inside")
    assert batch_read(broker, topicPattern=f"{topic}.*", namespace="ns") == ["inside"]
    assert batch_read(broker, topic) == []


def test_topics_of_groups_are_read_by_name(broker: BrokerThread, new_topic: NewTopic, send: Send) -> None:
    retry = f"%RETRY%{new_topic(queues=1)}"
    broker.create_topic(retry, queues=1)
    fill(send, retry, 0, 2)
    assert batch_read(broker, retry) == bodies(0, 2)
    assert batch_read(broker, topicPattern=".*RETRY.*") == []


def test_a_group_that_was_reset_still_reads_its_range(
    broker: BrokerThread, new_topic: NewTopic, send: Send
) -> None:
    """A broker tells the next pull of a group where it was set to; a range is read as it was planned."""
    topic = new_topic(queues=1)
    fill(send, topic, 0, 50)
    offsets = broker.cluster.brokers[0].broker.tables.offsets
    batch_read(broker, topic, group="was-reset")
    offsets.reset(topic, "was-reset", 0, 40)
    assert batch_read(broker, topic, group="was-reset") == bodies(0, 50)


@pytest.mark.parametrize("read_from", ["leader", "follower"])
def test_a_range_longer_than_its_queue(
    broker: BrokerThread, new_topic: NewTopic, send: Send, read_from: str
) -> None:
    """A queue that was cut short after the query was planned: what is there is read, or it is an error."""
    topic = new_topic(queues=1)
    fill(send, topic, 0, 50)
    task = Range(Queue(topic, "broker-a", 0), 0, 60)

    def read(fail: str) -> list[str]:
        given = {"nameserver": broker.nameserver_address, "topic": topic, "readfrom": read_from}
        wanted = read_wanted({**given, "failondataloss": fail}, "batch")
        batches = read_range(wanted, chosen_columns(schema("body")), task)
        return [row["body"].decode() for batch in batches for row in batch.to_pylist()]

    assert read("false") == bodies(0, 50)
    with pytest.raises(DataLoss, match=r"offset 50 .*ends at 50"):
        read("true")


def test_a_task_that_is_left_early_spoils_nothing(
    broker: BrokerThread, new_topic: NewTopic, send: Send
) -> None:
    topic = new_topic(queues=1)
    fill(send, topic, 0, 500)
    wanted = read_wanted({"nameserver": broker.nameserver_address, "topic": topic}, "batch")
    with SocketCluster(broker.nameserver_address) as cluster:
        (queue,) = cluster.route(topic).readable
        pulls = cluster.blocks(queue, 0, 500, group="g", ahead=8)
        next(pulls)
        next(pulls)
        pulls.close()
        assert cluster.max_offset(queue) == 500
        line = cluster.line(cluster.address(queue))
        assert not line._answers
        assert not line._forgotten or len(line._forgotten) <= 8
    task = read_range(wanted, chosen_columns(schema("body")), Range(queue, 0, 500))
    next(task)
    task.close()
    assert batch_read(broker, topic) == bodies(0, 500)


def test_read_in_turn_over_connections_that_break(
    broker: BrokerThread, new_topic: NewTopic, send: Send
) -> None:
    topic = new_topic(queues=2)
    fill(send, topic, 0, 10)
    assert sorted(batch_read(broker, topic)) == bodies(0, 10)
    from kerolox.spark.source import reading

    (cluster,) = reading._clusters.values()
    for line in cluster._lines.values():
        line._socket.shutdown(2)
    assert sorted(batch_read(broker, topic)) == bodies(0, 10)
    assert list(reading._clusters.values()) == [cluster]  # kept from task to task
    assert Queue(topic, "broker-a", 0) in cluster.route(topic).readable


def test_a_range_of_times_in_the_wrong_order_is_refused() -> None:
    given = {"nameserver": "127.0.0.1:1", "topic": "t"}
    for end in (5_000, 4_999):
        wrong = {"startingTimestamp": "5000", "endingTimestamp": str(end)}
        with pytest.raises(OptionError, match=rf"startingTimestamp = 5000.* endingTimestamp = {end}"):
            read_wanted(given | wrong, "batch")
        with pytest.raises(OptionError, match=rf"startingTimestamp = 5000.* endingTimestamp = {end}"):
            read_choice(parse({"path": "/x", **wrong}))
    read_wanted(given | {"startingTimestamp": "5000", "endingTimestamp": "5001"}, "batch")
    times = {
        "startingOffsetsByTimestamp": '{"t": 5000}',
        "endingOffsetsByTimestamp": '{"t": {"b": {"0": 5000}}}',
    }
    with pytest.raises(OptionError, match=r"startingOffsetsByTimestamp = 5000: .* of t before"):
        read_wanted(given | times, "batch")
