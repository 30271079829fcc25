"""Routes as bytes, ready to be sent: the answer to the one question every client asks all the time.

Each is encoded when first asked for, in the spelling asked for, and kept until something in it changes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import msgspec

from kerolox.nameserver.brokers import MASTER_ID
from kerolox.protocol.bodies.routes import TopicRoute


class EncodedRoutes:
    """Topic → encoded route, in both spellings."""

    __slots__ = ("_bare", "_build", "_standard", "built")

    def __init__(self, build: Callable[[str], TopicRoute | None]) -> None:
        self._build = build
        self._standard: dict[str, bytes] = {}
        self._bare: dict[str, bytes] = {}
        self.built = 0  # how often an answer had to be encoded

    def get(self, topic: str, standard: bool) -> bytes | None:
        """The encoded route of a topic; None for a topic without a broker. None is not kept, or anybody could
        fill the memory with names.

        ``standard`` JSON has integer keys quoted and only ASCII, for clients since 4.9.4; older Java
        clients are sent what their server always sent.
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
        """Drop the answers of all these topics. Clients ask for few topics of a large broker, so the kept
        answers are few."""
        for kept in (self._standard, self._bare):
            for topic in [topic for topic in kept if topic in topics] if len(kept) < len(topics) else topics:
                kept.pop(topic, None)

    def clear(self) -> None:
        self._standard.clear()
        self._bare.clear()


def in_zone(route: TopicRoute, zone: str) -> TopicRoute:
    """A route without the brokers whose master is in another zone; without a master any zone does."""
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
