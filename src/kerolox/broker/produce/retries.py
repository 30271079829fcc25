"""Messages that a group could not consume: retried later, and dead letters after too many attempts.

A consumer sends a message back by its place in the log (CONSUMER_SEND_MSG_BACK). The broker stores a copy,
which is delivered to the group's retry topic after a delay that grows with every attempt, or a dead letter. A
client that could not send it back this way sends it to the retry topic itself; the same limit applies.

After the answer the consumer commits its offset past the message. So with synchronous flush SUCCESS is
answered only when the copy is on the disk; RocketMQ does not wait for that.
"""

from __future__ import annotations

import logging
import random

from kerolox.access.guard import Guard
from kerolox.access.needs.kinds import on
from kerolox.access.needs.names import SUB
from kerolox.broker import names
from kerolox.broker.endpoints import Endpoints
from kerolox.broker.figures.stats import Statistics
from kerolox.broker.members.groups import Groups
from kerolox.broker.members.queue_locks import QueueLocks
from kerolox.broker.options import BrokerOptions
from kerolox.broker.tables.topics import Topics
from kerolox.broker.write.admission import Admission, goes_to_a_group
from kerolox.broker.write.delivery import DEAD_LETTER_QUEUES, Delivery, StillSaving
from kerolox.broker.write.intake import Intake
from kerolox.broker.write.pending_message import OnParked, PendingMessage
from kerolox.errors import KeroloxError, ProtocolError, Refused
from kerolox.front.requests import Answer, Request
from kerolox.front.rows import serves
from kerolox.protocol import properties as packed
from kerolox.protocol.bodies.groups import GroupConfig
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.flags import PERM_WRITE
from kerolox.protocol.headers.send import SendBackRequest, SendRequest
from kerolox.protocol.limits import PROPERTIES_BYTES_MAX
from kerolox.protocol.message import StoredMessage
from kerolox.protocol.record import decode_record
from kerolox.protocol.reserved import SCHEDULE_TOPIC
from kerolox.store.errors import CorruptRecord
from kerolox.store.log.acks import NotCopied, NotSafe
from kerolox.store.log.cursors import AppendRefused
from kerolox.store.message_store import MessageStore

log = logging.getLogger(__name__)

FIRST_LEVEL = 3  # of the delay table: the first attempt comes after 10 s
OWN_LIMIT_VERSION = 121  # clients since 3.4.9 may set the limit of attempts

_AT_RETRY_TOPIC = packed.marker(packed.RETRY_TOPIC)
_ROOM_BYTES = 1024  # for the properties that delay levels add
_AT_REASON = packed.marker(packed.RETRY_REASON)
_AT_ORIGIN_MESSAGE_ID = packed.marker(packed.ORIGIN_MESSAGE_ID)


class Retries:
    """Handlers of CONSUMER_SEND_MSG_BACK (36), and of sends to a retry topic."""

    def __init__(
        self,
        store: MessageStore,
        admission: Admission,
        intake: Intake,
        delivery: Delivery,
        topics: Topics,
        groups: Groups,
        queue_locks: QueueLocks,
        stats: Statistics,
        options: BrokerOptions,
        endpoints: Endpoints,
        guard: Guard,
    ) -> None:
        self._store = store
        self._admission = admission
        self._intake = intake
        self._delivery = delivery
        self._topics = topics
        self._groups = groups
        self._queue_locks = queue_locks
        self._stats = stats
        self._options = options
        self._endpoints = endpoints
        self._guard = guard

    # --- sent back by a consumer -----------------------------------------------------------------------

    @serves(RequestCode.CONSUMER_SEND_MSG_BACK, SendBackRequest, on(SUB, group="group"), lane="send")
    async def send_back(self, request: Request[SendBackRequest]) -> Answer:
        """Deliver a message again later, or make it a dead letter."""
        asked = request.header
        self._admission.check_taking()
        self._admission.check_replicas(b"")
        group = self._group(asked.group)
        if not self._options.writable:
            raise Refused(
                ResponseCode.NO_PERMISSION,
                f"the broker[{self._endpoints.host}] sending message is forbidden: its "
                f"brokerPermission is {self._options.permission}",
            )
        if group.retry_queue_nums <= 0:
            return Answer()  # the group wants no retries: the message is dropped
        topic = self._topics.for_group(
            names.retry_topic(asked.group), group.retry_queue_nums, unit=asked.unit_mode
        )
        # The consumer moves on after the answer, so the topic must be on disk before the copy is.
        await self._topics.unsaved.saved(topic.topic_name)
        if not topic.perm & PERM_WRITE:
            raise Refused(
                ResponseCode.NO_PERMISSION, f"the topic[{topic.topic_name}] sending message is forbidden"
            )
        try:
            message = decode_record(await self._store.named.record(asked.offset))
        except (CorruptRecord, ProtocolError) as error:
            self._guard.check_reading(request, None, asked.group)
            raise Refused(
                ResponseCode.SYSTEM_ERROR, f"look message by offset failed, {asked.offset}: {error}"
            ) from error
        # The copy is delivered to the group; without this check any message could be copied.
        self._guard.check_reading(request, message.topic, asked.group)
        limit = _limit(group, request.caller.version, asked.max_reconsume_times)
        dead = message.reconsume_times >= limit or asked.delay_level < 0
        if dead:
            topic = self._topics.for_group(names.dead_letter_topic(asked.group), DEAD_LETTER_QUEUES)
            await self._topics.unsaved.saved(topic.topic_name)
            queues, level = DEAD_LETTER_QUEUES, 0
        else:
            queues = group.retry_queue_nums
            level = asked.delay_level or FIRST_LEVEL + message.reconsume_times
        pending = copy_of(message, topic.topic_name, random.randrange(queues), level, asked.reason or "")
        origin = (packed.find(pending.properties, _AT_RETRY_TOPIC) or b"").decode("utf-8", "replace")
        size_bytes = await self._put(pending)
        if pending.topic == SCHEDULE_TOPIC:
            self._stats.stored(pending.topic, 1, size_bytes)
        self._stats.sent_back(asked.group, origin)
        if dead or pending.refused is not None:
            self._dead(asked.group, asked.origin_topic or origin, message)
        return Answer()

    async def _put(self, pending: PendingMessage) -> int:
        """Store a copy. Return the size of its record. Errors are in RocketMQ's words."""
        try:
            try:
                place = self._delivery.append_or_park(pending)
            except StillSaving as saving:
                await saving.wait()
                place = self._delivery.append_as_is(pending)
            await self._intake.safe(place)
        except NotCopied:
            # While no follower is connected, a rejection would duplicate each message at every attempt.
            return place[2]
        except NotSafe as error:
            # The consumer tries again, and the group may get the message once more than it failed.
            raise Refused(ResponseCode.SYSTEM_ERROR, f"FLUSH_DISK_TIMEOUT: {error}") from error
        except AppendRefused as error:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"{error.status}: {error}") from error
        except KeroloxError as error:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"SERVICE_NOT_AVAILABLE: {error}") from error
        return place[2]

    # --- sent by a client itself -------------------------------------------------------------------------

    def redirect(self, request: Request[SendRequest], pending: PendingMessage) -> OnParked | None:
        """Check a send to a retry topic: its group must exist, and after too many attempts it becomes a dead
        letter."""
        if not goes_to_a_group(pending.topic):
            return None
        name = names.group_of_retry_topic(pending.topic)
        group = self._group(name)
        sent = request.header
        times = sent.reconsume_times or 0
        limit = _limit(group, request.caller.version, sent.max_reconsume_times)
        # A consumer of ordered queues retries locally, and sends only messages that have failed for good.
        if times <= limit and not self._queue_locks.held(name):
            return None
        topic = self._topics.for_group(names.dead_letter_topic(name), DEAD_LETTER_QUEUES)
        pending.topic = topic.topic_name
        pending.queue_id = random.randrange(DEAD_LETTER_QUEUES)
        pending.properties = packed.replace(pending.properties, packed.DELAY, "-1")
        return lambda _, __: self._stats.sent_back(sent.producer_group, sent.topic, dead=True)

    # --- shared --------------------------------------------------------------------------------------------

    def _group(self, name: str) -> GroupConfig:
        config = self._groups.config(name)
        if config is None:
            raise Refused(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group not exist, {name}. Create it: kerolox group create {name}. "
                "Or let the broker create groups: autoCreateSubscriptionGroup=true.",
            )
        return config

    def _dead(self, group: str, topic: str, message: StoredMessage) -> None:
        self._stats.sent_back(group, topic, dead=True)
        log.info(
            "dead_letter group=%r topic=%r message=%r attempts=%d",
            group,
            topic,
            message.message_id,
            message.reconsume_times + 1,
        )


def copy_of(
    message: StoredMessage, topic: str, queue_id: int, level: int, reason: str = ""
) -> PendingMessage:
    """Return a copy of the message for another topic, with one more attempt and the reason for it."""
    properties = names.believed_origin(message.topic, message.packed_properties)
    if packed.find(properties, _AT_RETRY_TOPIC) is None:
        properties = packed.replace(properties, packed.RETRY_TOPIC, message.topic)
    if not (packed.find(properties, _AT_ORIGIN_MESSAGE_ID) or b"").strip():
        properties = packed.replace(properties, packed.ORIGIN_MESSAGE_ID, message.offset_id)
    properties = packed.replace(properties, packed.WAIT, "false")
    properties = packed.replace(properties, packed.DELAY, str(level))
    properties = packed.remove(properties, _AT_REASON)
    if reason:  # from a peer: kept only if there is room
        with_reason = packed.replace(properties, packed.RETRY_REASON, packed.plain_reason(reason))
        if len(with_reason) + _ROOM_BYTES <= PROPERTIES_BYTES_MAX:
            properties = with_reason
    # Without the CRC of the record it was read from.
    pending = PendingMessage.of(message, topic, queue_id, packed.remove(properties, packed.AT_CRC32))
    pending.reconsume_times += 1
    pending.store_host = None  # this broker
    return pending


def _limit(group: GroupConfig, version: int, asked: int | None) -> int:
    """Return the limit of attempts: the client's, if its version can set one."""
    return asked if asked is not None and version >= OWN_LIMIT_VERSION else group.retry_max_times
