"""Rules of admission: whether a message may be sent to a topic and queue now. Each rule is defined only here.

Single sends, batches, runs of plain sends and replies use them. A run checks once for each topic and queue it
does not know, and once before it takes messages. The result is kept as a target while it is valid: see
:mod:`kerolox.broker.write.targets`. The rights of the sender are not checked here: the guard checks them
before every handler, and runs ask the guard (:mod:`kerolox.access.guard`).
"""

from __future__ import annotations

import logging
import random
from typing import Final

from kerolox.broker import names
from kerolox.broker.absent import refuse_inner_batch
from kerolox.broker.base import Base
from kerolox.broker.tables.topics import Topics
from kerolox.errors import InvalidRequest, Refused
from kerolox.front.refusals import Refusal
from kerolox.protocol import properties as packed
from kerolox.protocol import reserved
from kerolox.protocol.batch import Item
from kerolox.protocol.bodies.topics import TopicConfig
from kerolox.protocol.codes import ResponseCode
from kerolox.protocol.headers.send import SendRequest
from kerolox.protocol.limits import PROPERTIES_BYTES_MAX
from kerolox.protocol.send_rules import SendRules
from kerolox.store.log.cursors import LIGHT_PREFIX, AppendRefused, PropertiesTooLong

log = logging.getLogger(__name__)

# Reasons of refusals, besides the names of response codes.
NOT_LEADER: Final = "not_leader"
FLUSH_STALLED: Final = "flush_stalled"
TOO_FEW_REPLICAS: Final = "too_few_replicas"
NOT_YET_ACCEPTED: Final = "not_yet_accepted"
LIGHT_QUEUES_FULL: Final = "light_queues_full"

_LIGHT_QUEUE = LIGHT_PREFIX.encode()
BATCH_ITEM_BYTES = 22  # bytes of one message in a batch beside its body and properties

# Words in properties that some part must handle before the message is stored: delays, timers, transactions. A
# match may be part of a value; the rewrites check exactly.
REWRITTEN: Final = (b"DELAY", b"TIMER_", b"TRAN_MSG")
_DELAY, _TIMER, _TRANSACTION = REWRITTEN
# Such words for runs. They also leave properties to the handlers that only handlers remove.
STOPS: Final = (*REWRITTEN, b"POP_CK")
LIGHT_QUEUES: Final = packed.INNER_MULTI_DISPATCH.encode()


class Admission:
    """The rules, from those of the whole broker to those of one queue."""

    def __init__(self, base: Base, topics: Topics, light_queues: set[bytes] | None = None) -> None:
        self._acks = base.store.acks
        self._state = base.store.state
        self._store_host = base.store.log.store_host
        self._leadership = base.leadership
        self._endpoints = base.endpoints
        self._topics = topics
        self._options = base.options
        self._clock = base.clock
        # The guard decides who may fill light queues, even if this broker does not dispatch to them.
        self._stops = (*STOPS, LIGHT_QUEUES) if base.guard.wants_signatures else STOPS
        self.renew()
        # Existing light queues; None if messages are not dispatched to the light queues they name.
        self._light_queues = light_queues

    # --- the rules -----------------------------------------------------------------------------------

    def renew(self) -> None:
        """Make the rules again: options have changed."""
        options = self._options
        self._rules = SendRules(
            store_host=self._store_host,
            body_bytes_max=options.body_bytes_max,
            cluster=options.cluster,
            region_id=options.region,
            trace_on=options.trace_on,
            stops=self._stops,
            wait_matters=self._acks.wait,
        )

    @property
    def rules(self) -> SendRules:
        """The rules of messages now. Keep them for one pass at most."""
        if self._rules.wait_matters is not self._acks.wait:  # the role has changed, or the replicas
            self.renew()
        return self._rules

    # --- the broker ----------------------------------------------------------------------------------

    def check_taking(self) -> None:
        """Raise if the broker accepts no messages now."""
        refusal = self._refusal()
        if refusal is not None:
            raise refusal.error()

    @property
    def takes_runs(self) -> bool:
        """True if no state of the broker prevents runs. If one does, the handlers report it."""
        return (
            not self._state.obstacles
            and not self._options.accept_sends_from_ms
            and self._refusal() is None
            and self._acks.lacks_replicas is None
        )

    def _refusal(self) -> Refusal | None:
        """Return why the broker accepts no messages now; None if it does."""
        if not self._leadership.leads:
            return self._refusal_of_follower()
        stalled_ms = self._acks.stalled_ms
        if stalled_ms > self._options.send_wait_ms:
            return Refusal(
                FLUSH_STALLED,
                ResponseCode.SYSTEM_BUSY,
                f"[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while: one flush has taken "
                f"{stalled_ms:.0f}ms, limit {self._options.send_wait_ms}ms. The message was not stored",
            )
        return None

    def _refusal_of_follower(self) -> Refusal:
        unavailable = ResponseCode.SERVICE_NOT_AVAILABLE
        if self._leadership.waits_for:
            return Refusal(
                NOT_LEADER,
                unavailable,
                f"this broker does not have a role yet: {self._leadership.waits_for}. Send to another "
                "broker, or again in a moment",
            )
        if self._options.controlled:
            # Another broker may lead since a moment ago. With this code, clients ask name servers for the
            # leader.
            why = self._leadership.role.why or "this broker follows another one"
            return Refusal(NOT_LEADER, unavailable, f"{why}: send to the leader")
        if self._options.acting:
            return Refusal(
                NOT_LEADER,
                unavailable,
                "this broker is a follower and stores no messages of producers, whether its leader is "
                "alive or not: send to a broker of another name",
            )
        return Refusal(
            NOT_LEADER,
            ResponseCode.SYSTEM_BUSY,
            "[REJECTREQUEST]system busy, start flow control for a while: this broker follows another "
            "one, send to the leader",
        )

    def check_replicas(self, properties: bytes) -> None:
        """Raise if too few replicas are in sync. Messages that do not wait for replicas are accepted."""
        lacking = self._acks.lacks_replicas
        if lacking is not None and waits(properties):
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"in-sync replicas not enough: {lacking}. The message was not stored. Send it to another "
                "broker, or again when the followers of this one are back.",
                TOO_FEW_REPLICAS,
            )

    # --- the message ---------------------------------------------------------------------------------

    def check_size(self, body_bytes: int, properties_bytes: int) -> None:
        """Reject a message beyond the limits. Applies to new sends only: a message accepted earlier under a
        higher limit is still delivered."""
        limit = self.rules.body_bytes_max
        if properties_bytes > PROPERTIES_BYTES_MAX:  # as RocketMQ, which checks these first
            raise PropertiesTooLong(
                f"properties of {properties_bytes} bytes, the limit is {PROPERTIES_BYTES_MAX}"
            )
        if body_bytes > limit:
            raise AppendRefused(f"body of {body_bytes} bytes, the limit is {limit} (maxMessageSize)")

    def check_batch(self, items: list[Item]) -> None:
        limit = self.rules.body_bytes_max
        whole = BATCH_ITEM_BYTES * len(items) + sum([len(body) + len(own) for _, body, own in items])
        if whole > limit:
            raise AppendRefused(f"batch of {whole} bytes, the limit is {limit} (maxMessageSize)")

    # --- the topic -----------------------------------------------------------------------------------

    def topic(self, header: SendRequest, *, stored: bool = True) -> TopicConfig:
        """Return the topic of a message; create it if allowed. ``stored``: also check that the store is
        writable."""
        options = self._options
        if stored:
            refuse_inner_batch(header.sys_flag)
        if options.accept_sends_from_ms and self._clock.wall_ms() < options.accept_sends_from_ms:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"broker unable to service, until {options.accept_sends_from_ms}",
                NOT_YET_ACCEPTED,
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
        """Return the queue of a message; choose one if the sender names none."""
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
        """True if plain sends to this queue need no further check until something changes."""
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
        """Reject, in RocketMQ's words, a message that would create too many light queues. The light queues it
        names count from now on, even if it is delivered later."""
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
                LIGHT_QUEUES_FULL,
            )
        known |= new

    def fills_light_queues(self, topic: str, properties: bytes) -> bool:
        """Return whether a message accepted earlier is dispatched to the light queues it names. It was
        accepted here, where its queues count already, or by an earlier process. It must not be lost: if it
        would create too many light queues, it is dispatched only to its own topic."""
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
    """True if messages of the topic are retries, which the settings of their group govern."""
    return topic.startswith(reserved.RETRY_PREFIX)


def waits(properties: bytes) -> bool:
    """True if the sender waits until its message is safe. It may ask to wait for the write only."""
    return packed.find(properties, packed.AT_WAIT) != b"false"


def has_queue(config: TopicConfig, queue_id: int) -> bool:
    return queue_id < max(config.write_queue_nums, config.read_queue_nums)


def is_single_tag(config: TopicConfig) -> bool:
    return config.topic_filter_type == "SINGLE_TAG"


def is_plain(topic: str, properties: bytes) -> bool:
    """True if no part has to handle the message before it is stored."""
    return not (
        _DELAY in properties or _TIMER in properties or _TRANSACTION in properties or goes_to_a_group(topic)
    )
