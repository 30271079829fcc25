"""Base of all consumers: subscriptions, allocation of queues, pulling, and progress.

One task rebalances the queues when members or routes change, and every 20 seconds; only reassigned queues are
interrupted. One task per queue pulls; the broker holds the request until messages arrive. One task saves the
progress at the brokers.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from typing import Any, Self

from kerolox.client.calls.pull_answers import Meaning, pull_rule
from kerolox.client.calls.routes import Route
from kerolox.client.cluster.client import Client
from kerolox.client.cluster.members import ConsumingMember
from kerolox.client.cluster.queue_calls import QueueCalls
from kerolox.client.consume.consumer_options import ConsumerOptions, StartAt
from kerolox.client.consume.held_queue import HeldQueue
from kerolox.client.consume.offset_files import FileOffsets
from kerolox.client.consume.offset_keeping import BrokerOffsets, OffsetKeeping
from kerolox.client.consume.pulling import PullForm, Pulling, PullOutcome, is_full
from kerolox.client.consume.refusals import Refusals
from kerolox.client.errors import NoRoute, TopicNotFound
from kerolox.client.ids import client_id
from kerolox.client.messages import Queue
from kerolox.client.names import check_group
from kerolox.client.options import ClientOptions
from kerolox.client.user_code import contained
from kerolox.errors import (
    Closed,
    ConnectFailed,
    ConnectionLost,
    KeroloxError,
    RequestFailed,
    RequestTimeout,
)
from kerolox.protocol.bodies.heartbeat import (
    ConsumeFromWhere,
    ConsumerData,
    ConsumeType,
    MessageModel,
    SubscriptionData,
)
from kerolox.protocol.reserved import RETRY_PREFIX
from kerolox.protocol.subscription import TAG, subscription

log = logging.getLogger(__name__)

_NO_ANSWER = (ConnectFailed, ConnectionLost, RequestTimeout)  # errors of a broker that may be gone

FULL_LOOK_S = 1.0  # between checks of a full or paused queue: limits also depend on other queues
NOT_BALANCED_PAUSE_S = 1.0  # pause after a failed rebalance; doubled while nothing changes


class Consumer(ConsumingMember):
    """Member of a consumer group."""

    consume_type = ConsumeType.CONSUME_PASSIVELY
    pull_form = PullForm()

    def __init__(
        self, where: Client | ClientOptions | str | Sequence[str] | None, group: str, options: ConsumerOptions
    ) -> None:
        check_group(group)
        self.options = options
        self._owns_client = not isinstance(where, Client)
        self.client = where if isinstance(where, Client) else Client(where)
        if self._owns_client and options.broadcasting:
            self.client.client_id = self._stable_id()  # as RocketMQ's
        self.group = self.client.wire_name(group)
        self.calls = QueueCalls(self.client, self.group)
        self.keeping: OffsetKeeping = (
            FileOffsets(
                self.calls,
                self._stable_id(),
                self.group,
                self.client.nameservers.addresses,
                options.offsets_directory,
            )
            if options.broadcasting
            else BrokerOffsets(self.calls, zero_if_young=options.start_at() is not StartAt.TIMESTAMP)
        )
        self.wanted: dict[str, SubscriptionData] = {}  # by topic, in wire form
        self.held: dict[Queue, HeldQueue] = {}
        self.refusals = Refusals(self.group)
        self.started_ms = 0
        self._clock = self.client.clock
        self._pulling = Pulling(self.client, self.group, self.pull_form, options)
        self._missing: set[str] = set()  # topics that do not exist
        self._balance_now = asyncio.Event()
        self._dividing = asyncio.Lock()  # held while queues are taken or released
        self._leaving: dict[HeldQueue, None] = {}  # queues that are being released
        self._paused: set[Queue] | None = set()  # None: all of them
        self._tasks: list[asyncio.Task[None]] = []
        self._is_open = False
        self._closed = False
        self._done: asyncio.Event = asyncio.Event()

    # --- life -----------------------------------------------------------------------------------------

    async def open(self) -> Self:
        """Join the group. Messages are delivered after the first rebalance."""
        if self._closed:
            raise Closed("this consumer is closed; make a new one")
        if self._is_open:
            return self
        await self.client.open()
        try:
            self.client.add_consumer(self)
        except KeroloxError:
            await self.client.close()
            raise
        self._is_open = True
        self.started_ms = self._clock.wall_ms()
        self.start_task(self._keep_balanced())
        self.start_task(self._keep_saved())
        return self

    @property
    def is_open(self) -> bool:
        return self._is_open and not self._closed

    @property
    def refusal(self) -> RequestFailed | None:
        """Error of a broker that rejects this consumer: AccessDenied or FilterRefused, else None."""
        return self.refusals.latest

    def _stable_id(self) -> str:
        """Return the client id without the process id, so that the offset file is found after a restart."""
        return client_id(self.client.options.instance, self.client.options.unit, stable=True)

    def start_task(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine in the background until the consumer is closed."""
        self._tasks.append(self.client.spawn(work))

    async def close(self) -> None:
        """Leave the group: wait for running handlers (for a limited time), and save progress."""
        if not self._is_open or self._closed:
            self._closed = True
            self._done.set()
            return
        self._closed = True
        if self.client.is_of_parent:
            self._done.set()
            return  # its connections belong to the parent process
        self.client.check_home()
        try:
            # First stop taking queues. Queues that are being released are completed here, too.
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self._stop_queues([*self.held.values(), *self._leaving])
            self.held.clear()
            self._leaving.clear()
            await self.client.remove_consumer(self)
        finally:
            try:
                await self._finish()
            finally:
                self.keeping.close()
                await self.client.close()
                self._done.set()

    async def _finish(self) -> None:
        """Release the resources of a subclass, as the last step of closing."""

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def wait_closed(self) -> None:
        """Wait until the consumer is closed: for programs that only consume."""
        await self._done.wait()

    def __repr__(self) -> str:
        topics = ", ".join(
            self.client.user_name(topic) for topic in self.wanted if not topic.startswith(RETRY_PREFIX)
        )
        return f"<{type(self).__name__} {self.group} of {topics or 'nothing'}, {len(self.held)} queues>"

    # --- subscriptions --------------------------------------------------------------------------------

    def want(self, topic: str, expression: str, kind: str = TAG) -> SubscriptionData:
        """Subscribe to a topic by its wire name. An open consumer rebalances."""
        data = subscription(topic, expression, self._clock.wall_ms(), kind)
        self.wanted[topic] = data
        for held in self.held.values():
            if held.queue.topic == topic:
                held.wanted = data
                # A held pull would continue with the old subscription and skip other messages.
                self._start_pulling(held)
        self._wanted_changed()
        return data

    def unwant(self, topic: str) -> None:
        self.wanted.pop(topic, None)
        self._wanted_changed()

    def _wanted_changed(self) -> None:
        if self._is_open and not self._closed:
            self._balance_now.set()

    def topics(self) -> Iterable[str]:
        return self.wanted

    def heartbeat(self) -> ConsumerData | None:
        return ConsumerData(
            group_name=self.group,
            consume_type=self.consume_type,
            message_model=MessageModel.BROADCASTING if self.options.broadcasting else MessageModel.CLUSTERING,
            consume_from_where=ConsumeFromWhere(self.options.start_at().value),
            subscription_data_set=tuple(self.wanted.values()),
            unit_mode=self.client.options.unit_mode,
        )

    def members_changed(self) -> None:
        self._balance_now.set()

    def route_changed(self, route: Route) -> None:
        if route.topic in self.wanted:
            self._balance_now.set()

    # --- rebalance ------------------------------------------------------------------------------------

    async def _keep_balanced(self) -> None:
        announced: dict[str, SubscriptionData] = {}
        hurry_s = NOT_BALANCED_PAUSE_S
        while True:
            self._balance_now.clear()
            try:
                if announced != self.wanted:
                    wanted = dict(self.wanted)
                    if await self._introduce():
                        announced = wanted
                async with self._dividing:
                    complete = await self._balance()
            except Exception:
                # For example, an error in a user's strategy. This task must survive it, or rebalancing ends.
                log.exception("not_balanced group=%s", self.group)
                complete = False
            pause_s = self.options.balance_s if complete else min(hurry_s, self.options.balance_s)
            hurry_s = NOT_BALANCED_PAUSE_S if complete else hurry_s * 2
            try:
                async with asyncio.timeout(pause_s):
                    await self._balance_now.wait()
                hurry_s = NOT_BALANCED_PAUSE_S
            except TimeoutError:
                pass

    async def _introduce(self) -> int:
        """Send heartbeats, which brokers need before they can list the members. Return how many accepted."""
        for topic in list(self.wanted):
            await self._route(topic)
        return await self.client.heartbeat()

    async def _route(self, topic: str) -> Route | None:
        try:
            route = await self.client.routes.find(topic)
            self._missing.discard(topic)
            return route
        except TopicNotFound as error:
            # A retry topic is created by the group's first heartbeat; another topic may be created any time.
            if not topic.startswith(RETRY_PREFIX) and topic not in self._missing:
                self._missing.add(topic)
                log.warning("topic_not_there_yet topic=%s error=%r", topic, str(error))
        except (NoRoute, KeroloxError) as error:
            # kerolox name servers check keys, so wrong keys are reported here. An error of a topic applies to
            # its retry topic, too, and is reported once.
            if topic.startswith(RETRY_PREFIX) or not self.failed(error, topic):
                log.warning("route_not_found topic=%s error=%r", topic, str(error))
        return None

    async def _balance(self) -> bool:
        """Take and release queues. Return False if a part failed and must be retried soon."""
        complete = True
        for topic in [*dict.fromkeys(queue.topic for queue in self.held), *self.wanted]:
            if topic not in self.wanted:
                await self._let_go([held for queue, held in self.held.items() if queue.topic == topic])
        for topic in list(self.wanted):
            try:
                complete &= await self._balance_topic(topic)
            except KeroloxError as error:
                if not self.failed(error, topic):
                    log.warning("not_balanced group=%s topic=%s error=%r", self.group, topic, str(error))
                complete = False
        return complete

    async def _balance_topic(self, topic: str) -> bool:
        route = await self._route(topic)
        if route is None:
            return False  # retried soon: the first messages of a new topic should not be missed
        mine = await self._share(topic, sorted(route.readable))
        if mine is None:
            return False
        chosen = set(mine)
        await self._let_go(
            [held for queue, held in self.held.items() if queue.topic == topic and queue not in chosen]
        )
        new = [queue for queue in mine if queue not in self.held]
        if not new:
            return True
        taken = await self._take(new)
        if taken < len(new):
            await self._not_taken([queue for queue in new if queue not in self.held])
        if taken:
            log.info(
                "queues_taken group=%s topic=%s taken=%d held=%d of=%d",
                self.group, topic, taken, len(self.held), len(route.readable),
            )  # fmt: skip
        return taken == len(new)

    async def _share(self, topic: str, queues: Sequence[Queue]) -> list[Queue] | None:
        if self.options.broadcasting:
            return list(queues)
        members = await self.calls.members(topic)
        me = self.client.client_id
        if me not in members:
            # The broker does not know this member (yet). Without queues, no message is consumed twice.
            await self.client.heartbeat()
            members = await self.calls.members(topic)
            if me not in members:
                log.warning("not_in_group group=%s topic=%s members=%d", self.group, topic, len(members))
                return []
        if not queues:
            return []
        return contained(self.options.allocate, me, queues, members)

    async def _take(self, queues: Sequence[Queue]) -> int:
        """Start to pull queues. Return the number started."""
        allowed = await self._allowed(queues)
        starts = await asyncio.gather(
            *(self._start_offset(queue) for queue in allowed), return_exceptions=True
        )
        taken = 0
        lost: set[str] = set()  # topics with a broker that does not answer; another leader may exist
        for queue, start in zip(allowed, starts, strict=True):
            if isinstance(start, KeroloxError):
                if not self.failed(start, queue.topic, queue.broker):
                    log.warning("start_unknown queue=%s error=%r next='tried again soon'", queue, str(start))
                if isinstance(start, _NO_ANSWER):
                    lost.add(queue.topic)
                continue
            if isinstance(start, BaseException):
                raise start
            wanted = self.wanted.get(queue.topic)
            if wanted is None or self._closed:
                continue
            self._hold(HeldQueue(queue, wanted, start))
            taken += 1
        await self.client.routes.refresh_all(lost)
        return taken

    def _hold(self, held: HeldQueue) -> None:
        self.held[held.queue] = held
        held.paused = self._paused is None or held.queue in self._paused
        held.reader.read_from = self.options.read_from
        held.pulled_at_s = self._clock.monotonic_s()
        self._start_pulling(held)
        self._taken(held)

    def _taken(self, held: HeldQueue) -> None:
        """React to a newly taken queue."""

    async def _allowed(self, queues: Sequence[Queue]) -> Sequence[Queue]:
        """Return the queues that may be taken: in ordered consumption, those that could be locked."""
        return queues

    async def _not_taken(self, queues: Sequence[Queue]) -> None:
        """React to queues that were allowed but not taken: other members may take them."""

    async def _start_offset(self, queue: Queue) -> int:
        stored = await self.keeping.load(queue)
        if stored is not None:
            return stored
        start = self.options.start_at()
        is_retry = queue.topic.startswith(RETRY_PREFIX)
        if start is StartAt.FIRST:
            return 0
        if start is StartAt.LAST:
            return 0 if is_retry else await self.calls.max_offset(queue)
        if is_retry:
            return await self.calls.max_offset(queue)
        return await self.calls.offset_at(queue, self.options.start_ms(self._clock.wall_ms()))

    async def _let_go(self, queues: Sequence[HeldQueue]) -> None:
        if not queues:
            return
        for held in queues:
            self.held.pop(held.queue, None)
            self._leaving[held] = None
        await self._stop_queues(queues)
        for held in queues:
            self._leaving.pop(held, None)
        log.info("queues_let_go group=%s count=%d held=%d", self.group, len(queues), len(self.held))

    async def _stop_queues(self, queues: Sequence[HeldQueue]) -> None:
        """Stop queues: start no further handlers, wait for running ones, and save the progress."""
        for held in queues:
            held.drop()
            if held.pull is not None:
                held.pull.cancel()
        await self._wait_idle(queues)
        await self._save(queues)
        await self._released(queues)

    async def _wait_idle(self, queues: Sequence[HeldQueue]) -> None:
        """Wait until no handler works on these queues, or until the timeout."""

    async def _released(self, queues: Sequence[HeldQueue]) -> None:
        """React to released queues: other members may take them."""

    # --- pulling --------------------------------------------------------------------------------------

    def _start_pulling(self, held: HeldQueue) -> None:
        """Start to pull a queue from its next offset. A running pull is cancelled."""
        if held.pull is not None:
            held.pull.cancel()
        held.pull = self.client.spawn(self._keep_pulled(held))

    async def _keep_pulled(self, held: HeldQueue) -> None:
        """Pull one queue until it is released."""
        while not held.is_gone():
            if self.is_full(held):
                await held.wait_for_room(FULL_LOOK_S)
                continue
            try:
                await self._pull_once(held)
            except Exception:
                # The task must survive any error: otherwise the queue would not be pulled any more.
                log.exception("pull_broken queue=%s offset=%d", held.queue, held.next_offset)
                await self._clock.sleep(self.options.error_pause_s)

    async def _pull_once(self, held: HeldQueue) -> None:
        try:
            outcome = await self._pulling.pull(held)
            if outcome is not None:
                await self._apply(held, outcome)
        except KeroloxError as error:
            if not held.is_gone():
                await self._recover(held, error)

    async def _apply(self, held: HeldQueue, outcome: PullOutcome) -> None:
        """Take the messages of a pull, and continue at its next offset."""
        queue = held.queue
        if outcome.pulled.resets_progress(held.count, held.commit_offset):
            self.reset_offsets(queue.topic, {queue: outcome.next_offset})
            await self._clock.sleep(self.options.error_pause_s)
            return
        held.has_progress = True
        held.failures = 0
        self.refusals.served(queue.topic, queue.broker)
        if outcome.pulled.meaning is Meaning.FOUND:
            self.pulled(held, outcome.received, outcome.took_s)
        held.take(outcome.messages, outcome.next_offset)
        if outcome.messages:
            self.arrived(held)
        else:
            await self._pulling.pause(held, outcome)

    async def _recover(self, held: HeldQueue, error: KeroloxError) -> None:
        """React to a failed pull, and pause. The next pull has the same offset."""
        rule = pull_rule(error)
        if rule.is_failure and not self.failed(error, held.queue.topic, held.queue.broker):
            times = held.failures = held.failures + 1
            if times & (times - 1) == 0:  # counted, not repeated
                log.warning(
                    "pull_failed queue=%s offset=%d times=%d error=%r",
                    held.queue, held.next_offset, times, str(error),
                )  # fmt: skip
        await self._pulling.recover(held, error, rule)
        if rule.refresh_route:
            self._balance_now.set()
        await self._pulling.wait_after(held, rule)

    def pause(self, *queues: Queue) -> None:
        """Stop pulling these queues; without arguments all queues, including those taken later."""
        if not queues:
            self._paused = None
        elif self._paused is not None:
            self._paused.update(map(self._wire, queues))
        for held in self._named(queues):
            held.paused = True

    def resume(self, *queues: Queue) -> None:
        """Continue to pull these queues; without arguments all queues."""
        if not queues:
            self._paused = set()
        else:
            paused = set(self.held) if self._paused is None else self._paused
            self._paused = paused.difference(map(self._wire, queues))
        for held in self._named(queues):
            held.paused = False
            held.room.set()
            self._resumed(held)

    def _resumed(self, held: HeldQueue) -> None:
        """React to a resumed queue."""

    def _named(self, queues: Sequence[Queue]) -> list[HeldQueue]:
        if not queues:
            return list(self.held.values())
        return [self.held[wire] for queue in queues if (wire := self._wire(queue)) in self.held]

    def _wire(self, queue: Queue) -> Queue:
        return queue._replace(topic=self.client.wire_name(queue.topic))

    def is_full(self, held: HeldQueue) -> bool:
        """Return True while a queue must not be pulled: it is paused, or a limit is reached."""
        same = sum(each.topic == held.queue.topic for each in self.held)
        return held.paused or is_full(self.options, *self.load(held), same)

    def load(self, held: HeldQueue) -> tuple[int, int]:
        """Return the messages and bytes that count toward the limits: those not done."""
        return held.count, held.size_bytes

    def arrived(self, held: HeldQueue) -> None:
        """React to messages that arrived in a queue."""
        raise NotImplementedError

    def failed(self, error: KeroloxError, topic: str, broker: str = "") -> bool:
        """Record a failed rebalance or pull, which is retried.

        Return True for a rejection that a retry cannot solve; it is kept for :attr:`refusal`.
        """
        return self.refusals.note(error, topic, broker)

    def pulled(self, held: HeldQueue, count: int, took_s: float) -> None:
        """Record a pull for statistics."""

    # --- progress -------------------------------------------------------------------------------------

    async def _keep_saved(self) -> None:
        while True:
            await self._clock.sleep(self.options.save_s)
            try:
                await self._save(list(self.held.values()))
            except Exception:
                log.exception("progress_not_saved group=%s", self.group)

    async def _save(self, queues: Sequence[HeldQueue]) -> dict[Queue, KeroloxError]:
        """Save the progress of queues. Return the failed queues with their errors."""
        due: dict[Queue, int] = {}
        for held in queues:
            offset = self._progress(held)
            if offset is None:
                continue
            listener = self.keeping.listener(held.queue)
            is_new = listener is not None and listener is not held.saved_by
            if offset != held.saved_offset or is_new:  # another broker, or one restarted without the progress
                due[held.queue] = offset
        if not due:
            return {}
        failed = await self.keeping.save(due)
        # The leader may be gone, which a consumer that reads from a follower does not notice otherwise.
        lost = {queue.topic for queue, error in failed.items() if isinstance(error, _NO_ANSWER)}
        await self.client.routes.refresh_all(lost)
        for held in queues:
            if held.queue in due and held.queue not in failed:
                held.saved_offset = due[held.queue]
                held.saved_by = self.keeping.listener(held.queue)
        return failed

    def _progress(self, held: HeldQueue) -> int | None:
        """Return the progress of a queue; None before the first response."""
        return held.commit_offset if held.has_progress else None

    # --- requests of administrators -------------------------------------------------------------------

    def reset_offsets(self, topic: str, offsets: Mapping[Queue, int]) -> None:
        """Continue from these offsets, set by an administrator."""
        if self.is_open:
            self.start_task(self._reset(dict(offsets)))

    async def _reset(self, offsets: Mapping[Queue, int]) -> None:
        async with self._dividing:  # otherwise a rebalance might take the queues before the offsets are saved
            queues = [held for queue, held in self.held.items() if queue in offsets]
            for held in queues:
                del self.held[held.queue]
                self._leaving[held] = None
                held.drop()
                if held.pull is not None:
                    held.pull.cancel()
            await self._wait_idle(queues)
            for held in queues:
                held.has_progress = False  # earlier progress must not be saved any more
            await self.keeping.save({held.queue: offsets[held.queue] for held in queues})
            await self._released(queues)
            for held in queues:
                self._leaving.pop(held, None)
        log.info("offsets_reset group=%s queues=%d", self.group, len(queues))
        self._balance_now.set()

    def offsets(self, topic: str) -> Mapping[Queue, int]:
        return {queue: held.commit_offset for queue, held in self.held.items() if queue.topic == topic}
