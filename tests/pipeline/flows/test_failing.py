"""Flows that fail: some are started again, some give up, checks stop one of them or the whole run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.dataset as ds
import pytest

from kerolox.client.messages import Message
from kerolox.pipeline.flows.lake_tables import ParquetWriter
from kerolox.pipeline.flows.run import Run
from kerolox.testing.threads import BrokerThread
from tests.pipeline.flows.flowing import run_once

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.long

Send = Callable[[list[Message]], object]
FILE = """\
name: failing
storage: ${DIR}/state
nameserver: ${NS}
sources:
  messages: {topic: "${TOPIC}", columns: [body], options: {startingOffsets: earliest}}
steps:
  texts: {sql: SELECT CAST(body AS STRING) AS text FROM messages}
sinks:
  good: {from: texts, format: parquet, path: "${DIR}/good"}
  unlucky: {from: texts, format: parquet, path: "${DIR}/unlucky"}
  checked: {from: texts, format: parquet, path: "${DIR}/checked"}
checks:
  few: {rows: {max: "${MAX}"}, of: checked, then: "${THEN}"}
retry: {tries: 2, wait: 10ms}
keep_going: ${KEEP}
"""
TEXTS = [f"text-{number}" for number in range(10)]


@pytest.fixture
def unlucky(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How often the commits of one flow fail from now on: a number that counts down."""
    commit, left = ParquetWriter.commit, [0]

    def fail(self: ParquetWriter, table: Any, files: Sequence[Any], name: str, number: int) -> None:
        if ".unlucky." in name and left[0]:
            left[0] -= 1
            raise ConnectionError("the store is away")
        commit(self, table, files, name, number)

    monkeypatch.setattr(ParquetWriter, "commit", fail)
    return left


def test_flows_that_fail(
    spark: SparkSession, broker: BrokerThread, topic: str, send: Send, tmp_path: Path, unlucky: list[int]
) -> None:
    file = tmp_path / "pipeline.yaml"
    file.write_text(FILE)
    send([Message(topic, text) for text in TEXTS])

    def run(**names: object) -> Run:
        places = {"DIR": str(tmp_path), "NS": broker.nameserver_address, "TOPIC": topic}
        return run_once(spark, file, **places, **{name: str(value) for name, value in names.items()})

    def states(made: Run) -> dict[str, str]:
        return {name: flow.state for name, flow in made.figures.flows.items()}

    def written(flow: str) -> list[str]:
        folder = tmp_path / flow
        found = ds.dataset(folder).to_table()["text"].to_pylist() if any(folder.glob("*.parquet")) else []
        return sorted(found)

    # One gives up after its tries, a check stops another, and the third goes on.
    unlucky[0] = 3
    made = run(MAX=5, THEN="stop", KEEP="true")
    assert states(made) == {"good": "done", "unlucky": "failed", "checked": "stopped"}
    assert list(made.result.failed) == ["unlucky"]
    assert "the store is away" in made.result.failed["unlucky"]
    assert "check few failed in batch 0: 10 rows; expected at most 5" in made.result.stopped["checked"]
    assert made.figures.flows["unlucky"].restarts == 2
    assert [each.then for each in made.figures.failures if each.flow == "unlucky"] == [
        "restarted after 0.01 s", "restarted after 0.02 s", "given up",
    ]  # fmt: skip
    assert (written("good"), written("unlucky"), written("checked")) == (TEXTS, [], [])

    # A check that fails the run: nothing of that batch is written; what had failed before passes or stops.
    made = run(MAX=5, THEN="fail", KEEP="false")
    assert list(made.result.failed) == ["checked"]
    assert states(made)["checked"] == "failed"
    assert written("checked") == []

    # A failure that passes, and a check that now holds: all goes on where it was, every row once.
    unlucky[0] = 2 if not written("unlucky") else 0
    made = run(MAX=50, THEN="fail", KEEP="false")
    assert (made.result.failed, made.result.stopped) == ({}, {})
    assert set(states(made).values()) == {"done"}
    assert [written(flow) for flow in ("good", "unlucky", "checked")] == [TEXTS] * 3
