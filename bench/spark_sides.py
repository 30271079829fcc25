"""Both sides of the Spark benchmark: the same rows at our broker and at Kafka's, and ways to move them."""

from __future__ import annotations

import asyncio
import itertools
import random
import shutil
import string
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests.peers.wire import UPDATE_BROKER_CONFIG, request

from bench.broker_peers import OURS, QUEUES, BenchBroker
from bench.spark_kafka import KafkaBroker, KafkaJars
from kerolox.client.messages import Message
from kerolox.client.options import ProducerOptions
from kerolox.client.producer import Producer
from kerolox.net.loop import run

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

KAFKA = "Kafka"
KEY_BYTES = 16
TAG = "paid"
BATCH_BYTES = 256 << 10
IN_FLIGHT = 4

# What Kafka's table has: key, value, topic, partition, offset, timestamp, (timestampType).
LIKE_KAFKA = (
    "topic string, queue_id int, queue_offset bigint, keys string, body binary, store_timestamp timestamp"
)
LIKE_KAFKA_NAMES = [field.split()[0] for field in LIKE_KAFKA.split(", ")]


@dataclass(frozen=True)
class Data:
    """Rows of one size. Each has a key that counts up, and a body that begins with it."""

    size: int
    rows: int

    @property
    def topic(self) -> str:
        return f"rows-{self.size}"

    @property
    def size_name(self) -> str:
        return f"{self.size} B" if self.size < 1024 else f"{self.size // 1024} KiB"

    @property
    def body_bytes(self) -> int:
        return self.size * self.rows

    @property
    def filler(self) -> str:
        letters = string.ascii_letters + string.digits
        return "".join(random.Random(7).choices(letters, k=self.size - KEY_BYTES))

    def generated(self, spark: SparkSession) -> DataFrame:
        """The rows, made by Spark: key and body as texts."""
        from pyspark.sql import functions as f

        key = f.lpad(f.col("id").cast("string"), KEY_BYTES, "0")
        body = f.concat(key, f.lit(self.filler))
        return spark.range(0, self.rows, 1, QUEUES).select(key.alias("key"), body.alias("body"))

    def batches(self) -> Iterator[list[Message]]:
        """The same rows as messages."""
        each = BATCH_BYTES // (self.size + 200)
        filler = self.filler
        for first in range(0, self.rows, each):
            keys = [f"{number:0{KEY_BYTES}}" for number in range(first, min(first + each, self.rows))]
            yield [Message(self.topic, (key + filler).encode(), keys=key, tags=TAG) for key in keys]


class OurSide:
    """Our broker, and Spark through our formats."""

    name = OURS

    def __init__(self) -> None:
        self.broker = BenchBroker(OURS, None, {})
        self.folder = Path(tempfile.mkdtemp(prefix="kerolox-bench-spark-"))
        self._numbers = itertools.count()

    @property
    def pid(self) -> int:
        return self.broker.pid

    def close(self) -> None:
        self.broker.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def configure(self, options: dict[str, int]) -> None:
        body = "".join(f"{key}={value}\n" for key, value in options.items()).encode()
        answer = request(self.broker.address, UPDATE_BROKER_CONFIG, body=body, timeout=20.0)
        if answer.code != 0:
            raise RuntimeError(f"the broker did not take {options}: {answer.remark}")

    def fill(self, data: Data) -> None:
        """By our client, in batches, over all queues in turn."""
        self.broker.create_topic(data.topic)
        run(self._send(data))
        stored = self.broker.stored(data.topic)
        if stored != data.rows:
            raise RuntimeError(f"{stored} of {data.rows} messages were stored")

    async def _send(self, data: Data) -> None:
        batches = data.batches()
        options = ProducerOptions(timeout_s=30.0)
        async with Producer(self.broker.nameserver.address, group="bench", options=options) as producer:

            async def work() -> None:
                for batch in batches:
                    await producer.send_batch(batch)

            await asyncio.gather(*(work() for _ in range(IN_FLIGHT)))

    def new_topic(self) -> str:
        topic = f"written-{next(self._numbers)}"
        self.broker.create_topic(topic)
        return topic

    def new_folder(self) -> str:
        return str(self.folder / f"out-{next(self._numbers)}")

    # --- ways -----------------------------------------------------------------------------------

    def read(self, spark: SparkSession, data: Data, schema: str | None = None, **options: str) -> DataFrame:
        reader = spark.read.format("rocketmq").option("nameserver", self.broker.nameserver.address)
        reader = reader.option("topic", data.topic).options(**options)
        return (reader.schema(schema) if schema else reader).load()

    def stream(self, spark: SparkSession, data: Data, schema: str | None = None, **options: str) -> DataFrame:
        reader = spark.readStream.format("rocketmq").option("nameserver", self.broker.nameserver.address)
        reader = reader.option("topic", data.topic).option("startingOffsets", "earliest").options(**options)
        return (reader.schema(schema) if schema else reader).load()

    def store(self, spark: SparkSession, data: Data, schema: str | None = None, **options: str) -> DataFrame:
        reader = spark.read.format("rocketmq-store").option("path", str(self.broker.home / "store"))
        reader = reader.option("topic", data.topic).options(**options)
        return (reader.schema(schema) if schema else reader).load()

    def write(self, rows: DataFrame) -> None:
        """Rows as Data.generated makes them, to a new topic."""
        writer = rows.selectExpr("key as keys", f"'{TAG}' as tags", "cast(body as binary) as body").write
        writer = writer.format("rocketmq").option("nameserver", self.broker.nameserver.address)
        topic = self.new_topic()
        writer.option("topic", topic).mode("append").save()
        self.last_written = topic

    def written(self) -> int:
        """How many rows the last writing brought."""
        return self.broker.stored(self.last_written)


class KafkaSide:
    """A broker of Kafka's, and Spark through its own connector."""

    name = KAFKA

    def __init__(self, jars: KafkaJars) -> None:
        self.broker = KafkaBroker(jars, QUEUES)
        self._numbers = itertools.count()

    @property
    def pid(self) -> int:
        return self.broker.pid

    def close(self) -> None:
        self.broker.close()

    def fill(self, data: Data, spark: SparkSession) -> None:
        self._write(data.generated(spark), data.topic)

    # --- ways -----------------------------------------------------------------------------------

    def read(self, spark: SparkSession, data: Data) -> DataFrame:
        reader = spark.read.format("kafka").option("kafka.bootstrap.servers", self.broker.address)
        return reader.option("subscribe", data.topic).load()

    def stream(self, spark: SparkSession, data: Data) -> DataFrame:
        reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", self.broker.address)
        return reader.option("subscribe", data.topic).option("startingOffsets", "earliest").load()

    def write(self, rows: DataFrame) -> None:
        """To a new topic, which the broker makes when it is first heard of."""
        self._write(rows, f"written-{next(self._numbers)}")

    def _write(self, rows: DataFrame, topic: str) -> None:
        writer = rows.selectExpr("cast(key as binary) as key", "cast(body as binary) as value").write
        writer = writer.format("kafka").option("kafka.bootstrap.servers", self.broker.address)
        writer.option("topic", topic).save()
