"""What copying can reach at most on this machine: what the disk takes, and what loopback carries."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CHUNK = 1 << 20


def disk_mb_s(folder: Path, size: int) -> tuple[float, float]:
    """MB/s of one file written from end to end: into the page cache, and until all of it is flushed."""
    chunk = os.urandom(CHUNK)
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        began_s = time.monotonic()
        for _ in range(size // CHUNK):
            os.write(file.fileno(), chunk)
        written_s = time.monotonic() - began_s
        os.fdatasync(file.fileno())
        flushed_s = time.monotonic() - began_s
    return size / written_s / 1e6, size / flushed_s / 1e6


def loopback_mb_s(size: int, cores: tuple[int, int]) -> float:
    """MB/s of one TCP connection between two processes on a core each."""
    listener = socket.create_server(("127.0.0.1", 0))
    sending = subprocess.Popen(
        [sys.executable, "-m", "bench.copy_limits", *map(str, (listener.getsockname()[1], size, cores[0]))],
        cwd=Path(__file__).parent.parent,
    )
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {cores[1]})
    try:
        connection, _ = listener.accept()
        buffer = bytearray(CHUNK)
        connection.recv_into(buffer, 1)
        began_s, got = time.monotonic(), 0
        while taken := connection.recv_into(buffer):
            got += taken
        return got / (time.monotonic() - began_s) / 1e6
    finally:
        os.sched_setaffinity(0, before)
        listener.close()
        sending.wait(10)


def _send(port: int, size: int, core: int) -> None:
    os.sched_setaffinity(0, {core})
    with socket.create_connection(("127.0.0.1", port)) as connection:
        chunk = os.urandom(CHUNK)
        connection.sendall(b"x")
        for _ in range(size // CHUNK):
            connection.sendall(chunk)


if __name__ == "__main__":
    _send(*(int(word) for word in sys.argv[1:]))
