"""Sending of messages with an event loop: choose a queue, send to its broker, and retry as decided.

No task per message: a send waits for one future, and many sends share one write. ``calls/send_attempts.py``
decides retries.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING

from kerolox.client.calls.health import BrokerHealth
from kerolox.client.calls.outgoing import Outgoing, Target, check_properties, shrink
from kerolox.client.calls.routes import MASTER, Route
from kerolox.client.calls.send_attempts import RouteStep, SendAttempt, SendStep
from kerolox.client.calls.sends import Publishing, was_mistaken
from kerolox.client.errors import InvalidMessage, StoredUnsafely, failure
from kerolox.client.ids import unique_keys
from kerolox.client.message_types import seconds, wrong_field
from kerolox.client.messages import Message, Queue, Receipt
from kerolox.client.names import check_topic_for_sending
from kerolox.client.send.in_flight import SendsInFlight
from kerolox.errors import KeroloxError, Overloaded, RequestTimeout
from kerolox.protocol.codes import STORED_CODES, RequestCode, ResponseCode, request_name
from kerolox.protocol.limits import PROPERTIES_BYTES_MAX

KEYS_MAX = 1 << 15  # made at a time: their counter has 16 bits

if TYPE_CHECKING:
    from kerolox.client.cluster.client import Client
    from kerolox.client.options import ProducerOptions
    from kerolox.net.peer import Peer
    from kerolox.protocol.command import Command

log = logging.getLogger(__name__)

ROOM_S = 0.005  # how often a connection that cannot be written to is looked at

Selector = Callable[[Sequence[Queue], Message], Queue]


class Sender:
    """Sends for one group of a client."""

    def __init__(self, client: Client, group: str, options: ProducerOptions) -> None:
        self.client = client
        self.group = group
        self.options = options
        self.health = BrokerHealth(client.clock)
        self._publishing: dict[str, Publishing] = {}
        self._keys = unique_keys()
        self._monotonic_s = client.clock.monotonic_s
        self._wall_ms = client.clock.wall_ms
        self._checked: set[str] = set()  # topics whose names were looked at
        self._bytes_max = options.message_bytes_max
        namespace = client.options.namespace
        self._instance = f"INSTANCE_ID\x01{namespace}\x02" if namespace else ""

    @cached_property
    def loop(self) -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    @property
    def topics(self) -> list[str]:
        """Those sent to."""
        return list(self._publishing)

    def next_key(self) -> str:
        """A new unique key."""
        return self._keys.next()

    # --- making ready -------------------------------------------------------------------------

    def prepare(self, message: Message, more: str = "", *, sys_flag: int = 0) -> Outgoing:
        """Check and pack a message. Raises InvalidMessage. ``more``: further packed properties."""
        try:
            unique_key = message.unique_key or self._keys.next()
            outgoing = self._packed(
                message, self._wire_topic(message.topic), more, unique_key, self._wall_ms(), sys_flag
            )
        except (TypeError, AttributeError) as error:
            raise wrong_field(message) or error from error
        options = self.options
        if options.compression and len(outgoing.body) >= options.compress_from_bytes:
            shrink(outgoing, options.compression_kind, options.compression_level)
        return outgoing

    def prepare_some(self, messages: Sequence[Message], more: Iterable[str]) -> list[Outgoing]:
        """Check and pack the messages of a batch of one topic, uncompressed.

        The batch format has no flag for compressed messages.
        """
        found: list[Outgoing] = []
        extras = iter(more)
        try:
            topic, born_ms = self._wire_topic(messages[0].topic), self._wall_ms()
            for start in range(0, len(messages), KEYS_MAX):
                part = messages[start : start + KEYS_MAX]
                found += [
                    self._packed(message, topic, extra, message.unique_key or key, born_ms, 0)
                    for message, extra, key in zip(part, extras, self._keys.some(len(part)), strict=False)
                ]
        except (TypeError, AttributeError) as error:
            raise next(filter(None, map(wrong_field, messages)), None) or error from error
        return found

    def _wire_topic(self, topic: str) -> str:
        if topic not in self._checked:
            check_topic_for_sending(topic)
            if len(self._checked) > 10_000:
                self._checked.clear()
            self._checked.add(topic)
        return self.client.wire_name(topic) if self._instance else topic

    def _packed(
        self, message: Message, topic: str, more: str, unique_key: str, born_ms: int, sys_flag: int
    ) -> Outgoing:
        given = message.body
        body = given if type(given) is bytes else message.body_bytes()
        if not body:
            raise InvalidMessage(f"the message to topic {topic!r} has no body; brokers reject empty messages")
        if len(body) > self._bytes_max:
            raise InvalidMessage(
                f"the body has {len(body)} bytes; at most {self._bytes_max} (message_bytes_max, "
                "and the broker's maxMessageSize)"
            )
        flag = message.flag
        if type(unique_key) is not str or (flag and not isinstance(flag, int)):
            raise TypeError("unique_key, flag")
        properties = message.pack(unique_key, more + self._instance)
        if len(properties) > PROPERTIES_BYTES_MAX // 4:  # a character has four bytes at most
            check_properties(properties)
        return Outgoing(
            topic,
            body,
            properties,
            unique_key,
            born_ms,
            flag,
            sys_flag,
            RequestCode.SEND_MESSAGE_V2,
            message,
        )

    # --- queues -------------------------------------------------------------------------------

    async def publishing(self, topic: str, timeout_s: float | None = None) -> Publishing:
        """The queues of a topic (with its namespace). Raises a kind of NoRoute."""
        known = self._publishing.get(topic)
        if known is not None:
            return known
        self.client.check_open()
        options = self.options
        routes = self.client.routes
        route = await routes.patiently(
            topic,
            lambda: routes.find_for_sending(topic, options.template_topic, options.template_queues),
            options.timeout_s if timeout_s is None else seconds(timeout_s),
        )
        return self._publishing.get(topic) or self._publish(route)

    def known(self, topic: str) -> Publishing | None:
        """The queues of a topic, if they are known."""
        return self._publishing.get(topic)

    def route_changed(self, route: Route) -> None:
        known = self._publishing.get(route.topic)
        if known is None or known.route is route:
            return
        for broker, addresses in route.brokers.items():
            if addresses.get(MASTER) != known.route.leader(broker):
                self.health.forget(broker)  # what failed does not lead any more
        if route.writable:
            self._publish(route)
        else:
            del self._publishing[route.topic]
        self.health.forget_all_but(self.client.routes.known.brokers())

    def _publish(self, route: Route) -> Publishing:
        client, options = self.client, self.options
        shown = client.user_name(route.topic)

        def make(queue: Queue, address: str) -> Target:
            return Target(
                queue,
                client.vip(address),
                self.group,
                shown_topic=shown,
                unit_mode=client.options.unit_mode,
                template_topic=options.template_topic,
                template_queues=options.template_queues,
            )

        publishing = Publishing(route, make, random.randrange(1 << 20))
        self._publishing[route.topic] = publishing
        return publishing

    # --- connections --------------------------------------------------------------------------

    def ready_peer(self, address: str) -> Peer | None:
        if self.client.options.vip_channel:
            return self.client.dialer.connected_peer(address)
        return self.client.ready_peer(address)

    async def peer(self, address: str, timeout_s: float, code: int) -> Peer:
        if self.client.options.vip_channel:
            return await self.client.dialer.connect(address, timeout_s, code)
        return await self.client.peer(address, timeout_s, code)

    def ask(
        self,
        peer: Peer,
        target: Target,
        outgoing: Outgoing,
        on_answer: Callable[[Command | Exception], None],
        timeout_s: float,
    ) -> None:
        client = self.client
        command = target.command(
            outgoing,
            peer.next_opaque(),
            peer.encoding,
            from_template=len(client.handlers.hooks) == client.template_hooks,
            signer=client.signer,
        )
        peer.ask(command, on_answer, timeout_s)

    # --- one ----------------------------------------------------------------------------------

    async def deliver(
        self,
        outgoing: Outgoing,
        timeout_s: float | None = None,
        *,
        pinned: Target | None = None,
        attempt: SendAttempt | None = None,
    ) -> Receipt:
        """Send until a broker has stored the message; ``pinned``: to one queue only.

        ``attempt``: earlier failures, with the limits of all attempts. Raises errors that a retry cannot
        solve, and SendFailed after the last attempt or at the timeout.
        """
        clock = self._monotonic_s
        if attempt is None:
            began_s = clock()
            timeout_s = self.options.timeout_s if timeout_s is None else seconds(timeout_s)
        else:
            began_s, timeout_s = attempt.began_s, attempt.timeout_s
        deadline_s = began_s + timeout_s
        while True:
            if pinned is None:
                publishing = self._publishing.get(outgoing.topic)
                if publishing is None:
                    publishing = await self.publishing(outgoing.topic, deadline_s - clock())
                target = publishing.next(() if attempt is None else attempt.brokers, self.health)
            else:
                target = pinned if attempt is None else self._led_by_now(pinned)
            if attempt is not None and (pause_s := attempt.pause_s((target.queue.broker,), clock())):
                await self.client.routes.pause(outgoing.topic, pause_s)
                target = self._led_by_now(target)
            try:
                # All at hand, as nearly always: no further coroutine for the one try there will be.
                peer = self.ready_peer(target.address)
                if peer is not None and peer.stalled_since_s is None and not self.options.try_timeout_s:
                    now_s = clock()
                    future: asyncio.Future[Command | Exception] = self.loop.create_future()
                    self.ask(peer, target, outgoing, partial(_answered, future), deadline_s - now_s)
                    answer = await future
                    if not isinstance(answer, Exception) and answer.code == ResponseCode.GO_AWAY:
                        self.client.retire(target.address, peer)
                        return await self._try(outgoing, target, deadline_s, went_away=True)
                    return self.receipt(answer, target, outgoing, clock() - now_s)
                return await self._try(outgoing, target, deadline_s)
            except KeroloxError as error:
                if attempt is None:
                    attempt = self.attempt(outgoing, timeout_s, began_s, pinned)
                step = self.failed(attempt, target, error)
                if step.receipt is not None:
                    return step.receipt
                if step.error is error:
                    raise
                if step.error is not None:
                    raise step.error from error
                attempt = step.attempt

    def attempt(
        self, outgoing: Outgoing, timeout_s: float, began_s: float, pinned: Target | None
    ) -> SendAttempt:
        """Return the state of a send that fails for the first time."""
        return SendAttempt(outgoing.topic, self.options.retries, timeout_s, began_s, pinned is not None)

    def failed(self, attempt: SendAttempt, target: Target, error: KeroloxError) -> SendStep:
        """Record a failure for broker and route. Return the next step."""
        topic = attempt.topic
        known = self._publishing.get(topic)
        step = attempt.failed(
            target.queue.broker,
            error,
            self._monotonic_s(),
            mistaken=not attempt.is_tied and was_mistaken(known, target, error),
            is_assumed=known is not None and known.route.assumed,
        )
        if step.avoid_broker and self.options.avoid_slow_brokers:
            self.health.failed(target.queue.broker)
        if step.route is RouteStep.FORGET:
            self.client.routes.known.forget(topic)
            self._publishing.pop(topic, None)
        elif step.route is RouteStep.REFRESH:
            self._look_for_leader(topic, target, known)
        return step

    def _look_for_leader(self, topic: str, target: Target, known: Publishing | None) -> None:
        broker = target.queue.broker
        if known is None:  # nobody leads any of the topic's brokers
            self.client.routes.look_for_leader(topic, broker, None)
        elif known.by_queue.get(target.queue) is target:  # else it is known by now who does
            self.client.routes.look_for_leader(topic, broker, known.route.leader(broker))

    def _led_by_now(self, target: Target) -> Target:
        """Return the target of the queue at the current leader of its broker name."""
        topic = target.queue.topic
        known = self._publishing.get(topic)
        if known is None:
            route = self.client.routes.known.get(topic)
            if route is None or not route.writable:
                return target
            known = self._publish(route)
        return known.by_queue.get(target.queue, target)

    async def _try(
        self, outgoing: Outgoing, target: Target, deadline_s: float, *, went_away: bool = False
    ) -> Receipt:
        """One try at one broker; one more over a new connection if it leaves this one."""
        while True:
            now_s = self._monotonic_s()
            left_s = deadline_s - now_s
            if self.options.try_timeout_s:
                left_s = min(left_s, self.options.try_timeout_s)
            peer = self.ready_peer(target.address)
            if peer is None:
                peer = await self.peer(target.address, left_s, outgoing.code)
                left_s -= self._monotonic_s() - now_s
            if peer.stalled_since_s is not None:
                await self.wait_for_room(peer, now_s + left_s)
            future: asyncio.Future[Command | Exception] = self.loop.create_future()
            self.ask(peer, target, outgoing, partial(_answered, future), left_s)
            answer = await future
            if not isinstance(answer, Exception) and answer.code == ResponseCode.GO_AWAY and not went_away:
                went_away = True
                self.client.retire(target.address, peer)
                continue
            return self.receipt(answer, target, outgoing, self._monotonic_s() - now_s)

    def receipt(
        self, answer: Command | Exception, target: Target, outgoing: Outgoing, took_s: float
    ) -> Receipt:
        """Return the receipt of a stored message. Raises the error that another answer means."""
        if isinstance(answer, Exception):
            if isinstance(answer, RequestTimeout):
                raise RequestTimeout(target.address, request_name(outgoing.code), took_s)
            raise answer
        if answer.code not in STORED_CODES:
            raise failure(answer, address=target.address, code=outgoing.code)
        if self.options.avoid_slow_brokers:
            self.health.answered(target.queue.broker, took_s)
        receipt = target.receipt(answer, outgoing)
        if answer.code and self.options.retry_not_ok:
            raise StoredUnsafely(receipt, answer.remark, target.address)
        return receipt

    async def wait_for_room(self, peer: Peer, deadline_s: float) -> None:
        """Wait until the connection takes more."""
        while peer.stalled_since_s is not None and not peer.is_closed:
            if self._monotonic_s() >= deadline_s:
                raise Overloaded(f"{peer.address} does not read: the write buffer is full and does not drain")
            await self.client.clock.sleep(ROOM_S)

    async def tell(self, outgoing: Outgoing, timeout_s: float, *, pinned: Target | None = None) -> None:
        """Send one way: once, to one broker, without a response."""
        began_s = self._monotonic_s()
        target = pinned or (await self.publishing(outgoing.topic, timeout_s)).next((), self.health)
        left_s = began_s + timeout_s - self._monotonic_s()
        peer = self.ready_peer(target.address) or await self.peer(target.address, left_s, outgoing.code)
        if peer.stalled_since_s is not None:
            await self.wait_for_room(peer, began_s + timeout_s)
        peer.tell(outgoing.code, target.header(outgoing), outgoing.body)

    # --- many ---------------------------------------------------------------------------------

    async def deliver_many(
        self,
        outgoings: Iterable[Outgoing | InvalidMessage],
        timeout_s: float,
        choose: Callable[[Publishing, Outgoing], Target] | None = None,
    ) -> list[Receipt | Exception]:
        """Send many, each without waiting for the answer to the one before. In order: receipt or error."""
        sends = SendsInFlight(self, timeout_s)
        try:
            for outgoing in outgoings:
                if isinstance(outgoing, InvalidMessage):
                    sends.results.append(outgoing)
                    continue
                await sends.add(outgoing, choose)
            return await sends.finish()
        finally:
            sends.give_up()


def _answered(future: asyncio.Future[Command | Exception], answer: Command | Exception) -> None:
    if not future.done():  # the sender may have been cancelled
        future.set_result(answer)
