"""Virtual time, and processes that can be killed and paused."""

from __future__ import annotations

import asyncio
import time

import pytest

from .loop import HostClock, Process, SimulatedLoop, Stuck
from .world import World, world


def test_an_hour_takes_a_moment() -> None:
    with world(1) as made:
        began_s = time.monotonic()
        made.run(asyncio.sleep(3600))
        assert made.loop.time() == pytest.approx(3600)
        assert time.monotonic() - began_s < 1


def _counting(made: World, process: Process) -> list[float]:
    seen: list[float] = []

    async def count() -> None:
        try:
            while True:
                await asyncio.sleep(1)
                seen.append(made.loop.time())
        finally:
            seen.append(-1)

    made.loop.start(process, count())
    return seen


def test_a_killed_process_never_runs_again_not_even_to_clean_up() -> None:
    with world(1) as made:
        process = Process("p", "10.0.0.1")
        seen = _counting(made, process)
        made.run(asyncio.sleep(3.5))
        made.loop.kill(process)
        made.run(asyncio.sleep(10))
        assert seen == pytest.approx([1, 2, 3])


def test_a_paused_process_goes_on_where_it_was() -> None:
    with world(1) as made:
        process = Process("p", "10.0.0.1")
        seen = _counting(made, process)
        made.run(asyncio.sleep(1.5))
        made.loop.pause(process)
        made.run(asyncio.sleep(10))
        assert seen == pytest.approx([1])
        made.loop.resume(process)
        made.run(asyncio.sleep(0.5))
        assert seen == pytest.approx([1, 11.5])


def test_threads_are_steps_of_their_process() -> None:
    with world(1) as made:
        process = Process("p", "10.0.0.1")
        seen: list[str] = []

        async def work() -> None:
            seen.append(await asyncio.to_thread(lambda: "done"))
            await asyncio.to_thread(seen.append, "later")

        made.loop.start(process, work())
        made.run(asyncio.sleep(0.0))
        assert not seen
        made.run(asyncio.sleep(1))
        assert seen == ["done", "later"]
        made.loop.start(process, work())
        made.run(asyncio.sleep(0.0))
        made.loop.kill(process)
        made.run(asyncio.sleep(1))
        assert seen == ["done", "later"]


def test_a_clock_that_runs_fast_fires_early() -> None:
    with world(1) as made:
        fast = HostClock(made.loop, rate=2.0, began_s=5.0)
        wall_ms = fast.wall_ms()
        made.run(fast.sleep(10))
        assert made.loop.time() == pytest.approx(5)
        assert fast.monotonic_s() == pytest.approx(15)
        assert fast.wall_ms() - wall_ms == pytest.approx(10_000)
        fast.set_wall(-60_000)
        assert fast.wall_ms() < wall_ms


def test_nothing_left_to_happen_is_an_error() -> None:
    loop = SimulatedLoop(0)
    with pytest.raises(Stuck):
        loop.run_until_complete(_never())
    loop.close()


async def _never() -> None:
    await asyncio.get_running_loop().create_future()
