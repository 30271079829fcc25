"""Rebuild consume queues and key index from the commit log.

They are built in new directories beside the old ones, flushed, and swapped in at the end. After an
interruption the store has the old ones, the new ones, or none; the next start rebuilds missing ones.

Lost messages leave holes in their queues. A hole is filled with entries that point at the next message of the
queue, marked as such: see FORMAT.md, "Lost messages".
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import msgspec

from kerolox.clock import SYSTEM_CLOCK, Clock
from kerolox.errors import ProtocolError
from kerolox.protocol import json_dialect
from kerolox.protocol.record_scan import PHYSICAL_OFFSET, STORE_TIMESTAMP, SYS_FLAG, TOPIC, Entry
from kerolox.protocol.reserved import SCHEDULE_TOPIC
from kerolox.store.disk.checkpoint import Checkpoint
from kerolox.store.disk.files import Files
from kerolox.store.disk.progress_notes import UNKNOWN, ProgressNotes, ProgressNotesFile, boot_identity
from kerolox.store.disk.segment import OpenFiles
from kerolox.store.disk.segments import Segments
from kerolox.store.dispatch.keys import KeyFiller
from kerolox.store.dispatch.queues import QueueFiller, add_holes, begins_anew
from kerolox.store.errors import FileMissing, StoreError
from kerolox.store.index.key_index import KeyIndex
from kerolox.store.offline.layout import (
    BATCH_QUEUES,
    INDEX,
    QUEUES,
    UNFINISHED,
    Layout,
    OnlyReading,
    open_run,
)
from kerolox.store.offline.mend import aside_name, forget_sums, is_filler, open_log
from kerolox.store.offline.walk import Walk
from kerolox.store.queue.consume_queue import ConsumeQueue
from kerolox.store.queue.consume_queues import ConsumeQueues, flush
from kerolox.store.queue.deleted_topics import DeletedTopics
from kerolox.store.queue.entry import BLANK_SIZE, HOLE_TAGS, SIMPLE

RECORD_BYTES_MIN = 91
_WRITE_EVERY = 8  # batches of eight megabytes


class DamagedLog(StoreError):
    """Log that cannot be read to its end. Nothing was rebuilt."""


class Rebuilt(msgspec.Struct):
    """Result of a rebuild."""

    log_end: int = 0
    records: int = 0
    queues: int = 0
    holes: int = 0  # queue offsets of lost messages
    kept_queues: int = 0  # queues without messages in the log, kept for the offset they have reached
    restarted: int = 0  # queues whose offsets begin again at 0, because the topic had been deleted
    left_out: int = 0  # messages of deleted topics
    index_files: int = 0
    put_aside: list[str] = []
    seconds: float = 0.0


class MendingQueue(ConsumeQueue):
    """Queue under rebuild that begins anew where its topic was created again."""

    __slots__ = ("of",)

    of: MendingQueues

    def append(self, physical: int, size: int, tags_code: int, queue_offset: int) -> bool:
        if begins_anew(self, queue_offset, physical):
            self.of.begin_anew(self)
        return super().append(physical, size, tags_code, queue_offset)


class MendingQueues(ConsumeQueues):
    """Queues under rebuild."""

    def __init__(self, files: Files, directory: str, layout: Layout, log_min: int) -> None:
        self.entries_per_file = layout.queue_file_bytes // SIMPLE.size
        super().__init__(files, directory, file_bytes=layout.queue_file_bytes)
        self.log_min = log_min
        self.holes = 0
        self.restarted = 0

    def begin_anew(self, queue: ConsumeQueue) -> None:
        self.restarted += 1
        queue.delete()

    def _make(self, topic: str, queue_id: int) -> ConsumeQueue:
        plain = super()._make(topic, queue_id)
        queue = MendingQueue(topic, queue_id, plain._segments, self._waiting)
        queue.of = self
        self.by_topic[topic][queue_id] = queue
        return queue


class MendingFiller(QueueFiller):
    """Filler of queues and of the holes in them."""

    def __init__(self, queues: MendingQueues, layout: Layout) -> None:
        super().__init__(queues, layout.delay_levels, multi_dispatch=layout.light_queues)
        self._mending = queues

    def _fill_gap(self, queue: ConsumeQueue, physical: int, size: int, code: int, queue_offset: int) -> bool:
        of = self._mending
        if queue.max_physical < 0:
            if of.log_min:
                return True  # the earlier messages were deleted with their log files
            # The log exists from offset 0, so the earlier messages are lost. RocketMQ would leave blank
            # entries, and later lose messages over them.
            queue._set_end(queue_offset - queue_offset % of.entries_per_file)
            queue.min_offset = queue.next_offset
        missing = queue_offset - queue.next_offset
        if not missing:
            return True
        if missing * RECORD_BYTES_MIN > physical - of.log_min:
            raise DamagedLog(
                f"the message at log offset {physical} has queue offset {queue_offset} in queue "
                f"{queue.queue_id} of topic {queue.topic!r}, which ends at {queue.next_offset}: the log has "
                "no room for that many lost messages. Inspect the log file: kerolox store inspect.",
                offset=physical,
            )
        add_holes(queue, physical, size, code, missing)
        of.holes += missing
        return True


def rebuild(
    layout: Layout,
    *,
    queues: bool = True,
    index: bool = True,
    progress: Callable[[int, int], None] | None = None,
    files: Files | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> Rebuilt:
    """Rebuild and swap in the result. The caller holds the lock of the store. Raise with nothing changed."""
    began_s = time.perf_counter()
    files = files or Files()
    made = Rebuilt()
    segments = open_log(layout)
    log_min = segments.min_offset
    new_queues_path = layout.path(QUEUES) + UNFINISHED
    new_index_path = layout.path(INDEX) + UNFINISHED
    for path in (new_queues_path, new_index_path):
        files.remove_tree(path)
    new_queues = MendingQueues(files, new_queues_path, layout, log_min)
    new_index = KeyIndex(
        files, new_index_path, slots=layout.index_slots, entries=layout.index_entries, clock=clock
    )
    followers: list[Callable[[list[Entry]], None]] = []
    if queues:
        filler = MendingFiller(new_queues, layout)
        left_out = topics_left_out(layout)
        filler.rule.deleted = DeletedTopics(files, layout.root).load()  # the filler skips them
        followers.append(lambda records: _fill(filler, records, left_out, made))
    if index:
        followers.append(KeyFiller(new_index, clock).fill)
    walk = Walk(segments, log_min)
    last_ms = 0
    for number, records in enumerate(walk, 1):
        made.records += len(records)
        for follower in followers:
            follower(records)
        last_ms = max(last_ms, records[-1][STORE_TIMESTAMP])
        if number % _WRITE_EVERY == 0:
            new_queues.write()
        if progress is not None:
            progress(walk.position - log_min, segments.max_offset - log_min)
    if walk.damage is not None:
        offset = walk.damage.offset
        raise DamagedLog(
            f"{walk.damage.path} is damaged at byte {walk.damage.in_file} (log offset {offset}): "
            f"{walk.damage.what}; valid records follow from offset {walk.damage.valid_from}. Run either: "
            f"kerolox store repair {layout.root} --skip {offset} (keep the later records) or --cut {offset} "
            "(drop all records from there on).",
            path=walk.damage.path,
            offset=offset,
        )
    made.log_end = walk.position
    if queues:
        made.kept_queues = keep_ends(layout, new_queues, log_min, made.log_end)
    made.holes, made.restarted = new_queues.holes, new_queues.restarted
    if queues:
        made.queues = len(new_queues)
    flush(new_queues.write())
    new_index.flush()
    made.index_files = len(new_index)
    queue_files = sum(queue.file_count for queue in new_queues)
    new_queues.close()
    new_index.close()
    swap(layout, files, clock, made, queues=queues, index=index)
    note(layout, files, made, new_index.full_files_end_ms, queue_files, queues=queues, index=index)
    made.seconds = time.perf_counter() - began_s
    return made


def _fill(filler: QueueFiller, records: list[Entry], left_out: set[bytes], made: Rebuilt) -> None:
    records = [record for record in records if not is_filler(record[TOPIC], record[SYS_FLAG])]
    if left_out:
        kept = [record for record in records if record[TOPIC] not in left_out]
        made.left_out += len(records) - len(kept)
        records = kept
    if filler.rule.deleted:
        before = filler.rule.deleted.get
        made.left_out += sum(record[PHYSICAL_OFFSET] < before(record[TOPIC], 0) for record in records)
    filler.fill(records)


class _LeftOut(set[bytes]):
    """Topics that get no queues: all that are neither configured nor had queues."""

    def __init__(self, known: set[bytes], batch: set[bytes]) -> None:
        super().__init__(batch)
        self._known = known

    def __contains__(self, topic: object) -> bool:
        return super().__contains__(topic) or topic not in self._known

    def __bool__(self) -> bool:
        return True


def topics_left_out(layout: Layout) -> set[bytes]:
    """Return topics that get no queues: deleted ones, as far as that is known, and topics with batch queues,
    which have other files."""
    files = OnlyReading()
    batch = {name.encode() for name in files.list_dir(layout.path(BATCH_QUEUES))}
    had = {name.encode() for name in files.list_dir(layout.path(QUEUES))}
    try:
        table = json_dialect.loads(files.read(layout.path("config/topics.json")))
        configured = {str(topic).encode() for topic in table["topicConfigTable"]}
    except (FileMissing, ProtocolError, KeyError, TypeError):
        return batch
    # Without any queues, deleted topics cannot be distinguished from lost ones.
    return _LeftOut(configured | had, batch) if had else batch


def keep_ends(
    layout: Layout,
    new_queues: MendingQueues,
    log_min: int,
    log_end: int,
    wanted: Callable[[str, int], bool] = lambda topic, queue_id: True,
) -> int:
    """Keep the next offset of every queue, so that no offset is used twice. Return the number of queues kept
    only for that.

    This includes queues whose messages are all deleted, and queues whose last messages are lost.
    """
    files = OnlyReading()
    open_files = OpenFiles(files)
    root = layout.path(QUEUES)
    kept = 0
    for topic in files.list_dir(root):
        for name in files.list_dir(os.path.join(root, topic)):
            if not (name.isascii() and name.isdigit() and wanted(topic, int(name))):
                continue
            path = os.path.join(root, topic, name)
            old = open_run(files, open_files, [path], layout.queue_file_bytes, [])
            queue = new_queues.find(topic, int(name))
            if queue is not None:
                if topic != SCHEDULE_TOPIC:
                    new_queues.holes += _keep_last_numbers(old, queue, log_end)
                continue
            for segment in reversed(old.all):
                good = _entries_below(old.read(segment.start, segment.size), log_min, log_end)
                if good:
                    queue = new_queues.queue(topic, int(name))
                    first = segment.start // SIMPLE.size
                    queue._set_end(first)
                    queue.min_offset = first
                    queue.extend(good, first)
                    kept += 1
                    break
    return kept


def queue_end(layout: Layout, topic: str, queue_id: int) -> int:
    """Return the next offset of a queue according to its files; 0 without any."""
    path = os.path.join(layout.path(QUEUES), topic, str(queue_id))
    files = OnlyReading()
    old = open_run(files, OpenFiles(files), [path], layout.queue_file_bytes, [])
    ends = (segment.start + len(_entries(old.read(segment.start, segment.size))) for segment in old.all[::-1])
    end = next((end for end in ends if end), 0) // SIMPLE.size
    old.close()
    return end


def _entries(data: bytes) -> bytes:
    return _entries_below(data, log_min=1 << 62, log_end=1 << 62)


def _keep_last_numbers(old: Segments, queue: ConsumeQueue, log_end: int) -> int:
    """Append holes for lost messages at the end of a queue. They point at the message before them, because no
    later one exists."""
    last = queue.entry(queue.next_offset - 1)
    if last is None or last[1] == BLANK_SIZE:
        return 0
    offset = queue.next_offset
    place = last[0]
    while (size := min(old.readable(offset * SIMPLE.size) // SIMPLE.size, 4096)) > 0:
        for physical, length, _ in SIMPLE.each(old.read(offset * SIMPLE.size, size * SIMPLE.size)):
            if length <= 0 or not place <= physical < log_end:
                size = 0
                break
            place = physical
            offset += 1
        if not size:
            break
    count = offset - queue.next_offset
    if count:
        queue._add(queue.format.pack(last[0], last[1], HOLE_TAGS) * count, count, last[0] + last[1])
    return count


def _entries_below(data: bytes, log_min: int, log_end: int) -> bytes:
    """Return the valid entries at the beginning; if any of them points into the log, all are made blank."""
    end = 0
    last = -1
    into_log = False
    for physical, size, _ in SIMPLE.each(data):
        if physical < 0 or size <= 0 or physical >= log_end:
            break
        if size != BLANK_SIZE:
            into_log = into_log or physical < last or physical >= log_min
            last = physical
        end += SIMPLE.size
    return SIMPLE.blank * (end // SIMPLE.size) if into_log else data[:end]


def swap(layout: Layout, files: Files, clock: Clock, made: Rebuilt, *, queues: bool, index: bool) -> None:
    forget_sums(layout, files)  # they describe the old files
    for name, wanted in ((QUEUES, queues), (INDEX, index)):
        path = layout.path(name)
        fresh = path + UNFINISHED
        if not wanted:
            files.remove_tree(fresh)
            continue
        files.make_dirs(fresh)  # without any message the directory does not exist yet
        files.sync_dir(layout.root)
        if files.exists(path):
            aside = aside_name(files, path, clock)
            files.rename(path, aside)
            made.put_aside.append(aside)
        files.rename(fresh, path)
        files.sync_dir(layout.root)


def note(
    layout: Layout,
    files: Files,
    made: Rebuilt,
    full_files_end_ms: int,
    queue_files: int,
    *,
    queues: bool,
    index: bool,
) -> None:
    """Update the progress notes and the checkpoint for the new files."""
    if index and files.exists(layout.path("checkpoint")):
        checkpoint = Checkpoint(files, layout.path("checkpoint"))
        checkpoint.load()
        checkpoint.index_ms = min(checkpoint.index_ms, full_files_end_ms)
        checkpoint.save()
        checkpoint.close()
    marks_file = ProgressNotesFile(files, layout.root)
    if not files.exists(marks_file.path):
        return  # the store of another broker
    old = marks_file.load()
    end = made.log_end
    marks = ProgressNotes(
        boot=old.boot,
        dispatched=end if queues and index else min(old.dispatched, end),
        flushed=min(old.flushed, end),
        queues=made.queues if queues else old.queues,
        index_files=made.index_files if index else old.index_files,
        log_end=UNKNOWN,
        queue_files=UNKNOWN,
    )
    if not files.exists(layout.path("abort")):
        # After a crash the end of the log is not known yet. After a clean stop it is the noted one.
        marks.boot = boot_identity()
        marks.log_end = marks.flushed = end
        marks.queue_files = queue_files if queues else old.queue_files
    marks_file.save(marks)
    marks_file.close()
