"""Waits for messages: which of them end, when, and at what cost."""

from __future__ import annotations

import asyncio

from kerolox.broker.consume.message_waits import (
    ANY_QUEUE,
    WAKE_SLICE,
    MessageWaits,
    PropertyFilter,
    Wait,
    WaitPoint,
)
from kerolox.protocol.record_scan import Entry
from kerolox.testing.clock import ManualClock


class Stage:
    def __init__(self, held_max: int = 100_000) -> None:
        self.clock = ManualClock()
        self.waits = MessageWaits(self.clock, held_max=held_max)
        self.woken: list[str] = []

    def hold(
        self,
        name: str,
        queue: tuple[str, int] = ("T", 0),
        offset: int = 0,
        after_s: float = 15.0,
        wants: PropertyFilter | None = None,
        share: str | None = None,
    ) -> bool:
        return self.hold_at(name, WaitPoint(*queue, offset), after_s=after_s, wants=wants, share=share)

    def hold_at(
        self,
        name: str,
        *points: WaitPoint,
        after_s: float = 15.0,
        wants: PropertyFilter | None = None,
        caller: str | None = None,
        share: str | None = None,
    ) -> bool:
        deadline_s = self.clock.monotonic_s() + after_s
        resume = lambda: self.woken.append(name)  # noqa: E731
        return self.waits.add(Wait(points, deadline_s, resume, wants, caller, share))

    def assert_empty(self) -> None:
        """No table keeps a trace of a wait that has ended."""
        assert self.waits.held == 0
        assert not self.waits._lines
        assert not any(self.waits._by_caller.values())


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
    stage.waits.arrived([entry(0), entry(1)])
    assert stage.woken == []  # not inside the dispatch
    await settle()
    assert stage.woken == ["a"]
    stage.waits.arrived([entry(2)])
    await stage.clock.advance(60)
    assert sorted(stage.woken) == ["a", "b", "c"]
    assert stage.waits.held == 0


async def test_a_message_before_the_wanted_offset_wakes_nobody() -> None:
    stage = Stage()
    stage.hold("a", offset=5)
    stage.waits.arrived([entry(4)])
    await settle()
    assert stage.woken == []
    stage.waits.arrived([entry(5)])
    await settle()
    assert stage.woken == ["a"]


async def test_a_filter_is_asked_about_the_properties() -> None:
    stage = Stage()
    stage.hold("a", wants=lambda properties: properties == b"yes")
    stage.hold("b")
    stage.waits.arrived([entry(0, properties=b"no")])
    await settle()
    assert stage.woken == ["b"]
    stage.waits.arrived([entry(1, properties=b"no"), entry(2, properties=b"yes")])
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
    assert (stage.clock.pending, stage.waits.held) == (0, 0)


async def test_pulls_that_were_woken_do_not_pile_up_behind_their_deadlines() -> None:
    # A busy queue holds and wakes the same pull thousands of times before the first deadline comes.
    stage = Stage()
    for number in range(5000):
        stage.hold("a", offset=number)
        stage.waits.arrived([entry(number)])
        await asyncio.sleep(0)
    assert len(stage.woken) == 5000
    assert stage.waits.held == 0
    assert len(stage.waits._deadlines) < 2500


async def test_a_crowd_is_woken_in_slices() -> None:
    stage = Stage()
    for number in range(WAKE_SLICE * 2 + 10):
        stage.hold(str(number))
    stage.waits.arrived([entry()])
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

    stage.waits.add(Wait((WaitPoint("T", 0),), stage.clock.monotonic_s() + 1, fail))
    stage.hold("b")
    stage.waits.arrived([entry()])
    await settle()
    stage.hold("c", offset=1)
    stage.waits.arrived([entry(1)])
    await settle()
    assert stage.woken == ["b", "c"]


async def test_there_is_a_limit() -> None:
    stage = Stage(held_max=2)
    assert [stage.hold(name) for name in "abc"] == [True, True, False]
    stage.waits.arrived([entry()])
    assert stage.hold("d", offset=1)


async def test_a_queue_that_changed_and_a_broker_that_stops() -> None:
    stage = Stage()
    stage.hold("a")
    stage.hold("b", ("T", 1))
    stage.waits.wake_queue("T", 0)
    await settle()
    assert stage.woken == ["a"]
    stage.waits.wake_all()
    await settle()
    assert stage.woken == ["a", "b"]
    stage.hold("c")
    stage.waits.close()
    await stage.clock.advance(60)
    assert stage.woken == ["a", "b"]


async def test_a_connection_holds_so_many_and_leaves_none_behind() -> None:
    stage = Stage()
    stage.waits.held_of_one_max = 3

    def hold(caller: str, queue_id: int) -> bool:
        return stage.hold_at(caller, WaitPoint("T", queue_id), caller=caller)

    assert [hold("greedy", number) for number in range(4)] == [True, True, True, False]
    assert hold("other", 0) is True
    stage.waits.forget("greedy")
    assert stage.waits.held == 1
    stage.waits.arrived([entry(queue_id=0), entry(queue_id=1)])
    await settle()
    assert stage.woken == ["other"]
    assert hold("greedy", 0) is True  # it came again
    await stage.clock.advance(60)
    assert stage.woken == ["other", "greedy"]
    stage.assert_empty()


# --- several queues and topics ---------------------------------------------------------------------------

MANY = (WaitPoint("T", 0, 5), WaitPoint("T", 1, 0), WaitPoint("%RETRY%g_T", ANY_QUEUE))


async def test_the_first_of_many_queues_ends_a_wait_and_the_others_forget_it() -> None:
    for topic, queue_id, offset in (("T", 0, 5), ("T", 1, 0), ("%RETRY%g_T", 7, 0)):
        stage = Stage()
        stage.hold_at("a", *MANY)
        stage.waits.arrived([entry(4), entry(0, queue_id=2), entry(0, "U")])
        await settle()
        assert stage.woken == []
        stage.waits.arrived([entry(offset, topic, queue_id), entry(9), entry(9, queue_id=1)])
        stage.waits.arrived([entry(10), entry(10, "%RETRY%g_T")])
        await stage.clock.advance(60)
        assert stage.woken == ["a"]
        stage.assert_empty()


async def test_a_wait_at_many_queues_ends_at_its_deadline_or_with_its_caller() -> None:
    stage = Stage()
    stage.hold_at("a", *MANY, after_s=5)
    stage.hold_at("b", *MANY, caller="gone")
    stage.waits.forget("gone")
    assert stage.waits.held == 1
    await stage.clock.advance(5)
    assert stage.woken == ["a"]
    stage.assert_empty()
    stage.waits.arrived([entry(9)])
    await stage.clock.advance(60)
    assert stage.woken == ["a"]


async def test_a_queue_that_was_reset_ends_waits_for_its_whole_topic() -> None:
    stage = Stage()
    stage.hold_at("a", *MANY)
    stage.hold_at("b", WaitPoint("T", ANY_QUEUE), share="g")
    stage.waits.wake_queue("T", 3)
    await settle()
    assert stage.woken == ["b"]
    stage.waits.wake_queue("%RETRY%g_T", 0)
    await settle()
    assert stage.woken == ["b", "a"]
    stage.assert_empty()


# --- waits that share messages ---------------------------------------------------------------------------


async def test_a_message_ends_one_wait_of_each_share_the_oldest_first() -> None:
    stage = Stage()
    for name in ("g1", "g2", "g3"):
        stage.hold(name, share="g")
    stage.hold("h1", share="h")
    stage.hold("pull")
    assert stage.waits.count("T", 0, "g") == 3
    stage.waits.arrived([entry(0)])
    await settle()
    assert sorted(stage.woken) == ["g1", "h1", "pull"]
    assert stage.waits.count("T", 0, "g") == 2
    stage.waits.arrived([entry(1), entry(2), entry(3)])
    await settle()
    assert stage.woken[3:] == ["g2", "g3"]
    assert stage.waits.count("T", 0, "g") == 0
    stage.assert_empty()


async def test_a_message_ends_one_wait_at_its_queue_and_one_at_its_topic() -> None:
    stage = Stage()
    for name, queue_id in (("q1", 0), ("q2", 0), ("any1", ANY_QUEUE), ("any2", ANY_QUEUE)):
        stage.hold(name, ("T", queue_id), share="g")
    stage.waits.arrived([entry()])
    await settle()
    assert stage.woken == ["q1", "any1"]


async def test_a_message_that_a_filter_rejects_is_left_to_the_next_wait() -> None:
    stage = Stage()
    stage.hold("a", wants=lambda properties: properties == b"a", share="g")
    stage.hold("b", wants=lambda properties: properties == b"b", share="g")
    stage.waits.arrived([entry(0, properties=b"b")])
    await settle()
    assert stage.woken == ["b"]


async def test_the_next_wait_is_woken_by_hand() -> None:
    stage = Stage()
    stage.hold("a", share="g")
    stage.hold("b", share="g")
    stage.hold("pull")
    stage.waits.wake_next("T", 0, "g")
    stage.waits.wake_next("T", ANY_QUEUE, "g")
    stage.waits.wake_next("U", 0, "g")
    await settle()
    assert stage.woken == ["a"]
