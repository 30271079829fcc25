"""Queues of a query, with their start and end offsets."""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Mapping, Sequence

from kerolox.client.messages import Queue
from kerolox.client.names import without_namespace
from kerolox.client.sockets.socket_cluster import Edges, SocketCluster
from kerolox.errors import KeroloxError, OptionError, sentences
from kerolox.protocol.reserved import is_of_system
from kerolox.spark.last_read import LastReads
from kerolox.spark.offsets import EARLIEST, LATEST, QueueOffsets, queue_text
from kerolox.spark.source.last_messages import Replaced, replaced
from kerolox.spark.source.options import Start, Wanted
from kerolox.spark.times import Times

log = logging.getLogger(__name__)


class DataLoss(KeroloxError):
    """Messages that should be read do not exist any more."""

    next_step = (
        "set failOnDataLoss to false to continue with the first existing message; to lose none, read sooner "
        "than the broker deletes (its fileReservedTime)"
    )

    def __init__(self, queue: Queue, asked: int, what: str) -> None:
        self.queue, self.asked = queue, asked
        super().__init__(
            sentences(
                f"queue {queue_text(queue)}: offset {asked} was to be read next, but {what}", self.next_step
            )
        )

    @classmethod
    def outside(cls, queue: Queue, asked: int, edges: Edges) -> DataLoss:
        if edges.follower:
            return _AtTheLeader(
                queue,
                asked,
                f"follower {edges.follower} has {edges.first} to {edges.end}, and its leader is gone",
            )
        if asked < edges.first:
            return cls(queue, asked, f"the first there is is {edges.first}")
        return cls(queue, asked, f"it ends at {edges.end}: was the topic deleted and made again?")

    @classmethod
    def gone(cls, queue: Queue, asked: int, patience_s: float) -> DataLoss:
        return cls(queue, asked, f"its broker is gone or does not answer (for {patience_s:g} s)")


class MadeAnew(DataLoss):
    """Another message lies where the last one was read: the queue is not the one that was read before."""

    next_step = (
        "to go on with what the queue has now, from its beginning, set failOnDataLoss to false for one start "
        "(what is still to be read of the former queue is gone); to keep both apart, begin a new checkpoint "
        "or archive"
    )

    def __init__(self, queue: Queue, asked: int, other: Replaced) -> None:
        super().__init__(
            queue,
            asked,
            f"the message at offset {asked - 1} is not the one that was read there: that one was "
            f"{other.read}, this one was {other.found}. The topic was deleted and made anew, or its broker "
            "lost messages that had been read",
        )


class _AtTheLeader(DataLoss):
    """Only a leader that is gone has the messages."""

    next_step = (
        "start the leader of this broker, then the query: it goes on where it was. If the leader is lost for "
        "good, so is what no follower has: set failOnDataLoss to false to go on without. retryForMs says how "
        "long a query waits for a leader"
    )


class ClusterQueues:
    """Queues of a query, by the routes of the cluster."""

    def __init__(self, cluster: SocketCluster, wanted: Wanted) -> None:
        self.cluster = cluster
        self._wanted = wanted
        self._matches = re.compile(wanted.pattern).fullmatch
        self._topics: Sequence[str] = wanted.topics
        self._warned: set[tuple[Queue, int]] = set()
        self._compared: dict[Queue, tuple[int, int]] = {}  # place and end at which it was the same queue

    def find(self, expected: Collection[str] = ()) -> list[Queue]:
        """All of them, asked for now. Raises a kind of NoRoute for a topic that is named but not there.

        ``expected``: topics that were there when the query ran before.
        """
        if self._wanted.pattern:
            self._topics = self._matching()
        return self._of(
            [
                self.cluster.route(topic, fresh=True, expected=topic in expected).readable
                for topic in self._topics
            ]
        )

    def look_again(self) -> list[Queue]:
        """Find the queues again while a query runs. Queues of silent brokers stay as they were."""
        if self._wanted.pattern:
            try:
                self._topics = sorted({*self._topics, *self._matching()})
            except KeroloxError as error:
                log.warning("topics_not_listed error=%r", str(error))
        found = []
        for topic in self._topics:
            self.cluster.refresh(topic)
            try:
                found.append(self.cluster.route(topic).readable)
            except KeroloxError as error:
                log.warning("route_unknown topic=%s error=%r", topic, str(error))
        return self._of(found)

    def _of(self, routes: Sequence[Sequence[Queue]]) -> list[Queue]:
        ids = self._wanted.queue_ids
        return sorted(queue for route in routes for queue in route if not ids or queue.queue_id in ids)

    def _matching(self) -> list[str]:
        namespace = self._wanted.cluster.namespace
        return [
            topic
            for topic in self.cluster.topics()
            if not is_of_system(topic)
            and topic.startswith(f"{namespace}%" if namespace else "")
            and self._matches(without_namespace(namespace, topic))
        ]

    def places(self, start: Start, edges: Mapping[Queue, Edges], *, ending: bool = False) -> QueueOffsets:
        """Return the start offsets of the queues, or their end offsets."""
        if start.times is not None:
            return self._at_times(start, start.times, edges, ending=ending)
        if start.offsets is not None:
            return self._given(start.offsets, edges, ending=ending)
        if start.word == "latest":
            return {queue: edge.end for queue, edge in edges.items()}
        first = {queue: edge.first for queue, edge in edges.items()}
        if start.word == "group":
            first.update(self._checked(self.cluster.all_committed(list(edges), self._wanted.group), edges))
        return first

    def _at_times(
        self, start: Start, times: Times, edges: Mapping[Queue, Edges], *, ending: bool
    ) -> QueueOffsets:
        topics = {queue.topic for queue in edges}
        self._refuse_strange(
            start.option,
            [topic for topic in times.topics if topic not in topics]
            + [queue_text(queue) for queue in times.queues if queue not in edges],
            edges,
        )
        found = {}
        for queue, edge in edges.items():
            time_ms = times.of(queue)
            if time_ms is None:  # not named, and so read completely
                found[queue] = edge.end if ending else edge.first
                continue
            at = self.cluster.offset_at(queue, time_ms)
            if at >= edge.end and start.must_match:
                raise OptionError(
                    start.option,
                    time_ms,
                    f"a message stored then or later in queue {queue_text(queue)}, which ends at {edge.end}. "
                    "startingOffsetsByTimestampStrategy = latest begins there",
                )
            found[queue] = min(max(at, edge.first), edge.end)
        return found

    def _refuse_strange(self, option: str, strange: Sequence[str], edges: Mapping[Queue, Edges]) -> None:
        if strange:
            known = ", ".join(queue_text(queue) for queue in edges)
            raise OptionError(option, ", ".join(strange), f"queues that are there: {known}")

    def _given(self, given: QueueOffsets, edges: Mapping[Queue, Edges], *, ending: bool) -> QueueOffsets:
        option = "endingOffsets" if ending else "startingOffsets"
        self._refuse_strange(option, [queue_text(queue) for queue in given if queue not in edges], edges)
        # A queue that is not named is read completely.
        found = {queue: edge.end if ending else edge.first for queue, edge in edges.items()}
        exact = {}
        for queue, at in given.items():
            if at == EARLIEST:
                found[queue] = edges[queue].first
            elif at == LATEST:
                found[queue] = edges[queue].end
            else:
                exact[queue] = at
        return found | self._checked(exact, edges)

    def go_on(self, places: QueueOffsets, last: LastReads, edges: Mapping[Queue, Edges]) -> QueueOffsets:
        """Return the offsets at which to resume queues read up to ``places``, after verifying the last
        messages.

        A queue resumes at its place if the last message is unchanged, or was deleted by its age.
        """
        found = self._checked(places, edges)
        standing = {
            queue: at
            for queue, at in found.items()
            if at == places[queue] and self._compared.get(queue) != (at, edges[queue].end)
        }
        others = replaced(self.cluster, standing, last, edges, self._wanted.group)
        for queue, at in standing.items():
            if queue not in others:
                self._compared[queue] = at, edges[queue].end
                continue
            if self._wanted.fail_on_data_loss:
                raise MadeAnew(queue, at, others[queue])
            if (queue, at) not in self._warned:
                self._warned.add((queue, at))
                log.warning(
                    "topic_made_anew queue=%s asked=%d was=%r found=%r next='read from its beginning, %d'",
                    queue_text(queue), at, str(others[queue].read), str(others[queue].found),
                    edges[queue].first,
                )  # fmt: skip
            found[queue] = edges[queue].first
        return found

    def _checked(self, places: QueueOffsets, edges: Mapping[Queue, Edges]) -> QueueOffsets:
        return {queue: self.within(queue, at, edges[queue]) for queue, at in places.items()}

    def within(self, queue: Queue, at: int, edges: Edges) -> int:
        """Return the place if it exists in the queue, else the first offset, or raise an error."""
        if edges.first <= at <= edges.end:
            return at
        loss = DataLoss.outside(queue, at, edges)
        if self._wanted.fail_on_data_loss:
            raise loss
        if (queue, at) not in self._warned:  # a place is asked about again until it is left
            self._warned.add((queue, at))
            log.warning("data_lost queue=%s asked=%d has=%s", queue_text(queue), at, edges)
        return edges.first
