"""Our own servers as processes of their own, so that they can be killed like Apache's."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Protocol

from tests.rig.ports import free_ports

from .wire import GET_BROKER_CLUSTER_INFO, request

START_TIMEOUT_S = 60.0


class Process(Protocol):
    """What is needed of ``subprocess.Popen``."""

    pid: int

    @property
    def stdout(self) -> IO[str] | None: ...

    def poll(self) -> int | None: ...

    def wait(self, timeout: float) -> int: ...

    def kill(self) -> None: ...

    def send_signal(self, number: int, /) -> None: ...


class OurServer:
    """One ``kerolox`` command that serves until it is stopped."""

    def __init__(self, home: Path, command: Sequence[str], ready: str) -> None:
        self.home = home
        self.command = list(command)
        self.ready = re.compile(ready)
        self.match: re.Match[str] | None = None
        self._process: Process | None = None

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        self.home.mkdir(parents=True, exist_ok=True)
        self._process = self.launch()
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

    def launch(self) -> Process:
        """The process, with its errors in ``stderr.log``."""
        errors = open(self.home / "stderr.log", "a")  # noqa: SIM115 — the process keeps it
        environment = {k: v for k, v in os.environ.items() if k != "NAMESRV_ADDR"}
        process = subprocess.Popen(
            [sys.executable, "-m", "kerolox", *self.command],
            stdout=subprocess.PIPE, stderr=errors, text=True, cwd=self.home, env=environment,
        )  # fmt: skip
        errors.close()
        return process

    def stop(self) -> int:
        """SIGTERM, and the exit code."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(30)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(30)

    def restart(self, *, clean: bool = True) -> None:
        """Stop (or kill) and start again with the same ports and folders."""
        if clean:
            code = self.stop()
            assert code == 0, f"{self.command} ended with {code}\n{self.tail()}"
        else:
            self.kill()
        self.start()

    def finish(self) -> None:
        self.kill()

    def tail(self) -> str:
        return (self.home / "stderr.log").read_text()[-3000:]


class OurNameServer(OurServer):
    def __init__(self, home: Path, port: int = 0, options: Sequence[str] = ()) -> None:
        super().__init__(
            home,
            ["nameserver", "--listen", f"127.0.0.1:{port}", *options],
            r"ready on 127\.0\.0\.1:(\d+)",
        )

    def start(self) -> None:
        super().start()
        self.command[2] = self.address  # started again, it is where it was

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


class OurBroker(OurServer):
    """Our broker, with the interface of :class:`~.processes.JavaBroker` and the same small files."""

    DEFAULTS: Mapping[str, object] = {
        "brokerIP1": "127.0.0.1",
        "bindAddress": "127.0.0.1",
        "mappedFileSizeCommitLog": 4 * 1024 * 1024,
        "mappedFileSizeConsumeQueue": 20 * 3000,
        "maxHashSlotNum": 10_000,
        "maxIndexNum": 40_000,
        "diskSpaceFreeEnough": 64 << 20,
        "autoCreateTopicEnable": True,
        "enablePropertyFilter": True,
    }

    def __init__(
        self,
        home: Path,
        nameservers: str,
        *,
        name: str = "broker-a",
        cluster: str = "DefaultCluster",
        properties: Mapping[str, object] | None = None,
    ) -> None:
        # Port 0 would do for one life, but a restarted broker has to come back where it was.
        self.port = free_ports(1, offsets=(0, -2, 1))[0]
        self.name = name
        self.cluster = cluster
        self.store = home / "store"
        self.nameservers = nameservers.split(";")
        self.properties: dict[str, object] = {
            **self.DEFAULTS,
            "namesrvAddr": nameservers,
            "brokerName": name,
            "brokerClusterName": cluster,
            "listenPort": self.port,
            "storePathRootDir": self.store,
            **(properties or {}),
        }
        super().__init__(
            home,
            ["broker", "-c", str(home / "broker.conf"), "--parent", str(os.getpid())],
            rf"ready on 127\.0\.0\.1:{self.port}\b",
        )

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        self.home.mkdir(parents=True, exist_ok=True)
        lines = [
            f"{key}={str(value).lower() if isinstance(value, bool) else value}"
            for key, value in self.properties.items()
        ]
        (self.home / "broker.conf").write_text("\n".join(lines) + "\n", encoding="utf-8")
        super().start()
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self.registered():
            assert self.running, f"{self.name} ended\n{self.tail()}"
            assert time.monotonic() < deadline, f"{self.name} did not register\n{self.tail()}"
            time.sleep(0.01)

    def registered(self) -> bool:
        """Whether every name server lists this broker."""
        shown = f'"{self.address}"'.encode()
        try:
            answers = [request(server, GET_BROKER_CLUSTER_INFO) for server in self.nameservers]
        except OSError:  # busy for longer than a request waits: it is asked again
            return False
        return all(shown in answer.body for answer in answers)
