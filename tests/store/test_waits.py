"""The list of writes that wait for an offset."""

from __future__ import annotations

import asyncio

from kerolox.store.log.safe import Safe
from kerolox.store.log.waits import Waits
from kerolox.testing.clock import ManualClock

LIMIT_S = 3.0


class List:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.waits = Waits(self.clock, lambda: LIMIT_S, Safe.FLUSH_TIMEOUT)
        self.told: list[tuple[int, Safe]] = []

    def add(self, *ends: int) -> None:
        for end in ends:
            self.waits.add(end, lambda how, end=end: self.told.append((end, how)))


async def test_each_is_told_once_and_in_order() -> None:
    one = List()
    one.add(10, 20, 20, 30)
    assert one.waits.first == 10
    one.waits.reach(5)
    assert one.told == []
    one.waits.reach(20)
    assert one.told == [(10, Safe.YES), (20, Safe.YES), (20, Safe.YES)]
    one.waits.reach(20)
    one.waits.reach(40)
    assert one.told[3:] == [(30, Safe.YES)]
    assert not one.waits


async def test_one_timer_for_all() -> None:
    one = List()
    one.add(10)
    await one.clock.advance(2)
    one.add(20)
    await one.clock.advance(1)
    assert one.told == [(10, Safe.FLUSH_TIMEOUT)]
    await one.clock.advance(1.9)
    assert len(one.told) == 1
    await one.clock.advance(0.1)
    assert one.told[1:] == [(20, Safe.FLUSH_TIMEOUT)]
    one.add(30)  # the timer begins anew
    await one.clock.advance(LIMIT_S)
    assert one.told[2:] == [(30, Safe.FLUSH_TIMEOUT)]


async def test_a_cut_takes_what_lies_behind_it() -> None:
    one = List()
    one.add(10, 20, 30)
    one.waits.cut(20)
    assert one.told == [(30, Safe.CUT)]
    one.waits.reach(20)
    assert one.told[1:] == [(10, Safe.YES), (20, Safe.YES)]


async def test_a_callback_may_wait_again() -> None:
    one = List()

    def again(how: Safe) -> None:
        one.told.append((0, how))
        one.add(10)

    for event, how in (
        (lambda: one.waits.reach(10), Safe.YES),
        (lambda: one.waits.cut(0), Safe.CUT),
        (lambda: one.waits.end(Safe.FAILED), Safe.FAILED),
    ):
        one.told.clear()
        one.waits.add(10, again)
        event()
        assert one.told == [(0, how)]
        one.waits.reach(10)
        assert one.told[1:] == [(10, Safe.YES)]


async def test_idle_and_closed() -> None:
    one = List()
    await one.waits.idle()
    one.add(10, 20)
    idle = asyncio.ensure_future(one.waits.idle())
    one.waits.reach(10)
    await asyncio.sleep(0)
    assert not idle.done()
    one.waits.close(Safe.REPLICA_TIMEOUT)
    await idle
    assert one.told[1:] == [(20, Safe.REPLICA_TIMEOUT)]
    await one.clock.advance(2 * LIMIT_S)
    assert len(one.told) == 2
