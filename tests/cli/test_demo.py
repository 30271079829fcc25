"""``kerolox demo`` as a process: it sends and consumes for real, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

DEMO = [sys.executable, "-m", "kerolox", "demo"]


def environment(temporary: Path) -> dict[str, str]:
    return {**os.environ, "TMPDIR": str(temporary)}


def run(temporary: Path, *args: str) -> str:
    done = subprocess.run(
        [*DEMO, *args], env=environment(temporary), capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout


def test_everything_sent_is_consumed_and_nothing_is_kept(tmp_path: Path) -> None:
    began_s = time.monotonic()
    told = json.loads(run(tmp_path, "--json", "--messages", "1000"))
    assert time.monotonic() - began_s < 30
    assert (told["missing"], told["refusedOnce"]) == (0, 4)
    for part, count in (("sent", 1000), ("sentInBatches", 1000), ("consumed", 2000)):
        assert told[part]["messages"] == count
        assert told[part]["perSecond"] > 0
        assert 0 < told[part]["p99Ms"] >= told[part]["p50Ms"]
    assert told["data"]["kept"] is False
    assert told["data"]["bytesOnDisk"] > 2000 * 200
    assert list(tmp_path.iterdir()) == []


def test_for_people_and_with_the_files_kept(tmp_path: Path) -> None:
    data = tmp_path / "data"
    shown = run(tmp_path, "--messages", "300", "--data", str(data))
    assert "sent, 64 at a time" in shown
    assert "p99 ms" in shown
    assert f"The messages are in {data}" in shown
    assert (data / "demo-broker" / "commitlog").is_dir()


def test_ctrl_c_leaves_nothing_running(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [*DEMO, "--messages", "1000000"],
        env=environment(tmp_path), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        # Whoever runs the tests in the background has it ignored, which children inherit.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    assert process.stdout is not None
    try:
        while "3. A producer sends" not in (line := process.stdout.readline()):
            assert line, "it ended early"
        children = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, errors.strip()) == (130, "Stopped. Nothing is left running.")
    assert not any(child.is_running() for child in children)
    assert list(tmp_path.iterdir()) == []
