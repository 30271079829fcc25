"""Copies of the log between brokers of Apache and ours, both ways: all of it, byte for byte."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from typer.testing import CliRunner

from kerolox.broker.broker import Broker
from kerolox.broker.options import BrokerOptions
from kerolox.cli.main import app
from kerolox.net.dialer import Dialer
from kerolox.replication.leader_questions import LeaderQuestions
from kerolox.replication.link_state import LinkState
from kerolox.replication.own_log import OwnLog
from kerolox.replication.parting import Found, Parting, find_parting
from kerolox.replication.resync import carry_out
from kerolox.store.message_store import MessageStore
from kerolox.store.offline.layout import find_layout
from kerolox.testing.broker import running_broker
from kerolox.testing.nameserver import running_nameserver

from ..replication.kit import Following, Settings, put, raw, store_at, until
from .conftest import Factory
from .driver import JavaDriver
from .processes import JavaBroker, JavaNameServer

FILE = 4 << 20  # of both
SLAVE = {"brokerRole": "SLAVE", "slaveReadEnable": True}


def a_store(path: Path) -> Any:
    return store_at(path, commit_log_file_bytes=FILE, queue_file_bytes=20 * 3000)


def files_of(folder: Path, end: int, size: int) -> bytes:
    """The bytes of a log or queue that Apache's broker wrote, from 0 to ``end``."""
    found = b"".join(path.read_bytes() for path in sorted(folder.iterdir()))
    assert sorted(path.name for path in folder.iterdir())[0] == f"{0:020d}"
    assert len(found) % size == 0
    return found[:end]


def queue_of(store: MessageStore, topic: str, queue_id: int) -> list[Any]:
    queue = store.queues.find(topic, queue_id)
    assert queue is not None
    return [queue.entry(offset) for offset in range(queue.min_offset, queue.next_offset)]


def apaches_queue(broker: JavaBroker, topic: str, queue_id: int, count: int) -> list[tuple[int, int, int]]:
    data = files_of(broker.store / "consumequeue" / topic / str(queue_id), count * 20, 20 * 3000)
    return [
        (
            int.from_bytes(data[at : at + 8], "big"),
            int.from_bytes(data[at + 8 : at + 12], "big"),
            int.from_bytes(data[at + 12 : at + 20], "big", signed=True),
        )
        for at in range(0, len(data), 20)
    ]


async def test_apaches_follower_copies_all_of_our_log(
    java: Factory, java_nameserver: JavaNameServer, tmp_path: Path, unique: Callable[[str], str]
) -> None:
    name = unique("copied")
    options = BrokerOptions(
        store_path=str(tmp_path / "leader"), nameservers=java_nameserver.address, broker_name=name,
        bind_address="127.0.0.1", advertised_host="127.0.0.1", listen_port=0, commit_log_file_bytes=FILE,
        queue_file_bytes=20 * 3000, disk_free_enough=1,
    )  # fmt: skip
    # Apache's follower does not look at haMasterAddress (5.5.0): the name server tells it where to copy from.
    async with Broker(options) as broker:
        leads, leader = broker.store, broker.replication.leader
        put(leads, 50, size=500_000)
        assert leads.log.max_offset > 2 * FILE
        follower = java.broker(java_nameserver.address, start=False, name=name, broker_id=1, properties=SLAVE)

        def has_all() -> bool:
            return any(one.acked == leads.log.max_offset for one in leader.followers)

        def how_far() -> object:
            return [(one.address, one.next, one.acked) for one in leader.followers]

        await asyncio.to_thread(follower.start)
        await until(has_all, how_far, 60)
        for _ in range(20):  # live
            put(leads, 10)
            await asyncio.sleep(0.02)
        await until(has_all, how_far, 20)
        await asyncio.to_thread(follower.stop)
        assert files_of(follower.store / "commitlog", leads.log.max_offset, FILE) == raw(leads)
        put(leads, 20, size=500_000)  # while it is away, and into the next file
        await asyncio.to_thread(follower.start)
        await until(has_all, how_far, 60)
        await asyncio.sleep(0.5)  # its queues
        await asyncio.to_thread(follower.stop)
        assert files_of(follower.store / "commitlog", leads.log.max_offset, FILE) == raw(leads)
        for queue_id in range(3):
            ours = queue_of(leads, "T", queue_id)
            assert apaches_queue(follower, "T", queue_id, len(ours)) == ours
        assert not leader.refused


async def test_we_copy_all_of_apaches_log(
    java: Factory,
    java_driver: JavaDriver,
    java_nameserver: JavaNameServer,
    tmp_path: Path,
    unique: Callable[[str], str],
) -> None:
    topic = unique("topic")
    leader = java.broker(java_nameserver.address, start=False, name=unique("leader"))
    await asyncio.to_thread(leader.start)

    def send(count: int, size: int) -> None:
        sent = java_driver.call(
            "producer.sendMany", handle=producer, topic=topic, count=count, size=size, threads=2
        )
        assert (sent["sent"], sent["failed"]) == (count, 0)

    await asyncio.to_thread(java_driver.create_topic, java_nameserver.address, leader.address, topic)
    producer = await asyncio.to_thread(
        java_driver.call, "producer.start", group=unique("pid"), namesrv=java_nameserver.address
    )
    await asyncio.to_thread(send, 100, 100_000)
    settings = Settings(ha_heartbeat_ms=5000, ha_silence_ms=20_000)
    ha_address = f"127.0.0.1:{leader.ha_port}"
    async with a_store(tmp_path / "follower") as follows:
        async with Following(follows, "", settings) as following:
            following.follower.lead_by(ha_address, leader.address)
            await following.becomes(LinkState.COPYING)
            await asyncio.to_thread(send, 100, 1000)
            await has_messages(follows, topic, 200)
            assert follows.log.min_offset == 0  # not its last file only
            row = await asyncio.to_thread(followers_of, leader.address)
            assert row["acked"] == follows.log.max_offset
            assert (row["behindBytes"], row["behindSeconds"], row["inSync"]) == (0, None, True)
        await asyncio.to_thread(send, 50, 100_000)
        async with Following(follows, "", settings) as following:
            following.follower.lead_by(ha_address, leader.address)
            await has_messages(follows, topic, 250)
        end = follows.log.max_offset
        await asyncio.to_thread(leader.stop)
        data = files_of(leader.store / "commitlog", end, FILE)
        assert data == raw(follows)
        queues = [queue.queue_id for queue in follows.queues if queue.topic == topic]
        assert queues
        for queue_id in queues:
            ours = queue_of(follows, topic, queue_id)
            assert apaches_queue(leader, topic, queue_id, len(ours)) == ours


def followers_of(address: str) -> dict[str, Any]:
    """The one follower our command shows of a leader."""
    done = CliRunner().invoke(app, ["broker", "followers", "-b", address, "--json"])
    assert done.exit_code == 0, done.output
    (row,) = json.loads(done.stdout)["followers"]
    return cast(dict[str, Any], row)


async def test_mqadmin_shows_our_leader_and_our_follower(java_driver: JavaDriver, tmp_path: Path) -> None:
    """Our brokers say more than Apache's; its tool takes what it knows."""
    async with (
        running_nameserver(directory=tmp_path / "n") as nameserver,
        running_broker(directory=tmp_path / "l", nameserver=nameserver) as leader,
        running_broker(
            directory=tmp_path / "f", nameserver=nameserver, brokerRole="SLAVE", brokerId=1
        ) as follower,
    ):
        put(leader.broker.store, 10)
        end = leader.broker.store.log.max_offset
        await until(lambda: any(one.acked == end for one in leader.broker.replication.leader.followers))
        shown = await java_driver.amqadmin("haStatus", "-n", nameserver.address, "-b", leader.address)
        assert "#SlaveNum\t1" in shown
        assert "#InSyncSlaveNum\t1" in shown
        (line,) = [line.split() for line in shown.splitlines() if line.startswith("127.0.0.1:")]
        assert (line[1], line[2], line[4]) == (str(end), "0", "OK")
        shown = await java_driver.amqadmin("haStatus", "-n", nameserver.address, "-b", follower.address)
        assert leader.broker.endpoints.ha_address in shown
        assert str(end) in shown


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
        assert follows.max_offset("T", 0) == 0  # what it had written itself
    await asyncio.to_thread(leader.stop)
    async with a_store(path) as follows:
        assert files_of(leader.store / "commitlog", end, FILE) == raw(follows)[:end]


async def has_messages(store: MessageStore, topic: str, count: int) -> None:
    def there() -> int:
        return sum(queue.next_offset for queue in store.queues if queue.topic == topic)

    await until(lambda: there() == count, lambda: f"{there()} of {count}; {store.progress}", 30)
