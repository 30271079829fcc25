"""Plan of an audit: the stores with their settings, and their logs cut into parts for tasks."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from kerolox.errors import KeroloxError, OptionError, ProtocolError
from kerolox.pipeline.audit.heads import Heads
from kerolox.pipeline.lake.store_files import Address, files_at
from kerolox.protocol import json_dialect
from kerolox.protocol.reserved import BENCHMARK_TOPIC, HALF_GROUP, HALF_TOPIC, is_of_system
from kerolox.spark.store.cutting import cut
from kerolox.spark.store.files import FileRun, LogFiles, find_run
from kerolox.spark.store.walking import LogBlock, LogWalk
from kerolox.store.disk.progress_notes import NAME as MARKS_NAME
from kerolox.store.disk.progress_notes import ProgressNotesFile
from kerolox.store.errors import FileMissing
from kerolox.store.log.cursors import fit_for_directory
from kerolox.store.offline.layout import BATCH_QUEUES, QUEUES, OnlyReading, find_layout, refuse_entries

SPAN_BYTES = 64 << 20
BLOCK_BYTES = 8 << 20
NAME_BYTES_MAX = 255  # length of a directory name on Linux


def is_users(topic: str) -> bool:
    """Return True for topics with messages of producers: those of users, and the benchmark's."""
    return topic == BENCHMARK_TOPIC or not is_of_system(topic)


class LogSpan(NamedTuple):
    """Range of the log of a store. It begins at a record, or where one should begin."""

    store: int  # number of the store
    start: int
    end: int


class StorePlan(msgspec.Struct, frozen=True):
    """One store. ``unsettled``: in use or not stopped cleanly, so its newest part may be incomplete."""

    number: int
    root: str
    label: str
    log: FileRun
    unsettled: bool
    dispatched: int  # log offset up to which the queues are complete; -1: unknown
    is_ours: bool  # kerolox wrote it last
    queue_file_bytes: int
    delay_levels: tuple[int, ...]
    light_queues: bool
    batch_topics: frozenset[str]
    topics: frozenset[str] | None  # configured topics; None: unknown
    half_progress: int  # queue offset before which all half messages are finished
    queues: tuple[tuple[str, int], ...]
    low: int  # begin of the audited part of the log
    high: int

    def queue_directory(self, topic: str, queue_id: int) -> str:
        return os.path.join(self.root, QUEUES, topic, str(queue_id))

    def queue_files(self, topic: str, queue_id: int) -> FileRun:
        """Return the files of a queue; none if its name cannot be a directory, as in a damaged message."""
        directory = self.queue_directory(topic, queue_id)
        if (
            not fit_for_directory(topic, queue_id)
            or len(topic.encode("utf-8", "surrogatepass")) > NAME_BYTES_MAX
        ):
            return FileRun(directory, (), 0, self.log.files)
        return find_run([directory], self.log.files)


def plan_stores(
    roots: Sequence[Address], *, since_ms: int | None = None, until_ms: int | None = None
) -> list[StorePlan]:
    """Plan the audit of these stores; with times, only of the messages stored between them."""
    if not roots:
        raise OptionError("STORE_DIR", "nothing", "at least one directory of a store (storePathRootDir)")
    places = dict(files_at(root) for root in roots)
    return [
        _plan(number, path, label, places[path], since_ms, until_ms)
        for number, (path, label) in enumerate(zip(places, _labels(list(places)), strict=True))
    ]


def _labels(paths: Sequence[str]) -> list[str]:
    """Return the shortest unique ends of the paths."""
    for depth in range(1, 20):
        labels = ["/".join(Path(path).parts[-depth:]) for path in paths]
        if len(set(labels)) == len(labels):
            return labels
    return list(paths)


def _plan(
    number: int,
    root: str,
    label: str,
    elsewhere: OnlyReading | None,
    since_ms: int | None,
    until_ms: int | None,
) -> StorePlan:
    if elsewhere is not None and not elsewhere.is_dir(root):
        raise OptionError(
            "STORE_DIR",
            root,
            "a store directory; nothing is there, or the bucket does not exist",
        )
    files = elsewhere or OnlyReading()
    layout = find_layout(
        root, files=files, elsewhere="check it with kerolox store verify, which is told where."
    )
    refuse_entries(layout, "the audit", "Check it with kerolox store verify.")
    run = find_run(list(dict.fromkeys(layout.log_paths + layout.read_only_paths)), elsewhere)
    queues = [
        (topic, int(name))
        for topic in files.list_dir(layout.path(QUEUES))
        for name in files.list_dir(os.path.join(layout.path(QUEUES), topic))
        if name.isascii() and name.isdigit()
    ]
    low, high = run.start, run.end
    if since_ms is not None:
        low = _place_of_time(run, since_ms)
    if until_ms is not None:
        high = _place_of_time(run, until_ms)
    return StorePlan(
        number=number,
        root=layout.root,
        label=label,
        log=run,
        unsettled=files.exists(layout.path("abort")),
        dispatched=ProgressNotesFile(files, layout.root).load().dispatched,
        is_ours=files.exists(layout.path(MARKS_NAME)),
        queue_file_bytes=layout.queue_file_bytes,
        delay_levels=layout.delay_levels,
        light_queues=layout.light_queues,
        batch_topics=frozenset(files.list_dir(layout.path(BATCH_QUEUES))),
        topics=_topics(files, layout.path("config/topics.json")),
        half_progress=_half_progress(files, layout.path("config/consumerOffset.json")),
        queues=tuple(sorted(queues)),
        low=low,
        high=max(low, high),
    )


def spans(store: StorePlan, span_bytes: int = SPAN_BYTES) -> list[LogSpan]:
    """Cut the log into ranges for tasks."""
    with LogFiles(store.log) as log:
        return [LogSpan(store.number, *ends) for ends in cut(log, store.low, store.high, span_bytes)]


def _place_of_time(run: FileRun, wanted_ms: int) -> int:
    """Return the log offset of the first message stored at a time or later; the end if there is none."""
    with LogFiles(run) as log:
        begin = 0
        for number, piece in enumerate(run.pieces):
            stored_ms = log.stored_ms(piece.start)
            if stored_ms >= wanted_ms:
                break
            if stored_ms > 0:
                begin = number
    if not run.pieces:
        return run.end
    with LogFiles(run) as log:
        for block in LogWalk(log, run.pieces[begin].start, run.end, block_bytes=BLOCK_BYTES, open_end=True):
            if isinstance(block, LogBlock):
                late = np.flatnonzero(Heads(block.bytes, block.positions).stored_ms >= wanted_ms)
                if len(late):
                    return block.base + int(block.positions[late[0]])
    return run.end


def _topics(files: OnlyReading, path: str) -> frozenset[str] | None:
    try:
        table = json_dialect.loads(files.read(path))
        return frozenset(table["topicConfigTable"])
    except (FileMissing, ProtocolError, KeyError, TypeError):
        return None


def _half_progress(files: OnlyReading, path: str) -> int:
    try:
        table = json_dialect.loads(files.read(path))["offsetTable"]
        return int(table[f"{HALF_TOPIC}@{HALF_GROUP}"]["0"])
    except (FileMissing, ProtocolError, KeyError, TypeError, ValueError):
        return 0


def known_topics(stores: Sequence[StorePlan]) -> frozenset[str]:
    """Return all topics with queues or a configuration in the stores."""
    queues = (topic for store in stores for topic, _ in store.queues)
    return frozenset(queues).union(*(store.topics or () for store in stores))


def check_topics(stores: Sequence[StorePlan], topics: Sequence[str]) -> None:
    """Raise an error for an unknown topic: its audit would find no problems and mean nothing."""
    known = known_topics(stores)
    for topic in topics:
        if topic not in known:
            near = ", ".join(sorted(name for name in known if is_users(name))[:8]) or "none"
            raise KeroloxError(f"no store has a topic {topic!r}. Topics of the stores: {near}")
