from __future__ import annotations

import asyncio
from itertools import pairwise

from kerolox.clock import Clock, StoreTime
from kerolox.testing.clock import ManualClock


async def test_a_three_day_timer_fires_in_a_millisecond() -> None:
    clock = ManualClock(wall_ms=1_000_000)
    fired: list[int] = []
    clock.call_later(3 * 86400, lambda: fired.append(clock.wall_ms()))
    await clock.advance(3 * 86400 - 1)
    assert fired == []
    await clock.advance(1)
    assert fired == [1_000_000 + 3 * 86400 * 1000]


async def test_timers_fire_in_order_each_at_its_moment() -> None:
    clock = ManualClock()
    start_s = clock.monotonic_s()
    seen: list[tuple[str, float]] = []

    def note(name: str) -> None:
        seen.append((name, clock.monotonic_s() - start_s))
        if name == "first":
            clock.call_later(1, lambda: note("made by first"))

    clock.call_later(5, lambda: note("second"))
    clock.call_later(2, lambda: note("first"))
    clock.call_later(4, lambda: note("never")).cancel()
    await clock.advance(10)
    assert seen == [("first", 2), ("made by first", 3), ("second", 5)]
    assert clock.pending == 0


async def test_beats_keep_their_moments_but_not_all_of_them() -> None:
    clock = ManualClock()
    start_s = clock.monotonic_s()
    beats: list[float] = []
    moments: list[float] = []

    def beat() -> None:
        beats.append(clock.monotonic_s() - start_s)
        clock.beat(7, beat)

    clock.beat(7, beat)
    for moment in (10, 1000, 3000):
        clock.call_later(moment, lambda: moments.append(clock.monotonic_s() - start_s))
    await clock.advance(30)
    assert beats == [7, 14, 21, 28], "a short move leaves none out"
    beats.clear()
    await clock.advance(3600 - 30)
    assert 10 <= len(beats) <= 12
    assert all(round(moment) % 7 == 0 for moment in beats)
    assert round(beats[-1]) == 3598, "the last one always"
    assert moments == [10, 1000, 3000], "what is due at a moment comes at that moment"
    beats.clear()
    await clock.advance(86400)
    gaps = [after - before for before, after in pairwise(beats)]
    assert max(gaps) <= 1800
    clock.beat(7, lambda: beats.append(0)).cancel()
    beats.clear()
    await clock.advance(100)
    assert 0 not in beats


async def test_sleepers_wake_and_can_be_cancelled() -> None:
    clock = ManualClock()
    woken = asyncio.create_task(clock.sleep(10))
    cancelled = asyncio.create_task(clock.sleep(10))
    await asyncio.sleep(0)
    cancelled.cancel()
    await clock.advance(10)
    assert woken.done()
    assert cancelled.cancelled()
    assert clock.pending == 0


async def test_store_time_never_runs_backwards() -> None:
    clock = ManualClock(wall_ms=5000)
    time = StoreTime(clock)
    assert time.now_ms() == 5000
    clock.step_wall(-3000)
    assert time.now_ms() == 5000
    clock.step_wall(+4000)
    assert time.now_ms() == 6000
    time.not_before(9000)
    assert time.now_ms() == 9000


async def test_the_system_clock_works() -> None:
    clock = Clock()
    fired = asyncio.Event()
    before_s = clock.monotonic_s()
    clock.call_later(0.01, fired.set)
    await asyncio.wait_for(fired.wait(), 10)
    await clock.sleep(0.001)
    assert clock.monotonic_s() > before_s
    assert clock.wall_ms() > 1_700_000_000_000


async def test_what_waits_for_a_moment_that_rounding_left_behind_does_not_wait_for_ever() -> None:
    """Many small steps add up to a little less than the sum of a deadline."""
    clock = ManualClock()
    deadline_s = clock.monotonic_s() + 0.1 * 1.1 + 0.7
    calls: list[float] = []

    def look() -> None:
        calls.append(clock.monotonic_s())
        if clock.monotonic_s() < deadline_s and len(calls) < 100:
            clock.call_later(deadline_s - clock.monotonic_s(), look)

    clock.call_later(deadline_s - clock.monotonic_s(), look)
    for _ in range(81):
        await clock.advance(0.01)
    assert len(calls) == 1
