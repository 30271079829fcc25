"""The format as Spark uses it. What rows there are is tested without Spark: test_store_reading.py."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kerolox.errors import OptionError
from kerolox.spark.columns import COLUMNS
from kerolox.spark.store.table import RocketMQStore
from tests.spark.store_maker import BORN_MS, StoreMaker, fill

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Load = Callable[..., "DataFrame"]


@pytest.fixture
def maker(tmp_path: Path) -> StoreMaker:
    return fill(StoreMaker(tmp_path / "broker-a" / "store"), 1000, ("orders", "refunds"), queues=3)


@pytest.fixture
def load(spark: SparkSession, maker: StoreMaker) -> Load:
    path = maker.write()

    def load(schema: str = "", **options: str) -> DataFrame:
        reader = spark.read.format("rocketmq-store").options(**options)
        return (reader.schema(schema) if schema else reader).load(path)

    return load


def test_spark_finds_it_by_itself() -> None:
    module = importlib.import_module("pyspark_rocketmq_store")
    assert module.DefaultSource is RocketMQStore
    assert RocketMQStore.name() == "rocketmq-store"


def test_the_whole_table(load: Load, maker: StoreMaker) -> None:
    frame = load(minPartitions="3")
    assert frame.columns == list(COLUMNS)
    found = frame.collect()
    assert [(row.topic, row.queue_id, row.queue_offset, bytes(row.body)) for row in found] == [
        (message.topic, message.queue_id, message.queue_offset, message.body) for message in maker.messages
    ]
    first = found[0]
    assert (first.broker, first.keys, first.tags, first.msg_id) == ("broker-a", "k0", "a", "0" * 32)
    assert first.properties == {"KEYS": "k0", "TAGS": "a", "UNIQ_KEY": "0" * 32}
    assert first.store_timestamp.timestamp() * 1000 == BORN_MS
    assert frame.rdd.getNumPartitions() in (3, 4)
    # one plan serves all queries of a frame
    assert (frame.filter("queue_id = 1").count(), frame.count()) == (
        sum(message.queue_id == 1 for message in maker.messages), 1000,
    )  # fmt: skip


def test_columns_by_schema_and_forms_of_properties(load: Load) -> None:
    narrow = load("queue_offset bigint, topic string", **{"from": "log"})
    assert (narrow.columns, narrow.count()) == (["queue_offset", "topic"], 1000)
    packed = load(properties="string", topic="orders").first()
    assert packed is not None
    assert packed.properties == "KEYS\x01k0\x02TAGS\x01a\x02UNIQ_KEY\x01" + "0" * 32 + "\x02"
    assert "properties" not in load(properties="none").columns


def test_nothing_there(load: Load) -> None:
    assert load(startingTimestamp=str(BORN_MS + 10**6)).count() == 0


def test_several_directories(spark: SparkSession, tmp_path: Path) -> None:
    paths = [fill(StoreMaker(tmp_path / name / "store"), 10).write() for name in ("a", "b")]
    reader = spark.read.format("rocketmq-store").schema("broker string, queue_offset bigint")
    for frame in (reader.load(paths), reader.load(f"{tmp_path}/*/store")):
        assert {row.broker: row["count"] for row in frame.groupBy("broker").count().collect()} == {
            "a": 10,
            "b": 10,
        }


def test_by_sql(spark: SparkSession, maker: StoreMaker) -> None:
    options = f"path '{maker.write()}', topic 'orders'"
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW stored USING `rocketmq-store` OPTIONS ({options})")
    (row,) = spark.sql("SELECT count(*) AS n, max(queue_offset) AS last FROM stored").collect()
    assert (row.n, row.last) == (500, 166)


def test_damage(load: Load, maker: StoreMaker) -> None:
    from pyspark.errors import PythonException

    victim = maker.messages[77]
    path, _ = maker.damage(victim.physical_offset + 4, b"\0")
    with pytest.raises(PythonException, match=f"{path} at byte {victim.physical_offset}: record magic"):
        load().count()
    assert load(onCorrupt="skip").count() == 999
    (region,) = load(report="corrupt").collect()
    assert region.asDict() == {
        "broker": "broker-a", "path": path, "offset": victim.physical_offset, "bytes": victim.size,
        "reason": "record magic 0x00A320A7",
    }  # fmt: skip


def test_what_is_refused(spark: SparkSession, load: Load, maker: StoreMaker) -> None:
    from pyspark.errors import AnalysisException

    with pytest.raises(AnalysisException, match="onCorrupt, perhaps"):
        load(onCorrupted="skip").count()
    with pytest.raises(AnalysisException, match="queue_id int"):
        load("queue_id string").count()
    with pytest.raises(AnalysisException, match="report = corrupt"):
        load("queue_id int", report="corrupt").count()
    source = RocketMQStore({"path": str(maker.root)})
    with pytest.raises(OptionError, match="by the format rocketmq"):
        source.streamReader(None).initialOffset()  # type: ignore[arg-type]
