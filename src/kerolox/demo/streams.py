"""Streaming queries of ``kerolox demo``, run in a separate process.

The process reports its progress as lines of JSON and exits when its stdin is closed. So it stops with the
demo, however the demo ends, and so does Spark's Java process.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kerolox.errors import KeroloxError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

ORDER = "order INT, region STRING, amount DOUBLE"
BATCHES = 3  # all orders are stored already; several batches demonstrate a stream
LOOK_EVERY_S = 0.2
TRIES = 5


class QueryStopped(BaseException):
    """The demo has stopped. A BaseException, so that no handler of errors catches it."""


def main(address: str, topic: str, alerts: str, limit: str, count: str, step_ms: str, place: str) -> None:
    from kerolox.spark.session import QUICK, session, stop

    threading.Thread(target=_wait_for_the_end, daemon=True).start()
    signal.signal(signal.SIGTERM, _stopped)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        spark = session("kerolox-demo", conf=QUICK)
        java = spark.sparkContext._jvm.java.lang.System.getProperty("java.version")  # type: ignore[union-attr]
        tell("started", spark=spark.version, java=java)
        run(spark, address, topic, alerts, float(limit), int(count), int(step_ms), Path(place))
    except QueryStopped:
        sys.exit(130)
    except KeroloxError as error:  # no Java, for instance
        tell("failed", why=str(error))
        sys.exit(1)
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        stop()


def run(
    spark: SparkSession, address: str, topic: str, alerts: str, limit: float, count: int, step_ms: int,
    place: Path,
) -> None:  # fmt: skip
    from pyspark.sql import functions as f

    stream = (
        spark.readStream.format("rocketmq")
        .option("nameserver", address)
        .option("topic", topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", max(1, -(-count // BATCHES)))
        .schema("body BINARY, store_timestamp TIMESTAMP")  # only these columns are decoded
    )
    order = f.from_json(f.col("body").cast("string"), ORDER).alias("order")

    def orders(group: str) -> DataFrame:
        return stream.option("group", group).load().select("store_timestamp", order)

    def keep(batch: DataFrame, number: int) -> None:
        # A batch repeated after a crash overwrites its files, so every order counts once.
        batch.persist()
        step = (f.floor(f.unix_millis("store_timestamp") / step_ms) * step_ms).alias("ms")
        parts = batch.groupBy("order.region", step)
        totals = parts.agg(f.count("*").alias("orders"), f.sum("order.amount").alias("amount"))
        totals.write.mode("overwrite").parquet(str(place / "totals" / f"batch={number}"))
        numbers = batch.groupBy("order.order").agg(f.min(step).alias("ms"))
        numbers.write.mode("overwrite").parquet(str(place / "numbers" / f"batch={number}"))
        batch.unpersist()

    def add_up() -> StreamingQuery:
        return (
            orders("demo-statistics")
            .writeStream.foreachBatch(keep)
            .option("checkpointLocation", str(place / "checkpoints" / "totals"))
            .trigger(availableNow=True)
            .start()
        )

    def warn() -> StreamingQuery:
        large = orders("demo-guard").filter(f.col("order.amount") >= limit)
        return (
            large.select(
                f.to_json("order").cast("binary").alias("body"),
                f.concat(f.lit("o-"), f.col("order.order")).alias("keys"),
                f.col("order.region").alias("tags"),
            )
            .writeStream.format("rocketmq")
            .option("nameserver", address)
            .option("topic", alerts)
            .option("deliveryGuarantee", "effectively-once")
            .option("checkpointLocation", str(place / "checkpoints" / "alerts"))
            .trigger(availableNow=True)
            .start()
        )

    began_s = time.monotonic()
    read, batches = run_to_end(add_up, "added")
    seconds = time.monotonic() - began_s
    run_to_end(warn, "searched")
    totals = spark.read.parquet(str(place / "totals"))
    regions = totals.groupBy("region").agg(f.sum("orders").alias("orders"), f.sum("amount").alias("amount"))
    # Count duplicates once: the broker may have stored an order and crashed before the acknowledgement.
    different = spark.read.parquet(str(place / "numbers")).groupBy("order").agg(f.min("ms").alias("ms"))
    over_time = different.groupBy("ms").agg(f.count("*").alias("orders")).orderBy("ms").collect()
    tell(
        "done",
        read=read,
        batches=batches,
        seconds=round(seconds, 1),
        regions=[row.asDict() for row in regions.orderBy("region").collect()],
        orders=sum(row["orders"] for row in over_time),
        overTime=[row.asDict() for row in over_time],
    )


def run_to_end(start: Callable[[], StreamingQuery], what: str) -> tuple[int, int]:
    """Run a query to its end. Return the number of rows it read and the number of batches."""
    rows: dict[int, int] = {}
    for left in reversed(range(TRIES)):
        query = start()
        while True:
            is_over = not query.isActive
            for each in query.recentProgress:
                rows[each["batchId"]] = each["numInputRows"]
            tell("progress", what=what, read=sum(rows.values()))
            if is_over:
                break
            time.sleep(LOOK_EVERY_S)
        error = query.exception()
        if error is None:
            return sum(rows.values()), sum(count > 0 for count in rows.values())
        # Spark waits ten seconds for Python to start, which may be too short on a busy machine.
        if not left or "connect back" not in str(error):
            tell("failed", why=str(error))
            raise error
    raise AssertionError("unreachable")


def tell(event: str, **what: Any) -> None:
    sys.stdout.write(json.dumps({"event": event, **what}) + "\n")
    sys.stdout.flush()


def _wait_for_the_end() -> None:
    while os.read(0, 1):  # not by sys.stdin, which must not be in use when Python exits
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def _stopped(*_: object) -> None:
    raise QueryStopped


if __name__ == "__main__":
    main(*sys.argv[1:])
