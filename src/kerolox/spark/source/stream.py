"""Topics read by streaming queries.

Spark keeps one process for the offsets of a query, in which everything but :meth:`StreamSource.read` runs. An
error there ends the query, so it waits for errors that may go away by themselves. The checkpoint holds the
offsets of the query. It commits them for the group at the broker too, for people to look at, but never reads
them back (except at the first start, by ``startingOffsets = group``).
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from kerolox.client.errors import TopicNotFound
from kerolox.client.messages import Queue
from kerolox.client.sockets.socket_cluster import Edges
from kerolox.errors import KeroloxError
from kerolox.spark.last_read import LastReads
from kerolox.spark.offsets import QueueOffsets, StreamOffset, queue_text
from kerolox.spark.short_errors import tells_shortly
from kerolox.spark.source.last_messages import last_messages, replaced
from kerolox.spark.source.metrics import behind
from kerolox.spark.source.options import Wanted, read_wanted
from kerolox.spark.source.progress import tell_group
from kerolox.spark.source.queues import ClusterQueues, DataLoss, MadeAnew
from kerolox.spark.source.ranges import Range, Ranges, ranges, shares, tasks
from kerolox.spark.source.reading import chosen_table, mean_size, read_range

log = logging.getLogger(__name__)

IDLE_PAUSE_S = 0.02  # between looks at idle queues; grows to
IDLE_PAUSE_MAX_S = 0.1
GONE_PAUSE_S = 1.0
MESSAGE_BYTES = 1024.0  # taken for the size where nothing is known


@tells_shortly
class StreamSource(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Stream reader of one query."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._wanted = read_wanted(options, "streaming")
        self._table = chosen_table(schema, self._wanted.bodies)
        self._offsets: QueryOffsets | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_offsets": None}  # for read, which has no use for it

    @property
    def offsets(self) -> QueryOffsets:
        if self._offsets is None:
            self._offsets = QueryOffsets(self._wanted)
        return self._offsets

    def getDefaultReadLimit(self) -> ReadLimit:
        wanted = self._wanted
        if wanted.rows_max is not None:
            return ReadMaxRows(wanted.rows_max)
        if wanted.bytes_max is not None:
            return ReadMaxBytes(wanted.bytes_max)
        if wanted.rows_min is not None:
            return ReadMinRows(wanted.rows_min)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self.offsets.prepare_available_now()

    def initialOffset(self) -> dict[str, Any]:
        return self.offsets.initial()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        return self.offsets.latest(start, unlimited=isinstance(limit, ReadAllAvailable))

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return self.offsets.reported()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        wanted = self._wanted
        parts = self.offsets.still_there(between(start, end), end)
        return tasks(parts, pieces_min=wanted.pieces_min, rows_max=wanted.piece_rows_max)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, Ranges):
            for part in partition.parts:
                yield from self._table.of_all(read_range(self._wanted, self._table.needed, part))

    def commit(self, end: dict[str, Any]) -> None:
        """Spark calls it one batch late. The listener in progress.py is in time, but may be missing."""
        tell_group(self.offsets.cluster, StreamOffset.decode(end))

    def stop(self) -> None:
        if self._offsets is not None:
            self._offsets.cluster.close()


def _has(edge: Edges, at: int | None, target: int) -> bool:
    """Return True if a follower has the resume offset, and messages after it unless the target is reached."""
    if at is None:
        return True
    return edge.first <= at <= edge.end and (at < edge.end or at >= target)


def _standing(edge: Edges, at: int, late: bool) -> Edges:
    """The edges of a queue that a query does not go on in, for now; when it is ``late``, with the first
    message there is, if that is further."""
    return edge._replace(end=max(edge.end, at)) if late else Edges(at, at)


def between(start: Mapping[str, Any], end: Mapping[str, Any]) -> list[Range]:
    """Return the ranges of a batch. They depend only on the two offsets, so a repeated batch is the same."""
    if start == end:
        return []
    first, last = StreamOffset.decode(start), StreamOffset.decode(end)
    return ranges(first.places | last.begins, last.places)


class QueryOffsets:
    """Start and end offsets of a query's batches."""

    def __init__(self, wanted: Wanted) -> None:
        self._wanted = wanted
        self.cluster = wanted.open_cluster()
        self._queues = ClusterQueues(self.cluster, wanted)
        self._known: list[Queue] = []
        self._looked_s = -1e9  # when queues were looked for
        self._edges: dict[Queue, Edges] = {}
        self._group = "" if wanted.has_own_group else wanted.group
        self._planned: QueueOffsets = {}  # where the batch ends that was planned last
        self._planned_form: dict[str, Any] | None = None  # the same, as Spark keeps it
        self._is_available_now = False
        self._target: QueueOffsets | None = None  # of Trigger.AvailableNow: no further than this
        self._read_before: set[str] = set()  # topics of the checkpoint
        self._initial: dict[str, Any] | None = None
        self._missing: dict[Queue, float] = {}  # since when
        self._lacking: dict[Queue, float] = {}  # since when followers have less than the query has read
        self._batch_s = time.monotonic()  # when there was something to read last
        self._turn = 0
        self._pause_s = IDLE_PAUSE_S

    def _mark(
        self,
        places: QueueOffsets,
        begins: QueueOffsets | None = None,
        *,
        first: bool = False,
        last: LastReads | None = None,
    ) -> dict[str, Any]:
        return StreamOffset(
            self._group, self._wanted.nameserver, places, begins or {}, first, last or {}
        ).encode()

    # --- what there is --------------------------------------------------------------------------------

    def _look(self, *, all_of_them: bool = False) -> dict[Queue, Edges]:
        """The edges of the queues, now. Those of a broker that does not answer are left out, unless all are
        wanted or nobody answers: then it is waited for."""
        now_s = time.monotonic()
        if not self._known and not self._wanted.pattern:
            self._known = self._queues.find(self._read_before)
            self._looked_s = now_s
        elif now_s - self._looked_s >= self._wanted.discovery_s:
            self._known = self._queues.look_again()
            self._looked_s = now_s
        brokers: dict[str, list[Queue]] = {}
        for queue in self._known:
            brokers.setdefault(queue.broker, []).append(queue)
        found: dict[Queue, Edges] = {}
        if len(brokers) > 1 and not all_of_them:
            for broker, queues in brokers.items():
                try:
                    with self.cluster.once():
                        found |= self.cluster.edges(queues)
                except KeroloxError as error:
                    if not error.retriable:
                        raise
                    log.info("broker_away broker=%s error=%r", broker, str(error))
        self._edges = found or self.cluster.edges(self._known)
        return self._edges

    def prepare_available_now(self) -> None:
        self._is_available_now = True
        try:
            self._aim()
        except TopicNotFound as error:  # the checkpoint may tell that it was there: it is opened after this
            log.info("topic_not_found_yet error=%r", str(error))

    def _aim(self) -> None:
        """Fix where Trigger.AvailableNow ends: as far as the queues are now."""
        if self._is_available_now and self._target is None:
            self._target = {queue: edges.end for queue, edges in self._look(all_of_them=True).items()}

    def reported(self) -> dict[str, Any] | None:
        if not self._edges:
            return None
        latest = {queue: edges.end for queue, edges in self._edges.items()}
        return self._mark(latest) | {"behind": behind(latest, self._planned)}

    def initial(self) -> dict[str, Any]:
        """Return the start of a new query. Spark asks twice, and again after a crash in the first batch."""
        if self._initial is None:
            wanted = self._wanted
            if wanted.has_own_group:
                self._group = f"{wanted.group}-{secrets.token_hex(4)}"
            self._aim()
            edges = self._look(all_of_them=True)
            if self._target is not None:  # ignore messages stored later
                edges = {
                    queue: edge._replace(end=min(edge.end, self._target.get(queue, 0)))
                    for queue, edge in edges.items()
                }
            self._initial = self._mark(self._queues.places(wanted.start, edges), first=True)
        return self._initial

    # --- how far --------------------------------------------------------------------------------------

    def latest(self, start: dict[str, Any], *, unlimited: bool) -> dict[str, Any]:
        """Return the end of the next batch; ``start`` if there is nothing to read.

        Waits a little if there is nothing, because Spark asks again a hundred times a second.
        """
        mark = StreamOffset.decode(start)
        if self._wanted.has_own_group:  # the one it began with
            self._group = mark.group
        self._planned = mark.places
        self._read_before = {queue.topic for queue in mark.places}
        self._aim()
        deadline_s = time.monotonic() + (0.0 if self._target is not None else self._wanted.idle_wait_s)
        while True:
            found = self._next(mark, unlimited=unlimited)
            if found is not None:
                self._pause_s = IDLE_PAUSE_S
                return found
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                return start
            time.sleep(min(self._pause_s, left_s))
            self._pause_s = min(self._pause_s * 2, IDLE_PAUSE_MAX_S)

    def _next(self, mark: StreamOffset, *, unlimited: bool) -> dict[str, Any] | None:
        edges = self._look_for_missing(mark.places, self._look())
        edges = self._look_at_leaders(mark.places, edges)
        begins = dict(mark.places) if mark.first else {}
        starts = dict(mark.places)
        known = {queue: at for queue, at in mark.places.items() if queue in edges}
        standing = self._queues.go_on(known, mark.last, edges)
        for queue, edge in edges.items():
            # A queue that is new is read from its beginning; an offset that is gone is passed over.
            chosen = standing.get(queue, edge.first)
            if chosen != starts.get(queue):
                starts[queue] = begins[queue] = chosen
        limits = {queue: edge.end for queue, edge in edges.items()}
        if self._target is not None:
            limits = {queue: min(end, self._target.get(queue, 0)) for queue, end in limits.items()}
        backlog = {queue: max(0, end - starts[queue]) for queue, end in limits.items()}
        if not self._is_enough(sum(backlog.values()), unlimited=unlimited):
            return None
        taken = backlog if unlimited else self._limited(backlog, starts)
        self._batch_s = time.monotonic()
        self._turn += 1
        # A new queue without messages may stay unknown: a batch for it would be an empty one.
        places = {
            queue: at + taken.get(queue, 0)
            for queue, at in starts.items()
            if queue in mark.places or taken.get(queue, 0)
        }
        begins = {queue: at for queue, at in begins.items() if queue in places}
        self._planned = places
        self._planned_form = self._mark(places, begins, last=self._last(mark, places, begins, edges))
        return self._planned_form

    def _last(
        self, mark: StreamOffset, places: QueueOffsets, begins: QueueOffsets, edges: Mapping[Queue, Edges]
    ) -> LastReads:
        """The last message before each place; of a queue that stays where it was, the one known."""
        stays = {q for q, at in places.items() if at == mark.places.get(q) and q not in begins}
        kept = {queue: read for queue, read in mark.last.items() if queue in stays}
        asked = {queue: at for queue, at in places.items() if queue not in kept}
        return kept | last_messages(self.cluster, asked, edges, self._wanted.group)

    def still_there(self, parts: list[Range], end: dict[str, Any]) -> list[Range]:
        """The ranges of a batch, without queues that were made anew since.

        A batch that was planned before the query was stopped is read from the queues of today: its last
        messages are compared before.
        """
        last = StreamOffset.decode(end).last
        if not parts or not last or end == self._planned_form:
            return parts
        self._read_before = {part.queue.topic for part in parts}
        edges = self._look()
        ends = {part.queue: part.end for part in parts}
        others = replaced(self.cluster, ends, last, edges, self._wanted.group)
        for queue, other in others.items():
            loss = MadeAnew(queue, ends[queue], other)
            if self._wanted.fail_on_data_loss:
                raise loss
            log.warning("batch_lost queue=%s error=%r", queue_text(queue), str(loss))
        return [part for part in parts if part.queue not in others]

    def _is_enough(self, count: int, *, unlimited: bool) -> bool:
        wanted = self._wanted
        if not count:
            return False
        if wanted.rows_min is None or count >= wanted.rows_min or unlimited or self._target is not None:
            return True
        return time.monotonic() - self._batch_s >= wanted.trigger_delay_s

    def _limited(self, backlog: QueueOffsets, starts: QueueOffsets) -> QueueOffsets:
        wanted = self._wanted
        if wanted.rows_max is not None:
            backlog = shares(backlog, wanted.rows_max, turn=self._turn)
        if wanted.bytes_max is not None:
            sizes = {
                queue: mean_size(self.cluster, wanted, queue, starts[queue]) or MESSAGE_BYTES
                for queue, count in backlog.items()
                if count
            }
            backlog = shares(backlog, wanted.bytes_max, sizes=sizes, turn=self._turn)
        return backlog

    def _look_for_missing(self, places: QueueOffsets, edges: Mapping[Queue, Edges]) -> Mapping[Queue, Edges]:
        """Queues that were read and are not there now: their broker may come back.

        Until then the others are read. A query of Trigger.AvailableNow waits: it ends when nothing is left to
        read, and cannot come back to them.
        """
        wanted = self._wanted
        while True:
            now_s = time.monotonic()
            gone = [queue for queue in places if queue not in edges and self._is_wanted(queue)]
            self._missing = {queue: self._missing.get(queue, now_s) for queue in gone}
            if not gone:
                return edges
            # Look for them every second.
            self._looked_s = min(self._looked_s, now_s - wanted.discovery_s + GONE_PAUSE_S)
            if not wanted.fail_on_data_loss:
                return edges
            for queue, since_s in self._missing.items():
                if now_s - since_s >= wanted.patience_s:
                    raise DataLoss.gone(queue, places[queue], wanted.patience_s)
            if self._target is None:
                return edges
            time.sleep(GONE_PAUSE_S)
            edges = self._look()
            self._target |= {queue: edges[queue].end for queue in gone if queue in edges}

    def _look_at_leaders(self, places: QueueOffsets, edges: Mapping[Queue, Edges]) -> Mapping[Queue, Edges]:
        """Of queues whose followers do not have the place to go on from, or not all a query of
        Trigger.AvailableNow is to read: the leader's edges. A leader that is gone is waited for, as long as a
        broker that does not answer; a query that runs on reads other queues meanwhile."""
        wanted = self._wanted
        while True:
            now_s = time.monotonic()
            target = self._target or {}
            lacking = [
                queue
                for queue, edge in edges.items()
                if edge.follower and not _has(edge, places.get(queue), target.get(queue, 0))
            ]
            if lacking:
                edges = {**edges, **self._leaders_edges(lacking)}
                lacking = [queue for queue in lacking if edges[queue].follower]
            self._lacking = {queue: self._lacking.get(queue, now_s) for queue in lacking}
            if not lacking:
                return edges
            late = {queue for queue in lacking if now_s - self._lacking[queue] >= wanted.patience_s}
            if late and wanted.fail_on_data_loss:
                queue = min(late)
                raise DataLoss.outside(queue, places[queue], edges[queue])
            if self._target is None or len(late) == len(lacking):
                return {**edges, **{q: _standing(edges[q], places[q], q in late) for q in lacking}}
            time.sleep(GONE_PAUSE_S)
            edges = self._look()

    def _leaders_edges(self, queues: Sequence[Queue]) -> dict[Queue, Edges]:
        try:
            with self.cluster.once():
                return self.cluster.edges(queues, of_leaders=True)
        except KeroloxError as error:
            if not error.retriable:
                raise
            log.info("leader_away queues=%d error=%r", len(queues), str(error))
            return {}

    def _is_wanted(self, queue: Queue) -> bool:
        """A query may be started anew with fewer topics or queues."""
        wanted = self._wanted
        if wanted.queue_ids and queue.queue_id not in wanted.queue_ids:
            return False
        return bool(wanted.pattern) or queue.topic in wanted.topics
