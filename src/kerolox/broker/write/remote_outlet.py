"""Delivery through another broker while this one acts for its leader: due messages are sent to a leader of
another name.

They are sent as by a producer, by a client in this process. Leaders of this broker's own name are excluded,
whatever a route contains: the own leader is away, and a route may be outdated. A message that no broker
accepts is not skipped: the caller keeps it and tries again. A message that a broker stored without answering
is delivered twice, as with every producer that sends again.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

from kerolox.broker.options import BrokerOptions
from kerolox.broker.write.pending_message import PendingMessage
from kerolox.client.calls.outgoing import Outgoing, Target
from kerolox.client.calls.routes import MASTER, Route
from kerolox.client.cluster.client import Client
from kerolox.client.options import ClientOptions, ProducerOptions
from kerolox.client.send.sending import Sender
from kerolox.clock import Clock
from kerolox.errors import KeroloxError
from kerolox.protocol import properties as packed
from kerolox.protocol.flags import (
    COMPRESSED,
    COMPRESSION_MASK,
    MULTI_TAGS,
    NEEDS_UNWRAP,
    TRANSACTION_PREPARED,
)
from kerolox.protocol.reserved import TEMPLATE_TOPIC

BEGIN_S = 1.0  # time in which new sends begin; a leader that returns waits for those in progress
SEND_S = 2.0  # for an answer; a shorter wait would send the message twice
WINDOW = 64  # messages on their way at once
TRIES = 3  # each at another broker, if one exists
ROUTE_S = 5.0  # largest age of a route
ROUTES_MAX = 10_000
TEMPLATE_QUEUES = 4

_KEPT_FLAGS = COMPRESSED | COMPRESSION_MASK | MULTI_TAGS | NEEDS_UNWRAP
# Properties that would make the other broker park the message again, and those of its place here.
_AT_ASKING = (
    packed.AT_DELAY, packed.AT_TIMER_DELAY_S, packed.AT_TIMER_DELAY_MS, packed.AT_TIMER_DELIVER_MS,
    packed.AT_CRC32, packed.marker(packed.REAL_TOPIC), packed.marker(packed.REAL_QUEUE_ID),
)  # fmt: skip
_AT_PRODUCER_GROUP = packed.marker(packed.PRODUCER_GROUP)


class NoOtherBroker(KeroloxError):
    """No leader of another name accepts messages of this topic."""

    retriable = True


class RemoteOutlet:
    """Sender to leaders of other names: an outlet, and the first of the acting parts."""

    def __init__(self, options: BrokerOptions, clock: Clock) -> None:
        self.sent = 0  # since the start
        self._options = options
        self._clock = clock
        self._group = f"InnerProducerGroup_{options.broker_name}_{options.broker_id}"
        self._sender: Sender | None = None
        self._asked_s: dict[str, float] = {}  # topic → time of the last request for its route
        self._stored: set[int] = set()  # places of stored messages that follow one that is not stored

    async def act(self) -> None:
        self._stored.clear()  # the log may have been truncated since, and other messages lie at these places

    async def lead(self) -> None: ...

    async def follow(self) -> None: ...

    async def close(self) -> None:
        if self._sender is not None:
            await self._sender.client.close()

    async def put(self, messages: Sequence[PendingMessage]) -> int:
        until_s = self._clock.monotonic_s() + BEGIN_S
        done = 0
        while done < len(messages) and (not done or self._clock.monotonic_s() < until_s):
            some = messages[done : done + WINDOW]
            failed = await self._put_some(some, until_s)
            first = min(failed, default=len(some))
            for message in some[:first]:
                self._stored.discard(message.parked_at)
            done += first
            if failed:
                if not done:
                    raise failed[0]
                break
        return done

    async def _put_some(self, messages: Sequence[PendingMessage], until_s: float) -> dict[int, KeroloxError]:
        """Return the errors of failed messages, by index."""
        results = await asyncio.gather(
            *[self._put_one(message, until_s) for message in messages], return_exceptions=True
        )
        failed: dict[int, KeroloxError] = {}
        for number, (message, result) in enumerate(zip(messages, results, strict=True)):
            if result is None:
                self._stored.add(message.parked_at)
            elif isinstance(result, KeroloxError):
                failed[number] = result
            else:
                failed[number] = NoOtherBroker(
                    f"a message to {message.topic!r} could not be sent: {result!r}"
                )
        return failed

    async def _put_one(self, message: PendingMessage, until_s: float) -> None:
        if message.parked_at in self._stored:
            return
        sender = await self._open()
        outgoing = outgoing_of(message)
        own = packed.find(message.properties, _AT_PRODUCER_GROUP)
        group = self._group if own is None else own.decode("utf-8", "replace")
        tried: set[str] = set()
        while True:
            route = await self._route(sender.client, message.topic)
            target = self._target(route, tried, group)
            tried.add(target.queue.broker)
            try:
                await sender.deliver(outgoing, SEND_S, pinned=target)
            except KeroloxError:
                self._asked_s.pop(message.topic, None)
                is_over = len(tried) >= TRIES or self._clock.monotonic_s() >= until_s
                if is_over or not self._brokers(route) - tried:
                    raise
                continue
            self.sent += 1
            return

    async def _open(self) -> Sender:
        if self._sender is None:
            options, own = self._options, self._options.own_credentials
            client = Client(
                ClientOptions(
                    options.nameservers,
                    tls=options.own_tls,
                    instance=self._group,
                    access_key=own.access_key if own else "",
                    secret_key=own.secret_key if own else "",
                    signature_v2=own is not None and own.form_2,
                    environment=False,
                ),
                clock=self._clock,
            )
            self._sender = Sender(
                client, self._group, ProducerOptions(timeout_s=SEND_S, retries=0, compression="")
            )
            await client.open()
        return self._sender

    async def _route(self, client: Client, topic: str) -> Route:
        routes, now_s = client.routes, self._clock.monotonic_s()
        if now_s - self._asked_s.get(topic, -ROUTE_S) >= ROUTE_S:
            if len(self._asked_s) >= ROUTES_MAX:
                self._asked_s.clear()
            self._asked_s[topic] = now_s
            await routes.refresh_all([topic])
        return await routes.patiently(
            topic, lambda: routes.find_for_sending(topic, TEMPLATE_TOPIC, TEMPLATE_QUEUES), BEGIN_S
        )

    def _brokers(self, route: Route) -> set[str]:
        own = self._options.broker_name
        return {
            queue.broker
            for queue in route.writable
            if queue.broker != own and MASTER in route.brokers.get(queue.broker, ())
        }

    def _target(self, route: Route, tried: set[str], group: str) -> Target:
        brokers = self._brokers(route)
        if not brokers:
            raise NoOtherBroker(
                f"no leader of another name than {self._options.broker_name!r} accepts messages of topic "
                f"{route.topic!r}. Create the topic on another broker, or start one"
            )
        broker = random.choice(sorted(brokers - tried or brokers))
        queue = random.choice([queue for queue in route.writable if queue.broker == broker])
        return Target(
            queue, route.brokers[broker][MASTER], group,
            template_topic=TEMPLATE_TOPIC, template_queues=TEMPLATE_QUEUES,
        )  # fmt: skip


def outgoing_of(message: PendingMessage) -> Outgoing:
    """Return a parked message as a producer would send it: due now, or with its delivery time; a half message
    stays one."""
    properties, sys_flag = message.properties, message.sys_flag & _KEPT_FLAGS
    for mark in _AT_ASKING:
        if mark[1:] in properties:
            properties = packed.remove(properties, mark)
    if message.is_parked:  # a half message
        sys_flag |= TRANSACTION_PREPARED
    elif packed.AT_TRANSACTION_PREPARED[1:] in properties:
        properties = packed.remove(properties, packed.AT_TRANSACTION_PREPARED)
    if message.deliver_ms is not None:
        properties = packed.replace(properties, packed.TIMER_DELIVER_MS, str(message.deliver_ms))
    unique = packed.find(properties, packed.AT_UNIQUE_KEY) or b""
    return Outgoing(
        message.topic,
        message.body,
        properties.decode("utf-8", "replace"),
        unique.decode("utf-8", "replace"),
        message.born_timestamp,
        message.flag,
        sys_flag,
        reconsume_times=message.reconsume_times,
    )
