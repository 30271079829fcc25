"""New store made from other stores: topics split off, or stores of several brokers merged into one.

First step: each task reads a part of an old log and finds the chunks of records to copy. The driver orders
the chunks of all sources by time and gives each one its offset in the new log. Second step: tasks write
ranges of the new log. Then the rebuild makes queues and index. Queue offsets do not change; queues of the
same topic from different sources get consecutive queue ids.

All files are made in the folder ``_work`` of the new store, and moved to their places at the end, the log
last: until then no broker, not even Apache's, finds a complete store there. kerolox's broker does not open
it until the job is finished (``store/offline/half_made.py``).
"""

from __future__ import annotations

import os
import shutil
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TypeAlias

import msgspec

from kerolox.atomic_file import sync_directory, write_atomically
from kerolox.errors import KeroloxError, OptionError
from kerolox.pipeline.rebuild import rebuild as queues_and_index
from kerolox.pipeline.rebuild.extract import LogPart
from kerolox.pipeline.rebuild.job import Job, OnStep
from kerolox.pipeline.rebuild.parts import in_line, parts_of, shares_of
from kerolox.pipeline.rebuild.pieces import DamageNote
from kerolox.pipeline.runner import Runner, run_watched
from kerolox.pipeline.transfer.archives import (
    ArchiveFile,
    ArchiveSource,
    MeasuredFile,
    RowChunk,
    measure_file,
    measured_note,
    queue_runs,
)
from kerolox.pipeline.transfer.chunks import Choice, Chunk, ChunkedPart, measure, part_note
from kerolox.pipeline.transfer.tables import (
    ArchivedBroker,
    OldTables,
    QueueMove,
    QueuePlan,
    plan_queues,
    write_empty_queues,
    write_tables,
)
from kerolox.pipeline.transfer.writing import place_all, share_note, write_share
from kerolox.protocol.hosts import host_bytes
from kerolox.store.delay_table import parse_levels
from kerolox.store.offline.half_made import FORM, WORK
from kerolox.store.offline.layout import INDEX, QUEUES, Layout, refuse_entries
from kerolox.store.offline.mend import open_log
from kerolox.store.offline.tables import CONFIG
from kerolox.store.options import StoreOptions
from kerolox.store.rebuild import DamagedLog

MAPPING = "kerolox.mapping.json"  # mapping of queues, in the new store
FAIL, SKIP = "fail", "skip"
_DAMAGE_TOLD = 5
_STORE = "store"  # folder below ``_work`` for the log and the tables
_QUEUES_WORK = "queues"  # folder below ``_work`` for queues, index and checkpoint
_MADE = "made.json"  # all files are made, but not yet moved to their places
LOG = "commitlog"

# By archive, topic, broker and queue id: number of the source, and chunk.
ArchivedRuns: TypeAlias = "dict[tuple[str, str, str, int], list[tuple[int, RowChunk]]]"


class TransferRequest(msgspec.Struct):
    """Request of a transfer."""

    layouts: list[Layout]
    to: str
    archives: tuple[str, ...] = ()  # addresses
    topics: tuple[str, ...] = ()  # only these topics; empty: all except internal ones
    store_host: str = ""  # address of the broker of the new store
    on_damage: str = FAIL
    part_bytes: int = queues_and_index.PART_BYTES

    @property
    def choice(self) -> Choice:
        host = host_bytes(self.store_host) if self.store_host else b""
        return Choice(self.topics, host, self.new_layout.log_file_bytes)

    @property
    def new_layout(self) -> Layout:
        """Layout of the new store in ``_work``, with the sizes of the first source or the defaults."""
        to = os.path.join(os.path.abspath(self.to), WORK, _STORE)
        usual = StoreOptions()
        if not self.layouts:
            return Layout(
                root=to,
                log_paths=[os.path.join(to, LOG)],
                read_only_paths=[],
                log_file_bytes=usual.commit_log_file_bytes,
                queue_file_bytes=usual.queue_file_size,
                index_slots=usual.index_slots,
                index_entries=usual.index_entries,
                delay_levels=parse_levels(usual.delay_levels),
                light_queues=False,
                index_enabled=None,
            )
        return msgspec.structs.replace(
            self.layouts[0],
            root=to,
            log_paths=[os.path.join(to, LOG)],
            read_only_paths=[],
            entry_paths=[],
            entry_index_path="",
        )


class Transferred(msgspec.Struct):
    """Result of a transfer."""

    sources: list[str]
    to: str
    log_begin: int = 0
    log_end: int = 0
    messages: int = 0
    queues: int = 0
    keys: int = 0
    holes: int = 0  # queue offsets whose messages are lost
    groups: int = 0  # groups with offsets in the copied queues
    left_out: dict[str, int] = {}  # messages that were not copied, by topic
    deleted: int = 0  # messages of deleted topics
    damage: list[DamageNote] = []
    mapping: list[QueueMove] = []
    seconds: float = 0.0
    runner: str = ""  # name of the runner of the tasks


def check_request(request: TransferRequest) -> Job:
    """Raise an error for an impossible request, before Spark starts. Returns the job."""
    if request.on_damage not in (FAIL, SKIP):
        raise OptionError("--on-damage", request.on_damage, f"{FAIL} or {SKIP}")
    choice = request.choice
    roots = [layout.root for layout in request.layouts]
    for layout in request.layouts:
        refuse_entries(layout, "this", "Give the store of a broker that is no member of a group.")
        if roots.count(layout.root) > 1:
            raise OptionError("STORE_DIR", layout.root, "each store only once")
        if layout.root == os.path.abspath(request.to):
            raise OptionError("--to", request.to, "a new directory, not one of the stores")
        if len(roots) > 1 and layout.light_queues:
            raise KeroloxError(
                f"{layout.root} has light queues (%LMQ%), whose queue offsets are stored in the messages: "
                "they cannot be merged with those of another store. Move its topics one by one "
                "with kerolox pipeline split."
            )
    if request.topics:
        for layout in request.layouts:
            queues_and_index.check_known(layout, request.topics)
    archives = [ArchiveSource(address, choice) for address in request.archives]
    for layout in request.layouts:
        if broken := OldTables(layout).broken:
            raise KeroloxError(
                f"{'; '.join(broken)}. Repair it first: kerolox store repair {layout.root} --tables"
            )
    logs = [queues_and_index.log_state(layout) for layout in request.layouts]
    job = Job(
        request.to,
        {
            "form": FORM,
            "stores": roots,
            "logs": logs,
            "archives": [source.state for source in archives],
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
    """Return the result if the same command was finished before."""
    return check_request(request).finished(Transferred)


def transfer(runner: Runner, request: TransferRequest, *, progress: OnStep | None = None) -> Transferred:
    """Make the new store in ``request.to``, or continue an earlier run."""
    began_s = time.perf_counter()
    job = check_request(request)
    with job.held():
        done = job.finished(Transferred)
        if done is not None:
            return done
        made = job.note(_MADE, Transferred)
        if made is None:
            made = _Transfer(runner, job, request, progress or (lambda what, done, total: None)).run()
            made.seconds = time.perf_counter() - began_s
            job.write_note(_MADE, made)
        _put_in_place(job)
        job.finish(made)
    return made


def _put_in_place(job: Job) -> None:
    """Move all files to their final places, the log last. A repeated call moves the remaining files."""
    store, queues = job.work / _STORE, job.work / _QUEUES_WORK
    places = [(queues / name, job.to / name) for name in (QUEUES, INDEX, "checkpoint")]
    places += [(store / name, job.to / name) for name in (CONFIG, MAPPING, LOG)]
    for made, place in places:
        if not made.exists():
            continue  # moved by an earlier run that was killed
        if place.exists():
            raise KeroloxError(
                f"{place} exists, and was not made by this command. Did a broker start in {job.to}? "
                "Stop it, move its files away, and repeat this command: the work done so far is kept in "
                f"{job.work}."
            )
        os.rename(made, place)
        sync_directory(job.to)


class _Transfer:
    def __init__(self, runner: Runner, job: Job, request: TransferRequest, progress: OnStep) -> None:
        self.runner = runner
        self.job = job
        self.request = request
        self.progress = progress
        self.layouts = request.layouts
        self.choice = request.choice
        self.archives = [ArchiveSource(address, self.choice) for address in request.archives]
        self.files = [file for source in self.archives for file in source.files]
        roots = [layout.root for layout in self.layouts]
        self.made = Transferred(
            [*roots, *(source.address for source in self.archives)], str(job.to), runner=runner.name
        )

    def run(self) -> Transferred:
        measured = self._measure()
        runs = self._measure_archives()
        self._judge(measured, runs)
        tables = [OldTables(layout) for layout in self.layouts]
        found = [_found(parts) for parts in measured]
        brokers = sorted({(address, broker) for address, _, broker, _ in runs})
        for address, broker in brokers:
            tables.append(ArchivedBroker(f"{address} {broker}".strip()))
            found.append(
                {
                    (topic, queue_id): (sum(chunk.records for _, chunk in run), run[-1][1].last)
                    for (of, topic, name, queue_id), run in runs.items()
                    if (of, name) == (address, broker)
                }
            )
        plan = plan_queues(tables, found, self.choice.has)
        sequences: list[Sequence[tuple[int, Chunk]]] = [
            [(source, chunk) for part in parts for chunk in part.chunks]
            for source, parts in enumerate(measured)
        ]
        self._write_log([*sequences, *runs.values()], self._first_queues(plan, brokers))
        made, new = self.made, self.request.new_layout
        if not (self.job.work / _QUEUES_WORK).exists():
            # Before the rebuild, which takes the known topics from these tables.
            shutil.rmtree(new.path(CONFIG), ignore_errors=True)  # from a run that was killed here
            made.groups = write_tables(new.root, tables, plan, all_groups=not self.request.topics)
            self.job.write_note("groups.json", made.groups)
            write_empty_queues(new, plan)
        made.groups = self.job.note("groups.json", int) or 0
        self._make_queues()
        made.mapping = plan.moves
        write_atomically(Path(new.path(MAPPING)), msgspec.json.format(msgspec.json.encode(plan.moves)))
        return made

    # Reading

    def _measure(self) -> list[list[ChunkedPart]]:
        """Measure the parts of all logs; return the results by source."""
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
            self.progress("reading the logs", done, total)

        work = partial(measure, self.layouts, self.choice, str(self.job.work))
        for (source, _), found in zip(todo, run_watched(self.runner, work, todo, watch), strict=True):
            known[source] |= {part.start: part for part in found}
        measured = []
        for source, these in enumerate(parts):

            def again(part: LogPart, source: int = source) -> ChunkedPart:
                ((found,),) = self.runner.run(work, [(source, [part])])
                return found

            measured.append(in_line(these, known[source], again, self.layouts[source].root)[0])
        return measured

    def _measure_archives(self) -> ArchivedRuns:
        """Return the chunks of each queue of each archive, with the numbers of their sources."""
        known = {n: self.job.note(measured_note(n), MeasuredFile) for n in range(len(self.files))}
        todo = [(n, self.files[n]) for n, found in known.items() if found is None]

        def watch() -> None:
            done = sum((self.job.work / measured_note(n)).exists() for n in known)
            self.progress("reading files of archives", done, len(known))

        work = partial(measure_file, self.choice, str(self.job.work))
        for (n, _), measured in zip(todo, run_watched(self.runner, work, todo, watch), strict=True):
            known[n] = measured
        runs: ArchivedRuns = {}
        numbers = iter(range(len(self.files)))
        for archive in self.archives:
            files = []
            for n, file in zip(numbers, archive.files, strict=False):
                found = known[n]
                assert found is not None
                files.append((len(self.layouts) + n, file.topic, found))
            runs |= {(archive.address, *queue): run for queue, run in queue_runs(files).items()}
        return runs

    def _first_queues(self, plan: QueuePlan, brokers: list[tuple[str, str]]) -> list[dict[bytes, int]]:
        """Return the first queue ids: by topic for each store, by broker for each file of an archive."""
        stores = [
            {topic.encode(): n for topic, n in each.items()}
            for each in plan.first_queues[: len(self.layouts)]
        ]
        archived = dict(zip(brokers, plan.first_queues[len(self.layouts) :], strict=True))
        return stores + [
            {
                broker.encode(): firsts[file.topic]
                for (address, broker), firsts in archived.items()
                if address == archive.address and file.topic in firsts
            }
            for archive in self.archives
            for file in archive.files
        ]

    def _judge(self, measured: list[list[ChunkedPart]], runs: ArchivedRuns) -> None:
        made = self.made
        made.messages = sum(chunk.records for run in runs.values() for _, chunk in run)
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
                f"damaged in {len(made.damage)} places: {told}. Nothing was made. Repair the log with "
                "kerolox store repair, then start again in a new directory; or start there with "
                "--on-damage skip, which leaves out damaged messages and marks their offsets as lost.",
                path=made.damage[0].path,
                offset=made.damage[0].offset,
            )
        if not made.messages:
            of = f" of {', '.join(self.request.topics)}" if self.request.topics else ""
            raise KeroloxError(f"{' and '.join(made.sources)} have no message{of}: there is nothing to copy.")

    # Writing

    def _write_log(
        self, sequences: Sequence[Sequence[tuple[int, Chunk]]], first_queues: list[dict[bytes, int]]
    ) -> None:
        new = self.request.new_layout
        # Not 0: queues may begin at offsets above 0, as in a log whose first files were deleted.
        begin = new.log_file_bytes
        chunks = list(_by_time(sequences))
        shares, end = place_all(chunks, begin, new.log_file_bytes, self.request.part_bytes)
        self.made.log_begin, self.made.log_end = begin, end
        os.makedirs(new.log_paths[0], exist_ok=True)
        sync_directory(Path(new.root))
        todo = [share for share in shares if not (self.job.work / share_note(share.number)).exists()]
        sizes = {share_note(share.number): share.size for share in shares}
        total = sum(sizes.values())

        def watch() -> None:
            done = sum(size for name, size in sizes.items() if (self.job.work / name).exists())
            self.progress("writing the new log", done, total)

        sources: list[Layout | ArchiveFile] = [*self.layouts, *self.files]
        work = partial(write_share, sources, self.choice, first_queues, new.log_paths[0], str(self.job.work))
        run_watched(self.runner, work, todo, watch)
        sync_directory(Path(new.log_paths[0]))

    def _make_queues(self) -> None:
        new = self.request.new_layout
        request = queues_and_index.RebuildRequest(
            new,
            str(self.job.work / _QUEUES_WORK),
            like=self._likeness(),
            part_bytes=self.request.part_bytes,
        )
        rebuilt = queues_and_index.rebuild(self.runner, request, progress=self.progress)
        made = self.made
        made.queues, made.keys, made.holes = rebuilt.queues, rebuilt.keys, rebuilt.holes

    def _likeness(self) -> str:
        """Return the index layout of the broker that wrote the first store."""
        if not self.layouts:
            return queues_and_index.OURS
        return queues_and_index.likeness(queues_and_index.RebuildRequest(self.layouts[0], ""))


def _found(parts: list[ChunkedPart]) -> dict[tuple[str, int], tuple[int, int]]:
    """Return the number of messages of each queue, and the last queue offset."""
    found: dict[tuple[str, int], tuple[int, int]] = {}
    for part in parts:
        for span in part.queues:
            count, _ = found.get((span.topic, span.queue_id), (0, -1))
            found[span.topic, span.queue_id] = count + span.count, span.last
    return found


def _by_time(sequences: Sequence[Sequence[tuple[int, Chunk]]]) -> Iterator[tuple[int, Chunk]]:
    """Yield all chunks ordered by the time of their first message. Each sequence keeps its own order."""
    keyed: list[tuple[int, int, int, int, Chunk]] = []
    for number, sequence in enumerate(sequences):
        latest = 0
        for place, (source, chunk) in enumerate(sequence):
            latest = max(latest, chunk.first_ms)
            keyed.append((latest, number, place, source, chunk))
    keyed.sort(key=lambda each: each[:3])
    for _, _, _, source, chunk in keyed:
        yield source, chunk
