from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kerolox.testing.threads import BrokerThread

pytest.importorskip("pyspark")

from tests.spark.sinking import stored, texts

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NewTopic = Callable[..., str]


def write(frame: DataFrame, broker: BrokerThread, **options: Any) -> None:
    frame.write.format("rocketmq").mode("append").option("nameserver", broker.nameserver_address).options(
        **options
    ).save()


def test_every_column_becomes_what_it_says(
    spark: SparkSession, broker: BrokerThread, new_topic: NewTopic
) -> None:
    topic, other = new_topic(), new_topic(queues=1)
    rows = [
        (
            b"one",
            topic,
            "red",
            ["k1", "k2"],
            {"a": "1", "empty": "", "UNIQ_KEY": "x"},
            None,
            2,
            "broker-a",
            7,
        ),
        (b"two", other, None, None, None, "customer-1", None, None, None),
        (b"three", topic, "", [], {}, "customer-2", None, None, -1),
    ]
    frame = spark.createDataFrame(
        rows,
        "body binary, topic string, tags string, keys array<string>, properties map<string,string>,"
        " ordering_key string, queue_id int, broker string, flag int",
    )
    (name,) = {queue.broker for queue in _route(broker, topic).readable}
    frame = frame.selectExpr("* except (broker)", f"if(broker is null, null, '{name}') as broker")

    write(frame, broker)

    found = {message.text: message for message in stored(broker.nameserver_address, topic)}
    assert set(found) == {"one", "three"}
    one, three = found["one"], found["three"]
    assert (one.tags, one.properties["KEYS"], one.flag, one.queue_id) == ("red", "k1 k2", 7, 2)
    assert one.properties["a"] == "1"
    assert "empty" not in one.properties
    assert one.msg_id == "x"  # its own, as with the clients of RocketMQ
    assert three.flag == -1
    assert three.properties["__SHARDINGKEY"] == "customer-2"
    assert not three.tags
    assert texts(broker.nameserver_address, other) == ["two"]


def _route(broker: BrokerThread, topic: str) -> Any:
    from kerolox.client.sockets.socket_cluster import SocketCluster

    with SocketCluster(broker.nameserver_address) as cluster:
        return cluster.route(topic)


def test_the_option_topic_beats_the_column_and_text_is_utf8(
    spark: SparkSession, broker: BrokerThread, topic: str
) -> None:
    frame = spark.sql(
        "select 'größe' as body, 'elsewhere' as topic, 'k' as keys,"
        " concat('a', char(1), 'ü', char(2)) as properties"
    )

    write(frame, broker, topic=topic)

    (message,) = stored(broker.nameserver_address, topic)
    assert message.text == "größe"
    assert message.properties["a"] == "ü"
    assert message.properties["KEYS"] == "k"


@pytest.mark.parametrize("large", ["false", "true"])
def test_expressions_whose_parts_are_never_null(
    spark: SparkSession, broker: BrokerThread, topic: str, large: str
) -> None:
    setting = "spark.sql.execution.arrow.useLargeVarTypes"
    spark.conf.set(setting, large)
    try:
        for number, keys in enumerate(("split('a b', ' ')", "array('a', 'b')", "array('a', null, 'b')")):
            write(
                spark.sql(f"select 'x{number}' as body, {keys} as keys, map('p', '1') as properties"),
                broker,
                topic=topic,
            )
        write(
            spark.sql("select 'x3' as body, array() as keys, map() as properties, null as tags"),
            broker,
            topic=topic,
        )
    finally:
        spark.conf.unset(setting)

    found = {message.text: message.properties for message in stored(broker.nameserver_address, topic)}
    assert [found[f"x{number}"].get("KEYS") for number in range(4)] == ["a b", "a b", "a b", None]
    assert [found[f"x{number}"].get("p") for number in range(4)] == ["1", "1", "1", None]


def test_delayed_rows_go_one_by_one(spark: SparkSession, broker: BrokerThread, topic: str) -> None:
    past = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
    frame = spark.createDataFrame(
        [("now", None, None), ("level", 18, None), ("past", None, past), ("also now", 0, None)],
        "body string, delay_level int, deliver_at timestamp",
    )

    write(frame, broker, topic=topic)

    assert set(texts(broker.nameserver_address, topic)) >= {"now", "also now"}
    assert "level" not in texts(broker.nameserver_address, topic)


def test_rows_of_a_key_stay_in_order(spark: SparkSession, broker: BrokerThread, topic: str) -> None:
    frame = spark.range(0, 6_000, 1, 2).selectExpr(
        "concat(id % 7, ':', id) as body", "concat('key-', id % 7) as ordering_key"
    )

    write(frame, broker, topic=topic, batchBytes="4k")

    messages = stored(broker.nameserver_address, topic)
    assert len(messages) == 6_000
    queues: dict[str, set[int]] = {}
    last: dict[tuple[str, bool], int] = {}
    for message in messages:
        key, _, number = message.text.partition(":")
        queues.setdefault(key, set()).add(message.queue_id)
        partition = int(number) >= 3_000
        assert last.get((key, partition), -1) < int(number)
        last[key, partition] = int(number)
    assert all(len(found) == 1 for found in queues.values())


def test_a_stream_is_written_batch_by_batch(
    spark: SparkSession, broker: BrokerThread, topic: str, tmp_path: Path
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(3):
        (folder / f"{number}.txt").write_text("".join(f"{number}-{row}\n" for row in range(50)))
    query = (
        spark.readStream.format("text")
        .option("maxFilesPerTrigger", 1)
        .load(str(folder))
        .selectExpr("value as body", "'t' as tags")
        .writeStream.format("rocketmq")
        .option("nameserver", broker.nameserver_address)
        .option("topic", topic)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .queryName("written")
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(60)

    found = Counter(texts(broker.nameserver_address, topic))
    assert len(found) == 150
    assert set(found.values()) == {1}
    assert len({message.msg_id for message in stored(broker.nameserver_address, topic)}) == 150


@pytest.mark.parametrize(
    ("columns", "options", "said"),
    [
        ("'x' as body, 1 as price", {}, "price is not one of a message: body (binary or string), topic"),
        ("cast(null as string) as body", {}, "have no body"),
    ],
)
def test_what_is_wrong_is_refused_with_a_reason(
    spark: SparkSession, broker: BrokerThread, topic: str, columns: str, options: dict[str, str], said: str
) -> None:
    with pytest.raises(Exception) as raised:
        write(spark.sql(f"select {columns}"), broker, **{"topic": topic, **options})
    assert said in str(raised.value)
