"""Connections take turns, those of one source address in one line; a round takes no longer for many."""

from __future__ import annotations

import asyncio

import pytest

from kerolox.net.turns import PASS_S_MAX, ROUND_S, Turns
from kerolox.testing.clock import ManualClock

from .conftest import until


class Watch(ManualClock):
    """A clock on which work takes time."""

    def work(self, seconds: float) -> None:
        self._move_to(self._monotonic_s + seconds)


class Busy:
    """A connection that has so many turns' worth of frames."""

    def __init__(self, turns: Turns, clock: Watch, source: str, left: int, seen: list[Busy]) -> None:
        self.source = source
        self.left = left
        self._turns = turns
        self._clock = clock
        self._seen = seen

    def take_turn(self) -> None:
        self._clock.work(self._turns.turn_s_max)
        self._seen.append(self)
        self.left -= 1
        if self.left:
            self._turns.add(self)

    def waited(self) -> None:
        self._seen.append(self)


async def test_an_address_with_many_connections_delays_itself() -> None:
    clock, seen = Watch(), list[Busy]()
    turns = Turns(clock)
    for _ in range(1000):
        turns.add(Busy(turns, clock, "10.0.0.1", 3, seen))
    turns.add(other := Busy(turns, clock, "10.0.0.2", 5, seen))
    await until(lambda: not other.left)
    assert [holder is other for holder in seen[:10]] == [False, True] * 5


async def test_a_short_request_does_not_wait_behind_long_ones_of_its_address() -> None:
    clock, seen = Watch(), list[Busy]()
    turns = Turns(clock)
    for _ in range(1000):
        turns.add(Busy(turns, clock, "10.0.0.1", 3, seen))
    turns.add(short := Busy(turns, clock, "10.0.0.1", 1, seen), is_short=True)
    await until(lambda: not short.left)
    assert seen.index(short) == 1


async def test_the_loop_reads_after_each_round_however_many_wait() -> None:
    clock, seen = Watch(), list[Busy]()
    turns = Turns(clock)
    for number in range(5000):
        turns.add(Busy(turns, clock, f"10.0.{number % 100}.1", 1, seen))
    rounds = []
    while turns:
        before_s = clock.monotonic_s()
        await asyncio.sleep(0)
        rounds.append(clock.monotonic_s() - before_s)
    assert max(rounds) <= ROUND_S + PASS_S_MAX
    assert len(seen) == 5000
    assert turns.turn_s_max == PASS_S_MAX


async def test_turns_get_shorter_as_connections_become_more() -> None:
    clock = Watch()
    turns = Turns(clock)
    holders = [Busy(turns, clock, "a", 1, []) for _ in range(10_000)]
    for holder in holders[:9]:
        turns.add(holder)
        turns.add(holder)  # once
    assert turns.turn_s_max == pytest.approx(ROUND_S / 10)
    for holder in holders:
        turns.add(holder)
    assert 0 < turns.turn_s_max < PASS_S_MAX
    for holder in holders:
        turns.leave(holder)
    assert len(turns) == 0


async def test_connections_of_an_indebted_address_go_on_one_by_one() -> None:
    clock, seen, paid_back_s = Watch(), list[Busy](), [0.0]
    turns = Turns(clock)

    def wait_s() -> float:
        return max(0.0, paid_back_s[0] - clock.monotonic_s())

    class Costly(Busy):
        def waited(self) -> None:
            super().waited()
            paid_back_s[0] = clock.monotonic_s() + 1

    paid_back_s[0] = clock.monotonic_s() + 1
    first, second, third, fourth = (Costly(turns, clock, "a", 1, seen) for _ in range(4))
    for holder in (first, second, third, fourth):
        turns.wait(holder, wait_s)
    await clock.advance(0.9)
    assert seen == []
    await clock.advance(0.11)
    assert seen == [first]
    turns.leave(second)
    await clock.advance(0.9)
    assert seen == [first]
    await clock.advance(0.11)
    assert seen == [first, third]
    turns.leave(fourth)
    await clock.advance(2.0)
    assert seen == [first, third]
    turns.wait(second, wait_s)  # in a new line
    await clock.advance(0.0)
    assert seen == [first, third, second]
