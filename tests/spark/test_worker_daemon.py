from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
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


def test_workers_whose_jvm_leaves_while_they_start_say_nothing() -> None:
    """Before it shows its secret, a session may be over."""
    environment = {**os.environ, "PYTHON_WORKER_FACTORY_SECRET": "s", "PYTHON_UNIX_DOMAIN_ENABLED": "false"}
    command = [sys.executable, "-m", "kerolox.spark.worker_daemon", "pyspark.worker"]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    )
    assert process.stdin is not None
    assert process.stdout is not None
    (port,) = struct.unpack(">i", process.stdout.read(4))
    for linger in (True, False):
        for read in (0, 4):  # until the worker has said that it has started, or not
            with socket.create_connection(("127.0.0.1", port)) as jvm:
                if linger:  # a close that the worker's next write hears of
                    jvm.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                assert len(jvm.recv(read)) == read
    process.stdin.close()
    assert process.stderr is not None
    assert process.stderr.read() == b""  # closed by the last worker
    process.wait(60)


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
