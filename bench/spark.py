"""Spark beside both brokers: our formats, and Spark's own Kafka connector, on the same rows.

One session, ``local[2]``, reads and writes the same keys and bodies at our broker and at Kafka's, in turns.
Nothing is pinned: Spark has all cores, and the brokers share them. So CPU time is the main measure: that of
the JVM, of Spark's Python workers and of this process together, and that of the broker apart from it.
"""

from __future__ import annotations

import argparse
import shutil
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from tests.peers.jars import PeersUnavailable

from bench import machine
from bench.broker_peers import OURS, QUEUES
from bench.results import Result
from bench.rounds import take_turns
from bench.spark_kafka import BROKER_FLAGS, BROKER_VERSION, CLIENTS_VERSION, CONNECTOR_VERSION, get_kafka_jars
from bench.spark_sides import KAFKA, LIKE_KAFKA, LIKE_KAFKA_NAMES, Data, KafkaSide, OurSide
from bench.spark_tables import (
    ARCHIVE,
    BATCH,
    FEW,
    LARGE,
    SINK,
    SMALL,
    STORE,
    STREAM,
    Found,
    Run,
    aims,
    start_table,
    table,
)
from kerolox.spark import session as spark_session
from kerolox.spark.java import find_java

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MASTER = "local[2]"
MEMORY = "1g"
DATA = {False: ((128, 1_000_000), (1024, 400_000)), True: ((128, 200_000), (1024, 100_000))}
ROUNDS = {False: 4, True: 2}
# What a pull may bring at most: as by default, and when the operator lets it bring more.
PULLS = {
    "maxTransferCountOnMessageInMemory": 32,
    "maxTransferBytesOnMessageInMemory": 256 << 10,
    "maxTransferCountOnMessageInDisk": 8,
    "maxTransferBytesOnMessageInDisk": 64 << 10,
}
LARGE_PULLS = {
    "maxTransferCountOnMessageInMemory": 4096,
    "maxTransferBytesOnMessageInMemory": 1 << 20,
    "maxTransferCountOnMessageInDisk": 4096,
    "maxTransferBytesOnMessageInDisk": 1 << 20,
}
GENERATED = "rows only generated"
ALL_COLUMNS = f"{OURS}, large pulls, all columns, properties as map"

Way = Callable[[], object]


@dataclass(frozen=True)
class Load:
    """One thing to do, by several ways."""

    kind: str
    data: Data
    ways: dict[str, Way]

    @property
    def name(self) -> str:
        rows = f"{self.data.rows} rows of " if self.data is FEW else ""
        return f"{self.kind}, {rows}{self.data.size_name}"


class Bench:
    """Both sides, the session, and what was found."""

    def __init__(self, ours: OurSide, kafka: KafkaSide | None, spark: SparkSession) -> None:
        self.ours = ours
        self.kafka = kafka
        self.spark = spark
        jvm = spark_session._jvm
        assert jvm is not None
        self._jvm_cpu = machine.FamilyCpu(jvm.process.pid)
        self.found: dict[Data, Found] = {}
        self.notes: list[str] = []

    def close(self) -> None:
        self._jvm_cpu.close()

    # --- measuring ------------------------------------------------------------------------------

    def measure(self, load: Load, rounds: int, warm: int) -> None:
        runs: dict[str, list[Run]] = {}
        working = dict(load.ways)

        def attempt(way: str, *, counts: bool = True) -> None:
            if way not in working:
                return
            try:
                done = self._round(load, way)
            except Exception as error:
                del working[way]
                lines = [line for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
                self.notes.append(f"{load.name}, {way} failed: {lines[0]}")
                print(f"{self.notes[-1]} ... {lines[-1]}", flush=True)
                return
            if counts:
                runs.setdefault(way, []).append(done)
            print(
                f"{load.name}: {way}: {done.wall_s:.2f} s, {done.rate:,.0f} rows/s, {done.cpu_us:.2f} CPU µs "
                f"a row, broker {done.broker_cpu_us:.2f}{'' if counts else ' (warm-up)'}",
                flush=True,
            )

        take_turns({way: partial(attempt, way, counts=False) for way in load.ways}, warm)
        take_turns({way: partial(attempt, way) for way in load.ways}, rounds)
        self.found.setdefault(load.data, {})[load.kind] = runs

    def _round(self, load: Load, way: str) -> Run:
        if OURS in way:
            self.ours.configure(PULLS if way == SMALL else LARGE_PULLS)
        broker = self.kafka if way.startswith(KAFKA) else self.ours
        assert broker is not None
        if load.kind == SINK:
            broker.new_target()
        self._gc()
        broker_s, spark_s, began_s = machine.cpu_s(broker.pid), self._cpu_s(), time.monotonic()
        load.ways[way]()
        wall_s = time.monotonic() - began_s
        spark_s, broker_s = self._cpu_s() - spark_s, machine.cpu_s(broker.pid) - broker_s
        if load.kind == SINK and way in (OURS, KAFKA) and broker.stored(broker.target) < load.data.rows:
            raise RuntimeError(f"{broker.stored(broker.target)} of {load.data.rows} rows were written")
        return Run(load.data.rows, load.data.body_bytes, wall_s, spark_s, broker_s)

    def _gc(self) -> None:
        """Collect garbage, so that no round pays for that of the round before."""
        jvm: Any = self.spark.sparkContext._jvm
        jvm.System.gc()

    def _cpu_s(self) -> float:
        return self._jvm_cpu.now_s() + time.process_time() - self._jvm_cpu.cost_s

    # --- the rows are the same ------------------------------------------------------------------

    def check(self, data: Data) -> None:
        """Raises unless all ways of reading see the same keys and bodies."""
        generated = _digest(data.generated(self.spark), "key", "body")
        columns = "keys string, body binary"
        ways: dict[str, Callable[[], DataFrame]] = {
            "our broker": lambda: self.ours.read(self.spark, data, columns),
            "our store": lambda: self.ours.store(self.spark, data, columns),
        }
        seen = {where: _digest(way(), "keys", "body") for where, way in ways.items()}
        if self.kafka is not None:
            seen["Kafka"] = _digest(self.kafka.read(self.spark, data), "key", "value")
        for where, digest in seen.items():
            if digest != generated:
                raise RuntimeError(f"{where} has other rows: {digest} instead of {generated}")
        print(f"{data.rows:,} rows of {data.size_name} are the same everywhere", flush=True)

    # --- loads ----------------------------------------------------------------------------------

    def loads(self, data: Data) -> list[Load]:
        spark, ours, kafka = self.spark, self.ours, self.kafka
        narrow = {"schema": LIKE_KAFKA}
        batch: dict[str, Way] = {
            SMALL: lambda: _to_nowhere(ours.read(spark, data, **narrow)),
            LARGE: lambda: _to_nowhere(ours.read(spark, data, **narrow)),
            ALL_COLUMNS: lambda: _to_nowhere(ours.read(spark, data)),
        }
        stream: dict[str, Way] = {
            LARGE: lambda: self._stream_to_nowhere(ours.stream(spark, data, **narrow)),
        }
        sink: dict[str, Way] = {
            GENERATED: lambda: _to_nowhere(data.generated(spark)),
            OURS: lambda: ours.write(data.generated(spark)),
        }
        archive: dict[str, Way] = {LARGE: lambda: ours.archive(spark, data)}
        if kafka is not None:
            batch[KAFKA] = lambda: _to_nowhere(kafka.read(spark, data))
            stream[KAFKA] = lambda: self._stream_to_nowhere(kafka.stream(spark, data))
            sink[KAFKA] = lambda: kafka.write(data.generated(spark))
            archive[f"{KAFKA}, Spark's Parquet writer"] = lambda: self._to_parquet(kafka.read(spark, data))
        if data is FEW:
            for ways in (batch, stream, sink):
                for way in (SMALL, ALL_COLUMNS, GENERATED):
                    ways.pop(way, None)
            return [Load(BATCH, data, batch), Load(STREAM, data, stream), Load(SINK, data, sink)]
        parquet = f"{ours.folder}/parquet-{data.size}"
        store: dict[str, Way] = {
            f"{OURS}, Kafka's columns": lambda: _to_nowhere(ours.store(spark, data, **narrow)),
            f"{OURS}, properties as string": lambda: _to_nowhere(
                ours.store(spark, data, properties="string")
            ),
            f"{OURS}, properties as map": lambda: _to_nowhere(ours.store(spark, data)),
            "Spark's Parquet scan, Kafka's columns": lambda: _to_nowhere(
                spark.read.parquet(parquet).select(LIKE_KAFKA_NAMES)
            ),
            "Spark's Parquet scan, properties as map": lambda: _to_nowhere(spark.read.parquet(parquet)),
        }
        return [
            Load(BATCH, data, batch),
            Load(STREAM, data, stream),
            Load(STORE, data, store),
            Load(SINK, data, sink),
            Load(ARCHIVE, data, archive),
        ]

    def write_parquet(self, data: Data) -> None:
        """The rows for the Parquet scan: a file for each queue would be small, so one for each core."""
        rows = self.ours.store(self.spark, data)
        rows.coalesce(2).write.mode("overwrite").parquet(f"{self.ours.folder}/parquet-{data.size}")

    def _to_parquet(self, rows: DataFrame) -> None:
        folder = self.ours.new_folder()
        rows.write.option("compression", "zstd").parquet(folder)
        shutil.rmtree(folder)

    def _stream_to_nowhere(self, rows: DataFrame) -> None:
        writer = rows.writeStream.format("noop").option("checkpointLocation", self.ours.new_folder())
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()


def _to_nowhere(rows: DataFrame) -> None:
    """Every row is made, and dropped."""
    rows.write.format("noop").mode("overwrite").save()


def _digest(rows: DataFrame, key: str, body: str) -> tuple[int, int]:
    from pyspark.sql import functions as f

    one = f.xxhash64(f.col(key).cast("string"), f.col(body).cast("binary"))
    found = rows.select(f.count("*"), f.bit_xor(one)).collect()[0]
    return int(found[0]), int(found[1])


# --- all loads ------------------------------------------------------------------------------------


def main(argv: list[str] | None = None) -> Result | None:
    parser = argparse.ArgumentParser(prog="python -m bench spark", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rows, fewer rounds")
    parser.add_argument("--rounds", type=int, help="of each load and way")
    parser.add_argument("--rows", type=int, help="of 128 bytes; of 1 KiB there are fewer")
    parser.add_argument("--only", default="", help="loads with this text in their name")
    parser.add_argument("--no-kafka", action="store_true", help="our side only")
    parser.add_argument("--no-save", action="store_true", help="print the results only")
    arguments = parser.parse_args(argv)
    if find_spec("pyspark") is None:
        print("no benchmark of Spark without it: pip install 'kerolox[spark]'")
        return None
    quick = arguments.quick
    rounds = arguments.rounds or ROUNDS[quick]
    share = 1.0 if arguments.rows is None else arguments.rows / DATA[quick][0][1]
    datas = [Data(size, int(rows * share)) for size, rows in DATA[quick]]
    jars = None
    if not arguments.no_kafka:
        try:
            jars = get_kafka_jars()
        except PeersUnavailable as missing:
            print(f"no comparison without Kafka's programs: {missing}")
    conf = {} if jars is None else {"spark.driver.extraClassPath": jars.connector_classpath}
    facts = machine.describe(find_java().path) | _spark_facts()
    flags = _flags(datas, rounds)
    machine.show(facts | flags)
    with ExitStack() as stack:
        ours = OurSide()
        stack.callback(ours.close)
        kafka = None
        if jars is not None:
            kafka = KafkaSide(jars)
            stack.callback(kafka.close)
        for data in (FEW, *datas):
            ours.fill(data)
        spark = spark_session.session("bench", MASTER, conf=conf, memory=MEMORY, log_level="ERROR")
        stack.callback(spark_session.stop)
        bench = Bench(ours, kafka, spark)
        stack.callback(bench.close)
        if kafka is not None:
            kafka.attach(spark)
        for place, data in enumerate((*datas, FEW)):
            if kafka is not None:
                kafka.fill(data, spark)
            bench.check(data)
            if data is not FEW:
                bench.write_parquet(data)
            for load in bench.loads(data):
                if arguments.only in load.name:
                    # A JVM compiles what runs often; that serves the later ones as well.
                    bench.measure(load, rounds, warm=2 if place == 0 and not quick else 1)
    result = Result(
        "spark",
        "Spark",
        [ABOUT, *bench.notes],
        facts,
        flags,
        [
            *(table(data, found) for data, found in bench.found.items() if data is not FEW),
            start_table(bench.found.get(FEW, {})),
            aims(bench.found),
        ],
        {
            data.title: {
                kind: {way: [asdict(run) for run in runs] for way, runs in ways.items()}
                for kind, ways in kinds.items()
            }
            for data, kinds in bench.found.items()
        },
    )
    result.show()
    if not arguments.no_save:
        result.save()
    return result


ABOUT = (
    "One Spark session, `local[2]`, with our formats and with Spark's own Kafka connector: the same keys and "
    "bodies at our broker and at Kafka's, as many partitions as queues, in turns. Reads go to Spark's `noop` "
    "sink, which takes every row and drops it. CPU time is that of Spark: the JVM, its Python workers, and "
    "the program that asks; the broker's is beside it. All share the cores, so rates include the broker's "
    "work. MB are of bodies alone; our messages also carry a tag and the unique id that clients of RocketMQ "
    "give them. Kafka's columns are those of its connector's table (key, value, topic, partition, offset, "
    "timestamp) and their like in ours, by a schema; all columns are the 18 of ours."
)


def _spark_facts() -> dict[str, str]:
    from importlib import metadata

    names = ("pyspark", "pyarrow", "numpy")
    return {"spark": ", ".join(f"{name} {metadata.version(name)}" for name in names)}


def _flags(datas: list[Data], rounds: int) -> dict[str, str]:
    return {
        "rows": ", ".join(f"{data.rows:,} of {data.size_name}" for data in datas) + f", in {QUEUES} queues",
        "rounds": f"{rounds} of each load and way, taking turns, after a warm-up",
        "pinned": "nothing: Spark, the broker and this program share the cores",
        "Spark session": f"{MASTER}, -Xmx{MEMORY}, as `kerolox.spark.session` sets it",
        "our broker": "defaults; " + _shown(PULLS),
        "large pulls": _shown(LARGE_PULLS) + "; the source asks for 1,024 messages a pull",
        "Kafka": f"{BROKER_VERSION}, one node (KRaft), defaults, acks=all as by default",
        "Kafka's connector": f"spark-sql-kafka-0-10 {CONNECTOR_VERSION} (Maven Central has none for 4.3.0), "
        f"kafka-clients {CLIENTS_VERSION}, defaults",
        "JVM flags of Kafka's broker": " ".join(BROKER_FLAGS),
    }


def _shown(options: dict[str, int]) -> str:
    return ", ".join(f"{key}={value}" for key, value in options.items())


if __name__ == "__main__":
    main()
