"""Tasks and queries that fail on the way: what is lost (nothing), and what comes twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kerolox.testing.threads import BrokerThread

pytest.importorskip("pyspark")

from tests.spark import sinking
from tests.spark.sinking import TrappedSource, stored, texts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ONCE = "effectively-once"
ROWS = 400


@pytest.fixture(scope="module")
def trapped(spark: SparkSession) -> Iterator[SparkSession]:
    from pyspark import cloudpickle

    cloudpickle.register_pickle_by_value(sinking)
    spark.dataSource.register(TrappedSource)
    before = spark.conf.get("spark.sql.execution.arrow.maxRecordsPerBatch")
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "50")
    yield spark
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", before or "10000")
    cloudpickle.unregister_pickle_by_value(sinking)


def options(
    broker: BrokerThread, topic: str, folder: Path, trap: str, by: str, times: int = 1
) -> dict[str, str]:
    folder.mkdir(exist_ok=True)
    return {
        "nameserver": broker.nameserver_address,
        "topic": topic,
        "batchBytes": "1k",
        "trap": trap,
        "trapBy": by,
        "trapTimes": str(times),
        "trapFolder": str(folder),
    }


STEPS = [("middle", "raise"), ("after", "exit")]
ALL_STEPS = [(step, by) for step in ("before", "middle", "after") for by in ("raise", "exit")]


@pytest.mark.parametrize(
    ("trap", "by"),
    [pytest.param(*each, marks=() if each in STEPS else pytest.mark.long) for each in ALL_STEPS],
)
def test_a_task_is_tried_again_and_every_row_is_there_once(
    trapped: SparkSession, broker: BrokerThread, topic: str, tmp_path: Path, trap: str, by: str
) -> None:
    rows = trapped.range(0, ROWS, 1, 2).selectExpr(
        "concat('row ', id) as body", "concat('k', id % 9) as keys"
    )
    chosen = options(broker, topic, tmp_path / "traps", trap, by)
    rows.write.format("trapped").mode("append").options(
        **chosen, deliveryGuarantee=ONCE, settleMs="50"
    ).save()

    assert list((tmp_path / "traps").iterdir()), "the trap was not reached"
    assert texts(broker.nameserver_address, topic) == sorted(f"row {number}" for number in range(ROWS))


def test_at_least_once_a_repeated_task_sends_twice_with_the_same_ids(
    trapped: SparkSession, broker: BrokerThread, topic: str, tmp_path: Path
) -> None:
    rows = trapped.range(0, ROWS, 1, 2).selectExpr("concat('row ', id) as body")
    chosen = options(broker, topic, tmp_path / "traps", "after", "raise")
    rows.write.format("trapped").mode("append").options(**chosen).save()

    messages = stored(broker.nameserver_address, topic)
    assert len(messages) == ROWS + ROWS // 2  # partition 0 was sent twice
    assert len({message.text for message in messages}) == ROWS
    assert len({message.msg_id for message in messages}) == ROWS


def run(
    spark: SparkSession, folder: Path, chosen: dict[str, str], checkpoint: Path, **more: str
) -> Exception | None:
    """A query over all files of a folder, one a batch, until it ends; its error, if it has one."""
    query = (
        spark.readStream.format("text")
        .option("maxFilesPerTrigger", 1)
        .load(str(folder))
        .selectExpr("value as body")
        .writeStream.format("trapped")
        .options(**{**chosen, **more})
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    try:
        assert query.awaitTermination(120)
    except Exception as error:
        return error
    return None


def make_files(folder: Path, count: int, rows: int = 200) -> list[str]:
    folder.mkdir()
    made = []
    for number in range(count):
        lines = [f"{number}-{row}" for row in range(rows)]
        (folder / f"{number}.txt").write_text("\n".join(lines))
        made += lines
    return sorted(made)


STREAM_STEPS = [("committed", "raise"), ("middle", "exit")]
EVERY_STEP = [
    (step, by) for step in ("before", "middle", "after", "commit", "committed") for by in ("raise", "exit")
]


@pytest.mark.parametrize(
    ("trap", "by"),
    [pytest.param(*each, marks=() if each in STREAM_STEPS else pytest.mark.long) for each in EVERY_STEP],
)
def test_a_batch_is_run_again_after_a_restart_and_every_row_is_there_once(
    trapped: SparkSession, broker: BrokerThread, topic: str, tmp_path: Path, trap: str, by: str
) -> None:
    wanted = make_files(tmp_path / "in", 2)
    times = 2 if trap in ("before", "middle", "after") else 1  # a task is tried twice, then the query fails
    chosen = options(broker, topic, tmp_path / "traps", trap, by, times)
    once = {"deliveryGuarantee": ONCE, "settleMs": "50"}

    failed = run(trapped, tmp_path / "in", chosen, tmp_path / "checkpoint", **once)
    assert failed is not None
    assert run(trapped, tmp_path / "in", chosen, tmp_path / "checkpoint", **once) is None

    assert len(list((tmp_path / "traps").iterdir())) == times
    assert texts(broker.nameserver_address, topic) == wanted


@pytest.mark.long
def test_at_least_once_a_batch_run_again_is_sent_twice(
    trapped: SparkSession, broker: BrokerThread, topic: str, tmp_path: Path
) -> None:
    wanted = make_files(tmp_path / "in", 2)
    chosen = options(broker, topic, tmp_path / "traps", "committed", "raise")
    assert run(trapped, tmp_path / "in", chosen, tmp_path / "checkpoint") is not None
    assert run(trapped, tmp_path / "in", chosen, tmp_path / "checkpoint") is None

    found = Counter(texts(broker.nameserver_address, topic))
    assert sorted(found) == wanted
    assert Counter(found.values()) == {1: 200, 2: 200}
    assert len({message.msg_id for message in stored(broker.nameserver_address, topic)}) == len(wanted)
