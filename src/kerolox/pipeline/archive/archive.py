"""Topics to Parquet files or a Delta table, every message once.

The archive works in rounds: look up the end of each queue, let Spark's tasks read the messages since the
last commit and write them, commit. It does not use Structured Streaming. That would bring a second log of
offsets beside the one the archive needs anyway (with a rule for when they differ), a checkpoint folder that
must not be lost, and a planner process per query; a round needs none of it, and one atomic commit holds both
the files and the offsets. Structured Streaming would add nothing that an archive needs.

A round is bounded in rows. A run that follows waits for ``interval_s`` between rounds, unless enough
messages for a full round have arrived, so that a topic gets one file per interval instead of many tiny ones.
The files of a past hour are joined when many of them are small.

After each commit the archive commits the group's offsets at the broker, for people and monitoring. The
archive itself reads only its own log.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace

from kerolox.client.messages import Queue
from kerolox.client.names import without_namespace
from kerolox.client.sockets.socket_cluster import Edges, SocketCluster
from kerolox.clock import SYSTEM_CLOCK, Clock
from kerolox.errors import KeroloxError
from kerolox.pipeline.archive.destination import Destination, Runner
from kerolox.pipeline.archive.files import Format, WriteTask, WrittenFile
from kerolox.pipeline.archive.log import OffsetRanges
from kerolox.pipeline.archive.summary import Summary, TopicCount
from kerolox.pipeline.archive.tasks import ArchiveFailed
from kerolox.pipeline.lake.upkeep import join, usual_rule
from kerolox.spark.last_read import LastReads
from kerolox.spark.offsets import QueueOffsets, queue_text
from kerolox.spark.source.last_messages import last_messages
from kerolox.spark.source.options import Start, Wanted
from kerolox.spark.source.queues import ClusterQueues
from kerolox.spark.source.ranges import Range, ranges, shares

log = logging.getLogger(__name__)

ROUND_ROWS = 2_000_000
TASK_ROWS_MIN = 50_000  # rows; smaller tasks cost more to start than they save
POLL_S = 1.0
RETRY_S_MAX = 30.0

UPKEEP_EVERY_S = 600.0


class Archive:
    """One run of the archive: one thread and one destination, for as many rounds as requested."""

    def __init__(
        self,
        wanted: Wanted,
        destination: Destination,
        run: Runner,
        *,
        format: Format | None = None,
        cores: int = 1,
        round_rows: int = ROUND_ROWS,
        join: bool = True,
        expire_ms: int | None = None,
        on_round: Callable[[Summary, int], None] = lambda summary, left: None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.wanted = wanted
        self.destination = destination
        self.summary = Summary()
        self.is_committing = False  # a commit is in progress: do not interrupt it
        self._run = run
        self._format = format or Format()
        self.cores = cores
        self._round_rows = round_rows
        self._joins = join
        self._expire_ms = expire_ms  # age at which past hours are removed
        self._upkeep_s = self._began_s = time.monotonic()
        self._on_round = on_round
        self._clock = clock
        self._cluster = SocketCluster(wanted.cluster, patience_s=wanted.patience_s)
        self._queues = ClusterQueues(self._cluster, wanted)
        self._edges: dict[Queue, Edges] = {}
        self._turn = 0
        self._has_reported = False

    def __enter__(self) -> Archive:
        self._format = self.destination.open(self._format)
        self.summary.swept = self.destination.swept
        return self

    def __exit__(self, *exc: object) -> None:
        self.destination.close()
        self._cluster.close()

    # --- before the first round -------------------------------------------------------------------------

    def look(self, *, patient: bool = False) -> None:
        """Check that the topics exist and that their brokers answer; with ``patient``, wait for them.

        The command calls it before it starts Spark and makes a folder, so a wrong name fails at once. No
        connection stays open, because the run may end before the archive is opened.
        """
        try:
            with nullcontext() if patient else self._cluster.once():
                self._edges = self._cluster.edges(self._queues.find())
        finally:
            self._cluster.close()

    def check(self) -> None:
        """Check that the start and end offsets exist. Needs an open archive, and changes nothing."""
        with self._cluster.once():
            known, fresh = self._known(self._edges)
            self._queues.go_on(known, self.destination.last_read, self._edges)
            # In a new archive, all named queues must exist.
            self._queues.places(self._given(fresh) if self.destination.places else self.wanted.start, fresh)
            self._queues.places(self.wanted.end, self._edges, ending=True)

    # --- runs -----------------------------------------------------------------------------------------

    def once(self) -> Summary:
        """Archive the messages stored so far. The next run archives those that arrive meanwhile."""
        edges = self._look()
        self._report_once(edges)
        starts = self._starts(edges)
        ends = self._queues.places(self.wanted.end, edges, ending=True)
        while self._round(starts, ends):
            starts = self._starts(edges)
        self._look_after()
        return self.told()

    def follow(self, stopped: Callable[[float], bool], interval_s: float = 60.0) -> Summary:
        """Archive messages as they arrive, until ``stopped(seconds)``, which waits that long, returns True.

        Errors that may pass, such as a server that does not answer, are retried.
        """
        due_s = time.monotonic()
        pause_s, trouble = POLL_S, ""
        while True:
            try:
                is_due = time.monotonic() >= due_s
                done, left = self._step(is_due)
                if done:
                    due_s = time.monotonic() + interval_s
                elif time.monotonic() >= self._upkeep_s:
                    self._look_after()
                pause_s, trouble = 0.0 if left >= self._round_rows else min(POLL_S, interval_s), ""
            except KeroloxError as error:
                if not error.retriable:
                    raise
                if str(error) != trouble:
                    trouble = str(error)
                    log.warning("archive_waits error=%r", trouble)
                pause_s = min(RETRY_S_MAX, 2 * max(pause_s, POLL_S))
            if stopped(pause_s):
                return self.told()

    def _step(self, is_due: bool) -> tuple[bool, int]:
        """Run a round if it is full or due. Returns True if it ran, and the number of messages left."""
        edges = self._look()
        self._report_once(edges)
        starts = self._starts(edges)
        ends = {queue: edge.end for queue, edge in edges.items()}
        waiting = sum(max(0, ends[queue] - at) for queue, at in starts.items())
        if waiting < self._round_rows and not (waiting and is_due):
            return False, waiting
        self._round(starts, ends)
        return True, max(0, waiting - self._round_rows)

    def told(self) -> Summary:
        """The summary of this run so far."""
        self.summary.seconds = time.monotonic() - self._began_s
        return self.summary

    # --- a round --------------------------------------------------------------------------------------

    def _look(self) -> dict[Queue, Edges]:
        """Return the edges of the queues; list archived queues that are missing now in the summary."""
        queues = self._queues.look_again() if self.summary.rounds else self._queues.find()
        self.destination.find_places(queues)
        self._edges = edges = self._cluster.edges(queues)
        topics = {queue.topic for queue in queues}
        gone = [queue for queue in self.destination.places if queue.topic in topics and queue not in edges]
        self.summary.unreachable = [queue_text(queue) for queue in sorted(gone)]
        return edges

    def _known(self, edges: Mapping[Queue, Edges]) -> tuple[QueueOffsets, dict[Queue, Edges]]:
        """Return the next offset of each queue already in the archive, and the queues that are new to it."""
        self.destination.find_places(edges)
        known = {queue: at for queue, at in self.destination.places.items() if queue in edges}
        return known, {queue: edge for queue, edge in edges.items() if queue not in known}

    def _starts(self, edges: Mapping[Queue, Edges]) -> QueueOffsets:
        known, fresh = self._known(edges)
        starts = self._queues.go_on(known, self.destination.last_read, edges)
        for queue, at in starts.items():
            self._note_missing(queue, known[queue], at)
        return starts | self._begin(fresh)

    def _begin(self, fresh: Mapping[Queue, Edges]) -> QueueOffsets:
        """Return the offsets at which the archive begins new queues."""
        given = self._given(fresh)
        begun = self._queues.places(given, fresh)
        if begun and given.word != "earliest":
            # Committed at once: at the next look ``latest`` would be a later offset.
            last = last_messages(self._cluster, begun, fresh, self.wanted.group)
            self.destination.commit(
                self.wanted.group,
                {},
                self.destination.places | begun,
                (),
                last=self.destination.last_read | last,
            )
        return begun

    def _given(self, fresh: Mapping[Queue, Edges]) -> Start:
        given = self.wanted.start
        if given.offsets is None:
            return given
        # The start offsets may name queues that the archive already has.
        return replace(given, offsets={q: at for q, at in given.offsets.items() if q in fresh})

    def _note_missing(self, queue: Queue, expected: int, found: int) -> None:
        if found != expected:
            self._topic(queue.topic).missing += max(0, found - expected)
            # Counted once: the offset becomes the queue's place now, and in the log with the next commit.
            self.destination.places[queue] = found
            self.destination.last_read.pop(queue, None)

    def _round(self, starts: QueueOffsets, ends: Mapping[Queue, int]) -> bool:
        """Archive a bounded part of the messages between two offsets. Returns False if there were none."""
        backlog = {queue: ends[queue] - at for queue, at in starts.items() if queue in ends}
        chosen = shares(backlog, self._round_rows, turn=self._turn)
        self._turn += 1
        stops = {queue: starts[queue] + count for queue, count in chosen.items()}
        wanted = ranges(starts, stops)
        left = sum(count for count in backlog.values() if count > 0)
        self._on_round(self.summary, left)
        if not wanted:
            return False
        read = {each.queue: stops[each.queue] for each in wanted}
        last = last_messages(self._cluster, read, self._edges, self.wanted.group)
        results = list(self._run(self._works(wanted)))
        files = [file for done in results for file in done.files]
        failed = [done for done in results if done.error]
        if failed:
            self.destination.discard(files)
            raise ArchiveFailed(failed[0].error, retriable=all(done.retriable for done in failed))
        self.is_committing = True
        try:
            self._commit(wanted, stops, files, last)
        finally:
            self.is_committing = False
        self._on_round(self.summary, left - sum(each.count for each in wanted))
        return True

    def _works(self, wanted: Sequence[Range]) -> list[WriteTask]:
        """Return the tasks of a round: one topic each, and as few as the rows need."""
        stem = self.destination.stem()
        settings = replace(self.wanted, start=Start(), end=Start())
        by_topic: dict[str, list[Range]] = {}
        for each in wanted:
            by_topic.setdefault(each.queue.topic, []).append(each)
        made: list[WriteTask] = []
        for topic, mine in by_topic.items():
            rows = sum(each.count for each in mine)
            tasks = max(-(-rows // self._format.rows_max), min(self.cores, -(-rows // TASK_ROWS_MIN)))
            for part in bins(mine, tasks):
                made.append(
                    WriteTask(
                        topic=without_namespace(self.wanted.cluster.namespace, topic),
                        ranges=tuple(part),
                        wanted=settings,
                        storage=self.destination.storage,
                        staging=self.destination.staging,
                        stem=f"{stem}-{len(made):03d}",
                        format=self._format,
                    )
                )
        return made

    def _commit(
        self, wanted: Sequence[Range], stops: QueueOffsets, files: Sequence[WrittenFile], last: LastReads
    ) -> None:
        missing = self._missing(wanted, files)
        tree: OffsetRanges = {}
        for each in wanted:
            brokers = tree.setdefault(each.queue.topic, {})
            brokers.setdefault(each.queue.broker, {})[str(each.queue.queue_id)] = (each.start, each.end)
        places = self.destination.places | stops
        read = {each.queue for each in wanted}
        kept = {queue: known for queue, known in self.destination.last_read.items() if queue not in read}
        self.destination.commit(self.wanted.group, tree, places, files, missing=missing, last=kept | last)
        self.summary.rounds += 1
        for file in files:
            topic = self._topic(file.topic)
            topic.rows += file.rows
            topic.bytes += file.bytes
            topic.files += 1
        for name, count in missing.items():
            self._topic(name).missing += count
        self._report(stops)

    def _look_after(self) -> None:
        """Remove what is too old and join small files.

        If either fails, the archive is unchanged or the next try completes the work. Archiving continues:
        small or old files lose no messages.
        """
        self._upkeep_s = time.monotonic() + UPKEEP_EVERY_S
        if self._expire_ms is not None:  # first: files to be removed need not be joined
            try:
                expired = self.destination.expire(self._clock.wall_ms() - self._expire_ms)
                self.summary.files_expired += expired.files
            except KeroloxError as error:
                log.warning("old_hours_not_removed error=%r next='retried automatically'", str(error))
        if self._joins:
            try:
                rule = usual_rule(self._format.rows_max, self._format.bytes_max)
                self.summary.files_joined += join(self.destination, self._run, self._clock.wall_ms(), rule)
            except KeroloxError as error:
                log.warning("small_files_not_joined error=%r next='retried automatically'", str(error))

    def _missing(self, wanted: Sequence[Range], files: Sequence[WrittenFile]) -> dict[str, int]:
        """Return the missing messages of the ranges by topic. With a filter their number is unknown: return
        {}.
        """
        if self.wanted.expression != "*":
            return {}
        counts: dict[str, int] = {}
        for each in wanted:
            topic = without_namespace(self.wanted.cluster.namespace, each.queue.topic)
            counts[topic] = counts.get(topic, 0) + each.count
        for file in files:
            counts[file.topic] -= file.rows
        return {topic: count for topic, count in counts.items() if count}

    def _topic(self, name: str) -> TopicCount:
        plain = without_namespace(self.wanted.cluster.namespace, name)
        return self.summary.topics.setdefault(plain, TopicCount())

    def _report_once(self, edges: Mapping[Queue, Edges]) -> None:
        """Commit the group's offsets of an earlier run, which may have been killed before it did."""
        if not self._has_reported:
            self._has_reported = True
            self._report({queue: at for queue, at in self.destination.places.items() if queue in edges})

    def _report(self, places: QueueOffsets) -> None:
        """Commit the group's offsets at the broker. A failure is logged and does not stop the archive."""
        if not places:
            return
        try:
            self._cluster.commit_all(places, self.wanted.group)
        except KeroloxError as error:
            log.warning("progress_not_told group=%s error=%r", self.wanted.group, str(error))


def bins(wanted: Sequence[Range], count: int) -> list[list[Range]]:
    """Divide the ranges into ``count`` parts of about the same length. Long ranges are cut."""
    total = sum(each.count for each in wanted)
    count = max(1, min(count, total))
    edges = [total * number // count for number in range(1, count + 1)]
    parts: list[list[Range]] = [[]]
    done = 0
    for each in wanted:
        start = each.start
        while start < each.end:
            if done == edges[len(parts) - 1]:
                parts.append([])
            end = min(each.end, start + edges[len(parts) - 1] - done)
            parts[-1].append(Range(each.queue, start, end))
            done += end - start
            start = end
    return parts
