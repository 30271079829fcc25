"""Brokers under a controller without one: stores, both ends of the connection, and a test that decides."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kerolox.clock import SYSTEM_CLOCK, Clock
from kerolox.net.dialer import Dialer
from kerolox.net.signing import Credentials
from kerolox.replication.entrance import Trust
from kerolox.replication.epoch_history import EpochHistory
from kerolox.replication.epoch_mode import EpochMode
from kerolox.replication.follower import Follower
from kerolox.replication.ha_port import HaPort
from kerolox.replication.in_sync_set import InSyncSet
from kerolox.replication.leader import Leader
from kerolox.replication.link_state import LinkState
from kerolox.store.disk.files import Files
from kerolox.store.message_store import MessageStore
from kerolox.store.state import Obstacle

from .kit import Settings, assert_same, store_at, until


@dataclass
class EpochSettings(Settings):
    ha_catch_up_ms: int = 15_000
    all_ack: bool = True


class Replica:
    """One broker of a group: it leads or follows, as it is told."""

    def __init__(
        self,
        store: MessageStore,
        id: int,
        clock: Clock = SYSTEM_CLOCK,
        *,
        trust: Trust | None = None,
        credentials: Credentials | None = None,
        **settings: Any,
    ) -> None:
        self.store = store
        self.id = id
        self.settings = EpochSettings(**settings)
        self.history = EpochHistory(store)
        self.in_sync = InSyncSet(store, self.settings, clock)
        self.mode = EpochMode(self.history, self.in_sync, id)
        self.leader = Leader(store, self.settings, clock, mode=self.mode, trust=trust)
        self.port = HaPort("127.0.0.1", 0)
        self.port.open(self.leader.accept)
        self.dialer = Dialer()
        self.follower = Follower(
            store,
            self.settings,
            clock,
            self.dialer,
            mode=self.mode,
            credentials=credentials,
            proves=credentials is not None,
        )
        store.state.set(Obstacle.FOLLOWER, "nobody was elected")

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port.port}"

    async def lead(self, epoch: int, members: set[int] | None = None, set_epoch: int = 0) -> None:
        """As a broker does that was elected."""
        store = self.store
        await self.follower.stop()
        if store.log.whole_end < store.log.max_offset:
            await store.truncate(store.log.whole_end)
        await store.flusher.flush_all()
        await self.history.begin(epoch, store.log.max_offset)
        store.log.renew_cursors()
        self.in_sync.lead(self.id, members or {self.id}, set_epoch or epoch * 100, epoch)
        store.state.clear(Obstacle.FOLLOWER)
        await self.leader.lead()

    async def rest(self) -> None:
        self.in_sync.rest()
        self.store.state.set(Obstacle.FOLLOWER, "another one leads")
        await self.leader.follow()

    async def follow(self, other: Replica | str) -> None:
        if self.in_sync.leads:
            await self.rest()
        self.follower.lead_by(other if isinstance(other, str) else other.address, "")
        await self.follower.start()

    def take_in(self) -> bool:
        """What a controller does that agrees to everything; whether it was asked for anything."""
        wanted = self.in_sync.wanted()
        if wanted is None:
            return False
        self.in_sync.asked(wanted)
        return self.in_sync.adopt(wanted, self.in_sync.set_epoch + 1)

    async def has(self, other: Replica) -> None:
        """Wait until it has everything the other has, and all of it is confirmed."""
        await until(
            lambda: self.store.log.max_offset == other.store.log.max_offset and self.follower.copying,
            lambda: f"{self.store.progress} of {other.store.progress}; {self.follower.text}",
        )
        await until(
            lambda: (
                self.store.progress.confirmed == other.store.progress.confirmed == other.store.log.max_offset
            ),
            lambda: f"{self.store.progress} of {other.store.progress}; {self.follower.text}",
        )
        for store in (self.store, other.store):
            await store.flusher.flush_all()
        assert_same(self.store, other.store)
        end = other.store.log.max_offset
        written = [
            tuple(one for one in replica.history.entries if one.start < end) for replica in (self, other)
        ]
        assert written[0] == written[1]

    async def becomes(self, state: LinkState) -> str:
        await until(lambda: self.follower.state is state, lambda: self.follower.text)
        return self.follower.text

    async def close(self) -> None:
        self.in_sync.rest()
        await self.leader.follow()
        await self.follower.stop()
        await self.dialer.close()
        await self.port.close()


@asynccontextmanager
async def replica_at(
    path: Path, id: int, files: Files | None = None, **options: Any
) -> AsyncIterator[Replica]:
    settings = {key: options.pop(key) for key in list(options) if hasattr(EpochSettings, key)}
    settings |= {key: options.pop(key) for key in ("trust", "credentials") if key in options}
    async with store_at(path, files, controlled=True, **options) as store:
        replica = Replica(store, id, **settings)
        await replica.port.start()
        try:
            yield replica
        finally:
            await replica.close()


@asynccontextmanager
async def group(path: Path, count: int = 2, **options: Any) -> AsyncIterator[list[Replica]]:
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(replica_at(path / str(id), id, **options))
            for id in range(1, count + 1)
        ]
