"""What a micro-batch costs in a stream that has been running: of no rows, of a hundred, of ten thousand.

The topics are full before; ``maxOffsetsPerTrigger`` gives every batch its rows, one batch a second. So
nothing is sent meanwhile, and the CPU time is that of the stream alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench.results import Table, number, ratio
from bench.rounds import typical_cost

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming import StreamingQuery

BATCHES = (0, 100, 10_000)  # rows in each
INTERVAL_S = 1.0
WARM_S = 20.0


@dataclass(frozen=True)
class Steady:
    """What batches of one size cost, in the mean."""

    side: str
    rows: int
    batches: int
    seconds: float
    spark_cpu_s: float
    broker_cpu_s: float
    batch_ms: list[float]  # of each, by Spark's own clock

    @property
    def count(self) -> int:
        """Batches; where there was nothing to read, how often it was looked for."""
        return self.batches or round(self.seconds / INTERVAL_S)


def run_steadily(
    side: str,
    rows: int,
    stream: DataFrame,
    checkpoint: str,
    seconds: float,
    cpu_s: Callable[[], float],
    broker_cpu_s: Callable[[], float],
) -> Steady:
    """A stream with ``rows`` in every batch, for so long, after a warm-up."""
    writer = stream.writeStream.format("noop").option("checkpointLocation", checkpoint)
    query = writer.trigger(processingTime=f"{INTERVAL_S} seconds").start()
    try:
        _pass(query, WARM_S)
        began = query.lastProgress.batchId if query.lastProgress else -1
        spark_s, broker_s, began_s = cpu_s(), broker_cpu_s(), time.monotonic()
        _pass(query, seconds)
        took_s = time.monotonic() - began_s
        spark_s, broker_s = cpu_s() - spark_s, broker_cpu_s() - broker_s
        # Kafka's connector shares them out over partitions, and rounds.
        seen = [each for each in query.recentProgress if each.batchId > began and each.numInputRows > 0]
    finally:
        query.stop()
    if rows and not seen:
        raise RuntimeError(f"{side}: no batch in {took_s:.0f} s")
    durations = [float(each.durationMs["triggerExecution"]) for each in seen] if rows else []
    return Steady(side, rows, len(durations), took_s, spark_s, broker_s, durations)


def _pass(query: StreamingQuery, seconds: float) -> None:
    if query.awaitTermination(seconds):
        raise RuntimeError("the stream ended by itself")


def steady_table(found: list[Steady], kafka: str) -> Table:
    rows = []
    others = {each.rows: each for each in found if each.side == kafka}
    for each in sorted(found, key=lambda one: one.rows):
        cpu_ms = each.spark_cpu_s * 1000 / each.count
        other = others.get(each.rows)
        beside = ""
        if other is not None and other is not each:
            beside = ratio(other.spark_cpu_s / other.count / (each.spark_cpu_s / each.count))
        rows.append([
            f"{each.rows:,}", each.side, str(each.count),
            number(typical_cost(each.batch_ms)) if each.batch_ms else "",
            number(cpu_ms), beside, number(each.broker_cpu_s * 1000 / each.count),
        ])  # fmt: skip
    return Table(
        "A micro-batch of a stream that has been running",
        [
            "rows in a batch",
            "way",
            "batches",
            "milliseconds a batch",
            "CPU ms a batch, Spark",
            "batches per CPU second to Kafka's",
            "CPU ms a batch, broker",
        ],
        rows,
        [
            f"One batch a second, rows of 128 B to Spark's `noop` sink, after {WARM_S:.0f} s of warm-up. "
            "With nothing to read Spark runs no batch: then it is what a second of waiting costs."
        ],
    )
