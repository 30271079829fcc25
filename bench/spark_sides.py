"""Both sides of the Spark benchmark: the same rows at our broker and at Kafka's, and ways to move them."""

from __future__ import annotations

import asyncio
import itertools
import random
import shutil
import string
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.broker_peers import OURS, QUEUES, BenchBroker
from bench.spark_kafka import KafkaBroker, KafkaJars
from kerolox.client.messages import Message
from kerolox.client.options import ProducerOptions
from kerolox.client.send.producer import Producer
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
        return f"rows-{self.size}-{self.rows}"

    @property
    def size_name(self) -> str:
        return f"{self.size} B" if self.size < 1024 else f"{self.size // 1024} KiB"

    @property
    def title(self) -> str:
        return f"{self.rows:,} rows, bodies of {self.size_name}"

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
        """The rows of the benchmark as messages."""
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
        self.target = ""

    @property
    def pid(self) -> int:
        return self.broker.pid

    def close(self) -> None:
        self.broker.close()
        shutil.rmtree(self.folder, ignore_errors=True)

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

    def new_target(self) -> None:
        self.target = f"written-{next(self._numbers)}"
        self.broker.create_topic(self.target)

    def stored(self, topic: str) -> int:
        return self.broker.stored(topic)

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
        """Rows as Data.generated makes them, to the newest target."""
        writer = rows.selectExpr("key as keys", f"'{TAG}' as tags", "cast(body as binary) as body").write
        writer = writer.format("rocketmq").option("nameserver", self.broker.nameserver.address)
        writer.option("topic", self.target).mode("append").save()

    def archive(self, spark: SparkSession, data: Data) -> None:
        """As ``kerolox pipeline archive --once`` does: Spark's tasks pull, and write the files themselves."""
        from kerolox.pipeline.archive.archive import Archive
        from kerolox.pipeline.archive.log import ParquetArchive
        from kerolox.pipeline.runner import OnSpark
        from kerolox.spark.source.options import read_wanted

        options = {"nameserver": self.broker.nameserver.address, "topic": data.topic, "group": "archive"}
        folder = self.new_folder()
        runner = OnSpark(spark.sparkContext)
        cores = spark.sparkContext.defaultParallelism
        with Archive(read_wanted(options, "batch"), ParquetArchive(folder), runner, cores=cores) as archive:
            summary = archive.once()
        if summary.rows != data.rows:
            raise RuntimeError(f"{summary.rows} of {data.rows} rows were archived")
        shutil.rmtree(folder)


class KafkaSide:
    """A broker of Kafka's, and Spark through its own connector."""

    name = KAFKA

    def __init__(self, jars: KafkaJars) -> None:
        self.broker = KafkaBroker(jars, QUEUES)
        self._numbers = itertools.count()
        self._jvm: Any = None
        self._admin: Any = None
        self.target = ""

    @property
    def pid(self) -> int:
        return self.broker.pid

    def close(self) -> None:
        self.broker.close()

    def attach(self, spark: SparkSession) -> None:
        """Topics are made through the client in Spark's JVM."""
        self._jvm = spark.sparkContext._jvm
        settings = self._jvm.java.util.HashMap()
        settings.put("bootstrap.servers", self.broker.address)
        self._admin = self._jvm.org.apache.kafka.clients.admin.Admin.create(settings)

    def create_topic(self, topic: str) -> None:
        """And wait until it has its leaders: a topic that is made by sending to it may take messages out of
        order at first, and then none at all from that producer."""
        made = self._jvm.org.apache.kafka.clients.admin.NewTopic(topic, QUEUES, self._short(1))
        self._admin.createTopics(self._jvm.java.util.Collections.singleton(made)).all().get()
        deadline_s = time.monotonic() + 60.0
        while True:
            try:
                self.stored(topic)
                return
            except Exception:
                if time.monotonic() > deadline_s:
                    raise
                time.sleep(0.1)

    def stored(self, topic: str) -> int:
        """Messages of a topic, by the ends of its partitions."""
        wanted = self._jvm.java.util.HashMap()
        latest = self._jvm.org.apache.kafka.clients.admin.OffsetSpec.latest()
        for partition in range(QUEUES):
            wanted.put(self._jvm.org.apache.kafka.common.TopicPartition(topic, partition), latest)
        ends = self._admin.listOffsets(wanted).all().get()
        return sum(end.offset() for end in ends.values())

    def _short(self, value: int) -> Any:
        return self._jvm.java.lang.Short.parseShort(str(value))

    def fill(self, data: Data, spark: SparkSession) -> None:
        self.create_topic(data.topic)
        self._write(data.generated(spark), data.topic)

    def new_target(self) -> None:
        self.target = f"written-{next(self._numbers)}"
        self.create_topic(self.target)

    # --- ways -----------------------------------------------------------------------------------

    def read(self, spark: SparkSession, data: Data) -> DataFrame:
        reader = spark.read.format("kafka").option("kafka.bootstrap.servers", self.broker.address)
        return reader.option("subscribe", data.topic).load()

    def stream(self, spark: SparkSession, data: Data, **options: str) -> DataFrame:
        reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", self.broker.address)
        reader = (
            reader.option("subscribe", data.topic).option("startingOffsets", "earliest").options(**options)
        )
        return reader.load()

    def write(self, rows: DataFrame) -> None:
        """Rows as Data.generated makes them, to the newest target."""
        self._write(rows, self.target)

    def _write(self, rows: DataFrame, topic: str) -> None:
        writer = rows.selectExpr("cast(key as binary) as key", "cast(body as binary) as value").write
        writer = writer.format("kafka").option("kafka.bootstrap.servers", self.broker.address)
        writer.option("topic", topic).save()
