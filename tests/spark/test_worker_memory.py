from __future__ import annotations

import gc
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from kerolox.client.messages import Message
from kerolox.pipeline.runner import OnSpark
from kerolox.spark.worker_memory import is_used_again, put_aside
from kerolox.testing.threads import BrokerThread

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from kerolox.client.messages import Receipt

MODULES_OBJECTS = 50_000  # fewer than Arrow and PySpark alone have


def look(_: int) -> tuple[int, int, int]:
    """The process, and what a collection leaves out and what it goes through."""
    return os.getpid(), gc.get_freeze_count(), len(gc.get_objects())


def test_only_workers_that_are_used_again_put_things_aside() -> None:
    assert not is_used_again()
    before = gc.get_freeze_count()  # a broker in this process does so as well
    put_aside()
    assert gc.get_freeze_count() <= before  # some of what the broker put aside may have ended


def test_workers_do_not_look_at_what_stays(spark: SparkSession) -> None:
    """PySpark collects garbage after each task: what is loaded was once most of what a small task cost."""
    for _ in range(2):  # both workers have had a task of ours then
        OnSpark(spark.sparkContext).run(look, range(8))
    seen = OnSpark(spark.sparkContext).run(look, range(8))
    for pid, left_out, gone_through in seen:
        assert left_out > MODULES_OBJECTS, (pid, left_out, gone_through)
        assert gone_through < left_out / 5, (pid, left_out, gone_through)


def test_tables_do_so_as_well(
    spark: SparkSession,
    broker: BrokerThread,
    topic: str,
    send: Callable[[list[Message]], list[Receipt]],
    new_topic: Callable[..., str],
) -> None:
    """Both directions: sources and sinks are called by Spark."""
    send([Message(topic, b"paid") for _ in range(8)])
    options = {"nameserver": broker.nameserver_address, "topic": topic}
    rows = spark.read.format("rocketmq").options(**options).load().select("body")
    options["topic"] = new_topic()
    rows.write.format("rocketmq").options(**options).mode("append").save()
    left_out = spark.sparkContext.parallelize(range(8), 8).map(lambda _: gc.get_freeze_count()).collect()
    assert max(left_out) > MODULES_OBJECTS
