"""Peeks, notifications, the number of held pops, and assignments, over real sockets."""

from __future__ import annotations

import asyncio

from kerolox.protocol.bodies.groups import RequestMode, SetRequestMode
from kerolox.protocol.bodies.heartbeat import MessageModel
from kerolox.protocol.bodies.pop import Assignment, AssignmentAnswer, QueryAssignment
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.command import Command
from kerolox.protocol.headers.pop import NotificationRequest, PeekRequest, PollingInfoRequest
from kerolox.protocol.record import decode_records
from kerolox.testing.clock import ManualClock
from tests.broker.pop.kit import GROUP, TOPIC, Popper, out
from tests.broker.pop.test_pops import poppers
from tests.broker.talk import subscribed, until


async def peek(one: Popper, count: int = 32) -> Command:
    header = PeekRequest(topic=TOPIC, consumer_group=GROUP, queue_id=-1, max_msg_nums=count)
    return await one.dialer.call(one.address, RequestCode.PEEK_MESSAGE, header)


async def notification(one: Popper, poll_ms: int = 0) -> Command:
    header = NotificationRequest(
        consumer_group=GROUP, topic=TOPIC, queue_id=-1, poll_time=poll_ms,
        born_time=one.running.broker.clock.wall_ms(),
    )  # fmt: skip
    return await one.dialer.call(one.address, RequestCode.NOTIFICATION, header, timeout_s=20)


async def held(one: Popper, queue_id: int) -> int:
    header = PollingInfoRequest(consumer_group=GROUP, topic=TOPIC, queue_id=queue_id)
    answer = await one.dialer.call(one.address, RequestCode.POLLING_INFO, header)
    return int(answer.fields["pollingNum"])


async def test_a_peek_shows_messages_and_takes_none() -> None:
    async with poppers() as one:
        assert (await peek(one)).code == ResponseCode.PULL_NOT_FOUND
        for number in range(3):
            await one.send(TOPIC, b"%d" % number)
        answer = await peek(one, 2)
        assert [message.body for message in decode_records(answer.body)] == [b"0", b"1"]
        assert answer.fields["restNum"] == "1"
        assert len(await one.take()) == 3
        assert (await peek(one)).code == ResponseCode.PULL_NOT_FOUND
        assert (await peek(one, 33)).code == ResponseCode.INVALID_PARAMETER


async def test_a_notification_says_whether_there_is_a_message() -> None:
    async with poppers() as one:
        assert (await notification(one)).fields["hasMsg"] == "false"
        waiting = asyncio.create_task(notification(one, 15_000))
        await until(lambda: one.running.broker.consuming.waits.held)
        await one.send(TOPIC)
        answer = await asyncio.wait_for(waiting, 5)
        assert (answer.code, answer.fields["hasMsg"], answer.fields["pollingFull"]) == (0, "true", "false")
        assert out(one.running) == 0
        await one.take()
        assert (await notification(one)).fields["hasMsg"] == "false"


async def test_a_notification_ends_without_a_message() -> None:
    clock = ManualClock()
    async with poppers(clock=clock) as one:
        waiting = asyncio.create_task(notification(one, 10_000))
        await until(lambda: one.running.broker.consuming.waits.held)
        await clock.advance(10)
        assert (await asyncio.wait_for(waiting, 5)).fields["hasMsg"] == "false"


async def test_held_pops_are_counted_as_asked() -> None:
    async with poppers(queues=2) as one:
        waiting = [asyncio.create_task(one.pop(poll_time=15_000, queue_id=at)) for at in (-1, -1, 1)]
        await until(lambda: one.running.broker.consuming.waits.held == 3)
        assert [await held(one, at) for at in (-1, 0, 1)] == [2, 0, 1]
        for task in waiting:
            task.cancel()


async def test_too_many_held_pops_are_refused() -> None:
    async with poppers(popPollingSize="1") as one:
        waiting = [asyncio.create_task(one.pop(poll_time=15_000)) for _ in range(2)]
        await until(lambda: one.running.broker.consuming.waits.held == 2)
        answer = await one.pop(poll_time=15_000)
        assert (answer.code, answer.remark) == (ResponseCode.POLLING_FULL, "NO_MESSAGE_IN_QUEUE")
        for task in waiting:
            task.cancel()


async def assigned(one: Popper, topic: str = TOPIC, **fields: object) -> tuple[Assignment, ...] | None:
    body = QueryAssignment(
        **{
            "client_id": "client-1",
            "consumer_group": GROUP,
            "message_model": MessageModel.CLUSTERING,
            "strategy_name": "AVG",
            "topic": topic,
            **fields,
        }  # type: ignore[arg-type]
    )
    answer = await one.dialer.call(one.address, RequestCode.QUERY_ASSIGNMENT, None, body.encode())
    assert answer.code == 0
    return AssignmentAnswer.decode(answer.body).message_queue_assignments


async def test_the_broker_assigns_queues_and_the_mode() -> None:
    async with poppers(queues=3) as one:
        assert await assigned(one) is None  # no heartbeat yet
        await one.heartbeat(GROUP, subscribed(TOPIC))
        pulled = await assigned(one)
        assert pulled is not None
        assert [(one.mode, one.message_queue.queue_id) for one in pulled if one.message_queue] == [
            (RequestMode.PULL, 0), (RequestMode.PULL, 1), (RequestMode.PULL, 2),
        ]  # fmt: skip
        mode = SetRequestMode(topic=TOPIC, consumer_group=GROUP, mode=RequestMode.POP)
        answer = await one.dialer.call(one.address, RequestCode.SET_MESSAGE_REQUEST_MODE, None, mode.encode())
        assert answer.code == 0
        given = await assigned(one)
        assert given is not None
        (popped,) = given
        assert popped.mode is RequestMode.POP
        assert popped.message_queue is not None
        assert (popped.message_queue.broker_name, popped.message_queue.queue_id) == ("broker-a", -1)
        assert await assigned(one, "unknown") is None
        assert await assigned(one, strategy_name="ROOM") is None
        broadcast = await assigned(one, message_model=MessageModel.BROADCASTING)
        assert broadcast is not None
        assert len(broadcast) == 3
