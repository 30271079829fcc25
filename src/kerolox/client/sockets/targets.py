"""Writable queues of topics, for senders without an event loop."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence

from kerolox.client.calls.outgoing import Target
from kerolox.client.calls.retries import RefreshGap
from kerolox.client.calls.routes import Route
from kerolox.client.calls.sends import Publishing
from kerolox.client.messages import Queue
from kerolox.client.sockets.socket_cluster import SocketCluster

TEMPLATE_QUEUES = 4


class Targets:
    """The queues of topics that can be written, asked for when first needed."""

    def __init__(self, cluster: SocketCluster, group: str, template_topic: str) -> None:
        self._cluster = cluster
        self._group = group
        self._template = template_topic
        self._publishing: dict[str, Publishing] = {}
        # Of all queues seen: a broker that starts again is gone from the route, and who has to send to one of
        # its queues waits for it.
        self._seen: dict[Queue, Target] = {}
        self._asked_s: dict[str, float] = {}  # when the route was asked for
        self._gap = RefreshGap(time.monotonic)

    def get(self, queue: Queue) -> Target | None:
        """The target of one queue, if it could ever be written."""
        self.of(queue.topic)
        return self._seen.get(queue)

    def queues(self, topic: str) -> Sequence[Queue]:
        """The queues of a topic that can be written, in the order hashes count in; of a topic that does not
        exist those it is going to have. Raises a kind of NoRoute."""
        return [target.queue for target in self.of(topic).targets]

    def of(self, topic: str) -> Publishing:
        """All of a topic. Raises a kind of NoRoute."""
        known = self._publishing.get(topic)
        if known is None:
            return self._find(topic)
        if time.monotonic() - self._asked_s[topic] > self._cluster.options.route_refresh_s:
            self.refresh(topic)
        return self._publishing[topic]

    def is_assumed(self, topic: str) -> bool:
        """Return True if the topic does not exist yet; the first message creates it."""
        known = self.of(topic)
        if known.route.assumed:  # it may have been made meanwhile
            known = self._find(topic)
        return known.route.assumed

    def refresh(self, topic: str, *, at_once: bool = False) -> None:
        """Refresh the route after a broker failure. If that fails, the old route is kept."""
        if not self._gap.is_over(topic) and not at_once:
            return
        self._asked_s[topic] = time.monotonic()
        self._cluster.refresh(topic)
        route = self._cluster.routes.get(topic)
        if route is not None and route.writable:
            self._publish(route)

    def _find(self, topic: str) -> Publishing:
        self._asked_s[topic] = time.monotonic()
        return self._publish(
            self._cluster.follow(
                lambda: self._cluster.routes.find_for_sending(
                    topic, self._template, TEMPLATE_QUEUES, afresh=True
                )
            )
        )

    def _publish(self, route: Route) -> Publishing:
        known = self._publishing.get(route.topic)
        if known is None or known.route is not route:
            known = Publishing(route, self._target, random.randrange(1 << 20))
            self._publishing[route.topic] = known
            self._seen.update(known.by_queue)
        return known

    def _target(self, queue: Queue, address: str) -> Target:
        old = self._seen.get(queue)
        if old is not None and old.address == address:
            return old
        return Target(
            queue,
            address,
            self._group,
            unit_mode=self._cluster.options.unit_mode,
            template_topic=self._template,
            template_queues=TEMPLATE_QUEUES,
        )
