"""POP over real sockets: pops, acknowledgements, changed invisible times, retries, held pops."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from kerolox.net.dialer import Dialer
from kerolox.protocol.bodies.pop import BatchAck, BatchAckRequest, bits_of
from kerolox.protocol.codes import ResponseCode
from kerolox.testing.broker import running_broker
from kerolox.testing.clock import ManualClock
from tests.broker.pop.kit import GROUP, TOPIC, Popper, advance_until, committed, out, popped
from tests.broker.talk import until


@asynccontextmanager
async def poppers(queues: int = 1, **options: Any) -> AsyncIterator[Popper]:
    async with running_broker(**options) as running, Dialer(clock=running.broker.clock) as dialer:
        await running.create_topic(TOPIC, queues=queues)
        yield Popper(dialer, running)


async def test_messages_are_popped_once_and_acknowledged() -> None:
    async with poppers() as one:
        for number in range(5):
            await one.send(TOPIC, b"m%d" % number)
        found = await one.take()
        assert [message.body for message in found] == [f"m{number}" for number in range(5)]
        assert await one.take() == []
        assert (out(one.running), committed(one.running)) == (5, 0)
        for message in found:
            assert (await one.ack(message)).code == 0
        assert (out(one.running), committed(one.running)) == (0, 5)


async def test_an_answer_has_what_clients_compute_handles_from() -> None:
    async with poppers() as one:
        await one.send(TOPIC)
        await one.send(TOPIC)
        answer = await one.pop(max_msg_nums=1)
        fields = answer.fields
        assert (answer.code, answer.remark) == (0, "FOUND")
        assert (fields["startOffsetInfo"], fields["msgOffsetInfo"]) == ("0 0 0", "0 0 0")
        assert (fields["invisibleTime"], fields["reviveQid"], fields["restNum"]) == ("60000", "0", "1")
        assert "orderCountInfo" not in fields


async def test_every_queue_is_popped() -> None:
    async with poppers(queues=4) as one:
        for queue_id in range(4):
            await one.send(TOPIC, b"of %d" % queue_id, queue_id=queue_id)
        found = await one.take()
        assert sorted(message.body for message in found) == [f"of {queue_id}" for queue_id in range(4)]
        assert len({message.handle.queue_id for message in found}) == 4


async def test_only_the_asked_queue_is_popped() -> None:
    async with poppers(queues=2) as one:
        await one.send(TOPIC, b"a", queue_id=0)
        await one.send(TOPIC, b"b", queue_id=1)
        assert [message.body for message in await one.take(queue_id=1)] == ["b"]


async def test_a_message_comes_again_when_its_time_is_over_and_not_before() -> None:
    clock = ManualClock()
    async with poppers(clock=clock) as one:
        await one.send(TOPIC, b"again")
        (first,) = await one.take(invisible_time=5000)
        await clock.advance(4.9)
        assert await one.take() == []
        await clock.advance(0.2)
        await until(lambda: not out(one.running))
        (second,) = await one.take()
        assert (second.body, second.message.reconsume_times) == ("again", 1)
        assert second.message.topic == TOPIC
        assert second.handle.retry == "1"
        assert second.message.properties["1ST_POP_TIME"] == str(first.handle.pop_time)
        assert second.message.unique_key == first.message.unique_key
        assert (await one.ack(second)).code == 0
        await clock.advance(120)
        assert await one.take() == []
        assert committed(one.running) == 1


async def test_an_acknowledged_message_does_not_come_again() -> None:
    clock = ManualClock()
    async with poppers(clock=clock) as one:
        for number in range(3):
            await one.send(TOPIC, b"m%d" % number)
        found = await one.take(invisible_time=5000)
        await one.ack(found[1])
        await clock.advance(6)
        await until(lambda: not out(one.running))
        assert sorted(message.body for message in await one.take()) == ["m0", "m2"]


async def test_a_changed_invisible_time_counts_from_the_change() -> None:
    clock = ManualClock()
    async with poppers(clock=clock) as one:
        await one.send(TOPIC, b"slow")
        (first,) = await one.take(invisible_time=5000)
        await clock.advance(4)
        renewed = await one.renew(first, 5000)
        assert (await one.change(first, 5000)).code == ResponseCode.NO_MESSAGE
        assert (await one.ack(first)).code == 0  # ignored: the handle is used up
        await clock.advance(4)
        assert await one.take() == []
        assert (await one.ack(renewed)).code == 0
        await clock.advance(20)
        assert await one.take() == []
        assert committed(one.running) == 1


async def test_a_message_that_is_given_back_comes_at_once() -> None:
    async with poppers() as one:
        await one.send(TOPIC, b"back")
        (first,) = await one.take()
        assert (await one.change(first, 0)).code == 0
        await until(lambda: not out(one.running))
        (second,) = await one.take()
        assert (second.body, second.message.reconsume_times) == ("back", 1)


async def test_a_held_pop_is_answered_by_the_next_message() -> None:
    async with poppers() as one:
        waiting = asyncio.create_task(one.pop(poll_time=15_000))
        await until(lambda: one.running.broker.consuming.waits.held)
        await one.send(TOPIC, b"now")
        answer = await asyncio.wait_for(waiting, 5)
        assert [message.body for message in popped(answer, TOPIC, GROUP)] == ["now"]


async def test_a_held_pop_is_answered_by_a_retry() -> None:
    async with poppers() as one:
        await one.send(TOPIC, b"retried")
        (first,) = await one.take()
        waiting = asyncio.create_task(one.take(poll_time=15_000))
        await until(lambda: one.running.broker.consuming.waits.held)
        await one.change(first, 0)
        (second,) = await asyncio.wait_for(waiting, 5)
        assert second.message.reconsume_times == 1


async def test_a_held_pop_ends_without_messages() -> None:
    clock = ManualClock()
    async with poppers(clock=clock) as one:
        waiting = asyncio.create_task(one.pop(poll_time=15_000))
        await until(lambda: one.running.broker.consuming.waits.held)
        await clock.advance(15)
        answer = await asyncio.wait_for(waiting, 5)
        assert (answer.code, answer.remark) == (ResponseCode.POLLING_TIMEOUT, "NO_MESSAGE_IN_QUEUE")


async def test_a_message_wakes_one_of_many_and_the_rest_wakes_the_next() -> None:
    async with poppers() as one:
        waiting = [asyncio.create_task(one.take(poll_time=15_000, max_msg_nums=1)) for _ in range(3)]
        await until(lambda: one.running.broker.consuming.waits.held == 3)
        await one.send(TOPIC, b"first")
        done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED, timeout=5)
        assert [[message.body for message in task.result()] for task in done] == [["first"]]
        await until(lambda: one.running.broker.consuming.waits.held == 2)
        await one.send(TOPIC, b"second")
        await one.send(TOPIC, b"third")
        found = [message.body for task in await asyncio.gather(*waiting) for message in task]  # type: ignore[misc]
        assert sorted(found) == ["first", "second", "third"]


async def test_tags_and_conditions_filter_pops() -> None:
    async with poppers() as one:
        for number in range(20):
            await one.send(
                TOPIC, b"%d" % number, {"TAGS": "red" if number % 10 == 0 else "blue", "n": str(number)}
            )
        found = await one.take(exp="red")
        assert [message.body for message in found] == ["0", "10"]
        assert found[1].handle.offset == 10
        for message in found:
            await one.ack(message)
        assert committed(one.running) == 20
        found = await one.take(group="others", exp_type="SQL92", exp="n > 17")
        assert [message.body for message in found] == ["18", "19"]


async def test_a_batch_acknowledges_messages_of_several_pops() -> None:
    async with poppers() as one:
        for number in range(6):
            await one.send(TOPIC, b"%d" % number)
        found = await one.take(max_msg_nums=3) + await one.take(max_msg_nums=3)
        acks = tuple(
            BatchAck(
                bits=bits_of([0, 2]), consumer_group=GROUP, invisible_time=60_000, topic=TOPIC, retry="0",
                pop_time=found[at].handle.pop_time, queue_id=0, start_offset=found[at].handle.start_offset,
                revive_queue_id=found[at].handle.revive_queue,
            )
            for at in (0, 3)
        )  # fmt: skip
        assert (await one.batch_ack(BatchAckRequest(acks=acks, broker_name="broker-a"))).code == 0
        assert out(one.running) == 2
        await one.ack(found[1])
        await one.ack(found[4])
        assert committed(one.running) == 6


async def test_old_pops_get_a_record_and_the_group_moves_on() -> None:
    clock = ManualClock()
    async with poppers(clock=clock) as one:
        for number in range(3):
            await one.send(TOPIC, b"%d" % number)
        found = await one.take(invisible_time=60_000)
        await one.ack(found[0])
        assert committed(one.running) == 0
        await clock.advance(10.5)
        await advance_until(clock, lambda: committed(one.running) == 3)
        assert out(one.running) == 2
        renewed = await one.renew(found[1], 60_000)
        await one.ack(found[2])
        await one.ack(renewed)
        assert out(one.running) == 0
        await clock.advance(90)
        await clock.advance(5)
        assert await one.take() == []
