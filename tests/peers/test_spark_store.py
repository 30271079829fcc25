"""A directory Apache's broker writes, read as a Spark table: what its own Java consumer gets."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from .conftest import Factory
from .driver import JavaDriver
from .processes import JavaNameServer
from .store_writer import HALF_TOPIC, LAST_LEVEL
from .test_store import Peer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

SINGLES = 2000


@pytest.fixture(scope="module")
def spark() -> SparkSession:
    pytest.importorskip("pyspark")
    from kerolox.spark.session import session

    quick = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
    return session("kerolox-peers", "local[2,2]", conf=quick)


def received(record: dict[str, Any]) -> dict[str, Any]:
    """What a Java consumer says of a message, in the words of the table."""
    return {
        "topic": record["topic"], "queue_id": record["queueId"], "queue_offset": record["queueOffset"],
        "physical_offset": record["commitLogOffset"], "msg_id": record["msgId"],
        "offset_msg_id": record["offsetMsgId"], "keys": record["keys"], "tags": record["tags"],
        "size": record["bodySize"], "crc": record["bodyCrc"], "born": record["bornTimestamp"],
        "stored": record["storeTimestamp"], "flag": record["flag"],
        "reconsume_times": record["reconsumeTimes"], "colour": record["properties"].get("colour"),
    }  # fmt: skip


def stored(row: Row) -> dict[str, Any]:
    names = (
        "topic", "queue_id", "queue_offset", "physical_offset", "msg_id", "offset_msg_id", "keys", "tags",
        "flag", "reconsume_times",
    )  # fmt: skip
    return {name: row[name] for name in names} | {
        "size": len(row.body),
        "crc": zlib.crc32(row.body) & 0x7FFF_FFFF,
        "born": round(row.born_timestamp.timestamp() * 1000),
        "stored": round(row.store_timestamp.timestamp() * 1000),
        "colour": row.properties.get("colour"),
    }


def place(row: dict[str, Any]) -> tuple[str, int, int]:
    return row["topic"], row["queue_id"], row["queue_offset"]


def test_rows_are_what_the_java_consumer_gets(
    java: Factory,
    java_driver: JavaDriver,
    java_nameserver: JavaNameServer,
    unique: Callable[[str], str],
    spark: SparkSession,
) -> None:
    peer = Peer(java, java_driver, java_nameserver.address, unique("broker"))
    peer.broker.start()
    topics = ((unique("topic"), 4), (unique("other"), 2))
    for topic, queues in topics:
        java_driver.create_topic(java_nameserver.address, peer.broker.address, topic, queues)
    count = peer.send(topics, unique("group"), 0, SINGLES)
    wanted = sorted(map(received, peer.consume(topics, unique("group"), count)), key=place)
    assert len(wanted) == count > SINGLES
    assert max(row["size"] for row in wanted) > 4096  # compressed on its way and in the store

    def load(**options: str) -> DataFrame:
        return (
            spark.read.format("rocketmq-store")
            .options(verifyCrc="true", minPartitions="3", broker=peer.broker.name, **options)
            .load(str(peer.store))
        )

    names = ",".join(topic for topic, _ in topics)
    # while the broker runs, and when it is gone
    for running in (True, False):
        if not running:
            peer.broker.stop()
        for way in ("queues", "log"):
            rows = sorted(map(stored, load(**{"from": way}, topic=names).collect()), key=place)
            assert rows == wanted
        assert load(report="corrupt", **{"from": "log"}).collect() == []
    own = load(**{"from": "log"}).groupBy("topic", "queue_id").count().collect()
    assert {(row.topic, row.queue_id): row["count"] for row in own}[
        "SCHEDULE_TOPIC_XXXX", LAST_LEVEL - 1
    ] == 1
    assert any(row.topic == HALF_TOPIC for row in own)
    (late,) = load(topic="SCHEDULE_TOPIC_XXXX").collect()
    assert (bytes(late.body), late.properties["REAL_TOPIC"]) == (b"in two hours", topics[0][0])
