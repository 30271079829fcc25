"""Messages as clients send and receive them, and as brokers store them."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Mapping
from typing import Final

import msgspec

from kerolox.protocol import properties as packed
from kerolox.protocol.flags import COMPRESSED, COMPRESSION_ZLIB, TRANSACTION_PREPARED
from kerolox.protocol.grpc.messages import Code, DigestType, Encoding, MessageType, make
from kerolox.protocol.grpc.schema import Message
from kerolox.protocol.limits import INFLATED_BODY_BYTES_MAX
from kerolox.protocol.message import StoredMessage
from kerolox.proxy.checks import (
    HIDDEN,
    Rejected,
    check_keys,
    check_lite_topic,
    check_message_group,
    check_properties,
    check_tag,
)

LITE_TOPIC: Final = "__LITE_TOPIC"
PRIORITY: Final = "_SYS_MSG_PRIORITY_"
BODY_BYTES_MAX: Final = 4 * 1024 * 1024
DELAY_MS_MAX: Final = 86_400_000
RECOVERY_S_MAX: Final = 3_600
_GZIP: Final = b"\x1f\x8b"
_AUTO_DETECT: Final = 32  # zlib's window bits: gzip or zlib, by the first bytes


class Outgoing(msgspec.Struct, frozen=True):
    """A client's message in the form that brokers store."""

    body: bytes
    properties: dict[str, str]
    sys_flag: int
    born_ms: int
    type: MessageType
    message_id: str
    message_group: str
    priority: int


def outgoing(message: Message, topic: str, now_ms: int, peer: str) -> Outgoing:
    """Check a message and return it as brokers store it. Raises Rejected."""
    system = message.system_properties
    body, sys_flag = _body(message)
    user = dict(message.user_properties)
    keys = list(system.keys)
    if system.HasField("tag"):
        check_tag(system.tag)
    check_keys(keys)
    check_properties(user, system.tag, keys)
    if not system.message_id.strip():
        raise Rejected(Code.ILLEGAL_MESSAGE_ID, "the message id is blank")
    table = dict(user)
    if system.tag:
        table[packed.TAGS] = system.tag
    if keys:
        table[packed.KEYS] = " ".join(keys)
    table[packed.UNIQUE_KEY] = system.message_id
    table[packed.PRODUCER_GROUP] = topic
    table[packed.BORN_HOST] = system.born_host or peer
    born_ms = system.born_timestamp.ToMilliseconds() if system.HasField("born_timestamp") else now_ms
    table[packed.BORN_TIMESTAMP] = str(born_ms)
    if system.HasField("trace_context"):
        table[packed.TRACE_CONTEXT] = system.trace_context
    sys_flag |= _set_type(system, table, now_ms)
    return Outgoing(
        body=body,
        properties=table,
        sys_flag=sys_flag,
        born_ms=born_ms,
        type=type_of(table),
        message_id=system.message_id,
        message_group=system.message_group,
        priority=system.priority,
    )


def _body(message: Message) -> tuple[bytes, int]:
    """Return the body and the flags of its compression."""
    body: bytes = message.body
    if not body:
        raise Rejected(Code.MESSAGE_BODY_EMPTY, "the body is empty")
    if len(body) > BODY_BYTES_MAX:
        raise Rejected(
            Code.MESSAGE_BODY_TOO_LARGE, f"a body of {len(body)} bytes, the limit is {BODY_BYTES_MAX}"
        )
    if message.system_properties.body_encoding != Encoding.GZIP:
        return body, 0
    if body.startswith(_GZIP):  # consumers by remoting cannot read gzip
        return zlib.compress(_inflated(body)), COMPRESSED | COMPRESSION_ZLIB
    return body, COMPRESSED


def _inflated(body: bytes) -> bytes:
    machine = zlib.decompressobj(_AUTO_DETECT + zlib.MAX_WBITS)
    try:
        plain = machine.decompress(body, INFLATED_BODY_BYTES_MAX)
    except zlib.error as error:
        raise Rejected(Code.MESSAGE_CORRUPTED, f"the body is no gzip data: {error}") from error
    if not machine.eof:
        raise Rejected(
            Code.MESSAGE_CORRUPTED,
            f"the body is incomplete, or inflates to more than {INFLATED_BODY_BYTES_MAX} bytes",
        )
    return plain


def _set_type(system: Message, table: dict[str, str], now_ms: int) -> int:
    """Set the properties that make a message more than a normal one. Return the flags of a half message."""
    flag = 0
    if system.message_type == MessageType.TRANSACTION:
        table[packed.TRANSACTION_PREPARED] = "true"
        flag = TRANSACTION_PREPARED
        if system.HasField("orphaned_transaction_recovery_duration"):
            recovery_s = system.orphaned_transaction_recovery_duration.seconds
            if not 0 <= recovery_s <= RECOVERY_S_MAX:
                raise Rejected(
                    Code.BAD_REQUEST,
                    f"a transaction is checked after {recovery_s} s, the limit is {RECOVERY_S_MAX} s",
                )
            table[packed.CHECK_IMMUNITY_S] = str(recovery_s)
    if system.HasField("delivery_timestamp"):
        deliver_ms = system.delivery_timestamp.ToMilliseconds()
        if deliver_ms - now_ms > DELAY_MS_MAX:
            raise Rejected(
                Code.ILLEGAL_DELIVERY_TIME,
                f"delivery in {deliver_ms - now_ms} ms, the limit is {DELAY_MS_MAX} ms",
            )
        table[packed.TIMER_DELIVER_MS] = str(deliver_ms)
    if system.HasField("message_group"):
        check_message_group(system.message_group)
        table[packed.SHARDING_KEY] = system.message_group
    if system.HasField("lite_topic"):
        check_lite_topic(system.lite_topic)
        table[LITE_TOPIC] = system.lite_topic
    if system.HasField("priority"):
        if system.priority < 0:
            raise Rejected(Code.BAD_REQUEST, f"priority {system.priority} is below 0")
        table[PRIORITY] = str(system.priority)
    return flag


def type_of(table: Mapping[str, str]) -> MessageType:
    """Return what the properties make of a message."""
    if table.get(packed.TRANSACTION_PREPARED) == "true":
        return MessageType.TRANSACTION
    if any(name in table for name in _DELAYS):
        return MessageType.DELAY
    if packed.SHARDING_KEY in table:
        return MessageType.FIFO
    if PRIORITY in table:
        return MessageType.PRIORITY
    if LITE_TOPIC in table:
        return MessageType.LITE
    return MessageType.NORMAL


_DELAYS: Final = (packed.DELAY, packed.TIMER_DELIVER_MS, packed.TIMER_DELAY_S, packed.TIMER_DELAY_MS)


def received(stored: StoredMessage, topic: Message, handle: str | None, attempt: int) -> Message:
    """Return a stored message as clients receive it: its body plain, with a digest."""
    table = stored.properties
    body = stored.plain_body()
    made = make("Message", topic=topic, body=body)
    made.user_properties.update({name: value for name, value in table.items() if name not in HIDDEN})
    system = made.system_properties
    if stored.tag:
        system.tag = stored.tag
    system.keys.extend(stored.keys)
    system.message_id = stored.message_id
    system.body_digest.type = DigestType.MD5
    system.body_digest.checksum = hashlib.md5(body, usedforsecurity=False).hexdigest().upper()
    system.body_encoding = Encoding.IDENTITY
    system.message_type = type_of(table)
    system.born_timestamp.FromMilliseconds(stored.born_timestamp)
    system.born_host = table.get(packed.BORN_HOST) or stored.born_address
    system.store_timestamp.FromMilliseconds(stored.store_timestamp)
    system.store_host = stored.store_address
    deliver_ms = table.get(packed.TIMER_DELIVER_MS, "")
    if deliver_ms.isdigit() and len(deliver_ms) < 16:
        system.delivery_timestamp.FromMilliseconds(int(deliver_ms))
    if packed.SHARDING_KEY in table:
        system.message_group = table[packed.SHARDING_KEY]
    if packed.TRACE_CONTEXT in table:
        system.trace_context = table[packed.TRACE_CONTEXT]
    if LITE_TOPIC in table:
        system.lite_topic = table[LITE_TOPIC]
    priority = table.get(PRIORITY, "")
    if priority.isdigit() and len(priority) < 10:
        system.priority = int(priority)
    if handle is not None:
        system.receipt_handle = handle
    system.queue_id = stored.queue_id
    system.queue_offset = stored.queue_offset
    system.delivery_attempt = attempt
    origin = table.get(packed.DLQ_ORIGIN_TOPIC), table.get(packed.DLQ_ORIGIN_MESSAGE_ID)
    if origin[0] and origin[1]:
        system.dead_letter_queue.topic, system.dead_letter_queue.message_id = origin
    return made
