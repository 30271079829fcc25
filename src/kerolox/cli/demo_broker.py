"""Broker of ``kerolox demo``: a separate process, so that it can be killed."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Self

from kerolox.errors import KeroloxError

if TYPE_CHECKING:
    from asyncio.subprocess import Process

NAME = "demo-broker"
READY_S = 60.0
STOP_S = 20.0


class DemoBroker:
    """Broker process that can be killed and restarted at the same address."""

    def __init__(self, nameserver: str, place: Path) -> None:
        self.address = ""
        self._nameserver = nameserver
        self._place = place
        self._process: Process | None = None

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.stop()
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        await asyncio.shield(self.stop())

    async def start(self) -> None:
        """Start the broker and wait until it reports that it is ready."""
        from kerolox.cli.up import EMBEDDED

        settings = [word for key, value in EMBEDDED.items() for word in ("--set", f"{key}={value}")]
        self._place.mkdir(parents=True, exist_ok=True)
        with (self._place / "broker.log").open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "kerolox", "broker",
                "--listen", self.address or "127.0.0.1:0",
                "--advertised-host", "127.0.0.1",
                "--name", NAME,
                "--store", str(self._place / NAME),
                "--nameserver", self._nameserver,
                "--parent", str(os.getpid()),
                "--log-level", "warning",
                *settings,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                start_new_session=True,  # Ctrl-C reaches only this process, which then stops the broker
            )  # fmt: skip
        assert self._process.stdout is not None
        async with asyncio.timeout(READY_S):
            line = (await self._process.stdout.readline()).decode()
        if " ready on " not in line:
            said = (self._place / "broker.log").read_text(errors="replace").strip().splitlines()
            raise KeroloxError(f"the broker did not start: {said[-1] if said else 'its log is empty'}")
        self.address = line.split()[-1]

    async def kill(self) -> None:
        """Kill the broker like ``kill -9``, without a chance to save anything."""
        assert self._process is not None
        self._process.kill()
        await self._process.wait()

    async def stop(self) -> None:
        if self._process is None or self._process.returncode is not None:
            return
        self._process.terminate()
        try:
            async with asyncio.timeout(STOP_S):
                await self._process.wait()
        except TimeoutError:
            await self.kill()

    @property
    def memory_bytes(self) -> int | None:
        """Resident memory of the broker now, bytes; None if the system does not report it."""
        if self._process is None or self._process.returncode is not None:
            return None
        try:
            pages = int(Path(f"/proc/{self._process.pid}/statm").read_text().split()[1])
        except (OSError, ValueError, IndexError):
            return None
        return pages * os.sysconf("SC_PAGE_SIZE")
