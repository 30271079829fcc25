"""May this be sent to that topic and queue now? Each rule stands here, and only here.

Single sends, batches, runs of plain sends and replies ask. A run asks once for each topic and queue it does
not know, and once for each time it is about to take something; what it was told is kept as a target, for as
long as that holds: see :mod:`kerolox.broker.write.targets`. Whether the one who sends may do so is not asked
here: the guard decides it before every handler, and runs ask the guard (:mod:`kerolox.access.guard`).
"""

from __future__ import annotations

import logging
import random
from typing import Final

from kerolox.broker import names
from kerolox.broker.absent import refuse_inner_batch
from kerolox.broker.endpoints import Endpoints
from kerolox.broker.leadership import Leadership
from kerolox.broker.options import BrokerOptions
from kerolox.broker.tables.topics import Topics
from kerolox.clock import Clock
from kerolox.errors import InvalidRequest, KeroloxError, Overloaded, Refused
from kerolox.protocol import properties as packed
from kerolox.protocol import reserved
from kerolox.protocol.batch import Item
from kerolox.protocol.bodies.topics import TopicConfig
from kerolox.protocol.codes import ResponseCode
from kerolox.protocol.headers.send import SendRequest
from kerolox.protocol.limits import PROPERTIES_BYTES_MAX
from kerolox.store.log.acks import Acks
from kerolox.store.log.cursors import LIGHT_PREFIX, AppendRefused, PropertiesTooLong
from kerolox.store.state import StoreState

log = logging.getLogger(__name__)

_LIGHT_QUEUE = LIGHT_PREFIX.encode()
BATCH_ITEM_BYTES = 22  # what a batch needs for a message beside body and properties

# Words in properties about which somebody has something to say before the message is stored: delays, timers,
# transactions. What looks like one may be part of a value: those who rewrite look closer.
REWRITTEN: Final = (b"DELAY", b"TIMER_", b"TRAN_MSG")
_DELAY, _TIMER, _TRANSACTION = REWRITTEN
# The same for runs, which also leave to the handlers what only those take out of the properties.
STOPS: Final = (*REWRITTEN, b"POP_CK")


class Admission:
    """The rules, from those of the whole broker to those of one queue."""

    def __init__(
        self,
        acks: Acks,
        state: StoreState,
        leadership: Leadership,
        endpoints: Endpoints,
        topics: Topics,
        options: BrokerOptions,
        clock: Clock,
        light_queues: set[bytes] | None = None,
    ) -> None:
        self._acks = acks
        self._state = state
        self._leadership = leadership
        self._endpoints = endpoints
        self._topics = topics
        self._options = options
        self._clock = clock
        # The light queues there are; None where messages do not go into those they name.
        self._light_queues = light_queues

    # --- the broker ----------------------------------------------------------------------------------

    def check_taking(self) -> None:
        """Raise when the broker takes no messages now."""
        refused = self._not_taking()
        if refused is not None:
            raise refused

    @property
    def takes_runs(self) -> bool:
        """Whether nothing about the broker stands in the way of a message; if something does, the handlers
        say what."""
        return (
            not self._state.obstacles
            and not self._options.accept_sends_from_ms
            and self._not_taking() is None
            and self._acks.lacks_replicas is None
        )

    def _not_taking(self) -> KeroloxError | None:
        if not self._leadership.leads:
            if self._leadership.waits_for:
                return Refused(
                    ResponseCode.SERVICE_NOT_AVAILABLE,
                    f"this broker has not been told yet whether it leads: {self._leadership.waits_for}. Send "
                    "to another one, or again in a moment",
                )
            if self._options.controlled:
                # Another one may lead since a moment ago: a code at which clients ask name servers who does.
                why = self._state.why_follows or "this broker follows another one"
                return Refused(ResponseCode.SERVICE_NOT_AVAILABLE, f"{why}: send to the one that leads")
            if self._options.acting:
                return Refused(
                    ResponseCode.SERVICE_NOT_AVAILABLE,
                    "this broker follows another one, and stores no messages that are put to it, whether the "
                    "other one lives or not: send to a broker of another name",
                )
            return Overloaded(
                "[REJECTREQUEST]system busy, start flow control for a while: this broker follows another "
                "one, send to the one that leads"
            )
        stalled_ms = self._acks.stalled_ms
        if stalled_ms > self._options.send_wait_ms:
            return Overloaded(
                f"[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while: one flush has kept the "
                f"disk for {stalled_ms:.0f}ms, limit {self._options.send_wait_ms}ms. This one was not stored"
            )
        return None

    def check_replicas(self, properties: bytes) -> None:
        """Raise when too few replicas are in sync for any promise; a message that waits for none is taken."""
        lacking = self._acks.lacks_replicas
        if lacking is not None and waits(properties):
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"in-sync replicas not enough: {lacking}. This one was not stored. Send it to another "
                "broker, or again when the followers of this one are back.",
            )

    # --- the message ---------------------------------------------------------------------------------

    def check_size(self, body_bytes: int, properties_bytes: int) -> None:
        """Refuse a message beyond the limits. Asked for what is sent now; what was taken before under a
        higher limit is delivered all the same."""
        limit = self._options.body_bytes_max
        if properties_bytes > PROPERTIES_BYTES_MAX:  # as RocketMQ, which looks at these first
            raise PropertiesTooLong(
                f"properties of {properties_bytes} bytes, the limit is {PROPERTIES_BYTES_MAX}"
            )
        if body_bytes > limit:
            raise AppendRefused(f"body of {body_bytes} bytes, the limit is {limit} (maxMessageSize)")

    def check_batch(self, items: list[Item]) -> None:
        limit = self._options.body_bytes_max
        whole = BATCH_ITEM_BYTES * len(items) + sum([len(body) + len(own) for _, body, own in items])
        if whole > limit:
            raise AppendRefused(f"batch of {whole} bytes, the limit is {limit} (maxMessageSize)")

    # --- the topic -----------------------------------------------------------------------------------

    def topic(self, header: SendRequest, *, stored: bool = True) -> TopicConfig:
        """The topic of a message, made if it may be. ``stored``: ask too whether the store takes anything."""
        options = self._options
        if stored:
            refuse_inner_batch(header.sys_flag)
        if options.accept_sends_from_ms and self._clock.wall_ms() < options.accept_sends_from_ms:
            raise Refused(
                ResponseCode.SYSTEM_ERROR, f"broker unable to service, until {options.accept_sends_from_ms}"
            )
        topic = header.topic
        config = self._topics.find(topic)
        if config is None:
            names.check_topic(topic)
        elif config.order and not options.writable:
            raise Refused(
                ResponseCode.NO_PERMISSION,
                f"the broker[{self._endpoints.host}] sending message is forbidden: its brokerPermission "
                f"is {options.permission} and the topic is ordered",
            )
        if reserved.is_closed(topic):
            raise Refused(ResponseCode.NO_PERMISSION, f"Sending message to topic[{topic}] is forbidden.")
        if stored:
            self._state.check_writable()
        return config or self._new_topic(header)

    def _new_topic(self, header: SendRequest) -> TopicConfig:
        topic = header.topic
        config = self._topics.for_send(
            topic, header.default_topic, header.default_topic_queue_nums, unit=bool(header.unit_mode)
        )
        if config is None:
            raise Refused(
                ResponseCode.TOPIC_NOT_EXIST,
                f"topic[{topic}] not exist, apply first please! Create it: kerolox topic create "
                f"{topic}. Or let the broker create topics: autoCreateTopicEnable=true.",
            )
        return config

    # --- the queue -----------------------------------------------------------------------------------

    def queue(self, header: SendRequest, config: TopicConfig) -> int:
        """The queue of a message, chosen where the sender leaves it open."""
        queue_id = header.queue_id
        if queue_id < 0:
            return random.randrange(max(1, config.write_queue_nums))
        if not has_queue(config, queue_id):
            raise InvalidRequest(
                f"request queueId[{queue_id}] is illegal, topic [{header.topic}] has "
                f"{config.write_queue_nums} write and {config.read_queue_nums} read queues"
            )
        return queue_id

    def takes_plain(self, topic: str, queue_id: int) -> bool:
        """Whether plain sends to this queue need no further look, until something changes."""
        config = self._topics.find(topic)
        return (
            config is not None
            and topic not in self._topics.unsaved
            and not config.order
            and is_single_tag(config)
            and not reserved.is_closed(topic)
            and not goes_to_a_group(topic)
            and queue_id >= 0
            and has_queue(config, queue_id)
        )

    # --- light queues --------------------------------------------------------------------------------

    def check_light_queues(self, properties: bytes) -> None:
        """Refuse, in RocketMQ's words, a message that would make too many light queues. The light queues it
        names count from now on, though it may be delivered only later."""
        known, limit = self._light_queues, self._options.light_queues_max
        if known is None or packed.AT_INNER_MULTI_DISPATCH[1:] not in properties:
            return
        named = (packed.find(properties, packed.AT_INNER_MULTI_DISPATCH) or b"").split(b",")
        new = {name for name in named if name.startswith(_LIGHT_QUEUE)} - known
        if new and len(known) + len(new) > limit:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                "[LMQ_CONSUME_QUEUE_NUM_EXCEEDED]broker config enableLmq and enableMultiDispatch, lmq "
                f"consumeQueue num exceed maxLmqConsumeQueueNum config num, {limit}: there are {len(known)}, "
                f"the message names {len(new)} new ones",
            )
        known |= new

    def fills_light_queues(self, topic: str, properties: bytes) -> bool:
        """Whether a message that was taken before goes into the light queues it names: it was taken here,
        where its queues count already, or by an earlier process. It must not be lost: where it would make too
        many light queues it goes to its own topic alone."""
        try:
            self.check_light_queues(properties)
        except Refused as refused:
            log.warning("light_queues_not_filled topic=%r error=%r", topic, str(refused))
            return False
        return True

    def topic_removed(self, topic: str) -> None:
        if self._light_queues is not None:
            self._light_queues.discard(topic.encode())


def goes_to_a_group(topic: str) -> bool:
    """Whether messages of the topic are retries: their group decides what becomes of them."""
    return topic.startswith(reserved.RETRY_PREFIX)


def waits(properties: bytes) -> bool:
    """Whether the sender waits until its message is safe. It may say that the write is enough."""
    return packed.find(properties, packed.AT_WAIT) != b"false"


def has_queue(config: TopicConfig, queue_id: int) -> bool:
    return queue_id < max(config.write_queue_nums, config.read_queue_nums)


def is_single_tag(config: TopicConfig) -> bool:
    return config.topic_filter_type == "SINGLE_TAG"


def is_plain(topic: str, properties: bytes) -> bool:
    """Whether nobody has anything to say about a message before it is stored."""
    return not (
        _DELAY in properties or _TIMER in properties or _TRANSACTION in properties or goes_to_a_group(topic)
    )
