"""A new store of what other stores hold: a topic split off, or several brokers' stores merged into one.

First step: each task reads a part of an old log, and says which records are taken, in chunks. The driver puts
the chunks of all sources in the order of their time and gives each one its place in the new log. Second step:
tasks write their ranges of it. Then queues and index are made by the rebuild. Offsets in queues stay what
they were; queues of the same topic of different sources lie side by side.
"""

from __future__ import annotations

import os
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from kerolox.atomic_file import write_atomically
from kerolox.errors import KeroloxError, OptionError
from kerolox.pipeline.rebuild import rebuild as queues_and_index
from kerolox.pipeline.rebuild.extract import LogPart
from kerolox.pipeline.rebuild.job import Job, OnStep, spread
from kerolox.pipeline.rebuild.parts import in_line, parts_of, shares_of
from kerolox.pipeline.rebuild.pieces import DamageNote
from kerolox.pipeline.transfer.chunks import Choice, Chunk, ChunkedPart, measure, part_note
from kerolox.pipeline.transfer.tables import (
    OldTables,
    QueueMove,
    QueuePlan,
    plan_queues,
    write_empty_queues,
    write_tables,
)
from kerolox.pipeline.transfer.writing import place_all, share_note, write_share
from kerolox.protocol.hosts import host_bytes
from kerolox.store.offline.layout import Layout, refuse_entries
from kerolox.store.offline.mend import open_log
from kerolox.store.rebuild import DamagedLog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MAPPING = "kerolox.mapping.json"  # of queues, in the new store
FAIL, SKIP = "fail", "skip"
_DAMAGE_TOLD = 5
_QUEUES_WORK = "queues"


class TransferRequest(msgspec.Struct):
    """What is to be made."""

    layouts: list[Layout]
    to: str
    topics: tuple[str, ...] = ()  # only these; all but the brokers' own, without any
    store_host: str = ""  # address of the broker that will have it
    on_damage: str = FAIL
    part_bytes: int = queues_and_index.PART_BYTES

    @property
    def choice(self) -> Choice:
        host = host_bytes(self.store_host) if self.store_host else b""
        return Choice(self.topics, host, self.layouts[0].log_file_bytes)

    @property
    def new_layout(self) -> Layout:
        """The store that is made: with the sizes of the first one."""
        to = os.path.abspath(self.to)
        return msgspec.structs.replace(
            self.layouts[0],
            root=to,
            log_paths=[os.path.join(to, "commitlog")],
            read_only_paths=[],
            entry_paths=[],
            entry_index_path="",
        )


class Transferred(msgspec.Struct):
    """What was made."""

    sources: list[str]
    to: str
    log_begin: int = 0
    log_end: int = 0
    messages: int = 0
    queues: int = 0
    keys: int = 0
    holes: int = 0  # queue offsets whose messages are lost
    groups: int = 0  # with progress in what was taken
    left_out: dict[str, int] = {}  # messages that stay behind, by topic
    deleted: int = 0  # messages of deleted topics
    damage: list[DamageNote] = []
    mapping: list[QueueMove] = []
    seconds: float = 0.0


def check_request(request: TransferRequest) -> Job:
    """Refuse what cannot be done, before Spark starts. Returns the job."""
    if request.on_damage not in (FAIL, SKIP):
        raise OptionError("--on-damage", request.on_damage, f"{FAIL} or {SKIP}")
    choice = request.choice
    roots = [layout.root for layout in request.layouts]
    for layout in request.layouts:
        refuse_entries(layout, "this", "Give the store of a broker that is no member of a group.")
        if roots.count(layout.root) > 1:
            raise OptionError("STORE_DIR", layout.root, "each store once")
        if layout.root == os.path.abspath(request.to):
            raise OptionError("--to", request.to, "a new directory, not one of the stores")
        if len(roots) > 1 and layout.light_queues:
            raise KeroloxError(
                f"{layout.root} has light queues (%LMQ%), whose numbers are in the messages themselves: "
                "they cannot lie side by side with those of another store. Move its topics one by one "
                "with kerolox pipeline split."
            )
    if request.topics:
        for layout in request.layouts:
            queues_and_index.check_known(layout, request.topics)
    for layout in request.layouts:
        if broken := OldTables(layout).broken:
            raise KeroloxError(
                f"{'; '.join(broken)}. Mend it first: kerolox store repair {layout.root} --tables"
            )
    logs = [queues_and_index.log_state(layout) for layout in request.layouts]
    job = Job(
        request.to,
        {
            "form": "kerolox transfer 1",
            "stores": roots,
            "logs": logs,
            "topics": sorted(request.topics),
            "host": choice.store_host.hex(),
            "damage": request.on_damage,
            "file": choice.file_bytes,
            "part": request.part_bytes,
        },
    )
    job.check()
    return job


def finished(request: TransferRequest) -> Transferred | None:
    """What was made, if the same command was finished before."""
    return check_request(request).finished(Transferred)


def transfer(spark: SparkSession, request: TransferRequest, *, progress: OnStep | None = None) -> Transferred:
    """Make the new store in ``request.to``, or go on with it."""
    began_s = time.perf_counter()
    job = check_request(request)
    with job.held():
        done = job.finished(Transferred)
        if done is not None:
            return done
        made = _Transfer(spark, job, request, progress or (lambda what, done, total: None)).run()
        made.seconds = time.perf_counter() - began_s
        job.finish(made)
    return made


class _Transfer:
    def __init__(self, spark: SparkSession, job: Job, request: TransferRequest, progress: OnStep) -> None:
        self.spark = spark
        self.job = job
        self.request = request
        self.progress = progress
        self.layouts = request.layouts
        self.choice = request.choice
        self.made = Transferred([layout.root for layout in self.layouts], str(job.to))

    def run(self) -> Transferred:
        measured = self._measure()
        self._judge(measured)
        tables = [OldTables(layout) for layout in self.layouts]
        plan = plan_queues(tables, [_found(parts) for parts in measured], self.choice.has)
        self._write_log(measured, plan)
        made, new = self.made, self.request.new_layout
        if not (self.job.work / _QUEUES_WORK).exists():
            # Before the queues are made: they say which topics there are.
            made.groups = write_tables(new.root, tables, plan, all_groups=not self.request.topics)
            self.job.write_note("groups.json", made.groups)
            write_empty_queues(new, plan)
        made.groups = self.job.note("groups.json", int) or 0
        self._make_queues()
        made.mapping = plan.moves
        write_atomically(self.job.to / MAPPING, msgspec.json.format(msgspec.json.encode(plan.moves)))
        return made

    # Reading

    def _measure(self) -> list[list[ChunkedPart]]:
        """What each part of each log has for us."""
        parts: list[list[LogPart]] = []
        for layout in self.layouts:
            segments = open_log(layout)
            starts = [each.start for each in segments.all]
            low, high = segments.min_offset, segments.max_offset
            segments.close()
            parts.append(parts_of(starts, layout.log_file_bytes, low, high, self.request.part_bytes))
        known: list[dict[int, ChunkedPart]] = []
        todo: list[tuple[int, list[LogPart]]] = []
        for source, these in enumerate(parts):
            read = {part.start: self.job.note(part_note(source, part.start), ChunkedPart) for part in these}
            known.append({start: part for start, part in read.items() if part is not None})
            left = [part for part in these if read[part.start] is None]
            todo += [(source, share) for share in shares_of(left, self.request.part_bytes)]
        total = sum(part.end - part.start for these in parts for part in these)

        def watch() -> None:
            done = sum(
                part.end - part.start
                for source, these in enumerate(parts)
                for part in these
                if (self.job.work / part_note(source, part.start)).exists()
            )
            self.progress("logs are looked through", done, total)

        work = partial(measure, self.layouts, self.choice, str(self.job.work))
        for (source, _), found in zip(todo, spread(self.spark, work, todo, watch), strict=True):
            known[source] |= {part.start: part for part in found}
        measured = []
        for source, these in enumerate(parts):

            def again(part: LogPart, source: int = source) -> ChunkedPart:
                ((found,),) = spread(self.spark, work, [(source, [part])])
                return found

            measured.append(in_line(these, known[source], again, self.layouts[source].root)[0])
        return measured

    def _judge(self, measured: list[list[ChunkedPart]]) -> None:
        made = self.made
        left_out: Counter[str] = Counter()
        for parts in measured:
            for part in parts:
                left_out.update(part.left_out)
                made.deleted += part.deleted
                made.damage += part.damage
                made.messages += sum(chunk.records for chunk in part.chunks)
        made.left_out = dict(sorted(left_out.items())) if not self.request.topics else {}
        if made.damage and self.request.on_damage == FAIL:
            told = "; ".join(
                f"{each.path} at byte {each.in_file} (log offset {each.offset}): {each.what}, valid records "
                f"follow from {each.valid_from}"
                for each in made.damage[:_DAMAGE_TOLD]
            )
            raise DamagedLog(
                f"damaged in {len(made.damage)} places: {told}. Nothing was made. Mend the log with kerolox "
                "store repair, then begin again in a new directory; or begin there with --on-damage skip, "
                "which leaves out the messages in the damage and marks their offsets as lost.",
                path=made.damage[0].path,
                offset=made.damage[0].offset,
            )
        if not made.messages:
            of = f" of {', '.join(self.request.topics)}" if self.request.topics else ""
            raise KeroloxError(f"{' and '.join(made.sources)} hold no message{of}: there is nothing to move.")

    # Writing

    def _write_log(self, measured: list[list[ChunkedPart]], plan: QueuePlan) -> None:
        new = self.request.new_layout
        # Not from 0 on: queues begin with numbers above 0, as those of a log whose first files are deleted.
        begin = new.log_file_bytes
        chunks = list(_by_time(measured))
        shares, end = place_all(chunks, begin, new.log_file_bytes, self.request.part_bytes)
        self.made.log_begin, self.made.log_end = begin, end
        os.makedirs(new.log_paths[0], exist_ok=True)
        todo = [share for share in shares if not (self.job.work / share_note(share.number)).exists()]
        sizes = {share_note(share.number): share.size for share in shares}
        total = sum(sizes.values())

        def watch() -> None:
            done = sum(size for name, size in sizes.items() if (self.job.work / name).exists())
            self.progress("the new log is written", done, total)

        firsts = [{topic.encode(): n for topic, n in each.items()} for each in plan.first_queues]
        work = partial(write_share, self.layouts, self.choice, firsts, new.log_paths[0], str(self.job.work))
        spread(self.spark, work, todo, watch)

    def _make_queues(self) -> None:
        new = self.request.new_layout
        request = queues_and_index.RebuildRequest(
            new,
            str(self.job.work / _QUEUES_WORK),
            like=queues_and_index.likeness(queues_and_index.RebuildRequest(self.layouts[0], "")),
            part_bytes=self.request.part_bytes,
        )
        rebuilt = queues_and_index.rebuild(self.spark, request, progress=self.progress)
        rebuilt = queues_and_index.put_in_place(request, rebuilt)
        for path in rebuilt.put_aside:  # what stood for queues without messages
            shutil.rmtree(path, ignore_errors=True)
        made = self.made
        made.queues, made.keys, made.holes = rebuilt.queues, rebuilt.keys, rebuilt.holes


def _found(parts: list[ChunkedPart]) -> dict[tuple[str, int], tuple[int, int]]:
    """How many messages each queue has, and the number of the last one."""
    found: dict[tuple[str, int], tuple[int, int]] = {}
    for part in parts:
        for span in part.queues:
            count, _ = found.get((span.topic, span.queue_id), (0, -1))
            found[span.topic, span.queue_id] = count + span.count, span.last
    return found


def _by_time(measured: list[list[ChunkedPart]]) -> Iterator[tuple[int, Chunk]]:
    """All chunks in the order of their first messages' times, those of one source in their own order."""
    keyed: list[tuple[int, int, int, Chunk]] = []
    for source, parts in enumerate(measured):
        latest = 0
        for part in parts:
            for chunk in part.chunks:
                latest = max(latest, chunk.first_ms)
                keyed.append((latest, source, chunk.start, chunk))
    keyed.sort(key=lambda each: each[:3])
    for _, source, _, chunk in keyed:
        yield source, chunk
