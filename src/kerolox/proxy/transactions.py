"""Ends of transactions, and the brokers' questions about open ones."""

from __future__ import annotations

from typing import Final

from kerolox.errors import KeroloxError
from kerolox.protocol import properties as packed
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.flags import TRANSACTION_COMMIT, TRANSACTION_ROLLBACK
from kerolox.protocol.grpc.messages import Code, Resolution, TransactionSource, make
from kerolox.protocol.grpc.schema import Message
from kerolox.protocol.headers.transaction import CheckTransaction, EndTransactionRequest
from kerolox.protocol.record import decode_record
from kerolox.proxy.checks import Rejected, check_topic, from_remoting, resource_name
from kerolox.proxy.clients import Visit
from kerolox.proxy.half_messages import HalfMessage, HalfMessages
from kerolox.proxy.messages import received

_ENDS: Final = {Resolution.COMMIT: TRANSACTION_COMMIT, Resolution.ROLLBACK: TRANSACTION_ROLLBACK}


class Transactions:
    """Requests that end transactions, and checks of those that did not."""

    def __init__(self, halves: HalfMessages) -> None:
        self._halves = halves

    async def end(self, visit: Visit, asked: Message) -> Message:
        """Commit or roll back a half message (EndTransaction)."""
        topic = check_topic(resource_name(asked.topic))
        await visit.check_sending(topic)
        transaction_id: str = asked.transaction_id
        if not transaction_id.strip():
            raise Rejected(Code.INVALID_TRANSACTION_ID, "the transaction id is blank")
        half = self._halves.get(topic, transaction_id)
        if half is None:
            raise Rejected(
                Code.INTERNAL_SERVER_ERROR,
                f"the half message of transaction {transaction_id!r} is not known here; the broker asks its "
                "producer about it later",
            )
        header = EndTransactionRequest(
            producer_group=topic,
            tran_state_table_offset=half.queue_offset,
            commit_log_offset=half.log_offset,
            commit_or_rollback=_ENDS.get(asked.resolution, 0),
            from_transaction_check=asked.source == TransactionSource.SERVER_CHECK,
            msg_id=asked.message_id,
            transaction_id=transaction_id,
            topic=topic,
        )
        answer = await visit.ask(half.broker_name, RequestCode.END_TRANSACTION, header)
        if answer.code != ResponseCode.SUCCESS:
            raise from_remoting(answer)
        if header.commit_or_rollback:
            self._halves.forget(topic, transaction_id)
        return make("EndTransactionResponse", status=make("Status", code=Code.OK, message="OK"))

    def check(self, header: CheckTransaction, body: bytes, broker_name: str) -> Message | None:
        """Return the command by which a client is asked how its transaction ended."""
        try:
            half = decode_record(body)
        except KeroloxError:
            return None
        table = half.properties
        topic = table.get(packed.REAL_TOPIC) or half.topic
        transaction_id = half.unique_key or header.transaction_id or ""
        place = HalfMessage(broker_name, header.tran_state_table_offset, header.commit_log_offset)
        self._halves.add(topic, transaction_id, place)
        command = make("TelemetryCommand")
        recover = command.recover_orphaned_transaction_command
        recover.transaction_id = transaction_id
        recover.message.CopyFrom(received(half, make("Resource", name=topic), None, 1))
        return command
