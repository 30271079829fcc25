"""Locks that count when most brokers of a name grant them: lockInStrictMode."""

from __future__ import annotations

import asyncio
from pathlib import Path

from kerolox.net.dialer import Dialer
from kerolox.protocol.bodies.body import MessageQueue
from kerolox.protocol.bodies.members import LockAnswer, LockRequest
from kerolox.protocol.codes import RequestCode

from .acting_kit import Company, company, until

QUEUES = frozenset(MessageQueue("T", "broker-a", queue_id) for queue_id in range(4))


async def lock(
    dialer: Dialer, address: str, client_id: str, *, only_there: bool = False
) -> frozenset[MessageQueue]:
    asked = LockRequest(client_id=client_id, consumer_group="g", mq_set=QUEUES, only_this_broker=only_there)
    answer = await dialer.call(address, RequestCode.LOCK_BATCH_MQ, None, asked.encode())
    assert answer.code == 0
    return LockAnswer.decode(answer.body).lock_ok_mq_set


async def ready(c: Company) -> None:
    await c.leader.create_topic("T", queues=4)
    await c.copied()
    for running in (c.leader, c.follower):
        watch = running.broker.fellowship.watch
        await until(lambda watch=watch: set(watch.members) == {0, 1})


async def test_a_lock_counts_at_both_and_is_free_at_both_again(tmp_path: Path) -> None:
    async with company(tmp_path, strict_locks=True) as c:
        await ready(c)
        locks = [running.broker.membership.queue_locks for running in (c.leader, c.follower)]
        assert await lock(c.dialer, c.leader.address, "one") == QUEUES
        for table in locks:
            assert {table.owner("g", queue) for queue in QUEUES} == {"one"}
        # A client that sees the follower alone gets none of them.
        assert await lock(c.dialer, c.follower.address, "two") == frozenset()
        asked = LockRequest(client_id="one", consumer_group="g", mq_set=QUEUES)
        gone = await c.dialer.call(c.leader.address, RequestCode.UNLOCK_BATCH_MQ, None, asked.encode())
        assert gone.code == 0
        for table in locks:
            assert not table.held("g")
        assert await lock(c.dialer, c.follower.address, "two") == QUEUES


async def test_a_lock_that_one_of_two_grants_does_not_count(tmp_path: Path) -> None:
    async with company(tmp_path, strict_locks=True) as c:
        await ready(c)
        assert await lock(c.dialer, c.follower.address, "one", only_there=True) == QUEUES
        assert await lock(c.dialer, c.leader.address, "two") == frozenset()
        assert not c.leader.broker.membership.queue_locks.held("g")
        assert c.follower.broker.membership.queue_locks.held("g")
        assert await lock(c.dialer, c.leader.address, "one") == QUEUES
        # With one of two gone there is no majority.
        await c.follower.stop()
        await until(lambda: set(c.leader.broker.fellowship.watch.members) == {0})
        assert await lock(c.dialer, c.leader.address, "one") == frozenset()


async def test_two_that_ask_at_once_never_both_get_it_and_keep_nobody_out(tmp_path: Path) -> None:
    async with company(tmp_path, strict_locks=True) as c:
        await ready(c)
        for _ in range(20):
            one, two = await asyncio.gather(
                lock(c.dialer, c.leader.address, "one"), lock(c.dialer, c.follower.address, "two")
            )
            assert not one & two
            # What neither got is free: who asks alone gets it, at once.
            assert await lock(c.dialer, c.leader.address, "one") == QUEUES - two
            for client_id in ("one", "two"):
                asked = LockRequest(client_id=client_id, consumer_group="g", mq_set=QUEUES)
                await c.dialer.call(c.leader.address, RequestCode.UNLOCK_BATCH_MQ, None, asked.encode())


async def test_without_the_option_each_broker_decides_alone(tmp_path: Path) -> None:
    async with company(tmp_path) as c:
        await ready(c)
        assert await lock(c.dialer, c.leader.address, "one") == QUEUES
        assert await lock(c.dialer, c.follower.address, "two") == QUEUES
