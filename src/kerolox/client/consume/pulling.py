"""Pulling: one request after the other for a queue, each held by the broker until messages arrive."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from kerolox.client.calls.pulls import PULL_CODES
from kerolox.client.calls.readers import Replica
from kerolox.client.calls.retries import RefreshGap
from kerolox.client.calls.routes import MASTER
from kerolox.client.consume.held_queue import HeldQueue
from kerolox.client.errors import failure
from kerolox.client.messages import Received, decode_some
from kerolox.errors import KeroloxError
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.flags import PULL_COMMIT_OFFSET, PULL_SUBSCRIPTION, PULL_SUSPEND
from kerolox.protocol.headers.pull import PullAnswer, PullRequest
from kerolox.protocol.subscription import matches_tag

if TYPE_CHECKING:
    from kerolox.client.consume.consumer import Consumer
    from kerolox.client.consume.consumer_options import ConsumerOptions

log = logging.getLogger(__name__)

FLOW_CONTROL_PAUSE_S = 0.02
EARLY_PAUSE_S = 0.2
PAUSED_LOOK_S = 1.0

# The broker does not know the group's subscription: it was restarted, or the heartbeat has not arrived yet.
_UNKNOWN_THERE = (
    ResponseCode.SUBSCRIPTION_NOT_EXIST,
    ResponseCode.SUBSCRIPTION_NOT_LATEST,
    ResponseCode.FILTER_DATA_NOT_LATEST,
)


class Pulling:
    """Pulls of one consumer."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self._client = consumer.client
        self._clock = consumer.client.clock
        self._introducing: asyncio.Task[int] | None = None  # one heartbeat for all queues that need it
        self._gap = RefreshGap(self._clock.monotonic_s)

    def start(self, held: HeldQueue) -> None:
        """Start to pull a queue from its next offset. A running pull is cancelled."""
        if held.pull is not None:
            held.pull.cancel()
        held.pull = self._client.spawn(self.pull(held))

    async def pull(self, held: HeldQueue) -> None:
        """Pull one queue until it is released."""
        while not held.is_gone():
            if self._consumer.is_full(held):
                await self._wait_room(held)
                continue
            try:
                await self._pull_once(held)
            except KeroloxError as error:
                if held.is_gone():
                    return
                await self._pause_after(held, error)
            except Exception:
                # The task must survive any error: otherwise the queue would not be pulled any more.
                log.exception("pull_broken queue=%s offset=%d", held.queue, held.next_offset)
                await self._clock.sleep(self._consumer.options.error_pause_s)

    async def _wait_room(self, held: HeldQueue) -> None:
        held.room.clear()
        try:
            # Checked periodically, too, because limits also depend on other queues.
            async with asyncio.timeout(PAUSED_LOOK_S):
                await held.room.wait()
        except TimeoutError:
            pass

    async def _pull_once(self, held: HeldQueue) -> None:
        queue, options = held.queue, self._consumer.options
        held.asked = None
        replica = held.asked = self._client.replica(queue.broker, held.reader)
        address = replica.address
        flags = self._consumer.pull_flags | PULL_SUSPEND
        # Followers ignore progress in pulls.
        commit = held.commit_offset if held.heard and replica.leads and not options.broadcasting else 0
        if commit > 0 and self._consumer.tells_progress():
            flags |= PULL_COMMIT_OFFSET
        else:
            commit = 0
        wanted = held.wanted
        if self._consumer.own_subscription:
            flags |= PULL_SUBSCRIPTION
        asked = PullRequest(
            consumer_group=self._consumer.group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=held.next_offset,
            max_msg_nums=options.pull_count,
            sys_flag=flags,
            commit_offset=commit,
            suspend_timeout_millis=int(options.hold_s * 1000),
            subscription=wanted.sub_string if self._consumer.own_subscription else None,
            sub_version=wanted.sub_version,
            max_msg_bytes=options.pull_bytes,
            expression_type=wanted.expression_type,
            broker_name=queue.broker,
        )
        code = self._consumer.pull_code
        peer = self._client.ready_peer(address) or await self._client.peer(address, code=code)
        held.pulled_at_s = self._clock.monotonic_s()
        offset_asked = held.next_offset
        answer = await peer.request(code, asked, timeout_s=options.hold_s * 2)
        if self._is_stale(held, offset_asked):
            return  # released, or moved to another offset meanwhile
        if answer.code not in PULL_CODES:
            if answer.code == ResponseCode.GO_AWAY:
                self._client.retire(address, peer)
                if held.sent_away:  # over a new connection, too: the broker is stopping
                    raise failure(answer, address=address, code=code)
                held.sent_away = True
                return
            if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED and code != RequestCode.PULL_MESSAGE:
                self._consumer.pull_code = RequestCode.PULL_MESSAGE  # supported by all brokers
                return
            raise failure(answer, address=address, code=code)
        header = answer.header(PullAnswer)
        is_stuck = answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY and (
            header.next_begin_offset == offset_asked
        )
        held.reader.answered(replica, header.suggest_which_broker_id, stuck=is_stuck)
        if commit:
            held.saved_offset = commit
            held.saved_by = peer
        messages: list[Received] = []
        next_offset = header.next_begin_offset
        if answer.code == ResponseCode.SUCCESS:
            messages, left_from = decode_some(answer.body, queue.broker)
            next_offset = next_offset if left_from is None else left_from
            self._consumer.pulled(held, len(messages), self._clock.monotonic_s() - held.pulled_at_s)
            if wanted.tags_set:
                messages = [message for message in messages if matches_tag(wanted, message.tag)]
        elif answer.code == ResponseCode.PULL_OFFSET_MOVED:
            log.warning(
                "offset_moved queue=%s asked=%d now=%d first=%d end=%d",
                queue, offset_asked, header.next_begin_offset, header.min_offset, header.max_offset,
            )  # fmt: skip
            if held.count and header.next_begin_offset < held.commit_offset:
                # The group was reset to an earlier offset: running messages must not be saved as progress.
                self._consumer.reset_offsets(queue.topic, {queue: header.next_begin_offset})
                await self._clock.sleep(self._consumer.options.error_pause_s)
                return
        held.heard = True
        held.sent_away = False
        held.failures = 0
        self._consumer.refusals.served(queue.topic, queue.broker)
        held.take(messages, next_offset)
        if messages:
            self._consumer.arrived(held)
        elif is_stuck and not replica.leads:
            await self._wait_at(replica, held)

    async def _wait_at(self, replica: Replica, held: HeldQueue) -> None:
        """Pause before the next pull from a follower that has no more messages.

        Followers do not hold pulls; they refer to the leader. The leader may have returned, so the route is
        refreshed.
        """
        queue, known = held.queue, self._client.routes.known
        if MASTER not in known.replicas(queue.broker) and self._gap.is_over(queue.topic):
            try:
                await self._client.routes.refresh(queue.topic)
            except KeroloxError as error:
                log.info("route_not_refreshed topic=%s error=%r", queue.topic, str(error))
        if self._client.replica(queue.broker, held.reader) == replica:
            await self._clock.sleep(held.reader.pause_s())

    def _is_stale(self, held: HeldQueue, offset_asked: int) -> bool:
        return held.dropped or held.next_offset != offset_asked

    async def _pause_after(self, held: HeldQueue, error: KeroloxError) -> None:
        code = getattr(error, "response_code", None)
        if code == ResponseCode.FLOW_CONTROL:
            await self._clock.sleep(FLOW_CONTROL_PAUSE_S)
            return
        held.reader.suggested = MASTER
        if code in _UNKNOWN_THERE:
            log.info("pull_too_early queue=%s error=%r", held.queue, str(error))
            await asyncio.shield(self._introduce())
            await self._clock.sleep(EARLY_PAUSE_S)
            return
        if held.asked is not None:
            held.reader.failed(held.asked, error, self._clock.monotonic_s())
        if not self._consumer.failed(error, held.queue.topic, held.queue.broker):
            times = held.failures = held.failures + 1
            if times & (times - 1) == 0:  # counted, not repeated
                log.warning(
                    "pull_failed queue=%s offset=%d times=%d error=%r",
                    held.queue, held.next_offset, times, str(error),
                )  # fmt: skip
        if code == ResponseCode.FILTER_DATA_NOT_EXIST:
            self._introduce()  # the broker cannot use the filter, or has lost the subscription
        queue, routes = held.queue, self._client.routes
        is_away = code is None or code == ResponseCode.GO_AWAY
        if is_away and held.asked is not None and held.asked.leads:
            routes.look_for_leader(queue.topic, queue.broker, held.asked.address)
        if is_away or code == ResponseCode.TOPIC_NOT_EXIST:
            await self._consumer.look_for(queue.topic)
        await routes.pause(queue.topic, self._consumer.options.error_pause_s)

    def _introduce(self) -> asyncio.Task[int]:
        if self._introducing is None or self._introducing.done():
            self._introducing = self._client.spawn(self._client.heartbeat())
        return self._introducing


def is_full(options: ConsumerOptions, count: int, size_bytes: int, queues: int) -> bool:
    """Return True if a queue has reached its limits. ``queues``: number of held queues of the topic."""
    if count >= options.queue_messages_max or size_bytes >= options.queue_bytes_max:
        return True
    # Each queue has its share of the topic's limit, so that one queue cannot block the others.
    if options.topic_messages_max and count * queues >= options.topic_messages_max:
        return True
    return bool(options.topic_bytes_max) and size_bytes * queues >= options.topic_bytes_max
