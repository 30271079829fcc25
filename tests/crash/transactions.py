"""Kill a broker around its transactions: what was committed arrives, what was rolled back does not, and
nothing arrives twice.

Everything about a transaction follows from its number: how it ends, and whether its producer tells by itself
or waits to be asked. The last life sends nothing and answers every question, until no transaction is open.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from typing import Any

from kerolox.front.lanes import Lane
from kerolox.front.requests import Request
from kerolox.net.dialer import Dialer
from kerolox.net.handlers import RemotingHandlers
from kerolox.protocol.bodies.heartbeat import HeartbeatData, ProducerData
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.headers.transaction import CheckTransaction, EndTransactionRequest
from kerolox.protocol.message_id import read_offset_id
from kerolox.protocol.record import decode_record

from . import lives
from .verify import Violation

COMMIT, ROLLBACK = 8, 12
PREPARED = 4  # of the flags of a half message


def is_committed(number: int) -> bool:
    return number % 3 != 0


def is_told(number: int) -> bool:
    """Whether the producer tells how it ended, or waits to be asked."""
    return number % 2 == 0


def ignored_checks(number: int) -> int:
    """How many questions stay without an answer."""
    return number // 2 % 3


class Life(lives.Life):
    topic = "killed-orders"
    group = "killed-payers"
    body_bytes_max = 2000
    settings = {
        "commit_log_file_bytes": 64 * 1024,
        "transaction_timeout_ms": 0,
        "transaction_check_ms": 15,
        "transaction_checks_max": 10**6,
        "save_offsets_ms": 40,
    }

    def __init__(self, plan: dict[str, Any], pipe: int) -> None:
        super().__init__(plan, pipe)
        self.checks: Counter[int] = Counter()
        handlers = RemotingHandlers()
        handlers.add(RequestCode.CHECK_TRANSACTION_STATE, self.check, CheckTransaction, Lane("client"))
        self.dialer = Dialer(handlers)

    async def begin(self) -> None:
        data = HeartbeatData(client_id="p", producer_data_set=(ProducerData(group_name=self.group),))
        await self.dialer.call(self.address, RequestCode.HEART_BEAT, None, data.encode())

    async def send(self, numbers: Iterator[int]) -> None:
        for number in numbers:
            answer = await self.send_one(number, {"TRAN_MSG": "true", "PGROUP": self.group}, PREPARED)
            self.tell(f"half {number}")
            if is_told(number):
                place = read_offset_id(answer.fields["msgId"]).physical_offset
                ended = self.ended(number, int(answer.fields["queueOffset"]), place, check=False)
                if (await self.dialer.call(self.address, RequestCode.END_TRANSACTION, ended)).code == 0:
                    self.tell(f"ended {number}")

    def ended(self, number: int, queue_offset: int, place: int, *, check: bool) -> EndTransactionRequest:
        return EndTransactionRequest(
            producer_group=self.group,
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
            request.caller.tell(
                RequestCode.END_TRANSACTION,
                self.ended(number, asked.tran_state_table_offset, asked.commit_log_offset, check=True),
            )

    async def wait_for_ends(self) -> None:
        ended = self.broker.transactions.finished
        while ended.pending:  # noqa: ASYNC110 — nobody would tell
            await asyncio.sleep(0.01)

    async def arrived(self) -> dict[int, tuple[int, ...]]:
        found = Counter([number async for number, _ in self.messages()])
        return {number: (count,) for number, count in found.items()}


class Killer(lives.Killer):
    around = "transactions"
    word = "half"
    time_s = 0.25

    def judge(self, arrived: dict[int, tuple[int, ...]]) -> None:
        for number in self.acknowledged:
            if is_committed(number) and number not in arrived:
                raise Violation(f"{number} was committed and did not arrive\n{self.told()}")
        for number, (count,) in arrived.items():
            if not is_committed(number):
                raise Violation(f"{number} was rolled back and arrived\n{self.told()}")
            if count > 1:
                raise Violation(f"{number} arrived {count} times\n{self.told()}")
