"""Our own servers as processes of their own, so that they can be killed like Apache's."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

START_TIMEOUT_S = 30.0


class OurServer:
    """One ``kerolox`` command that serves until it is stopped."""

    def __init__(self, home: Path, command: Sequence[str], ready: str) -> None:
        self.home = home
        self.command = list(command)
        self.ready = re.compile(ready)
        self.match: re.Match[str] | None = None
        self._process: subprocess.Popen[str] | None = None

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        self.home.mkdir(parents=True, exist_ok=True)
        errors = open(self.home / "stderr.log", "a")  # noqa: SIM115 — the process keeps it
        environment = {k: v for k, v in os.environ.items() if k != "NAMESRV_ADDR"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "kerolox", *self.command],
            stdout=subprocess.PIPE, stderr=errors, text=True, cwd=self.home, env=environment,
        )  # fmt: skip
        errors.close()
        lines: list[str] = []

        def read() -> None:
            assert self._process is not None
            assert self._process.stdout is not None
            with self._process.stdout as out:
                for line in out:
                    lines.append(line)
                    if self.match is None:
                        self.match = self.ready.search(line)

        self.match = None
        threading.Thread(target=read, daemon=True).start()
        deadline = time.monotonic() + START_TIMEOUT_S
        while self.match is None:
            if not self.running or time.monotonic() > deadline:
                self.kill()
                raise AssertionError(f"{self.command} did not start: {lines}\n{self.tail()}")
            time.sleep(0.01)

    def stop(self) -> int:
        """SIGTERM, and the exit code."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(30)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(30)

    def tail(self) -> str:
        return (self.home / "stderr.log").read_text()[-3000:]


class OurNameServer(OurServer):
    def __init__(self, home: Path, port: int = 0, options: Sequence[str] = ()) -> None:
        super().__init__(
            home,
            ["nameserver", "--listen", f"127.0.0.1:{port}", *options],
            r"ready on 127\.0\.0\.1:(\d+)",
        )

    @property
    def port(self) -> int:
        assert self.match is not None
        return int(self.match.group(1))

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"


class OurCluster(OurServer):
    """``kerolox up``: a name server and a broker in one process, with their files under ``home``."""

    def __init__(
        self,
        home: Path,
        nameserver_port: int = 0,
        broker_port: int = 0,
        settings: Sequence[str] = (),
        options: Sequence[str] = (),
    ) -> None:
        super().__init__(
            home,
            [
                "up", "--data", str(home / "data"), "--log-level", "info",
                "--nameserver-listen", f"127.0.0.1:{nameserver_port}",
                "--broker-listen", f"127.0.0.1:{broker_port}",
                *(word for setting in settings for word in ("--set", setting)), *options,
            ],
            r"ready: nameserver (\S+), broker (\S+)",
        )  # fmt: skip

    @property
    def nameserver(self) -> str:
        """Address of the name server."""
        assert self.match is not None
        return self.match.group(1)

    @property
    def broker(self) -> str:
        """Address of the broker."""
        assert self.match is not None
        return self.match.group(2)
