"""Check of consume queues against the log: every message has an entry, and every entry a message.

The log is read once. The expected entries of a queue are computed batch by batch and compared as bytes; only
where they differ are entries examined one by one. So memory is bounded by the number of queues, not of
messages.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator

from kerolox.protocol.record_scan import PHYSICAL_OFFSET, TOPIC, Entry
from kerolox.store.disk.segment import OpenFiles
from kerolox.store.disk.segments import Segments
from kerolox.store.dispatch.entries import LogEntries, QueueRun
from kerolox.store.errors import StoreError
from kerolox.store.offline.layout import (
    BATCH_QUEUES,
    QUEUES,
    Finding,
    Layout,
    OnlyReading,
    open_run,
)
from kerolox.store.offline.summary import queue_range
from kerolox.store.queue.consume_queues import refuse_leading_zeros
from kerolox.store.queue.deleted_topics import DeletedTopics
from kerolox.store.queue.entry import BLANK_SIZE, HOLE_TAGS, SIMPLE
from kerolox.store.queue.extension import is_address

_CHUNK = 4096
_RANGES_MAX = 20  # reported per queue; the rest is counted


class Ranges:
    """Offsets of the same problem, kept as ranges: ``what`` from ``low`` to before ``high``."""

    def __init__(self) -> None:
        self.found: list[tuple[str, int, int, str]] = []  # what, low, high, example
        self.more = 0

    def add(self, what: str, number: int, example: str) -> None:
        if self.found:
            last, low, high, first = self.found[-1]
            if last == what and high == number:
                self.found[-1] = (last, low, number + 1, first)
                return
        if len(self.found) < _RANGES_MAX:
            self.found.append((what, number, number + 1, example))
        else:
            self.more += 1

    def __bool__(self) -> bool:
        return bool(self.found)


class _Queue:
    """State of one queue during the check. ``next`` is the offset that the next message must have."""

    __slots__ = ("first", "light", "missing", "missing_from", "next", "path", "replaced", "segments", "wrong")

    def __init__(self, path: str, segments: Segments) -> None:
        self.path = path
        self.segments = segments
        self.first = -1  # offset of the first message in the log
        self.next = -1
        self.wrong = Ranges()
        self.missing = 0  # messages after the end of the queue
        self.missing_from = (-1, -1)  # queue offset and log offset of the first one
        # Messages whose offsets were assigned again: the topic was deleted and created again
        self.replaced = 0
        self.light = False

    def read(self, offset: int, count: int) -> bytes:
        """Return up to ``count`` entries; fewer at the end of the files."""
        parts: list[bytes] = []
        while count > 0:
            size = min(self.segments.readable(offset * SIMPLE.size) // SIMPLE.size, count)
            if not size:
                break
            parts.append(self.segments.read(offset * SIMPLE.size, size * SIMPLE.size))
            offset += size
            count -= size
        return b"".join(parts)

    def chunks(self, low: int, high: int) -> Iterator[tuple[int, bytes]]:
        while low < high:
            data = self.read(low, min(_CHUNK, high - low))
            if not data:
                return
            yield low, data
            low += SIMPLE.count(data)


class QueueCheck:
    """Comparison of the queues with the log."""

    def __init__(
        self,
        layout: Layout,
        files: OnlyReading,
        log_min: int,
        findings: list[Finding],
        *,
        open_limit: int = 256,
    ) -> None:
        self.entries = 0  # compared and correct entries
        self.count = 0
        self._layout = layout
        self._files = files
        self._log_min = log_min
        self._findings = findings
        self._open_files = OpenFiles(files, open_limit)
        self._queues: dict[tuple[bytes, int], _Queue | None] = {}
        # Number of messages, log offset of the first
        self._unqueued: dict[tuple[bytes, int], tuple[int, int]] = {}
        self._rule = LogEntries(
            layout.delay_levels,
            light_queues=layout.light_queues,
            deleted=DeletedTopics(files, layout.root).load(),
        )
        self._of_deleted: Counter[bytes] = Counter()  # messages of deleted topics
        self._batch_topics = set(files.list_dir(layout.path(BATCH_QUEUES)))
        self._load()

    def _load(self) -> None:
        root = self._layout.path(QUEUES)
        for topic in self._files.list_dir(root):
            path = os.path.join(root, topic)
            if not self._files.is_dir(path):
                what = "does not belong here: each topic has a directory, and nothing else is expected"
                self._findings.append(Finding("stray file", path, what, "move it away"))
                continue
            for number in self._files.list_dir(path):
                here = os.path.join(path, number)
                if not (number.isascii() and number.isdigit() and self._files.is_dir(here)):
                    what = "does not belong here: queues are directories named by a number"
                    self._findings.append(Finding("stray file", here, what, "move it away"))
                    continue
                try:
                    refuse_leading_zeros(here)
                except StoreError as error:
                    self._findings.append(Finding("refused", here, str(error), "rename or move it"))
                    continue
                size = self._layout.queue_file_bytes
                segments = open_run(self._files, self._open_files, [here], size, self._findings)
                for low, high in segments.gaps:
                    what = f"the file with entries {low // SIMPLE.size} to {high // SIMPLE.size} is missing"
                    self._findings.append(
                        Finding("queue gap", here, what, self._repair, offset=low // SIMPLE.size)
                    )
                self._queues[topic.encode(), int(number)] = _Queue(here, segments)
                self.count += 1

    def end(self, topic: str, queue_id: int) -> int | None:
        """Return the next offset of a queue, after the log was read; None if the queue does not exist."""
        queue = self._queues.get((topic.encode(), queue_id))
        return None if queue is None else max(queue.next, queue_range(queue.segments, self._log_min)[1])

    @property
    def _repair(self) -> str:
        return f"kerolox store repair {self._layout.root} --queues"

    # While the log is read

    def check(self, records: list[Entry]) -> None:
        """Check the next records of the log."""
        before = self._rule.deleted
        for entry in records if before else ():
            if entry[PHYSICAL_OFFSET] < before.get(entry[TOPIC], 0):
                self._of_deleted[entry[TOPIC]] += 1
        runs = self._rule.runs(records)
        for topic, queue_id, first, packed in self._runs(records) if runs is None else runs:
            self._compare((topic, queue_id), first, packed)

    def _runs(self, records: list[Entry]) -> Iterator[QueueRun]:
        """Yield the entries that follow each other in a queue together."""
        runs: dict[tuple[bytes, int], tuple[int, list[bytes]]] = {}
        for topic, queue_id, queue_offset, physical, size, code, _ in self._rule.each(records):
            run = runs.get((topic, queue_id))
            if run is None or run[0] + len(run[1]) != queue_offset:
                if run is not None:
                    yield topic, queue_id, run[0], b"".join(run[1])
                run = runs[topic, queue_id] = (queue_offset, [])
            run[1].append(SIMPLE.pack(physical, size, code))
        for (topic, queue_id), (first, packed) in runs.items():
            yield topic, queue_id, first, b"".join(packed)

    def _compare(self, key: tuple[bytes, int], first: int, expected: bytes) -> None:
        total, place = SIMPLE.count(expected), SIMPLE.at(expected)[0]
        queue = self._queues.get(key)
        if queue is None:
            if key[0].decode("utf-8", "replace") not in self._batch_topics:
                count, place = self._unqueued.get(key, (0, place))
                self._unqueued[key] = (count + total, place)
            return
        if queue.next < 0:
            queue.first = first
        elif first > queue.next:
            self._check_hole(queue, queue.next, first)
        elif first < queue.next:
            # The offsets are assigned again: the topic was deleted and created again, and earlier results do
            # not count. (The new queue begins at 0 in the log.)
            if first == 0:
                queue.replaced += queue.next - queue.first
                queue.first = 0
                queue.wrong = Ranges()
                queue.missing = 0
            else:
                queue.wrong.add("number taken", first, f"a second message has it, at log offset {place}")
                return
        queue.next = first + total
        actual = queue.read(first, total)
        if actual == expected:
            self.entries += total
            return
        self._compare_each(queue, first, expected, actual)

    def _compare_each(self, queue: _Queue, first: int, expected: bytes, actual: bytes) -> None:
        for number, (physical, size, code) in enumerate(SIMPLE.each(expected)):
            found = SIMPLE.part(actual, number, number + 1)
            if found == SIMPLE.part(expected, number, number + 1):
                self.entries += 1
                continue
            if not found.strip(b"\0"):
                if not queue.missing:
                    queue.missing_from = (first + number, physical)
                queue.missing += 1
                continue
            has_physical, has_size, has_code = SIMPLE.at(found)
            if has_physical != physical:
                what, example = "place", f"points at {has_physical}, the message is at {physical}"
            elif has_size != size:
                what, example = "size", f"has {has_size} bytes, the record has {size}"
            elif is_address(has_code):
                self.entries += 1  # its tags code is in the extension
                continue
            else:
                what, example = "tags code", f"has {has_code}, the message has {code}"
            queue.wrong.add(f"wrong {what}", first + number, example)

    def _check_hole(self, queue: _Queue, low: int, high: int) -> None:
        """Check offsets that no message in the log has: their entries must show that."""
        for start, data in queue.chunks(low, high):
            for offset, (physical, size, code) in enumerate(SIMPLE.each(data), start):
                if code == HOLE_TAGS or size == BLANK_SIZE or physical < self._log_min:
                    continue
                if size > 0:
                    queue.wrong.add(
                        "no message", offset, f"points at {physical}, where this queue has no message"
                    )

    # After the log

    def finish(self, log_end: int, *, crashed: bool, dispatched: int, topics: Iterable[str] | None) -> None:
        """Check the entries without a message, and report. ``dispatched``: -1 if unknown."""
        for (topic, queue_id), queue in self._queues.items():
            if queue is not None:
                self._finish_queue(queue, f"{topic.decode()} queue {queue_id}", log_end, crashed, dispatched)
        for topic, count in sorted(self._of_deleted.items()):
            what = f"{topic.decode('utf-8', 'replace')}: {count} messages in the log are in no queue"
            self._findings.append(Finding("deleted topic", self._layout.root, what, note=True))
        self._report_unqueued(None if topics is None else set(topics), dispatched if crashed else None)

    def _finish_queue(self, queue: _Queue, name: str, log_end: int, crashed: bool, dispatched: int) -> None:
        low = max(0, queue.segments.min_offset) // SIMPLE.size
        end = queue.segments.max_offset // SIMPLE.size
        # Before the first message in the log: deleted ones, or blanks.
        self._check_hole(queue, low, end if queue.first < 0 else min(queue.first, end))
        if queue.first >= 0:
            self._check_behind(queue, log_end, crashed)
        for what, first, last, example in queue.wrong.found:
            count = last - first
            numbers = f"entry {first}" if count == 1 else f"{count} entries from {first} on"
            self._findings.append(
                Finding(f"queue: {what}", queue.path, f"{name}: {numbers}: {example}", self._repair, first)
            )
        if queue.wrong.more:
            what = f"{name}: {queue.wrong.more} more entries are wrong"
            self._findings.append(Finding("queue", queue.path, what, self._repair))
        if queue.missing:
            offset, physical = queue.missing_from
            what = (
                f"{name}: {queue.missing} messages from queue offset {offset} on (log {physical}) are missing"
            )
            if crashed and physical >= dispatched:
                next_step = "the next start adds them: they were only in memory"
                self._findings.append(Finding("queue: end", queue.path, what, next_step, offset, note=True))
            else:
                self._findings.append(Finding("queue: missing", queue.path, what, self._repair, offset))
        if queue.replaced:
            what = (
                f"{name}: {queue.replaced} older messages in the log are in no queue: the topic was created "
                "again"
            )
            self._findings.append(Finding("deleted topic", queue.path, what, note=True))

    def _check_behind(self, queue: _Queue, log_end: int, crashed: bool) -> None:
        end = queue.segments.max_offset // SIMPLE.size
        for start, data in queue.chunks(queue.next, end):
            for offset, (physical, size, _) in enumerate(SIMPLE.each(data), start):
                if physical < 0 or size <= 0:
                    return
                if physical >= log_end and crashed:
                    continue  # after the end of the log: recovery removes it
                where = (
                    "after the end of the log" if physical >= log_end else "where this queue has no message"
                )
                queue.wrong.add("no message", offset, f"points at {physical}, {where}")

    def _report_unqueued(self, topics: set[str] | None, dispatched: int | None) -> None:
        for (name, queue_id), (count, place) in sorted(self._unqueued.items()):
            topic = name.decode("utf-8", "replace")
            path = os.path.join(self._layout.path(QUEUES), topic, str(queue_id))
            what = (
                f"{topic} queue {queue_id}: {count} messages in the log (the first at {place}) have no queue"
            )
            if dispatched is not None and place >= dispatched:
                step, note = "the next start creates it: it was only in memory", True
            elif topics is not None and topic not in topics:
                step, note = "none if the topic was deleted", True
            else:
                step, note = self._repair, False
            self._findings.append(Finding("no queue", path, what, step, place, note=note))
