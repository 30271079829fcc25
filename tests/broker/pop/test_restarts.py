"""Popped messages across kills and restarts: repeated, never lost; acknowledged ones stay acknowledged."""

from __future__ import annotations

from pathlib import Path

from kerolox.net.dialer import Dialer
from kerolox.protocol.codes import ResponseCode
from kerolox.testing.broker import running_broker
from kerolox.testing.clock import ManualClock
from tests.broker.pop.kit import TOPIC, Popper, advance_until, committed, out
from tests.broker.talk import until


async def test_messages_popped_before_a_kill_come_again(tmp_path: Path) -> None:
    async with running_broker(directory=tmp_path) as running, Dialer() as dialer:
        await running.create_topic(TOPIC, queues=1)
        one = Popper(dialer, running)
        for number in range(3):
            await one.send(TOPIC, b"%d" % number)
        assert len(await one.take()) == 3
        await running.kill()
        await running.start()
        again = Popper(dialer, running)
        assert sorted(message.body for message in await again.take()) == ["0", "1", "2"]


async def test_stored_pops_are_revived_after_a_kill(tmp_path: Path) -> None:
    """Not acknowledged: again. Acknowledged or changed: as the client was told."""
    clock = ManualClock()
    async with running_broker(directory=tmp_path, clock=clock) as running, Dialer(clock=clock) as dialer:
        await running.create_topic(TOPIC, queues=1)
        one = Popper(dialer, running)
        for number in range(4):
            await one.send(TOPIC, b"%d" % number)
        found = await one.take(invisible_time=60_000)
        await advance_until(clock, lambda: committed(running) == 4)
        await one.ack(found[0])
        renewed = await one.renew(found[1], 100_000)
        await running.broker.tables.offset_saver.saved()
        await running.kill()
        await running.start()
        one = Popper(dialer, running)
        assert committed(running) == 4
        assert await one.take() == []
        assert (await one.ack(found[2])).code == 0  # of the process before
        await advance_until(clock, lambda: running.broker.popping.retries.made)
        (second,) = await one.take()
        assert (second.body, second.message.reconsume_times) == ("3", 1)
        await one.ack(second)
        again = await one.renew(renewed, 60_000)
        assert (await one.change(renewed, 60_000)).code == ResponseCode.NO_MESSAGE
        await advance_until(clock, lambda: running.broker.popping.retries.made == 2)
        (third,) = await one.take()
        assert third.body == "1"
        await one.ack(third)
        assert (await one.change(again, 60_000)).code == ResponseCode.NO_MESSAGE
        for _ in range(60):
            await clock.advance(2)
        assert await one.take() == []


async def test_a_clean_stop_stores_what_is_out(tmp_path: Path) -> None:
    clock = ManualClock()
    async with running_broker(directory=tmp_path, clock=clock) as running, Dialer(clock=clock) as dialer:
        await running.create_topic(TOPIC, queues=1)
        one = Popper(dialer, running)
        for number in range(3):
            await one.send(TOPIC, b"%d" % number)
        found = await one.take(invisible_time=30_000)
        await one.ack(found[1])
        await running.stop()
        await running.start()
        one = Popper(dialer, running)
        assert committed(running) == 3
        assert await one.take() == []
        await advance_until(clock, lambda: running.broker.popping.retries.made == 2)
        assert sorted(message.body for message in await one.take()) == ["0", "2"]


async def test_revived_pops_are_passed_for_good(tmp_path: Path) -> None:
    """The progress of the revive topic is committed, so a second restart revives nothing twice."""
    clock = ManualClock()
    async with running_broker(directory=tmp_path, clock=clock) as running, Dialer(clock=clock) as dialer:
        await running.create_topic(TOPIC, queues=1)
        one = Popper(dialer, running)
        await one.send(TOPIC, b"once")
        await one.take(invisible_time=20_000)
        await running.stop()
        await running.start()
        await advance_until(clock, lambda: running.broker.popping.retries.made == 1)
        reviver = running.broker.popping.reviver
        await advance_until(
            clock, lambda: not reviver.waiting and not any(q.noted for q in reviver.queues), 2
        )
        await running.stop()
        await running.start()
        for _ in range(30):
            await clock.advance(1)
        assert running.broker.popping.retries.made == 0
        assert len(await Popper(dialer, running).take()) == 1


async def test_a_pop_under_way_ends_with_the_broker(tmp_path: Path) -> None:
    async with running_broker(directory=tmp_path) as running, Dialer() as dialer:
        await running.create_topic(TOPIC, queues=1)
        one = Popper(dialer, running)
        await one.send(TOPIC, b"kept")
        assert len(await one.take()) == 1
        assert out(running) == 1
        await running.stop()
        await until(lambda: not running.is_running)


async def test_pops_beyond_the_limit_of_memory_are_revived_from_the_log() -> None:
    """Their handles stay valid, once."""
    clock = ManualClock()
    async with (
        running_broker(clock=clock, pop_checkpoints_max=1, pop_stay_ms=1000) as running,
        Dialer(clock=clock) as dialer,
    ):
        await running.create_topic(TOPIC, queues=1)
        one = Popper(dialer, running)
        for number in range(4):
            await one.send(TOPIC, b"%d" % number)
        found = []
        for _ in range(4):
            found += await one.take(max_msg_nums=1, invisible_time=30_000)
            await clock.advance(0.01)
        await advance_until(clock, lambda: committed(running) == 4)
        await advance_until(clock, lambda: out(running) == 1)
        assert (await one.ack(found[0])).code == 0
        renewed = await one.renew(found[1], 60_000)
        assert (await one.change(found[1], 60_000)).code == ResponseCode.NO_MESSAGE
        assert (await one.ack(renewed)).code == 0
        await advance_until(clock, lambda: running.broker.popping.retries.made == 2)
        assert sorted(message.body for message in await one.take()) == ["2", "3"]
        for _ in range(80):
            await clock.advance(1)
        assert running.broker.popping.retries.made == 4  # those just taken were not acknowledged
        assert sorted(message.body for message in await one.take()) == ["2", "3"]
