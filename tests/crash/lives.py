"""A broker and a producer in one process that is killed again and again; then a last life, and a verdict.

What the lives are about (transactions, timers, delay levels) is said by a :class:`Life`, which sends and
tells what was acknowledged, and a :class:`Killer`, which takes notes and judges what arrived.
"""

from __future__ import annotations

import asyncio
import os
import random
import select
import shutil
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from kerolox.broker.broker import Broker
from kerolox.broker.options import BrokerOptions
from kerolox.clock import SYSTEM_CLOCK, Clock
from kerolox.net.dialer import Dialer
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.command import Command
from kerolox.protocol.headers.send import SendRequestV2
from kerolox.protocol.message import StoredMessage
from kerolox.protocol.properties import pack
from kerolox.protocol.record import decode_records
from kerolox.store.disk.files import Files

from .dying import DyingFiles
from .nursery import Nursery
from .verify import Violation

LIFE_S = 60.0
LANES = 4
NUMBERS_PER_ROUND = 1 << 20
SMALL = {
    "bind_address": "127.0.0.1",
    "advertised_host": "127.0.0.1",
    "listen_port": 0,
    "broker_name": "killed",
    "commit_log_file_bytes": 256 * 1024,
    "queue_file_bytes": 20 * 100,
    "index_slots": 100,
    "index_entries": 400,
    "send_wait_ms": 60_000,
}


class Life:
    """One broker with one producer.

    The plan: ``root``, ``seed``, ``first`` and ``count`` of the numbers or ``finish``, and perhaps ``die``.
    """

    topic: ClassVar[str]
    group: ClassVar[str] = "p"
    settings: ClassVar[dict[str, Any]]  # of the broker, beside the small files
    body_bytes_max: ClassVar[int] = 500

    def __init__(self, plan: dict[str, Any], pipe: int, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self.plan = plan
        self.pipe = pipe
        self.clock = clock
        self.chance = random.Random(plan["seed"])
        self.finish = bool(plan.get("finish"))
        self.dialer = Dialer()

    def tell(self, line: str) -> None:
        os.write(self.pipe, line.encode() + b"\n")

    async def run(self) -> None:
        die = self.plan.get("die")
        options = BrokerOptions(store_path=self.plan["root"], **{**SMALL, **self.settings})
        self.tell("opening")
        files = Files() if die is None else DyingFiles(**die)
        async with Broker(options, files=files, clock=self.clock) as broker, self.dialer:
            self.broker = broker
            self.address = broker.address
            await self.begin()
            self.tell("open")
            if self.finish:
                await self.wait_for_ends()
                for number, row in sorted((await self.arrived()).items()):
                    self.tell(f"arrived {number} {' '.join(map(str, row))}")
            else:
                first = int(self.plan["first"])
                numbers = iter(range(first, first + int(self.plan["count"])))
                await asyncio.gather(*(self.send(numbers) for _ in range(LANES)))
            self.tell("closing")
        self.tell("closed")

    async def begin(self) -> None:
        """What the producer does first."""

    async def send(self, numbers: Iterator[int]) -> None:
        """Send one after the other, and tell what was acknowledged."""
        raise NotImplementedError

    async def wait_for_ends(self) -> None:
        """Until nothing is under way any more."""
        raise NotImplementedError

    async def arrived(self) -> dict[int, tuple[int, ...]]:
        """How often each number came, and what else the judge wants to know of it."""
        raise NotImplementedError

    async def send_one(self, number: int, properties: dict[str, str], sys_flag: int = 0) -> Command:
        header = SendRequestV2(
            producer_group=self.group, topic=self.topic, default_topic="TBW102", default_topic_queue_nums=1,
            queue_id=0, sys_flag=sys_flag, born_timestamp=self.broker.clock.wall_ms(), flag=0,
            properties=pack({**properties, "UNIQ_KEY": f"{number:032X}"}).decode(),
        )  # fmt: skip
        body = b"%d" % number + bytes(self.chance.randrange(self.body_bytes_max))
        answer = await self.dialer.call(self.address, RequestCode.SEND_MESSAGE_V2, header, body, timeout_s=30)
        if answer.code != 0:
            raise AssertionError(f"{answer.code} {answer.remark}")
        return answer

    async def messages(self) -> AsyncIterator[tuple[int, StoredMessage]]:
        """What is in the queue, with its numbers."""
        offset, end = 0, self.broker.store.queues.max_offset(self.topic, 0)
        while offset < end:
            read = await self.broker.store.queues.read(self.topic, 0, offset)
            for each in decode_records(b"".join(read.parts)):
                yield int(each.body.split(b"\0")[0]), each
            offset = read.next_offset


@dataclass
class Tally:
    """What a number of kills came to."""

    kills: Counter[str] = field(default_factory=Counter)
    verifications: int = 0
    acknowledged: int = 0
    arrived: int = 0
    twice: int = 0

    @property
    def total(self) -> int:
        return sum(self.kills.values())

    def dump(self) -> dict[str, Any]:
        return {
            "kills": self.total,
            "moments": dict(sorted(self.kills.items())),
            "verifications": self.verifications,
            "acknowledged_messages": self.acknowledged,
            "lost": 0,  # the first one ends the run with an error
            "came_twice": self.twice,
        }


class Killer:
    """One directory, one seed: lives that are killed, and looks at what is left."""

    around: ClassVar[str]  # the name of the module with the Life
    word: ClassVar[str] = "parked"  # by which a life tells what was acknowledged
    operations: ClassVar[float] = 9.0  # a kill comes within so many operations on files, as a power of two,
    time_s: ClassVar[float]  # or within this time
    tally_class: ClassVar[type[Tally]] = Tally

    def __init__(self, nursery: Nursery, root: Path, seed: int, tally: Tally | None = None) -> None:
        self.nursery = nursery
        self.root = root
        self.tally = self.tally_class() if tally is None else tally
        self.chance = random.Random(f"{self.around}-{seed}")
        self.seed = seed
        self.round = 0
        self.acknowledged: set[int] = set()
        self.story: list[str] = []

    def run(self, kills: int) -> None:
        for turn in range(kills):
            self.kill_one()
            if turn == kills - 1 or self.chance.random() < 0.2:
                self.verify()

    def kill_one(self) -> None:
        chance = self.chance
        self.round += 1
        plan: dict[str, Any] = {
            "around": self.around,
            "root": str(self.root),
            "seed": chance.randrange(1 << 30),
            "first": self.round * NUMBERS_PER_ROUND,
            "count": 100_000,
        }
        delay_s: float | None = None
        if chance.random() < 0.6:
            how = chance.choice(("before", "torn", "torn", "after"))
            at = int(2 ** chance.uniform(4, self.operations))
            plan["die"] = {"at": at, "how": how, "part": chance.random()}
        else:
            delay_s = chance.uniform(0, self.time_s)
        self.story.append(f"round {self.round}: {plan} {delay_s}")
        lines, status = self._live(plan, delay_s)
        if status != -9:
            raise Violation(f"the broker ended with {status}: {lines[-5:]}\n{self.told()}")
        self.note(lines)
        last = lines[-1].split()[0] if lines else "starting"
        self.tally.kills[f"{'operation' if delay_s is None else 'time'}, after {last}"] += 1

    def note(self, lines: list[str]) -> None:
        """Remember what a life told before it was killed."""
        new = numbers_of(self.word, lines)
        self.acknowledged |= new
        self.tally.acknowledged += len(new)

    def verify(self) -> None:
        """A life that goes on until nothing is under way, and a look at what arrived."""
        self.round += 1
        plan = {"around": self.around, "root": str(self.root), "seed": 0, "finish": True}
        lines, status = self._live(plan, None)
        if status != 0:
            raise Violation(f"the broker did not come to an end: {status} {lines[-5:]}\n{self.told()}")
        rows = ([int(word) for word in line.split()[1:]] for line in lines if line.startswith("arrived "))
        arrived = {number: tuple(rest) for number, *rest in rows}
        self.judge(arrived)
        self.tally.verifications += 1
        self.tally.arrived += len(arrived)

    def judge(self, arrived: dict[int, tuple[int, ...]]) -> None:
        """Raise Violation if this must not be."""
        raise NotImplementedError

    def told(self) -> str:
        return f"seed {self.seed} in {self.root}:\n" + "\n".join(self.story[-12:])

    def clear(self) -> None:
        shutil.rmtree(self.root, ignore_errors=True)

    def _live(self, plan: dict[str, Any], delay_s: float | None) -> tuple[list[str], int]:
        """What a life told, and how it ended. Killed ``delay_s`` after it was open."""
        data = b""
        kill_at: float | None = None
        deadline = time.monotonic() + LIFE_S
        with self.nursery.write(plan) as child:
            while True:
                now = time.monotonic()
                if kill_at is not None and now >= kill_at:
                    child.kill()
                    kill_at, delay_s = None, None
                if now > deadline:
                    raise Violation(f"the broker hangs: {data[-300:]!r}\n{self.told()}")
                wait_s = deadline - now if kill_at is None else kill_at - now
                if not select.select([child.pipe], [], [], wait_s)[0]:
                    continue
                piece = os.read(child.pipe, 1 << 20)
                if not piece:
                    break
                data += piece
                if delay_s is not None and kill_at is None and b"open\n" in data:
                    kill_at = now + delay_s
            status = child.wait()
        return [line for line in data.decode().split("\n")[:-1] if line], status


class ParkedKiller(Killer):
    """Around messages that are parked and come later: none is lost, none early; what comes twice counts."""

    def __init__(self, nursery: Nursery, root: Path, seed: int, tally: Tally | None = None) -> None:
        super().__init__(nursery, root, seed, tally)
        self.doubles: set[int] = set()

    def judge(self, arrived: dict[int, tuple[int, ...]]) -> None:
        lost = sorted(self.acknowledged - arrived.keys())
        if lost:
            raise Violation(f"{len(lost)} did not come, {lost[:5]}\n{self.told()}")
        for number, (count, early_ms, *_) in arrived.items():
            if early_ms > 0:
                raise Violation(f"{number} came {early_ms} ms too early\n{self.told()}")
            if count > 1 and number not in self.doubles:
                self.doubles.add(number)
                self.tally.twice += 1


def numbers_of(word: str, lines: list[str]) -> set[int]:
    return {int(line.split()[1]) for line in lines if line.startswith(f"{word} ")}
