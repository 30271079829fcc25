"""Requests about popped messages, as the brokers take them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from kerolox.front.requests import Answer
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.grpc.messages import Code
from kerolox.protocol.headers.pop import AckRequest, ChangeInvisibleTimeAnswer, ChangeInvisibleTimeRequest
from kerolox.protocol.headers.send import SendBackRequest
from kerolox.proxy.checks import Rejected, from_remoting
from kerolox.proxy.clients import Visit
from kerolox.proxy.receipts import Receipt

# The message is no longer this client's: it gives up. With other codes it would ask again for ever.
_GONE: Final = {
    ResponseCode.NO_MESSAGE,
    ResponseCode.MESSAGE_ILLEGAL,
    ResponseCode.INVALID_PARAMETER,
    ResponseCode.TOPIC_NOT_EXIST,
}


class Pops:
    """Ends and changes of what a client has received."""

    def __init__(self, wall_ms: Callable[[], int]) -> None:
        self._wall_ms = wall_ms

    def check_time(self, receipt: Receipt) -> None:
        """Reject a receipt whose message is visible again."""
        if receipt.has_expired(self._wall_ms()):
            raise Rejected(
                Code.INVALID_RECEIPT_HANDLE, "the invisible time is over: the message is delivered again"
            )

    async def ack(self, visit: Visit, group: str, topic: str, receipt: Receipt) -> None:
        """Acknowledge a message. Raises Rejected."""
        handle = receipt.handle
        header = AckRequest(
            consumer_group=group,
            topic=receipt.topic(topic, group),
            queue_id=handle.queue_id,
            extra_info=str(handle),
            offset=handle.offset,
        )
        answer = await visit.ask(handle.broker_name, RequestCode.ACK_MESSAGE, header)
        _check(answer)

    async def change(
        self, visit: Visit, group: str, topic: str, receipt: Receipt, invisible_ms: int
    ) -> Receipt:
        """Hide a message for another time from now on. Return its new receipt. Raises Rejected."""
        handle = receipt.handle
        header = ChangeInvisibleTimeRequest(
            consumer_group=group,
            topic=receipt.topic(topic, group),
            queue_id=handle.queue_id,
            extra_info=str(handle),
            offset=handle.offset,
            invisible_time=invisible_ms,
        )
        answer = await visit.ask(handle.broker_name, RequestCode.CHANGE_MESSAGE_INVISIBLETIME, header)
        _check(answer)
        changed = answer.header
        assert isinstance(changed, ChangeInvisibleTimeAnswer)
        return receipt.changed(changed.pop_time, changed.invisible_time, changed.revive_qid)

    async def give_up(self, visit: Visit, group: str, topic: str, receipt: Receipt) -> None:
        """Store a message as a dead letter of its group, and acknowledge it. Raises Rejected."""
        if receipt.log_offset < 0:
            raise Rejected(
                Code.INVALID_RECEIPT_HANDLE, "the receipt handle does not name the record in the commit log"
            )
        header = SendBackRequest(
            offset=receipt.log_offset,
            group=group,
            delay_level=-1,
            origin_topic=receipt.topic(topic, group),
            max_reconsume_times=0,
        )
        answer = await visit.ask(receipt.handle.broker_name, RequestCode.CONSUMER_SEND_MSG_BACK, header)
        _check(answer)
        await self.ack(visit, group, topic, receipt)


def _check(answer: Answer) -> None:
    if answer.code == ResponseCode.SUCCESS:
        return
    if answer.code in _GONE:
        raise Rejected(Code.INVALID_RECEIPT_HANDLE, answer.remark or "the message is no longer this client's")
    raise from_remoting(answer)
