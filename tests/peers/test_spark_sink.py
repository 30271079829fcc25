"""Spark's rows at Apache's broker: what its clients and tools see of them, and each of them once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from kerolox.client.sockets.sending import SocketSender
from kerolox.client.sockets.socket_cluster import SocketCluster
from kerolox.clock import SYSTEM_CLOCK

from .driver import JavaDriver
from .processes import JavaBroker, JavaNameServer

pytest.importorskip("pyspark")

import pyarrow as pa

from kerolox.spark.sink.effectively_once import Beginning, Stored, ends_of
from kerolox.spark.sink.outgoing import Encoder
from kerolox.spark.sink.requests import Packer
from kerolox.spark.sink.row_ids import RowIds
from tests.spark import sinking
from tests.spark.sinking import TrappedSource, stored, texts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Unique = Callable[[str], str]
MAP = pa.map_(pa.string(), pa.string())


@pytest.fixture(scope="module")
def spark() -> SparkSession:
    from kerolox.spark.session import session

    quick = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
    return session("kerolox-peers", "local[2,2]", conf=quick)


@pytest.fixture
def peer(java_nameserver: JavaNameServer, java_broker: JavaBroker) -> Any:
    return SimpleNamespace(nameserver=java_nameserver.address, broker=java_broker.address)


@pytest.fixture
def topic(peer: Any, java_driver: JavaDriver, unique: Unique) -> str:
    made = unique("topic")
    java_driver.create_topic(peer.nameserver, peer.broker, made, 4)
    return made


def test_rows_are_messages_and_missing_ones_are_sent(peer: Any, topic: str, java_driver: JavaDriver) -> None:
    started_ms = SYSTEM_CLOCK.wall_ms()
    ids = RowIds("job/peer", 5, started_ms)
    rows = [f"row {number}" for number in range(3_000)]
    columns = {
        "body": pa.array([*rows, "delayed", "large" * 2_000]),
        "tags": pa.array([["red", None][number % 2] for number in range(3_002)]),
        "keys": pa.array([f"key-{number}" for number in range(3_002)]),
        "properties": pa.array([[("a", f"{number}")] for number in range(3_002)], MAP),
        "ordering_key": pa.array([[f"c{number % 9}", None][number % 2] for number in range(3_002)]),
        "delay_level": pa.array([0] * 3_000 + [1, 0], pa.int32()),
        "flag": pa.array([number % 3 for number in range(3_002)], pa.int32()),
    }  # fmt: skip
    table = pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
    with SocketCluster(peer.nameserver) as cluster, SocketSender(cluster, "spark_writer") as sender:
        beginning = Beginning("job/peer", started_ms, ends_of(sender, [topic]))

        def attempt(table: pa.RecordBatch, *, again: bool) -> Stored:
            known = Stored(sender, beginning, ids, "spark_writer", 0.2)
            packer = Packer(sender.send, batch_bytes=64 * 1024, compress_from=8_000)
            encoder = Encoder(ids, topic=topic, compress_from=8_000)
            for wire, queue, part in encoder.groups(table, sender.queues):
                packer.add(wire, queue, known.missing(wire, part) if again else part)
            packer.finish()
            sender.finish()
            return known

        attempt(table.slice(0, 1_700), again=False)
        rest = table.slice(0, 3_000)
        assert attempt(rest, again=True).skipped == 1_700
        assert attempt(rest, again=True).skipped == 3_000
        attempt(table.slice(3_000), again=False)

    found = stored(peer.nameserver, topic)
    by_text = {message.text: message for message in found}
    assert Counter(message.text for message in found if message.text != "delayed") == Counter(
        [*rows, "large" * 2_000]
    )
    one = by_text["row 42"]
    assert (one.tags, one.flag, one.properties["KEYS"], one.properties["a"]) == ("red", 0, "key-42", "42")
    last: dict[str, int] = {}
    for message in found:
        key = message.properties.get("__SHARDINGKEY")
        if key is not None and message.text.startswith("row"):
            number = int(message.text[4:])
            assert last.get(key, -1) < number
            last[key] = number
    # Found by the id alone: the time in it says where to search.
    shown = java_driver.mqadmin("queryMsgByUniqueKey", "-n", peer.nameserver, "-t", topic, "-i", one.msg_id)
    assert one.msg_id in shown
    assert "key-42" in shown


def test_in_spark_every_row_once(spark: SparkSession, peer: Any, topic: str, tmp_path: Path) -> None:
    from pyspark import cloudpickle

    cloudpickle.register_pickle_by_value(sinking)
    spark.dataSource.register(TrappedSource)
    try:
        spark.range(0, 2_000, 1, 2).selectExpr("concat('row ', id) as body", "'t' as tags").write.format(
            "trapped"
        ).mode("append").options(
            nameserver=peer.nameserver,
            topic=topic,
            deliveryGuarantee="effectively-once",
            settleMs="300",
            trap="after",
            trapFolder=str(tmp_path),
        ).save()
    finally:
        cloudpickle.unregister_pickle_by_value(sinking)
    assert list(tmp_path.glob("after.*"))
    assert texts(peer.nameserver, topic) == sorted(f"row {number}" for number in range(2_000))
