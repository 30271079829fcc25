"""Brokers as processes of their own, that can be killed."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

READY = "kerolox broker ready on "
END_S = 30.0


class BrokerProcess:
    """``kerolox broker``, with settings by RocketMQ's keys."""

    def __init__(self, directory: Path, nameserver: str, *settings: str) -> None:
        self.store = directory / "store"
        self.address = "127.0.0.1:0"  # a free port; kept when it starts again
        self._nameserver = nameserver
        self._settings = ("diskSpaceFreeEnough=1", f"mappedFileSizeCommitLog={16 << 20}", *settings)
        self._process: subprocess.Popen[str] | None = None

    async def start(self) -> None:
        command = [
            *(sys.executable, "-m", "kerolox", "broker", "--log-level", "warning", "--name", "b"),
            *("--listen", self.address, "--store", str(self.store), "-n", self._nameserver),
            *("--advertised-host", "127.0.0.1"),
            *(word for setting in self._settings for word in ("--set", setting)),
        ]
        line = await asyncio.to_thread(self._start, command)
        assert line.startswith(READY), line
        self.address = line.removeprefix(READY).strip()

    def _start(self, command: list[str]) -> str:
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def kill(self) -> None:
        """SIGKILL: no good-bye, nothing flushed."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate(timeout=END_S)
            self._process = None


@contextmanager
def broker_process(directory: Path, nameserver: str, *settings: str) -> Iterator[BrokerProcess]:
    """One that is not started yet, and that is killed at the end."""
    process = BrokerProcess(directory, nameserver, *settings)
    try:
        yield process
    finally:
        process.kill()
