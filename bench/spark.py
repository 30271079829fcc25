"""Spark beside both brokers: our formats, and Spark's own Kafka connector, on the same rows.

One session, ``local[2]``, reads and writes the same keys and bodies at our broker and at Kafka's, in turns.
Nothing is pinned: Spark has all cores, and the brokers share them. So CPU time is the main measure: that of
the JVM, of Spark's Python workers and of this process together, and that of the broker apart from it.
"""

from __future__ import annotations

import argparse
import os
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
from bench.spark_sides import KAFKA, LIKE_KAFKA, Data, KafkaSide, OurSide
from bench.spark_steady import BATCHES, Steady, run_steadily, steady_table
from bench.spark_tables import (
    ARCHIVE,
    AS_STRING,
    BATCH,
    FEW,
    KAFKAS_COLUMNS,
    LIMIT,
    SINK,
    STORE,
    STREAM,
    Found,
    Run,
    aims,
    role_of,
    slope_table,
    start_table,
    table,
)
from kerolox.spark import session as spark_session
from kerolox.spark.java import find_java

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MASTER = "local[2]"
MEMORY = "1g"
# Of each size a small and a large query, for the line through both. Bodies of 16 KiB by the million would be
# 64 GiB: more than the memory, and then it is disks that are measured.
SIZES = {
    False: ((128, 1_000_000, 4_000_000), (1024, 500_000, 2_000_000), (16_384, 30_000, 120_000)),
    True: ((128, 100_000, 400_000), (1024, 50_000, 200_000), (16_384, 5_000, 20_000)),
}
ROUNDS = {False: 2, True: 1}
STEADY_S = {False: 100.0, True: 10.0}  # for each number of rows in a batch
SINK_SHARE = 4  # a sink writes a quarter of the rows: what is written stays on the disk
GENERATED = "rows only generated"
ALL_COLUMNS = f"{OURS}, all columns, properties as map"
PARQUET = f"{KAFKA}, Spark's Parquet writer"

Way = Callable[[], object]


@dataclass(frozen=True)
class Load:
    """One thing to do, by several ways."""

    kind: str
    data: Data
    ways: dict[str, Way]

    @property
    def rows(self) -> int:
        return self.data.rows if self.kind != SINK or self.data is FEW else self.data.rows // SINK_SHARE

    @property
    def name(self) -> str:
        return f"{self.kind}, {self.rows:,} rows of {self.data.size_name}"


class Bench:
    """Both sides, the session, and what was found."""

    def __init__(self, ours: OurSide, kafka: KafkaSide | None, spark: SparkSession) -> None:
        self.ours = ours
        self.kafka = kafka
        self.spark = spark
        jvm = spark_session._jvm
        assert jvm is not None
        self._jvm_cpu = machine.FamilyCpu(jvm.process.pid, role=role_of)
        self.found: dict[Data, Found] = {}
        self.notes: list[str] = []
        self.steady: list[Steady] = []
        self._limits: dict[Data, DataFrame] = {}

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
        broker = self.kafka if way.startswith(KAFKA) else self.ours
        assert broker is not None
        if load.kind == SINK:
            broker.new_target()
        self._gc()
        parts = self._jvm_cpu.by_role()
        broker_s, spark_s, began_s = machine.cpu_s(broker.pid), self._cpu_s(), time.monotonic()
        load.ways[way]()
        wall_s = time.monotonic() - began_s
        spark_s, broker_s = self._cpu_s() - spark_s, machine.cpu_s(broker.pid) - broker_s
        parts = {role: used_s - parts.get(role, 0.0) for role, used_s in self._jvm_cpu.by_role().items()}
        if load.kind == SINK and way in (OURS, KAFKA) and broker.stored(broker.target) < load.rows:
            raise RuntimeError(f"{broker.stored(broker.target)} of {load.rows} rows were written")
        return Run(load.rows, load.rows * load.data.size, wall_s, spark_s, broker_s, parts)

    def _gc(self) -> None:
        """Collect garbage, so that no round pays for that of the round before."""
        jvm: Any = self.spark.sparkContext._jvm
        jvm.System.gc()

    def _cpu_s(self) -> float:
        return self._jvm_cpu.now_s() + time.process_time() - self._jvm_cpu.cost_s

    # --- the rows are the same ------------------------------------------------------------------

    def fill(self, data: Data) -> None:
        """The rows at both brokers."""
        self.ours.fill(data)
        if self.kafka is not None:
            self.kafka.fill(data, self.spark)
        self.check(data)

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

    def loads(self, data: Data, *, large: bool) -> list[Load]:
        """What is measured of these rows; of the large ones only what a line is drawn through."""
        spark, ours, kafka = self.spark, self.ours, self.kafka
        narrow = {"schema": LIKE_KAFKA}
        written = data if data is FEW else Data(data.size, data.rows // SINK_SHARE)
        batch: dict[str, Way] = {OURS: lambda: _to_nowhere(ours.read(spark, data, **narrow))}
        stream: dict[str, Way] = {OURS: lambda: self._stream_to_nowhere(ours.stream(spark, data, **narrow))}
        sink: dict[str, Way] = {OURS: lambda: ours.write(written.generated(spark))}
        archive: dict[str, Way] = {OURS: lambda: ours.archive(spark, data)}
        store: dict[str, Way] = {
            KAFKAS_COLUMNS: lambda: _to_nowhere(ours.store(spark, data, **narrow)),
            AS_STRING: lambda: _to_nowhere(ours.store(spark, data, properties="string")),
            LIMIT: lambda: _to_nowhere(limit),
        }
        if kafka is not None:
            batch[KAFKA] = lambda: _to_nowhere(kafka.read(spark, data))
            stream[KAFKA] = lambda: self._stream_to_nowhere(kafka.stream(spark, data))
            sink[KAFKA] = lambda: kafka.write(written.generated(spark))
            archive[PARQUET] = lambda: self._to_parquet(kafka.read(spark, data))
        loads = [Load(BATCH, data, batch), Load(STREAM, data, stream), Load(SINK, data, sink)]
        if data is FEW:
            return loads
        limit = self._limit(data)
        if not large:
            batch[ALL_COLUMNS] = lambda: _to_nowhere(ours.read(spark, data))
            store[f"{OURS}, properties as map"] = lambda: _to_nowhere(ours.store(spark, data))
            sink[GENERATED] = lambda: _to_nowhere(written.generated(spark))
        return [*loads, Load(STORE, data, store), Load(ARCHIVE, data, archive)]

    def _limit(self, data: Data) -> DataFrame:
        """As many rows as the store has, without reading them."""
        from bench.spark_limit import finished_rows

        if data not in self._limits:
            sample = self.ours.store(self.spark, data, properties="string")
            file = f"{self.ours.new_folder()}.arrow"
            self._limits[data] = finished_rows(self.spark, sample, file, data.rows, QUEUES)
        return self._limits[data]

    # --- streams that have been running ---------------------------------------------------------

    def steadily(self, data: Data, seconds: float) -> None:
        """Micro-batches of each number of rows, on both sides."""
        spark, ours, kafka = self.spark, self.ours, self.kafka
        spark.conf.set("spark.sql.streaming.numRecentProgressUpdates", "1000")
        for rows in BATCHES:
            limit = str(rows or data.rows)
            from_where = "earliest" if rows else "latest"
            options = {"maxOffsetsPerTrigger": limit, "startingOffsets": from_where}
            sides: dict[str, tuple[DataFrame, int]] = {
                OURS: (ours.stream(spark, data, schema=LIKE_KAFKA, **options), ours.pid)
            }
            if kafka is not None:
                sides[KAFKA] = (kafka.stream(spark, data, **options), kafka.pid)
            for side, (stream, pid) in sides.items():
                self._gc()
                broker_cpu_s = partial(machine.cpu_s, pid)
                try:
                    done = run_steadily(
                        side, rows, stream, ours.new_folder(), seconds, self._cpu_s, broker_cpu_s
                    )
                except Exception as error:
                    self.notes.append(f"batches of {rows:,}, {side} failed: {error}")
                    print(self.notes[-1], flush=True)
                    continue
                self.steady.append(done)
                print(
                    f"batches of {rows:,}: {side}: {done.count}, {done.spark_cpu_s * 1000 / done.count:.0f} "
                    "CPU ms each",
                    flush=True,
                )

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
    parser.add_argument("--share", type=float, default=1.0, help="of the rows")
    parser.add_argument("--sizes", default="", help="of bodies, with commas: 128,1024,16384")
    parser.add_argument("--steady", type=float, help="seconds of micro-batches of each size; 0: none")
    parser.add_argument("--only", default="", help="loads with this text in their name")
    parser.add_argument("--no-kafka", action="store_true", help="our side only")
    parser.add_argument("--no-save", action="store_true", help="print the results only")
    arguments = parser.parse_args(argv)
    if find_spec("pyspark") is None:
        print("no benchmark of Spark without it: pip install 'kerolox[spark]'")
        return None
    # Where it is set every process of Spark compiles all it loads anew; installed programs are compiled.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    quick = arguments.quick
    rounds = arguments.rounds or ROUNDS[quick]
    sizes = {int(size) for size in arguments.sizes.split(",") if size}
    pairs = [
        (Data(size, int(few * arguments.share)), Data(size, int(many * arguments.share)))
        for size, few, many in SIZES[quick]
        if not sizes or size in sizes
    ]
    steady_s = STEADY_S[quick] if arguments.steady is None else arguments.steady
    jars = None
    if not arguments.no_kafka:
        try:
            jars = get_kafka_jars()
        except PeersUnavailable as missing:
            print(f"no comparison without Kafka's programs: {missing}")
    conf = {} if jars is None else {"spark.driver.extraClassPath": jars.connector_classpath}
    facts = machine.describe(find_java().path) | _spark_facts()
    flags = _flags(pairs, rounds, steady_s)
    machine.show(facts | flags)
    with ExitStack() as stack:
        ours = OurSide()
        stack.callback(ours.close)
        kafka = None
        if jars is not None:
            kafka = KafkaSide(jars)
            stack.callback(kafka.close)
        spark = spark_session.session("bench", MASTER, conf=conf, memory=MEMORY, log_level="ERROR")
        stack.callback(spark_session.stop)
        bench = Bench(ours, kafka, spark)
        stack.callback(bench.close)
        if kafka is not None:
            kafka.attach(spark)
        for place, (small, large) in enumerate(pairs):
            for data in (small, large):
                bench.fill(data)
                for load in bench.loads(data, large=data is large):
                    if arguments.only in load.name:
                        # A JVM compiles what runs often; that serves the later ones as well.
                        warm = 0 if data is large else 2 if place == 0 and not quick else 1
                        bench.measure(load, rounds, warm)
        bench.fill(FEW)
        for load in bench.loads(FEW, large=False):
            if arguments.only in load.name:
                bench.measure(load, rounds=2 * rounds, warm=1)
        if steady_s:
            bench.steadily(pairs[0][1], steady_s)
    result = Result(
        "spark",
        "Spark",
        [ABOUT, *bench.notes],
        facts,
        flags,
        [
            *(table(data, found) for data, found in bench.found.items() if data is not FEW),
            *(slope_table(small, large, bench.found) for small, large in pairs),
            start_table(bench.found.get(FEW, {})),
            steady_table(bench.steady, KAFKA),
            aims(bench.found, [large for _, large in pairs]),
        ],
        {"micro-batches": [asdict(each) for each in bench.steady]}
        | {
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


def _flags(pairs: list[tuple[Data, Data]], rounds: int, steady_s: float) -> dict[str, str]:
    sizes = (f"{small.rows:,} and {large.rows:,} of {large.size_name}" for small, large in pairs)
    return {
        "rows": ", ".join(sizes) + f", in {QUEUES} queues",
        "rounds": f"{rounds} of each load and way, taking turns, after a warm-up",
        "streams": f"{steady_s:.0f} s of micro-batches of each number of rows, on each side",
        "pinned": "nothing: Spark, the broker and this program share the cores",
        "Spark session": f"{MASTER}, -Xmx{MEMORY}, as `kerolox.spark.session` sets it",
        "our broker": "defaults",
        "Kafka": f"{BROKER_VERSION}, one node (KRaft), defaults, acks=all as by default",
        "Kafka's connector": f"spark-sql-kafka-0-10 {CONNECTOR_VERSION} (Maven Central has none for 4.3.0), "
        f"kafka-clients {CLIENTS_VERSION}, defaults",
        "JVM flags of Kafka's broker": " ".join(BROKER_FLAGS),
    }


if __name__ == "__main__":
    main()
