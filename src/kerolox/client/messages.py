"""Messages of the client API: outgoing messages, receipts, and received messages."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from enum import IntEnum
from typing import NamedTuple

import msgspec

from kerolox.client.errors import InvalidMessage
from kerolox.client.message_types import wrong_field
from kerolox.errors import ProtocolError
from kerolox.protocol import properties as names
from kerolox.protocol.batch import unwrap
from kerolox.protocol.bodies.body import MessageQueue
from kerolox.protocol.codes import ResponseCode
from kerolox.protocol.compression import decompress
from kerolox.protocol.flags import COMPRESSED, COMPRESSION_MASK, INNER_BATCH
from kerolox.protocol.limits import INFLATED_BLOCK_BYTES_MAX
from kerolox.protocol.message import StoredMessage
from kerolox.protocol.record import decode_records, read_records

log = logging.getLogger(__name__)


class Queue(NamedTuple):
    """Queue of a topic, the unit of ordering."""

    topic: str
    broker: str
    queue_id: int

    @classmethod
    def of(cls, queue: MessageQueue) -> Queue:
        """Convert from the wire form."""
        return cls(queue.topic, queue.broker_name, queue.queue_id)

    def wire(self) -> MessageQueue:
        """Convert to the wire form."""
        return MessageQueue(self.topic, self.broker, self.queue_id)


class _Addressed(msgspec.Struct):
    topic: str
    body: bytes | str  # text is sent as UTF-8


class Message(_Addressed, kw_only=True):
    """Outgoing message.

    At most one of ``delay_level`` (1 to 18: 1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h),
    ``delay`` (seconds, or a timedelta) and ``deliver_at`` (seconds since 1970, or a datetime) may be given.
    """

    tags: str = ""  # one tag, for filters of consumers
    keys: str | Sequence[str] = ()  # keys for lookups; without blanks
    properties: dict[str, str] = {}
    delay_level: int = 0
    delay: float | timedelta | None = None
    deliver_at: float | datetime | None = None
    flag: int = 0  # number for the application; ignored by brokers
    wait_stored: bool = True  # False: the response does not wait for flush and replication
    unique_key: str = ""  # default: set by the producer

    def body_bytes(self) -> bytes:
        body = self.body
        if type(body) is bytes:
            return body
        if isinstance(body, str):
            return body.encode()
        if isinstance(body, bytes | bytearray | memoryview):
            return bytes(body)
        raise TypeError("body")  # bytes(number) would be that many zeros

    @property
    def is_delayed(self) -> bool:
        return bool(self.delay_level) or self.delay is not None or self.deliver_at is not None

    def pack(self, unique_key: str, more: str = "") -> str:
        """Return the packed properties. ``more``: further packed properties.

        Raises TypeError for a field of a wrong type; see :mod:`kerolox.client.message_types`.
        """
        text = f"UNIQ_KEY\x01{unique_key}\x02WAIT\x01{'true' if self.wait_stored else 'false'}\x02"
        tags, keys = self.tags, self.keys
        if not isinstance(tags, str) or keys is None:
            raise TypeError("tags, keys")
        if tags:
            text = f"TAGS\x01{tags}\x02{text}"
        if keys:
            text = f"KEYS\x01{keys if isinstance(keys, str) else ' '.join(keys)}\x02{text}"
        if (tags or keys or self.unique_key) and text.count("\x02") != 2 + bool(tags) + bool(keys):
            raise InvalidMessage(f"tags {tags!r}, keys {keys!r}: \\x02 is not allowed in them")
        if self.delay_level or self.delay is not None or self.deliver_at is not None:
            text = self._pack_delay() + text
        if self.properties:
            text = _pack_own(self.properties) + text
        return text + more if more else text

    def _pack_delay(self) -> str:
        if bool(self.delay_level) + (self.delay is not None) + (self.deliver_at is not None) > 1:
            raise InvalidMessage("only one of delay_level, delay and deliver_at may be given")
        wrong = wrong_field(self)
        if wrong is not None:
            raise wrong
        if self.delay_level:
            if self.delay_level < 0:
                raise InvalidMessage(f"delay_level {self.delay_level}: levels start at 1")
            return f"{names.DELAY}\x01{self.delay_level}\x02"
        if self.delay is not None:
            delay_s = self.delay.total_seconds() if isinstance(self.delay, timedelta) else self.delay
            if not 0 <= delay_s < math.inf:
                raise InvalidMessage(f"delay {self.delay}: expected a duration of 0 or more seconds")
            return f"{names.TIMER_DELAY_MS}\x01{round(delay_s * 1000)}\x02"
        at = self.deliver_at
        at_s = at.timestamp() if isinstance(at, datetime) else float(at or 0)
        if not math.isfinite(at_s):
            raise InvalidMessage(f"deliver_at {at}: expected a finite time")
        return f"{names.TIMER_DELIVER_MS}\x01{round(at_s * 1000)}\x02"


def _pack_own(properties: dict[str, str]) -> str:
    parts: list[str] = []
    for name, value in properties.items():
        if name in names.RESERVED:
            raise InvalidMessage(f"property {name!r} is reserved; use the message's fields, or another name")
        if not isinstance(value, str) or not isinstance(name, str):
            raise InvalidMessage(f"property {name!r} = {value!r}: names and values are text")
        if not name or not value:
            raise InvalidMessage(f"property {name!r} = {value!r}: readers drop empty names and values")
        if "\x01" in name or "\x02" in name or "\x02" in value:
            raise InvalidMessage(
                f"property {name!r} = {value!r}: \\x01 and \\x02 separate properties. "
                "Encode such a value, as Base64 for instance"
            )
        parts.append(f"{name}\x01{value}\x02")
    return "".join(parts)


class SendStatus(IntEnum):
    """Durability of a stored message. All but OK: stored, but not (yet) flushed or replicated as required."""

    OK = ResponseCode.SUCCESS
    FLUSH_DISK_TIMEOUT = ResponseCode.FLUSH_DISK_TIMEOUT
    SLAVE_NOT_AVAILABLE = ResponseCode.SLAVE_NOT_AVAILABLE
    FLUSH_SLAVE_TIMEOUT = ResponseCode.FLUSH_SLAVE_TIMEOUT


class Receipt(msgspec.Struct, frozen=True, gc=False):
    """Receipt of a stored message, with its position."""

    status: SendStatus
    msg_id: str  # the unique key, which consumers receive as the message's id
    offset_msg_id: str  # broker address and log offset
    queue: Queue
    queue_offset: int
    transaction_id: str | None = None
    recall_handle: str | None = None  # of a message delayed to a time: argument of recall
    region: str = "DefaultRegion"
    trace_on: bool = True

    @property
    def ok(self) -> bool:
        """True if the message was stored, flushed and replicated as required."""
        return self.status == 0


class Received(StoredMessage, gc=False):
    """Received message.

    ``body`` is as its sender wrote it. Properties, ids and hosts are decoded on access, so that programs that
    read only bodies do not pay for them.
    """

    @property
    def tags(self) -> str:
        return self.tag

    @property
    def broker(self) -> str:
        """Name of the broker that delivered the message."""
        return self.broker_name

    @property
    def queue(self) -> Queue:
        return Queue(self.topic, self.broker_name, self.queue_id)

    @property
    def msg_id(self) -> str:
        """Id of the message, as in its sender's receipt; the offset id if it has no unique key."""
        return self.unique_key or self.offset_id

    @property
    def offset_msg_id(self) -> str:
        return self.offset_id

    @property
    def born_at(self) -> datetime:
        return datetime.fromtimestamp(self.born_timestamp / 1000, UTC)

    @property
    def stored_at(self) -> datetime:
        return datetime.fromtimestamp(self.store_timestamp / 1000, UTC)

    @property
    def text(self) -> str:
        """Body, decoded as UTF-8."""
        return self.body.decode()

    def get(self, name: str, default: str = "") -> str:
        """Return the value of a property."""
        return self.properties.get(name, default)


def decode_received(data: bytes, broker: str = "") -> list[Received]:
    """Return the messages of a pull response, with inner batches unwrapped and bodies inflated."""
    return list(iter_received(data, broker))


def decode_some(data: bytes, broker: str = "") -> tuple[list[Received], int | None]:
    """Return the first messages of a pull response, and the offset of the next one to pull again, or None.

    The inflated bodies fit into INFLATED_BLOCK_BYTES_MAX; at least one message is returned.
    """
    found, flags = _records(data, broker)
    if not flags & COMPRESSED:
        return (list(_flat(found, broker)) if flags & INNER_BATCH else found), None
    messages: list[Received] = []
    size_bytes = 0
    for message in found:
        offset, is_compressed = message.queue_offset, bool(message.sys_flag & COMPRESSED)
        inflate(message)
        size_bytes += len(message.body) if is_compressed else 0
        if size_bytes > INFLATED_BLOCK_BYTES_MAX and messages:
            return messages, offset
        messages += _unwrapped(message, broker)
    return messages, None


def iter_received(data: bytes, broker: str = "") -> Iterator[Received]:
    """Yield the messages like :func:`decode_received`. A body is inflated when its message is taken."""
    found, flags = _records(data, broker)
    return _flat(found, broker) if flags & (COMPRESSED | INNER_BATCH) else iter(found)


def _records(data: bytes, broker: str) -> tuple[list[Received], int]:
    """Return the messages as stored, and the union of their flags."""
    found = read_records(data, 0, Received, broker)
    if found is None:
        return decode_records(data, make=Received), 0  # raises the error
    return found


def _flat(messages: Iterable[Received], broker: str) -> Iterator[Received]:
    for message in messages:
        inflate(message)
        yield from _unwrapped(message, broker)


def _unwrapped(message: Received, broker: str) -> Sequence[Received]:
    if not message.sys_flag & INNER_BATCH:
        return (message,)
    inner = [received(one) for one in unwrap(message)]
    for one in inner:
        one.broker_name = broker
    return inner


def inflate(message: Received) -> None:
    """Inflate the body of a message; one that cannot be inflated stays as it is stored."""
    if not message.sys_flag & COMPRESSED:
        return
    try:
        message.body = decompress(message.body, message.sys_flag)
        message.sys_flag &= ~(COMPRESSED | COMPRESSION_MASK)
    except ProtocolError as error:
        # Delivered as stored, with its flags: withholding it would stop the queue.
        log.warning(
            "body_not_inflated topic=%s queue=%d offset=%d msg_id=%s error=%r next='look at its sender'",
            message.topic, message.queue_id, message.queue_offset, message.msg_id, str(error),
        )  # fmt: skip


def received(message: StoredMessage) -> Received:
    """Convert a stored message to a received one."""
    if isinstance(message, Received):
        return message
    return Received(*[getattr(message, name) for name in StoredMessage.__struct_fields__])
