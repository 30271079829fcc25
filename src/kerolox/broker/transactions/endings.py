"""The end of a transaction, as its producer tells it: END_TRANSACTION, and RESUME_CHECK_HALF_MESSAGE."""

from __future__ import annotations

import logging
from collections.abc import Callable

from kerolox.broker import names
from kerolox.broker.drafts import Drafts
from kerolox.broker.log_writes import LogWrites
from kerolox.broker.options import BrokerOptions, BrokerRole
from kerolox.broker.transactions import half_messages
from kerolox.broker.transactions.counts import Counts
from kerolox.broker.transactions.ended import Ended
from kerolox.clock import Clock
from kerolox.dispatch.message_store import MessageStore, NotSafe
from kerolox.errors import KeroloxError, Refused
from kerolox.net.requests import Answer, Request
from kerolox.protocol.codes import ResponseCode
from kerolox.protocol.flags import TRANSACTION_COMMIT, TRANSACTION_ROLLBACK
from kerolox.protocol.headers.transaction import EndTransactionRequest, ResumeCheckRequest
from kerolox.protocol.message import StoredMessage
from kerolox.protocol.message_id import read_offset_id
from kerolox.protocol.record import decode_record
from kerolox.store.commit_log import Place
from kerolox.store.options import FlushMode

log = logging.getLogger(__name__)

_WORDS = {TRANSACTION_COMMIT: "commit", TRANSACTION_ROLLBACK: "rollback"}


class Endings:
    """37 and 323."""

    def __init__(
        self,
        store: MessageStore,
        drafts: Drafts,
        writes: LogWrites,
        ended: Ended,
        counts: Counts,
        options: BrokerOptions,
        clock: Clock,
    ) -> None:
        self._store = store
        self._drafts = drafts
        self._writes = writes
        self._ended = ended
        self._counts = counts
        self._options = options
        self._clock = clock
        self.on_stored: list[Callable[[str, int, int], None]] = []  # topic, messages, bytes: for statistics

    async def end(self, request: Request[EndTransactionRequest]) -> Answer | None:
        told = request.header
        outcome = told.commit_or_rollback
        if self._options.role is BrokerRole.SLAVE:
            return Answer(code=ResponseCode.SLAVE_NOT_AVAILABLE)
        if outcome not in _WORDS:  # not known yet: it is asked for later
            log.info(
                "transaction_unknown group=%s id=%s from_check=%s by=%s remark=%r",
                told.producer_group, told.msg_id, told.from_transaction_check, request.peer.address,
                request.command.remark,
            )  # fmt: skip
            return None
        half = await self._read(told.commit_log_offset)
        if half is None or half.topic != names.HALF_TOPIC:
            return Answer(code=ResponseCode.SYSTEM_ERROR, remark="Find prepared transaction message failed")
        if not told.from_transaction_check and half_messages.is_too_late(
            half, self._clock.wall_ms(), self._options.transaction_timeout_ms
        ):
            return Answer(code=ResponseCode.ILLEGAL_OPERATION)
        wrong = _mismatch(half, told)
        if wrong is not None:
            return Answer(code=ResponseCode.SYSTEM_ERROR, remark=wrong)
        # Nothing waits from here to the notes: nobody else ends it in between.
        if self._ended.to_end(half.queue_offset) is None:
            log.warning(
                "transaction_ended_again group=%s id=%s outcome=%s by=%s next='the first outcome stands'",
                told.producer_group, told.msg_id, _WORDS[outcome], request.peer.address,
            )  # fmt: skip
            return Answer()
        self._store.state.check_writable()
        place: Place | None = None
        if outcome == TRANSACTION_COMMIT:
            draft = half_messages.committed(half)
            place = self._drafts.put(draft)
            stored_topic = draft.topic
        self._ended.end(half)
        await self._writes.written()
        topic = half_messages.real_topic(half)
        if place is None:
            self._counts.rolled_back(topic)
            return Answer()
        for note in self.on_stored:
            note(stored_topic, 1, place[2])
        self._counts.committed(topic, self._clock.wall_ms() - half.born_timestamp)
        if self._options.flush_mode is FlushMode.SYNC:
            try:
                await self._store.wait_safe(place[0] + place[2])
            except NotSafe as slow:
                log.warning("commit_not_flushed id=%s error=%r", told.msg_id, str(slow))
        return Answer()

    async def resume(self, request: Request[ResumeCheckRequest]) -> Answer:
        """Check one again that was given up."""
        if self._options.role is BrokerRole.SLAVE:
            return Answer(code=ResponseCode.SLAVE_NOT_AVAILABLE)
        try:
            given = await self._read(read_offset_id(request.header.msg_id or "").physical_offset)
        except KeroloxError:
            given = None
        if given is None:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                "Put message back to RMQ_SYS_TRANS_HALF_TOPIC failed: there is no message with this id.",
            )
        self._store.state.check_writable()
        self._drafts.store(half_messages.resumed(given))
        await self._writes.written()
        self._counts.prepared(half_messages.real_topic(given))
        return Answer()

    async def _read(self, place: int) -> StoredMessage | None:
        try:
            return decode_record(await self._store.message_at(place))
        except KeroloxError:
            return None


def _mismatch(half: StoredMessage, told: EndTransactionRequest) -> str | None:
    """What is wrong with what a producer tells of a half message; the words are the original's."""
    if half_messages.producer_group(half) != told.producer_group:
        return "The producer group wrong"
    if half.queue_offset != told.tran_state_table_offset:
        return "The transaction state table offset wrong"
    if half.physical_offset != told.commit_log_offset:
        return "The commit log offset wrong"
    return None
