"""The scene with brokers in processes of their own, in real time, whose system calls fail.

Its clients are those of the scene in one process. What a broker says of itself is read from its page /healthz
and from its log.
"""

from __future__ import annotations

import asyncio
import os
import re
import resource
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, cast

from kerolox.client.admin.calls import AdminCalls
from kerolox.client.nameservers import NameServers
from kerolox.net.dialer import Dialer
from kerolox.protocol.bodies.groups import GroupConfig
from kerolox.protocol.bodies.topics import TopicConfig
from kerolox.protocol.codes import RequestCode
from kerolox.testing.broker import RunningBroker
from kerolox.testing.clock import ManualClock
from kerolox.testing.faults import FaultyFiles
from tests.peers.ours import OurBroker, OurNameServer, Process
from tests.rig.ports import free_ports

from .failing_calls import FailingCalls
from .scene import RESETTERS, Scene
from .witnesses import Lines

_EVENT = re.compile(r"(?:WARNING|ERROR|CRITICAL)\S* +(\S+) +(\w+)")
PROPERTIES: Mapping[str, object] = {
    "mappedFileSizeCommitLog": 64 << 10,
    "mappedFileSizeConsumeQueue": 200 * 20,
    "maxIndexNum": 8,
    "maxHashSlotNum": 10,
    "transactionCheckInterval": 1000,
    "transactionTimeOut": 500,
    "transactionCheckMax": 1000,
    "useServerSideResetOffset": True,
    "flushConsumerOffsetInterval": 1000,
}


class BrokerProcess(OurBroker):
    """A broker with the part of ``RunningBroker`` that clients use."""

    def __init__(
        self,
        home: Path,
        nameserver: str,
        environment: Mapping[str, str],
        properties: Mapping[str, object],
        open_files: int = 0,
    ) -> None:
        self.metrics_port = free_ports(1)[0]
        own = {"metricsExporterType": "PROM", "metricsPromExporterPort": self.metrics_port}
        super().__init__(home, nameserver, properties={**PROPERTIES, **own, **properties})
        self.nameserver_address = nameserver
        self._environment = environment
        self._open_files = open_files

    def launch(self) -> Process:
        limit = self._open_files

        def limited() -> None:
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))

        with open(self.home / "stderr.log", "a") as errors:
            return subprocess.Popen(
                [sys.executable, "-m", "kerolox", *self.command],
                stdout=subprocess.PIPE, stderr=errors, text=True, cwd=self.home,
                env={**os.environ, **self._environment},
                preexec_fn=limited if limit else None,
            )  # fmt: skip

    def health(self) -> str:
        """What does not work, as the page says; empty when all does."""
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{self.metrics_port}/healthz", timeout=10
            ) as answer:
                text = answer.read().decode()
        except urllib.error.HTTPError as error:
            text = error.read().decode()
        return "" if text == "ok\n" else text


class Running:
    """A broker process as a scene starts and stops it."""

    def __init__(self, process: BrokerProcess) -> None:
        self.process = process
        self.address = process.address
        self.nameserver_address = process.nameserver_address

    async def start(self) -> None:
        await asyncio.to_thread(self.process.start)

    async def stop(self) -> None:
        await asyncio.to_thread(self.process.stop)

    async def create_topic(self, topic: str, *, queues: int = 4) -> None:
        async with Dialer() as dialer:
            config = TopicConfig(topic_name=topic, read_queue_nums=queues, write_queue_nums=queues)
            await AdminCalls(NameServers([self.nameserver_address], dialer), dialer).put_topic(
                self.address, config
            )


class RealClock(ManualClock):
    """Time as it is: to advance it is to wait, half as long."""

    async def advance(self, seconds: float) -> None:
        await asyncio.sleep(seconds / 2)

    def wall_ms(self) -> int:
        return int(time.time() * 1000)

    def monotonic_s(self) -> float:
        return time.monotonic()


class LogLines(Lines):
    """Lines of a process's log, by their event words."""

    def __init__(self, clock: ManualClock, path: Path) -> None:
        super().__init__(clock)
        self._path = path
        self._at = 0

    def begin(self) -> None:
        self.read()
        super().begin()

    def read(self) -> None:
        with open(self._path) as file:
            file.seek(self._at)
            text = file.read()
            self._at = file.tell()
        for _, word in _EVENT.findall(text):
            self.words[word] += 1
            self._last_s[word] = self._clock.monotonic_s()


class ProcessScene(Scene):
    """A scene whose leader and follower are processes."""

    lines: LogLines
    big = bytes(30 << 10)  # two of them fill a file of the log

    def __init__(self, leader: BrokerProcess, follower: BrokerProcess, calls: FailingCalls) -> None:
        clock = RealClock()
        self.process, self.follower_process = leader, follower
        super().__init__(cast(RunningBroker, Running(leader)), None, clock, cast(FaultyFiles, calls))
        self.lines = LogLines(clock, leader.home / "stderr.log")
        self.admin: AdminCalls

    async def set_up(self, stack: AsyncExitStack) -> None:
        await super().set_up(stack)
        names = NameServers([self.leader.nameserver_address], self.talk.dialer)
        self.admin = AdminCalls(names, self.talk.dialer)
        await self.admin.put_group(self.leader.address, GroupConfig(group_name=RESETTERS))

    async def _ills(self) -> str:
        return await asyncio.to_thread(self.process.health)

    def _tighten(self) -> None:
        """How many files are open is the process's own."""

    def _age(self) -> None:
        """Old files are deleted by request only."""

    async def _clean(self) -> None:
        await self.talk.dialer.call(
            self.leader.address, RequestCode.DELETE_EXPIRED_COMMITLOG, None, timeout_s=10
        )

    async def _is_follower_behind(self) -> bool:
        ends = [
            (await self.admin.runtime_info(process.address))["commitLogMaxOffset"]
            for process in (self.process, self.follower_process)
        ]
        return len(set(ends)) > 1

    async def _has_topic(self, name: str) -> bool:
        return await self.admin.topic_config(self.leader.address, name) is not None

    def _check_lines(self, place: Any, hits: int) -> None:
        self.lines.read()
        super()._check_lines(place, hits)


@asynccontextmanager
async def process_scene(folder: Path, **properties: object) -> AsyncIterator[ProcessScene]:
    nameserver = OurNameServer(folder / "nameserver")
    leader = follower = None
    try:
        await asyncio.to_thread(nameserver.start)
        home = folder / "leader"
        home.mkdir(parents=True)
        calls = FailingCalls(home, home / "store")
        leader = BrokerProcess(home, nameserver.address, calls.environment, properties)
        await asyncio.to_thread(leader.start)
        own = {**properties, "brokerRole": "SLAVE", "brokerId": 1}
        follower = BrokerProcess(folder / "follower", nameserver.address, {}, own)
        await asyncio.to_thread(follower.start)
        async with AsyncExitStack() as stack:
            made = ProcessScene(leader, follower, calls)
            await made.set_up(stack)
            yield made
    finally:
        for server in (leader, follower, nameserver):
            if server is not None:
                server.kill()
