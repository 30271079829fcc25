"""Delivered messages of a leader's delay levels, found by its follower in the copied log.

A follower copies the table of delays every second, and the log at once, so the log is newer: a message with a
delay level in its own topic was delivered, together with all messages parked before it at its level. (No
client can store a message there with a delay level, since it would be parked.)
"""

from __future__ import annotations

from kerolox.broker.later.delay_levels import AT_REAL_TOPIC, level_of, restore
from kerolox.errors import KeroloxError, ProtocolError
from kerolox.protocol import properties as packed
from kerolox.protocol.message import StoredMessage
from kerolox.protocol.record import decode_record
from kerolox.protocol.record_scan import PHYSICAL_OFFSET, PROPERTIES, TOPIC, Entry
from kerolox.store.errors import StoreError
from kerolox.store.message_store import MessageStore
from kerolox.store.queue.queues import Queue

LOOK_MAX = 20_000  # parked messages compared with the last copy
_DELAY = packed.AT_DELAY[1:]


class DeliveredCopies:
    """Listener of the dispatcher of a broker that follows."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._last: dict[int, int] = {}  # place of the newest copy, by level

    def dispatched(self, entries: list[Entry]) -> None:
        for entry in entries:
            properties = entry[PROPERTIES]
            if _DELAY in properties and packed.find(properties, AT_REAL_TOPIC) == entry[TOPIC]:
                try:
                    level = level_of(properties)
                except KeroloxError:
                    continue
                if level > 0:
                    self._last[level] = entry[PHYSICAL_OFFSET]

    def delivered(self, level: int, queue: Queue, offset: int) -> int:
        """Return a lower bound of a level's progress, starting at a delivered offset. Waits for the disk."""
        place = self._last.get(level)
        if place is None:
            return offset
        try:
            copy = decode_record(self._store.log.record_at(place))
            for at in range(max(offset, queue.min_offset), min(queue.max_offset, offset + LOOK_MAX)):
                entry = queue.entry(at)
                if entry is None or entry[0] >= place:
                    break
                # The first of two equal messages: at worst it is delivered twice.
                if is_copy(copy, decode_record(self._store.log.record_at(entry[0]))):
                    return at + 1
        except (StoreError, ProtocolError):
            pass  # the log was truncated, or its files were deleted
        return offset


def is_copy(found: StoredMessage, parked: StoredMessage) -> bool:
    """True if a message is the delivered form of a parked one."""
    wanted = restore(parked)
    return (
        wanted.refused is None
        and found.topic == wanted.topic
        and found.queue_id == wanted.queue_id
        and found.body == parked.body
        and found.born_timestamp == parked.born_timestamp
        and packed.remove(found.packed_properties, packed.AT_CRC32).startswith(wanted.properties)
    )
