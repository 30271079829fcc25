"""Messages as a client's user sees them: what is sent, the receipt for it, and what is received."""

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
    """One queue of a topic: where order is kept."""

    topic: str
    broker: str
    queue_id: int

    @classmethod
    def of(cls, queue: MessageQueue) -> Queue:
        """From the wire's form."""
        return cls(queue.topic, queue.broker_name, queue.queue_id)

    def wire(self) -> MessageQueue:
        """In the wire's form."""
        return MessageQueue(self.topic, self.broker, self.queue_id)


class _Addressed(msgspec.Struct):
    topic: str
    body: bytes | str  # text is sent as UTF-8


class Message(_Addressed, kw_only=True):
    """A message to send.

    At most one of ``delay_level`` (1 to 18: 1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h),
    ``delay`` (seconds, or a timedelta) and ``deliver_at`` (seconds since 1970, or a datetime) may be given.
    """

    tags: str = ""  # one tag: consumers choose by it
    keys: str | Sequence[str] = ()  # what it can be looked up by; no blanks in them
    properties: dict[str, str] = {}
    delay_level: int = 0
    delay: float | timedelta | None = None
    deliver_at: float | datetime | None = None
    flag: int = 0  # a number for your own use; no peer looks at it
    wait_stored: bool = True  # False: the answer does not wait for flush and replicas
    unique_key: str = ""  # given by the producer, unless you give one

    def body_bytes(self) -> bytes:
        body = self.body
        if type(body) is bytes:
            return body
        if isinstance(body, str):
            return body.encode()
        if isinstance(body, bytes | bytearray | memoryview):
            return bytes(body)
        raise TypeError("body")  # of a number bytes() would make so many zeros

    @property
    def is_delayed(self) -> bool:
        return bool(self.delay_level) or self.delay is not None or self.deliver_at is not None

    def pack(self, unique_key: str, more: str = "") -> str:
        """The properties as they travel. ``more`` are further ones, packed.

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
            raise InvalidMessage(f"tags {tags!r}, keys {keys!r}: they must not hold \\x02")
        if self.delay_level or self.delay is not None or self.deliver_at is not None:
            text = self._pack_delay() + text
        if self.properties:
            text = _pack_own(self.properties) + text
        return text + more if more else text

    def _pack_delay(self) -> str:
        if bool(self.delay_level) + (self.delay is not None) + (self.deliver_at is not None) > 1:
            raise InvalidMessage("of delay_level, delay and deliver_at only one may be given")
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
                raise InvalidMessage(f"delay {self.delay}: it is in the past, or no time at all")
            return f"{names.TIMER_DELAY_MS}\x01{round(delay_s * 1000)}\x02"
        at = self.deliver_at
        at_s = at.timestamp() if isinstance(at, datetime) else float(at or 0)
        if not math.isfinite(at_s):
            raise InvalidMessage(f"deliver_at {at}: no point in time")
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
    """How safe a stored message is. All but OK: stored, but not (yet) as the broker was told to keep it."""

    OK = ResponseCode.SUCCESS
    FLUSH_DISK_TIMEOUT = ResponseCode.FLUSH_DISK_TIMEOUT
    SLAVE_NOT_AVAILABLE = ResponseCode.SLAVE_NOT_AVAILABLE
    FLUSH_SLAVE_TIMEOUT = ResponseCode.FLUSH_SLAVE_TIMEOUT


class Receipt(msgspec.Struct, frozen=True, gc=False):
    """Where a message was stored."""

    status: SendStatus
    msg_id: str  # the unique key: what consumers see as the message's id
    offset_msg_id: str  # where it lies
    queue: Queue
    queue_offset: int
    transaction_id: str | None = None
    recall_handle: str | None = None  # of a message delayed to a time: what recall takes
    region: str = "DefaultRegion"
    trace_on: bool = True

    @property
    def ok(self) -> bool:
        """Stored, and as safe as the broker was told to keep it."""
        return self.status == 0


class Received(StoredMessage, gc=False):
    """A message that was received.

    ``body`` is as its sender wrote it. Properties, ids and hosts are read when asked for, so that who
    reads bodies alone does not pay for them.
    """

    @property
    def tags(self) -> str:
        return self.tag

    @property
    def broker(self) -> str:
        """The name of the broker it came from."""
        return self.broker_name

    @property
    def queue(self) -> Queue:
        return Queue(self.topic, self.broker_name, self.queue_id)

    @property
    def msg_id(self) -> str:
        """What its sender's receipt says; the place it lies at when it came without an id."""
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
        """The body as text."""
        return self.body.decode()

    def get(self, name: str, default: str = "") -> str:
        """One property."""
        return self.properties.get(name, default)


def decode_received(data: bytes, broker: str = "") -> list[Received]:
    """The messages in the body of a pull answer: inner batches unwrapped, bodies inflated."""
    return list(iter_received(data, broker))


def decode_some(data: bytes, broker: str = "") -> tuple[list[Received], int | None]:
    """The first messages in the body of a pull answer whose bodies, inflated, fit into
    INFLATED_BLOCK_BYTES_MAX, one at least; and the offset of the next one, to be pulled again, if there is
    one."""
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
    """As :func:`decode_received`, one after the other: a body is inflated when its message is taken."""
    found, flags = _records(data, broker)
    return _flat(found, broker) if flags & (COMPRESSED | INNER_BATCH) else iter(found)


def _records(data: bytes, broker: str) -> tuple[list[Received], int]:
    """The messages as they are stored, and all their flags."""
    found = read_records(data, 0, Received, broker)
    if found is None:
        return decode_records(data, make=Received), 0  # says what is wrong
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
        # Given as it came, with its flags: to keep it back would stop the queue.
        log.warning(
            "body_not_inflated topic=%s queue=%d offset=%d msg_id=%s error=%r next='look at its sender'",
            message.topic, message.queue_id, message.queue_offset, message.msg_id, str(error),
        )  # fmt: skip


def received(message: StoredMessage) -> Received:
    """A stored message as a received one."""
    if isinstance(message, Received):
        return message
    return Received(*[getattr(message, name) for name in StoredMessage.__struct_fields__])
