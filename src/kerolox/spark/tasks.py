"""Tasks on Spark's executors without tables: one per item."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from kerolox.spark.worker_memory import put_aside

if TYPE_CHECKING:
    from pyspark import SparkContext

Item = TypeVar("Item")
Done = TypeVar("Done")


def run_tasks(context: SparkContext, work: Callable[[Item], Done], items: Sequence[Item]) -> list[Done]:
    """Run one task per item and return the results in order.

    It uses no tables, because the start of Spark's SQL engine takes longer than the work on a small store.
    """
    if not items:
        return []
    return list(context.parallelize(items, len(items)).map(partial(_carry_out, work)).collect())


def _carry_out(work: Callable[[Item], Done], item: Item) -> Done:
    try:
        return work(item)
    finally:
        put_aside()
