"""A leader that waits for its follower, end to end: two brokers, one name server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from kerolox import Message, Producer, SendStatus
from kerolox.testing.broker import RunningBroker, running_broker

from .kit import Between, until


async def test_a_follower_is_waited_for_while_it_is_there(tmp_path: Path) -> None:
    async with (
        running_broker(directory=tmp_path / "leader", role="SYNC_MASTER") as leader,
        Producer(leader.nameserver_address, group="g") as producer,
    ):
        log, replicas = leader.broker.store.log, leader.broker.store.replicas
        alone = await producer.send(Message("T", b"alone"))
        assert alone.status is SendStatus.SLAVE_NOT_AVAILABLE
        async with running_broker(
            directory=tmp_path / "follower", nameserver=leader.nameserver, role="SLAVE", broker_id=1
        ) as follower:
            copy = follower.broker.store.log
            await until(lambda: replicas.having(log.max_offset) == 2)
            for number in range(20):
                sent = await producer.send(Message("T", b"%d" % number))
                assert sent.status is SendStatus.OK
                assert copy.max_offset == log.max_offset
        # It has gone: the leader hears of that at once, and nobody waits for it.
        await until(lambda: not list(replicas))
        began_s = time.monotonic()
        left = await producer.send(Message("T", b"left"))
        assert left.status is SendStatus.SLAVE_NOT_AVAILABLE
        assert time.monotonic() - began_s < leader.broker.options.replica_timeout_ms / 1000
        written = (tmp_path / "leader/store/commitlog" / f"{0:020d}").read_bytes()
        copied = (tmp_path / "follower/store/commitlog" / f"{0:020d}").read_bytes()
        assert copied[: copy.max_offset] == written[: copy.max_offset]


@asynccontextmanager
async def waiting_for_a_copy(tmp_path: Path) -> AsyncIterator[tuple[RunningBroker, Between, asyncio.Task]]:
    """A leader, what stands between it and its follower and lets nothing through, and a send that waits."""
    async with (
        running_broker(directory=tmp_path / "leader", role="SYNC_MASTER") as leader,
        Between(leader.broker.endpoints.ha_address) as between,
        running_broker(
            directory=tmp_path / "follower", nameserver=leader.nameserver, role="SLAVE", broker_id=1,
            ha_master_address=between.address,
        ),
        Producer(leader.nameserver_address, group="g") as producer,
    ):  # fmt: skip
        store = leader.broker.store
        await until(lambda: store.replicas.having(store.log.max_offset) == 2)
        assert (await producer.send(Message("T", b"before"))).status is SendStatus.OK
        between.open.clear()
        end = store.log.max_offset
        sending = asyncio.ensure_future(producer.send(Message("T", b"waits"), timeout_s=30))
        await until(lambda: store.log.max_offset > end)
        assert not sending.done()
        yield leader, between, sending


@pytest.mark.parametrize("ends", ["stops", "follows"])
async def test_who_waits_when_a_leader_ends_hears_of_the_copy(tmp_path: Path, ends: str) -> None:
    async with waiting_for_a_copy(tmp_path) as (leader, between, sending):
        leadership = leader.broker.leadership
        ending = asyncio.ensure_future(
            leader.stop() if ends == "stops" else leadership.follow("another leads now")
        )
        await until(lambda: not leader.broker.store.state.writable)
        assert not sending.done()
        between.open.set()  # it is at the follower before the end
        assert (await asyncio.wait_for(sending, 30)).status is SendStatus.OK
        await asyncio.wait_for(ending, 60)


@pytest.mark.parametrize(
    ("link", "status"),
    [("silent", SendStatus.FLUSH_SLAVE_TIMEOUT), ("broken", SendStatus.SLAVE_NOT_AVAILABLE)],
)
async def test_who_waits_in_vain_when_a_leader_stops_is_told_so(
    tmp_path: Path, link: str, status: SendStatus
) -> None:
    async with waiting_for_a_copy(tmp_path) as (leader, between, sending):
        stopping = asyncio.ensure_future(leader.stop())
        await until(lambda: not leader.broker.store.state.writable)
        if link == "broken":
            between.cut()
        assert (await asyncio.wait_for(sending, 30)).status is status
        await asyncio.wait_for(stopping, 60)
