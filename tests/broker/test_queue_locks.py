from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kerolox.broker.members.queue_locks import BELIEVED_S, GRACE_S, HELD_S, QueueLocks
from kerolox.protocol.bodies.body import MessageQueue
from kerolox.protocol.bodies.members import BoundLockRequest, LockAnswer, LockRequest
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.testing.clock import ManualClock
from tests.broker.group_kit import Part, clients, running
from tests.broker.talk import until

Q0, Q1, Q2 = (MessageQueue("t", "broker-a", queue_id) for queue_id in range(3))


@pytest.fixture
async def part(tmp_path: Path) -> AsyncIterator[Part]:
    async with running(tmp_path) as part:
        yield part


def test_a_queue_has_one_owner_in_a_group() -> None:
    locks = QueueLocks(ManualClock())
    assert locks.lock("g", "one", [Q0, Q1]) == {Q0, Q1}
    assert locks.lock("g", "two", [Q1, Q2]) == {Q2}
    assert locks.lock("other group", "two", [Q1]) == {Q1}
    assert [locks.owner("g", queue) for queue in (Q0, Q1, Q2)] == ["one", "one", "two"]
    assert locks.owner("unknown", Q0) is None


async def test_a_lock_is_held_for_a_minute_after_it_was_last_asked_for() -> None:
    clock = ManualClock()
    locks = QueueLocks(clock)
    locks.lock("g", "one", [Q0])
    await clock.advance(HELD_S)
    assert locks.lock("g", "two", [Q0]) == frozenset()
    assert locks.lock("g", "one", [Q0]) == {Q0}
    await clock.advance(HELD_S)
    assert locks.lock("g", "two", [Q0]) == frozenset()
    await clock.advance(0.001)
    assert locks.owner("g", Q0) is None
    assert locks.lock("g", "two", [Q0]) == {Q0}
    assert locks.lock("g", "one", [Q0]) == frozenset()


async def test_setting_the_wall_clock_does_not_take_locks_away() -> None:
    clock = ManualClock()
    locks = QueueLocks(clock)
    locks.lock("g", "one", [Q0])
    clock.step_wall(3_600_000)
    assert locks.lock("g", "two", [Q0]) == frozenset()


def test_only_the_owner_unlocks() -> None:
    locks = QueueLocks(ManualClock())
    locks.lock("g", "one", [Q0, Q1])
    locks.unlock("g", "two", [Q0])
    locks.unlock("unknown", "one", [Q0])
    assert locks.owner("g", Q0) == "one"
    locks.unlock("g", "one", [Q0, Q2])
    assert locks.lock("g", "two", [Q0, Q1]) == {Q0}


class Connection:
    is_closed = False


@pytest.mark.parametrize("believed_s", [0.0, BELIEVED_S])
async def test_a_lock_ends_shortly_after_its_connection(believed_s: float) -> None:
    clock, connection = ManualClock(), Connection()
    locks = QueueLocks(clock)
    locks.lock("g", "one", [Q0], connection, believed_s)  # type: ignore[arg-type]
    await clock.advance(1.0)
    connection.is_closed = True
    assert locks.lock("g", "two", [Q0]) == frozenset()  # the owner may connect again
    await clock.advance(max(1.0, believed_s) + GRACE_S - 1.0)
    assert locks.lock("g", "two", [Q0]) == frozenset()
    await clock.advance(0.001)
    assert locks.lock("g", "two", [Q0]) == {Q0}


async def test_an_owner_that_connects_again_keeps_its_lock() -> None:
    clock, connection = ManualClock(), Connection()
    locks = QueueLocks(clock)
    locks.lock("g", "one", [Q0], connection, 0.0)  # type: ignore[arg-type]
    connection.is_closed = True
    assert locks.lock("g", "two", [Q0]) == frozenset()
    locks.lock("g", "one", [Q0], Connection(), 0.0)  # type: ignore[arg-type]
    await clock.advance(HELD_S)
    assert locks.lock("g", "two", [Q0]) == frozenset()


async def test_a_dead_clients_lock_over_the_wire(part: Part) -> None:
    wanted = BoundLockRequest(
        client_id="one", consumer_group="g", mq_set=frozenset({Q0, Q1}), until_disconnected=True
    )
    async with clients(part, "two") as (two,):
        async with clients(part, "one") as (one,):
            assert (await one.call(RequestCode.LOCK_BATCH_MQ, body=wanted.encode())).code == 0
            held = part.locks._locks["g"][Q0].caller
            assert held is not None
        await until(lambda: held.is_closed)

        async def lock() -> frozenset[MessageQueue]:
            answer = await two.call(RequestCode.LOCK_BATCH_MQ, body=body("two", Q0))
            return LockAnswer.decode(answer.body).lock_ok_mq_set

        assert await lock() == frozenset()
        await part.clock.advance(GRACE_S + 0.001)
        assert await lock() == {Q0}


async def test_locks_nobody_wants_any_more_are_forgotten() -> None:
    clock = ManualClock()
    locks = QueueLocks(clock)
    locks.lock("gone", "one", [Q0])
    locks.lock("g", "one", [Q0])
    await clock.advance(HELD_S / 2)
    locks.lock("g", "one", [Q1])
    await clock.advance(HELD_S / 2 + 1)
    locks.lock("g", "one", [Q2])
    assert {group: set(queues) for group, queues in locks._locks.items()} == {"g": {Q1, Q2}}


def body(client_id: str, *queues: MessageQueue) -> bytes:
    return LockRequest(client_id=client_id, consumer_group="g", mq_set=frozenset(queues)).encode()


async def test_locking_over_the_wire(part: Part) -> None:
    java = (
        b'{"clientId":"one","consumerGroup":"g","mqSet":[{"brokerName":"broker-a","queueId":0,"topic":"t"}],'
        b'"onlyThisBroker":false}'
    )
    async with clients(part, "one", "two") as (one, two):
        answer = await one.call(RequestCode.LOCK_BATCH_MQ, body=java)
        assert answer.body == b'{"lockOKMQSet":[{"brokerName":"broker-a","queueId":0,"topic":"t"}]}'
        answer = await two.call(RequestCode.LOCK_BATCH_MQ, body=body("two", Q0))
        assert (answer.code, answer.body) == (ResponseCode.SUCCESS, b'{"lockOKMQSet":[]}')
        assert (await one.call(RequestCode.UNLOCK_BATCH_MQ, body=java)).code == ResponseCode.SUCCESS
        answer = await two.call(RequestCode.LOCK_BATCH_MQ, body=body("two", Q0))
        assert LockAnswer.decode(answer.body).lock_ok_mq_set == {Q0}


@pytest.mark.parametrize("code", [RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ])
async def test_a_lock_for_nobody_is_refused(part: Part, code: RequestCode) -> None:
    async with clients(part, "one") as (one,):
        assert (await one.call(code, body=b"{}")).code == ResponseCode.INVALID_PARAMETER
        assert (await one.call(code, body=b"")).code == ResponseCode.SYSTEM_ERROR


async def test_how_long_a_lock_is_held_can_be_set() -> None:
    clock = ManualClock()
    locks = QueueLocks(clock, 5.0)
    locks.lock("g", "one", [Q0])
    await clock.advance(5.0)
    assert locks.lock("g", "two", [Q0]) == frozenset()
    await clock.advance(0.001)
    assert not locks.held("g")
    assert locks.lock("g", "two", [Q0]) == {Q0}
