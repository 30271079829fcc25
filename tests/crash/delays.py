"""Kill a broker around its delay levels: what was parked comes, none too early, and few of it twice.

The clock runs twenty times as fast, so that lives of a quarter of a second see levels of seconds come due.
What a kill finds between the write of delivered messages and the note of it comes twice: it is counted, and
must be of one write.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from typing import Any

from kerolox.clock import Clock, TimerHandle
from kerolox.protocol.reserved import SCHEDULE_TOPIC
from kerolox.store.delay_table import parse_levels

from . import lives
from .verify import Violation

FILE_BYTES = lives.SMALL["commit_log_file_bytes"]
LEVELS = "1s 2s 5s 20s"
DELAYS_MS = parse_levels(LEVELS)
FASTER = 20


class FastClock(Clock):
    """Every hour is three minutes."""

    def wall_ms(self) -> int:
        return time.time_ns() * FASTER // 1_000_000

    def monotonic_s(self) -> float:
        return time.monotonic() * FASTER

    def call_later(self, delay_s: float, callback: Callable[[], object]) -> TimerHandle:
        return super().call_later(delay_s / FASTER, callback)

    async def sleep(self, delay_s: float) -> None:
        await super().sleep(delay_s / FASTER)


def level_of(number: int) -> int:
    return number % len(DELAYS_MS) + 1


class Life(lives.Life):
    topic = "killed-delays"
    settings = {"timer_wheel": False, "delay_levels": LEVELS}

    def __init__(self, plan: dict[str, Any], pipe: int) -> None:
        super().__init__(plan, pipe, clock=FastClock())

    async def send(self, numbers: Iterator[int]) -> None:
        for number in numbers:
            await self.send_one(number, {"DELAY": str(level_of(number))})
            self.tell(f"parked {number}")

    async def wait_for_ends(self) -> None:
        store = self.broker.store
        for level in self.broker.later.delays.levels:
            while level.next_offset < store.queues.max_offset(SCHEDULE_TOPIC, level.queue_id):  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    async def arrived(self) -> dict[int, tuple[int, ...]]:
        """How often each came, by how much too early, and of how many writes the repetition was part that
        it came with."""
        count: Counter[int] = Counter()
        early: Counter[int] = Counter()
        wide: Counter[int] = Counter()
        written: dict[int, tuple[int, int]] = {}  # of its last copy: where it lies, and its store time
        repeating: dict[int, list[tuple[int, tuple[int, int]]]] = defaultdict(list)  # of a level

        def end_of(run: list[tuple[int, tuple[int, int]]]) -> None:
            for number, _ in run:
                wide[number] = max(wide[number], writes_of([place for _, place in run]))
            run.clear()

        async for number, message in self.messages():
            level = level_of(number)
            count[number] += 1
            due_ms = message.born_timestamp + DELAYS_MS[level - 1]
            early[number] = max(early[number], due_ms - message.store_timestamp)
            if number in written:
                repeating[level].append((number, written[number]))
            else:
                end_of(repeating[level])
            written[number] = (message.physical_offset, message.store_timestamp)
        for run in repeating.values():
            end_of(run)
        return {number: (times, early[number], wide[number]) for number, times in count.items()}


def writes_of(places: list[tuple[int, int]]) -> int:
    """By how many writes these were delivered. One write has one store time, and a second one where it goes
    over into the next file of the log."""
    places = sorted(places)
    return 1 + sum(
        later[1] != earlier[1] and later[0] // FILE_BYTES == earlier[0] // FILE_BYTES
        for earlier, later in itertools.pairwise(places)
    )


class Killer(lives.ParkedKiller):
    around = "delays"
    operations = 9.5
    time_s = 0.5

    def judge(self, arrived: dict[int, tuple[int, ...]]) -> None:
        super().judge(arrived)
        for number, (_, _, writes) in arrived.items():
            if writes > 1:
                raise Violation(f"{number} came again with messages of {writes} writes\n{self.told()}")
