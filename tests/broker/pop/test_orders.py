"""Ordered pops: a group gets more of a queue when everything that it has is acknowledged or over."""

from __future__ import annotations

import asyncio
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from kerolox.broker.pop.order import OrderAck, acknowledged, changed, popped
from kerolox.net.dialer import Dialer
from kerolox.protocol.codes import ResponseCode
from kerolox.testing.broker import running_broker
from kerolox.testing.clock import ManualClock
from tests.broker.pop.kit import GROUP, TOPIC, Popper, committed
from tests.broker.pop.kit import popped as popped_of
from tests.broker.pop.test_pops import poppers
from tests.broker.talk import until


def test_a_repeated_pop_counts_deliveries_but_for_the_same_attempt() -> None:
    first = popped(None, [5, 6], 100, 60, "a")
    assert first.counts is None
    again = popped(first, [5, 6, 7], 200, 60, "b")
    assert again.counts == {5: 1, 6: 1}
    assert popped(again, [5, 6, 7], 300, 60, "b").counts == {5: 1, 6: 1}
    assert popped(again, [5], 300, 60, None).counts == {5: 2}


def test_the_group_stays_at_the_first_message_that_is_not_acknowledged() -> None:
    record = popped(None, [5, 6, 9], 100, 60, None)
    found = acknowledged(record, 6, 100)
    assert not isinstance(found, OrderAck)
    record, offset = found
    assert offset == 5
    found = acknowledged(record, 5, 100)
    assert not isinstance(found, OrderAck)
    assert found[1] == 9
    assert acknowledged(record, 7, 100) is OrderAck.UNKNOWN
    assert acknowledged(record, 9, 99) is OrderAck.OLD


def test_a_changed_time_counts_for_the_last_pop_only() -> None:
    record = popped(None, [5, 6], 100, 60, None)
    later = changed(record, 6, 100, 500)
    assert not record.is_blocked(160, None, 0)
    assert later.is_blocked(499, None, 0)
    assert changed(record, 6, 99, 500) is record


@given(st.lists(st.integers(0, 31), max_size=60), st.integers(1, 32))
def test_every_order_of_acknowledgements_ends_behind_the_last(order: list[int], count: int) -> None:
    offsets = list(range(100, 100 + count))
    record = popped(None, offsets, 1, 60, None)
    acked: set[int] = set()
    for place in order:
        found = acknowledged(record, 100 + place, 1)
        if place >= count:
            assert found is OrderAck.UNKNOWN
            continue
        assert not isinstance(found, OrderAck)
        record, offset = found
        acked.add(100 + place)
        left = [at for at in offsets if at not in acked]
        assert offset == (left[0] if left else 100 + count)
        assert record.is_blocked(2, None, 0) == bool(left)


async def test_messages_come_in_order_and_one_pop_at_a_time() -> None:
    async with poppers() as one:
        for number in range(4):
            await one.send(TOPIC, b"%d" % number)
        found = await one.take(order=True, max_msg_nums=2)
        assert [message.body for message in found] == ["0", "1"]
        assert found[0].handle.revive_queue == 999
        assert await one.take(order=True) == []
        waiting = asyncio.create_task(one.take(order=True, poll_time=15_000))
        await until(lambda: one.running.broker.consuming.waits.held)
        assert (await one.ack(found[1])).code == 0
        assert committed(one.running) == 0
        assert (await one.ack(found[0])).code == 0
        assert [message.body for message in await asyncio.wait_for(waiting, 5)] == ["2", "3"]
        assert committed(one.running) == 2


async def test_messages_that_are_over_come_again_with_their_count() -> None:
    clock = ManualClock()
    async with poppers(clock=clock) as one:
        for number in range(3):
            await one.send(TOPIC, b"%d" % number)
        await one.take(order=True, max_msg_nums=2, invisible_time=5000)
        waiting = asyncio.create_task(one.pop(order=True, poll_time=15_000))
        await until(lambda: one.running.broker.consuming.waits.held)
        await clock.advance(5.2)
        answer = await asyncio.wait_for(waiting, 5)
        assert [message.body for message in popped_of(answer, TOPIC, GROUP)] == ["0", "1", "2"]
        assert answer.fields["orderCountInfo"] == "0 qo0%0 1;0 qo0%1 1;0 0 0"


async def test_the_same_attempt_gets_the_same_messages() -> None:
    async with poppers() as one:
        await one.send(TOPIC, b"0")
        first = await one.take(order=True, attempt_id="a1")
        again = await one.take(order=True, attempt_id="a1")
        assert [message.body for message in first + again] == ["0", "0"]
        assert await one.take(order=True, attempt_id="a2") == []
        assert (await one.ack(first[0])).code == 0  # popped again since: ignored
        assert committed(one.running) in (0, 1)
        assert (await one.ack(again[0])).code == 0
        assert committed(one.running) == 1


async def test_a_message_of_no_pop_is_not_acknowledged() -> None:
    async with poppers() as one:
        for number in range(3):
            await one.send(TOPIC, b"%d" % number)
        (first,) = await one.take(order=True, max_msg_nums=1)
        assert (await one.ack(first, offset=2)).code == ResponseCode.MESSAGE_ILLEGAL
        assert committed(one.running) == 0


async def test_a_changed_time_delays_the_queue() -> None:
    clock = ManualClock()
    async with poppers(clock=clock) as one:
        await one.send(TOPIC, b"0")
        (first,) = await one.take(order=True, invisible_time=5000)
        answer = await one.change(first, 20_000)
        assert (answer.code, answer.fields["reviveQid"]) == (0, "999")
        assert answer.fields["popTime"] == str(first.handle.pop_time)
        await clock.advance(10)
        assert await one.take(order=True) == []
        await clock.advance(11)
        assert len(await one.take(order=True)) == 1


async def test_a_restart_keeps_the_order(tmp_path: Path) -> None:
    async with running_broker(directory=tmp_path) as running, Dialer() as dialer:
        await running.create_topic(TOPIC, queues=1)
        one = Popper(dialer, running)
        for number in range(2):
            await one.send(TOPIC, b"%d" % number)
        (first,) = await one.take(order=True, max_msg_nums=1)
        await running.stop()
        await running.start()
        one = Popper(dialer, running)
        assert await one.take(order=True) == []
        assert (await one.ack(first)).code == 0
        assert [message.body for message in await one.take(order=True)] == ["1"]


async def test_a_kill_repeats_from_the_first_message_that_is_not_acknowledged(tmp_path: Path) -> None:
    async with running_broker(directory=tmp_path) as running, Dialer() as dialer:
        await running.create_topic(TOPIC, queues=1)
        one = Popper(dialer, running)
        for number in range(3):
            await one.send(TOPIC, b"%d" % number)
        found = await one.take(order=True, max_msg_nums=2)
        await one.ack(found[0])
        await running.broker.tables.offset_saver.saved()
        await running.kill()
        await running.start()
        one = Popper(dialer, running)
        assert [message.body for message in await one.take(order=True)] == ["1", "2"]
