"""Start offsets of a source of messages, decided once for all flows that read it.

Each flow is a separate query, and the queries of one source start one after the other. If each resolved
``latest`` itself, a bad row sent in between would be before the start of the side table's flow, and skipped
by the other flow. So the offsets are resolved before the first flow starts, and stored beside the
checkpoints: a flow that starts in a later run, because the first run was killed or the pipeline got another
flow, starts at the same offsets.
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
FOLDER: Final = f"{CHECKPOINTS}/_begins"  # a name that no flow can have
# Options of the start of a query, in lower case as Spark compares them.
STARTS: Final = (
    "startingoffsets",
    "startingtimestamp",
    "startingoffsetsbytimestamp",
    "startingoffsetsbytimestampstrategy",
)


class Begin(msgspec.Struct, frozen=True):
    """Start offsets of one source."""

    start: dict[str, str]  # options that the offsets were resolved from
    flows: list[str]  # flows that read the source then
    offsets: Tree


def begin_options(
    storage: Storage, source: str, options: Mapping[str, str], flows: Collection[str]
) -> dict[str, str]:
    """Return the options of a streaming source with the start offsets of all its flows.

    ``flows``: all flows that read it. If each has a checkpoint, the options are returned unchanged.
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
        if beginning.isdisjoint(known.flows):  # the flow was added later: old messages may be deleted
            places = what_is_left(places, _edges(wanted))
    kept = {key: value for key, value in options.items() if key.lower() not in STARTS}
    return kept | {"startingOffsets": json.dumps(to_tree(_plain(places, wanted)))}


def what_is_left(places: QueueOffsets, edges: Mapping[Queue, Edges]) -> QueueOffsets:
    """Return the offsets that still exist, the first offset for others, and drop queues that do not exist."""
    left = {}
    for queue, at in places.items():
        if queue in edges:
            edge = edges[queue]
            left[queue] = at if edge.first <= at <= edge.end else edge.first
    if left != places:
        log.info(
            "flow_begins_later queues=%d next='earlier messages were deleted by the brokers' ", len(places)
        )
    return left


def _ask(wanted: Wanted) -> QueueOffsets:
    with wanted.open_cluster() as cluster:
        queues = ClusterQueues(cluster, wanted)
        return queues.places(wanted.start, cluster.edges(queues.find()))


def _edges(wanted: Wanted) -> dict[Queue, Edges]:
    with wanted.open_cluster() as cluster:
        return cluster.edges(ClusterQueues(cluster, wanted).find())


def _plain(places: QueueOffsets, wanted: Wanted) -> QueueOffsets:
    """Return the offsets under topic names without the namespace."""
    namespace = wanted.cluster.namespace
    return {q._replace(topic=without_namespace(namespace, q.topic)): at for q, at in places.items()}


def _read(storage: Storage, path: str) -> Begin | None:
    try:
        return msgspec.json.decode(storage.read(path), type=Begin)
    except FileNotFoundError:
        return None
    except msgspec.MsgspecError as error:
        raise KeroloxError(
            f"{storage.name(path)} cannot be read: {error}. It has the start offsets of flows without a "
            "checkpoint. Delete it to start them at the offsets that the source's options give now"
        ) from None
