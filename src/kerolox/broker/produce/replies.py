"""Request and reply: a reply is delivered to the client that asked, over its connection to this broker.

The sender of a reply waits until the client has accepted it. The reply is also stored, unless disabled by an
option. A failure to store it does not fail the request, because stored replies are only for inspection.
"""

from __future__ import annotations

import logging

from kerolox.access.needs.sending import SEND
from kerolox.broker.members.members import Members
from kerolox.broker.options import BrokerOptions
from kerolox.broker.produce.sends import born_host
from kerolox.broker.tables.topics import Topics
from kerolox.broker.write.admission import Admission
from kerolox.broker.write.intake import Intake
from kerolox.broker.write.pending_message import PendingMessage
from kerolox.clock import Clock
from kerolox.errors import KeroloxError
from kerolox.front.requests import Answer, Request
from kerolox.front.rows import serves
from kerolox.observers import Observers
from kerolox.protocol import properties as packed
from kerolox.protocol.codes import RequestCode, ResponseCode, response_name
from kerolox.protocol.flags import COMPRESSED, COMPRESSION_MASK
from kerolox.protocol.headers.reply import PushReply
from kerolox.protocol.headers.send import SendAnswer, SendRequest, SendRequestV2, SendTold
from kerolox.protocol.message_id import offset_id
from kerolox.store.log.acks import NotCopied, NotSafe
from kerolox.store.message_store import MessageStore

log = logging.getLogger(__name__)

PUSH_TIMEOUT_S = 10.0

_AT_REPLY_TO_CLIENT = packed.marker(packed.REPLY_TO_CLIENT)


class Replies:
    """Handlers of replies: SEND_REPLY_MESSAGE and its V2."""

    def __init__(
        self,
        store: MessageStore,
        admission: Admission,
        intake: Intake,
        topics: Topics,
        members: Members,
        options: BrokerOptions,
        clock: Clock,
        *,
        address: str,
    ) -> None:
        self._store = store
        self._admission = admission
        self._intake = intake
        self._topics = topics
        self._members = members
        self._options = options
        self._clock = clock
        self._address = address
        # for statistics: topic, messages, bytes
        self.on_stored: Observers[[str, int, int]] = Observers("reply stored")

    @serves(RequestCode.SEND_REPLY_MESSAGE, SendRequest, SEND, lane="reply")
    @serves(RequestCode.SEND_REPLY_MESSAGE_V2, SendRequestV2, SEND, lane="reply")
    async def reply(self, request: Request[SendRequest]) -> Answer:
        # Topic name and permissions are checked as for a send; the state of the store is not.
        """Send a reply to the client that asked."""
        topic = self._admission.topic(request.header, stored=False)
        queue_id = self._admission.queue(request.header, topic)
        if self._options.store_replies:
            await self._topics.unsaved.saved(topic.topic_name)
        failed = await self._push(request)
        place = await self._keep(request, queue_id) if self._options.store_replies else None
        code = ResponseCode.SUCCESS if failed is None else ResponseCode.SYSTEM_ERROR
        rules = self._admission.rules
        region, trace_on = rules.region_id, rules.trace_on
        if place is not None:
            msg_id, queue_offset = place
        elif failed is None:
            msg_id, queue_offset = "0", 0  # clients expect these fields
        else:
            return Answer(code=code, header=SendTold(region_id=region, trace_on=trace_on), remark=failed)
        header = SendAnswer(
            msg_id=msg_id, queue_id=queue_id, queue_offset=queue_offset, region_id=region, trace_on=trace_on
        )
        return Answer(code=code, header=header, remark=failed)

    async def _push(self, request: Request[SendRequest]) -> str | None:
        """Deliver the reply to the client that asked. Return the error, None if it was delivered."""
        sent = request.header
        properties = (sent.properties or "").encode()
        found = packed.find(properties, _AT_REPLY_TO_CLIENT)
        if found is None:
            return _failed(f"reply message properties[{packed.REPLY_TO_CLIENT}] is null", request)
        client_id = found.decode("utf-8", "replace")
        asker = self._members.producer(client_id)
        if asker is None:
            return _failed(f"push reply message fail, channel of <{client_id}> not found.", request)
        now_ms = self._clock.wall_ms()
        pushed = PushReply(
            producer_group=sent.producer_group,
            topic=sent.topic,
            default_topic=sent.default_topic,
            default_topic_queue_nums=sent.default_topic_queue_nums,
            queue_id=sent.queue_id,
            sys_flag=sent.sys_flag,
            born_timestamp=sent.born_timestamp,
            flag=sent.flag,
            properties=packed.replace(properties, packed.PUSH_REPLY_TIME, str(now_ms)).decode(),
            reconsume_times=sent.reconsume_times,
            unit_mode=bool(sent.unit_mode),
            born_host=request.caller.address,
            store_host=self._address,
            store_timestamp=now_ms,
        )
        try:
            answer = await asker.call(
                RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, pushed, request.body, timeout_s=PUSH_TIMEOUT_S
            )
        except KeroloxError as error:
            return _failed(f"push reply message to {client_id} fail: {error}", request)
        if answer.code != ResponseCode.SUCCESS:
            said = answer.remark or response_name(answer.code)
            return _failed(f"push reply message to {client_id} fail: it answered {said}", request)
        return None

    async def _keep(self, request: Request[SendRequest], queue_id: int) -> tuple[str, int] | None:
        """Store the reply. Return its id and queue offset, or None if that failed."""
        sent = request.header
        properties = (sent.properties or "").encode()
        try:
            self._admission.check_replicas(properties)
            self._admission.check_size(len(request.body), len(properties))
            place = self._intake.append_or_park(
                PendingMessage(
                    topic=sent.topic,
                    queue_id=queue_id,
                    body=request.body,
                    properties=properties,
                    born_timestamp=sent.born_timestamp,
                    born_host=born_host(request),
                    flag=sent.flag,
                    sys_flag=sent.sys_flag & (COMPRESSED | COMPRESSION_MASK),
                    reconsume_times=sent.reconsume_times or 0,
                )
            )
            await self._intake.safe(place)
        except NotCopied:
            pass  # the client has the reply, and it is stored
        except NotSafe as slow:
            log.warning("reply_not_flushed topic=%r error=%r", sent.topic, str(slow))
        except KeroloxError as error:
            log.warning("reply_not_stored topic=%r error=%r", sent.topic, str(error))
            return None
        self.on_stored(sent.topic, 1, place[2])
        return offset_id(self._store.log.store_host, place[0]), place[1]


def _failed(why: str, request: Request[SendRequest]) -> str:
    log.warning(
        "reply_not_pushed topic=%r by=%s error=%r next='the client that asked gets no reply; check that it "
        "is connected to this broker'",
        request.header.topic,
        request.caller.address,
        why,
    )
    return why
