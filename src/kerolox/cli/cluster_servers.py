"""Servers of a cluster on one machine: one process each, restarted when it exits unexpectedly.

Leaders stop before followers, so that followers receive the last messages. Controllers stop before their
brokers; otherwise they would elect one stopping broker after the other, and only one replica would remain in
sync. Name servers stop last, after all brokers. A server stops automatically when its parent process has
ended, because no process would restart it.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kerolox.cli.cluster_folder import ClusterFolder, port_of
from kerolox.cli.cluster_layouts import Planned
from kerolox.errors import KeroloxError

if TYPE_CHECKING:
    from asyncio.subprocess import Process

READY_S = 60.0
STOP_S = 60.0
STEADY_S = 10.0  # uptime after which an exit does not count as a failed start
PAUSE_FIRST_S = 0.5
PAUSE_MAX_S = 5.0  # longest pause before the restart of a server that exits repeatedly
LAST_LINES = 5
LOG_BYTES_READ = 16 << 10
LOOK_S = 1.0  # interval of the checks for changed settings

Tell = Callable[[str, dict[str, Any]], None]


class NotStarted(KeroloxError):
    """A server of the cluster did not start."""


class ClusterServer:
    """Server of the cluster: its process and its state."""

    def __init__(
        self, planned: Planned, folder: ClusterFolder, like: str, changed: Callable[[], None]
    ) -> None:
        """``changed`` is called when the process or the state of the server changes."""
        self.planned = planned
        self._changed = changed
        self.restarts = 0
        self.state = "stopped"  # starting, up, waiting (to be started again), stopped
        self.process: Process | None = None
        self._folder = folder
        self._like = like
        self._failures = 0
        self._started_s = 0.0

    @property
    def name(self) -> str:
        return self.planned.name

    @property
    def leads(self) -> bool:
        return self.planned.server == "broker" and self.entry()["role"] == "leader"

    def entry(self) -> dict[str, Any]:
        """Return the entry of this server in ``cluster.json``."""
        settings = self._folder.settings(self.name)
        is_running = self.process is not None and self.process.returncode is None
        host, port = settings.get("bindAddress", ""), port_of(settings)
        host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
        found: dict[str, Any] = {
            "name": self.name,
            "role": "etcd" if self.planned.server == "etcd-member" else self.planned.server,
            "pid": self.process.pid if self.process is not None and is_running else None,
            "address": f"{host}:{port}",
        }
        if settings.get("enableControllerMode") == "true":
            found |= {
                "role": "replica",  # the controllers elect the master
                "broker": settings.get("brokerName", ""),
                "ha_address": f"{host}:{settings.get('haListenPort') or port + 1}",
            }
        elif self.planned.server == "broker":
            found |= {
                "role": "follower" if settings.get("brokerRole") == "SLAVE" else "leader",
                "broker": settings.get("brokerName", ""),
                "broker_id": int(settings.get("brokerId", 0)),
                "ha_address": f"{host}:{settings.get('haListenPort') or port + 1}",
            }
        return found | {
            "state": self.state,
            "restarts": self.restarts,
            "data": str(self._folder.path / self.name),
            "config": str(self._folder.config(self.name)),
            "log": str(self._folder.log(self.name)),
            "like": self._like,
        }

    # --- start and stop -------------------------------------------------------------------------------

    async def start(self, lock: int) -> None:
        """Start the process and wait until it reports that it is ready. Raises NotStarted."""
        self.state, self._started_s = "starting", time.monotonic()
        path = self._folder.log(self.name)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as log:
            if self._folder.is_secured:  # log lines contain topics, users and addresses
                os.fchmod(log.fileno(), 0o600)
            self.process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "kerolox", self.planned.server,
                "-c", str(self._folder.config(self.name)),
                "--parent", str(os.getpid()),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                pass_fds=[lock],
                start_new_session=True,  # Ctrl-C reaches only this process, which stops the servers in order
            )  # fmt: skip
        self._changed()
        assert self.process.stdout is not None
        try:
            async with asyncio.timeout(READY_S):
                line = (await self.process.stdout.readline()).decode()
        except TimeoutError:
            line = f"not ready after {READY_S:.0f} s"
        if " ready on " not in line:
            await self.stop()
            raise NotStarted(f"{self.name} did not start: {self.last_words() or line}. See its log: {path}")
        self.state = "up"
        self._changed()

    async def stop(self) -> None:
        process, self.state = self.process, "stopped"
        if process is None or process.returncode is not None:
            return
        process.terminate()
        try:
            async with asyncio.timeout(STOP_S):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()

    async def ended(self) -> int:
        """Wait until the process has ended, and return its exit code."""
        assert self.process is not None
        return await self.process.wait()

    def pause_s(self) -> float:
        """Return the pause before the next restart. It grows with each exit soon after a start."""
        if time.monotonic() - self._started_s >= STEADY_S:
            self._failures = 0
        pause_s: float = min(PAUSE_MAX_S, PAUSE_FIRST_S * 2 ** min(self._failures, 10))
        self._failures += 1
        return pause_s

    def last_words(self) -> str:
        """Return the last lines of the server's log."""
        try:
            with self._folder.log(self.name).open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - LOG_BYTES_READ))
                lines = file.read().decode(errors="replace").strip().splitlines()
        except OSError:
            return ""
        return " | ".join(lines[-LAST_LINES:])


class ClusterServers:
    """All servers of the cluster. ``tell`` receives events: a word and the server's entry with details."""

    def __init__(self, folder: ClusterFolder, like: str, planned: tuple[Planned, ...], tell: Tell) -> None:
        self._written: list[dict[str, Any]] = []
        self.all = [ClusterServer(one, folder, like, self.write) for one in planned]
        self._folder = folder
        self._tell = tell
        self._keeping: list[asyncio.Task[None]] = []

    def entries(self) -> list[dict[str, Any]]:
        return [one.entry() for one in self.all]

    def write(self) -> None:
        """Update ``cluster.json`` if an entry has changed."""
        entries = self.entries()
        if entries != self._written:
            self._folder.write(entries)
            self._written = entries

    async def start(self, lock: int) -> None:
        """Start name servers first, then etcd, then controllers, then all brokers at once.

        A server that was ready once is restarted when it exits, also while others still start. Raises
        NotStarted.
        """
        for group in map(self._of, ("nameserver", "etcd-member", "controller", "broker")):
            found = await asyncio.gather(*(self._begin(one, lock) for one in group), return_exceptions=True)
            for error in found:
                if error is not None:
                    raise error

    async def _begin(self, one: ClusterServer, lock: int) -> None:
        await one.start(lock)
        self._keeping.append(asyncio.create_task(self._keep(one, lock)))

    async def keep(self, told: asyncio.Event) -> None:
        """Restart servers that exit, until ``told`` is set."""
        while not told.is_set():
            try:
                async with asyncio.timeout(LOOK_S):
                    await told.wait()
            except TimeoutError:
                self.write()  # a role in the settings may have changed
            for task in self._keeping:
                if task.done():
                    task.result()

    async def stop(self) -> None:
        for task in self._keeping:
            task.cancel()
        await asyncio.gather(*self._keeping, return_exceptions=True)
        leaders = [one for one in self.all if one.leads]
        followers = [one for one in self._of("broker") if one not in leaders]
        others = map(self._of, ("etcd-member", "nameserver"))
        for group in (self._of("controller"), leaders, followers, *others):
            await asyncio.gather(*(one.stop() for one in group))
            self.write()

    def _of(self, server: str) -> list[ClusterServer]:
        return [one for one in self.all if one.planned.server == server]

    async def _keep(self, one: ClusterServer, lock: int) -> None:
        while True:
            code = await one.ended()
            pause_s = one.pause_s()
            one.state = "waiting"
            self.write()
            assert one.process is not None
            self._tell(
                "ended",
                one.entry()
                | {
                    "pid": one.process.pid,
                    "code": code,
                    "last_words": one.last_words(),
                    "again_in_s": pause_s,
                },
            )
            await asyncio.sleep(pause_s)
            one.restarts += 1
            try:
                await one.start(lock)
            except NotStarted:
                continue  # the next turn reports this exit, too
            self._tell("started", one.entry())
