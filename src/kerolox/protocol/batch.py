"""Many messages in one body, see MESSAGE.md, "Batch".

The broker expands a batch into one record per message, or on some topics keeps it as one record (an *inner
batch*) that the consumer unwraps.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final, TypeAlias
from zlib import crc32

from kerolox.errors import InvalidRequest, ProtocolError
from kerolox.protocol import properties as names
from kerolox.protocol.flags import INNER_BATCH, NEEDS_UNWRAP
from kerolox.protocol.limits import BATCH_MESSAGE_COUNT_MAX
from kerolox.protocol.message import StoredMessage
from kerolox.protocol.record import encode_record

# (flag, body, packed properties)
Item: TypeAlias = tuple[int, bytes, bytes]

ITEM_BYTES_MIN: Final = 22
_HEAD = struct.Struct(">12xii")  # size, magic and CRC are not looked at; flag, body length
_pack_head = struct.Struct(">iiiii").pack
_pack_length = struct.Struct(">h").pack
_unpack_head = _HEAD.unpack_from


def encode_batch(items: Iterable[Item]) -> bytes:
    """Return the body of a batch."""
    parts: list[bytes] = []
    try:
        for flag, body, properties in items:
            parts += (
                _pack_head(22 + len(body) + len(properties), 0, 0, flag, len(body)),
                body,
                _pack_length(len(properties)),
                properties,
            )
    except struct.error as error:
        raise InvalidRequest(
            f"message {len(parts) // 4} of the batch (flag {flag}, {len(properties)} bytes of properties) "
            f"does not fit its fields: {error}"
        ) from error
    return b"".join(parts)


def split_batch(body: bytes) -> list[Item]:
    """Return the messages of a batch. As in RocketMQ, an item's size field is ignored; its fields are read in
    turn."""
    items: list[Item] = []
    append = items.append
    unpack = _unpack_head
    at = 0
    end = len(body)
    try:
        while at < end:
            flag, length = unpack(body, at)
            body_at = at + 20
            body_end = body_at + length
            properties_at = body_end + 2
            stop = properties_at + (body[body_end] << 8 | body[body_end + 1])
            if length < 0 or stop > end or stop - properties_at > 32767:
                raise _broken(
                    len(items), at, f"body length {length}, properties length {stop - properties_at}"
                )
            append((flag, body[body_at:body_end], body[properties_at:stop]))
            at = stop
    except (struct.error, IndexError):
        raise _broken(len(items), at, f"{end - at} bytes are left") from None
    if len(items) > BATCH_MESSAGE_COUNT_MAX:
        raise ProtocolError(
            f"a batch of {len(items)} messages; at most {BATCH_MESSAGE_COUNT_MAX} (BATCH_MESSAGE_COUNT_MAX)"
        )
    return items


def encode_batch_records(
    items: Iterable[Item],
    queue_id: int,
    queue_offset: int,
    physical_offset: int,
    sys_flag: int,
    born_timestamp: int,
    born_host: bytes,
    store_timestamp: int,
    store_host: bytes,
    reconsume_times: int,
    topic_field: bytes,
    batch_properties: bytes = b"",
) -> list[bytes]:
    """Return a record for each item, contiguous in queue and log.

    ``batch_properties`` are added to each item's own. They must not contain the batch's UNIQ_KEY, which would
    replace every item's (a bug of RocketMQ up to 5.3.3; later versions add nothing).
    """
    records: list[bytes] = []
    for flag, body, properties in items:
        if batch_properties:
            properties = names.append(properties, batch_properties)
        record = encode_record(
            queue_id,
            flag,
            queue_offset,
            physical_offset,
            sys_flag,
            born_timestamp,
            born_host,
            store_timestamp,
            store_host,
            reconsume_times,
            0,
            body,
            topic_field,
            properties,
        )
        records.append(record)
        queue_offset += 1
        physical_offset += len(record)
    return records


def unwrap(message: StoredMessage) -> list[StoredMessage]:
    """Return the messages of an inner batch, numbered from its queue offset; any other message is returned as
    it is."""
    if message.sys_flag & (INNER_BATCH | NEEDS_UNWRAP) != INNER_BATCH | NEEDS_UNWRAP:
        return [message]
    return [
        StoredMessage(
            topic=message.topic,
            body=body,
            queue_id=message.queue_id,
            queue_offset=message.queue_offset + number,
            physical_offset=message.physical_offset,
            packed_properties=properties,
            flag=flag,
            sys_flag=message.sys_flag,
            born_timestamp=message.born_timestamp,
            born_host=message.born_host,
            store_timestamp=message.store_timestamp,
            store_host=message.store_host,
            reconsume_times=message.reconsume_times,
            body_crc=crc32(body) & 0x7FFF_FFFF,
            broker_name=message.broker_name,
        )
        for number, (flag, body, properties) in enumerate(split_batch(message.body))
    ]


def _broken(number: int, at: int, what: str) -> ProtocolError:
    return ProtocolError(f"message {number} of a batch is cut off or damaged: {what}", at=at)
