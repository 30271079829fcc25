"""Copies of popped messages: the retry message that replaces one, and the record of a retry as the client
gets it."""

from __future__ import annotations

import msgspec

from kerolox.broker.write.pending_message import PendingMessage
from kerolox.protocol import properties as packed
from kerolox.protocol.limits import PROPERTIES_BYTES_MAX
from kerolox.protocol.message import StoredMessage
from kerolox.protocol.record import CRC_PROPERTY_BYTES, encode_message

AT_FIRST_POP_TIME = packed.marker(packed.FIRST_POP_TIME)


def retry_of(message: StoredMessage, topic: str, pop_ms: int, host: bytes) -> PendingMessage:
    """Return the message for its retry topic: one more attempt, everything else as it was."""
    properties = packed.remove(message.packed_properties, packed.AT_CRC32)
    if message.reconsume_times == 0 or packed.find(properties, AT_FIRST_POP_TIME) is None:
        properties = _if_room(packed.replace(properties, packed.FIRST_POP_TIME, str(pop_ms)), properties)
    pending = PendingMessage.of(message, topic, 0, properties)
    pending.reconsume_times += 1
    pending.born_host, pending.store_host = host, None
    return pending


def with_handle(message: StoredMessage, topic: str, handle: str) -> bytes:
    """Return the record of a retry message under its normal topic, with its handle."""
    properties = packed.remove(message.packed_properties, packed.AT_CRC32)
    if packed.find(properties, packed.AT_POP_CHECKPOINT) is None:
        properties = packed.append(properties, packed.pack({packed.POP_CHECKPOINT: handle}))
    return encode_message(msgspec.structs.replace(message, topic=topic, packed_properties=properties))


def _if_room(longer: bytes, shorter: bytes) -> bytes:
    return longer if len(longer) + CRC_PROPERTY_BYTES <= PROPERTIES_BYTES_MAX else shorter
