"""A follower of ours that wrote messages of its own goes back to what Apache's leader has."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kerolox.net.dialer import Dialer
from kerolox.replication.leader_questions import LeaderQuestions
from kerolox.replication.link_state import LinkState
from kerolox.replication.own_log import OwnLog
from kerolox.replication.parting import Found, Parting, find_parting
from kerolox.replication.resync import carry_out
from kerolox.store.message_store import MessageStore
from kerolox.store.offline.layout import find_layout

from ..replication.kit import Following, Settings, put, raw, store_at, until
from .conftest import Factory
from .driver import JavaDriver
from .processes import JavaNameServer

FILE = 4 << 20  # of both


def a_store(path: Path) -> Any:
    return store_at(path, commit_log_file_bytes=FILE, queue_file_bytes=20 * 3000)


def files_of(folder: Path, end: int, size: int) -> bytes:
    """The bytes of a log or queue that Apache's broker wrote, from 0 to ``end``."""
    found = b"".join(path.read_bytes() for path in sorted(folder.iterdir()))
    assert sorted(path.name for path in folder.iterdir())[0] == f"{0:020d}"
    assert len(found) % size == 0
    return found[:end]


async def test_we_go_back_to_what_apaches_leader_has(
    java: Factory,
    java_driver: JavaDriver,
    java_nameserver: JavaNameServer,
    tmp_path: Path,
    unique: Callable[[str], str],
) -> None:
    """Our follower wrote messages of its own. Apache's leader is asked record by record where they part."""
    topic = unique("topic")
    leader = java.broker(java_nameserver.address, start=False, name=unique("leader"))
    await asyncio.to_thread(leader.start)
    await asyncio.to_thread(java_driver.create_topic, java_nameserver.address, leader.address, topic)
    producer = await asyncio.to_thread(
        java_driver.call, "producer.start", group=unique("pid"), namesrv=java_nameserver.address
    )

    async def send(count: int, size: int) -> None:
        told = await asyncio.to_thread(
            java_driver.call, "producer.sendMany", handle=producer, topic=topic, count=count, size=size,
            threads=2,
        )  # fmt: skip
        assert (told["sent"], told["failed"]) == (count, 0)

    settings = Settings(ha_heartbeat_ms=5000, ha_silence_ms=20_000)
    ha_address = f"127.0.0.1:{leader.ha_port}"

    async def parted() -> Parting:
        async with Dialer() as dialer:
            return await find_parting(OwnLog(layout), LeaderQuestions(dialer, leader.address))

    await send(60, 100_000)  # more than a file
    path = tmp_path / "follower"
    async with a_store(path) as follows:
        async with Following(follows, "", settings) as following:
            following.follower.lead_by(ha_address, leader.address)
            await has_messages(follows, topic, 60)
        common, options = follows.log.max_offset, follows.options
    layout = find_layout(path, options)
    assert (await parted()).found is Found.BEGINNING
    async with a_store(path) as follows:
        put(follows, 30, size=400)
    ahead = await parted()  # unless Apache's wrote something of its own meanwhile
    assert ahead.found in (Found.AHEAD, Found.DIVERGED)
    assert (ahead.common_end, ahead.behind.records) == (common, 30)
    await send(40, 1000)
    async with a_store(path) as follows, Following(follows, "", settings) as following:
        following.follower.lead_by(ha_address, leader.address)
        assert f"`kerolox store resync {follows.root} --leader {leader.address}`" in (
            await following.becomes(LinkState.DIVERGED)
        )
    parting = await parted()
    assert (parting.found, parting.common_end, parting.behind.records) == (Found.DIVERGED, common, 30)
    assert parting.leader_ms > parting.common_ms > 0
    await carry_out(parting, layout, options, leader.address)
    async with a_store(path) as follows, Following(follows, "", settings) as following:
        following.follower.lead_by(ha_address, leader.address)
        await has_messages(follows, topic, 100)
        end = follows.log.max_offset
        assert follows.queues.max_offset("T", 0) == 0  # what it had written itself
    await asyncio.to_thread(leader.stop)
    async with a_store(path) as follows:
        assert files_of(leader.store / "commitlog", end, FILE) == raw(follows)[:end]


async def has_messages(store: MessageStore, topic: str, count: int) -> None:
    def there() -> int:
        return sum(queue.next_offset for queue in store.consume_queues if queue.topic == topic)

    await until(lambda: there() == count, lambda: f"{there()} of {count}; {store.progress}", 30)
