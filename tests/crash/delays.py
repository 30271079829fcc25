"""Kill a broker around its delay levels: what was parked comes, none too early, and few of it twice.

A life is a broker and a producer in one process that is killed. Its clock runs twenty times as fast, so that
lives of a quarter of a second see levels of seconds come due. The last life goes on until nothing waits; then
the queue is read. What a kill finds between the write of delivered messages and the note of it comes twice:
it is counted, and must be of one write.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kerolox.broker.broker import Broker
from kerolox.broker.options import BrokerOptions
from kerolox.clock import Clock, TimerHandle
from kerolox.net.dialer import Dialer
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.headers.send import SendRequestV2
from kerolox.protocol.properties import pack
from kerolox.protocol.record import decode_records
from kerolox.store.delay_table import SCHEDULE_TOPIC, parse_levels
from kerolox.store.files import Files

from . import transactions
from .dying import DyingFiles
from .transactions import NUMBERS_PER_ROUND
from .verify import Violation

TOPIC = "killed-delays"
LANES = 4
FILE_BYTES = 256 * 1024  # of the log
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


class Life(transactions.Life):
    """The plan is as for transactions."""

    def __init__(self, plan: dict[str, Any], pipe: int) -> None:
        self.plan = plan
        self.pipe = pipe
        self.chance = random.Random(plan["seed"])
        self.dialer = Dialer()

    async def run(self) -> None:
        die = self.plan.get("die")
        options = BrokerOptions(
            store_path=self.plan["root"],
            bind_address="127.0.0.1",
            advertised_host="127.0.0.1",
            listen_port=0,
            broker_name="killed",
            commit_log_file_bytes=FILE_BYTES,
            queue_file_bytes=20 * 100,
            index_slots=100,
            index_entries=400,
            timer_wheel=False,
            delay_levels=LEVELS,
            send_wait_ms=60_000,
        )
        self.tell("opening\n")
        files = Files() if die is None else DyingFiles(**die)
        async with Broker(options, files=files, clock=FastClock()) as broker, self.dialer:
            self.broker = broker
            self.address = broker.address
            self.tell("open\n")
            if self.plan.get("finish"):
                await self.wait_for_ends()
                for number, row in sorted((await self.delivered()).items()):
                    self.tell(f"arrived {number} {' '.join(map(str, row))}\n")
            else:
                first = int(self.plan["first"])
                numbers = iter(range(first, first + int(self.plan["count"])))
                await asyncio.gather(*(self.send(numbers) for _ in range(LANES)))
            self.tell("closing\n")
        self.tell("closed\n")

    async def send(self, numbers: Any) -> None:
        for number in numbers:
            properties = {"DELAY": str(level_of(number)), "UNIQ_KEY": f"{number:032X}"}
            header = SendRequestV2(
                producer_group="p", topic=TOPIC, default_topic="TBW102", default_topic_queue_nums=1,
                queue_id=0, sys_flag=0, born_timestamp=self.broker.clock.wall_ms(), flag=0,
                properties=pack(properties).decode(),
            )  # fmt: skip
            body = b"%d" % number + bytes(self.chance.randrange(500))
            answer = await self.dialer.call(
                self.address, RequestCode.SEND_MESSAGE_V2, header, body, timeout_s=30
            )
            if answer.code != 0:
                raise AssertionError(f"{answer.code} {answer.remark}")
            self.tell(f"parked {number}\n")

    async def wait_for_ends(self) -> None:
        store = self.broker.store
        for level in self.broker.delays.levels:
            while level.next_offset < store.max_offset(SCHEDULE_TOPIC, level.queue_id):  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    async def delivered(self) -> dict[int, tuple[int, int, int]]:
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

        offset, end = 0, self.broker.store.max_offset(TOPIC, 0)
        while offset < end:
            read = await self.broker.store.read(TOPIC, 0, offset)
            for each in decode_records(b"".join(read.parts)):
                number = int(each.body.split(b"\0")[0])
                level = level_of(number)
                count[number] += 1
                due_ms = each.born_timestamp + DELAYS_MS[level - 1]
                early[number] = max(early[number], due_ms - each.store_timestamp)
                if number in written:
                    repeating[level].append((number, written[number]))
                else:
                    end_of(repeating[level])
                written[number] = (each.physical_offset, each.store_timestamp)
            offset = read.next_offset
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


def run(plan: dict[str, Any], pipe: int) -> None:
    asyncio.run(Life(plan, pipe).run())


@dataclass
class Tally(transactions.Tally):
    pass


class Killer(transactions.Killer):
    """One directory, one seed."""

    def __init__(self, nursery: Any, root: Any, seed: int, tally: Tally | None = None) -> None:
        super().__init__(nursery, root, seed, Tally() if tally is None else tally)
        self.chance = random.Random(f"delays-{seed}")
        self.doubles: set[int] = set()

    def kill_one(self) -> None:
        chance = self.chance
        self.round += 1
        plan: dict[str, Any] = {
            "delays": True,
            "root": str(self.root),
            "seed": chance.randrange(1 << 30),
            "first": self.round * NUMBERS_PER_ROUND,
            "count": 100_000,
        }
        delay_s: float | None = None
        if chance.random() < 0.6:
            how = chance.choice(("before", "torn", "torn", "after"))
            plan["die"] = {"at": int(2 ** chance.uniform(4, 9.5)), "how": how, "part": chance.random()}
        else:
            delay_s = chance.uniform(0, 0.5)
        self.story.append(f"round {self.round}: {plan} {delay_s}")
        lines, status = self._live(plan, delay_s)
        if status != -9:
            raise Violation(f"the broker ended with {status}: {lines[-5:]}\n{self.told()}")
        parked = {int(line.split()[1]) for line in lines if line.startswith("parked")}
        self.halves |= parked
        self.tally.transactions += len(parked)
        last = lines[-1].split()[0] if lines else "starting"
        self.tally.kills[f"{'operation' if delay_s is None else 'time'}, after {last}"] += 1

    def verify(self) -> None:
        """Nothing waits any more: then everything has come."""
        self.round += 1
        plan = {"delays": True, "root": str(self.root), "seed": 0, "finish": True}
        lines, status = self._live(plan, None)
        if status != 0:
            raise Violation(f"the broker did not come to an end: {status} {lines[-5:]}\n{self.told()}")
        arrived = {int(row[0]): row[1:] for row in (x.split()[1:] for x in lines if x.startswith("arrived"))}
        lost = sorted(self.halves - arrived.keys())
        if lost:
            raise Violation(f"{len(lost)} did not come, {lost[:5]}\n{self.told()}")
        for number, (count, early_ms, wide) in arrived.items():
            if int(early_ms) > 0:
                raise Violation(f"{number} came {early_ms} ms too early\n{self.told()}")
            if int(wide) > 1:
                raise Violation(f"{number} came again with messages of {wide} writes\n{self.told()}")
            if int(count) > 1 and number not in self.doubles:
                self.doubles.add(number)
                self.tally.twice += 1
        self.tally.verifications += 1
        self.tally.arrived = len(arrived)


def dump(tally: Tally) -> dict[str, Any]:
    return {
        "kills": tally.total,
        "moments": dict(sorted(tally.kills.items())),
        "verifications": tally.verifications,
        "acknowledged_messages": tally.transactions,
        "lost": 0,  # the first one ends the run with an error
        "came_twice": tally.twice,
    }
