"""What a leader delivered of its delay levels, as its follower finds it in the copy of the log.

A follower copies the table of delays every second, and the log at once. So the log knows better: a message
with a delay level that lies in its own topic was delivered, with all that were parked before it at its level.
(No client gets such a message in there: whatever asks for a delay is parked.)
"""

from __future__ import annotations

from kerolox.broker.later.delay_levels import AT_REAL_TOPIC, Unrestorable, level_of, restore
from kerolox.errors import KeroloxError, ProtocolError
from kerolox.protocol import properties as packed
from kerolox.protocol.message import StoredMessage
from kerolox.protocol.record import decode_record
from kerolox.protocol.record_scan import PHYSICAL_OFFSET, PROPERTIES, TOPIC, Entry
from kerolox.store.errors import StoreError
from kerolox.store.message_store import MessageStore
from kerolox.store.queue.consume_queue import ConsumeQueue

LOOK_MAX = 20_000  # parked messages that are compared with the last copy
_DELAY = packed.AT_DELAY[1:]


class DeliveredCopies:
    """Follows the dispatcher of a broker that follows."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._last: dict[int, int] = {}  # by level, where the copy lies that came last

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

    def delivered(self, level: int, queue: ConsumeQueue, offset: int) -> int:
        """Up to where a level was delivered, at least: from an offset on that was delivered. Waits for the
        disk."""
        place = self._last.get(level)
        if place is None:
            return offset
        try:
            copy = decode_record(self._store.log.record_at(place))
            for at in range(max(offset, queue.min_offset), min(queue.max_offset, offset + LOOK_MAX)):
                entry = queue.entry(at)
                if entry is None or entry[0] >= place:
                    break
                # Of two that are the same the first: it comes twice at worst.
                if is_copy(copy, decode_record(self._store.log.record_at(entry[0]))):
                    return at + 1
        except (StoreError, ProtocolError, Unrestorable):
            pass  # the log was cut, or its files are gone
        return offset


def is_copy(found: StoredMessage, parked: StoredMessage) -> bool:
    """Whether a message is a parked one as it was delivered. Raises Unrestorable."""
    wanted = restore(parked)
    return (
        found.topic == wanted.topic
        and found.queue_id == wanted.queue_id
        and found.body == wanted.body
        and found.born_timestamp == wanted.born_timestamp
        and packed.remove(found.packed_properties, packed.AT_CRC32).startswith(wanted.properties)
    )
