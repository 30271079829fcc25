"""Tasks of sources: pull a range of a queue from its broker, and return it as Arrow columns."""

from __future__ import annotations

import atexit
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql.types import MapType, StructType

from kerolox.client.errors import FollowerLacks
from kerolox.client.messages import Queue
from kerolox.client.names import without_namespace
from kerolox.client.options import ClientOptions
from kerolox.client.sockets.socket_cluster import Edges, OffsetGone, SocketCluster
from kerolox.errors import OptionError
from kerolox.protocol.subscription import ALL
from kerolox.spark.columns import COLUMNS, NOT_INFLATED, SPARK_TYPES, arrow_schema, not_inflated
from kerolox.spark.offsets import queue_text
from kerolox.spark.source.options import Wanted
from kerolox.spark.source.queues import DataLoss
from kerolox.spark.source.ranges import Range

if TYPE_CHECKING:
    # The process that knows the offsets of a streaming query starts with the query, and reads nothing: what
    # reading takes is loaded by who reads.
    from kerolox.spark.bodies.declared import Declared
    from kerolox.spark.bodies.table import BodyTable
    from kerolox.spark.records import Positions

log = logging.getLogger(__name__)

# A piece handed to Spark: small enough for the processor's cache, and for its memory when messages are large.
BATCH_BYTES: Final = 2 << 20
ALONE_BYTES: Final = 512 << 10  # a block of this size is worth decoding by itself: to join it is to copy it
BATCH_ROWS_MAX: Final = 16_384
SAMPLE: Final = 32  # messages, to guess the size of others
QUEUE_OFFSET_AT: Final = 20  # in a record

# Workers live on from task to task, and so do their connections.
_clusters: dict[tuple[int, ClientOptions, float, str], SocketCluster] = {}


def cluster_of(wanted: Wanted) -> SocketCluster:
    """The cluster, as this process knows it already."""
    # A forked process must not share connections.
    key = (os.getpid(), wanted.cluster, wanted.patience_s, wanted.read_from)
    found = _clusters.get(key)
    if found is None:
        found = _clusters[key] = wanted.open_cluster()
    return found


@atexit.register
def close_clusters() -> None:
    """End the connections of this process."""
    for cluster in _clusters.values():
        cluster.close()
    _clusters.clear()


def chosen_columns(schema: StructType) -> pa.Schema:
    """The columns a user's schema asks for. Raises OptionError for one there is not, or of another type."""
    table = {name: SPARK_TYPES[column.type] for name, column in COLUMNS.items()}
    text = False
    for field in schema.fields:
        found = field.dataType.simpleString()
        expected = table.get(field.name)
        if expected is None:
            columns = ", ".join(f"{name} {kind}" for name, kind in table.items())
            raise OptionError("schema", field.name, f"columns of: {columns}")
        if field.name == "properties" and found == "string":
            text = True
        elif found != expected:
            wanted = f"{expected} or string" if field.name == "properties" else expected
            raise OptionError("schema", f"{field.name} {found}", f"{field.name} {wanted}")
        if not field.nullable:
            raise OptionError("schema", f"{field.name} NOT NULL", f"{field.name} {found}, which may be null")
        if isinstance(field.dataType, MapType) and not field.dataType.valueContainsNull:
            raise OptionError("schema", f"{field.name} {found} without nulls", "its values to be nullable")
    return arrow_schema(schema.fieldNames(), properties="string" if text else "map")


@dataclass(frozen=True)
class MessageTable:
    """Messages as they are."""

    needed: pa.Schema

    def of_all(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """A row whose body cannot be inflated has none: a body is null nowhere else."""
        for batch in batches:
            reason = not_inflated(batch)
            if not reason:
                yield batch
                continue
            log.warning("body_not_inflated error=%r next='look at its sender'", reason)
            at = batch.schema.get_field_index("body")
            columns = [*batch.columns[:at], pa.nulls(1, pa.binary()), *batch.columns[at + 1 :]]
            yield pa.RecordBatch.from_arrays(columns, schema=batch.schema.remove_metadata())


def chosen_table(schema: StructType, bodies: Declared | None) -> MessageTable | BodyTable:
    """The table a user's schema asks for, of messages with their bodies as they are, or as columns."""
    if bodies is None:
        return MessageTable(chosen_columns(schema))
    from kerolox.spark.bodies.table import body_table, message_part

    return body_table(bodies, schema, chosen_columns(message_part(schema)))


def read_range(wanted: Wanted, columns: pa.Schema, task: Range) -> Iterator[pa.RecordBatch]:
    """The messages of a range, in pieces of about as many rows as asked for."""
    from kerolox.spark.records import decode_in_parts

    cluster = cluster_of(wanted)
    queue = task.queue
    needed = columns
    if wanted.tags and "tags" not in columns.names:
        needed = columns.append(pa.field("tags", COLUMNS["tags"].type))
    start = task.start
    while start < task.end:
        try:
            for block, positions in _gathered(cluster, wanted, task, start):
                done = 0
                for found, reason in decode_in_parts(block, positions, needed, queue.broker):
                    batch = _without_namespace(_tagged(found, wanted.tags), wanted.cluster.namespace)
                    batch = batch if needed is columns else batch.select(columns.names)
                    if reason and batch.num_rows:
                        offset = queue_offsets(block, positions[done : done + 1])[0]
                        reason = f"{queue_text(queue)} offset {offset}: {reason}"
                        batch = batch.replace_schema_metadata({NOT_INFLATED: reason})
                    yield batch
                    done += found.num_rows
            return
        except OffsetGone as gone:
            edges = Edges(gone.first, gone.end, gone.follower if isinstance(gone, FollowerLacks) else "")
            if wanted.fail_on_data_loss:
                raise DataLoss.outside(queue, gone.asked, edges) from None
            log.warning("data_lost queue=%s asked=%d has=%s", queue_text(queue), gone.asked, edges)
            if gone.asked >= gone.first:
                return  # the queue ends before the range does
            start = gone.first


def _tagged(batch: pa.RecordBatch, tags: frozenset[str]) -> pa.RecordBatch:
    """Those with one of the tags; another tag may have the same hash."""
    if not tags:
        return batch
    import pyarrow.compute as pc  # see below

    return batch.filter(pc.is_in(batch.column("tags"), pa.array(sorted(tags), pa.string())))


def _without_namespace(batch: pa.RecordBatch, namespace: str) -> pa.RecordBatch:
    """The topic as its users know it."""
    at = batch.schema.get_field_index("topic")
    if not namespace or at < 0 or not batch.num_rows:
        return batch
    # One queue, one topic.
    topic = pa.scalar(without_namespace(namespace, batch.column(at)[0].as_py()), pa.string())
    return batch.set_column(at, batch.schema.field(at), pa.repeat(topic, batch.num_rows))


def _gathered(
    cluster: SocketCluster, wanted: Wanted, task: Range, start: int
) -> Iterator[tuple[bytes, Positions]]:
    """Several pulls in one piece: columns are made for thousands of rows at once, or they cost too much."""
    from kerolox.spark.records import positions_of

    blocks: list[bytes] = []
    size = 0
    gone: OffsetGone | None = None
    pulls = cluster.blocks(
        task.queue,
        start,
        task.end,
        group=wanted.group,
        count=wanted.pull_count,
        scan_bytes=wanted.scan_bytes,
        scan_count=wanted.scan_count,
        expression=wanted.expression,
        kind=wanted.expression_kind,
        ahead=wanted.pulls_ahead,
    )
    while gone is None:
        try:
            pulled = next(pulls, None)
        except OffsetGone as error:  # what came before it is handed over first
            pulled, gone = None, error
        if pulled is not None and pulled.block:
            blocks.append(pulled.block)
            size += len(pulled.block)
        enough = BATCH_BYTES if len(blocks) > 1 else ALONE_BYTES
        if blocks and (pulled is None or size >= enough):
            block = blocks[0] if len(blocks) == 1 else b"".join(blocks)
            positions = positions_of(block)
            if wanted.expression != ALL:  # a filtered pull does not know where the range ends
                positions = positions[queue_offsets(block, positions) < task.end]
            for low in range(0, len(positions), BATCH_ROWS_MAX):
                yield block, positions[low : low + BATCH_ROWS_MAX]
            blocks, size = [], 0
        if pulled is None:
            break
    if gone is not None:
        raise gone


def queue_offsets(block: bytes, positions: Positions) -> Positions:
    every: npt.NDArray[np.int64] = np.ndarray((len(block) - 7,), ">i8", block, strides=(1,))
    return every[positions + QUEUE_OFFSET_AT]


def mean_size(cluster: SocketCluster, wanted: Wanted, queue: Queue, start: int) -> float | None:
    """Bytes of a message in a queue, by those of one pull from this offset on."""
    from kerolox.spark.records import positions_of

    try:
        for pulled in cluster.blocks(queue, start, start + SAMPLE, group=wanted.group, count=SAMPLE, ahead=1):
            if pulled.block:
                return len(pulled.block) / len(positions_of(pulled.block))
    except OffsetGone:
        pass
    return None
