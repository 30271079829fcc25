"""Kill a writing store at random moments, look at what is left, go on with it."""

from __future__ import annotations

import asyncio
import os
import random
import select
import shutil
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from .messages import BLOCK
from .nursery import Child, Nursery
from .verify import Place, Verified, Violation, verify

LIFE_S = 30.0  # a writer that takes longer hangs
BLOCKS_PER_ROUND = 1 << 20
WHEN = ("opening", "writing", "writing", "closing", "operation", "operation", "operation")


@dataclass
class Tally:
    """What a number of kills came to."""

    kills: Counter[str] = field(default_factory=Counter)  # by moment
    too_late: int = 0  # the writer had closed its store before
    verifications: int = 0
    crashed_opens: int = 0
    acknowledged: int = 0
    looked_for: int = 0  # acknowledged messages, once for each verification that had to find them

    @property
    def total(self) -> int:
        return sum(self.kills.values())


class Killer:
    """One directory, one mode, one seed: rounds of writing, killing and looking."""

    def __init__(
        self, nursery: Nursery, root: Path, mode: str, seed: int, tally: Tally | None = None
    ) -> None:
        self.nursery = nursery
        self.root = root
        self.mode = mode
        self.seed = seed
        self.tally = Tally() if tally is None else tally
        self.chance = random.Random(f"{mode}-{seed}")
        self.acked: dict[int, Place] = {}
        self.round = 0
        self.story: list[str] = []

    def run(self, kills: int) -> None:
        """That many kills. After most of them the store is verified, after the last always."""
        goal = self.tally.total + kills
        while self.tally.total < goal:
            self.kill_one()
            if self.tally.total >= goal or self.chance.random() < 0.7:
                self.verify()

    def kill_one(self) -> None:
        chance = self.chance
        self.round += 1
        when = chance.choice(WHEN)
        plan = {
            "root": str(self.root),
            "mode": self.mode,
            "seed": chance.randrange(1 << 30),
            "first_block": self.round * BLOCKS_PER_ROUND,
            "blocks": chance.randrange(1, 12) if when == "closing" else 1_000,
        }
        if when == "operation":
            # As many early ones, in recovery and the first files, as late ones.
            at = int(2 ** chance.uniform(0, 9))
            plan["die"] = {
                "at": at,
                "how": chance.choice(("before", "torn", "after")),
                "part": chance.random(),
            }
            if chance.random() < 0.3:
                plan["blocks"] = chance.randrange(1, 12)
        delay_s = chance.uniform(0, {"opening": 0.01, "writing": 0.08, "closing": 0.015}.get(when, 0.0))
        self.story.append(f"round {self.round}: {when} {delay_s * 1000:.1f} ms {plan}")
        with self.nursery.write(plan) as child:
            lines = self._listen(child, None if when == "operation" else when, delay_s)
            status = child.wait()
        if status not in (0, -9):
            raise Violation(f"the writer ended with {status}\n{self.told()}")
        self._count(lines, when, status)

    def _listen(self, child: Child, when: str | None, delay_s: float) -> list[str]:
        """What the writer told until its end; killed ``delay_s`` after it told that it is so far."""
        sign = {"opening": b"opening\n", "writing": b"open ", "closing": b"closing\n"}.get(when or "", b"\0")
        data = b""
        kill_at: float | None = None
        deadline = time.monotonic() + LIFE_S
        while True:
            now = time.monotonic()
            if kill_at is not None and now >= kill_at:
                child.kill()
                kill_at = None
            if now > deadline:
                raise Violation(f"the writer hangs\n{self.told()}")
            wait_s = deadline - now if kill_at is None else kill_at - now
            if not select.select([child.pipe], [], [], wait_s)[0]:
                continue
            piece = os.read(child.pipe, 1 << 20)
            if not piece:
                return data.decode().splitlines() if data.endswith(b"\n") else data.decode().splitlines()[:-1]
            before, data = len(data), data + piece
            if sign in data[max(0, before - 10) :] and kill_at is None:
                kill_at = time.monotonic() + delay_s

    def _count(self, lines: list[str], when: str, status: int) -> None:
        for line in lines:
            if line.startswith("ack "):
                number, physical, offset, size = map(int, line.split()[1:])
                self.acked[number] = (physical, offset, size)
                self.tally.acknowledged += 1
        if status == 0:
            self.tally.too_late += 1
        else:
            last = lines[-1].split()[0] if lines else "starting"
            self.tally.kills[f"{when}, after {last}"] += 1
        self.story.append(f"  {status}, {len(lines)} lines, last {lines[-1] if lines else None}")

    def verify(self) -> Verified:
        try:
            seen = asyncio.run(verify(str(self.root), self.mode, self.acked))
        except Exception as error:
            raise Violation(f"{type(error).__name__}: {error}\n{self.told()}") from error
        self.tally.verifications += 1
        self.tally.crashed_opens += seen.crashed
        self.tally.looked_for += len(self.acked)
        self.story.append(f"  verified {seen}")
        return seen

    def told(self) -> str:
        return f"mode {self.mode} seed {self.seed} in {self.root}:\n" + "\n".join(self.story[-12:])

    def clear(self) -> None:
        shutil.rmtree(self.root, ignore_errors=True)


assert BLOCKS_PER_ROUND * BLOCK < 1 << 40
