"""Servers as child processes: how each is started, when it is ready, and how it is stopped.

A server prints one line when it is ready, ``kerolox broker ready on HOST:PORT``. It stops when its parent
process has ended. A server that fails to start leaves the reason in its log.
"""

from __future__ import annotations

import asyncio
import os
import sys
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import MappingProxyType
from typing import IO, TYPE_CHECKING

from kerolox.errors import KeroloxError

if TYPE_CHECKING:
    from asyncio.subprocess import Process

READY_S = 60.0
STOP_S = 60.0
LAST_LINES = 5
LOG_BYTES_READ = 16 << 10
READY = " ready on "


class NotStarted(KeroloxError):
    """A server did not start."""


def kerolox_command(*words: str) -> list[str]:
    """Return the command line of a ``kerolox`` command, run by this interpreter."""
    return [sys.executable, "-m", "kerolox", *words]


class ServerProcess:
    """Process of a server, which can be stopped, killed and started again.

    Its messages go to the file ``log``; without one, to stderr of this process.
    """

    def __init__(
        self,
        name: str,
        words: Sequence[str],
        log: Path | None = None,
        *,
        environment: Mapping[str, str] = MappingProxyType({}),
        inherited: Sequence[int] = (),
        private: bool = False,
        stop_s: float = STOP_S,
    ) -> None:
        """``words`` are the command, after ``kerolox``. ``environment`` adds variables.

        ``inherited`` are file descriptors that the process keeps open. Only the owner may read the log of a
        ``private`` server.
        """
        self.name = name
        self.words = words
        self.address = ""  # from its ready line; kept when it ends
        self._log = log
        self._environment = environment
        self._inherited = inherited
        self._private = private
        self._stop_s = stop_s
        self._process: Process | None = None

    async def start(self) -> None:
        """Start the process and wait until it is ready. Raises NotStarted."""
        await self.launch()
        await self.ready()

    async def launch(self) -> None:
        """Start the process. :meth:`ready` waits for it."""
        with self._open_log() as log:
            self._process = await asyncio.create_subprocess_exec(
                *kerolox_command(*self.words, "--parent", str(os.getpid())),
                stdin=DEVNULL,
                stdout=PIPE,
                stderr=log,
                env={**os.environ, **self._environment},
                pass_fds=self._inherited,
                start_new_session=True,  # Ctrl-C reaches only this process, which then stops the servers
            )

    def _open_log(self) -> AbstractContextManager[IO[bytes] | None]:
        if self._log is None:
            return nullcontext()
        self._log.parent.mkdir(parents=True, exist_ok=True)
        log = self._log.open("ab")
        if self._private:  # log lines contain topics, users and addresses
            os.fchmod(log.fileno(), 0o600)
        return log

    async def ready(self) -> None:
        """Wait until the process is ready. Otherwise end it and raise NotStarted."""
        assert self._process is not None
        assert self._process.stdout is not None
        try:
            async with asyncio.timeout(READY_S):
                line = (await self._process.stdout.readline()).decode()
        except TimeoutError:
            line = f"not ready after {READY_S:.0f} s"
        if READY not in line:
            await self.stop()
            if self._log is None:
                raise NotStarted(f"{self.name} did not start. See its output above")
            raise NotStarted(
                f"{self.name} did not start: {self.last_words() or line}. See its log: {self._log}"
            )
        self.address = line.split()[-1]

    async def kill(self) -> None:
        """Kill the process like ``kill -9``, without a chance to save anything."""
        if self._process is not None and self.is_running:
            self._process.kill()
            await self._process.wait()

    async def stop(self) -> None:
        """Stop the process, and wait until it has ended; kill it if that takes too long."""
        if self._process is None or not self.is_running:
            return
        self._process.terminate()
        try:
            async with asyncio.timeout(self._stop_s):
                await self._process.wait()
        except TimeoutError:
            await self.kill()

    async def ended(self) -> int:
        """Wait until the process has ended, and return its exit code."""
        assert self._process is not None
        return await self._process.wait()

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    @property
    def pid(self) -> int | None:
        """Id of the process, also after it has ended; None if it was never started."""
        return None if self._process is None else self._process.pid

    @property
    def memory_bytes(self) -> int | None:
        """Resident memory now, bytes; None if it is not running or the system does not report it."""
        if not self.is_running:
            return None
        try:
            pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        except (OSError, ValueError, IndexError):
            return None
        return pages * os.sysconf("SC_PAGE_SIZE")

    def last_words(self) -> str:
        """Return the last lines of the log."""
        if self._log is None:
            return ""
        try:
            with self._log.open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - LOG_BYTES_READ))
                lines = file.read().decode(errors="replace").strip().splitlines()
        except OSError:
            return ""
        return " | ".join(lines[-LAST_LINES:])
