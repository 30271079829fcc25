"""Kill a broker around its timer: whatever was parked comes, at its time or as soon as somebody serves.

A life is a broker and a producer in one process that is killed. Moments are 50 ms, the window a second, so
that lives of a quarter of a second see messages entered, rolled, delivered and taken back. The last life
goes on until nothing waits; then the queue is read. A kill may deliver again what was not yet noted: that is
counted.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from dataclasses import dataclass
from typing import Any

from kerolox.broker.broker import Broker
from kerolox.broker.options import BrokerOptions
from kerolox.net.dialer import Dialer
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.headers.send import RecallRequest, SendRequestV2
from kerolox.protocol.properties import pack, unpack
from kerolox.protocol.record import decode_records
from kerolox.store.files import Files

from . import transactions
from .dying import DyingFiles
from .transactions import NUMBERS_PER_ROUND
from .verify import Violation

TOPIC = "killed-timers"
LANES = 4
DELAY_MS_MAX = 2500


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
            commit_log_file_bytes=256 * 1024,
            queue_file_bytes=20 * 100,
            index_slots=100,
            index_entries=400,
            timer_precision_ms=50,
            timer_roll_slots=20,
            timer_flush_ms=40,
            timer_log_file_bytes=52 * 50 + 16,
            recall=True,
            send_wait_ms=60_000,
        )
        self.tell("opening\n")
        files = Files() if die is None else DyingFiles(**die)
        async with Broker(options, files=files) as broker, self.dialer:
            self.broker = broker
            self.address = broker.address
            self.tell("open\n")
            if self.plan.get("finish"):
                await self.wait_for_ends()
                for number, (count, early) in sorted((await self.delivered()).items()):
                    self.tell(f"arrived {number} {count} {early}\n")
            else:
                first = int(self.plan["first"])
                numbers = iter(range(first, first + int(self.plan["count"])))
                await asyncio.gather(*(self.send(numbers) for _ in range(LANES)))
            self.tell("closing\n")
        self.tell("closed\n")

    async def send(self, numbers: Any) -> None:
        for number in numbers:
            delay_ms = int(self.chance.triangular(1, DELAY_MS_MAX, 60))
            now_ms = self.broker.clock.wall_ms()
            properties = {"TIMER_DELIVER_MS": str(now_ms + delay_ms), "UNIQ_KEY": f"{number:032X}"}
            header = SendRequestV2(
                producer_group="p", topic=TOPIC, default_topic="TBW102", default_topic_queue_nums=1,
                queue_id=0, sys_flag=0, born_timestamp=now_ms, flag=0, properties=pack(properties).decode(),
            )  # fmt: skip
            body = b"%d" % number + bytes(self.chance.randrange(500))
            answer = await self.dialer.call(
                self.address, RequestCode.SEND_MESSAGE_V2, header, body, timeout_s=30
            )
            if answer.code != 0:
                raise AssertionError(f"{answer.code} {answer.remark}")
            if number % 10 == 0 and delay_ms > 300:
                self.tell(f"recalling {number}\n")
                recall = RecallRequest(topic=TOPIC, recall_handle=answer.fields["recallHandle"])
                if (await self.dialer.call(self.address, RequestCode.RECALL_MESSAGE, recall)).code == 0:
                    self.tell(f"recalled {number}\n")
            else:
                self.tell(f"parked {number}\n")

    async def wait_for_ends(self) -> None:
        timers = self.broker.timers
        while timers.arrivals.behind or timers.files.wheel.first() is not None:  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    async def delivered(self) -> dict[int, tuple[int, int]]:
        """How often each came, and by how much too early."""
        found: Counter[int] = Counter()
        early: Counter[int] = Counter()
        offset, end = 0, self.broker.store.max_offset(TOPIC, 0)
        while offset < end:
            read = await self.broker.store.read(TOPIC, 0, offset)
            for each in decode_records(b"".join(read.parts)):
                number = int(each.body.split(b"\0")[0])
                found[number] += 1
                properties = unpack(each.packed_properties)
                # Not the store time: it is that of the first message written together with this one.
                came_ms = int(properties.get("TIMER_DEQUEUE_MS", properties["TIMER_DELIVER_MS"]))
                early[number] = max(early[number], int(properties["TIMER_DELIVER_MS"]) - came_ms)
            offset = read.next_offset
        return {number: (count, early[number]) for number, count in found.items()}


def run(plan: dict[str, Any], pipe: int) -> None:
    asyncio.run(Life(plan, pipe).run())


@dataclass
class Tally(transactions.Tally):
    recalled: int = 0
    recalled_in_vain: int = 0  # due before the marker was seen


class Killer(transactions.Killer):
    """One directory, one seed."""

    tally: Tally

    def __init__(self, nursery: Any, root: Any, seed: int, tally: Tally | None = None) -> None:
        super().__init__(nursery, root, seed, Tally() if tally is None else tally)
        self.chance = random.Random(f"timers-{seed}")
        self.recalled: set[int] = set()
        self.doubles: set[int] = set()

    def kill_one(self) -> None:
        chance = self.chance
        self.round += 1
        plan: dict[str, Any] = {
            "timers": True,
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
            delay_s = chance.uniform(0, 0.8)
        self.story.append(f"round {self.round}: {plan} {delay_s}")
        lines, status = self._live(plan, delay_s)
        if status != -9:
            raise Violation(f"the broker ended with {status}: {lines[-5:]}\n{self.told()}")
        words = [line.split() for line in lines]
        parked = {int(word[1]) for word in words if word[0] == "parked"}
        recalled = {int(word[1]) for word in words if word[0] == "recalled"}
        self.halves |= parked
        self.recalled |= recalled
        self.tally.transactions += len(parked)
        self.tally.recalled += len(recalled)
        last = lines[-1].split()[0] if lines else "starting"
        self.tally.kills[f"{'operation' if delay_s is None else 'time'}, after {last}"] += 1

    def verify(self) -> None:
        """Nothing waits any more: then everything has come."""
        self.round += 1
        plan = {"timers": True, "root": str(self.root), "seed": 0, "finish": True}
        lines, status = self._live(plan, None)
        if status != 0:
            raise Violation(f"the broker did not come to an end: {status} {lines[-5:]}\n{self.told()}")
        arrived = {
            int(n): (int(count), int(early))
            for _, n, count, early in (x.split() for x in lines if x.startswith("arrived"))
        }
        lost = sorted(self.halves - arrived.keys())
        if lost:
            raise Violation(f"{len(lost)} did not come, {lost[:5]}\n{self.told()}")
        for number, (count, early_ms) in arrived.items():
            if early_ms > 0:
                raise Violation(f"{number} came {early_ms} ms too early\n{self.told()}")
            if count > 1 and number not in self.doubles:
                self.doubles.add(number)
                self.tally.twice += 1
        self.tally.recalled_in_vain += len(self.recalled & arrived.keys())
        self.recalled.clear()
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
        "recalls_acknowledged": tally.recalled,
        "recalled_in_vain": tally.recalled_in_vain,
    }
