"""A follower that leads when its leader is gone: what waited comes, and what was delivered not again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from kerolox import Message, Producer
from kerolox.store.message_store import MessageStore
from kerolox.testing.broker import running_broker
from kerolox.testing.clock import ManualClock
from kerolox.testing.nameserver import running_nameserver


async def pass_until(clock: ManualClock, reached: Callable[[], bool], most_s: float) -> None:
    """Let time pass until something has come about."""
    for _ in range(int(most_s * 4)):
        if reached():
            return
        await clock.advance(0.25)
        await asyncio.sleep(0.02)
    assert reached()


async def everything(store: MessageStore, topic: str) -> bytes:
    got: list[bytes] = []
    offset = 0
    while offset < store.queues.max_offset(topic, 0):
        read = await store.queues.read(topic, 0, offset)
        got += read.parts
        offset = read.next_offset
    return b"".join(map(bytes, got))


async def test_what_waits_comes_once_after_a_promotion(tmp_path: Path) -> None:
    """Of delayed and timed messages some were delivered by the leader, and the follower has heard of it; the
    others come from the follower, when it leads and they are due."""
    clock = ManualClock()
    async with (
        running_nameserver(directory=tmp_path / "n") as nameserver,
        running_broker(directory=tmp_path / "a", nameserver=nameserver, clock=clock) as one,
        running_broker(
            directory=tmp_path / "b", nameserver=nameserver, clock=clock, brokerRole="SLAVE", brokerId=1
        ) as two,
    ):
        leader, follower = one.broker, two.broker
        await one.create_topic("T", queues=1)
        async with Producer(one.nameserver_address, group="p") as producer:
            for number in range(5):
                await producer.send(Message("T", b"delay-done-%d." % number, delay_level=1))
                await producer.send(
                    Message("T", b"timer-done-%d." % number, deliver_at=clock.wall_ms() / 1000 + 2)
                )
            await pass_until(clock, lambda: leader.store.queues.max_offset("T", 0) == 10, 20)
            for number in range(5):
                await producer.send(Message("T", b"delay-waits-%d." % number, delay_level=4))
                await producer.send(
                    Message("T", b"timer-waits-%d." % number, deliver_at=clock.wall_ms() / 1000 + 30)
                )
        done_ms = clock.wall_ms()
        await pass_until(clock, lambda: follower.later.timers.read_ms >= done_ms, 20)
        for _ in range(2):  # one may be under way
            before = follower.copies.copy.passes
            follower.copies.copy.copy_now()
            await pass_until(clock, lambda before=before: follower.copies.copy.passes > before, 60)
        await pass_until(clock, lambda: follower.store.log.max_offset == leader.store.log.max_offset, 10)
        assert leader.store.queues.max_offset("T", 0) == 10
        stopping = asyncio.ensure_future(one.stop())
        await pass_until(clock, stopping.done, 60)
        await follower.leadership.lead()
        await pass_until(clock, lambda: follower.store.queues.max_offset("T", 0) >= 20, 60)
        for _ in range(20):  # what came twice would be here
            await clock.advance(0.5)
        got = await everything(follower.store, "T")
        for kind in (b"delay-done", b"delay-waits", b"timer-done", b"timer-waits"):
            assert [got.count(b"%b-%d." % (kind, number)) for number in range(5)] == [1] * 5, kind
