"""Routes of topics, and the reason if a topic has none.

A new route replaces the old one only if it differs. A topic that disappeared from the name servers keeps its
last route, as in RocketMQ's clients: its brokers are authoritative and answer for themselves.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping

import msgspec

from kerolox.client.calls.nameservers import UNREACHABLE, NameServerList
from kerolox.client.calls.steps import Steps
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
from kerolox.errors import ProtocolError, RequestFailed
from kerolox.protocol.bodies.routes import ClusterInfo, QueueData, TopicRoute
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.flags import PERM_READ, PERM_WRITE
from kerolox.protocol.headers.route import RouteRequest

log = logging.getLogger(__name__)

MASTER = 0
NO_BROKER = "no broker at all is registered"


def fetch_route(servers: NameServerList, topic: str, *, was_known: bool = False) -> Steps[TopicRoute]:
    """Fetch the route of a topic from the name servers. Raises TopicNotFound or another error.

    ``was_known``: the topic existed before, so a single name server without it is not trusted.
    """
    asked = RouteRequest(topic=topic, standard_json_only=True)
    try:
        answer = yield from servers.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, asked, doubtful=was_known)
    except RequestFailed as error:
        if error.response_code != ResponseCode.TOPIC_NOT_EXIST:
            raise
        raise TopicNotFound(topic, error.address, was_known=was_known) from None
    return TopicRoute.decode(answer.body)


def cluster_info(servers: NameServerList) -> Steps[ClusterInfo]:
    """Fetch all clusters and brokers that the name servers know."""
    answer = yield from servers.ask(RequestCode.GET_BROKER_CLUSTER_INFO)
    return ClusterInfo.decode(answer.body)


def masters_of(info: ClusterInfo) -> dict[str, str]:
    """Return broker name → address of its master, for brokers that have one."""
    return {
        name: data.broker_addrs[MASTER]
        for name, data in sorted(info.broker_addr_table.items())
        if MASTER in data.broker_addrs
    }


def address_of(addresses: Mapping[int, str], broker_id: int = MASTER, *, exact: bool = False) -> str | None:
    """Return the address of the replica with this id; unless ``exact``, else of another one for reading."""
    found = addresses.get(broker_id)
    if found is None and broker_id != MASTER:
        found = addresses.get(broker_id + 1)
    if found is None and not exact and addresses:
        found = addresses[min(addresses)]
    return found


class Route:
    """Brokers and queues of one topic."""

    __slots__ = ("assumed", "brokers", "data", "readable", "topic", "writable")

    def __init__(self, topic: str, data: TopicRoute, *, assumed: bool = False) -> None:
        self.topic = topic
        self.data = data
        self.assumed = assumed  # the topic does not exist yet: derived from the template's route
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
        # All clients must use this order, because hash selectors index into it.
        for data in sorted(self.data.queue_datas, key=lambda data: data.broker_name):
            if data.perm & PERM_WRITE and MASTER in self.brokers.get(data.broker_name, ()):
                for number in range(data.write_queue_nums):
                    yield Queue(self.topic, data.broker_name, number)

    def _readable(self) -> Iterable[Queue]:
        for data in sorted(self.data.queue_datas, key=lambda data: data.broker_name):
            if data.perm & PERM_READ:
                for number in range(data.read_queue_nums):
                    yield Queue(self.topic, data.broker_name, number)

    def leader(self, broker: str) -> str | None:
        """Return the address of a broker's leader; None without one."""
        return self.brokers.get(broker, {}).get(MASTER)

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


class RouteTable:
    """Routes of all topics that a client uses, and the steps to fetch them."""

    def __init__(self, servers: NameServerList, on_change: Callable[[Route], None] | None = None) -> None:
        self.servers = servers
        self._on_change = on_change
        self._known: dict[str, Route] = {}
        self._replicas: dict[str, Mapping[int, str]] = {}  # by broker name, from the latest route

    # --- what is known ------------------------------------------------------------------------

    def get(self, topic: str) -> Route | None:
        """Return the cached route; None if there is none."""
        return self._known.get(topic)

    def forget(self, topic: str) -> None:
        self._known.pop(topic, None)

    def __iter__(self) -> Iterator[Route]:
        return iter(list(self._known.values()))

    def brokers(self) -> dict[str, dict[int, str]]:
        """Return broker name → broker id → address, from all cached routes."""
        found: dict[str, dict[int, str]] = {}
        for route in self._known.values():
            for name, addresses in route.brokers.items():
                found.setdefault(name, {}).update(addresses)
        return found

    def replicas(self, broker: str) -> Mapping[int, str]:
        """Return the addresses of a broker name's replicas by id, from the most recently fetched route."""
        found = self._replicas.get(broker)
        if found is None:
            found = next((route.brokers[broker] for route in self if broker in route.brokers), {})
        return found

    def address(self, broker: str, broker_id: int = MASTER, *, exact: bool = False) -> str | None:
        """Return the address of the broker with this id; unless ``exact``, else of another replica."""
        return address_of(self.replicas(broker), broker_id, exact=exact)

    def broker_at(self, address: str) -> str:
        """Return the name of the broker that advertises an address; empty if unknown."""
        for name, addresses in self.brokers().items():
            if address in addresses.values():
                return name
        return ""

    def keep(self, route: Route) -> Route:
        known = self._known.get(route.topic)
        for gone in known.brokers.keys() - route.brokers.keys() if known is not None else ():
            self._replicas.pop(gone, None)
        self._replicas.update(route.brokers)
        if known is not None and known.same_as(route):
            return known
        self._known[route.topic] = route
        log.info("route_changed topic=%s route=%r", route.topic, route)
        if self._on_change is not None:
            self._on_change(route)
        return route

    # --- asking -------------------------------------------------------------------------------

    def refresh(self, topic: str, *, expected: bool = False) -> Steps[Route]:
        """Fetch the current route. Raises a subclass of NoRoute, or AccessDenied.

        ``expected``: the topic existed before, although this client has not used it.
        """
        known = self._known.get(topic)
        was_known = expected or (known is not None and not known.assumed)
        return self.keep(Route(topic, (yield from self._fetch(topic, was_known=was_known))))

    def find(self, topic: str, *, afresh: bool = False, expected: bool = False) -> Steps[Route]:
        """Return the route, fetched if it is unknown or with ``afresh``. Raises the reason without one."""
        known = self._known.get(topic)
        if known is not None and not afresh:
            return known
        try:
            return (yield from self.refresh(topic, expected=expected))
        except TopicNotFound as error:
            if error.was_known:
                raise
            raise (yield from self._why_missing(topic, creating=False)) from None

    def find_for_sending(
        self, topic: str, template: str, queues_max: int, *, afresh: bool = False
    ) -> Steps[Route]:
        """Return a route with writable queues; for a new topic, the route that it will have.

        New topics are created from ``template``, with at most ``queues_max`` queues per broker.
        """
        route = self._known.get(topic)
        if afresh or route is None or not route.writable:
            try:
                route = yield from self.refresh(topic)
            except TopicNotFound as error:
                if error.was_known:
                    raise
                if not template:
                    raise (yield from self._why_missing(topic, creating=False)) from None
                route = yield from self._assume(topic, template, queues_max)
        if not any(MASTER in route.brokers.get(queue.broker, ()) for queue in route.writable):
            raise self._why_unwritable(route)
        return route

    def _fetch(self, topic: str, *, was_known: bool = False) -> Steps[TopicRoute]:
        addresses = list(self.servers.addresses)
        try:
            return (yield from fetch_route(self.servers, topic, was_known=was_known))
        except UNREACHABLE as error:
            raise NameServerUnreachable(topic, addresses, error.__cause__ or error) from error
        except ProtocolError as error:
            raise NotANameServer(topic, addresses[0], error) from error
        except NameServerStarting as error:
            raise RoutesNotKnownYet(topic, error.address) from None
        except RequestFailed as error:
            if error.response_code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                raise NotANameServer(topic, error.address, "it does not support routes") from None
            raise

    def _assume(self, topic: str, template: str, queues_max: int) -> Steps[Route]:
        """Return the route that a topic will have after its first message creates it."""
        try:
            data = yield from self._fetch(template)
        except TopicNotFound:
            raise (yield from self._why_missing(topic, creating=True)) from None
        queues = tuple(
            msgspec.structs.replace(
                item,
                read_queue_nums=min(queues_max, item.read_queue_nums),
                write_queue_nums=min(queues_max, item.read_queue_nums),
            )
            for item in data.queue_datas
        )
        data = msgspec.structs.replace(data, queue_datas=queues, order_topic_conf=None)
        return self.keep(Route(topic, data, assumed=True))

    # --- why not ------------------------------------------------------------------------------

    def _why_missing(self, topic: str, *, creating: bool) -> Steps[NoRoute]:
        """Return the error for an unknown topic: it does not exist, or no broker is registered at all."""
        address = self.servers.addresses[0]
        try:
            info = yield from cluster_info(self.servers)
        except UNREACHABLE as error:  # unreachable since the request for the topic
            return NameServerUnreachable(topic, self.servers.addresses, error.__cause__ or error)
        except NameServerStarting as error:
            return RoutesNotKnownYet(topic, error.address)
        except (RequestFailed, ProtocolError):
            return TopicNotFound(topic, address, creating=creating)
        if not info.broker_addr_table:
            self.servers.prefer_another()
            return BrokerNotRegistered(topic, address, NO_BROKER)
        return TopicNotFound(topic, address, creating=creating)

    def _why_unwritable(self, route: Route) -> NoRoute:
        def is_writable(data: QueueData) -> bool:
            return bool(data.perm & PERM_WRITE) and data.write_queue_nums > 0

        writable = [data.broker_name for data in route.data.queue_datas if is_writable(data)]
        if not writable:
            return NoPermission(route.topic, "written")
        address = self.servers.addresses[0]
        return BrokerNotRegistered(
            route.topic, address, f"no master of broker {', '.join(sorted(writable))} is registered"
        )
