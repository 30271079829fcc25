r"""A message's properties: the reserved names, and the packed text ``name \x01 value \x02 ...``.

The packed bytes travel and are stored as they are; most readers want one or two values of them.
:func:`find` reaches a single value without building a table, in a third of the time.

There is no escaping. Writers before 4.9.1 and since 5.2.0 end the last property with ``\x02``,
those between do not; readers take both. See MESSAGE.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kerolox.errors import InvalidRequest

NAME_END: Final = b"\x01"
VALUE_END: Final = b"\x02"

# --- set by whoever sends ------------------------------------------------------------------------
KEYS: Final = "KEYS"  # separated by spaces; each can be searched for
TAGS: Final = "TAGS"  # one tag
WAIT: Final = "WAIT"  # "false": answer before the message is flushed and replicated
DELAY: Final = "DELAY"  # a level of the delay table
UNIQUE_KEY: Final = "UNIQ_KEY"  # the message id a client made
INSTANCE_ID: Final = "INSTANCE_ID"  # namespace of the producer
SHARDING_KEY: Final = "__SHARDINGKEY"
START_DELIVER_TIME: Final = "__STARTDELIVERTIME"
BUYER_ID: Final = "BUYER_ID"
EXTEND_UNIQUE_INFO: Final = "EXTEND_UNIQ_INFO"
TRACE_CONTEXT: Final = "TRACE_CONTEXT"

# --- delays to any time --------------------------------------------------------------------------
TIMER_DELAY_S: Final = "TIMER_DELAY_SEC"
TIMER_DELAY_MS: Final = "TIMER_DELAY_MS"
TIMER_DELIVER_MS: Final = "TIMER_DELIVER_MS"
TIMER_OUT_MS: Final = "TIMER_OUT_MS"
TIMER_ENQUEUE_MS: Final = "TIMER_ENQUEUE_MS"
TIMER_DEQUEUE_MS: Final = "TIMER_DEQUEUE_MS"
TIMER_ROLL_TIMES: Final = "TIMER_ROLL_TIMES"
TIMER_DELETE_UNIQUE_KEY: Final = "TIMER_DEL_UNIQKEY"
TIMER_DELAY_LEVEL: Final = "TIMER_DELAY_LEVEL"

# --- transactions, and messages parked under another topic ---------------------------------------
TRANSACTION_PREPARED: Final = "TRAN_MSG"  # "true": a half message
PRODUCER_GROUP: Final = "PGROUP"
TRANSACTION_ID: Final = "__transactionId__"
TRANSACTION_CHECK_TIMES: Final = "TRANSACTION_CHECK_TIMES"
TRANSACTION_PREPARED_QUEUE_OFFSET: Final = "TRAN_PREPARED_QUEUE_OFFSET"
CHECK_IMMUNITY_S: Final = "CHECK_IMMUNITY_TIME_IN_SECONDS"
REAL_TOPIC: Final = "REAL_TOPIC"
REAL_QUEUE_ID: Final = "REAL_QID"

# --- retries and dead letters --------------------------------------------------------------------
RETRY_TOPIC: Final = "RETRY_TOPIC"
ORIGIN_MESSAGE_ID: Final = "ORIGIN_MESSAGE_ID"
RECONSUME_TIME: Final = "RECONSUME_TIME"
MAX_RECONSUME_TIMES: Final = "MAX_RECONSUME_TIMES"
DLQ_ORIGIN_TOPIC: Final = "DLQ_ORIGIN_TOPIC"
DLQ_ORIGIN_MESSAGE_ID: Final = "DLQ_ORIGIN_MESSAGE_ID"
RETRY_REASON: Final = "KEROLOX_RETRY_REASON"  # why it was given back last; Apache's know no such thing
RETRY_REASON_BYTES_MAX: Final = 512

# --- added by the broker -------------------------------------------------------------------------
CLUSTER: Final = "CLUSTER"
MSG_REGION: Final = "MSG_REGION"
TRACE_ON: Final = "TRACE_ON"
INNER_NUM: Final = "INNER_NUM"
INNER_BASE: Final = "INNER_BASE"
INNER_MULTI_DISPATCH: Final = "INNER_MULTI_DISPATCH"
INNER_MULTI_QUEUE_OFFSET: Final = "INNER_MULTI_QUEUE_OFFSET"
CRC32: Final = "__CRC32#"
DUP_INFO: Final = "DUP_INFO"
BORN_HOST: Final = "__BORNHOST"
BORN_TIMESTAMP: Final = "BORN_TIMESTAMP"
FORWARD_QUEUE_ID: Final = "PROPERTY_FORWARD_QUEUE_ID"
REDIRECT: Final = "REDIRECT"

# --- added by the consumer -----------------------------------------------------------------------
MIN_OFFSET: Final = "MIN_OFFSET"
MAX_OFFSET: Final = "MAX_OFFSET"
CONSUME_START_TIME: Final = "CONSUME_START_TIME"
TRANSIENT_PREFIX: Final = "__RMQ.TRANSIENT."
TRANSIENT_TOPIC_SYS_FLAG: Final = TRANSIENT_PREFIX + "TOPIC_SYS_FLAG"
TRANSIENT_GROUP_SYS_FLAG: Final = TRANSIENT_PREFIX + "GROUP_SYS_FLAG"

# --- pop -----------------------------------------------------------------------------------------
POP_CHECKPOINT: Final = "POP_CK"
POP_CHECKPOINT_OFFSET: Final = "POP_CK_OFFSET"
FIRST_POP_TIME: Final = "1ST_POP_TIME"

# --- request and reply ---------------------------------------------------------------------------
MESSAGE_TYPE: Final = "MSG_TYPE"  # "reply"
CORRELATION_ID: Final = "CORRELATION_ID"
REPLY_TO_CLIENT: Final = "REPLY_TO_CLIENT"
TTL: Final = "TTL"
ARRIVE_TIME: Final = "ARRIVE_TIME"
PUSH_REPLY_TIME: Final = "PUSH_REPLY_TIME"

# --- left from long ago --------------------------------------------------------------------------
TRANSFER_FLAG: Final = "TRANSFER_FLAG"
CORRECTION_FLAG: Final = "CORRECTION_FLAG"
MQ2_FLAG: Final = "MQ2_FLAG"

# Names a user's own properties may not have.
RESERVED: Final = frozenset({
    KEYS, TAGS, WAIT, DELAY, UNIQUE_KEY, INSTANCE_ID, BUYER_ID, EXTEND_UNIQUE_INFO,
    TIMER_DELAY_S, TIMER_DELAY_MS, TIMER_DELIVER_MS, TIMER_OUT_MS, TIMER_ENQUEUE_MS, TIMER_DEQUEUE_MS,
    TIMER_ROLL_TIMES, TIMER_DELETE_UNIQUE_KEY, TIMER_DELAY_LEVEL,
    TRANSACTION_PREPARED, PRODUCER_GROUP, TRANSACTION_PREPARED_QUEUE_OFFSET, REAL_TOPIC, REAL_QUEUE_ID,
    RETRY_TOPIC, ORIGIN_MESSAGE_ID, RECONSUME_TIME, MAX_RECONSUME_TIMES, DLQ_ORIGIN_TOPIC,
    DLQ_ORIGIN_MESSAGE_ID, CLUSTER, MSG_REGION, TRACE_ON, INNER_MULTI_QUEUE_OFFSET, CRC32, DUP_INFO,
    BORN_HOST, BORN_TIMESTAMP, MIN_OFFSET, MAX_OFFSET, CONSUME_START_TIME,
    POP_CHECKPOINT, POP_CHECKPOINT_OFFSET, FIRST_POP_TIME,
    MESSAGE_TYPE, CORRELATION_ID, REPLY_TO_CLIENT, TTL, ARRIVE_TIME, PUSH_REPLY_TIME,
    TRANSFER_FLAG, CORRECTION_FLAG, MQ2_FLAG,
})  # fmt: skip


def marker(name: str) -> bytes:
    r"""Return the bytes before a value in the packed text: ``\x02name\x01``. Compute it once and keep it."""
    return VALUE_END + name.encode() + NAME_END


def plain_reason(text: str) -> str:
    """Return a reason in the form that a property can hold: one line, limited, without separators."""
    line = " ".join("".join(letter if letter.isprintable() else " " for letter in text[:4096]).split())
    return line.encode("utf-8", "replace")[:RETRY_REASON_BYTES_MAX].decode("utf-8", "ignore")


AT_KEYS: Final = marker(KEYS)
AT_TAGS: Final = marker(TAGS)
AT_UNIQUE_KEY: Final = marker(UNIQUE_KEY)
AT_WAIT: Final = marker(WAIT)
AT_DELAY: Final = marker(DELAY)
AT_TRANSACTION_PREPARED: Final = marker(TRANSACTION_PREPARED)
AT_INNER_NUM: Final = marker(INNER_NUM)
AT_INNER_BASE: Final = marker(INNER_BASE)
AT_INNER_MULTI_DISPATCH: Final = marker(INNER_MULTI_DISPATCH)
AT_INNER_MULTI_QUEUE_OFFSET: Final = marker(INNER_MULTI_QUEUE_OFFSET)
AT_TIMER_DELAY_S: Final = marker(TIMER_DELAY_S)
AT_TIMER_DELAY_MS: Final = marker(TIMER_DELAY_MS)
AT_TIMER_DELIVER_MS: Final = marker(TIMER_DELIVER_MS)
AT_POP_CHECKPOINT: Final = marker(POP_CHECKPOINT)
AT_CRC32: Final = marker(CRC32)


def find(packed: bytes, mark: bytes) -> bytes | None:
    """Return the value after a :func:`marker`; None if it is missing or empty.

    Agrees with :func:`unpack`: if a name occurs twice the last non-empty value counts.
    """
    at = packed.rfind(mark)
    while at >= 0:
        start = at + len(mark)
        stop = packed.find(b"\x02", start)
        if stop > start:
            return packed[start:stop]
        if stop < 0 and start < len(packed):
            return packed[start:]
        at = packed.rfind(mark, 0, at)  # an empty value counts for nothing: look before it
    if packed.startswith(mark[1:]):
        start = len(mark) - 1
        stop = packed.find(b"\x02", start)
        return packed[start : stop if stop >= 0 else len(packed)] or None
    return None


def unpack(packed: bytes) -> dict[str, str]:
    """Return all properties. Items without a name or value are skipped, as in all peers."""
    table: dict[str, str] = {}
    for item in packed.decode("utf-8", "replace").split("\x02"):
        name, _, value = item.partition("\x01")
        if name and value:
            table[name] = value
    return table


def pack(table: Mapping[str, str | None]) -> bytes:
    r"""Return the packed text, with each value terminated by ``\x02``. Names with the value None are omitted.

    Text that would be decoded differently is rejected: a name that is empty or contains a separator, a value
    with ``\x02``. (``\x01`` in a value survives; some clients cannot read it.)
    """
    parts: list[str] = []
    for name, value in table.items():
        if value is None:
            continue
        if not name or "\x01" in name or "\x02" in name or "\x02" in value:
            raise InvalidRequest(
                f"property {name!r} = {value!r}: a name must not be empty, and neither may hold the "
                r"separators \x01 and \x02. Encode such a value, as Base64 for instance."
            )
        parts += (name, "\x01", value, "\x02")
    return "".join(parts).encode("utf-8", "replace")


def append(packed: bytes, more: bytes) -> bytes:
    r"""Return both texts, with a ``\x02`` between them if the first lacks it."""
    if not packed or not more or packed.endswith(b"\x02"):
        return packed + more
    return b"%b\x02%b" % (packed, more)


def remove(packed: bytes, mark: bytes) -> bytes:
    """Return the text without the property of a :func:`marker`, however often it occurs."""
    if mark not in packed and not packed.startswith(mark[1:]):
        return packed
    start = mark[1:]
    return b"\x02".join([item for item in packed.split(b"\x02") if not item.startswith(start)])


def replace(packed: bytes, name: str, value: str) -> bytes:
    """Return the text with one property set to a value, as the last one."""
    return append(remove(packed, marker(name)), pack({name: value}))
