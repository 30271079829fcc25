"""Servers of a cluster on one machine: one process each, restarted when it exits unexpectedly.

Leaders stop before followers, so that followers receive the last messages. Controllers stop before their
brokers; otherwise they would elect one stopping broker after the other, and only one replica would remain in
sync. Name servers stop last, after all brokers. A server stops automatically when its parent process has
ended, because no process would restart it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from kerolox.supervise.embedded import bracketed, reachable
from kerolox.supervise.folder import ClusterFolder, ServerEntry, port_of
from kerolox.supervise.layouts import Planned
from kerolox.supervise.process import NotStarted, ServerProcess
from kerolox.supervise.stopping import set_within

STEADY_S = 10.0  # uptime after which an exit does not count as a failed start
PAUSE_FIRST_S = 0.5
PAUSE_MAX_S = 5.0  # longest pause before the restart of a server that exits repeatedly
LOOK_S = 1.0  # interval of the checks for changed settings


@dataclass(frozen=True)
class ServerExit:
    """Unexpected exit of a server, which is restarted after a pause."""

    server: ServerEntry
    code: int  # negative: the number of the signal that killed it
    last_words: str  # last lines of its log
    again_in_s: float


class ClusterServer:
    """Server of the cluster: its process and its state."""

    def __init__(
        self, planned: Planned, folder: ClusterFolder, like: str, lock: int, changed: Callable[[], None]
    ) -> None:
        """``lock`` is a descriptor that the process inherits.

        ``changed`` is called when the process or the state of the server changes.
        """
        self.planned = planned
        self.restarts = 0
        self.state = "stopped"  # starting, up, waiting (for its restart), stopped
        name, words = planned.name, (planned.server, "-c", str(folder.config(planned.name)))
        self.process = ServerProcess(
            name, words, folder.log(name), inherited=[lock], private=folder.is_secured
        )
        self._changed = changed
        self._folder = folder
        self._like = like
        self._failures = 0
        self._started_s = 0.0

    @property
    def leads(self) -> bool:
        return self.entry().role == "leader"

    def entry(self) -> ServerEntry:
        """Return the entry of this server in ``cluster.json``."""
        planned, folder = self.planned, self._folder
        settings = folder.settings(planned.name)
        port = port_of(settings)
        host = bracketed(reachable(settings.get("bindAddress", "")))
        entry = ServerEntry(
            name=planned.name,
            role="etcd" if planned.server == "etcd-member" else planned.server,
            pid=self.process.pid if self.process.is_running else None,
            address=f"{host}:{port}",
            state=self.state,
            restarts=self.restarts,
            data=str(folder.path / planned.name),
            config=str(folder.config(planned.name)),
            log=str(folder.log(planned.name)),
            like=self._like,
        )
        if planned.server == "broker":
            entry.broker = settings.get("brokerName", "")
            entry.ha_address = f"{host}:{settings.get('haListenPort') or port + 1}"
            if settings.get("enableControllerMode") == "true":
                entry.role = "replica"  # the controllers elect the master
            else:
                entry.role = "follower" if settings.get("brokerRole") == "SLAVE" else "leader"
                entry.broker_id = int(settings.get("brokerId", 0))
        return entry

    async def start(self) -> None:
        """Start the process and wait until it is ready. Raises NotStarted."""
        self.state, self._started_s = "starting", time.monotonic()
        await self.process.launch()
        self._changed()
        try:
            await self.process.ready()
        except NotStarted:
            self.state = "stopped"
            raise
        self.state = "up"
        self._changed()

    async def stop(self) -> None:
        self.state = "stopped"
        await self.process.stop()

    def pause_s(self) -> float:
        """Return the pause before the next restart. It grows with each exit soon after a start."""
        if time.monotonic() - self._started_s >= STEADY_S:
            self._failures = 0
        pause_s: float = min(PAUSE_MAX_S, PAUSE_FIRST_S * 2 ** min(self._failures, 10))
        self._failures += 1
        return pause_s


class ClusterServers:
    """All servers of the cluster.

    ``on_exit`` is called when a server exits, ``on_restart`` when it is ready again.
    """

    def __init__(
        self,
        folder: ClusterFolder,
        like: str,
        planned: tuple[Planned, ...],
        lock: int,
        on_exit: Callable[[ServerExit], object],
        on_restart: Callable[[ServerEntry], object],
    ) -> None:
        self._written: list[ServerEntry] = []
        self.all = [ClusterServer(one, folder, like, lock, self.write) for one in planned]
        self._folder = folder
        self._on_exit = on_exit
        self._on_restart = on_restart
        self._keeping: list[asyncio.Task[None]] = []

    def entries(self) -> list[ServerEntry]:
        return [one.entry() for one in self.all]

    def write(self) -> None:
        """Update ``cluster.json`` if an entry has changed."""
        entries = self.entries()
        if entries != self._written:
            self._folder.write(entries)
            self._written = entries

    async def start(self) -> None:
        """Start name servers first, then etcd, then controllers, then all brokers at once.

        A server that was ready once is restarted when it exits, also while others still start. Raises
        NotStarted.
        """
        for group in map(self._of, ("nameserver", "etcd-member", "controller", "broker")):
            found = await asyncio.gather(*map(self._begin, group), return_exceptions=True)
            for error in found:
                if error is not None:
                    raise error

    async def _begin(self, one: ClusterServer) -> None:
        await one.start()
        self._keeping.append(asyncio.create_task(self._keep(one)))

    async def keep(self, stop: asyncio.Event) -> None:
        """Restart servers that exit, until ``stop`` is set."""
        while not await set_within(stop, LOOK_S):
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

    async def _keep(self, one: ClusterServer) -> None:
        while True:
            code = await one.process.ended()
            pause_s = one.pause_s()
            one.state = "waiting"
            self.write()
            entry = one.entry()
            entry.pid = one.process.pid
            self._on_exit(ServerExit(entry, code, one.process.last_words(), pause_s))
            await asyncio.sleep(pause_s)
            one.restarts += 1
            try:
                await one.start()
            except NotStarted:
                continue  # the next turn reports this exit, too
            self._on_restart(one.entry())
