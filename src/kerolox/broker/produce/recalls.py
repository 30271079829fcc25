"""Recall of timer messages that are not due yet: RECALL_MESSAGE.

A marker is stored like the message, for the same moment. At that moment the marker is found first, and
neither it nor the message is delivered.
"""

from __future__ import annotations

from kerolox.access.needs.sending import RECALL
from kerolox.broker.later.timer_sends import read_handle
from kerolox.broker.options import BrokerOptions
from kerolox.broker.produce.sends import born_host
from kerolox.broker.role.leadership import Leadership
from kerolox.broker.tables.topics import Topics
from kerolox.broker.write.intake import Intake
from kerolox.broker.write.pending_message import PendingMessage
from kerolox.clock import Clock
from kerolox.errors import KeroloxError
from kerolox.front.requests import Answer, Request
from kerolox.front.rows import serves
from kerolox.protocol import properties as packed
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.headers.send import RecallAnswer, RecallRequest
from kerolox.protocol.reserved import is_closed
from kerolox.store.log.acks import NotSafe
from kerolox.store.message_store import MessageStore

_TAG = "_RECALL_TAG_"


class Recalls:
    """Handler of RECALL_MESSAGE."""

    def __init__(
        self,
        store: MessageStore,
        leadership: Leadership,
        intake: Intake,
        topics: Topics,
        options: BrokerOptions,
        clock: Clock,
    ) -> None:
        self._store = store
        self._leadership = leadership
        self._intake = intake
        self._topics = topics
        self._options = options
        self._clock = clock

    @serves(RequestCode.RECALL_MESSAGE, RecallRequest, RECALL, lane="send")
    async def recall(self, request: Request[RecallRequest]) -> Answer:
        """Recall a timer message before it is delivered."""
        header = request.header
        refused = self._refusal(header)
        if refused is not None:
            return refused
        handle = read_handle(header.recall_handle)
        if handle is None:
            return _illegal("recall handle is invalid")
        topic, broker_name, time_text, unique_key = handle
        if topic != header.topic:
            return _illegal("recall failed, topic not match")
        if broker_name != self._options.broker_name:
            return _illegal("recall failed, broker service not available")
        now_ms = self._clock.wall_ms()
        time_ms = int(time_text) if time_text.isascii() and time_text.isdigit() else -1
        if not 0 < time_ms - now_ms < self._options.timer_delay_s_max * 1000:
            return _illegal("recall failed, timestamp invalid")
        properties = {
            packed.TAGS: _TAG,
            packed.TIMER_DELETE_UNIQUE_KEY: f"{topic}+{unique_key}",
            packed.UNIQUE_KEY: unique_key,
            packed.TIMER_DELIVER_MS: time_text,
            packed.BORN_TIMESTAMP: str(now_ms),
            packed.TRACE_CONTEXT: "",
            packed.PRODUCER_GROUP: header.producer_group,
        }
        pending = PendingMessage(topic, 0, b"0", packed.pack(properties), now_ms, born_host(request))
        try:
            await self._intake.safe(self._intake.append_or_park(pending))
        except NotSafe:
            pass  # stored, which is sufficient
        except KeroloxError:
            return Answer(code=ResponseCode.SYSTEM_ERROR, remark="recall failed, execute error")
        return Answer(header=RecallAnswer(msg_id=unique_key, region_id=self._options.region))

    def _refusal(self, header: RecallRequest) -> Answer | None:
        options = self._options
        if not options.recall:
            return Answer(code=ResponseCode.NO_PERMISSION, remark="recall failed, operation is forbidden")
        if not self._leadership.leads:
            return _unavailable(ResponseCode.SLAVE_NOT_AVAILABLE)
        if self._clock.wall_ms() < options.accept_sends_from_ms or not (
            options.writable or options.recall_unwritable
        ):
            return _unavailable(ResponseCode.SERVICE_NOT_AVAILABLE)
        if is_closed(header.topic):
            return Answer(
                code=ResponseCode.NO_PERMISSION, remark=f"recall failed, topic[{header.topic}] is forbidden"
            )
        if self._topics.find(header.topic) is None:
            return Answer(
                code=ResponseCode.TOPIC_NOT_EXIST,
                remark=f"recall failed, the topic[{header.topic}] not exist",
            )
        return None


def _unavailable(code: int) -> Answer:
    return Answer(code=code, remark="recall failed, broker service not available")


def _illegal(why: str) -> Answer:
    return Answer(code=ResponseCode.ILLEGAL_OPERATION, remark=why)
