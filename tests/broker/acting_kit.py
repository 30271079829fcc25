"""A leader, followers that may act for it, and a leader of another name: real sockets and files."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kerolox.nameserver.server import NameServer
from kerolox.net.dialer import Dialer
from kerolox.protocol.message import StoredMessage
from kerolox.testing.broker import SMALL, RunningBroker, running_broker
from kerolox.testing.nameserver import running_nameserver

from .talk import Talk

ACTING: dict[str, Any] = {
    "acting": True, "remote_escape": True, "total_replicas": 2, "members_ms": 50, "alive_ms": 200,
    "transaction_check_ms": 200, "transaction_timeout_ms": 200,
}  # fmt: skip


async def until(
    condition: Callable[[], object], what: Callable[[], object] = lambda: "", for_s: int = 15
) -> None:
    for _ in range(for_s * 100):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"it did not come to pass in {for_s} s: {what()}")


async def stopped(running: RunningBroker) -> ExitStack:
    """Stop a broker. Nobody else is given its ports until what this returns is closed."""
    await running.stop()
    kept, at = ExitStack(), running.broker.endpoints
    for port in (at.port, at.vip_port, at.ha_port):
        taken = kept.enter_context(socket.socket())
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind((at.host, port))
    return kept


class BrokerAlone:
    """A leader of ``broker-a`` as a process of its own, that can be killed."""

    def __init__(self, directory: Path, nameserver: str, *settings: str) -> None:
        given = (
            "enableSlaveActingMaster=true", "totalReplicas=2",
            f"mappedFileSizeCommitLog={SMALL['commit_log_file_bytes']}", "diskSpaceFreeEnough=67108864",
        )  # fmt: skip
        self._command = [
            sys.executable, "-m", "kerolox", "broker", "--name", "broker-a", "--listen", "127.0.0.1:0",
            "--store", str(directory), "-n", nameserver, "--log-level", "warning",
            *(word for setting in (*given, *settings) for word in ("--set", setting)),
        ]  # fmt: skip
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._process = subprocess.Popen(self._command)

    def kill(self) -> None:
        """SIGKILL: no good-bye."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()


@dataclass
class Company:
    """``broker-a`` with a leader and a follower, and ``broker-b`` with a leader."""

    nameserver: NameServer
    leader: RunningBroker
    follower: RunningBroker
    other: RunningBroker
    dialer: Dialer
    _kept: ExitStack = field(default_factory=ExitStack)

    async def send(
        self, topic: str, body: bytes, properties: dict[str, str] | None = None, **more: Any
    ) -> None:
        answer = await Talk(self.dialer, self.leader).send(topic, body, properties, **more)
        assert answer.code == 0, answer.remark

    async def copied(self) -> None:
        """The follower has the leader's log and tables."""
        ours, theirs = self.follower.broker.store, self.leader.broker.store
        await until(lambda: self.follower.broker.replication.follower.copying)
        await until(lambda: ours.log.max_offset == theirs.log.max_offset, lambda: self.leader.address)
        await ours.flusher.flush_all()
        copy = self.follower.broker.copies.copy
        for _ in range(2):
            before = copy.passes
            copy.copy_now()
            await until(lambda before=before: copy.passes > before)

    async def leader_goes(self) -> None:
        """Stop the leader."""
        self._kept = await stopped(self.leader)

    async def leader_comes(self) -> None:
        self._kept.close()
        await self.leader.start()

    async def acts(self) -> None:
        await until(lambda: self.follower.broker.leadership.acts)

    async def bodies(self, running: RunningBroker, topic: str) -> list[bytes]:
        return sorted(message.body for message in await self.messages(running, topic))

    async def messages(self, running: RunningBroker, topic: str) -> list[StoredMessage]:
        """All that is in the queues of a topic."""
        config = running.broker.tables.topics.find(topic)
        found: list[StoredMessage] = []
        for queue_id in range(0 if config is None else config.read_queue_nums):
            found += await Talk(self.dialer, running).messages(topic, queue_id)
        return found


@asynccontextmanager
async def company(path: Path, **options: Any) -> AsyncIterator[Company]:
    settings = {**ACTING, **options}
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        nameserver = await enter(running_nameserver(directory=path / "n", support_acting_master=True))
        other = await enter(
            running_broker(directory=path / "b", nameserver=nameserver, broker_name="broker-b", **settings)
        )
        patient = {**settings, "transaction_check_ms": 60_000}  # it asks nobody before it is gone
        leader = await enter(running_broker(directory=path / "a0", nameserver=nameserver, **patient))
        follower = await enter(
            running_broker(
                directory=path / "a1", nameserver=nameserver, brokerRole="SLAVE", brokerId=1, **settings
            )
        )
        made = Company(nameserver, leader, follower, other, await enter(Dialer()))
        try:
            yield made
        finally:
            made._kept.close()
