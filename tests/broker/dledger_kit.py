"""Brokers of one DLedger group, in the test's process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from kerolox.nameserver.server import NameServer
from kerolox.testing.broker import RunningBroker, running_broker
from kerolox.testing.nameserver import running_nameserver
from tests.rig.ports import free_port, free_ports

GROUP = "RaftNode00"


async def until(
    ready: Callable[[], object], timeout_s: float = 60.0, what: Callable[[], object] = str
) -> None:
    """A minute: the machines that test are busy, and an election takes ten seconds."""
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + timeout_s
    while not ready():
        assert loop.time() < deadline_s, f"it did not come to pass: {what()}"
        await asyncio.sleep(0.01)


class LedgerBrokers:
    """Three brokers, and questions about them."""

    def __init__(self, nameserver: NameServer, brokers: list[RunningBroker]) -> None:
        self.nameserver = nameserver
        self.brokers = brokers

    def __str__(self) -> str:
        return "; ".join(
            f"{one.broker.dledger.group.member} {one.broker.store.state.obstacles}"
            if one.is_running and one.broker.dledger is not None and one.broker.dledger.group is not None
            else "down"
            for one in self.brokers
        )

    def leaders(self) -> list[RunningBroker]:
        return [one for one in self.brokers if one.is_running and one.broker.leadership.leads]

    async def leader(self) -> RunningBroker:
        await until(
            lambda: len(self.leaders()) == 1 and not self.leaders()[0].broker.store.state.obstacles,
            what=lambda: self,
        )
        return self.leaders()[0]

    def followers(self) -> list[RunningBroker]:
        return [one for one in self.brokers if one.is_running and not one.broker.leadership.leads]

    async def alike(self) -> None:
        """Wait until all that run have the same log, and give all of it out."""

        def ends() -> set[tuple[int, int, int]]:
            stores = [one.broker.store for one in self.brokers if one.is_running]
            return {
                (store.ledger.end_index, store.ledger.committed_index, store.progress.confirmed)
                for store in stores
                if store.ledger is not None
            }

        await until(
            lambda: len(ends()) == 1 and len({*next(iter(ends()))[:2]}) == 1, what=lambda: (ends(), str(self))
        )


@asynccontextmanager
async def ledger_brokers(folder: Path, members: int = 3, **options: Any) -> AsyncIterator[LedgerBrokers]:
    async with AsyncExitStack() as stack:
        nameserver = await stack.enter_async_context(running_nameserver(directory=folder / "nameserver"))
        peers = ";".join(f"n{number}-127.0.0.1:{free_port()}" for number in range(members))
        brokers = [
            await stack.enter_async_context(
                running_broker(
                    directory=folder / f"n{number}",
                    nameserver=nameserver,
                    broker_name=GROUP,
                    ledger=True,
                    ledger_peers=peers,
                    ledger_self_id=f"n{number}",
                    **{"listen_port": free_ports(1, offsets=(0, -2, 1))[0], **options},
                )
            )
            for number in range(members)
        ]
        yield LedgerBrokers(nameserver, brokers)
