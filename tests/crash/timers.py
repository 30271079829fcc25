"""Kill a broker around its timer: whatever was parked comes, at its time or as soon as somebody serves.

Moments are 50 ms, the window a second, so that lives of a quarter of a second see messages entered, rolled,
delivered and taken back. A kill may deliver again what was not yet noted: that is counted.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kerolox.protocol.codes import RequestCode
from kerolox.protocol.headers.send import RecallRequest
from kerolox.protocol.properties import unpack

from . import lives
from .nursery import Nursery

DELAY_MS_MAX = 2500


class Life(lives.Life):
    topic = "killed-timers"
    settings = {
        "timer_precision_ms": 50,
        "timer_roll_slots": 20,
        "timer_flush_ms": 40,
        "timer_log_file_bytes": 52 * 50 + 16,
        "recall": True,
    }

    async def send(self, numbers: Iterator[int]) -> None:
        for number in numbers:
            delay_ms = int(self.chance.triangular(1, DELAY_MS_MAX, 60))
            due_ms = self.broker.clock.wall_ms() + delay_ms
            answer = await self.send_one(number, {"TIMER_DELIVER_MS": str(due_ms)})
            if number % 10 == 0 and delay_ms > 300:
                self.tell(f"recalling {number}")
                recall = RecallRequest(topic=self.topic, recall_handle=answer.fields["recallHandle"])
                if (await self.dialer.call(self.address, RequestCode.RECALL_MESSAGE, recall)).code == 0:
                    self.tell(f"recalled {number}")
            else:
                self.tell(f"parked {number}")

    async def wait_for_ends(self) -> None:
        timers = self.broker.later.timers
        while timers.arrivals.behind or timers.files.wheel.first() is not None:  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    async def arrived(self) -> dict[int, tuple[int, ...]]:
        """How often each came, and by how much too early."""
        found: Counter[int] = Counter()
        early: Counter[int] = Counter()
        async for number, message in self.messages():
            found[number] += 1
            properties = unpack(message.packed_properties)
            # Not the store time: it is that of the first message written together with this one.
            came_ms = int(properties.get("TIMER_DEQUEUE_MS", properties["TIMER_DELIVER_MS"]))
            early[number] = max(early[number], int(properties["TIMER_DELIVER_MS"]) - came_ms)
        return {number: (count, early[number]) for number, count in found.items()}


@dataclass
class Tally(lives.Tally):
    recalled: int = 0
    recalled_in_vain: int = 0  # due before the marker was seen

    def dump(self) -> dict[str, Any]:
        return {
            **super().dump(),
            "recalls_acknowledged": self.recalled,
            "recalled_in_vain": self.recalled_in_vain,
        }


class Killer(lives.ParkedKiller):
    around = "timers"
    operations = 9.5
    time_s = 0.8
    tally_class = Tally
    tally: Tally

    def __init__(self, nursery: Nursery, root: Path, seed: int, tally: Tally | None = None) -> None:
        super().__init__(nursery, root, seed, tally)
        self.recalled: set[int] = set()

    def note(self, lines: list[str]) -> None:
        super().note(lines)
        recalled = lives.numbers_of("recalled", lines)
        self.recalled |= recalled
        self.tally.recalled += len(recalled)

    def judge(self, arrived: dict[int, tuple[int, ...]]) -> None:
        super().judge(arrived)
        self.tally.recalled_in_vain += len(self.recalled & arrived.keys())
        self.recalled.clear()
