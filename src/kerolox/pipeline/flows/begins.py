"""Where a source of messages begins: decided once, for all flows that read it.

Each flow is a query of its own, and the queries of one source start one after the other. If each took its own
``latest``, a bad row sent in between would be before the beginning of the side table's flow, and left out by
the other. So the offsets are asked for before the first flow starts, and written down beside the checkpoints:
a flow that begins in a later run, because the first one was killed or has been given another flow, begins at
the same offsets.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Mapping
from typing import Final

import msgspec

from kerolox.client.messages import Queue
from kerolox.client.names import without_namespace
from kerolox.client.sockets.socket_cluster import Edges
from kerolox.errors import KeroloxError
from kerolox.pipeline.lake.storage import Storage
from kerolox.spark.offsets import QueueOffsets, Tree, from_tree, in_namespace, to_tree
from kerolox.spark.source.options import Wanted, read_wanted
from kerolox.spark.source.queues import ClusterQueues

log = logging.getLogger(__name__)

CHECKPOINTS: Final = "checkpoints"
FOLDER: Final = f"{CHECKPOINTS}/_begins"  # no flow has such a name
# Options that say where a query begins, as Spark compares them.
STARTS: Final = (
    "startingoffsets",
    "startingtimestamp",
    "startingoffsetsbytimestamp",
    "startingoffsetsbytimestampstrategy",
)


class Begin(msgspec.Struct, frozen=True):
    """The decision for one source."""

    start: dict[str, str]  # the options it was made by
    flows: list[str]  # those the source had then
    offsets: Tree


def begin_options(
    storage: Storage, source: str, options: Mapping[str, str], flows: Collection[str]
) -> dict[str, str]:
    """The options of a streaming source with the offsets at which all its flows begin.

    ``flows``: all that read it. When each has a checkpoint nothing is asked, since none begins.
    """
    beginning = {flow for flow in flows if not storage.files(f"{CHECKPOINTS}/{flow}/offsets")}
    if not beginning:
        return dict(options)
    start = {key.lower(): value for key, value in options.items() if key.lower() in STARTS}
    wanted = read_wanted(options, "streaming")
    path = f"{FOLDER}/{source}.json"
    known = _read(storage, path)
    if known is None or known.start != start:
        places = _ask(wanted)
        storage.put(path, msgspec.json.encode(Begin(start, sorted(flows), to_tree(_plain(places, wanted)))))
    else:
        places = in_namespace(from_tree(known.offsets), wanted.cluster.namespace)
        if beginning.isdisjoint(known.flows):  # added since: it may be long ago
            places = what_is_left(places, _edges(wanted))
    kept = {key: value for key, value in options.items() if key.lower() not in STARTS}
    return kept | {"startingOffsets": json.dumps(to_tree(_plain(places, wanted)))}


def what_is_left(places: QueueOffsets, edges: Mapping[Queue, Edges]) -> QueueOffsets:
    """The same offsets where they are still there; else the first, and nothing of queues that are gone."""
    left = {}
    for queue, at in places.items():
        if queue in edges:
            edge = edges[queue]
            left[queue] = at if edge.first <= at <= edge.end else edge.first
    if left != places:
        log.info("flow_begins_later queues=%d next='the messages before were deleted'", len(places))
    return left


def _ask(wanted: Wanted) -> QueueOffsets:
    with wanted.open_cluster() as cluster:
        queues = ClusterQueues(cluster, wanted)
        return queues.places(wanted.start, cluster.edges(queues.find()))


def _edges(wanted: Wanted) -> dict[Queue, Edges]:
    with wanted.open_cluster() as cluster:
        return cluster.edges(ClusterQueues(cluster, wanted).find())


def _plain(places: QueueOffsets, wanted: Wanted) -> QueueOffsets:
    """Under the names that users write."""
    namespace = wanted.cluster.namespace
    return {q._replace(topic=without_namespace(namespace, q.topic)): at for q, at in places.items()}


def _read(storage: Storage, path: str) -> Begin | None:
    try:
        return msgspec.json.decode(storage.read(path), type=Begin)
    except FileNotFoundError:
        return None
    except msgspec.MsgspecError as error:
        raise KeroloxError(
            f"{storage.name(path)} cannot be read: {error}. It tells where flows without a checkpoint begin. "
            "Delete it, and they begin where the options of the source say, as of now"
        ) from None
