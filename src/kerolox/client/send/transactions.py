"""Transactions: a message that is stored now and delivered only if its sender says so.

::

    async with producer.transaction(Message("orders", b"...")) as transaction:
        ...                      # the local work; leaving commits, an exception rolls back

If the end of a transaction does not reach the broker (a lost connection, a crash), the broker sends a check.
To answer checks after a restart, a producer needs a ``check``; without one it answers from memory.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Protocol, Self

from kerolox.client.errors import SendFailed
from kerolox.client.messages import Message, Receipt, Received
from kerolox.client.user_code import HandlerExit, in_thread
from kerolox.errors import KeroloxError
from kerolox.protocol import properties as names
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.flags import (
    TRANSACTION_COMMIT,
    TRANSACTION_NONE,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
)
from kerolox.protocol.headers.transaction import CheckTransaction, EndTransactionRequest
from kerolox.protocol.message_id import read_offset_id

if TYPE_CHECKING:
    from kerolox.client.send.producer import Producer
    from kerolox.front.requests import Request

log = logging.getLogger(__name__)

REMEMBERED_MAX = 10_000
CHECKS_AT_ONCE = 16


class TransactionState(IntEnum):
    """How a transaction ended."""

    UNKNOWN = TRANSACTION_NONE  # not known yet: the broker asks again later
    COMMIT = TRANSACTION_COMMIT
    ROLLBACK = TRANSACTION_ROLLBACK


_TRACE_WORDS = {
    TransactionState.UNKNOWN: "UNKNOW",
    TransactionState.COMMIT: "COMMIT_MESSAGE",
    TransactionState.ROLLBACK: "ROLLBACK_MESSAGE",
}

# Results of execute and check: a state, True (commit), False (roll back) or None (not known yet), directly or
# by await. A plain function runs in a thread, so that it may wait for a database.
CheckResult = TransactionState | bool | None
Check = Callable[[Received], CheckResult | Awaitable[CheckResult]]


class TransactionListener(Protocol):
    """For those who know RocketMQ: the local work, and how it ended."""

    def execute(self, message: Message, arg: Any) -> CheckResult | Awaitable[CheckResult]: ...

    def check(self, message: Received) -> CheckResult | Awaitable[CheckResult]: ...


class Transaction:
    """One transaction. ``async with`` prepares it, and ends it."""

    def __init__(
        self, transactions: Transactions, message: Message, order_key: str | None, timeout_s: float | None
    ) -> None:
        self.message = message
        self.state: TransactionState | None = None  # None: it has not ended
        self._transactions = transactions
        self._order_key = order_key
        self._timeout_s = timeout_s
        self._receipt: Receipt | None = None

    @property
    def receipt(self) -> Receipt:
        """The receipt of the prepared message."""
        if self._receipt is None:
            raise KeroloxError("the transaction is not prepared: use it in `async with`")
        return self._receipt

    @property
    def id(self) -> str:
        """Id of the transaction in checks: the message's ``msg_id``."""
        return self.receipt.msg_id

    async def commit(self) -> None:
        """Deliver the message."""
        await self._end(TransactionState.COMMIT)

    async def rollback(self) -> None:
        """Drop the message."""
        await self._end(TransactionState.ROLLBACK)

    async def leave_open(self) -> None:
        """Decide later: the broker will ask, and ``check`` answers."""
        await self._end(TransactionState.UNKNOWN)

    async def __aenter__(self) -> Self:
        self._receipt = await self._transactions.prepare(
            self.message, self._timeout_s, order_key=self._order_key
        )
        return self

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        if self.state is None:
            await (self.commit() if kind is None else self.rollback())

    async def _end(self, state: TransactionState) -> None:
        if self.state is not None:
            raise KeroloxError(f"the transaction has ended already: {self.state.name}")
        self.state = state
        await self._transactions.end(self.message, self.receipt, state)


class Transactions:
    """The transactions of one producer."""

    def __init__(self, producer: Producer, check: Check | None) -> None:
        self._producer = producer
        self._check = check
        # Ended here, so a check can be answered without asking anybody: unique key → state.
        self._remembered: OrderedDict[str, TransactionState] = OrderedDict()
        self._slots = asyncio.Semaphore(CHECKS_AT_ONCE)

    @property
    def has_check(self) -> bool:
        return self._check is not None

    async def prepare(
        self, message: Message, timeout_s: float | None, *, order_key: str | None = None
    ) -> Receipt:
        """Store the message without delivering it."""
        producer = self._producer
        more = f"{names.TRANSACTION_PREPARED}\x01true\x02{names.PRODUCER_GROUP}\x01{producer.group}\x02"
        receipt = await producer.send_prepared(message, more, TRANSACTION_PREPARED, timeout_s, order_key)
        if not receipt.ok:
            # As in RocketMQ: what is not as safe as it should be does not begin.
            await self.end(message, receipt, TransactionState.ROLLBACK)
            raise SendFailed(message.topic, [], 0.0, f"prepared with {receipt.status.name}, rolled back")
        self._remember(receipt.msg_id, TransactionState.UNKNOWN)
        return receipt

    async def run(
        self, message: Message, listener: TransactionListener, arg: Any, timeout_s: float | None
    ) -> tuple[Receipt, TransactionState]:
        """Prepare, run the listener's ``execute``, and end as it says."""
        receipt = await self.prepare(message, timeout_s)
        state = TransactionState.UNKNOWN
        try:
            state = await verdict(listener.execute, message, arg)
        except Exception:
            log.exception("transaction_execute_failed msg_id=%s", receipt.msg_id)
        finally:
            await asyncio.shield(self.end(message, receipt, state))
        return receipt, state

    async def end(self, message: Message, receipt: Receipt, state: TransactionState) -> None:
        """Tell the broker; if that fails it will ask."""
        producer = self._producer
        self._remember(receipt.msg_id, state)
        keys = message.keys if isinstance(message.keys, str) else " ".join(message.keys)
        header = EndTransactionRequest(
            producer_group=producer.group,
            tran_state_table_offset=receipt.queue_offset,
            commit_log_offset=read_offset_id(receipt.offset_msg_id).physical_offset,
            commit_or_rollback=state,
            msg_id=receipt.msg_id,
            transaction_id=receipt.transaction_id,
            topic=producer.client.wire_name(message.topic),
            broker_name=receipt.queue.broker,
        )
        address = ""
        try:
            address = producer.client.address(receipt.queue.broker, exact=True)
            peer = await producer.client.peer(address, code=RequestCode.END_TRANSACTION)
            peer.tell(RequestCode.END_TRANSACTION, header)
        except KeroloxError as error:
            log.warning(
                "transaction_end_not_sent msg_id=%s state=%s error=%r next='the broker will ask'",
                receipt.msg_id,
                state.name,
                str(error),
            )
        self._trace(message.topic, receipt.msg_id, message.tags, keys, address, state, from_check=False)

    def checked(self, asked: Request[CheckTransaction], message: Received) -> None:
        """A broker asks how one ended."""
        self._producer.client.spawn(self._answer_check(asked, message))

    async def _answer_check(self, asked: Request[CheckTransaction], message: Received) -> None:
        async with self._slots:
            state = await self._state_of(message)
        header = asked.header
        answer = EndTransactionRequest(
            producer_group=self._producer.group,
            tran_state_table_offset=header.tran_state_table_offset,
            commit_log_offset=header.commit_log_offset,
            commit_or_rollback=state,
            from_transaction_check=True,
            msg_id=message.msg_id,
            transaction_id=header.transaction_id,
            topic=self._producer.client.wire_name(message.topic),
            broker_name=header.broker_name,
        )
        try:
            asked.caller.tell(RequestCode.END_TRANSACTION, answer)
        except KeroloxError as error:
            log.warning("transaction_check_not_answered msg_id=%s error=%r", message.msg_id, str(error))
        self._trace(
            message.topic,
            message.msg_id,
            message.tags,
            " ".join(message.keys),
            asked.caller.address,
            state,
            from_check=True,
        )

    async def _state_of(self, message: Received) -> TransactionState:
        known = self._remembered.get(message.msg_id)
        if known in (TransactionState.COMMIT, TransactionState.ROLLBACK):
            return known  # what we said got lost
        if self._check is None:
            if known is None:
                log.warning(
                    "transaction_check_unknown group=%s msg_id=%s next='give the producer a check'",
                    self._producer.group,
                    message.msg_id,
                )
            return TransactionState.UNKNOWN
        try:
            return await verdict(self._check, message)
        except Exception:
            log.exception("transaction_check_failed msg_id=%s", message.msg_id)
            return TransactionState.UNKNOWN

    def _remember(self, msg_id: str, state: TransactionState) -> None:
        self._remembered[msg_id] = state
        self._remembered.move_to_end(msg_id)
        if len(self._remembered) > REMEMBERED_MAX:
            self._remembered.popitem(last=False)

    def _trace(
        self,
        topic: str,
        msg_id: str,
        tags: str,
        keys: str,
        address: str,
        state: TransactionState,
        *,
        from_check: bool,
    ) -> None:
        tracer = self._producer.tracer
        if tracer is not None:
            tracer.ended_transaction(
                topic,
                msg_id,
                tags,
                keys,
                address=address,
                transaction_id=msg_id,
                state=_TRACE_WORDS[state],
                from_check=from_check,
            )


async def verdict(ask: Callable[..., Any], *args: Any) -> TransactionState:
    """Return the answer of a user's function; a plain one is called in a thread."""
    try:
        if inspect.iscoroutinefunction(ask):
            said = await ask(*args)
        else:
            said = await in_thread(None, ask, *args)
            if inspect.isawaitable(said):
                said = await said
    except (Exception, GeneratorExit, asyncio.CancelledError):
        raise
    except BaseException as error:  # SystemExit, say: it ends this question only, not the loop
        raise HandlerExit(error) from error
    if said is True:
        return TransactionState.COMMIT
    if said is False:
        return TransactionState.ROLLBACK
    return TransactionState.UNKNOWN if said is None else TransactionState(said)
