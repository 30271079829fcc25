from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kerolox.spark.worker_daemon import GONE, quietly

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.parametrize(
    "error", [BrokenPipeError(32, "Broken pipe"), ConnectionResetError(104, "reset"), EOFError()]
)
def test_a_worker_whose_jvm_is_gone_just_ends(error: Exception) -> None:
    def work(socket: object, authenticated: bool) -> int:
        raise error

    assert quietly(work)(None, True) == GONE


PIPES = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}


def test_workers_whose_jvm_leaves_while_they_start_say_nothing() -> None:
    """Before it shows its secret, a session may be over."""
    environment = {**os.environ, "PYTHON_WORKER_FACTORY_SECRET": "s", "PYTHON_UNIX_DOMAIN_ENABLED": "false"}
    command = [sys.executable, "-m", "kerolox.spark.worker_daemon", "pyspark.worker"]
    with subprocess.Popen(command, env=environment, **PIPES) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        (port,) = struct.unpack(">i", process.stdout.read(4))
        workers: list[int] = []
        for linger in (True, False):
            for read in (0, 4):  # until the worker has said that it has started, or not
                with socket.create_connection(("127.0.0.1", port)) as jvm:
                    if linger:  # a close that the worker's next write hears of
                        jvm.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    if told := jvm.recv(read):
                        workers += struct.unpack(">i", told)
                    assert len(told) == read
        for worker in workers:
            wait_for_end(worker)  # the daemon kills those that are left
        process.stdin.close()
        assert process.stderr is not None
        assert process.stderr.read() == b""  # closed by the last worker
        process.wait(60)


def wait_for_end(pid: int) -> None:
    """Wait until a child of the daemon has ended: it has told all that it tells."""
    deadline_s = time.monotonic() + 60
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


LEAVING = """
import contextlib
{load}

def main(infile, outfile):
    with contextlib.suppress(ConnectionResetError):
        infile.read()  # until the JVM is gone
    outfile.write(b"for nobody")
"""


@pytest.mark.parametrize(("load", "says"), [("import kerolox.spark.datasource", False), ("", True)])
def test_workers_that_plan_reads_and_writes_end_quietly_too(load: str, says: bool, tmp_path: Path) -> None:
    """Spark starts them by PySpark's own daemon, whatever the setting says."""
    (tmp_path / "pyspark_leaving.py").write_text(LEAVING.format(load=load))
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path]),
        "PYTHON_WORKER_FACTORY_SECRET": "s",
        "PYTHON_UNIX_DOMAIN_ENABLED": "false",
        "PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE": "1",  # as Spark sets it
    }
    command = [sys.executable, "-m", "pyspark.daemon", "pyspark_leaving"]
    with subprocess.Popen(command, env=environment, **PIPES) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        (port,) = struct.unpack(">i", process.stdout.read(4))
        with socket.create_connection(("127.0.0.1", port)) as jvm:
            (worker,) = struct.unpack(">i", jvm.recv(4))
            jvm.sendall(struct.pack(">i", 1) + b"s")
            assert jvm.recv(6) == struct.pack(">i", 2) + b"ok"
            jvm.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        wait_for_end(worker)  # the daemon kills those that are left
        process.stdin.close()
        said = process.stderr.read().decode()  # closed by the last worker
        process.wait(60)
    assert ("pyspark/daemon.py" in said) == says, said
    assert says or not said


def test_other_errors_are_told() -> None:
    def work(socket: object, authenticated: bool) -> int:
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        quietly(work)(None, True)
    assert quietly(lambda socket, authenticated: 0)(None, True) == 0


def test_sessions_on_this_machine_start_it(spark: SparkSession) -> None:
    def words(_: int) -> str:
        from pathlib import Path

        return Path("/proc/self/cmdline").read_text().replace("\0", " ")

    (line,) = spark.sparkContext.parallelize([1], 1).map(words).collect()
    assert "kerolox.spark.worker_daemon pyspark.worker" in line
