"""Sending: single messages, batches, one-way.

A send is checked and appended inside the read pass, and answered soon after its end: all messages of one turn
of the event loop, of any topic and connection, are written to the log by one call (see
:mod:`kerolox.broker.write.intake`). Their answers wait together until everything is as safe as promised: for
one flush with synchronous flush, for the followers with synchronous replication. FLUSH_DISK_TIMEOUT,
FLUSH_SLAVE_TIMEOUT and SLAVE_NOT_AVAILABLE mean that the messages are stored, but not as safe as promised.
While a flush stalls, further sends are rejected with SYSTEM_BUSY before they are stored, so the producer may
use another broker without a duplicate.

Sends to a topic that is being saved wait for that before they are stored: a restarted broker must know the
topic of every acknowledged message, and a send that is rejected because its topic could not be saved must not
be stored.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kerolox.access.needs.sending import SEND
from kerolox.broker.tables.topics import Topics
from kerolox.broker.write.admission import Admission, goes_to_a_group, is_plain, is_single_tag, waits
from kerolox.broker.write.intake import Intake
from kerolox.broker.write.pending_message import OnParked, PendingMessage
from kerolox.errors import KeroloxError, Overloaded, ProtocolError
from kerolox.front.handlers import refusal
from kerolox.front.refusals import Refusal
from kerolox.front.requests import Answer, Handler, Request
from kerolox.front.rows import serves
from kerolox.observers import Observers
from kerolox.protocol import properties as packed
from kerolox.protocol.batch import split_batch
from kerolox.protocol.bodies.topics import TopicConfig
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.flags import MULTI_TAGS
from kerolox.protocol.headers.send import SendAnswer, SendRequest, SendRequestV2
from kerolox.protocol.hosts import host_bytes
from kerolox.protocol.message_id import UniqueKeys
from kerolox.store.log.commit_log import TRANSACTION_BITS, TRANSACTION_COMMIT, AppendRefused, Place
from kerolox.store.log.safe import Safe
from kerolox.unsaved import NotSaved

HELD_BYTES_MAX = 64 << 20  # bytes of requests that wait for their topics to be written
HELD_REQUEST_BYTES = 1000  # approximate bytes of a request beside its body

# Change of a message by another part of the broker (retries, transactions) before it is stored. It may reject
# the message by raising, and return a callback for the place of the parked message.
SendRewrite = Callable[[Request[SendRequest], PendingMessage], OnParked | None]


class Sends:
    """Handlers of SEND_MESSAGE, SEND_MESSAGE_V2 and SEND_BATCH_MESSAGE."""

    def __init__(
        self,
        intake: Intake,
        admission: Admission,
        topics: Topics,
        unique_keys: UniqueKeys,
        rewrites: Sequence[SendRewrite],
        meter: Callable[[str, bytes, Sequence[int]], None] | None,
    ) -> None:
        """``rewrites`` are applied in this order, before those of the intake. ``meter`` is called with topic,
        properties and sizes; None while metrics are not exported."""
        self._intake = intake
        self._admission = admission
        self._topics = topics
        self._unique_keys = unique_keys
        self._rewrites = rewrites
        # for statistics: topic, messages, bytes
        self.on_stored: Observers[[str, int, int]] = Observers("messages stored")
        self._meter = meter
        self._waiting: list[tuple[Request[SendRequest], SendAnswer, bool]] = []
        self._write_is_due = False
        self._held_bytes = 0  # bytes of requests whose topic is being saved

    # --- requests ----------------------------------------------------------------------------------

    @serves(RequestCode.SEND_MESSAGE, SendRequest, SEND, lane="send")
    @serves(RequestCode.SEND_MESSAGE_V2, SendRequestV2, SEND, lane="send")
    def send(self, request: Request[SendRequest]) -> Answer | None:
        """Store one message."""
        header, intake = request.header, self._intake
        if header.batch:
            return self.send_batch(request)
        config = self._topic(request)
        if header.topic in self._topics.unsaved:
            self._hold(request, header.topic, self.send)
            return None
        queue_id = self._admission.queue(header, config)
        if not request.body:
            raise AppendRefused("the message has no body: send at least one byte")
        properties, unique = self._properties(header.properties)
        self._admission.check_size(len(request.body), len(properties))
        topic, sys_flag = header.topic, header.sys_flag
        if sys_flag & TRANSACTION_BITS == TRANSACTION_COMMIT:
            # Only the broker may mark a message as committed: after a crash it searches for these messages.
            sys_flag &= ~TRANSACTION_BITS
        if not is_single_tag(config):
            sys_flag |= MULTI_TAGS
        recall_handle: str | None = None
        if is_plain(topic, properties):
            place = intake.append_plain(
                intake.cursor(topic, queue_id),
                request.body,
                properties,
                flag=header.flag,
                sys_flag=sys_flag,
                born_timestamp=header.born_timestamp,
                born_host=born_host(request),
                reconsume_times=header.reconsume_times or 0,
            )
        else:
            pending = PendingMessage(
                topic,
                queue_id,
                request.body,
                properties,
                header.born_timestamp,
                born_host(request),
                flag=header.flag,
                sys_flag=sys_flag,
                reconsume_times=header.reconsume_times or 0,
            )
            parked: OnParked | None = None
            for rewrite in self._rewrites:
                parked = rewrite(request, pending) or parked
            if pending.topic in self._topics.unsaved:
                self._hold(request, pending.topic, self.send)
                return None
            place = intake.append_or_park(pending)
            topic, recall_handle = pending.topic, pending.recall_handle  # counted where it is parked
            if parked is not None:
                parked(pending, place)
        self._count(topic, 1, place[2])
        if self._meter is not None:
            self._meter(topic, properties, (place[2],))
        self._answer_later(request, [place], queue_id, unique, properties, recall_handle)
        return None

    @serves(RequestCode.SEND_BATCH_MESSAGE, SendRequestV2, SEND, lane="send")
    def send_batch(self, request: Request[SendRequest]) -> Answer | None:
        """Store many messages of one topic and queue, all or none."""
        header = request.header
        config = self._topic(request)
        if goes_to_a_group(header.topic):
            return Answer(
                code=ResponseCode.MESSAGE_ILLEGAL,
                remark=f"batch request does not support retry group {header.topic}",
            )
        if header.topic in self._topics.unsaved:
            self._hold(request, header.topic, self.send_batch)
            return None
        queue_id = self._admission.queue(header, config)
        try:
            items = split_batch(request.body)
        except ProtocolError as error:
            raise AppendRefused(f"the batch cannot be decoded: {error}") from error
        if not items:
            raise AppendRefused("the batch is empty")
        self._admission.check_batch(items)
        properties = (header.properties or "").encode()
        if header.sys_flag & TRANSACTION_BITS or (packed.find(properties, packed.AT_DELAY) or b"0") != b"0":
            raise AppendRefused("a batch can be neither delayed nor part of a transaction")
        self._admission.check_replicas(properties)
        unique = packed.find(properties, packed.AT_UNIQUE_KEY)
        places = self._intake.append_batch(
            self._intake.cursor(header.topic, queue_id),
            items,
            sys_flag=header.sys_flag,
            born_timestamp=header.born_timestamp,
            born_host=born_host(request),
            reconsume_times=header.reconsume_times or 0,
        )
        self._count(header.topic, len(places), sum(place[2] for place in places))
        if self._meter is not None:
            self._meter(header.topic, properties, [place[2] for place in places])
        own_key = None if unique is None else unique.decode("utf-8", "replace")
        self._answer_later(request, places, queue_id, own_key, properties)
        return None

    # --- the end of a pass ---------------------------------------------------------------------------

    def end_pass(self) -> None:
        """Schedule the write of this read pass. It is shared with other connections of the same turn of the
        loop, because one write for many messages costs little more than for one."""
        if self._waiting and not self._write_is_due:
            self._write_is_due = True
            self._intake.soon(self._written)

    def _written(self, failed: KeroloxError | None) -> None:
        """Answer written messages, or delay their answers until they are safe."""
        self._write_is_due = False
        waiting, self._waiting = self._waiting, []
        if failed is not None:
            refused = Refusal.of(failed).answer()
            for request, _, _ in waiting:
                request.answer(refused)
            return
        safe = [(request, header) for request, header, must_wait in waiting if must_wait]
        for request, header, must_wait in waiting:
            if not must_wait:
                request.answer(Answer(header=header))
        if safe:
            self._intake.when_safe(lambda how: self._safe(safe, how))

    # --- new topics ----------------------------------------------------------------------------------

    def _hold(self, request: Request[SendRequest], topic: str, again: Handler) -> None:
        """Handle a request again when its topic is on disk. Requests of one topic keep their order."""
        size_bytes = len(request.body) + HELD_REQUEST_BYTES
        if self._held_bytes + size_bytes > HELD_BYTES_MAX:
            raise Overloaded(
                f"[REJECTREQUEST]{self._held_bytes} bytes wait for new topics to be saved, the limit is "
                f"{HELD_BYTES_MAX}. The message was not stored: try again"
            )
        self._held_bytes += size_bytes

        def resume(error: NotSaved | None) -> None:
            self._held_bytes -= size_bytes
            try:
                if error is not None:
                    raise error
                answer = again(request)
            except Exception as failed:
                answer = refusal(failed, request)
            if isinstance(answer, Answer):
                request.answer(answer)
            self.end_pass()

        self._topics.unsaved.when_saved(topic, resume)

    # --- decisions -----------------------------------------------------------------------------------

    def _topic(self, request: Request[SendRequest]) -> TopicConfig:
        self._admission.check_taking()
        return self._admission.topic(request.header)

    def _properties(self, text: str | None) -> tuple[bytes, str]:
        """Return the stored form of the properties, and their unique key."""
        properties = (text or "").encode()
        if packed.AT_POP_CHECKPOINT[1:] in properties:
            properties = packed.remove(properties, packed.AT_POP_CHECKPOINT)
        self._admission.check_replicas(properties)
        self._admission.check_light_queues(properties)
        found = packed.find(properties, packed.AT_UNIQUE_KEY)
        if found is None:
            unique = self._unique_keys.next()
            properties = packed.append(properties, packed.pack({packed.UNIQUE_KEY: unique}))
        else:
            unique = found.decode("utf-8", "replace")
        return packed.append(properties, self._admission.rules.added), unique

    def _count(self, topic: str, messages: int, size_bytes: int) -> None:
        self.on_stored.tell(topic, messages, size_bytes)

    def _answer_later(
        self,
        request: Request[SendRequest],
        places: list[Place],
        queue_id: int,
        unique: str | None,
        properties: bytes,
        recall_handle: str | None = None,
    ) -> None:
        rules = self._admission.rules
        prefix, count = rules.id_prefix.decode(), len(places)
        if count == 1:
            ids = f"{prefix}{places[0][0]:016X}"
        else:  # one formatting for all: half the time of one for each
            ids = ",".join([prefix + "%016X"] * count) % tuple([place[0] for place in places])
        header = SendAnswer(
            msg_id=ids,
            queue_id=queue_id,
            queue_offset=places[0][1],
            transaction_id=unique,
            region_id=rules.region_id,
            trace_on=rules.trace_on,
            recall_handle=recall_handle,
        )
        self._waiting.append((request, header, rules.wait_matters and waits(properties)))

    def _safe(self, waiting: list[tuple[Request[SendRequest], SendAnswer]], how: Safe) -> None:
        for request, header in waiting:
            if how.failed:
                request.answer(Refusal(how.name.lower(), how.code, how.words).answer())
            else:  # stored, but maybe less safe than promised
                request.answer(Answer(code=how.code, header=header))


def born_host(request: Request[Any]) -> bytes:
    """Return the birth host of messages from this connection, as records contain it; cached with the
    connection."""
    data = request.caller.data
    host: bytes | None = data.get("born_host")
    if host is None:
        host = data["born_host"] = host_bytes(request.caller.address)
    return host
