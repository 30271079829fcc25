"""Rebuild of the queues and key index of a store from its commit log, by the tasks of a job.

First step: each task reads a part of the log once and writes a piece (``extract.py``). The driver compares
begins and ends of pieces, and counts keys. Second step: tasks combine pieces into queues and index files
(``fill.py``). The result equals that of the broker's own rebuild (``store/rebuild.py``) byte for byte; for a
log of Apache's broker the index equals the one that broker would have made.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec

from kerolox.clock import SYSTEM_CLOCK, Clock
from kerolox.errors import KeroloxError, OptionError
from kerolox.pipeline.rebuild.extract import LogPart, extract
from kerolox.pipeline.rebuild.fill import (
    FilledQueues,
    IndexShare,
    QueueShare,
    fill_index,
    fill_queues,
    plan_index,
)
from kerolox.pipeline.rebuild.job import Job, OnStep
from kerolox.pipeline.rebuild.parts import in_line, parts_of, shares_of
from kerolox.pipeline.rebuild.pieces import DamageNote, Piece, key_at, read_piece
from kerolox.pipeline.runner import Runner, run_watched
from kerolox.store.disk.checkpoint import Checkpoint
from kerolox.store.disk.files import Files
from kerolox.store.disk.lock import StoreLock
from kerolox.store.disk.progress_notes import NAME as MARKS_NAME
from kerolox.store.errors import FileAccessDenied, ReadOnlyDisk
from kerolox.store.offline.layout import INDEX, QUEUES, UNFINISHED, Layout, OnlyReading
from kerolox.store.offline.mend import open_log
from kerolox.store.rebuild import DamagedLog, Rebuilt, note, swap

PART_BYTES: Final = 256 << 20
FAIL, SKIP, STOP = "fail", "skip", "stop"  # actions for damage
# Layout of the index. kerolox puts all keys of a message into one file; Apache's broker fills a file to its
# last entry, and since 5.4 also indexes tags.
OURS, APACHE, OLD_APACHE = "kerolox", "apache", "apache-5.3"
_SHARES_MAX = 64
_DAMAGE_TOLD = 5


class RebuildRequest(msgspec.Struct):
    """Request of a rebuild."""

    layout: Layout
    to: str
    topics: tuple[str, ...] = ()  # only the queues of these topics, without an index
    low: int | None = None  # begin of the part of the log; None: all
    high: int | None = None
    on_damage: str = FAIL
    like: str | None = None  # index layout: OURS, APACHE or OLD_APACHE; None: as in the store
    index: bool = True
    part_bytes: int = PART_BYTES


class RebuildResult(msgspec.Struct):
    """Result of a rebuild."""

    store: str
    to: str
    log_begin: int
    log_end: int
    records: int = 0
    queues: int = 0
    entries: int = 0
    queue_files: int = 0
    holes: int = 0  # queue offsets whose messages are lost
    kept_queues: int = 0  # queues without messages in the log, kept for their end offset
    restarted: int = 0  # queues whose offsets restarted, because the topic was deleted
    left_out: int = 0  # messages of deleted topics
    keys: int = 0
    index_files: list[str] = []
    index_full_ms: int = 0  # end of the last full file
    last_ms: int = 0
    damage: list[DamageNote] = []
    stop: str = ""  # description of the bytes at the end of the log
    parts: int = 0
    read_again: int = 0  # parts that were read again because they began elsewhere
    whole: bool = True  # all topics and the whole log, so it can replace the old files
    in_place: bool = False
    put_aside: list[str] = []
    seconds: float = 0.0
    runner: str = ""  # name of the runner of the tasks


def check_request(request: RebuildRequest) -> Job:
    """Raise an error for an impossible request, before Spark starts. Returns the job."""
    layout = request.layout
    segments = open_log(layout)
    assert segments.first is not None
    low, high = request.low, request.high
    for option, value in (("--from", low), ("--to-offset", high)):
        if value is not None and not segments.min_offset <= value <= segments.max_offset:
            raise OptionError(
                option,
                value,
                f"an offset of the log, which has {segments.min_offset} to {segments.max_offset}",
            )
    if low is not None and high is not None and low >= high:
        raise OptionError("--to-offset", high, f"an offset after --from, which is {low}")
    if request.on_damage not in (FAIL, SKIP, STOP):
        raise OptionError("--on-damage", request.on_damage, f"{FAIL}, {SKIP} or {STOP}")
    if request.like not in (None, OURS, APACHE, OLD_APACHE):
        raise OptionError("--like", request.like, f"{OURS}, {APACHE} or {OLD_APACHE}")
    check_known(layout, request.topics)
    segments.close()
    job = Job(
        request.to,
        {
            "form": "kerolox rebuild 1",
            "store": layout.root,
            "log": log_state(layout),
            "topics": sorted(request.topics),
            "from": low,
            "to": high,
            "index": request.index,
            "like": likeness(request),
            "sizes": [layout.queue_file_bytes, layout.index_slots, layout.index_entries],
            "part": request.part_bytes,
        },
    )
    job.check()
    return job


def log_state(layout: Layout) -> list[list[object]]:
    """Return the files of a log with size and time, to detect changes."""
    segments = open_log(layout)
    states = [(os.path.basename(each.path), os.stat(each.path)) for each in segments.all]
    segments.close()
    return [[name, state.st_size, state.st_mtime_ns] for name, state in states]


def check_known(layout: Layout, topics: Sequence[str]) -> None:
    """Raise an error for a topic that the store does not have."""
    if not topics or layout.entry_paths:
        return
    from kerolox.pipeline.audit.plan import check_topics, known_topics, plan_stores

    stores = plan_stores([layout.root])
    if known_topics(stores):  # without queues and tables, only the log has the topics
        check_topics(stores, topics)


def likeness(request: RebuildRequest) -> str:
    """Return the layout of the index files.

    Only kerolox writes notes; Apache's broker has a directory for RocksDB since its index includes tags.
    """
    if request.like is not None:
        return request.like
    files = OnlyReading()
    if files.exists(request.layout.path(MARKS_NAME)):
        return OURS
    return APACHE if files.is_dir(request.layout.path("rocksdbstore")) else OLD_APACHE


def rebuild(
    runner: Runner,
    request: RebuildRequest,
    *,
    progress: OnStep | None = None,
) -> RebuildResult:
    """Make queues and index in ``request.to``, or continue an earlier run."""
    began_s = time.perf_counter()
    job = check_request(request)
    with job.held():
        done = job.finished(RebuildResult)
        if done is not None:
            return done
        made = _Rebuild(runner, job, request, progress or (lambda what, done, total: None)).run()
        made.seconds = time.perf_counter() - began_s
        job.finish(made)
    return made


class _Rebuild:
    def __init__(self, runner: Runner, job: Job, request: RebuildRequest, progress: OnStep) -> None:
        self.runner = runner
        self.job = job
        self.request = request
        self.layout = request.layout
        self.progress = progress
        self.tags_too = likeness(request) == APACHE
        segments = open_log(self.layout)
        self.low = segments.min_offset if request.low is None else request.low
        self.high = segments.max_offset if request.high is None else request.high
        self.starts = [each.start for each in segments.all]
        segments.close()
        self.made = RebuildResult(
            self.layout.root,
            str(job.to),
            self.low,
            self.low,
            runner=runner.name,
            whole=not request.topics and request.low is None and request.high is None and request.index,
        )

    def run(self) -> RebuildResult:
        pieces = self._read_log()
        made = self.made
        made.parts = len(pieces)
        made.records = sum(piece.records for piece in pieces)
        made.left_out = sum(piece.left_out for piece in pieces)
        made.keys = sum(piece.keys for piece in pieces)
        made.last_ms = max((piece.last_ms for piece in pieces), default=0)
        made.log_end = max((piece.end for piece in pieces), default=self.low)
        self._fill(pieces)
        if self.request.topics and not made.queues:
            raise KeroloxError(
                f"the log of {self.layout.root} has no message of {', '.join(self.request.topics)}. Remove "
                f"{self.job.to} and choose other topics with --only."
            )
        self._write_checkpoint()
        return made

    # Reading

    def _read_log(self) -> list[Piece]:
        parts = parts_of(
            self.starts, self.layout.log_file_bytes, self.low, self.high, self.request.part_bytes
        )
        known = {part.start: self._head(part.start) for part in parts}
        total = sum(part.end - part.start for part in parts)
        sizes = {part.start: part.end - part.start for part in parts}

        def watch() -> None:
            done = sum(size for start, size in sizes.items() if self._done(start))
            self.progress("reading the log", done, total)

        todo = [part for part in parts if known[part.start] is None]
        work = partial(_extract_some, self.layout, str(self.job.work), self.tags_too)
        for heads in run_watched(self.runner, work, shares_of(todo, self.request.part_bytes), watch):
            known |= {head.start: head for head in heads}

        def again(part: LogPart) -> Piece:
            ((piece,),) = self.runner.run(work, [[part]])
            return piece

        found = {start: piece for start, piece in known.items() if piece is not None}
        pieces, self.made.read_again = in_line(parts, found, again, self.layout.root)
        return self._judge(parts, pieces)

    def _judge(self, parts: list[LogPart], pieces: list[Piece]) -> list[Piece]:
        """Apply the requested action if the log is damaged."""
        damage = [each for piece in pieces for each in piece.damage]
        self.made.damage = damage
        self.made.stop = pieces[-1].stop if pieces else ""
        if not damage or self.request.on_damage == SKIP:
            return pieces
        first = damage[0]
        if self.request.on_damage == FAIL:
            told = "; ".join(
                f"{each.path} at byte {each.in_file} (log offset {each.offset}): {each.what}, valid records "
                f"follow "
                f"from {each.valid_from}"
                for each in damage[:_DAMAGE_TOLD]
            )
            more = f"; and {len(damage) - _DAMAGE_TOLD} more" if len(damage) > _DAMAGE_TOLD else ""
            raise DamagedLog(
                f"the log is damaged in {len(damage)} place{'s' if len(damage) > 1 else ''}: {told}{more}. "
                f"Nothing was "
                f"made. Repair it with kerolox store repair {self.layout.root} --skip {first.offset} (or "
                f"--cut), then "
                "rebuild in a new directory; or repeat the command with --on-damage skip (damaged messages "
                "are left out, their offsets are marked as lost) or stop (the queues end there).",
                path=first.path,
                offset=first.offset,
            )
        self.made.stop = first.what
        kept = [piece for piece in pieces if piece.end <= first.offset and not piece.damage]
        (cut,) = (piece for piece in pieces if first in piece.damage)
        part = next(part for part in parts if part.start == cut.start)
        # Under another name: the complete piece stays for a run with another --on-damage.
        shorter = LogPart(part.start + 1, first.offset, cut.first)
        work = partial(_extract_some, self.layout, str(self.job.work), self.tags_too)
        ((last,),) = self.runner.run(work, [[shorter]])
        return [*kept, last]

    def _done(self, start: int) -> bool:
        return (self.job.work / f"{start:020d}.piece").exists()

    def _head(self, start: int) -> Piece | None:
        piece = read_piece(self.job.work, start)
        if piece is not None:
            piece.queues = []
        return piece

    # Putting together

    def _fill(self, pieces: list[Piece]) -> None:
        made = self.made
        count = self.job.note("shares.json", int)
        if count is None:
            count = max(2, min(_SHARES_MAX, 2 * self.runner.cores))
            self.job.write_note("shares.json", count)
        starts = [piece.start for piece in pieces]
        queues = [
            QueueShare(number, count, self.request.topics, self.low, made.log_end) for number in range(count)
        ]
        files: list[IndexShare] = []
        if self.request.index and not self.request.topics:
            counts = [(piece.start, piece.keys) for piece in pieces]
            like_apache = likeness(self.request) != OURS
            files = plan_index(self.job.work, self.layout, counts, like_apache=like_apache)
        tag = f"{self.request.on_damage}-{made.log_end}"
        todo: list[QueueShare | IndexShare] = [
            share for share in queues if self.job.note(_queue_note(share, tag), FilledQueues) is None
        ]
        # The index first: its tasks are the longest.
        todo = [*(each for each in files if self.job.note(_index_note(each, tag), str) is None), *todo]
        total = len(queues) + len(files)

        def watch() -> None:
            left = sum(not (self.job.work / _note_name(share, tag)).exists() for share in todo)
            self.progress("building queues and index", total - left, total)

        work = partial(_fill_one, self.layout, str(self.job.work), str(self.job.to), starts, tag)
        run_watched(self.runner, work, todo, watch)
        for share in queues:
            filled = self.job.note(_queue_note(share, tag), FilledQueues)
            assert filled is not None
            made.queues += filled.queues
            made.entries += filled.entries
            made.holes += filled.holes
            made.restarted += filled.restarted
            made.kept_queues += filled.kept
            made.queue_files += filled.files
        made.index_files = [each.name for each in files]
        full = [each.parts[-1] for each in files if each.full]
        if full:
            made.index_full_ms = key_at(self.job.work, full[-1].start, full[-1].high - 1)[2]
        (self.job.to / QUEUES).mkdir(exist_ok=True)
        if self.request.index and not self.request.topics:
            (self.job.to / INDEX).mkdir(exist_ok=True)

    def _write_checkpoint(self) -> None:
        """Write a checkpoint up to the end of the log, because all files made here are complete on disk."""
        if not self.made.whole:
            return
        path = self.job.to / "checkpoint"
        path.unlink(missing_ok=True)
        _save_checkpoint(self.layout, str(path), self.made.last_ms)


def _save_checkpoint(layout: Layout, path: str, last_ms: int) -> None:
    old = Checkpoint(Files(), layout.path("checkpoint"))
    old.load()
    new = Checkpoint(Files(), path)
    new.commit_log_ms = new.queues_ms = new.index_ms = last_ms
    new.master_flushed_offset, new.confirmed_offset = old.master_flushed_offset, old.confirmed_offset
    new.save()
    new.close()


def _extract_some(layout: Layout, work: str, tags_too: bool, parts: Sequence[LogPart]) -> list[Piece]:
    heads = []
    for part in parts:
        head = extract(layout, work, part, tags_too=tags_too)
        head.queues = []  # they stay in the file, because a large store has many
        heads.append(head)
    return heads


def _queue_note(share: QueueShare, tag: str) -> str:
    return f"queues-{share.number}-{tag}.done"


def _index_note(share: IndexShare, tag: str) -> str:
    return f"index-{share.name}-{tag}.done"


def _note_name(share: QueueShare | IndexShare, tag: str) -> str:
    return _queue_note(share, tag) if isinstance(share, QueueShare) else _index_note(share, tag)


def _fill_one(
    layout: Layout, work: str, to: str, starts: Sequence[int], tag: str, share: QueueShare | IndexShare
) -> None:
    from kerolox.atomic_file import write_atomically

    made: Any
    if isinstance(share, QueueShare):
        made = fill_queues(layout, work, os.path.join(to, QUEUES), starts, share)
    else:
        made = fill_index(layout, work, os.path.join(to, INDEX), share).name
    write_atomically(Path(work) / _note_name(share, tag), msgspec.json.encode(made))


# --- into place --------------------------------------------------------------------------------------


def check_place(layout: Layout, to: str) -> None:
    """Raise an error if the result cannot be renamed into the store."""
    parent = next(path for path in (Path(to), *Path(os.path.abspath(to)).parents) if path.exists())
    if os.stat(parent).st_dev != os.stat(layout.root).st_dev:
        raise OptionError(
            "--to",
            to,
            f"a directory on the disk of {layout.root}, with --in-place: the result is renamed, not copied",
        )


@contextmanager
def not_in_use(layout: Layout) -> Iterator[None]:
    """Hold the lock of the store, if it has one, so that no broker writes meanwhile."""
    lock = StoreLock(Files(), layout.root) if OnlyReading().exists(layout.path("lock")) else None
    if lock is not None:
        try:
            lock.take()
        except (FileAccessDenied, ReadOnlyDisk):
            lock = None  # read-only access cannot lock, but reading is allowed
    try:
        yield
    finally:
        if lock is not None:
            lock.release()


def finished(request: RebuildRequest) -> RebuildResult | None:
    """Return the result if the same command was finished before."""
    return check_request(request).finished(RebuildResult)


def put_in_place(request: RebuildRequest, made: RebuildResult, clock: Clock = SYSTEM_CLOCK) -> RebuildResult:
    """Replace the queues and index of the store by the result. The old files are kept in another folder."""
    layout = request.layout
    if not made.whole:
        raise KeroloxError(
            f"{made.to} has only some topics or a part of the log, so it cannot replace all queues. "
            "Rebuild without --only, --from and --to-offset."
        )
    if made.in_place:
        return made
    files = Files()
    with StoreLock(files, layout.root):
        # An earlier run that was killed here may have moved or swapped some of them already.
        left: dict[str, bool] = {}
        for name in (QUEUES, INDEX):
            built, fresh = os.path.join(made.to, name), layout.path(name) + UNFINISHED
            if files.exists(built):
                files.remove_tree(fresh)
                files.rename(built, fresh)
            left[name] = files.exists(fresh)
        told = Rebuilt(
            log_end=made.log_end,
            records=made.records,
            queues=made.queues,
            index_files=len(made.index_files),
        )
        swap(layout, files, clock, told, queues=left[QUEUES], index=left[INDEX])
        note(layout, files, told, made.index_full_ms, made.queue_files, queues=True, index=True)
        _save_checkpoint(layout, layout.path("checkpoint"), made.last_ms)
    made.in_place, made.put_aside = True, told.put_aside
    check_request(request).finish(made)
    return made


def how_to_put_in_place(made: RebuildResult) -> list[str]:
    """Return the shell commands that put the result in place, for a stopped broker."""
    old = f"{made.store}/before-rebuild"
    return [
        f"mkdir {old}",
        f"mv {made.store}/{QUEUES} {made.store}/{INDEX} {made.store}/checkpoint {old}/",
        f"mv {made.to}/{QUEUES} {made.to}/{INDEX} {made.to}/checkpoint {made.store}/",
        f"rm -f {made.store}/kerolox.sums {made.store}/kerolox.marks",
    ]
