"""Pulls of a consumer: one request after the other for a queue, held by the broker until messages arrive.

``pull`` carries out one request and returns its outcome; the consumer applies it to the queue and calls
``recover`` or ``pause``. ``calls/pull_answers.py`` decides what answers and errors mean.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, NamedTuple

from kerolox.client.calls.pull_answers import Meaning, Pulled, PullRule, read_pull
from kerolox.client.calls.readers import Replica
from kerolox.client.calls.retries import RefreshGap
from kerolox.client.calls.routes import MASTER
from kerolox.client.consume.held_queue import HeldQueue
from kerolox.client.errors import failure
from kerolox.client.messages import Received, decode_some
from kerolox.errors import KeroloxError
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.flags import PULL_COMMIT_OFFSET, PULL_SUBSCRIPTION, PULL_SUSPEND
from kerolox.protocol.headers.pull import PullRequest
from kerolox.protocol.subscription import matches_tag

if TYPE_CHECKING:
    from kerolox.client.cluster.client import Client
    from kerolox.client.consume.consumer_options import ConsumerOptions

log = logging.getLogger(__name__)


class PullForm(NamedTuple):
    """Form of the pull requests of a kind of consumer."""

    code: int = RequestCode.PULL_MESSAGE
    flags: int = 0
    has_subscription: bool = False  # pulls carry the subscription, instead of the heartbeat
    has_progress: bool = True  # pulls carry the progress of the queue


class PullOutcome(NamedTuple):
    """Outcome of a pull that was answered."""

    pulled: Pulled
    messages: list[Received]  # of the subscription
    next_offset: int
    received: int  # messages in the answer
    took_s: float
    replica: Replica


class Pulling:
    """Pull requests of one consumer."""

    def __init__(self, client: Client, group: str, form: PullForm, options: ConsumerOptions) -> None:
        self._client = client
        self._group = group
        self._form = form
        self._options = options
        self._code = form.code
        self._clock = client.clock
        self._introduction: asyncio.Task[int] | None = None  # one heartbeat for all queues that need it
        self._gap = RefreshGap(self._clock.monotonic_s)

    async def pull(self, held: HeldQueue) -> PullOutcome | None:
        """Pull a queue once. Raises KeroloxError. None: pull again, from the current offset of the queue."""
        held.replica = None
        replica = held.replica = self._client.replica(held.queue.broker, held.reader)
        address, code, offset = replica.address, self._code, held.next_offset
        commit = self._progress(held, replica)
        peer = self._client.ready_peer(address) or await self._client.peer(address, code=code)
        began_s = held.pulled_at_s = self._clock.monotonic_s()
        request = self._request(held, commit)
        answer = await peer.request(code, request, timeout_s=self._options.hold_s * 2)
        if held.dropped or held.next_offset != offset:
            return None  # released, or moved to another offset meanwhile
        if answer.code == ResponseCode.GO_AWAY:
            self._client.retire(address, peer)
            if held.was_sent_away:  # over a new connection, too: the broker is stopping
                raise failure(answer, address=address, code=code)
            held.was_sent_away = True
            return None
        if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED and code != RequestCode.PULL_MESSAGE:
            self._code = RequestCode.PULL_MESSAGE  # supported by all brokers
            return None
        pulled = read_pull(answer, offset, address, code)
        is_stuck = pulled.meaning is Meaning.REFERRED
        held.reader.answered(replica, pulled.suggested_id, stuck=is_stuck)
        held.was_sent_away = False
        if commit:
            held.saved_offset = commit
            held.saved_by = peer
        messages: list[Received] = []
        next_offset, received = pulled.next_offset, 0
        if pulled.meaning is Meaning.FOUND:
            messages, left_from = decode_some(pulled.block, held.queue.broker)
            next_offset = next_offset if left_from is None else left_from
            received = len(messages)
            wanted = held.wanted
            if wanted.tags_set:
                messages = [message for message in messages if matches_tag(wanted, message.tag)]
        elif pulled.meaning in (Meaning.RESET, Meaning.GONE):
            log.warning(
                "offset_moved queue=%s asked=%d now=%d first=%d end=%d",
                held.queue, offset, next_offset, pulled.min_offset, pulled.max_offset,
            )  # fmt: skip
        took_s = self._clock.monotonic_s() - began_s
        return PullOutcome(pulled, messages, next_offset, received, took_s, replica)

    def _progress(self, held: HeldQueue, replica: Replica) -> int:
        """Return the progress that the pull carries; 0 without. Followers ignore it."""
        if self._form.has_progress and held.has_progress and replica.leads and not self._options.broadcasting:
            return held.commit_offset
        return 0

    def _request(self, held: HeldQueue, commit: int) -> PullRequest:
        form, queue, wanted, options = self._form, held.queue, held.wanted, self._options
        flags = form.flags | PULL_SUSPEND
        if commit > 0:
            flags |= PULL_COMMIT_OFFSET
        if form.has_subscription:
            flags |= PULL_SUBSCRIPTION
        return PullRequest(
            consumer_group=self._group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=held.next_offset,
            max_msg_nums=options.pull_count,
            sys_flag=flags,
            commit_offset=commit,
            suspend_timeout_millis=int(options.hold_s * 1000),
            subscription=wanted.sub_string if form.has_subscription else None,
            sub_version=wanted.sub_version,
            max_msg_bytes=options.pull_bytes,
            expression_type=wanted.expression_type,
            broker_name=queue.broker,
        )

    async def pause(self, held: HeldQueue, outcome: PullOutcome) -> None:
        """Pause before the next pull from a follower that has no more messages.

        Followers do not hold pulls; they refer to the leader. The leader may have returned, so the route is
        refreshed.
        """
        replica = outcome.replica
        if outcome.pulled.meaning is not Meaning.REFERRED or replica.leads:
            return
        queue, known = held.queue, self._client.routes.known
        if MASTER not in known.replicas(queue.broker) and self._gap.is_over(queue.topic):
            await self._refresh(queue.topic)
        if self._client.replica(queue.broker, held.reader) == replica:
            await self._clock.sleep(held.reader.pause_s())

    async def recover(self, held: HeldQueue, error: KeroloxError, rule: PullRule) -> None:
        """Carry out the steps after a failed pull, without the pause."""
        queue, replica = held.queue, held.replica
        if rule.is_failure or rule.introduce:
            held.reader.suggested = MASTER
        if not rule.is_failure:
            if rule.introduce:
                log.info("pull_too_early queue=%s error=%r", queue, str(error))
                await asyncio.shield(self._introduce())
            return
        if rule.introduce:
            self._introduce()
        if replica is not None:
            held.reader.failed(replica, error, self._clock.monotonic_s())
            if rule.look_for_leader and replica.leads:
                self._client.routes.look_for_leader(queue.topic, queue.broker, replica.address)
        if rule.refresh_route:
            await self._refresh(queue.topic)

    async def wait_after(self, held: HeldQueue, rule: PullRule) -> None:
        """Pause after a failed pull."""
        if rule.pause_s is None:
            await self._client.routes.pause(held.queue.topic, self._options.error_pause_s)
        else:
            await self._clock.sleep(rule.pause_s)

    async def _refresh(self, topic: str) -> None:
        try:
            await self._client.routes.refresh(topic)
        except KeroloxError as error:
            log.info("route_not_refreshed topic=%s error=%r", topic, str(error))

    def _introduce(self) -> asyncio.Task[int]:
        if self._introduction is None or self._introduction.done():
            self._introduction = self._client.spawn(self._client.heartbeat())
        return self._introduction


def is_full(options: ConsumerOptions, count: int, size_bytes: int, queues: int) -> bool:
    """Return True if a queue has reached its limits. ``queues``: number of held queues of the topic."""
    if count >= options.queue_messages_max or size_bytes >= options.queue_bytes_max:
        return True
    # Each queue has its share of the topic's limit, so that one queue cannot block the others.
    if options.topic_messages_max and count * queues >= options.topic_messages_max:
        return True
    return bool(options.topic_bytes_max) and size_bytes * queues >= options.topic_bytes_max
