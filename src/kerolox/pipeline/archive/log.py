"""The log of a Parquet archive: its committed files, and the next offset of each queue.

::

    DIR/_kerolox/archive.json                       form, columns and partitions of the archive
    DIR/_kerolox/commits/00000000000000000107.json  one for each round
    DIR/_kerolox/files/00000000000000000100.json    all files up to a commit, to save reading all commits
    DIR/_kerolox/staging/...                        files of the round that is being written
    DIR/topic=orders/date=2026-11-16/hour=03/0000000007-002-001.parquet

A round of the archive ends with one commit: a numbered JSON document with its files, the offsets they cover
and the next offset of every queue. It gets its name in one atomic step, which is the commit: on disk a hard
link, in an object store a conditional put. Before it, the round's files lie in ``staging``, which readers
skip (names with ``_`` are hidden from Spark, Hive, DuckDB and Arrow); after it they are moved to their
places. After a crash the next start first completes the last commit, then deletes the other files in
``staging``. So a file outside of ``_kerolox`` is always committed, every message is in exactly one of them,
and ``spark.read.parquet(DIR)`` reads no message twice: at worst it reads between the commit and the moves,
and misses the new files until the next read.

Files that a commit replaces (small ones, joined into a large one) are deleted before the new one appears,
for the same reason.

Two writers. On disk a lock keeps the second one out. An object store has no locks, and needs none: of two
runs that write the same commit number one is rejected, and stops with nothing published. A run that finds
files of another one in ``staging`` cannot know if that run is dead. So before it deletes them it takes the
next number with an empty commit: if the other run is alive, its commit is then rejected, and its files can
never become part of the archive. The newest run wins. Publishing the same commit twice is harmless: a file
is copied from ``staging`` only while it exists there, and it is removed from there before any later commit
can remove the published file.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final, TypeVar

import msgspec

from kerolox.client.messages import Queue
from kerolox.clock import SYSTEM_CLOCK, Clock
from kerolox.errors import KeroloxError, OptionError
from kerolox.pipeline.archive.files import Format, TaskResult, WrittenFile
from kerolox.pipeline.archive.folders import PARTITIONS
from kerolox.pipeline.archive.joining import JoinRule, JoinTask, end_ms, small_files
from kerolox.pipeline.archive.staging import NOTHING, OWN_FOLDER, Expired, Staging
from kerolox.pipeline.lake.local_folder import LocalFolder
from kerolox.pipeline.lake.storage import Storage, StorageError, open_storage
from kerolox.spark.last_read import LastReads
from kerolox.spark.offsets import (
    LastTree,
    QueueOffsets,
    Tree,
    from_last_tree,
    from_tree,
    last_tree,
    to_tree,
)
from kerolox.store.disk.files import Files
from kerolox.store.disk.lock import StoreLock
from kerolox.store.errors import StoreLocked

FORM: Final = "kerolox-archive-1"
HEAD: Final = f"{OWN_FOLDER}/archive.json"
COMMITS: Final = f"{OWN_FOLDER}/commits"
SAVED: Final = f"{OWN_FOLDER}/files"
SAVE_EVERY: Final = 100  # commits

T = TypeVar("T")
_FILE_NAME = re.compile(r"\d{10}-\d{3,}-\d{3,}\.parquet").fullmatch

OffsetRanges = dict[str, dict[str, dict[str, tuple[int, int]]]]  # topic, broker, queue: start, end


class ArchiveDamaged(KeroloxError):
    """An archive whose files differ from its log."""


class Head(msgspec.Struct, frozen=True):
    """Description of an archive, written once."""

    form: str
    properties: str
    columns: list[str]
    made_ms: int
    partitions: tuple[str, ...] = PARTITIONS


class Commit(msgspec.Struct, frozen=True, omit_defaults=True):
    """One commit of an archive."""

    form: str
    number: int
    at_ms: int
    group: str
    ranges: OffsetRanges  # offsets read for this commit
    offsets: Tree  # next offset of every queue
    files: list[WrittenFile] = []
    removed: list[str] = []  # files whose rows are all in ``files`` now
    missing: dict[str, int] = {}  # by topic: messages deleted before they were read
    last: LastTree = {}  # identity of the message before each offset, where known
    run: str = ""  # run that made it: no two runs write the same document


class ParquetArchive:
    """Folder of Parquet files with a log. One process at a time writes to it."""

    def __init__(self, root: str | os.PathLike[str] | Storage, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self.storage = open_storage(root)
        self.places: QueueOffsets = {}
        self.last_read: LastReads = {}
        self.number = 0  # number of the last commit
        self._clock = clock
        self._lock = StoreLock(Files(), self.storage.lock_folder)
        self._staging = Staging(self.storage, clock)
        self.swept = NOTHING  # files of killed runs that were removed
        self._unpublished: Commit | None = None  # last commit of this run, if its files are not all published
        self._is_unsure = False  # True: the last commit may or may not exist

    @property
    def staging(self) -> str:
        return self._staging.folder

    # --- open and close -------------------------------------------------------------------------------

    def open(self, format: Format) -> Format:
        """Open the archive for writing in its own format, and complete the last commit of a killed run."""
        check_folder(self.storage)
        if self.storage.files("_delta_log"):
            raise OptionError("to", self.storage.address, "--delta with it: this is a Delta table")
        take_lock(self._lock, self.storage)
        try:
            self.storage.check_decides()
            format = self._check_head(format)
            self._catch_up()
            self._sweep()
        except BaseException:
            self._lock.release()
            raise
        return format

    def close(self) -> None:
        if self._lock.held:
            if self._unpublished is None and not self._is_unsure:  # else the next start needs the files
                self._staging.clear()
            self._lock.release()

    def _catch_up(self) -> None:
        """Complete the last commit, and continue from it."""
        last = self.last()
        if last is not None:
            self._publish(last)
            self.number = last.number
            self.places = from_tree(last.offsets)
            self.last_read = from_last_tree(last.last)

    def _sweep(self) -> None:
        """Remove files of killed runs, once no other run can commit them any more."""
        left = self._staging.leftovers()
        while left and not self.storage.is_local:
            try:
                self._write(self._made("", {}, self.places))
            except FileExistsError:  # the other run is alive
                self._catch_up()
                left = self._staging.leftovers()
            else:
                self.number += 1
                break
        self.swept = self._staging.sweep(left)

    def _check_head(self, format: Format) -> Format:
        if not self.storage.exists(HEAD):
            begun = replace(format, partitions=format.partitions or PARTITIONS)
            columns = [*begun.folders, *begun.schema().names]
            new = Head(FORM, begun.properties, columns, self._clock.wall_ms(), begun.partitions)
            try:
                self.storage.put_if_absent(HEAD, msgspec.json.format(msgspec.json.encode(new)))
            except FileExistsError:
                pass  # another run began it at the same moment
        head = read_head(self.storage)
        format = same_partitions(format, head.partitions)
        if (head.properties, head.columns) != (format.properties, [*format.folders, *format.schema().names]):
            raise OptionError(
                "properties",
                format.properties,
                f"{head.properties}, as when this archive was created (columns {', '.join(head.columns)}): "
                "all its files have the same columns",
            )
        return format

    def find_places(self, queues: Iterable[Queue]) -> None:
        """Do nothing: the last commit has all offsets."""

    # --- commits --------------------------------------------------------------------------------------

    def stem(self) -> str:
        """Return the prefix of the next commit's file names."""
        return f"{self.number + 1:010d}"

    def commit(
        self,
        group: str,
        ranges: OffsetRanges,
        places: QueueOffsets,
        files: Iterable[WrittenFile],
        *,
        missing: dict[str, int] | None = None,
        removed: Iterable[str] = (),
        last: LastReads | None = None,
    ) -> Commit:
        """Commit files and offsets. When this returns, the commit survives any crash."""
        files = list(files)
        self._publish_last()
        last = self.last_read if last is None else last
        made = self._made(group, ranges, places, files, missing, removed, last)
        self._is_unsure = True
        try:
            self._write(made)
        except FileExistsError:
            self.discard(files)
            self._is_unsure = False
            raise KeroloxError(
                f"another run has written {self.storage.name(self._path(made.number))} meanwhile. Only one "
                "run may write to an archive at a time: this one stops, and has changed nothing"
            ) from None
        except StorageError as error:
            raise KeroloxError(
                f"the outcome of commit {made.number} of {self.storage} is unknown: {error}. "
                "Start again: the same command continues after the last commit"
            ) from error
        self.number = made.number
        self.places, self.last_read = dict(places), dict(last)
        self._unpublished, self._is_unsure = made, False
        self._publish_last()
        return made

    def _publish_last(self) -> None:
        """Publish the last commit before the next one is made: a new run completes only the last one."""
        if self._unpublished is not None:
            self._publish(self._unpublished)
            self._unpublished = None

    def _made(
        self,
        group: str,
        ranges: OffsetRanges,
        places: QueueOffsets,
        files: Iterable[WrittenFile] = (),
        missing: dict[str, int] | None = None,
        removed: Iterable[str] = (),
        last: LastReads | None = None,
    ) -> Commit:
        return Commit(
            form=FORM,
            number=self.number + 1,
            at_ms=self._clock.wall_ms(),
            group=group,
            ranges=ranges,
            offsets=to_tree(places),
            files=sorted(files, key=lambda file: file.path),
            removed=sorted(removed),
            missing=missing or {},
            last=last_tree(self.last_read if last is None else last),
            run=self._staging.run,
        )

    def discard(self, files: Iterable[WrittenFile]) -> None:
        self._staging.discard(files)

    def _write(self, made: Commit) -> None:
        """Write the commit in one atomic step. Raise FileExistsError if another run has the number."""
        self.storage.put_if_absent(self._path(made.number), msgspec.json.encode(made))

    def _publish(self, commit: Commit) -> None:
        """Delete the removed files of a commit and move its new files to their places. Idempotent."""
        if failed := self.storage.delete(commit.removed):
            raise StorageError(
                f"{failed} files of {self.storage} that commit {commit.number} removes cannot be deleted. "
                "Their replacements are not published yet, because messages would be duplicated. Check the "
                "permission to delete, then start again"
            )
        for file in self._staging.publish(commit.files):
            if self.numbers()[-1:] != [commit.number]:
                raise KeroloxError(f"another run has continued {self.storage}: this one stops")
            raise ArchiveDamaged(
                f"commit {commit.number} of {self.storage} names {file.path}, which does not exist, nor does "
                f"{file.staged}. Was it deleted? The log is {self.storage.name(self._path(commit.number))}"
            )

    def _path(self, number: int) -> str:
        return f"{COMMITS}/{number:020d}.json"

    def numbers(self) -> list[int]:
        """Return the numbers of all commits, ascending."""
        return self._numbers(COMMITS)

    def _numbers(self, folder: str) -> list[int]:
        names = (file.path.rsplit("/", 1)[-1] for file in self.storage.files(folder))
        return sorted(int(name.removesuffix(".json")) for name in names if name[0].isdigit())

    def last(self) -> Commit | None:
        numbers = self.numbers()
        return self._decoded(self._path(numbers[-1]), Commit) if numbers else None

    def commits(self, after: int = 0) -> Iterator[Commit]:
        """Iterate over the commits, oldest first. Takes no lock, so readers may call it."""
        paths = [self._path(number) for number in self.numbers() if number > after]
        for path, content in zip(paths, self.storage.read_many(paths), strict=True):
            yield _document(self.storage.name(path), content, Commit)

    def files(self) -> dict[str, WrittenFile]:
        """Return the committed files, by their paths below the folder."""
        found: dict[str, WrittenFile] = {}
        saved = self._saved()
        if saved:
            found = {file.path: file for file in self._decoded(self._saved_path(saved), list[WrittenFile])}
        for commit in self.commits(saved):
            for path in commit.removed:
                found.pop(path, None)
            found.update((file.path, file) for file in commit.files)
        return found

    def _decoded(self, path: str, kind: type[T]) -> T:
        return _document(self.storage.name(path), self.storage.read(path), kind)

    def expire(self, before_ms: int) -> Expired:
        """Remove the hours that ended before a time, by a commit. The offsets of the queues stay."""
        listed = [file.path for file in self.storage.files() if _is_ours(file.path)]
        known = self.files()  # read after the list: files published before it are in the log by now
        old = [file for file in known.values() if end_ms(file.date, file.hour) <= before_ms]
        if old:
            self.commit("", {}, self.places, [], removed=[file.path for file in old])
        orphans = [path for path in listed if path not in known]
        self.storage.delete(orphans)
        self.storage.prune({path.rsplit("/", 1)[0] for path in [*orphans, *(file.path for file in old)]})
        return Expired(
            len(old), sum(file.rows for file in old), sum(file.bytes for file in old), len(orphans)
        )

    def join(
        self,
        run: Callable[[Sequence[JoinTask]], Sequence[TaskResult]],
        format: Format,
        rule: JoinRule | None = None,
    ) -> int:
        """Join small files of past hours and return how many there were."""
        if self.number - self._saved() >= SAVE_EVERY:
            kept = sorted(self.files().values(), key=lambda file: file.path)
            self.storage.put(self._saved_path(self.number), msgspec.json.encode(kept))
        sets = small_files(self.files().values(), self._clock.wall_ms(), format, rule)
        if not sets:
            return 0
        stem = self.stem()
        works = [
            JoinTask(files[0].topic, tuple(files), self.storage, self.staging, f"{stem}-{number:03d}", format)
            for number, files in enumerate(sets)
        ]
        results = run(works)
        made = [file for done in results for file in done.files]
        failed = [done.error for done in results if done.error]
        if failed:
            self.discard(made)
            raise KeroloxError(f"small files of {self.storage} could not be joined: {failed[0]}")
        gone = [file.path for files in sets for file in files]
        self.commit("", {}, self.places, made, removed=gone)
        return len(gone)

    def _saved(self) -> int:
        """Return the last commit for which a list of files was saved; 0 without one."""
        return max(self._numbers(SAVED), default=0)

    def _saved_path(self, number: int) -> str:
        return f"{SAVED}/{number:020d}.json"


def _is_ours(path: str) -> bool:
    """Return True for a file whose name and folder are those of an archive. Other files are never removed."""
    return path.startswith("topic=") and _FILE_NAME(path.rsplit("/", 1)[-1]) is not None


# --- shared with the Delta archive --------------------------------------------------------------------


def read_head(storage: Storage) -> Head:
    """Read the description of an archive. Raises FileNotFoundError if there is no archive."""
    head = _document(storage.name(HEAD), storage.read(HEAD), Head)
    if head.form != FORM:
        raise ArchiveDamaged(
            f"{storage.name(HEAD)} has the form {head.form!r}; this version of kerolox reads {FORM!r}"
        )
    return head


def check_folder(storage: Storage) -> None:
    """Check that the folder is an archive, empty or missing, and can be written."""
    if isinstance(storage, LocalFolder):
        root, own = storage.root, storage.root / OWN_FOLDER
        if root.exists() and not root.is_dir():
            raise OptionError("to", str(root), "a folder; this is a file")
        is_strange = not own.exists() and not storage.is_empty()
    else:
        is_strange = not storage.is_empty() and not storage.files(OWN_FOLDER)
    if is_strange:
        raise OptionError("to", storage.address, "an archive, or a folder that is empty or does not exist")
    if isinstance(storage, LocalFolder):
        try:
            own.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OptionError("to", str(root), f"a writable folder ({error.strerror})") from None


def same_partitions(format: Format, begun: tuple[str, ...]) -> Format:
    """Return the format with the partitions of the existing archive, which cannot change."""
    if format.partitions and format.partitions != begun:
        raise OptionError(
            "partition-by", ",".join(format.partitions),
            f"{','.join(begun)}, as when this archive was created. For other folders, create another archive",
        )  # fmt: skip
    return replace(format, partitions=begun)


def take_lock(lock: StoreLock, storage: Storage) -> None:
    """Lock out other writers: on disk all of them, in an object store those on this machine."""
    try:
        lock.take()
    except StoreLocked as error:
        raise KeroloxError(
            f"another run archives to {storage}: {error.holder}. Wait until it ends, or use another folder"
        ) from None


def _document(name: str, content: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(content, type=kind)
    except msgspec.MsgspecError as error:
        raise ArchiveDamaged(f"{name} cannot be read: {error}") from error
