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
from tests.pipeline.flows.killing import started, texts_in

pytestmark = pytest.mark.long

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


@pytest.mark.parametrize("kind", KINDS)
def test_killed_behind_the_commit(kind: str, command: list[str], wanted: list[str], tmp_path: Path) -> None:
    """Each start is killed with the first batch it commits; what is left then runs to the end."""
    command = [*command, "--once", "--flow", kind]
    for step in ("before the commit", "after the commit", "after the commit"):
        run = started(f"{kind} {step}", *command)
        said, _ = run.communicate(timeout=300)
        assert run.returncode == -signal.SIGKILL, said
    assert 0 < len(texts_in(kind, tmp_path / kind)) < len(wanted)  # it was killed in the middle
    run = started("never", *command)
    said, _ = run.communicate(timeout=300)
    assert run.returncode == 0, said
    assert texts_in(kind, tmp_path / kind) == wanted


def test_sigterm_lets_the_batch_end(command: list[str], wanted: list[str], tmp_path: Path) -> None:
    """A run without an end is asked to stop when it has written something: all flows end between batches,
    the page tells so, and the next run goes on behind."""
    run = started("never", *command, "--json")
    watch = threading.Timer(300, run.kill)
    watch.start()
    try:
        assert run.stdout is not None
        while not all((tmp_path / f"state/checkpoints/{kind}/commits/0").exists() for kind in KINDS):
            assert run.poll() is None, run.stdout.read()
            threading.Event().wait(0.1)
        run.send_signal(signal.SIGTERM)
        said = run.stdout.read()
        assert run.wait(timeout=300) == 0, said
    finally:
        watch.cancel()
    document = json.loads(said.strip().splitlines()[-1])
    assert {flow["state"] for flow in document["flows"].values()} == {"stopped"}
    page = Path(document["page"]).read_text()
    assert 'http-equiv="refresh"' not in page  # the last one: no browser waits for another
    assert json.loads((Path(document["page"]).parent / "run.json").read_text())["endedMs"]
    run = started("never", *command, "--once")
    said, _ = run.communicate(timeout=300)
    assert run.returncode == 0, said
    for kind in KINDS:
        assert texts_in(kind, tmp_path / kind) == wanted
