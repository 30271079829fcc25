"""Verification of a store: every record, queue entry and key is compared with the others; and every table.

One pass over the log. Memory use is small whatever the size of the store: see the two checks.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial

import msgspec

from kerolox.clock import SYSTEM_CLOCK, Clock
from kerolox.errors import ProtocolError
from kerolox.protocol import json_dialect
from kerolox.protocol.record_scan import CHECK_BODY, STORE_TIMESTAMP
from kerolox.store.disk import progress_notes
from kerolox.store.disk import sums as sums_file
from kerolox.store.disk.checkpoint import Checkpoint
from kerolox.store.disk.cut_note import Cut, CutNoteFile
from kerolox.store.disk.lock import is_signed
from kerolox.store.disk.log_identity import LogIdentityFile
from kerolox.store.disk.progress_notes import UNKNOWN, ProgressNotes, ProgressNotesFile, boot_identity
from kerolox.store.disk.segment import OpenFiles
from kerolox.store.disk.segments import Segments
from kerolox.store.disk.sums import Sums, SumsFile
from kerolox.store.errors import DiskError, StoreError
from kerolox.store.offline.entry_check import check_entry_index
from kerolox.store.offline.index_check import IndexCheck
from kerolox.store.offline.layout import (
    ASIDE,
    BATCH_QUEUES,
    QUEUES,
    UNFINISHED,
    Finding,
    Layout,
    OnlyReading,
    open_log_run,
    open_run,
)
from kerolox.store.offline.queue_check import QueueCheck
from kerolox.store.offline.repair_note import refuse_unfinished
from kerolox.store.offline.tables import check_tables
from kerolox.store.offline.walk import Walk
from kerolox.store.queue.entry import SIMPLE
from kerolox.store.recovery import Circumstances, Recovered, copy_anew, refuse_early_end
from kerolox.store.timer.timer_store import TimerStore
from kerolox.store.verdict import doubtful_from, judge_files, noted_end, refuse_lost_log

FINDINGS_MAX = 1000
_FUTURE_MS = 24 * 3600 * 1000


class Report(msgspec.Struct):
    """Result of a verification."""

    root: str
    log_min: int = 0
    log_end: int = 0
    records: int = 0
    bytes_read: int = 0
    queues: int = 0
    queue_entries: int = 0
    index_files: int = 0
    index_entries: int = 0
    messages_with_keys: int = 0
    stop: str = ""  # reason for the end of the log
    crashed: bool = False
    seconds: float = 0.0
    findings: list[Finding] = []
    notes: list[Finding] = []
    not_shown: int = 0

    @property
    def clean(self) -> bool:
        return not self.findings


class _Findings(list[Finding]):
    """List with a limited length."""

    def __init__(self) -> None:
        super().__init__()
        self.dropped = 0

    def append(self, finding: Finding) -> None:
        if len(self) < FINDINGS_MAX:
            super().append(finding)
        else:
            self.dropped += 1


def verify(
    layout: Layout,
    *,
    live: bool = False,
    queues: bool = True,
    index: bool = True,
    progress: Callable[[int, int], None] | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> Report:
    """Verify everything. ``progress`` gets the bytes done and the total.

    ``live``: the store is in use, so its newest part may not be on disk yet.
    """
    began_s = time.perf_counter()
    files = OnlyReading()
    found = _Findings()
    report = Report(layout.root)
    crashed = report.crashed = files.exists(layout.path("abort")) or live
    marks = ProgressNotesFile(files, layout.root).load()
    sums = SumsFile(files, layout.root).load()
    segments = open_log_run(layout, files, found)
    log_min = report.log_min = max(0, segments.min_offset)
    log_end = segments.max_offset
    if crashed and (cut := _cut_under_way(layout, files, found)) is not None:
        log_end = min(log_end, cut.end)
        queues = index = False  # the next start updates them
    known = Circumstances(
        crashed=crashed,
        power_lost=not marks.boot or marks.boot != boot_identity(),
        marks=marks,
        queues_end=UNKNOWN,
    )
    _judge(layout, files, segments, log_end, marks, sums, found, crashed=crashed)
    queue_check = QueueCheck(layout, files, log_min, found) if queues else None
    index_check = IndexCheck(layout, files, log_min, found, clean=not crashed) if index else None
    checkpoint = Checkpoint(files, layout.path("checkpoint"))
    checkpoint.load()
    never_flushed = partial(known.never_flushed, checkpoint=checkpoint)
    _walk(layout, segments, log_end, report, found, queue_check, index_check, progress, never_flushed)
    if log_end == segments.max_offset:
        _refuse(found, lambda: refuse_early_end(
            segments, Recovered(crashed, log_min, report.log_end, stop=report.stop), noted_end(marks, sums),
            layout.root,
        ))  # fmt: skip
    if queue_check is not None:
        queue_check.finish(
            report.log_end, crashed=crashed, dispatched=marks.dispatched, topics=_topics(layout, files)
        )
        report.queues, report.queue_entries = queue_check.count, queue_check.entries
    if index_check is not None:
        index_check.finish(report.log_end, crashed=crashed, dispatched=marks.dispatched)
        report.index_files, report.index_entries = index_check.files, index_check.entries
        report.messages_with_keys = index_check.messages
    if layout.entry_paths:
        check_entry_index(layout, files, segments, report.log_end, found, crashed=crashed)
    ends = (lambda *_: None) if queue_check is None else queue_check.end
    _refuse(found, lambda: check_tables(layout, files, ends, found))
    timer = TimerStore(files, layout.root, log_file_bytes=layout.timer_log_file_bytes)
    _refuse(found, timer.check_files)
    _check_small_files(layout, files, report, found, clock)
    report.findings = [finding for finding in found if not finding.note]
    report.notes = [finding for finding in found if finding.note]
    report.not_shown = found.dropped
    report.seconds = time.perf_counter() - began_s
    return report


def _judge(
    layout: Layout,
    files: OnlyReading,
    segments: Segments,
    log_end: int,
    marks: ProgressNotes,
    sums: Sums | None,
    found: list[Finding],
    *,
    crashed: bool,
) -> None:
    """Report reasons for which the next start would refuse the store before it reads the log, using the same
    code."""
    _refuse(found, lambda: refuse_unfinished(layout.root, files))
    _refuse(
        found,
        lambda: refuse_lost_log(segments, marks, sums, *_queues_end(layout, files), layout.root),
    )
    try:
        identity = LogIdentityFile(files, layout.root).load()
        if identity is not None:
            identity = identity.before(log_end) if is_signed(files, layout.root) else None
    except StoreError as error:
        found.append(_finding(error))
        return
    doubtful = doubtful_from(marks, boot_identity(), crashed=crashed)
    found.extend(_finding(refusal) for refusal in judge_files(segments, identity, layout.root, doubtful))


def _refuse(found: list[Finding], judge: Callable[[], None]) -> None:
    try:
        judge()
    except StoreError as error:
        found.append(_finding(error))


def _finding(error: StoreError) -> Finding:
    return Finding(
        "refused",
        error.path,
        str(error),
        "follow the step in this message: no broker starts here",
        error.offset,
    )


def _queues_end(layout: Layout, files: OnlyReading) -> tuple[int, int]:
    """Return the number of consume queues, and a log offset at which a message of one of them ends."""
    count, end = 0, UNKNOWN
    root = layout.path(QUEUES)
    for topic in files.list_dir(root):
        for name in files.list_dir(os.path.join(root, topic)):
            count += 1
            if end == UNKNOWN:
                path = os.path.join(root, topic, name)
                queue = open_run(files, OpenFiles(files), [path], layout.queue_file_bytes, [])
                for segment in queue.all[-1:]:
                    physical, size, _ = SIMPLE.at(queue.read(segment.start, SIMPLE.size))
                    end = physical + size if size > 0 else UNKNOWN
                queue.close()
    return count, end


def _cut_under_way(layout: Layout, files: OnlyReading, found: list[Finding]) -> Cut | None:
    """Return the cut during which the process died: data after it does not count any more."""
    note = CutNoteFile(files, layout.root)
    try:
        cut = note.load()
    except StoreError as error:
        found.append(Finding("cut", note.path, str(error)))
        return None
    if cut is not None:
        what = f"the log was being truncated at {cut.end}; queues and index were not checked"
        found.append(Finding("cut", note.path, what, "the next start finishes it", cut.end, note=True))
    return cut


def _walk(
    layout: Layout,
    segments: Segments,
    log_end: int,
    report: Report,
    found: list[Finding],
    queue_check: QueueCheck | None,
    index_check: IndexCheck | None,
    progress: Callable[[int, int], None] | None,
    never_flushed: Callable[[int, int], bool],
) -> None:
    walk = Walk(segments, report.log_min, log_end, check=CHECK_BODY)
    last_ms = 0
    total = log_end - report.log_min
    while True:
        for records in walk:
            report.records += len(records)
            if queue_check is not None:
                queue_check.check(records)
            if index_check is not None:
                index_check.check(records)
            earliest_ms = min(record[STORE_TIMESTAMP] for record in records)
            if earliest_ms < last_ms:
                what = f"store times go back by {last_ms - earliest_ms} ms before {walk.position}"
                step = "none: queries by time may miss some messages"
                found.append(Finding("time", layout.root, what, step, walk.position, note=True))
            last_ms = max(last_ms, records[-1][STORE_TIMESTAMP])
            if progress is not None:
                progress(walk.position - report.log_min, total)
        if walk.damage is None:
            break
        damage = walk.damage
        where = f"byte {damage.in_file}, log offset {damage.offset}"
        if never_flushed(damage.offset, damage.valid_ms):
            what = f"power was lost before the data after {where} was flushed: {damage.what}"
            found.append(
                Finding(
                    "unflushed end", damage.path, what, "the next start cuts it off", damage.offset, note=True
                )
            )
            break
        what = f"damaged at {where}: {damage.what}; valid records follow from offset {damage.valid_from}"
        step = (
            f"kerolox store repair {layout.root} --skip {damage.offset} (keep the later records) or "
            f"--cut {damage.offset} (drop all records from there on)"
        )
        if damage.offset >= segments.entries_from:
            step = copy_anew(layout.root)
        found.append(Finding("damaged log", damage.path, what, step, damage.offset))
        walk.resume()
    report.log_end, report.stop = walk.position, walk.stop
    report.bytes_read = walk.position - report.log_min
    if not report.crashed:
        _check_end(segments, walk, found)


def _check_end(segments: Segments, walk: Walk, found: list[Finding]) -> None:
    """Check that only zeros follow the last record after a clean stop."""
    segment = segments.segment_at(walk.position)
    if segment is None:
        return
    for low, high in segments.written_ranges(segment, walk.position):
        while low < high:
            data = segments.read(low, min(1 << 20, high - low))
            if data.strip(b"\0"):
                at = low + len(data) - len(data.lstrip(b"\0"))
                what = f"the log ends at {walk.position}, but bytes follow at {at}: {walk.stop}"
                step = "the next start removes them; they contain no whole record"
                found.append(Finding("torn end", segment.path, what, step, walk.position, note=True))
                return
            low += len(data)


def _topics(layout: Layout, files: OnlyReading) -> set[str] | None:
    """Return the configured topics; None if they are unknown."""
    try:
        table = json_dialect.loads(files.read(layout.path("config/topics.json")))
        return set(table["topicConfigTable"])
    except (DiskError, ProtocolError, KeyError, TypeError):
        return None  # an unreadable table is reported with the tables


def _check_small_files(
    layout: Layout, files: OnlyReading, report: Report, found: list[Finding], clock: Clock
) -> None:
    checkpoint = Checkpoint(files, layout.path("checkpoint"))
    checkpoint.load()
    for name in ("commit_log_ms", "queues_ms", "index_ms"):
        if getattr(checkpoint, name) > clock.wall_ms() + _FUTURE_MS:
            what = f"{name} is {getattr(checkpoint, name)}, more than a day in the future"
            step = "remove the file: the next start reads the whole log"
            found.append(Finding("checkpoint", checkpoint.path, what, step))
    for note in (progress_notes.NAME, sums_file.NAME):
        if files.is_dir(path := layout.path(note)):
            what, step = (
                "a directory in place of a file: no broker starts here",
                "remove it: it is made again",
            )
            found.append(Finding("refused", path, what, step))
    for name in files.list_dir(layout.root):
        path = layout.path(name)
        if ASIDE in name or name.startswith("damaged-"):
            step = "remove it when you no longer need it"
            found.append(Finding("leftover", path, "kept by an earlier repair", step, note=True))
        elif name.endswith(UNFINISHED):
            step = "remove it, or let the next repair remove it"
            found.append(Finding("leftover", path, "left by an interrupted repair", step, note=True))
        elif name.endswith(".tmp"):
            found.append(Finding("leftover", path, "left by an interrupted write", "remove it", note=True))
    if files.list_dir(layout.path(BATCH_QUEUES)):
        what = "kerolox neither checks nor uses batch consume queues"
        found.append(Finding("not supported", layout.path(BATCH_QUEUES), what, note=True))
    if report.crashed and files.exists(layout.path("abort")):
        what = "the store is in use, or was not stopped cleanly"
        found.append(Finding("abort", layout.path("abort"), what, "the next start recovers", note=True))
