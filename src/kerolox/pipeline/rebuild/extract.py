"""Rebuild task that reads its part of the log once and writes a piece.

A part begins at the first record at or after its start, and has all records that begin before its end. If it
starts in the middle of a file, its first record is searched for. So the driver compares: a part must begin
where the part before it ended, otherwise it is read again from there.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from kerolox.pipeline.rebuild.pieces import (
    DamageNote,
    Piece,
    PieceQueueNote,
    PieceRun,
    piece_path,
    write_piece,
)
from kerolox.protocol.ledger_scan import Mark
from kerolox.protocol.record_scan import (
    CHECK_BODY,
    PHYSICAL_OFFSET,
    STORE_TIMESTAMP,
    SYS_FLAG,
    TOPIC,
    Entry,
    Scan,
    Stop,
    scan,
)
from kerolox.protocol.reserved import SCHEDULE_TOPIC
from kerolox.store.disk.segments import Segments
from kerolox.store.dispatch.entries import QueueRun
from kerolox.store.dispatch.log_runs import log_runs, packed_keys
from kerolox.store.dispatch.queues import QueueFiller
from kerolox.store.errors import StoreError
from kerolox.store.index.index_file import ITEM
from kerolox.store.log.framing import head_bytes, scan_at, term_at
from kerolox.store.offline.layout import Layout, OnlyReading
from kerolox.store.offline.mend import is_filler, open_log
from kerolox.store.queue.consume_queue import ConsumeQueue
from kerolox.store.queue.consume_queues import ConsumeQueues
from kerolox.store.queue.deleted_topics import DeletedTopics
from kerolox.store.queue.entry import SIMPLE
from kerolox.store.rebuild import topics_left_out
from kerolox.store.recovery import end_of, find_record_after, first_bad

BLOCK_BYTES = 4 << 20
CARE_RECORDS = 512  # records scanned one by one before the fast path is tried again
_KEYS_BYTES = 4 << 20
_SPECIAL_TOPICS = (SCHEDULE_TOPIC.encode(),)
NOT_FOUND = -1  # no record found in a part without knowing the end of the part before


class LogPart(msgspec.Struct, frozen=True):
    """Part of a log for one task: the records that begin at ``start`` or later and before ``end``.

    ``begin``: offset to read from; None: the first record is searched for.
    """

    start: int
    end: int
    begin: int | None = None


class PieceQueue(ConsumeQueue):
    """Queue entries from one part of the log, with the queue offsets in their records.

    The offsets are checked when all parts are combined.
    """

    __slots__ = ("packed", "runs")

    def __init__(self, topic: str, queue_id: int) -> None:
        # There are no files, and no method of the base class that uses files is called.
        self.topic = topic
        self.queue_id = queue_id
        self.next_offset = 0
        self.max_physical = -1
        self.packed = bytearray()
        self.runs: list[PieceRun] = []

    def append(self, physical: int, size: int, tags_code: int, queue_offset: int) -> bool:
        self.add(SIMPLE.pack(physical, size, tags_code), queue_offset)
        return True

    def add(self, packed: bytes, first: int, extra: int = 0) -> None:
        count = SIMPLE.count(packed)
        last = self.runs[-1] if self.runs else None
        if last is not None and not extra and not last.extra and last.first + last.count == first:
            last.count += count
        else:
            self.runs.append(PieceRun(first, count, extra))
        self.packed += packed


class PieceQueues(ConsumeQueues):
    """Queues of a part, in memory."""

    def __init__(self) -> None:
        self.by_topic = {}
        self.directory = ""

    def _make(self, topic: str, queue_id: int) -> ConsumeQueue:
        self._topic_path(topic)  # raises an error for names that cannot be a directory
        queue = PieceQueue(topic, queue_id)
        self.by_topic.setdefault(topic, {})[queue_id] = queue
        return queue


class PieceFiller(QueueFiller):
    """Filler of the queues of a part by the rules of dispatch, without checking queue offsets."""

    def __init__(self, queues: ConsumeQueues, layout: Layout) -> None:
        super().__init__(queues, layout.delay_levels, multi_dispatch=layout.light_queues)
        self.rule.deleted = DeletedTopics(OnlyReading(), layout.root).load()
        self._not_wanted = topics_left_out(layout)
        self.left_out = 0  # messages of deleted topics

    def extend(self, runs: list[QueueRun]) -> None:
        known = self._known
        for topic, queue_id, first, packed in runs:
            if self._not_wanted and topic in self._not_wanted:
                self.left_out += SIMPLE.count(packed)
                continue
            try:
                queue = known[topic, queue_id]
            except KeyError:
                queue = known[topic, queue_id] = self._queue(topic, queue_id, SIMPLE.at(packed)[0])
            if queue is None:
                continue
            before = self.rule.deleted.get(topic, 0)
            gone = sum(entry[0] < before for entry in SIMPLE.each(packed)) if before else 0
            self.left_out += gone
            assert isinstance(queue, PieceQueue)
            if gone * SIMPLE.size < len(packed):
                queue.add(packed[gone * SIMPLE.size :], first + gone)

    def fill_each(self, entries: list[Entry]) -> None:
        count = len(entries)
        if self._not_wanted:
            entries = [entry for entry in entries if entry[TOPIC] not in self._not_wanted]
        self.left_out += count - len(entries)
        if self.rule.deleted:
            before = self.rule.deleted.get
            self.left_out += sum(entry[PHYSICAL_OFFSET] < before(entry[TOPIC], 0) for entry in entries)
        self._fill_each(entries)

    def enter(
        self, queue: ConsumeQueue, physical: int, size: int, code: int, queue_offset: int, taken: int
    ) -> None:
        assert isinstance(queue, PieceQueue)
        queue.add(SIMPLE.pack(physical, size, code), queue_offset, taken - 1)


class PartReader:
    """Reader of one part of a log."""

    def __init__(self, layout: Layout, part: LogPart, work: Path, *, tags_too: bool) -> None:
        self._part = part
        self._tags_too = tags_too  # True: the index includes tags
        self._work = work
        self._segments: Segments = open_log(layout)
        self._queues = PieceQueues()
        self._filler = PieceFiller(self._queues, layout)
        self._keys = bytearray()
        self._after: Mark | None = None
        self._term = -1
        self.piece = Piece(part.start, part.start, part.start)

    def run(self) -> Piece:
        """Read the part and write its files."""
        path = piece_path(self._work, self._part.start, "keys")
        with path.open("wb", buffering=0) as self._keys_file:
            self._read()
            self._write_keys()
            os.fsync(self._keys_file.fileno())
        self._segments.close()
        self.piece.left_out = self._filler.left_out
        write_piece(self._work, self.piece, ((self._note(queue), queue.packed) for queue in self._made()))
        return self.piece

    def _made(self) -> list[PieceQueue]:
        found = [queue for queue in self._queues if isinstance(queue, PieceQueue) and queue.runs]
        return sorted(found, key=lambda queue: (queue.topic, queue.queue_id))

    @staticmethod
    def _note(queue: PieceQueue) -> PieceQueueNote:
        return PieceQueueNote(queue.topic, queue.queue_id, 0, queue.runs)

    def _read(self) -> None:
        part, piece, segments = self._part, self.piece, self._segments
        position = part.begin
        if position is None:
            found = find_record_after(segments, part.start, before=part.end)
            if found is None:
                piece.first = piece.end = NOT_FOUND
                return
            position = found[0]
        piece.first = piece.end = position
        block_bytes = BLOCK_BYTES
        while position < part.end:
            segment = segments.segment_at(position)
            if segment is None:
                if not self._step_over(position, "the files that should follow are missing"):
                    return
                position = piece.end
                continue
            readable = segment.end - position
            data = segments.read(position, min(readable, block_bytes))
            at, stop, what = self._take(data, position)
            position += at
            if stop is Stop.BLANK:
                position = segment.end
            elif stop is Stop.INCOMPLETE and len(data) < readable:
                # The block ended within a record; without a complete record, read a larger block.
                block_bytes = BLOCK_BYTES if at else min(block_bytes * 4, readable)
                piece.end = position
                continue
            elif stop is not Stop.END:
                piece.end = position
                if not self._step_over(position, what):
                    return
                position = piece.end
            piece.end = position
            block_bytes = BLOCK_BYTES

    def _take(self, data: bytes, position: int) -> tuple[int, Stop, str]:
        """Take the records in ``data``, read at ``position``.

        Return the bytes used, the reason to stop, and a description of bytes that are not a record.
        """
        segments = self._segments
        end = min(len(data), self._part.end - position)  # limit for the begin of a record
        at = 0
        plain = position < segments.entries_from
        while at < end:
            if plain:
                at = self._take_fast(data, at, end, position)
                if at >= end:
                    break
            result = self._scan(data, at, position)
            entries, what = result.entries, ""
            head = head_bytes(segments, position + at)
            size = result.position - (at if plain else 0)
            if (bad := first_bad(entries, position + at, data[at : at + size], head)) is not None:
                entries, what = entries[: bad[0]], bad[1]
            entries = [entry for entry in entries if entry[PHYSICAL_OFFSET] - head < self._part.end]
            if entries:
                self._take_entries(entries)
                at = end_of(entries[-1]) - position
                self._term = term_at(segments, entries[-1][PHYSICAL_OFFSET])
            if what:
                return at, Stop.CORRUPT, what
            if at >= end:
                break
            if result.stop is not Stop.END and len(entries) == len(result.entries):
                return at, result.stop, result.what
        return at, Stop.END, ""

    def _take_fast(self, data: bytes, at: int, end: int, position: int) -> int:
        """Take ordinary records by the fast path. A record that begins before ``end`` may end after it."""
        runs, keys, at, records, last_ms = log_runs(
            data, at, end, len(data), position, self._filler.rule.stops, _SPECIAL_TOPICS, self._tags_too
        )
        if records:
            self._filler.extend(runs)
            self._add_keys(keys)
            self.piece.records += records
            self.piece.last_ms = max(self.piece.last_ms, last_ms)
        return at

    def _scan(self, data: bytes, at: int, position: int) -> Scan:
        if position >= self._segments.entries_from:
            result, self._after = scan_at(
                self._segments, data[at:], position + at, CHECK_BODY, CARE_RECORDS, self._after
            )
            return result
        return scan(data, at, len(data), CHECK_BODY, CARE_RECORDS)

    def _take_entries(self, entries: list[Entry]) -> None:
        self.piece.records += len(entries)
        self.piece.last_ms = max(self.piece.last_ms, max(entry[STORE_TIMESTAMP] for entry in entries))
        self._add_keys(packed_keys(entries, self._tags_too))
        self._filler.fill_each([entry for entry in entries if not is_filler(entry[TOPIC], entry[SYS_FLAG])])

    def _add_keys(self, keys: bytes) -> None:
        self.piece.keys += len(keys) // ITEM.size
        self._keys += keys
        if len(self._keys) >= _KEYS_BYTES:
            self._write_keys()

    def _write_keys(self) -> None:
        view = memoryview(self._keys)
        while view:
            view = view[self._keys_file.write(view) :]
        self._keys = bytearray()

    def _step_over(self, position: int, what: str) -> bool:
        """Skip bytes that are not a record. Returns False if no record follows: the log ends here."""
        behind = find_record_after(self._segments, position + 1, self._term)
        self._after = None
        if behind is None:
            self.piece.stop = what
            return False
        segment = self._segments.segment_at(position)
        path, in_file = (
            (self._segments.directories[0], 0)
            if segment is None
            else (segment.path, position - segment.start)
        )
        self.piece.damage.append(DamageNote(position, behind[0], what, path, in_file))
        self.piece.end = behind[0]
        return True


def extract(layout: Layout, work: str, part: LogPart, *, tags_too: bool = False) -> Piece:
    """Run the task: read a part and write its piece."""
    try:
        return PartReader(layout, part, Path(work), tags_too=tags_too).run()
    except OSError as error:
        raise StoreError(
            f"the part of the log at {part.start} could not be read or stored: {error}"
        ) from error
