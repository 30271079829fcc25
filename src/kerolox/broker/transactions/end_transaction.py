"""End of a transaction by its producer: END_TRANSACTION, and RESUME_CHECK_HALF_MESSAGE."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from typing import NamedTuple

from kerolox.access.guard import Guard
from kerolox.access.needs.kinds import CHANGES
from kerolox.access.needs.sending import END
from kerolox.broker.options import BrokerOptions
from kerolox.broker.role.leadership import Leadership
from kerolox.broker.transactions import half_messages
from kerolox.broker.transactions.counts import Counts
from kerolox.broker.transactions.finished_half_messages import FinishedHalfMessages
from kerolox.broker.transactions.half_messages import Open
from kerolox.broker.transactions.recent_half_messages import RecentHalfMessages
from kerolox.broker.write.delivery import Delivery, StillSaving
from kerolox.broker.write.intake import Intake
from kerolox.clock import Clock
from kerolox.errors import KeroloxError, ProtocolError, Refused
from kerolox.front.requests import Answer, Request
from kerolox.front.rows import serves
from kerolox.observers import Observers
from kerolox.protocol import reserved
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.flags import TRANSACTION_COMMIT, TRANSACTION_ROLLBACK
from kerolox.protocol.headers.transaction import EndTransactionRequest, ResumeCheckRequest
from kerolox.protocol.message import StoredMessage
from kerolox.protocol.message_id import read_offset_id
from kerolox.protocol.record import decode_record
from kerolox.store.errors import CorruptRecord
from kerolox.store.log.safe import Safe
from kerolox.store.message_store import MessageStore

log = logging.getLogger(__name__)


# Topics of abandoned half messages, and of those that a check put back.
_RESUMED = (reserved.CHECKED_TOO_OFTEN_TOPIC, reserved.HALF_TOPIC)

_WORDS = {TRANSACTION_COMMIT: "commit", TRANSACTION_ROLLBACK: "rollback"}


class _Ended(NamedTuple):
    """A request to be completed when the log is written."""

    request: Request[EndTransactionRequest]
    half: Open
    stored: tuple[str, int] | None  # topic and size of the committed message
    end: int  # of the committed message in the log; 0: there is none
    answer: Answer


class EndTransaction:
    """Handlers of END_TRANSACTION and RESUME_CHECK_HALF_MESSAGE."""

    def __init__(
        self,
        store: MessageStore,
        leadership: Leadership,
        intake: Intake,
        delivery: Delivery,
        finished: FinishedHalfMessages,
        recent: RecentHalfMessages,
        counts: Counts,
        options: BrokerOptions,
        clock: Clock,
        guard: Guard,
    ) -> None:
        self._store = store
        self._leadership = leadership
        self._intake = intake
        self._delivery = delivery
        self._finished = finished
        self._recent = recent
        self._counts = counts
        self._options = options
        self._clock = clock
        self._guard = guard
        self._waiting: list[_Ended] = []
        self._cold: set[asyncio.Task[None]] = set()
        # For statistics: topic, messages, bytes, times.
        self.on_stored: Observers[[str, int, int, int]] = Observers("messages committed")

    @serves(RequestCode.END_TRANSACTION, EndTransactionRequest, END, lane="transaction")
    def end(self, request: Request[EndTransactionRequest]) -> Answer | None:
        """Commit or roll back a half message."""
        header = request.header
        if not self._leadership.leads:
            return Answer(code=ResponseCode.SLAVE_NOT_AVAILABLE)
        if header.commit_or_rollback not in _WORDS:  # unknown yet; the producer is asked later
            log.info(
                "transaction_unknown group=%r id=%r from_check=%s by=%s remark=%r",
                header.producer_group, header.msg_id, header.from_transaction_check, request.caller.address,
                request.remark,
            )  # fmt: skip
            return None
        place = header.commit_log_offset
        known = self._recent.find(place)
        try:
            if known is not None and place >= self._store.log.min_offset:
                return self._carry_out(request, known)
            half = self._read_hot(place)
            if half is not None:
                return self._carry_out(request, _opened(half))
            saved = None
        except StillSaving as saving:
            saved = saving.wait()
        task = asyncio.get_running_loop().create_task(self._end_cold(request, saved))
        self._cold.add(task)
        task.add_done_callback(self._cold.discard)
        return None

    async def settled(self) -> None:
        """Wait until all requests received so far are completed."""
        if self._cold:
            await asyncio.wait(self._cold)

    async def _end_cold(self, request: Request[EndTransactionRequest], saved: Awaitable[None] | None) -> None:
        """Complete a request whose half message is on the disk, or whose dead-letter topic is being saved."""
        try:
            if saved is not None:
                await saved
            half = await self._read(request.header.commit_log_offset)
            answer = self._carry_out(request, _opened(half))
        except KeroloxError as error:
            answer = Answer(code=error.code, remark=str(error))
        if answer is not None:
            request.answer(answer)

    def _carry_out(self, request: Request[EndTransactionRequest], half: Open | None) -> Answer | None:
        """Commit or roll back. The request is answered when that is written."""
        header = request.header
        self._guard.check_ending(request, None if half is None else half.topic)
        if half is None:
            return Answer(code=ResponseCode.SYSTEM_ERROR, remark="Find prepared transaction message failed")
        if not header.from_transaction_check and half.is_too_late(
            self._clock.wall_ms(), self._options.transaction_timeout_ms
        ):
            return Answer(code=ResponseCode.ILLEGAL_OPERATION)
        wrong = _mismatch(half, header)
        if wrong is not None:
            return Answer(code=ResponseCode.SYSTEM_ERROR, remark=wrong)
        if self._finished.to_end(half.queue_offset) is None:
            log.info(
                "transaction_ended_again group=%r id=%r outcome=%s by=%s next='the first outcome stands'",
                header.producer_group, header.msg_id, _WORDS[header.commit_or_rollback],
                request.caller.address,
            )  # fmt: skip
            return Answer()
        self._store.state.check_writable()
        stored: tuple[str, int] | None = None
        end = 0
        answer = Answer()
        self._recent.forget(half.physical_offset)  # its pending message is used from here on
        if header.commit_or_rollback == TRANSACTION_COMMIT:
            pending = half.pending
            if pending is None:
                raise Refused(ResponseCode.SYSTEM_ERROR, "the half message does not name its topic and queue")
            at, _, size = self._delivery.append_or_park(pending)
            stored, end = (pending.topic, size), at + size
            if pending.refused is not None:
                remark = f"committed, but it cannot be delivered: {pending.refused}. It is in {pending.topic}"
                answer = Answer(code=ResponseCode.SYSTEM_ERROR, remark=remark)
        self._finished.end(half.queue_offset, end)
        if not self._waiting:
            self._intake.soon(self._written)
        self._waiting.append(_Ended(request, half, stored, end, answer))
        return None

    def _written(self, failed: KeroloxError | None) -> None:
        waiting, self._waiting = self._waiting, []
        if failed is not None:
            refused = Answer(code=failed.code, remark=str(failed))
            written = self._store.log.progress.appended
            for ended in waiting:
                if not 0 < ended.end <= written:
                    ended.request.answer(refused)
            # These were stored before the log had to go on in a new file.
            waiting = [ended for ended in waiting if 0 < ended.end <= written]
            if not waiting:
                return
        now_ms = self._clock.wall_ms()
        latencies: dict[str, list[int]] = {}
        sizes: dict[str, list[int]] = {}
        for _, half, stored, _, _ in waiting:
            if stored is None:
                self._counts.rolled_back(half.topic)
                continue
            latencies.setdefault(half.topic, []).append(now_ms - half.born_timestamp)
            sizes.setdefault(stored[0], []).append(stored[1])
        for topic, found in latencies.items():
            self._counts.committed(topic, found)
        for topic, found in sizes.items():
            self.on_stored(topic, len(found), sum(found), len(found))

        def answer(how: Safe) -> None:  # stored is sufficient, as in RocketMQ
            for ended in waiting:
                ended.request.answer(ended.answer)

        self._intake.when_safe(answer)

    @serves(RequestCode.RESUME_CHECK_HALF_MESSAGE, ResumeCheckRequest, CHANGES)
    async def resume(self, request: Request[ResumeCheckRequest]) -> Answer:
        """Check an abandoned half message again."""
        if not self._leadership.leads:
            return Answer(code=ResponseCode.SLAVE_NOT_AVAILABLE)
        try:
            place = read_offset_id(request.header.msg_id or "").physical_offset
        except KeroloxError:
            place = -1
        abandoned = await self._read(place)
        if abandoned is None or abandoned.topic not in _RESUMED:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                "Put message back to RMQ_SYS_TRANS_HALF_TOPIC failed: there is no message with this id.",
            )
        self._store.state.check_writable()
        self._intake.append_as_is(half_messages.resumed(abandoned))
        await self._intake.written()
        self._counts.prepared(half_messages.real_topic(abandoned))
        return Answer()

    def _read_hot(self, place: int) -> StoredMessage | None:
        """Return the message at an offset of the log if it is in memory. None if it is not, if there is no
        message, or if it cannot be read; a thread then distinguishes these."""
        try:
            record = self._store.named.hot(place)
            return None if record is None else decode_record(record)
        except ProtocolError:
            return None

    async def _read(self, place: int) -> StoredMessage | None:
        """Return the message at this offset; None if there is none. Raises Unreadable if it cannot be read
        now."""
        try:
            return decode_record(await self._store.named.record(place))
        except (CorruptRecord, ProtocolError):
            return None


def _opened(half: StoredMessage | None) -> Open | None:
    """Return the state of a half message that was read; None for any other message."""
    return None if half is None or half.topic != reserved.HALF_TOPIC else half_messages.opened(half)


def _mismatch(half: Open, header: EndTransactionRequest) -> str | None:
    """Return the contradiction between a request and the half message, in RocketMQ's words; None if they
    match."""
    if half.producer_group != header.producer_group:
        return "The producer group wrong"
    if half.queue_offset != header.tran_state_table_offset:
        return "The transaction state table offset wrong"
    if half.physical_offset != header.commit_log_offset:
        return "The commit log offset wrong"
    return None
