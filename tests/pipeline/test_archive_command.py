"""``kerolox pipeline archive`` as people run it, with Spark."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest
from typer.testing import CliRunner

from kerolox.cli.main import app
from kerolox.cli.storage_options import pairs
from kerolox.client.messages import Message, Receipt
from kerolox.errors import OptionError
from kerolox.pipeline.archive.files import Format
from kerolox.pipeline.archive.tasks import ArchiveTasks, check_shared
from kerolox.pipeline.lake.local_folder import LocalFolder
from kerolox.pipeline.runner import OnSpark
from kerolox.sizes import size_text
from kerolox.testing.threads import BrokerThread

from .archiving import archive, bodies

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Send = Callable[[Sequence[Message]], list[Receipt]]
COMMAND = [sys.executable, "-m", "kerolox", "pipeline", "archive"]


def numbered(topic: str, numbers: range) -> list[Message]:
    return [Message(topic, str(number)) for number in numbers]


@pytest.mark.parametrize("kind", ["parquet", "delta"])
def test_tasks_on_spark(
    kind: str, spark: SparkSession, broker: BrokerThread, topic: str, send: Send, tmp_path: Path
) -> None:
    """Spark reads what it wrote: no message twice, dates and hours as such, nothing of our log."""
    send(numbered(topic, range(100)))
    how = {
        "run": ArchiveTasks(OnSpark(spark.sparkContext)),
        "cores": 2,
        "format": Format(rows_max=30),
        "kind": kind,
    }
    told = archive(tmp_path, broker.nameserver_address, topic, round_rows=60, **how)
    assert (told.rows, told.rounds) == (100, 2)
    assert told.files >= 4
    if kind == "delta":
        return
    found = spark.read.parquet(str(tmp_path))
    assert {
        "topic": "string",
        "date": "date",
        "hour": "int",
        "properties": "map<string,string>",
    }.items() <= dict(found.dtypes).items()
    counted = found.selectExpr("count(*)", "count(DISTINCT queue_id, queue_offset)", "min(topic)").collect()
    assert counted == [(100, 100, topic)]
    check_shared(OnSpark(spark.sparkContext), LocalFolder(tmp_path))
    with pytest.raises(OptionError, match="every executor"):
        check_shared(OnSpark(spark.sparkContext), LocalFolder(tmp_path / "nowhere"))


def running(pids: Sequence[int]) -> list[psutil.Process]:
    found = [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]
    _, alive = psutil.wait_procs(found, timeout=20)
    return alive


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    deadline_s = time.monotonic() + 240
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


@pytest.mark.xdist_group("spark")
@pytest.mark.long
@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGKILL])
@pytest.mark.parametrize("kind", ["spark", "processes"])
def test_a_following_run(
    kind: str, end: int, broker: BrokerThread, topic: str, send: Send, tmp_path: Path
) -> None:
    """It archives what comes. When it ends, by Ctrl-C or a kill, nothing of it keeps running."""
    send(numbered(topic, range(50)))
    process = subprocess.Popen(
        [*COMMAND, "-n", broker.nameserver_address, "--topic", topic, "--to", str(tmp_path), "--follow",
         "--interval", "200ms", "--master", "local[2]", "--runner", kind, "--json"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        # Whoever runs the tests in the background has it ignored, which children inherit.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    try:
        wait_for(lambda: len(list(tmp_path.glob("topic=*/*/*/*"))) >= 1, process)
        send(numbered(topic, range(50, 80)))
        wait_for(lambda: len(list(tmp_path.glob("topic=*/*/*/*"))) >= 2, process)
        children = [child.pid for child in psutil.Process(process.pid).children(recursive=True)]
        assert len(children) >= (2 if kind == "spark" else 1)  # the JVM, and Python workers below it
        send(numbered(topic, range(80, 90)))
        process.send_signal(end)
        out, err = process.communicate(timeout=120)
    finally:
        process.kill()
    assert running(children) == []
    if end == signal.SIGINT:
        assert (process.returncode, err) == (0, "")
        told = json.loads(out)
        assert told["complete"]
        assert told["messages"] == told["topics"][topic]["messages"] == bodies(tmp_path).total()
    archive(tmp_path, broker.nameserver_address, topic)
    assert sorted(map(int, bodies(tmp_path).elements())) == list(range(90))


runner = CliRunner()


def test_processes_of_this_machine_archive_the_same(
    broker: BrokerThread, topic: str, send: Send, tmp_path: Path
) -> None:
    send(numbered(topic, range(100)))
    words = ["pipeline", "archive", "-t", topic, "--to", str(tmp_path), "-n", broker.nameserver_address]
    for wanted in (100, 0):
        done = runner.invoke(app, [*words, "--runner", "processes", "--json"])
        assert done.exit_code == 0, done.output
        shown = json.loads(done.stdout)
        assert shown["messages"] == wanted
        assert shown["runner"].endswith("of this machine")
    assert bodies(tmp_path).total() == 100


def test_what_is_wrong_is_told_before_spark_starts(tmp_path: Path) -> None:
    base = ["pipeline", "archive", "-n", "127.0.0.1:1", "--topic", "t", "--to"]
    for more, said in (
        (["s3://key:secret@bucket/a"], "no secrets"),
        (["rsync://host/a"], "rsync://host/a"),
        ([str(tmp_path), "--option", "failOnDataLos=false"], "failOnDataLoss, perhaps"),
        ([str(tmp_path), "--option", "tags"], "NAME=VALUE"),
        ([str(tmp_path), "--compression", "rar"], "zstd, lz4"),
        ([str(tmp_path), "--properties", "json"], "map, string or none"),
        ([str(tmp_path), "--master", "lokal"], "spark://HOST:PORT"),
        ([str(tmp_path), "--group", "a b"], "group"),
        ([str(tmp_path), "--partition-by", "date,region"], "topic,date"),
        ([str(tmp_path), "--partition-by", "topic,date,property.x", "--properties", "none"], "no property"),
    ):
        done = runner.invoke(app, [*base, *more])
        assert done.exit_code == 1, (more, done.output)
        assert said in done.output
        assert len(done.output.splitlines()) == 1
    assert os.listdir(tmp_path) == []


def test_an_interval_is_a_span_of_time(tmp_path: Path) -> None:
    base = [
        "pipeline",
        "archive",
        "-n",
        "127.0.0.1:1",
        "--topic",
        "t",
        "--to",
        str(tmp_path / "a"),
        "--follow",
    ]
    for text in ("soon", "0", "10ms", "-5s"):
        done = runner.invoke(app, [*base, "--interval", text])
        assert (done.exit_code, "--interval" in done.output) == (1, True), done.output


def test_help_has_an_example() -> None:
    shown = runner.invoke(app, ["pipeline", "archive", "--help"], terminal_width=120)
    assert "Example: kerolox pipeline archive" in shown.output


def test_small_texts() -> None:
    assert [size_text(n) for n in (0, 999, 1500, 2_000_000, 3_100_000_000_000)] == [
        "0 B", "999 B", "1.46 KiB", "1.91 MiB", "2.82 TiB",
    ]  # fmt: skip
    assert pairs("--conf", ["a=b=c", "d="]) == {"a": "b=c", "d": ""}
