"""Comparison of consume queues with the log, in both directions.

For each block of the log, a task compares the expected queue entries with the actual ones, and collects the
queue offsets in the log as runs. When all tasks are done, the runs of a queue in order show its gaps and the
offsets used twice; an entry outside of all runs has no message. So every record and every entry is compared
once, and the log is read once.

The rules are those of ``kerolox store verify``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from kerolox.pipeline.audit.heads import Heads
from kerolox.pipeline.audit.plan import StorePlan
from kerolox.protocol import properties as names
from kerolox.protocol.java import java_hash
from kerolox.protocol.reserved import SCHEDULE_TOPIC
from kerolox.spark.records import Numbers, PropertyPairs
from kerolox.spark.store.files import Entries, QueueFiles
from kerolox.store.log.cursors import names_light_queues
from kerolox.store.offline.layout import LIGHT_QUEUE_PREFIX
from kerolox.store.queue.entry import BLANK_SIZE, HOLE_TAGS, SIMPLE
from kerolox.store.queue.extension import ADDRESS_MAX

_CHUNK = 4096
_OPEN_MAX = 256

MISSING = "missing entry"
NO_QUEUE = "no queue"
WRONG_PLACE = "wrong place"
WRONG_SIZE = "wrong size"
WRONG_TAG = "wrong tag code"
KINDS = (MISSING, WRONG_PLACE, WRONG_SIZE, WRONG_TAG)

QueueKey = tuple[str, int]  # topic and queue


class QueueComparison:
    """Comparison of the records of one part of a log with their queues."""

    def __init__(self, store: StorePlan, topics: Collection[str]) -> None:
        self.right = 0  # number of correct entries
        self._store = store
        self._topics = topics
        self._files: dict[QueueKey, QueueFiles | None] = {}
        self._there = frozenset(store.queues)
        # By queue: runs of [first, last, first place, last place]; places are log offsets.
        self._runs: dict[QueueKey, list[list[int]]] = {}
        self._wrong: list[tuple[Any, ...]] = []
        self._codes: dict[str | None, int] = {None: 0}

    def check(self, heads: Heads, codes: Numbers, known: list[str], pairs: PropertyPairs) -> None:
        """Compare the next records of the log. ``codes``: index of each record's topic in ``known``."""
        queued = np.isin(heads.sys_flag & 0xC, (0, 0x8)) & (heads.queue_id >= 0)
        checked = np.array([self._is_checked(name) for name in known])
        rows = np.flatnonzero(queued & checked[codes])
        if len(rows):
            tags = self._tag_codes(heads, codes, known, pairs)
            # By topic and queue, and within a queue in the order of the log.
            both = codes[rows] << 32 | heads.queue_id[rows].astype(np.int64)
            order = np.argsort(both, kind="stable")
            rows, both = rows[order], both[order]
            cuts = np.flatnonzero(np.diff(both)) + 1
            for group in np.split(rows, cuts):
                key = (known[int(codes[group[0]])], int(heads.queue_id[group[0]]))
                self._compare(
                    key, heads.queue_offset[group], heads.physical[group], heads.size[group], tags[group]
                )
        if self._store.light_queues:
            self._check_light(heads, codes, known, pairs)

    def _is_checked(self, topic: str) -> bool:
        return topic not in self._store.batch_topics and (not self._topics or topic in self._topics)

    def _tag_codes(self, heads: Heads, codes: Numbers, known: list[str], pairs: PropertyPairs) -> Numbers:
        """Return the tags code of each entry: the hash of the tag, or the due time of a delayed message."""
        tags = pc.dictionary_encode(pairs.pick(names.TAGS), null_encoding="encode")
        table = np.array([self._hash(tag) for tag in tags.dictionary.to_pylist()], np.int64)
        found: Numbers = table[np.asarray(tags.indices)]
        if SCHEDULE_TOPIC in known:
            levels = self._store.delay_levels
            delays = pc.dictionary_encode(pairs.pick(names.DELAY), null_encoding="encode")
            waits = np.array([_wait_ms(text, levels) for text in delays.dictionary.to_pylist()], np.int64)
            wait = waits[np.asarray(delays.indices)]
            due = (codes == known.index(SCHEDULE_TOPIC)) & (wait > 0)
            found = np.where(due, heads.stored_ms + wait, found)
        return found

    def _hash(self, tag: str | None) -> int:
        code = self._codes.get(tag)
        if code is None:
            if len(self._codes) > 100_000:
                self._codes = {None: 0}
            code = self._codes[tag] = java_hash(tag or "")
        return code

    def _compare(
        self, key: QueueKey, offsets: Numbers, places: Numbers, sizes: Numbers, tags: Numbers
    ) -> None:
        queue = self._open(key)
        cuts = np.flatnonzero(np.diff(offsets) != 1) + 1
        for run in np.split(np.arange(len(offsets)), cuts):
            first, last = int(offsets[run[0]]), int(offsets[run[-1]]) + 1
            self._note_run(key, first, last, int(places[run[0]]), int(places[run[-1]]))
            if queue is None:
                self._note_wrong(NO_QUEUE, key, first, last, int(places[run[0]]), 0, 0)
                continue
            if first < 0:
                continue
            entries = queue.entries(first, last)
            self._compare_run(key, first, entries, places[run], sizes[run], tags[run])

    def _compare_run(
        self, key: QueueKey, first: int, entries: Entries, places: Numbers, sizes: Numbers, tags: Numbers
    ) -> None:
        place, size = entries["place"].astype(np.int64), entries["size"].astype(np.int64)
        code = entries["code"].astype(np.int64)
        verdict = np.zeros(len(places), np.int8)
        verdict[(code != tags) & (code > ADDRESS_MAX)] = 4  # the code is in the extension file
        verdict[size != sizes] = 3
        verdict[place != places] = 2
        verdict[(place == 0) & (size == 0) & (code == 0)] = 1
        self.right += int((verdict == 0).sum())
        if not verdict.any():
            return
        wanted = (places, places, sizes, tags)
        found = (place, place, size, code)
        cuts = np.flatnonzero(np.diff(verdict)) + 1
        for run in np.split(np.arange(len(verdict)), cuts):
            kind = int(verdict[run[0]])
            if kind:
                at = run[0]
                self._note_wrong(
                    KINDS[kind - 1], key, first + int(run[0]), first + int(run[-1]) + 1, int(places[at]),
                    int(wanted[kind - 1][at]), int(found[kind - 1][at]),
                )  # fmt: skip

    def _check_light(self, heads: Heads, codes: Numbers, known: list[str], pairs: PropertyPairs) -> None:
        """Compare the light queues that messages name as well."""
        named = pairs.pick(names.INNER_MULTI_DISPATCH)
        rows = np.flatnonzero(np.asarray(named.is_valid()))
        if not len(rows):
            return
        offsets = pairs.pick(names.INNER_MULTI_QUEUE_OFFSET)
        tags = self._tag_codes(heads, codes, known, pairs)
        for row in rows.tolist():
            if not names_light_queues(known[int(codes[row])]):
                continue
            wanted, numbers = named[row].as_py().split(","), (offsets[row].as_py() or "").split(",")
            if len(wanted) != len(numbers):
                continue
            for name, number in zip(wanted, numbers, strict=True):
                if name.startswith(LIGHT_QUEUE_PREFIX) and "/" not in name and number.isdigit():
                    one = slice(row, row + 1)
                    self._compare(
                        (name, 0), np.array([int(number)]), heads.physical[one], heads.size[one], tags[one]
                    )

    def _open(self, key: QueueKey) -> QueueFiles | None:
        if key not in self._files:
            if len(self._files) >= _OPEN_MAX:
                for queue in self._files.values():
                    if queue is not None:
                        queue.close()
                self._files.clear()
            run = self._store.queue_files(*key)
            self._files[key] = QueueFiles(run) if run.pieces else None
        return self._files[key]

    def _note_run(self, key: QueueKey, first: int, last: int, first_place: int, last_place: int) -> None:
        runs = self._runs.setdefault(key, [])
        if runs and runs[-1][1] == first:
            runs[-1][1], runs[-1][3] = last, last_place
        else:
            runs.append([first, last, first_place, last_place])

    def _note_wrong(
        self, kind: str, key: QueueKey, first: int, last: int, place: int, wanted: int, found: int
    ) -> None:
        if self._wrong:
            before = self._wrong[-1]
            if before[:3] == (kind, *key) and before[4] == first:
                self._wrong[-1] = (*before[:4], last, *before[5:])
                return
        self._wrong.append((kind, *key, first, last, place, wanted, found))

    def finish(self) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
        """Return the runs of queue offsets and the wrong entries, as columns."""
        for queue in self._files.values():
            if queue is not None:
                queue.close()
        runs = [(*key, *run) for key, found in self._runs.items() for run in found]
        columns = ("topic", "queue_id", "first", "last", "first_place", "last_place")
        wrong = ("kind", "topic", "queue_id", "first", "last", "physical_offset", "wanted", "found")
        return _columns(columns, runs), _columns(wrong, self._wrong)


def _columns(wanted: tuple[str, ...], rows: list[tuple[Any, ...]]) -> dict[str, list[Any]]:
    return {name: [row[place] for row in rows] for place, name in enumerate(wanted)}


def _wait_ms(text: str | None, levels: tuple[int, ...]) -> int:
    level = int(text) if text is not None and text.isdigit() and len(text) < 10 else 0
    return levels[min(level, len(levels)) - 1] if level > 0 else 0


# --- after all parts of the log ---------------------------------------------------------------------------


class Gap(NamedTuple):
    """Range of queue offsets that no message in the log has."""

    first: int
    last: int
    place: int  # log offset of the next message


class Cover(NamedTuple):
    """Queue offsets of one queue that are in the log."""

    ranges: tuple[tuple[int, int], ...]  # queue offsets, last excluded
    gaps: tuple[Gap, ...]
    taken: tuple[Gap, ...]  # offsets used by a second message
    begin_place: int  # log offset; older messages belong to a deleted topic of the same name
    replaced: int  # number of these older messages
    damaged: tuple[Gap, ...] = ()  # queue offsets that are damaged in their records


def cover(runs: Iterable[tuple[int, int, int, int]]) -> Cover:
    """Combine the runs of a queue, in log order.

    Records whose queue offsets do not fit between their neighbours, where exactly as many are missing, have
    damaged offsets; they are neither a gap nor offsets used twice.
    """
    ranges: list[list[int]] = []
    gaps: list[Gap] = []
    taken: list[Gap] = []
    damaged: list[Gap] = []
    begin = replaced = 0
    ordered = sorted(runs, key=lambda run: run[2])
    for number, (first, last, place, _) in enumerate(ordered):
        end = ranges[-1][1] if ranges else 0
        follows = ordered[number + 1][0] if number + 1 < len(ordered) else None
        if first < 0 or (ranges and first != end and follows == end + last - first):
            damaged.append(Gap(first, last, place))
            if ranges and follows == end + last - first:
                ranges[-1][1] = follows
            continue
        if not ranges:
            ranges.append([first, last])
        elif first == ranges[-1][1]:
            ranges[-1][1] = last
        elif first > ranges[-1][1]:
            gaps.append(Gap(ranges[-1][1], first, place))
            ranges.append([first, last])
        elif first == 0:  # offsets restart at 0: the topic was deleted and created again
            replaced += sum(high - low for low, high in ranges)
            ranges, gaps, taken, damaged, begin = [[0, last]], [], [], [], place
        else:
            taken.append(Gap(first, min(last, ranges[-1][1]), place))
            if last > ranges[-1][1]:
                ranges[-1][1] = last
    return Cover(
        tuple((low, high) for low, high in ranges),
        tuple(gaps),
        tuple(taken),
        begin,
        replaced,
        tuple(damaged),
    )


class Lonely(NamedTuple):
    """Consecutive entries without a message."""

    first: int
    last: int
    place: int  # log offset in the first entry
    is_hole: bool  # marked as lost by an earlier repair


def lonely_entries(store: StorePlan, key: QueueKey, found: Cover | None, log_end: int) -> list[Lonely]:
    """Return entries without a record, except those of old messages that were deleted with their files."""
    run = store.queue_files(*key)
    if not run.pieces:
        return []
    lonely: list[Lonely] = []
    with QueueFiles(run) as queue:
        low, end = queue.first, run.end // SIMPLE.size
        for first, last in found.ranges if found is not None else ():
            # A damaged message may have an offset far beyond the last entry.
            for start, entries in _chunks(queue, low, min(first, end)):
                lonely += _judge(store, start, entries, log_end)
            low = max(low, last)
        for start, entries in _chunks(queue, low, end):
            ends = np.flatnonzero((entries["place"] < 0) | (entries["size"] <= 0))
            stop = int(ends[0]) if found is not None and len(ends) else len(entries)
            lonely += _judge(store, start, entries[:stop], log_end)
            if stop < len(entries) or not entries["size"].any():
                break
    return _joined(lonely)


def _chunks(queue: QueueFiles, low: int, high: int) -> Iterator[tuple[int, Entries]]:
    while low < high:
        end = min(low + _CHUNK, high)
        yield low, queue.entries(low, end)
        low = end


def _judge(store: StorePlan, start: int, entries: Entries, log_end: int) -> list[Lonely]:
    place, size = entries["place"].astype(np.int64), entries["size"].astype(np.int64)
    hole = entries["code"] == HOLE_TAGS
    lonely = (size > 0) & (size != BLANK_SIZE) & (hole | (place >= store.low))
    # Skip entries past the end of the log that was read: a store in use has newer ones, and an audit limited
    # by time does not know the rest.
    if store.unsettled or store.high < store.log.end:
        lonely &= place < min(log_end, store.high)
    rows: npt.NDArray[np.int64] = np.flatnonzero(lonely)
    return [Lonely(start + int(row), start + int(row) + 1, int(place[row]), bool(hole[row])) for row in rows]


def _joined(found: list[Lonely]) -> list[Lonely]:
    joined: list[Lonely] = []
    for each in found:
        if joined and joined[-1].last == each.first and joined[-1].is_hole == each.is_hole:
            joined[-1] = joined[-1]._replace(last=each.last)
        else:
            joined.append(each)
    return joined
