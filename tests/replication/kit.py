"""A leader and followers: real stores, a real port, and real sockets between them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kerolox.broker.broker import Broker
from kerolox.clock import SYSTEM_CLOCK, Clock
from kerolox.net.dialer import Dialer
from kerolox.net.tls import ServerTls
from kerolox.protocol.bodies.stats import HaStatus
from kerolox.protocol.codes import RequestCode
from kerolox.replication.entrance import Trust
from kerolox.replication.follower import Follower
from kerolox.replication.ha_port import PLAIN, HaPort
from kerolox.replication.leader import Leader
from kerolox.replication.link_state import LinkState
from kerolox.store.disk.files import Files
from kerolox.store.log.replicas import Replicas
from kerolox.store.message_store import MessageStore
from kerolox.store.options import StoreOptions
from kerolox.store.state import Obstacle

FILE = 1 << 16


@dataclass
class Settings:
    ha_heartbeat_ms: int = 200
    ha_silence_ms: int = 5000
    ha_batch_bytes: int = 32 << 10
    ha_limited: bool = False
    ha_bytes_per_s: int = 100 << 20


class Told(Replicas):
    """Keeps all that is told of followers."""

    def __init__(self, store: MessageStore) -> None:
        super().__init__(store.progress, store.options)
        self.names: list[str] = []
        self.acks: dict[str, list[int]] = {}

    def joined(self, name: str) -> None:
        super().joined(name)
        self.names.append(name)
        self.acks[name] = []

    def acked(self, name: str, offset: int) -> bool:
        self.acks[name].append(offset)
        believed = super().acked(name, offset)
        assert believed
        return believed

    def left(self, name: str) -> None:
        super().left(name)
        self.names.remove(name)


async def until(
    reached: Callable[[], bool], what: Callable[[], object] = lambda: "", for_s: float = 10
) -> None:
    async with asyncio.timeout(for_s + 5):
        for _ in range(int(for_s * 200)):
            if reached():
                return
            await asyncio.sleep(0.005)
    raise AssertionError(f"not reached in {for_s} s: {what()}")


@asynccontextmanager
async def store_at(
    path: Path, files: Files | None = None, *, controlled: bool = False, **options: Any
) -> AsyncIterator[MessageStore]:
    given: dict[str, Any] = {
        "commit_log_file_bytes": FILE, "queue_file_bytes": 600 * 20, "disk_free_enough": 1,
        "index_slots": 500, "index_entries": 2000,
    }  # fmt: skip
    store = MessageStore(
        StoreOptions(store_path=str(path), **(given | options)), files=files, controlled=controlled
    )
    async with store:
        yield store


def put(store: MessageStore, count: int = 1, size: int = 300, topic: str = "T") -> None:
    for i in range(count):
        store.log.append(
            store.log.cursor(topic, i % 3),
            b"%d" % i * (size // 4),
            born_timestamp=1,
            born_host=b"\x7f\0\0\1\0\0\0\1",
        )
    store.log.write()


class Leading:
    """A store that is led by, with its port."""

    def __init__(
        self,
        store: MessageStore,
        settings: Settings | None = None,
        *,
        watched: bool = True,
        clock: Clock = SYSTEM_CLOCK,
        trust: Trust | None = None,
        tls: ServerTls = PLAIN,
    ) -> None:
        self.store = store
        self.settings = settings or Settings()
        self.told = Told(store)
        if watched:  # then what is told does not reach who answers
            store.replicas = self.told
        self.leader = Leader(store, self.settings, clock, trust=trust)
        self.port = HaPort("127.0.0.1", 0, tls=tls)
        self.port.open(self.leader.accept)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port.port}"

    async def __aenter__(self) -> Leading:
        await self.port.start()
        await self.leader.lead()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.leader.follow()
        await self.port.close()


class Following:
    """A store that follows."""

    def __init__(
        self,
        store: MessageStore,
        address: str,
        settings: Settings | None = None,
        clock: Clock = SYSTEM_CLOCK,
        **more: Any,
    ) -> None:
        self.store = store
        self.dialer = Dialer()
        self.follower = Follower(
            store, settings or Settings(), clock, self.dialer, ha_address=address, **more
        )
        store.state.set(Obstacle.FOLLOWER, "another leads")

    async def __aenter__(self) -> Following:
        await self.follower.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.follower.stop()
        await self.dialer.close()

    async def has(self, other: MessageStore) -> None:
        """Wait until it has everything the other store has."""
        await until(
            lambda: self.store.log.max_offset == other.log.max_offset,
            lambda: f"{self.store.progress} of {other.progress}; {self.follower.text}",
        )
        for store in (self.store, other):
            await store.flusher.flush_all()  # which lets it into its queues
        assert_same(self.store, other)

    async def becomes(self, state: LinkState) -> str:
        await until(lambda: self.follower.state is state, lambda: self.follower.text)
        return self.follower.text


def raw(store: MessageStore, low: int = 0) -> bytes:
    end = store.segments.committed
    return b"".join(
        store.segments.read(max(low, s.start), min(s.end, end) - max(low, s.start))
        for s in store.segments.all
        if max(low, s.start) < min(s.end, end)
    )


def assert_same(one: MessageStore, other: MessageStore) -> None:
    """Both logs are the same from where the shorter one begins, and so are all queues."""
    low = max(one.log.min_offset, other.log.min_offset)
    assert raw(one, low) == raw(other, low)
    names = {(queue.topic, queue.queue_id) for queue in other.consume_queues}
    assert {(queue.topic, queue.queue_id) for queue in one.consume_queues} == names
    for topic, queue_id in names:
        ours, theirs = one.queues.find(topic, queue_id), other.queues.find(topic, queue_id)
        assert ours is not None
        assert theirs is not None
        assert ours.next_offset == theirs.next_offset
        for offset in range(max(ours.min_offset, theirs.min_offset), theirs.next_offset):
            assert ours.entry(offset) == theirs.entry(offset)


@asynccontextmanager
async def pair(
    path: Path,
    before: Callable[[MessageStore], None] = lambda store: None,
    settings: Settings | None = None,
    **options: Any,
) -> AsyncIterator[tuple[Leading, Following]]:
    """A leader, with something in its log before there is a follower, and a follower with nothing."""
    async with AsyncExitStack() as stack:
        leads = await stack.enter_async_context(store_at(path / "leader", **options))
        before(leads)
        leading = await stack.enter_async_context(Leading(leads, settings))
        follows = await stack.enter_async_context(store_at(path / "follower", **options))
        following = await stack.enter_async_context(Following(follows, leading.address, settings))
        yield leading, following


class Between:
    """Stands between a follower and its leader, and can let nothing through."""

    def __init__(self, target: str) -> None:
        self.target = target
        self.open = asyncio.Event()
        self.open.set()
        self.writers: list[asyncio.StreamWriter] = []
        self.passed = 0
        self.most: int | None = None  # hang up behind so many bytes of the leader's

    async def __aenter__(self) -> Between:
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self.server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.cut()
        self.server.close()

    def cut(self) -> None:
        for writer in self.writers:
            writer.transport.abort()
        self.writers.clear()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, port = self.target.split(":")
        other_reader, other_writer = await asyncio.open_connection(host, int(port))
        self.writers += [writer, other_writer]
        await asyncio.gather(self._pass(reader, other_writer), self._pass(other_reader, writer, counted=True))

    async def _pass(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, counted: bool = False
    ) -> None:
        try:
            while data := await reader.read(1 << 16):
                await self.open.wait()
                if counted and self.most is not None:
                    data, self.most = data[: self.most], max(0, self.most - len(data))
                    if not self.most:
                        writer.write(data)
                        await writer.drain()
                        self.most = None
                        self.cut()
                        return
                writer.write(data)
                self.passed += 1
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()


def ha_status(broker: Broker) -> HaStatus:
    """Return what a broker says of its followers or its leader."""
    asked: Any = None  # nothing of the request is looked at
    answer: Any = broker.handlers.routes[RequestCode.GET_BROKER_HA_STATUS].handler(asked)
    return HaStatus.decode(answer.body)
