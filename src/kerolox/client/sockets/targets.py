"""Where the messages of a topic can be sent to, for senders without an event loop."""

from __future__ import annotations

import time
from collections.abc import Sequence

import msgspec

from kerolox.client.calls.outgoing import Target
from kerolox.client.cluster.routes import MASTER, Route
from kerolox.client.errors import BrokerNotRegistered, NameServerUnreachable, NoPermission, TopicNotFound
from kerolox.client.messages import Queue
from kerolox.client.sockets.socket_cluster import SocketCluster
from kerolox.errors import ConnectFailed, ConnectionLost, KeroloxError, RequestFailed, RequestTimeout
from kerolox.protocol.bodies.routes import TopicRoute
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.command import Command
from kerolox.protocol.flags import PERM_WRITE
from kerolox.protocol.headers.route import RouteRequest

TEMPLATE_QUEUES = 4
ROUTE_S = 30.0  # how old a route may be
REFRESH_GAP_S = 1.0  # routes are asked for no more often than this
MISSING_PAUSES_S = (0.2, 0.4, 0.8, 1.6)  # before a topic is taken to be missing


class Targets:
    """The queues of topics that can be written, asked for when first needed."""

    def __init__(self, cluster: SocketCluster, group: str, template_topic: str) -> None:
        self._cluster = cluster
        self._group = group
        self._template = template_topic
        self._targets: dict[str, dict[Queue, Target]] = {}
        self._in_turn: dict[str, tuple[Target, ...]] = {}
        self._to_be_made: set[str] = set()  # topics that do not exist yet
        self._asked_s: dict[str, float] = {}  # when the route was asked for

    def get(self, queue: Queue) -> Target | None:
        """The target of one queue, if it could ever be written."""
        self.in_turn(queue.topic)
        return self._targets[queue.topic].get(queue)

    def queues(self, topic: str) -> Sequence[Queue]:
        """The queues of a topic that can be written, in the order hashes count in; of a topic that does not
        exist those it is going to have. Raises a kind of NoRoute."""
        return [target.queue for target in self.in_turn(topic)]

    def in_turn(self, topic: str) -> tuple[Target, ...]:
        known = self._in_turn.get(topic)
        if known is None:
            known = self._publish(topic, self._find(topic))
        elif time.monotonic() - self._asked_s[topic] > ROUTE_S:
            self.refresh(topic)
            known = self._in_turn[topic]
        return known

    def is_assumed(self, topic: str) -> bool:
        """Whether the topic does not exist yet: the first message makes it."""
        self.in_turn(topic)
        if topic in self._to_be_made:  # it may have been made meanwhile
            self._publish(topic, self._find(topic))
        return topic in self._to_be_made

    def _find(self, topic: str) -> Route:
        """The route, or the one the topic is going to have. A broker that starts again is gone from the name
        servers for a moment, and its topics with it: that is waited for, but not for long."""
        for left in range(len(MISSING_PAUSES_S), -1, -1):
            try:
                route = self._fetch(topic)
                self._to_be_made.discard(topic)
                break
            except TopicNotFound as missing:
                try:
                    route = self._assumed(topic, missing.nameserver)
                    self._to_be_made.add(topic)
                    break
                except TopicNotFound:
                    if not left:
                        raise
                    time.sleep(MISSING_PAUSES_S[-left])
        if not route.writable:
            if any(data.write_queue_nums and data.perm & PERM_WRITE for data in route.data.queue_datas):
                addresses = ";".join(self._cluster.options.addresses())
                raise BrokerNotRegistered(topic, addresses, "no master of the topic is registered")
            raise NoPermission(topic, "written")
        return route

    def _fetch(self, topic: str) -> Route:
        asked = RouteRequest(topic=topic, standard_json_only=True)

        def once() -> Command:
            try:
                return self._cluster.ask_nameserver(RequestCode.GET_ROUTEINFO_BY_TOPIC, asked)
            except RequestFailed as error:
                if error.response_code == ResponseCode.TOPIC_NOT_EXIST:
                    raise self._cluster.missing(topic, error.address) from None
                raise

        try:
            return Route(topic, TopicRoute.decode(self._cluster.retried(once).body))
        except (ConnectFailed, ConnectionLost, RequestTimeout) as error:
            raise NameServerUnreachable(topic, self._cluster.options.addresses(), error) from error

    def _assumed(self, topic: str, nameserver: str) -> Route:
        """What the topic is going to be like when the first message makes it."""
        if not self._template:
            raise TopicNotFound(topic, nameserver)
        try:
            data = self._fetch(self._template).data
        except TopicNotFound:
            raise TopicNotFound(topic, nameserver, creating=True) from None
        queues = tuple(
            msgspec.structs.replace(item, write_queue_nums=min(TEMPLATE_QUEUES, item.read_queue_nums))
            for item in data.queue_datas
        )
        data = msgspec.structs.replace(data, queue_datas=queues, order_topic_conf=None)
        return Route(topic, data, assumed=True)

    def _publish(self, topic: str, route: Route) -> tuple[Target, ...]:
        options = self._cluster.options
        known = self._targets.get(topic, {})
        table: dict[Queue, Target] = {}
        for queue in route.writable:
            address = route.brokers.get(queue.broker, {}).get(MASTER)
            if address is None:
                continue
            old = known.get(queue)
            if old is None or old.address != address:
                old = Target(
                    queue,
                    address,
                    self._group,
                    unit_mode=options.unit_mode,
                    template_topic=self._template,
                    template_queues=TEMPLATE_QUEUES,
                )
            table[queue] = old
        self._asked_s[topic] = time.monotonic()
        # A broker that starts again is gone from the route; who has to send to its queues waits for it.
        self._targets[topic] = {**known, **table}
        self._in_turn[topic] = tuple(table.values())
        return self._in_turn[topic]

    def refresh(self, topic: str) -> None:
        """A broker failed: perhaps the route has changed. When nobody knows, the old one stands."""
        now_s = time.monotonic()
        if now_s - self._asked_s.get(topic, -REFRESH_GAP_S) < REFRESH_GAP_S:
            return
        self._asked_s[topic] = now_s
        try:
            asked = RouteRequest(topic=topic, standard_json_only=True)
            answer = self._cluster.ask_nameserver(RequestCode.GET_ROUTEINFO_BY_TOPIC, asked)
            route = Route(topic, TopicRoute.decode(answer.body))
        except KeroloxError:
            return
        if route.writable:
            self._to_be_made.discard(topic)
            self._publish(topic, route)
