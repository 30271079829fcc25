"""May this message go to that topic and queue now? Each rule stands here, and only here.

Single sends, batches, runs of plain sends and replies ask. A run asks once for each topic and queue it does
not know, and once for each time it is about to take something; what it was told is forgotten when the topic
changes. Of every message that is signed it asks whether its sender may send it.
"""

from __future__ import annotations

import random
from typing import Final

from kerolox.broker import names
from kerolox.broker.absent import refuse_inner_batch
from kerolox.broker.options import BrokerOptions
from kerolox.broker.tables.topics import Topics
from kerolox.clock import Clock
from kerolox.errors import InvalidRequest, KeroloxError, Overloaded, Refused
from kerolox.protocol import reserved
from kerolox.protocol.bodies.topics import TopicConfig
from kerolox.protocol.codes import ResponseCode
from kerolox.protocol.headers.send import SendRequest
from kerolox.protocol.send_runs import Signed
from kerolox.store.log.acks import Acks
from kerolox.store.state import StoreState

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
        topics: Topics,
        options: BrokerOptions,
        clock: Clock,
    ) -> None:
        self._acks = acks
        self._state = state
        self._topics = topics
        self._options = options
        self._clock = clock

    # --- the broker ----------------------------------------------------------------------------------

    def check_taking(self) -> None:
        """Raise when no message is taken now, whatever it is."""
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
        )

    def _not_taking(self) -> KeroloxError | None:
        if not self._state.leads:
            return Overloaded("[REJECTREQUEST]this broker follows another one: send to the one that leads")
        stalled_ms = self._acks.stalled_ms
        if stalled_ms > self._options.send_wait_ms:
            return Overloaded(
                f"[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while: one flush has kept the "
                f"disk for {stalled_ms:.0f}ms, limit {self._options.send_wait_ms}ms. This one was not stored"
            )
        return None

    # --- the sender ----------------------------------------------------------------------------------

    # Whether messages are taken only from senders who say who they are.
    signed_only: Final = False

    def clears(self, topic: bytes, host: bytes, signed: Signed) -> bool:
        """Whether the sender of a signed message may send to the topic. Nobody is asked for a name here, so
        a signature says as much as none."""
        return True

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
                f"the broker[{options.advertised_host}] sending message is forbidden: its brokerPermission "
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
        """Whether plain sends to this queue need no further look, until the topic changes."""
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


def goes_to_a_group(topic: str) -> bool:
    """Whether messages of the topic are retries: their group decides what becomes of them."""
    return topic.startswith(reserved.RETRY_PREFIX)


def has_queue(config: TopicConfig, queue_id: int) -> bool:
    return queue_id < max(config.write_queue_nums, config.read_queue_nums)


def is_single_tag(config: TopicConfig) -> bool:
    return config.topic_filter_type == "SINGLE_TAG"


def is_plain(topic: str, properties: bytes) -> bool:
    """Whether nobody has anything to say about a message before it is stored."""
    return not (
        _DELAY in properties or _TIMER in properties or _TRANSACTION in properties or goes_to_a_group(topic)
    )
