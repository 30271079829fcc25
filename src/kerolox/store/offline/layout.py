"""Places and sizes of a store's files, found without changing anything.

Everything here only reads: it works on a store that another process has open, on a read-only disk, and on one
written by Apache RocketMQ. Sizes come from the options of the broker, or from the files themselves.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence

import msgspec

from kerolox.store.delay_table import parse_levels
from kerolox.store.disk.files import File, Files, PathLike
from kerolox.store.disk.segment import OpenFiles
from kerolox.store.disk.segments import Segments
from kerolox.store.errors import FileMissing, ReadOnlyDisk, StoreError
from kerolox.store.index.index_file import file_size
from kerolox.store.offline.half_made import refuse_half_made
from kerolox.store.options import GIB, INDEX_SIZES, StoreOptions
from kerolox.store.queue.entry import SIMPLE

QUEUES = "consumequeue"
BATCH_QUEUES = "batchconsumequeue"
INDEX = "index"
LIGHT_QUEUE_PREFIX = "%LMQ%"
LEDGER_PREFIX = "dledger-"  # prefix of the directory of a DLedger group member
ASIDE = ".before-repair-"
UNFINISHED = ".repairing"
FROM_CONFIG = "pass the broker's configuration file (-c), which names it."


class Finding(msgspec.Struct, frozen=True):
    """Problem of a store, or (``note``) a fact that is only worth knowing."""

    kind: str
    path: str
    what: str
    next: str = ""
    offset: int | None = None  # offset in the log, the queue or the index file, as ``what`` says
    note: bool = False


class OnlyReading(Files):
    """File system without writes. Listings omit ``hidden`` paths."""

    def __init__(self) -> None:
        self.hidden: set[str] = set()

    def open(self, path: PathLike, *, read_only: bool = False) -> File:
        return super().open(path, read_only=True)

    def list_dir(self, path: PathLike) -> list[str]:
        names = super().list_dir(path)
        return [name for name in names if os.path.join(path, name) not in self.hidden]

    def create(
        self, path: PathLike, size: int = 0, *, write_zeros: bool = False, sparse: bool = False
    ) -> File:
        raise ReadOnlyDisk(f"cannot create {os.fspath(path)}: this command only reads", path=os.fspath(path))

    def remove(self, path: PathLike) -> bool:
        return False

    def rename(self, source: PathLike, target: PathLike) -> None:
        raise ReadOnlyDisk(f"cannot rename {os.fspath(source)}: this command only reads")


class NotForEntries(StoreError):
    """DLedger log where only a plain one is supported. Nothing was changed."""


class Layout(msgspec.Struct):
    """Places and sizes of one store."""

    root: str
    log_paths: list[str]
    read_only_paths: list[str]
    log_file_bytes: int
    queue_file_bytes: int
    index_slots: int
    index_entries: int
    delay_levels: tuple[int, ...]
    light_queues: bool  # True if messages are also appended to the light queues (LMQ) they name
    index_enabled: bool | None  # None: unknown
    entry_paths: list[str] = []  # for a member of a DLedger group: directories of its entries
    entry_index_path: str = ""  # directory of the index of its entries
    timer_log_file_bytes: int = 0

    def path(self, name: str) -> str:
        return os.path.join(self.root, name)

    @property
    def index_file_bytes(self) -> int:
        return file_size(self.index_slots, self.index_entries)


def store_in(folder: PathLike, files: Files) -> str:
    """Return the store in a folder: the folder itself, or the only store below it, as with ``kerolox up``."""
    root = files.absolute(folder)
    if files.is_dir(os.path.join(root, "commitlog")) or ledgers_in(root, files):
        return root
    below = [
        path
        for name in files.list_dir(root)
        if files.is_dir(path := os.path.join(root, name))
        and (files.is_dir(os.path.join(path, "commitlog")) or ledgers_in(path, files))
    ]
    if len(below) > 1:
        names = ", ".join(below)
        raise FileMissing(f"{root} is not a store. Give one of the {len(below)} stores below it: {names}.")
    return below[0] if below else root


def find_layout(
    root: PathLike,
    options: StoreOptions | None = None,
    files: Files | None = None,
    *,
    elsewhere: str = FROM_CONFIG,
) -> Layout:
    """Return the layout of the store in a directory, or in the only one below it.

    Without options, sizes are those of the files. ``elsewhere``: the next step for a log in another
    directory, for errors.
    """
    files = files or OnlyReading()
    if options is None or not (options.commit_log_paths or options.ledger):
        root = store_in(root, files)
    root = files.absolute(root)
    if not files.is_dir(root):
        raise FileMissing(f"{root} is not a directory. Give the directory of a store (storePathRootDir).")
    refuse_half_made(root, files)
    known = options or StoreOptions()
    log_paths = split_paths(known.commit_log_paths) or [os.path.join(root, "commitlog")]
    read_only_paths = split_paths(known.read_only_paths)
    entry_paths, entry_index = _entries_of(root, known, files, elsewhere)
    if not any(files.is_dir(path) for path in log_paths + read_only_paths + entry_paths):
        raise FileMissing(
            f"{root} has no commit log: the directory {log_paths[0]} does not exist. If the log is in "
            f"another directory, {elsewhere}"
        )
    queues = os.path.join(root, QUEUES)
    topics = files.list_dir(queues)
    light = any(name.startswith(LIGHT_QUEUE_PREFIX) for name in topics)
    slots, entries = known.index_slots, known.index_entries
    timer_bytes = known.timer_log_file_bytes
    if options is not None:
        log_bytes, queue_bytes = options.commit_log_file_bytes, options.queue_file_size
    else:
        log_bytes = _common_size(files, entry_paths + log_paths + read_only_paths) or GIB
        directories = [
            os.path.join(queues, topic, number)
            for topic in topics
            for number in files.list_dir(os.path.join(queues, topic))
        ]
        queue_bytes = _common_size(files, directories) or SIMPLE.per_file * SIMPLE.size
        timer_bytes = _common_size(files, [os.path.join(root, "timerlog")]) or timer_bytes
        index = os.path.join(root, INDEX)
        sizes = {files.size(os.path.join(index, name)) for name in files.list_dir(index)}
        for pair in INDEX_SIZES:  # slots and entries cannot be derived from a size, so only known pairs count
            if sizes == {file_size(*pair)}:
                slots, entries = pair
    return Layout(
        root=root,
        log_paths=log_paths,
        read_only_paths=read_only_paths,
        log_file_bytes=log_bytes,
        queue_file_bytes=queue_bytes,
        index_slots=slots,
        index_entries=entries,
        delay_levels=parse_levels(known.delay_levels),
        light_queues=known.multi_dispatch or light,
        index_enabled=None if options is None else options.index_enabled,
        entry_paths=entry_paths,
        entry_index_path=entry_index,
        timer_log_file_bytes=timer_bytes,
    )


def ledgers_in(root: PathLike, files: Files) -> list[str]:
    """Return the directories of DLedger group members in a store that have at least one file."""
    return [
        name
        for name in files.list_dir(root)
        if name.startswith(LEDGER_PREFIX)
        and any(
            is_segment_name(file)
            for part in ("data", "index")
            for file in files.list_dir(os.path.join(root, name, part))
        )
    ]


def _entries_of(root: str, options: StoreOptions, files: Files, elsewhere: str) -> tuple[list[str], str]:
    """Return the directories of a DLedger group member's entries, and of their index; empty if the store has
    no member."""
    names = ledgers_in(root, files)
    if options.ledger:
        names = [LEDGER_PREFIX + options.ledger_self_id]
    if not names:
        return [], ""
    if len(names) > 1:
        raise FileMissing(
            f"{root} holds the logs of several DLedger group members ({', '.join(names)}). To choose one "
            f"(dLegerSelfId), {elsewhere}"
        )
    member = os.path.join(root, names[0])
    paths = split_paths(options.ledger_paths) or [os.path.join(member, "data")]
    if (
        not any(is_segment_name(name) for path in paths for name in files.list_dir(path))
        and not options.ledger
    ):
        raise FileMissing(
            f"{member} has an index and no data: its log is in another directory "
            f"(storePathDLedgerCommitLog): {elsewhere}"
        )
    return paths, os.path.join(member, "index")


def open_log_run(layout: Layout, files: OnlyReading, findings: list[Finding]) -> Segments:
    """Return the files of a store's log for reading, plain ones and those of entries. See log/framing.py."""
    directories = list(dict.fromkeys(layout.log_paths + layout.read_only_paths + layout.entry_paths))
    segments = open_run(files, OpenFiles(files), directories, layout.log_file_bytes, findings)
    for segment in segments.all:
        if os.path.dirname(segment.path) in layout.entry_paths:
            segments.entries_from = segment.start
            break
    return segments


def refuse_entries(layout: Layout, what: str, instead: str) -> None:
    """Raise if the log is a DLedger member's, for ``what``, which supports only plain logs."""
    if layout.entry_paths:
        raise NotForEntries(
            f"{what} does not support DLedger logs, but {layout.root} has one, in {layout.entry_paths[0]}. "
            f"{instead}",
            path=layout.entry_paths[0],
        )


def split_paths(text: str) -> list[str]:
    return [os.path.abspath(word.strip()) for word in text.split(",") if word.strip()]


def is_segment_name(name: str) -> bool:
    return name.isascii() and name.isdigit() and len(name) == 20


def _common_size(files: Files, directories: Sequence[str]) -> int:
    sizes: Counter[int] = Counter()
    for directory in directories:
        if not files.is_dir(directory):
            continue
        for name in files.list_dir(directory):
            if is_segment_name(name):
                try:
                    sizes[files.size(os.path.join(directory, name))] += 1
                except FileMissing:
                    continue  # deleted meanwhile
        if sum(sizes.values()) > 100:
            break
    del sizes[0]
    return sizes.most_common(1)[0][0] if sizes else 0


def open_run(
    files: OnlyReading, open_files: OpenFiles, directories: Sequence[str], size: int, findings: list[Finding]
) -> Segments:
    """Return the files of a log or queue for reading. Files that do not fit are reported and left out."""
    seen: list[tuple[int, str]] = []
    for directory in directories:
        for name in files.list_dir(directory):
            path = os.path.join(directory, name)
            if files.is_dir(path):
                continue
            fault = _fault(files, path, name, size)
            if fault is None:
                seen.append((int(name), path))
            else:
                files.hidden.add(path)
                findings.append(fault)
    end = -1
    for start, path in sorted(seen):
        if start < end:
            files.hidden.add(path)
            findings.append(
                Finding("overlap", path, f"overlaps the previous file, which ends at {end}", "move it away")
            )
            continue
        end = start + size
    segments = Segments(files, directories, size, open_files=open_files, read_only_directories=directories)
    segments.load()
    return segments


def _fault(files: Files, path: str, name: str, size: int) -> Finding | None:
    if not is_segment_name(name):
        what = "does not belong here: its name is not a 20-digit offset"
        return Finding(
            "stray file", path, what, "move it out of the directory: Apache's broker would not start"
        )
    actual = files.size(path)
    if actual == size:
        return None
    if not actual:
        return Finding(
            "empty file",
            path,
            "has no content: power was lost soon after it was created",
            "none if it is the last one: the next start removes it",
            note=True,
        )
    return Finding(
        "wrong size",
        path,
        f"is {actual} bytes long, expected {size}",
        "restore it from a backup; if the size option was changed, set it back",
    )
