"""Giving out messages anew: each becomes a message of its group's retry topic."""

from __future__ import annotations

import logging
from enum import Enum

from kerolox.broker.members.groups import Groups
from kerolox.broker.options import BrokerOptions
from kerolox.broker.pop.checkpoint import QueueKey
from kerolox.broker.pop.copies import retry_of
from kerolox.broker.tables.topics import Topics
from kerolox.broker.write.intake import Intake
from kerolox.errors import ProtocolError
from kerolox.protocol.message import StoredMessage
from kerolox.protocol.pop.retry_topics import NORMAL, V1, V2, form_of, normal_topic, retry_topic
from kerolox.protocol.record import decode_record
from kerolox.store.errors import StoreError
from kerolox.store.message_store import MessageStore
from kerolox.store.queue.reading import QueueRead, ReadStatus
from kerolox.store.tables.offsets import ConsumerOffsets

log = logging.getLogger(__name__)

RETRY_QUEUES = 1
# Seconds until the next attempt to revive a message that could not be read, by the number of attempts; the
# last one repeats. RocketMQ's.
PAUSES_S = (10, 20, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)


class Lost(Enum):
    """Results of reading a message that is not found."""

    GONE = "deleted, or never there"
    UNREADABLE = "it may be read later"


class Retries:
    """Reading of popped messages, and their copies in retry topics."""

    def __init__(
        self,
        store: MessageStore,
        intake: Intake,
        topics: Topics,
        groups: Groups,
        offsets: ConsumerOffsets,
        options: BrokerOptions,
    ) -> None:
        self._store = store
        self._intake = intake
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._options = options
        self.made = 0  # since the start

    def topic_of(self, key: QueueKey) -> str:
        """Return the retry topic for messages of a queue; those of a retry topic stay there."""
        if form_of(key.topic) != NORMAL:
            return key.topic
        return retry_topic(key.topic, key.group, V2 if self._options.retry_v2 else V1)

    def is_gone(self, key: QueueKey) -> bool:
        """True if the normal topic or the group does not exist any more: nobody gets the messages."""
        topic = normal_topic(key.topic, key.group)
        return self._topics.find(topic) is None or self._groups.find(key.group) is None

    async def ready(self, key: QueueKey) -> str:
        """Return the retry topic. It is created at its first use, and on disk when this returns. Raises
        NotSaved."""
        topic = self.topic_of(key)
        self._topics.for_group(topic, RETRY_QUEUES)
        if topic in self._topics.unsaved:
            await self._topics.unsaved.saved(topic)
        if self._offsets.offset(topic, key.group, 0) < 0:
            self._offsets.commit(topic, key.group, 0, 0)
        return topic

    async def read(self, key: QueueKey, offset: int) -> StoredMessage | Lost:
        """Return the message at exactly this offset."""
        try:
            found = await self._store.queues.read(key.topic, key.queue_id, offset, 1)
            return _message_of(found, key, offset)
        except (StoreError, ProtocolError) as error:
            log.warning(
                "popped_message_unreadable topic=%r queue=%d offset=%d error=%r next='read again later'",
                key.topic, key.queue_id, offset, str(error),
            )  # fmt: skip
            return Lost.UNREADABLE

    def append(self, message: StoredMessage, topic: str, pop_ms: int) -> int:
        """Append the retry message. Return its end in the log. Raises what the log raises."""
        place = self._intake.append_as_is(retry_of(message, topic, pop_ms, self._store.log.store_host))
        self.made += 1
        return place[0] + place[2]


def _message_of(found: QueueRead, key: QueueKey, offset: int) -> StoredMessage | Lost:
    if found.status is ReadStatus.OFFSET_FOUND_NULL and offset >= found.min_offset:
        return Lost.UNREADABLE
    if found.status is not ReadStatus.FOUND or found.next_offset != offset + 1:
        return Lost.GONE
    message = decode_record(b"".join(found.parts))
    if message.topic == key.topic and (message.queue_id, message.queue_offset) != (key.queue_id, offset):
        return Lost.GONE
    return message


def pause_s(tries: int) -> float:
    return PAUSES_S[min(tries, len(PAUSES_S) - 1)]
