"""Summary of a store."""

from __future__ import annotations

import os
from typing import Any

from kerolox.store.disk.checkpoint import Checkpoint
from kerolox.store.disk.progress_notes import ProgressNotesFile
from kerolox.store.disk.segment import OpenFiles
from kerolox.store.disk.segments import Segments
from kerolox.store.index.index_file import HEADER
from kerolox.store.log.framing import head_bytes
from kerolox.store.log.readable_log import store_timestamp_of
from kerolox.store.offline.layout import INDEX, QUEUES, Finding, Layout, OnlyReading, open_log_run, open_run
from kerolox.store.queue.entry import BLANK_SIZE, SIMPLE


def summarize(layout: Layout) -> dict[str, Any]:
    """Return a summary of a store: log, queues, index, and the state in which it was left. Reads a few bytes
    of each file."""
    files = OnlyReading()
    open_files = OpenFiles(files)
    findings: list[Finding] = []
    log = open_log_run(layout, files, findings)
    log_min = max(0, log.min_offset)
    queues: list[dict[str, Any]] = []
    queues_end = log_min
    root = layout.path(QUEUES)
    for topic in files.list_dir(root):
        for name in sorted(files.list_dir(os.path.join(root, topic)), key=lambda name: (len(name), name)):
            path = os.path.join(root, topic, name)
            if name.isascii() and name.isdigit() and files.is_dir(path):
                segments = open_run(files, open_files, [path], layout.queue_file_bytes, findings)
                low, high, end = queue_range(segments, log_min)
                queues_end = max(queues_end, end)
                queues.append(
                    {"topic": topic, "queue": int(name), "min": low, "max": high, "files": len(segments.all)}
                )
    marks = ProgressNotesFile(files, layout.root).load()
    checkpoint = Checkpoint(files, layout.path("checkpoint"))
    checkpoint.load()
    return {
        "store": layout.root,
        "state": "in use, or not stopped cleanly"
        if files.exists(layout.path("abort"))
        else "stopped cleanly",
        "log": {
            "from": log_min,
            "toAtLeast": max(queues_end, marks.log_end, marks.dispatched, log_min),
            "files": len(log.all),
            "fileBytes": layout.log_file_bytes,
            "firstStoreTimestamp": _first_ms(log),
            "gaps": log.gaps,
            **({"entriesFrom": log.entries_from} if layout.entry_paths else {}),
        },
        "queues": queues,
        "index": [
            _index_file(files, layout.path(INDEX), name) for name in files.list_dir(layout.path(INDEX))
        ],
        "checkpoint": {
            "logFlushed": checkpoint.commit_log_ms,
            "queuesFlushed": checkpoint.queues_ms,
            "indexFull": checkpoint.index_ms,
        },
        "problems": [f"{finding.path}: {finding.what}" for finding in findings],
    }


def queue_range(segments: Segments, log_min: int) -> tuple[int, int, int]:
    """Return the first offset still in the log, the next offset, and the end of the last message in the
    log."""
    first = segments.first
    if first is None:
        return 0, 0, 0

    def entry(number: int) -> tuple[int, int, int]:
        return SIMPLE.at(segments.read(number * SIMPLE.size, SIMPLE.size))

    # Written entries, then zeros: bisection finds the boundary.
    low, high = first.start // SIMPLE.size, segments.max_offset // SIMPLE.size
    start = low
    while low < high:
        middle = (low + high) // 2
        segment = segments.segment_at(middle * SIMPLE.size)
        if segment is not None and entry(middle)[1] <= 0:
            high = middle
        else:
            low = middle + 1
    end = low
    physical, size, _ = entry(end - 1) if end > start else (0, 0, 0)
    last = 0 if size == BLANK_SIZE else physical + size
    low, high = start, end
    while low < high:
        middle = (low + high) // 2
        segment = segments.segment_at(middle * SIMPLE.size)
        found = entry(middle) if segment is not None else (0, BLANK_SIZE, 0)
        if found[1] != BLANK_SIZE and found[0] >= log_min:
            high = middle
        else:
            low = middle + 1
    return low, end, last


def _first_ms(log: Segments) -> int:
    first = log.first
    if first is None:
        return 0
    at = first.start + head_bytes(log, first.start)
    return max(0, store_timestamp_of(log.read(at, min(76, log.readable(at)))))


def _index_file(files: OnlyReading, root: str, name: str) -> dict[str, Any]:
    with files.open(os.path.join(root, name)) as file:
        data = file.pread(HEADER.size, 0).ljust(HEADER.size, b"\0")
    begin, end, first, last, _, count = HEADER.unpack(data)
    return {
        "file": name,
        "entries": max(0, count - 1),
        "beginTimestamp": begin,
        "endTimestamp": end,
        "beginOffset": first,
        "endOffset": last,
    }
