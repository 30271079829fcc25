"""The driver of the query that is killed: orders are added up by window, to Parquet and back to a topic.

``python -m tests.chaos.query PLAN`` runs until its stdin says ``finish`` or closes; then it reads what there
is, and prints what Parquet holds. The order's number is its time too, a millisecond each, so that a window
is complete when the watermark has passed it, however late its messages came.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

from kerolox.spark.session import session, stop

WINDOW_MS = 20
LATE = "3 seconds"  # of the orders' time: more than what lies between the queues at the end of a batch
ROWS_PER_TRIGGER = 1000
# Windows leave a task in the order of their keys, each time it runs: what effectively once asks for.
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def totals(spark: SparkSession, plan: dict[str, Any]) -> DataFrame:
    orders = (
        spark.readStream.format("rocketmq")
        .schema("body binary")
        .option("nameserver", plan["nameserver"])
        .option("topic", plan["orders"])
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", ROWS_PER_TRIGGER)
        .load()
    )
    numbers = orders.select(f.expr("cast(cast(body AS string) AS bigint)").alias("number"))
    return (
        numbers.withColumn("at", f.timestamp_millis("number"))
        .withWatermark("at", LATE)
        .groupBy(f.window("at", f"{WINDOW_MS} milliseconds"))
        .agg(f.count("*").alias("orders"), f.sum("number").alias("total"))
        .select(f.unix_millis("window.start").alias("start"), "orders", "total")
    )


def start(spark: SparkSession, plan: dict[str, Any]) -> list[StreamingQuery]:
    root = Path(plan["root"])
    to_parquet = (
        totals(spark, plan)
        .writeStream.queryName("to-parquet")
        .format("parquet")
        .option("path", str(root / "totals"))
        .option("checkpointLocation", str(root / "checkpoint-parquet"))
        .start()
    )
    to_topic = (
        totals(spark, plan)
        .select(f.to_json(f.struct("start", "orders", "total")).cast("binary").alias("body"))
        .writeStream.queryName("to-topic")
        .format("rocketmq")
        .option("nameserver", plan["nameserver"])
        .option("topic", plan["totals"])
        .option("deliveryGuarantee", plan["guarantee"])
        .option("checkpointLocation", str(root / "checkpoint-topic"))
        .start()
    )
    return [to_parquet, to_topic]


def main(plan: dict[str, Any]) -> None:
    # Spark's own launcher of executors looks for both.
    import pyspark

    os.environ.setdefault("SPARK_HOME", str(Path(pyspark.__file__).parent))
    os.environ.setdefault("SPARK_SCALA_VERSION", "2.13")
    spark = session(
        "chaos",
        plan["master"],
        conf={
            "spark.sql.shuffle.partitions": "2",
            "spark.stage.maxConsecutiveAttempts": "1",  # effectively once asks for it
            "spark.sql.streaming.stateStore.providerClass": ROCKSDB,
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.executor.memory": "512m",
            "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        },
        log_level="ERROR",
    )
    queries = start(spark, plan)
    print("started", flush=True)
    finish = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.readline(), finish.set()), daemon=True).start()
    told = -1
    while not finish.wait(0.1):
        for query in queries:
            if not query.isActive:
                raise SystemExit(f"{query.name} ended: {query.exception()}")
        batches = sum((query.lastProgress or {"batchId": 0})["batchId"] for query in queries)
        if batches != told:
            told = batches
            print(f"batches {batches}", flush=True)
    for query in queries:
        query.processAllAvailable()
        query.stop()
    rows = spark.read.parquet(str(Path(plan["root"]) / "totals")).collect()
    print("result " + json.dumps([list(row) for row in rows]), flush=True)
    stop()


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
