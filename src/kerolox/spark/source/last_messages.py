"""Ask brokers for the messages before the places where readers go on."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final, NamedTuple

from kerolox.client.calls.pull_answers import PULL_CODES
from kerolox.client.calls.pulls import pull_request
from kerolox.client.calls.steps import Ask
from kerolox.client.messages import Queue
from kerolox.client.sockets.socket_cluster import Edges, SocketCluster
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.record import decode_record
from kerolox.spark.last_read import LastRead, LastReads
from kerolox.spark.offsets import QueueOffsets, queue_text

log = logging.getLogger(__name__)

AT_ONCE: Final = 16  # answers on their way at once: each has a whole message, however large


class Replaced(NamedTuple):
    """Another message lies where the last one was read."""

    read: LastRead
    found: LastRead


def has_before(edge: Edges, at: int) -> bool:
    """Tell if a queue still has the message before a place."""
    return edge.first < at <= edge.end


def last_messages(
    cluster: SocketCluster, places: QueueOffsets, edges: Mapping[Queue, Edges], group: str
) -> LastReads:
    """The identities of the messages before these places, of those that are still there."""
    there = [queue for queue, at in places.items() if queue in edges and has_before(edges[queue], at)]
    found: LastReads = {}
    for first in range(0, len(there), AT_ONCE):
        some = there[first : first + AT_ONCE]
        asked = [
            (queue, Ask(RequestCode.PULL_MESSAGE, pull_request(*queue, places[queue] - 1, 1, group=group)))
            for queue in some
        ]
        for queue, (_, answer) in zip(some, cluster.ask_all(asked, ok=PULL_CODES, reads=True), strict=True):
            if answer.code == ResponseCode.SUCCESS and len(answer.body):
                record = decode_record(bytes(answer.body))
                if record.queue_offset == places[queue] - 1:
                    found[queue] = LastRead.of(record)
                    continue
            log.info(
                "last_message_not_served queue=%s offset=%d code=%d next='compared again at the next batch'",
                queue_text(queue), places[queue] - 1, answer.code,
            )  # fmt: skip
    return found


def replaced(
    cluster: SocketCluster,
    places: QueueOffsets,
    last: LastReads,
    edges: Mapping[Queue, Edges],
    group: str,
) -> dict[Queue, Replaced]:
    """The queues of which another message is now at the offset that was read last."""
    known = {q: at for q, at in places.items() if q in last and last[q].queue_offset == at - 1}
    return {
        queue: Replaced(last[queue], found)
        for queue, found in last_messages(cluster, known, edges, group).items()
        if not last[queue].is_same(found)
    }
