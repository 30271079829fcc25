"""Kill a broker around its transactions: what was committed arrives, what was rolled back does not, and
nothing arrives twice.

A life is a broker and a producer in one process that is killed. Everything about a transaction follows from
its number: how it ends, and whether its producer tells by itself or waits to be asked. The last life sends
nothing and answers every question, until no transaction is open; then the queue is read.
"""

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
from typing import Any

from kerolox.broker.broker import Broker
from kerolox.broker.options import BrokerOptions
from kerolox.net.dialer import Dialer
from kerolox.net.lanes import Lane
from kerolox.net.requests import Handlers, Request
from kerolox.protocol.bodies.heartbeat import HeartbeatData, ProducerData
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.headers.send import SendRequestV2
from kerolox.protocol.headers.transaction import CheckTransaction, EndTransactionRequest
from kerolox.protocol.message_id import read_offset_id
from kerolox.protocol.properties import pack
from kerolox.protocol.record import decode_record, decode_records
from kerolox.store.files import Files

from .dying import DyingFiles
from .nursery import Nursery
from .verify import Violation

COMMIT, ROLLBACK = 8, 12
GROUP, TOPIC = "killed-payers", "killed-orders"
LIFE_S = 60.0
LANES = 4
NUMBERS_PER_ROUND = 1 << 20


def is_committed(number: int) -> bool:
    return number % 3 != 0


def is_told(number: int) -> bool:
    """Whether the producer tells how it ended, or waits to be asked."""
    return number % 2 == 0


def ignored_checks(number: int) -> int:
    """How many questions stay without an answer."""
    return number // 2 % 3


class Life:
    """One broker with one producer.

    The plan: ``root``, ``seed``, ``first`` and ``count`` of the numbers or ``finish``, and perhaps ``die``.
    """

    def __init__(self, plan: dict[str, Any], pipe: int) -> None:
        self.plan = plan
        self.pipe = pipe
        self.chance = random.Random(plan["seed"])
        self.finish = bool(plan.get("finish"))
        self.checks: Counter[int] = Counter()
        handlers = Handlers()
        handlers.add(RequestCode.CHECK_TRANSACTION_STATE, self.check, CheckTransaction, Lane("client"))
        self.dialer = Dialer(handlers)

    def tell(self, line: str) -> None:
        os.write(self.pipe, line.encode())

    async def run(self) -> None:
        die = self.plan.get("die")
        options = BrokerOptions(
            store_path=self.plan["root"],
            bind_address="127.0.0.1",
            advertised_host="127.0.0.1",
            listen_port=0,
            broker_name="killed",
            commit_log_file_bytes=64 * 1024,
            queue_file_bytes=20 * 100,
            index_slots=100,
            index_entries=400,
            transaction_timeout_ms=0,
            transaction_check_ms=15,
            transaction_checks_max=10**6,
            save_offsets_ms=40,
            send_wait_ms=60_000,
        )
        self.tell("opening\n")
        async with (
            Broker(options, files=Files() if die is None else DyingFiles(**die)) as broker,
            self.dialer,
        ):
            self.broker = broker
            self.address = broker.address
            data = HeartbeatData(client_id="p", producer_data_set=(ProducerData(group_name=GROUP),))
            await self.dialer.call(self.address, RequestCode.HEART_BEAT, None, data.encode())
            self.tell("open\n")
            if self.finish:
                await self.wait_for_ends()
                for number, count in sorted((await self.arrived()).items()):
                    self.tell(f"arrived {number} {count}\n")
            else:
                first = int(self.plan["first"])
                numbers = iter(range(first, first + int(self.plan["count"])))
                await asyncio.gather(*(self.send(numbers) for _ in range(LANES)))
            self.tell("closing\n")
        self.tell("closed\n")

    async def send(self, numbers: Any) -> None:
        for number in numbers:
            header = SendRequestV2(
                producer_group=GROUP, topic=TOPIC, default_topic="TBW102", default_topic_queue_nums=1,
                queue_id=0, sys_flag=4, born_timestamp=self.broker.clock.wall_ms(), flag=0,
                properties=pack({"TRAN_MSG": "true", "PGROUP": GROUP, "UNIQ_KEY": f"{number:032X}"}).decode(),
            )  # fmt: skip
            body = b"%d" % number + bytes(self.chance.randrange(2000))
            answer = await self.dialer.call(
                self.address, RequestCode.SEND_MESSAGE_V2, header, body, timeout_s=30
            )
            if answer.code != 0:
                raise AssertionError(f"{answer.code} {answer.remark}")
            self.tell(f"half {number}\n")
            if is_told(number):
                place = read_offset_id(answer.fields["msgId"]).physical_offset
                ended = self.ended(number, int(answer.fields["queueOffset"]), place, check=False)
                if (await self.dialer.call(self.address, RequestCode.END_TRANSACTION, ended)).code == 0:
                    self.tell(f"ended {number}\n")

    def ended(self, number: int, queue_offset: int, place: int, *, check: bool) -> EndTransactionRequest:
        return EndTransactionRequest(
            producer_group=GROUP,
            tran_state_table_offset=queue_offset,
            commit_log_offset=place,
            commit_or_rollback=COMMIT if is_committed(number) else ROLLBACK,
            from_transaction_check=check,
            msg_id="",
        )

    def check(self, request: Request[CheckTransaction]) -> None:
        number = int(decode_record(request.body).body.split(b"\0")[0])
        self.checks[number] += 1
        if self.finish or self.checks[number] > ignored_checks(number):
            asked = request.header
            request.peer.tell(
                RequestCode.END_TRANSACTION,
                self.ended(number, asked.tran_state_table_offset, asked.commit_log_offset, check=True),
            )

    async def wait_for_ends(self) -> None:
        ended = self.broker.transactions.ended
        while ended.pending:  # noqa: ASYNC110 — nobody would tell
            await asyncio.sleep(0.01)

    async def arrived(self) -> Counter[int]:
        found: Counter[int] = Counter()
        offset, end = 0, self.broker.store.max_offset(TOPIC, 0)
        while offset < end:
            read = await self.broker.store.read(TOPIC, 0, offset)
            found.update(int(each.body.split(b"\0")[0]) for each in decode_records(b"".join(read.parts)))
            offset = read.next_offset
        return found


def run(plan: dict[str, Any], pipe: int) -> None:
    asyncio.run(Life(plan, pipe).run())


@dataclass
class Tally:
    """What a number of kills came to."""

    kills: Counter[str] = field(default_factory=Counter)
    too_late: int = 0
    verifications: int = 0
    transactions: int = 0
    arrived: int = 0
    twice: int = 0

    @property
    def total(self) -> int:
        return sum(self.kills.values())


class Killer:
    """One directory, one seed: lives that are killed, and looks at what is left."""

    def __init__(self, nursery: Nursery, root: Path, seed: int, tally: Tally | None = None) -> None:
        self.nursery = nursery
        self.root = root
        self.tally = Tally() if tally is None else tally
        self.chance = random.Random(f"transactions-{seed}")
        self.seed = seed
        self.round = 0
        self.halves: set[int] = set()
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
            "transactions": True,
            "root": str(self.root),
            "seed": chance.randrange(1 << 30),
            "first": self.round * NUMBERS_PER_ROUND,
            "count": 100_000,
        }
        delay_s: float | None = None
        if chance.random() < 0.6:
            how = chance.choice(("before", "torn", "torn", "after"))
            plan["die"] = {"at": int(2 ** chance.uniform(4, 9)), "how": how, "part": chance.random()}
        else:
            delay_s = chance.uniform(0, 0.25)
        self.story.append(f"round {self.round}: {plan} {delay_s}")
        lines, status = self._live(plan, delay_s)
        if status != -9:
            raise Violation(f"the broker ended with {status}: {lines[-5:]}\n{self.told()}")
        before = len(self.halves)
        self.halves |= {int(line.split()[1]) for line in lines if line.startswith("half ")}
        self.tally.transactions += len(self.halves) - before
        last = lines[-1].split()[0] if lines else "starting"
        self.tally.kills[f"{'operation' if delay_s is None else 'time'}, after {last}"] += 1

    def verify(self) -> None:
        """All transactions end; then each has arrived as often as it should."""
        self.round += 1
        plan = {"transactions": True, "root": str(self.root), "seed": 0, "finish": True}
        lines, status = self._live(plan, None)
        if status != 0:
            raise Violation(f"the broker did not come to an end: {status} {lines[-5:]}\n{self.told()}")
        arrived = {
            int(n): int(count) for _, n, count in (x.split() for x in lines if x.startswith("arrived"))
        }
        for number in self.halves:
            if is_committed(number) and number not in arrived:
                raise Violation(f"{number} was committed and did not arrive\n{self.told()}")
        for number, count in arrived.items():
            if not is_committed(number):
                raise Violation(f"{number} was rolled back and arrived\n{self.told()}")
            if count > 1:
                self.tally.twice += 1
                raise Violation(f"{number} arrived {count} times\n{self.told()}")
        self.tally.verifications += 1
        self.tally.arrived += len(arrived)

    def _live(self, plan: dict[str, Any], delay_s: float | None) -> tuple[list[str], int]:
        """What a life told, and how it ended. Killed ``delay_s`` after it was open."""
        data = b""
        kill_at: float | None = None
        deadline = time.monotonic() + LIFE_S
        with self.nursery.start(plan) as child:
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

    def told(self) -> str:
        return f"seed {self.seed} in {self.root}:\n" + "\n".join(self.story[-12:])

    def clear(self) -> None:
        shutil.rmtree(self.root, ignore_errors=True)


def dump(tally: Tally) -> dict[str, Any]:
    return {
        "kills": tally.total,
        "moments": dict(sorted(tally.kills.items())),
        "verifications": tally.verifications,
        "acknowledged_half_messages": tally.transactions,
        "looked_at_arrived": tally.arrived,
        "arrived_twice": tally.twice,
    }
