"""Routes as encoded bytes: the answer to the most frequent request of clients.

A route is encoded when first requested, in the requested JSON spelling, and cached until one of its parts
changes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import msgspec

from kerolox.nameserver.brokers import MASTER_ID
from kerolox.protocol.bodies.routes import TopicRoute


class EncodedRoutes:
    """Encoded routes by topic, in both JSON spellings."""

    __slots__ = ("_bare", "_build", "_standard", "built")

    def __init__(self, build: Callable[[str], TopicRoute | None]) -> None:
        self._build = build
        self._standard: dict[str, bytes] = {}
        self._bare: dict[str, bytes] = {}
        self.built = 0  # number of encodings

    def get(self, topic: str, standard: bool) -> bytes | None:
        """Return the encoded route of a topic; None if no broker has the topic. None is not cached, because
        clients could fill the memory with invented names.

        ``standard`` JSON has quoted integer keys and only ASCII, for clients since 4.9.4; older Java clients
        get the spelling of their servers.
        """
        kept = self._standard if standard else self._bare
        body = kept.get(topic)
        if body is None:
            route = self._build(topic)
            if route is None:
                return None
            self.built += 1
            body = kept[topic] = encode_route(route, standard)
        return body

    def drop(self, topic: str) -> None:
        self._standard.pop(topic, None)
        self._bare.pop(topic, None)

    def drop_all(self, topics: Collection[str]) -> None:
        """Drop the routes of all these topics. The cache may be much smaller than the set, since clients use
        few topics of a large broker."""
        for kept in (self._standard, self._bare):
            for topic in [topic for topic in kept if topic in topics] if len(kept) < len(topics) else topics:
                kept.pop(topic, None)

    def clear(self) -> None:
        self._standard.clear()
        self._bare.clear()


def in_zone(route: TopicRoute, zone: str) -> TopicRoute:
    """Return a route without the brokers whose master is in another zone. Brokers without a master are
    kept."""
    away = {
        broker.broker_name: broker
        for broker in route.broker_datas
        if MASTER_ID in broker.broker_addrs and (broker.zone_name or "").lower() != zone.lower()
    }
    if not away:
        return route
    lost = {address for broker in away.values() for address in broker.broker_addrs.values()}
    return msgspec.structs.replace(
        route,
        broker_datas=tuple(broker for broker in route.broker_datas if broker.broker_name not in away),
        queue_datas=tuple(queues for queues in route.queue_datas if queues.broker_name not in away),
        filter_server_table={a: s for a, s in route.filter_server_table.items() if a not in lost},
    )


def encode_route(route: TopicRoute, standard: bool) -> bytes:
    return route.encode(quote_integer_keys=standard, ascii_only=standard)
