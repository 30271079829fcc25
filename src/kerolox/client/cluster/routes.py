"""Routes: who serves which topic, kept fresh, and why there is none when there is none.

A route is asked for when it is first needed, and again every 30 seconds. A new one replaces the old only
when it differs; a topic that vanished from the name servers keeps its last route, as in RocketMQ:
brokers know better, and answer for themselves. A name server that was started again learns of its brokers one
by one: what it cannot know yet is asked for again, as long as the caller has time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import TYPE_CHECKING

import msgspec

from kerolox.client.errors import (
    BrokerNotRegistered,
    NameServerStarting,
    NameServerUnreachable,
    NoPermission,
    NoRoute,
    NotANameServer,
    RoutesNotKnownYet,
    TopicNotFound,
)
from kerolox.client.messages import Queue
from kerolox.client.nameservers import NameServers, NoNameServer
from kerolox.clock import SYSTEM_CLOCK, Clock
from kerolox.errors import (
    ConnectFailed,
    ConnectionLost,
    KeroloxError,
    ProtocolError,
    RequestFailed,
    RequestTimeout,
)
from kerolox.protocol.bodies.routes import ClusterInfo, QueueData, TopicRoute
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.flags import PERM_READ, PERM_WRITE
from kerolox.protocol.headers.route import RouteRequest

if TYPE_CHECKING:
    from kerolox.protocol.command import Command

log = logging.getLogger(__name__)

MASTER = 0
AGAIN_FIRST_S = 0.1  # before a route is asked for again that may be there in a moment; doubled each time
AGAIN_MAX_S = 1.0
_UNREACHABLE = (ConnectFailed, ConnectionLost, RequestTimeout, NoNameServer)


class Route:
    """Who serves one topic."""

    __slots__ = ("assumed", "brokers", "data", "readable", "topic", "writable")

    def __init__(self, topic: str, data: TopicRoute, *, assumed: bool = False) -> None:
        self.topic = topic
        self.data = data
        self.assumed = assumed  # the topic does not exist yet: made after the template's route
        self.brokers = {item.broker_name: item.broker_addrs for item in data.broker_datas}
        self.writable = tuple(self._writable())
        self.readable = tuple(self._readable())

    def _writable(self) -> Iterable[Queue]:
        if self.data.order_topic_conf:
            for item in self.data.order_topic_conf.split(";"):
                broker, _, count = item.rpartition(":")
                if broker and count.isdigit():
                    yield from (Queue(self.topic, broker, number) for number in range(int(count)))
            return
        # In this order, because a hash selector counts in it: all clients must agree.
        for data in sorted(self.data.queue_datas, key=lambda data: data.broker_name):
            if data.perm & PERM_WRITE and MASTER in self.brokers.get(data.broker_name, ()):
                for number in range(data.write_queue_nums):
                    yield Queue(self.topic, data.broker_name, number)

    def _readable(self) -> Iterable[Queue]:
        for data in sorted(self.data.queue_datas, key=lambda data: data.broker_name):
            if data.perm & PERM_READ:
                for number in range(data.read_queue_nums):
                    yield Queue(self.topic, data.broker_name, number)

    def same_as(self, other: Route) -> bool:
        return self.assumed == other.assumed and _sorted(self.data) == _sorted(other.data)

    def __repr__(self) -> str:
        kind = "assumed route" if self.assumed else "route"
        return f"<{kind} of {self.topic}: {len(self.writable)} to write, {len(self.readable)} to read>"


def _sorted(data: TopicRoute) -> TopicRoute:
    return msgspec.structs.replace(
        data,
        queue_datas=tuple(sorted(data.queue_datas, key=lambda item: item.broker_name)),
        broker_datas=tuple(sorted(data.broker_datas, key=lambda item: item.broker_name)),
    )


class Routes:
    """The routes of all topics a client has to do with."""

    def __init__(
        self, nameservers: NameServers, on_change: Callable[[Route], None], clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self.nameservers = nameservers
        self._clock = clock
        self._on_change = on_change
        self._known: dict[str, Route] = {}
        self._asking: dict[str, asyncio.Task[Route]] = {}
        self._in_vain = 0  # how often no name server answered, in a row

    # --- what is known ------------------------------------------------------------------------

    def get(self, topic: str) -> Route | None:
        """The route, if it is known."""
        return self._known.get(topic)

    def forget(self, topic: str) -> None:
        self._known.pop(topic, None)

    def __iter__(self) -> Iterator[Route]:
        return iter(list(self._known.values()))

    def brokers(self) -> dict[str, dict[int, str]]:
        """Broker name → broker id → address, of all known routes."""
        found: dict[str, dict[int, str]] = {}
        for route in self._known.values():
            for name, addresses in route.brokers.items():
                found.setdefault(name, {}).update(addresses)
        return found

    def address(self, broker: str, broker_id: int = MASTER, *, exact: bool = False) -> str | None:
        """Where a broker is: the one with this id, or unless ``exact`` the next best for reading."""
        for route in self._known.values():
            addresses = route.brokers.get(broker)
            if not addresses:
                continue
            found = addresses.get(broker_id)
            if found is None and broker_id != MASTER:
                found = addresses.get(broker_id + 1)
            if found is None and not exact:
                found = addresses[min(addresses)]
            if found is not None:
                return found
        return None

    def broker_at(self, address: str) -> str:
        """The name of the broker that advertises an address."""
        for name, addresses in self.brokers().items():
            if address in addresses.values():
                return name
        return ""

    # --- asking -------------------------------------------------------------------------------

    async def find(self, topic: str) -> Route:
        """The route, asked for if it is not known. Raises a kind of NoRoute, or AccessDenied."""
        return self._known.get(topic) or await self.refresh(topic)

    async def find_for_sending(self, topic: str, template: str, queues_max: int) -> Route:
        """A route with queues to write; of a topic that does not exist the one it is going to have.

        ``template`` is the topic a new one is made after, with at most ``queues_max`` queues per broker.
        """
        route = self._known.get(topic)
        if route is None or not route.writable:
            try:
                route = await self.refresh(topic)
            except TopicNotFound as error:
                if error.was_known:
                    raise
                if not template:
                    raise await self._why_missing(topic, creating=False) from None
                route = await self._assume(topic, template, queues_max)
        if not route.writable:
            raise self._why_unwritable(route)
        return route

    async def find_soon(self, topic: str, timeout_s: float, *, afresh: bool = False) -> Route:
        """The route for whoever cannot go on without; ``afresh`` even if one is known."""

        async def find() -> Route:
            try:
                return await (self.refresh(topic) if afresh else self.find(topic))
            except TopicNotFound as error:
                if error.was_known:
                    raise
                raise await self._why_missing(topic, creating=False) from None

        return await self.patiently(topic, find, timeout_s)

    async def patiently(self, topic: str, find: Callable[[], Awaitable[Route]], timeout_s: float) -> Route:
        """Find a route, again and again while what is in the way may pass. Raises that, or RequestTimeout."""
        deadline_s = self._clock.monotonic_s() + timeout_s
        pause_s = AGAIN_FIRST_S
        missing: NoRoute | None = None
        try:
            async with asyncio.timeout(max(0.0, timeout_s)):
                while True:
                    try:
                        return await find()
                    except NoRoute as error:
                        missing = error
                    left_s = deadline_s - self._clock.monotonic_s()
                    if not missing.passes or left_s <= 0:
                        raise missing
                    await self._clock.sleep(min(pause_s, left_s))
                    pause_s = min(AGAIN_MAX_S, 2 * pause_s)
        except TimeoutError:
            if missing is not None:
                raise missing from None
            addresses = ", ".join(self.nameservers.addresses)
            raise RequestTimeout(addresses, f"the route of topic {topic!r}", timeout_s) from None

    async def refresh(self, topic: str) -> Route:
        """Ask for the route now. Who asks at the same time shares the question."""
        asking = self._asking.get(topic)
        if asking is None:
            asking = asyncio.get_running_loop().create_task(self._refresh(topic))
            asking.add_done_callback(_look_at_result)
            self._asking[topic] = asking
        return await asyncio.shield(asking)

    async def refresh_all(self, topics: Iterable[str]) -> None:
        """Ask for all of them; a topic whose route cannot be had keeps what it has."""
        for topic in topics:
            try:
                await self.refresh(topic)
                self._in_vain = 0
            except TopicNotFound:
                continue  # normal for what is yet to be created
            except (NameServerUnreachable, RoutesNotKnownYet) as error:
                count = self._in_vain = self._in_vain + 1
                if count & (count - 1) == 0:  # one that stays away is counted, not repeated
                    log.warning("routes_not_refreshed times=%d error=%r", count, str(error))
                return  # the others would only take as long again
            except KeroloxError as error:
                log.warning("route_not_refreshed topic=%s error=%r", topic, str(error))

    async def close(self) -> None:
        asking = list(self._asking.values())
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)

    async def _refresh(self, topic: str) -> Route:
        try:
            return self._keep(Route(topic, await self._fetch(topic)))
        finally:
            self._asking.pop(topic, None)

    def _keep(self, route: Route) -> Route:
        known = self._known.get(route.topic)
        if known is not None and known.same_as(route):
            return known
        self._known[route.topic] = route
        log.info("route_changed topic=%s route=%r", route.topic, route)
        self._on_change(route)
        return route

    async def _fetch(self, topic: str) -> TopicRoute:
        asked = RouteRequest(topic=topic, standard_json_only=True)
        addresses = list(self.nameservers.addresses)
        known = self._known.get(topic)
        was_known = known is not None and not known.assumed
        try:
            answer = await self.nameservers.ask(
                RequestCode.GET_ROUTEINFO_BY_TOPIC, asked, patient=False, doubtful=was_known
            )
            return TopicRoute.decode(answer.body)
        except _UNREACHABLE as error:
            raise NameServerUnreachable(topic, addresses, error.__cause__ or error) from error
        except ProtocolError as error:
            raise NotANameServer(topic, addresses[0], error) from error
        except NameServerStarting as error:
            raise RoutesNotKnownYet(topic, error.address) from None
        except RequestFailed as error:
            if error.response_code == ResponseCode.TOPIC_NOT_EXIST:
                raise TopicNotFound(topic, error.address, was_known=was_known) from None
            if error.response_code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                raise NotANameServer(topic, error.address, "it does not know routes") from None
            raise

    async def _assume(self, topic: str, template: str, queues_max: int) -> Route:
        try:
            data = await self._fetch(template)
        except TopicNotFound:
            raise await self._why_missing(topic, creating=True) from None
        queues = tuple(
            msgspec.structs.replace(
                item,
                read_queue_nums=min(queues_max, item.read_queue_nums),
                write_queue_nums=min(queues_max, item.read_queue_nums),
            )
            for item in data.queue_datas
        )
        data = msgspec.structs.replace(data, queue_datas=queues, order_topic_conf=None)
        return self._keep(Route(topic, data, assumed=True))

    # --- why not ------------------------------------------------------------------------------

    async def _why_missing(self, topic: str, *, creating: bool) -> NoRoute:
        """A topic no name server knows: because it is absent, or because no broker is there at all?"""
        address = self.nameservers.addresses[0]
        try:
            answer: Command = await self.nameservers.ask(RequestCode.GET_BROKER_CLUSTER_INFO, patient=False)
            info = ClusterInfo.decode(answer.body)
        except KeroloxError:
            return TopicNotFound(topic, address, creating=creating)
        if not info.broker_addr_table:
            self.nameservers.prefer_another()
            return BrokerNotRegistered(topic, address, "no broker at all is registered")
        return TopicNotFound(topic, address, creating=creating)

    def _why_unwritable(self, route: Route) -> NoRoute:
        def is_writable(data: QueueData) -> bool:
            return bool(data.perm & PERM_WRITE) and data.write_queue_nums > 0

        writable = [data.broker_name for data in route.data.queue_datas if is_writable(data)]
        if not writable:
            return NoPermission(route.topic, "written")
        address = self.nameservers.addresses[0]
        return BrokerNotRegistered(
            route.topic, address, f"no master of broker {', '.join(sorted(writable))} is registered"
        )


def _look_at_result(task: asyncio.Task[Route]) -> None:
    # Every caller may have given up waiting; then nobody else would look at the error.
    if not task.cancelled():
        task.exception()
