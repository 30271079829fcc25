"""Bodies as columns in Spark: topics read and written, streams with rows that do not fit, store files."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kerolox.client.messages import Message
from kerolox.spark.bodies import set_aside
from kerolox.testing.threads import BrokerThread
from tests.spark.sinking import stored
from tests.spark.store_maker import StoreMaker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Send = Callable[[Sequence[Message]], Any]

COLUMNS = "id BIGINT NOT NULL, name STRING"
JSON = {"bodyFormat": "json", "bodySchema": COLUMNS}
AVRO = {
    "bodyFormat": "avro",
    "bodySchema": json.dumps({
        "type": "record", "name": "Order",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "name", "type": ["null", "string"]},
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
            {"name": "lines", "type": {"type": "array", "items": "int"}},
        ],
    }),
}  # fmt: skip
PROTOBUF = {
    "bodyFormat": "protobuf",
    "bodySchema": 'syntax = "proto3"; message Order { int64 id = 1; string name = 2; repeated int32 n = 3; }',
}


def options(broker: BrokerThread, topic: str, **more: str) -> dict[str, str]:
    return {"nameserver": broker.nameserver_address, "topic": topic, **more}


def orders(topic: str, count: int, *strange: bytes) -> list[Message]:
    good = [Message(topic, json.dumps({"id": number, "name": f"n{number}"})) for number in range(count)]
    return [*good, *(Message(topic, body) for body in strange)]


def read(spark: SparkSession, broker: BrokerThread, topic: str, **more: str) -> DataFrame:
    return spark.read.format("rocketmq").options(**options(broker, topic, **more)).load()


def write(frame: DataFrame, broker: BrokerThread, topic: str, **more: str) -> None:
    frame.write.format("rocketmq").mode("append").options(**options(broker, topic, **more)).save()


def test_rows_that_do_not_fit_in_a_batch_query(
    spark: SparkSession, broker: BrokerThread, topic: str, send: Send
) -> None:
    send(orders(topic, 6, b'{"id": "x"}', b"no order"))
    whole = read(spark, broker, topic, **JSON, onBadBody="column", bodyInto="value")
    assert whole.schema["value"].dataType.simpleString() == "struct<id:bigint,name:string>"
    rows = whole.select("value", "body", "body_error", "topic").collect()
    good = [row for row in rows if row.body_error is None]
    assert sorted((row.value.id, row.value.name) for row in good) == [(n, f"n{n}") for n in range(6)]
    assert {row.body for row in good} == {None}
    bad = {bytes(row.body): row for row in rows if row.body_error is not None}
    assert set(bad) == {b'{"id": "x"}', b"no order"}
    assert "field id" in bad[b'{"id": "x"}'].body_error
    assert {row.value for row in bad.values()} == {None}
    with pytest.raises(Exception, match=f"the message at topic {topic}.*does not fit") as caught:
        read(spark, broker, topic, **JSON).collect()
    assert "onBadBody to column" in str(caught.value)


def test_a_stream_sets_rows_aside_once(
    spark: SparkSession, broker: BrokerThread, topic: str, send: Send, tmp_path: Path
) -> None:
    """The first batch fails behind both writes, and is run again."""
    send(orders(topic, 6, b"no order"))
    given = options(broker, topic, **JSON, onBadBody="column", startingOffsets="earliest")
    source = spark.readStream.format("rocketmq").options(**given).load()
    side, table, seen = tmp_path / "aside", tmp_path / "table", []

    def keep(batch: DataFrame, number: int) -> None:
        good = set_aside(batch, number, str(side))
        good.select("id", "name").write.mode("overwrite").parquet(f"{table}/batch={number}")
        seen.append(number)
        if len(seen) == 1:
            raise RuntimeError("behind the writes")

    def run() -> None:
        query = source.writeStream.foreachBatch(keep).trigger(availableNow=True)
        query.option("checkpointLocation", str(tmp_path / "checkpoint")).start().awaitTermination()

    with pytest.raises(Exception, match="behind the writes"):
        run()
    run()
    send(orders(topic, 0, b"[]"))
    run()
    assert seen == [0, 0, 1]
    assert sorted(row.id for row in spark.read.parquet(str(table)).collect()) == list(range(6))
    bad = spark.read.parquet(str(side)).collect()
    assert sorted(bytes(row.body) for row in bad) == [b"[]", b"no order"]
    assert {row.topic for row in bad} == {topic}
    assert all(row.body_error and row.queue_offset is not None for row in bad)


def test_a_stream_without_a_place_for_them_fails(
    spark: SparkSession, broker: BrokerThread, topic: str, send: Send, tmp_path: Path
) -> None:
    send(orders(topic, 2, b"no order"))
    given = options(broker, topic, **JSON, startingOffsets="earliest")
    stream = spark.readStream.format("rocketmq").options(**given).load().writeStream.format("noop")
    query = stream.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
    with pytest.raises(Exception, match=r"does not fit.*not valid JSON"):
        query.awaitTermination()


def test_avro_there_and_back(spark: SparkSession, broker: BrokerThread, topic: str) -> None:
    frame = spark.sql(
        "SELECT id, IF(id = 1, NULL, concat('n', id)) AS name, timestamp_seconds(id) AS at,"
        " array(1, CAST(id AS INT)) AS lines, concat('k', id) AS keys FROM range(3)"
    )
    write(frame, broker, topic, **AVRO)
    sent = {message.properties["KEYS"]: message.body for message in stored(broker.nameserver_address, topic)}
    assert sent["k1"] == b"\x02\x00\x80\x89\x7a\x04\x02\x02\x00"
    found = read(spark, broker, topic, **AVRO).select("id", "name", "at", "lines", "keys")
    assert sorted(map(tuple, found.collect())) == sorted(map(tuple, frame.collect()))
    misfit = frame.withColumn("id", frame.id.cast("string"))
    with pytest.raises(Exception, match="column id is string, and the schema of bodies says bigint"):
        write(misfit, broker, topic, **AVRO)


def test_protobuf_and_text_there_and_back(
    spark: SparkSession, broker: BrokerThread, new_topic: Callable[..., str]
) -> None:
    frame = spark.sql("SELECT id, concat('n', id) AS name, array(7, -1) AS n FROM range(3)")
    first, second = new_topic(queues=1), new_topic(queues=1)
    write(frame, broker, first, **PROTOBUF)
    found = read(spark, broker, first, **PROTOBUF).select("id", "name", "n")
    assert sorted(map(tuple, found.collect())) == sorted(map(tuple, frame.collect()))
    text = {"bodyFormat": "text", "bodySchema": "latin-1 line"}
    write(spark.sql("SELECT 'grün' AS line, 'k' AS keys"), broker, second, **text)
    (message,) = stored(broker.nameserver_address, second)
    assert message.body == b"gr\xfcn"
    (row,) = read(spark, broker, second, **text).select("line", "keys").collect()
    assert tuple(row) == ("grün", "k")


def test_bodies_of_store_files(spark: SparkSession, tmp_path: Path) -> None:
    maker = StoreMaker(tmp_path / "store")
    for number in range(5):
        maker.add("orders", b'{"id": %d, "name": "x"}' % number)
    maker.add("orders", b"no order")
    source = spark.read.format("rocketmq-store").options(**JSON)
    rows = source.option("onBadBody", "column").load(maker.write())
    assert sorted(row.id for row in rows.where("body_error IS NULL").collect()) == list(range(5))
    (bad,) = rows.where("body_error IS NOT NULL").select("body", "queue_offset", "id").collect()
    assert (bytes(bad.body), bad.queue_offset, bad.id) == (b"no order", 5, None)
