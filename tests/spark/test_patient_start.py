"""Queries whose Python comes too late for Spark."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kerolox.client.messages import Message
from kerolox.spark import start
from kerolox.spark.datasource import RocketMQ
from kerolox.testing.threads import BrokerThread

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Python as Spark starts it: for a streaming source the first so many times not at all.
PYTHON = """#!/bin/sh
case "$*" in *streaming_source_runner*)
    for number in {numbers}; do mkdir {folder}/$number 2>/dev/null && exit 1; done;;
esac
exec {python} "$@"
"""


class LateSource(RocketMQ):
    """``rocketmq`` whose processes are started by another Python."""

    @classmethod
    def name(cls) -> str:
        return "late"


class Counting:
    """A writer, and how often it started a query."""

    def __init__(self, writer: Any) -> None:
        self.writer = writer
        self.starts = 0

    def start(self) -> Any:
        self.starts += 1
        return self.writer.start()


@pytest.fixture
def late(spark: SparkSession, tmp_path: Path) -> None:
    """The format ``late``: its first process is missing."""
    script = tmp_path / "python"
    script.write_text(PYTHON.format(numbers="0", folder=tmp_path, python=sys.executable))
    script.chmod(0o755)
    context = spark.sparkContext
    before, context.pythonExec = context.pythonExec, str(script)
    try:
        spark.dataSource.register(LateSource)
    finally:
        context.pythonExec = before


def writer(spark: SparkSession, format: str, broker: BrokerThread, topic: str, checkpoint: Path) -> Counting:
    reader = spark.readStream.format(format).option("nameserver", broker.nameserver_address)
    frame = reader.option("topic", topic).option("startingOffsets", "earliest").load()
    made = frame.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
    return Counting(made.trigger(availableNow=True))


@pytest.mark.long  # Spark waits 10 s for it
def test_a_query_is_started_again_when_python_came_too_late(
    spark: SparkSession,
    late: None,
    broker: BrokerThread,
    topic: str,
    send: Callable[[Sequence[Message]], Any],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    send([Message(topic, "x")])
    counting: Any = writer(spark, "late", broker, topic, tmp_path / "checkpoint")
    with caplog.at_level(logging.WARNING):
        query = start(counting)
    assert query.awaitTermination(120)
    assert query.exception() is None
    assert sum(each.numInputRows for each in query.recentProgress) == 1
    assert counting.starts == 2
    assert "python_too_late" in caplog.text


def test_any_other_end_is_left_as_it_is(spark: SparkSession, broker: BrokerThread, tmp_path: Path) -> None:
    counting: Any = writer(spark, "rocketmq", broker, "no-such-topic", tmp_path / "checkpoint")
    query = start(counting)
    with pytest.raises(Exception, match="no-such-topic"):
        query.awaitTermination(120)
    assert counting.starts == 1
