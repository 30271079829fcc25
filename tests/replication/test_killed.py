"""Leaders and followers that are killed: real processes, SIGKILL."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from pathlib import Path

import pytest

from kerolox import Message, Producer, SendStatus
from kerolox.broker.copies import table_copy as table_copy_module
from kerolox.net.dialer import Dialer
from kerolox.replication import follower as follower_module
from kerolox.replication.follower import Follower
from kerolox.replication.link_state import LinkState
from kerolox.testing.broker import running_broker
from kerolox.testing.clock import ManualClock
from kerolox.testing.nameserver import running_nameserver

from .kit import Settings, put, raw, store_at, until
from .processes import BrokerProcess, broker_process

FOLLOWS = ("brokerRole=SLAVE", "brokerId=1")
FILE = 1 << 20


async def test_a_follower_hears_of_a_dead_leader_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # By nothing else: it would ask for tables every few seconds, and register every 30 s.
    monkeypatch.setattr(table_copy_module, "COPY_S", 3600.0)
    monkeypatch.setattr(table_copy_module, "TIMER_S", 3600.0)
    monkeypatch.setattr(follower_module, "RETRY_MAX_S", 0.2)
    async with running_nameserver(directory=tmp_path / "n") as nameserver:
        with broker_process(tmp_path / "leader", nameserver.address) as leader:
            await leader.start()
            async with running_broker(
                directory=tmp_path / "follower", nameserver=nameserver, role="SLAVE", broker_id=1,
                broker_name="b", register_interval_ms=60_000,
            ) as follower:  # fmt: skip
                leadership, link = follower.broker.leadership, follower.broker.replication.follower
                await until(lambda: leadership.leader is not None and link.copying, lambda: link.text)
                leader.kill()
                await until(lambda: leadership.leader is None, lambda: link.text)
                await leader.start()  # at the same address
                await until(lambda: leadership.leader is not None and link.copying, lambda: link.text, 20)


async def test_name_servers_are_not_asked_all_the_time(tmp_path: Path) -> None:
    clock = ManualClock()
    asked: list[float] = []
    async with store_at(tmp_path) as store, Dialer() as dialer:
        put(store)
        follower = Follower(store, Settings(), clock, dialer, ha_address="127.0.0.1:1")
        follower.on_doubt.append(lambda: asked.append(clock.monotonic_s()))
        await follower.start()
        await until(lambda: follower.state is LinkState.LOST)
        async with asyncio.timeout(60):
            while len(asked) < 9:
                await clock.advance(0.5)
                await asyncio.sleep(0.002)  # a connection fails
        await follower.stop()
    for number, (sooner, later) in enumerate(pairwise(asked)):
        wanted = min(follower_module.ASK_FIRST_S * 2**number, follower_module.ASK_MAX_S)
        assert later - sooner >= wanted, "less and less often"


async def test_a_follower_killed_while_it_copies_goes_on(tmp_path: Path) -> None:
    """Several times, in the middle of the log and of records: in the end it has every byte."""
    async with running_broker(
        directory=tmp_path / "leader", broker_name="b", commit_log_file_bytes=FILE,
        ha_limited=True, ha_bytes_per_s=2 << 20,
    ) as leader:  # fmt: skip
        store = leader.broker.store
        put(store, 4000, size=3000)
        copy = tmp_path / "follower"
        settings = (*FOLLOWS, f"mappedFileSizeCommitLog={FILE}")
        with broker_process(copy, leader.nameserver_address, *settings) as follower:
            reached = 0
            for _ in range(3):
                await follower.start()
                replicas = store.replicas
                before = reached + (1 << 18)
                await until(lambda: any(one.acked > before for one in replicas), lambda: list(replicas), 30)  # noqa: B023
                reached = max(one.acked for one in replicas)
                assert reached < store.log.max_offset, "it was to be killed before it has everything"
                follower.kill()
                await until(lambda: not list(store.replicas))
                put(store, 10)
            leader.broker.options.ha_limited = False
            await follower.start()
            end = store.log.max_offset
            await until(lambda: any(one.acked == end for one in store.replicas), lambda: list(replicas), 30)
            follower.kill()
    copied = b"".join(path.read_bytes() for path in sorted((copy / "store/commitlog").iterdir()))
    written = b"".join(path.read_bytes() for path in sorted((tmp_path / "leader/store/commitlog").iterdir()))
    assert copied[:end] == written[:end]


async def test_a_new_follower_has_its_first_table_before_it_copies(tmp_path: Path) -> None:
    """Messages without any table would be taken for a store that has lost them."""
    async with running_broker(directory=tmp_path / "leader") as leader:
        put(leader.broker.store, 10)
        async with running_broker(
            directory=tmp_path / "follower", nameserver=leader.nameserver, role="SLAVE", broker_id=1
        ) as follower:
            assert (tmp_path / "follower/store/config/topics.json").exists()
            await until(lambda: follower.broker.store.log.max_offset == leader.broker.store.log.max_offset)


@pytest.mark.parametrize("role", ["ASYNC_MASTER", "SYNC_MASTER"])
async def test_a_leader_killed_under_load_loses_no_more_than_it_says(tmp_path: Path, role: str) -> None:
    """SYNC_MASTER, inSyncReplicas=2: every SEND_OK is at the follower, which could lead. ASYNC_MASTER: it may
    lack the last of them, and nothing else; when the leader's disk is back, they come."""
    async with running_nameserver(directory=tmp_path / "n") as nameserver:
        with broker_process(tmp_path / "leader", nameserver.address, f"brokerRole={role}") as leader:
            await leader.start()
            async with running_broker(
                directory=tmp_path / "follower", nameserver=nameserver, role="SLAVE", broker_id=1,
                broker_name="b",
            ) as follower:  # fmt: skip
                store, link = follower.broker.store, follower.broker.replication.follower
                await until(lambda: link.copying, lambda: link.text)
                acknowledged = await sent_until_killed(nameserver.address, leader)
                await until(lambda: not link.copying)
                data = raw(store)
                missing = [body for body in acknowledged if body not in data]
                if role == "SYNC_MASTER":
                    assert missing == []
                (first,) = (tmp_path / "leader/store/commitlog").glob(f"{0:020d}")
                assert first.read_bytes().startswith(data)  # only the end is missing
                await leader.start()
                await until(lambda: link.copying, lambda: link.text, 20)
                await until(lambda: all(body in raw(store) for body in missing))


async def sent_until_killed(nameserver: str, leader: BrokerProcess) -> list[bytes]:
    """What was answered by success, until the leader was killed under load."""
    acknowledged: list[bytes] = []
    async with Producer(nameserver, group="g") as producer:

        async def send(number: int) -> None:
            for count in range(100_000):
                body = b"<%d-%d>" % (number, count)
                if (await producer.send(Message("T", body))).status is SendStatus.OK:
                    acknowledged.append(body)

        senders = [asyncio.ensure_future(send(number)) for number in range(8)]
        await until(lambda: len(acknowledged) > 300, lambda: len(acknowledged), 30)
        leader.kill()
        for sender in senders:
            sender.cancel()
        await asyncio.gather(*senders, return_exceptions=True)
    return acknowledged
