"""Batches: many messages of one topic in one request."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from kerolox.client.calls.outgoing import Outgoing
from kerolox.client.errors import InvalidMessage
from kerolox.client.message_types import wrong_field
from kerolox.client.messages import Message, Receipt
from kerolox.protocol.batch import encode_batch
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.reserved import RETRY_PREFIX


def check_batch(messages: Sequence[Message]) -> None:
    """Raises InvalidMessage for messages that cannot go together."""
    for message in messages:
        if not isinstance(message, Message):
            raise wrong_field(message) or TypeError
    first = messages[0]
    topic, wait_stored = first.topic, first.wait_stored
    if topic.startswith(RETRY_PREFIX):
        raise InvalidMessage("a batch cannot go to a retry topic")
    for message in messages:
        if message.topic != topic:
            raise InvalidMessage(f"a batch has one topic, not {topic!r} and {message.topic!r}")
        if message.wait_stored != wait_stored:
            raise InvalidMessage("all messages of a batch have the same wait_stored")
        if message.is_delayed:
            raise InvalidMessage("a message in a batch cannot be delayed")


def batches_of(items: Sequence[Outgoing], bytes_max: int, next_key: Callable[[], str]) -> Iterator[Outgoing]:
    """As few batches as their size allows."""
    whole = batch_of(items, next_key())
    if len(whole.body) <= bytes_max:
        yield whole
        return
    part: list[Outgoing] = []
    size = 0
    for item in items:
        item_bytes = item.item_bytes
        if part and size + item_bytes > bytes_max:
            yield batch_of(part, next_key())
            part, size = [], 0
        part.append(item)
        size += item_bytes
    yield batch_of(part, next_key())


def batch_of(items: Sequence[Outgoing], unique_key: str) -> Outgoing:
    """Many messages of one topic in one request."""
    first = items[0]
    wait = first.message.wait_stored if first.message is not None else True
    outgoing = Outgoing(
        first.topic,
        encode_batch([(item.flag, item.body, item.properties.encode()) for item in items]),
        # No unique key of the batch's own: brokers up to 5.3.3 give a batch's properties to each of its
        # messages, which would then all have that one.
        f"WAIT\x01{'true' if wait else 'false'}\x02",
        unique_key,
        born_ms=first.born_ms,
        code=RequestCode.SEND_BATCH_MESSAGE,
    )
    outgoing.items = items
    return outgoing


def receipts_of(receipt: Receipt, batch: Outgoing) -> list[Receipt]:
    """A receipt for every message of a batch."""
    ids = receipt.offset_msg_id.split(",")
    if len(ids) != len(batch.items):  # kept as one record, an inner batch: all lie at one place
        ids = [ids[0]] * len(batch.items)
    return [
        Receipt(
            receipt.status,
            item.unique_key,
            offset_msg_id,
            receipt.queue,
            receipt.queue_offset + number,
            None,
            None,
            receipt.region,
            receipt.trace_on,
        )
        for number, (item, offset_msg_id) in enumerate(zip(batch.items, ids, strict=True))
    ]
