"""Plan of a query over store directories: the pieces to read, decided once on the driver.

Both ways of reading go along the log, so that every byte of it is read once and in order. From queues: a
piece is a range of the log and all the chosen queues; the entries that point into the range say where the
messages lie. From the log: a piece begins and ends where records begin.

Everything is fixed here, also the end of a log that still grows: the same plan gives the same rows.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Final

import numpy as np

from kerolox.client.messages import Queue
from kerolox.client.names import is_system
from kerolox.errors import OptionError, ProtocolError
from kerolox.protocol import json_dialect
from kerolox.spark.offsets import EARLIEST, LATEST, QueueOffsets
from kerolox.spark.option_table import Values
from kerolox.spark.store.cutting import cut
from kerolox.spark.store.files import FileRun, LogFiles, QueueFiles, QueueRange, find_run
from kerolox.spark.store.options import LOG, StoreChoice, find_paths, read_choice
from kerolox.store.errors import FileMissing
from kerolox.store.offline.layout import BATCH_QUEUES, QUEUES, OnlyReading, ledgers_in, store_in
from kerolox.store.queue.entry import BLANK_SIZE, SIMPLE

_GUIDES: Final = 8  # queues asked for the last message
_SAMPLES: Final = 64  # entries of a queue that stand for all of them


@dataclass(frozen=True, slots=True)
class Split:
    """Piece for one task: a range of a log, or the entries of queues that point into it."""

    broker: str
    log: FileRun
    start: int
    end: int
    queues: tuple[QueueRange, ...] | None = None


@dataclass(frozen=True, slots=True)
class Store:
    """One store directory as it was found."""

    broker: str
    root: str
    log: FileRun
    log_end: int
    queues: tuple[QueueRange, ...]  # of all topics, with all entries whose messages are in the log

    @property
    def log_start(self) -> int:
        return self.log.start


def plan(values: Values) -> list[Split]:
    """The pieces of everything that was asked for, in the order of paths and logs."""
    choice = read_choice(values)
    stores = [find_store(broker, path, values["commitLog"]) for broker, path in find_paths(values)]
    if values["from"] == LOG:
        step = _step(values, sum(store.log_end - store.log_start for store in stores))
        return [split for store in stores for split in _log_splits(store, step, choice)]
    chosen = _choose(stores, choice, values)
    sampled = [_Sample.of(store, queues) for store, queues in zip(stores, chosen, strict=True)]
    step = _step(values, sum(sample.total for sample in sampled))
    return [
        split
        for store, queues, sample in zip(stores, chosen, sampled, strict=True)
        for split in _queue_splits(store, queues, sample, step)
    ]


def _step(values: Values, total: int) -> int:
    return max(1, min(int(values["maxSplitBytes"]), -(-total // int(values["minPartitions"]))))


# --- directories ---------------------------------------------------------------------------------


def find_store(broker: str, root: str, log_paths: Sequence[str] | None = None) -> Store:
    """Look at a directory: its log with the place where it ends, and its queues."""
    if not log_paths:
        try:
            root = store_in(root, OnlyReading())
        except FileMissing as error:
            raise OptionError("path", root, f"the directory of one store: {error}") from error
    directories = [os.path.abspath(each) for each in log_paths or [os.path.join(root, "commitlog")]]
    if ledgers := ledgers_in(root, OnlyReading()):
        raise OptionError(
            "path",
            root,
            "a store with a plain log: its messages are in a DLedger log "
            f"({os.path.join(root, ledgers[0])}), which is not read here. Read them from the broker: "
            'format("rocketmq")',
        )
    if not any(os.path.isdir(each) for each in directories):
        raise OptionError(
            "path",
            root,
            f"a store directory: there is no {directories[0]}. If its log lies elsewhere: commitLog",
        )
    log_run = find_run(directories)
    queues: list[QueueRange] = []
    newest: list[tuple[int, int]] = []  # where the last message of a queue begins and ends
    for topic, queue_id, directory in _queue_directories(root):
        run = find_run([directory])
        with QueueFiles(run) as queue:
            end = queue.find_end(log_run.end)
            if end > queue.first:
                place, length = queue.entry(end - 1)
                newest.append((place, place + length))
            queues.append(QueueRange(topic, queue_id, run, queue.first, end))
    with LogFiles(log_run) as log:
        log_end = _find_log_end(log, newest)
    return Store(
        broker, root, log_run, log_end, tuple(_within(queue, log_run.start, log_end) for queue in queues)
    )


def _queue_directories(root: str) -> Iterator[tuple[str, int, str]]:
    files = OnlyReading()
    queues = os.path.join(root, QUEUES)
    for topic in files.list_dir(queues):
        names = [
            name for name in files.list_dir(os.path.join(queues, topic)) if name.isascii() and name.isdigit()
        ]
        for name in sorted(names, key=int):
            yield topic, int(name), os.path.join(queues, topic, name)


def _find_log_end(log: LogFiles, newest: list[tuple[int, int]]) -> int:
    for place, end in sorted(newest, reverse=True)[:_GUIDES]:
        if not log.fault_at(place):
            return log.find_end(end, log.stored_ms(place))
    for piece in reversed(log.run.pieces):
        if log.read(piece.start, 8).strip(b"\0"):
            return log.find_end(piece.start)
    return log.run.start


def _within(queue: QueueRange, log_start: int, log_end: int) -> QueueRange:
    """The entries whose messages are in the log."""
    with QueueFiles(queue.run) as files:
        end = queue.end
        if end > queue.first and sum(files.entry(end - 1)) > log_end:
            end = files.find_end(log_end)
        first = queue.first
        if first < end:
            place, length = files.entry(first)
            if length == BLANK_SIZE or place < log_start:
                first = files.first_at(first, end, log_start)
    return replace(queue, first=first, end=end)


# --- queues --------------------------------------------------------------------------------------


def _choose(stores: Sequence[Store], choice: StoreChoice, values: Values) -> list[list[QueueRange]]:
    """The queues of each store that are wanted, with the entries that are."""
    _check_topics(stores, choice, ", ".join(values["path"] or values["paths"]))
    ids = None if values["queueIds"] is None else frozenset(values["queueIds"])
    start, end = values["startingOffsets"], values["endingOffsets"]
    chosen = []
    for store in stores:
        found = []
        with LogFiles(store.log) as log:
            for queue in store.queues:
                if ids is not None and queue.queue_id not in ids:
                    continue
                if not choice.has(queue.topic) or (not choice.chooses_topics and is_system(queue.topic)):
                    continue
                low = _offset(start, store, queue, "startingOffsets")
                high = _offset(end, store, queue, "endingOffsets")
                found.append(_by_time(replace(queue, first=low, end=max(low, high)), log, choice))
        chosen.append([queue for queue in found if queue.first < queue.end])
    return chosen


def _check_topics(stores: Sequence[Store], choice: StoreChoice, path: str) -> None:
    if choice.topics is None:
        return
    known = {queue.topic for store in stores for queue in store.queues}
    for store in stores if choice.topics - known else ():
        known |= _topics_without_messages(store.root)
    for topic in sorted(choice.topics - known):
        if any(os.path.isdir(os.path.join(store.root, BATCH_QUEUES, topic)) for store in stores):
            raise OptionError("topic", topic, "from = log with it: its queues are of batches (BatchCQ)")
        some = ", ".join(sorted(known)[:10]) or "none"
        raise OptionError("topic", topic, f"a topic with queues in {path}; there are {some}")


def _topics_without_messages(root: str) -> set[str]:
    """The topics a broker knows. A topic has no queues here before it has messages."""
    data = OnlyReading().read_if_exists(os.path.join(root, "config", "topics.json"))
    try:
        document = json_dialect.loads(data or b"{}")
    except ProtocolError:
        return set()
    table = document.get("topicConfigTable") if isinstance(document, dict) else None
    return set(map(str, table)) if isinstance(table, dict) else set()


def _offset(wanted: str | QueueOffsets, store: Store, queue: QueueRange, key: str) -> int:
    if isinstance(wanted, str):
        offset = EARLIEST if wanted == "earliest" else LATEST
    else:
        other = EARLIEST if key == "startingOffsets" else LATEST
        offset = wanted.get(Queue(queue.topic, store.broker, queue.queue_id), other)
    if offset == EARLIEST:
        return queue.first
    if offset == LATEST:
        return queue.end
    if not queue.first <= offset <= queue.end:
        raise OptionError(
            key, offset,
            f"an offset of {queue.topic} queue {queue.queue_id} of {store.broker}, whose files hold "
            f"{queue.first} to {queue.end} (-2: earliest; a running broker writes its queues once a second)",
        )  # fmt: skip
    return offset


def _by_time(queue: QueueRange, log: LogFiles, choice: StoreChoice) -> QueueRange:
    """Without the entries whose messages are too old or too new: store times only grow."""
    with QueueFiles(queue.run) as files:
        first = queue.first if choice.after_ms is None else _first_from(queue, files, log, choice.after_ms)
        end = queue.end if choice.before_ms is None else _first_from(queue, files, log, choice.before_ms)
    return replace(queue, first=first, end=max(first, end))


def _first_from(queue: QueueRange, files: QueueFiles, log: LogFiles, moment_ms: int) -> int:
    """The first entry whose message was stored then or later."""
    low, high = queue.first, queue.end
    while low < high:
        middle = probe = (low + high) // 2
        step = 1
        # If a damaged record has no time, a later message is probed instead.
        while (stored_ms := log.stored_ms(files.entry(probe)[0])) < 0 and probe + step < high:
            probe += step
            step *= 2
        if 0 <= stored_ms < moment_ms:
            low = probe + 1
        else:
            high = middle if stored_ms < 0 else probe
    return low


@dataclass(frozen=True, slots=True)
class _Sample:
    """Some entries of many queues: where in the log they point, and how many bytes each stands for."""

    places: np.ndarray[Any, np.dtype[np.int64]]
    weights: np.ndarray[Any, np.dtype[np.float64]]

    @property
    def total(self) -> int:
        return int(self.weights.sum())

    @classmethod
    def of(cls, store: Store, queues: Sequence[QueueRange]) -> _Sample:
        found: list[int] = []
        weights: list[float] = []
        for queue in queues:
            count = queue.end - queue.first
            picked = np.unique(np.linspace(queue.first, queue.end - 1, min(count, _SAMPLES)).astype(np.int64))
            with QueueFiles(queue.run) as files:
                for entry in picked.tolist():
                    place, length = files.entry(entry)
                    if store.log_start <= place < store.log_end and 0 < length < BLANK_SIZE:
                        found.append(place)
                        weights.append(length * count / len(picked))
        order = np.argsort(np.array(found, np.int64), kind="stable")
        return cls(np.array(found, np.int64)[order], np.array(weights, np.float64)[order])


def _queue_splits(store: Store, queues: Sequence[QueueRange], sample: _Sample, step: int) -> Iterator[Split]:
    if not queues:
        return
    count = max(1, -(-sample.total // step))
    cuts = [store.log_start]
    if count > 1:
        done = np.cumsum(sample.weights)
        at = np.searchsorted(done, np.arange(1, count) * (sample.total / count), "right")
        cuts += [int(place) for place in np.unique(sample.places[np.minimum(at, len(sample.places) - 1)])]
    cuts = [*(cut for cut in dict.fromkeys(cuts) if cut < store.log_end), store.log_end]
    pieces: list[list[QueueRange]] = [[] for _ in cuts[1:]]
    for queue in queues:
        with QueueFiles(queue.run) as files:
            first = queue.first
            for inside, high in zip(pieces, cuts[1:], strict=True):
                end = files.first_at(first, queue.end, high) if high < cuts[-1] else queue.end
                if first < end:
                    touched = queue.run.between(first * SIMPLE.size, end * SIMPLE.size)
                    inside.append(replace(queue, run=touched, first=first, end=end))
                first = end
    for inside, (low, high) in zip(pieces, pairwise(cuts), strict=True):
        if inside:
            yield Split(store.broker, store.log.between(low, high), low, high, tuple(inside))


# --- the log --------------------------------------------------------------------------------------


def _log_splits(store: Store, step: int, choice: StoreChoice) -> list[Split]:
    with LogFiles(store.log) as log:
        ranges = cut(log, store.log_start, store.log_end, step, store.queues)
        times = [log.stored_ms(start) for start, _ in ranges]
    later = [*times, -1][1:]  # the first time of the piece behind: not known of the last
    splits = []
    for (start, end), first_ms, next_ms in zip(ranges, times, later, strict=True):
        if choice.after_ms is not None and 0 <= next_ms < choice.after_ms:
            continue  # all of it is older
        if choice.before_ms is not None and first_ms >= choice.before_ms:
            continue
        splits.append(Split(store.broker, store.log.between(start, end), start, end))
    return splits
