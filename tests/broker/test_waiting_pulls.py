"""Held pulls: who is woken, when, and at what cost."""

from __future__ import annotations

import asyncio

from kerolox.broker.consume.waiting_pulls import WAKE_SLICE, HeldPull, PullFilter, WaitingPulls
from kerolox.protocol.record_scan import Entry
from kerolox.testing.clock import ManualClock


class Stage:
    def __init__(self, held_max: int = 100_000) -> None:
        self.clock = ManualClock()
        self.waiting = WaitingPulls(self.clock, held_max=held_max)
        self.woken: list[str] = []

    def hold(
        self,
        name: str,
        queue: tuple[str, int] = ("T", 0),
        offset: int = 0,
        after_s: float = 15.0,
        wants: PullFilter | None = None,
    ) -> bool:
        deadline_s = self.clock.monotonic_s() + after_s
        return self.waiting.hold(HeldPull(queue, offset, deadline_s, lambda: self.woken.append(name), wants))


def entry(offset: int = 0, topic: str = "T", queue_id: int = 0, properties: bytes = b"") -> Entry:
    return (100, 0, queue_id, offset, offset * 100, 0, 1000, topic.encode(), properties)


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_message_wakes_the_pulls_of_its_queue_once() -> None:
    stage = Stage()
    stage.hold("a")
    stage.hold("b", ("T", 1))
    stage.hold("c", ("U", 0))
    stage.waiting.arrived([entry(0), entry(1)])
    assert stage.woken == []  # not inside the dispatch
    await settle()
    assert stage.woken == ["a"]
    stage.waiting.arrived([entry(2)])
    await stage.clock.advance(60)
    assert sorted(stage.woken) == ["a", "b", "c"]
    assert stage.waiting.held == 0


async def test_a_message_before_the_wanted_offset_wakes_nobody() -> None:
    stage = Stage()
    stage.hold("a", offset=5)
    stage.waiting.arrived([entry(4)])
    await settle()
    assert stage.woken == []
    stage.waiting.arrived([entry(5)])
    await settle()
    assert stage.woken == ["a"]


async def test_a_filter_is_asked_about_the_properties() -> None:
    stage = Stage()
    stage.hold("a", wants=lambda properties: properties == b"yes")
    stage.hold("b")
    stage.waiting.arrived([entry(0, properties=b"no")])
    await settle()
    assert stage.woken == ["b"]
    stage.waiting.arrived([entry(1, properties=b"no"), entry(2, properties=b"yes")])
    await settle()
    assert stage.woken == ["b", "a"]


async def test_deadlines_come_in_their_order_with_one_timer() -> None:
    stage = Stage()
    stage.hold("late", after_s=20)
    stage.hold("soon", after_s=5)
    stage.hold("middle", after_s=10)
    assert stage.clock.pending == 1
    await stage.clock.advance(4.9)
    assert stage.woken == []
    await stage.clock.advance(0.2)
    assert stage.woken == ["soon"]
    assert stage.clock.pending == 1
    await stage.clock.advance(30)
    assert stage.woken == ["soon", "middle", "late"]
    assert (stage.clock.pending, stage.waiting.held) == (0, 0)


async def test_pulls_that_were_woken_do_not_pile_up_behind_their_deadlines() -> None:
    # A busy queue holds and wakes the same pull thousands of times before the first deadline comes.
    stage = Stage()
    for number in range(5000):
        stage.hold("a", offset=number)
        stage.waiting.arrived([entry(number)])
        await asyncio.sleep(0)
    assert len(stage.woken) == 5000
    assert stage.waiting.held == 0
    assert len(stage.waiting._deadlines) < 2500


async def test_a_crowd_is_woken_in_slices() -> None:
    stage = Stage()
    for number in range(WAKE_SLICE * 2 + 10):
        stage.hold(str(number))
    stage.waiting.arrived([entry()])
    await asyncio.sleep(0)
    assert len(stage.woken) == WAKE_SLICE
    await asyncio.sleep(0)
    assert len(stage.woken) == WAKE_SLICE * 2
    await asyncio.sleep(0)
    assert stage.woken == [str(number) for number in range(WAKE_SLICE * 2 + 10)]


async def test_one_that_fails_does_not_keep_the_others_asleep() -> None:
    stage = Stage()

    def fail() -> None:
        raise RuntimeError("on purpose")

    stage.waiting.hold(HeldPull(("T", 0), 0, stage.clock.monotonic_s() + 1, fail))
    stage.hold("b")
    stage.waiting.arrived([entry()])
    await settle()
    stage.hold("c", offset=1)
    stage.waiting.arrived([entry(1)])
    await settle()
    assert stage.woken == ["b", "c"]


async def test_there_is_a_limit() -> None:
    stage = Stage(held_max=2)
    assert [stage.hold(name) for name in "abc"] == [True, True, False]
    stage.waiting.arrived([entry()])
    assert stage.hold("d", offset=1)


async def test_a_queue_that_changed_and_a_broker_that_stops() -> None:
    stage = Stage()
    stage.hold("a")
    stage.hold("b", ("T", 1))
    stage.waiting.wake_queue("T", 0)
    await settle()
    assert stage.woken == ["a"]
    stage.waiting.wake_all()
    await settle()
    assert stage.woken == ["a", "b"]
    stage.hold("c")
    stage.waiting.close()
    await stage.clock.advance(60)
    assert stage.woken == ["a", "b"]


async def test_a_connection_holds_so_many_and_leaves_none_behind() -> None:
    clock = ManualClock()
    waiting = WaitingPulls(clock, held_of_one_max=3)
    woken: list[str] = []

    def hold(owner: str, queue_id: int) -> bool:
        pull = HeldPull(
            ("T", queue_id), 0, clock.monotonic_s() + 15, lambda: woken.append(owner), owner=owner
        )
        return waiting.hold(pull)

    assert [hold("greedy", number) for number in range(4)] == [True, True, True, False]
    assert hold("other", 0) is True
    waiting.forget("greedy")
    assert waiting.held == 1
    waiting.arrived([entry(queue_id=0), entry(queue_id=1)])
    await settle()
    assert woken == ["other"]
    assert hold("greedy", 0) is True  # it came again
    await clock.advance(60)
    assert woken == ["other", "greedy"]
    assert waiting.held == 0
