"""Runs that are killed between the commit of a table and Spark's, and runs that are asked to stop."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from kerolox.client.messages import Message
from kerolox.testing.threads import BrokerThread
from tests.pipeline.flows.killing import ended, started, texts_in

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]

KINDS = ("parquet", "delta", "iceberg")
Send = Callable[[list[Message]], object]
FILE = """\
name: killed
storage: ${DIR}/state
nameserver: ${NS}
sources:
  messages:
    topic: ${TOPIC}
    columns: [body]
    options: {startingOffsets: earliest, maxOffsetsPerTrigger: "40"}
steps:
  texts: {sql: SELECT CAST(body AS STRING) AS text FROM messages}
sinks:
  parquet: {from: texts, format: parquet, path: "${DIR}/parquet"}
  delta: {from: texts, format: delta, path: "${DIR}/delta"}
  iceberg: {from: texts, format: iceberg, table: shop.texts, path: "${DIR}/iceberg"}
trigger: 500ms
spark: {conf: {spark.driver.extraJavaOptions: -XX:TieredStopAtLevel=1 -XX:+UseSerialGC}}
"""


@pytest.fixture
def command(tmp_path: Path, broker: BrokerThread, topic: str) -> list[str]:
    file = tmp_path / "killed.yaml"
    file.write_text(FILE)
    given = {"DIR": str(tmp_path), "NS": broker.nameserver_address, "TOPIC": topic}
    settings = [text for name, value in given.items() for text in ("--set", f"{name}={value}")]
    return ["pipeline", "run", str(file), *settings, "--master", "local[2]"]


@pytest.fixture
def wanted(send: Send, topic: str) -> list[str]:
    texts = [f"text-{number:03d}" for number in range(100)]
    send([Message(topic, text) for text in texts])
    return texts


def test_killed_behind_the_commit(command: list[str], wanted: list[str], tmp_path: Path) -> None:
    """Each table has its first batch, and Spark does not know; then all run to the end."""
    for kind in KINDS:
        code, said = ended(started(f"{kind} after the commit", *command, "--once", "--flow", kind))
        assert code == -signal.SIGKILL, said
        assert len(texts_in(kind, tmp_path / kind)) == 40
        assert not (tmp_path / f"state/checkpoints/{kind}/commits/0").exists()
    code, said = ended(started("never", *command, "--once"))
    assert code == 0, said
    for kind in KINDS:
        assert texts_in(kind, tmp_path / kind) == wanted


def test_sigterm_lets_the_batch_end(command: list[str], wanted: list[str], tmp_path: Path) -> None:
    """A run without an end is asked to stop when it has written something: all flows end between batches,
    the page tells so, and the next run goes on behind."""
    run = started("never", *command, "--json")
    watch = threading.Timer(500, run.kill)
    watch.start()
    try:
        assert run.stdout is not None
        while not all((tmp_path / f"state/checkpoints/{kind}/commits/0").exists() for kind in KINDS):
            assert run.poll() is None, run.stdout.read()
            threading.Event().wait(0.1)
        run.send_signal(signal.SIGTERM)
        said = run.stdout.read()
        assert run.wait(timeout=500) == 0, said
    finally:
        watch.cancel()
        run.kill()
    document, _ = json.JSONDecoder().raw_decode(said, said.index('{\n  "pipeline"'))
    assert {flow["state"] for flow in document["flows"].values()} == {"stopped"}
    page = Path(document["page"]).read_text()
    assert 'http-equiv="refresh"' not in page  # the last one: no browser waits for another
    assert json.loads((Path(document["page"]).parent / "run.json").read_text())["endedMs"]
    code, said = ended(started("never", *command, "--once"))
    assert code == 0, said
    for kind in KINDS:
        assert texts_in(kind, tmp_path / kind) == wanted
