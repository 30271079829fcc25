"""Producers of transactional messages, over real sockets."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from kerolox.front.lanes import Lane
from kerolox.front.requests import Request
from kerolox.net.dialer import Dialer
from kerolox.net.handlers import RemotingHandlers
from kerolox.net.signing import Credentials
from kerolox.protocol import reserved
from kerolox.protocol.bodies.heartbeat import HeartbeatData, ProducerData
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.command import Command
from kerolox.protocol.headers.transaction import CheckTransaction, EndTransactionRequest
from kerolox.protocol.message import StoredMessage
from kerolox.protocol.message_id import read_offset_id
from kerolox.testing.broker import RunningBroker, running_broker
from kerolox.testing.clock import ManualClock

from .talk import BORN_MS, Talk, until

COMMIT, ROLLBACK, UNKNOWN = 8, 12, 0
GROUP = "payers"
TOPIC = "orders"


class Half:
    """A half message as its producer knows it."""

    def __init__(self, answer: Command) -> None:
        assert answer.code == 0, answer.remark
        self.answer = answer
        self.queue_offset = int(answer.fields["queueOffset"])
        self.place = read_offset_id(answer.fields["msgId"]).physical_offset
        self.transaction_id = answer.fields["transactionId"]


class Producer(Talk):
    """One member of the group. What it is asked is kept, and answered if ``outcome`` says how."""

    def __init__(
        self, running: RunningBroker, client_id: str = "payer-1", *, own: Credentials | None = None
    ) -> None:
        handlers = RemotingHandlers()
        handlers.add(RequestCode.CHECK_TRANSACTION_STATE, self._check, CheckTransaction, Lane("client"))
        super().__init__(Dialer(handlers, credentials=own), running)
        self.client_id = client_id
        self.asked: list[Request[CheckTransaction]] = []
        self.outcome: int | None = None

    async def come(self) -> None:
        data = HeartbeatData(client_id=self.client_id, producer_data_set=(ProducerData(group_name=GROUP),))
        await self.dialer.call(self.address, RequestCode.HEART_BEAT, None, data.encode())

    def _check(self, request: Request[CheckTransaction]) -> None:
        assert request.is_one_way
        self.asked.append(request)
        if self.outcome is not None:
            asked = request.header
            header = self.end_header(
                self.outcome, asked.tran_state_table_offset, asked.commit_log_offset, check=True
            )
            request.caller.tell(RequestCode.END_TRANSACTION, header)

    async def prepare(
        self, body: bytes = b"hello", properties: dict[str, str] | None = None, **fields: Any
    ) -> Half:
        own = {"TRAN_MSG": "true", "PGROUP": GROUP, **(properties or {})}
        topic = fields.pop("topic", TOPIC)
        return Half(await self.send(topic, body, own, **{"sys_flag": 4, "born_timestamp": BORN_MS, **fields}))

    def end_header(self, outcome: int, queue_offset: int, place: int, **fields: Any) -> EndTransactionRequest:
        return EndTransactionRequest(
            **{
                "producer_group": GROUP,
                "tran_state_table_offset": queue_offset,
                "commit_log_offset": place,
                "commit_or_rollback": outcome,
                "from_transaction_check": fields.pop("check", False),
                "msg_id": "X",
                **fields,
            }
        )

    async def end(self, half: Half, outcome: int = COMMIT, **fields: Any) -> Command:
        """As a request that is answered; producers send it one-way."""
        values = {"queue_offset": half.queue_offset, "place": half.place, **fields}
        header = self.end_header(outcome, values.pop("queue_offset"), values.pop("place"), **values)
        return await self.dialer.call(self.address, RequestCode.END_TRANSACTION, header, timeout_s=5)

    async def orders(self) -> list[StoredMessage]:
        return await self.messages(TOPIC)

    async def halves(self) -> list[StoredMessage]:
        return await self.messages(reserved.HALF_TOPIC)

    async def ops(self) -> list[bytes]:
        return [op.body for op in await self.messages(reserved.HALF_DONE_TOPIC)]


class Scene:
    """A broker whose clock the test moves, and producers."""

    def __init__(self, running: RunningBroker, clock: ManualClock, stack: AsyncExitStack) -> None:
        self.running = running
        self.broker = running.broker
        self.clock = clock
        self._stack = stack

    async def producer(self, client_id: str = "payer-1") -> Producer:
        made = Producer(self.running, client_id)
        self._stack.push_async_callback(made.dialer.close)
        await made.come()
        return made

    async def round(self, seconds: float = 30.0) -> None:
        """Let time pass until the next round is over."""
        rounds = self.broker.transactions.check_backs.rounds
        await self.clock.advance(seconds)
        await until(lambda: self.broker.transactions.check_backs.rounds > rounds)

    @property
    def progress(self) -> tuple[int, int]:
        offsets, group = self.broker.tables.offsets, "CID_RMQ_SYS_TRANS"
        return (
            offsets.offset(reserved.HALF_TOPIC, group, 0),
            offsets.offset(reserved.HALF_DONE_TOPIC, group, 0),
        )


@asynccontextmanager
async def scene(directory: Path, clock: ManualClock | None = None, **options: Any) -> AsyncIterator[Scene]:
    clock = clock or ManualClock(BORN_MS)
    # Connections and members live longer than the time a test lets pass.
    settings: dict[str, Any] = {"member_timeout_ms": 10**10, "idle_s_max": 10**7, **options}
    async with AsyncExitStack() as stack:
        running = await stack.enter_async_context(
            running_broker(directory=directory, clock=clock, **settings)
        )
        yield Scene(running, clock, stack)
