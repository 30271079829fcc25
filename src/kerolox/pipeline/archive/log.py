"""The log of a Parquet archive: which files count, and how far each queue is archived.

::

    DIR/_kerolox/archive.json                       what this is, its columns, and what folders tell
    DIR/_kerolox/commits/00000000000000000107.json  one for each round
    DIR/_kerolox/files/00000000000000000100.json    all files up to a commit, so that not all need be read
    DIR/_kerolox/staging/...                        files of the round that is being written
    DIR/topic=orders/date=2026-11-16/hour=03/0000000007-002-001.parquet

A round of the archive ends with one commit: a numbered JSON document with its files, the offsets they cover
and the next offset of every queue. It gets its name in one atomic step, and that step decides: on disk by a
hard link, in an object store by a conditional put. Before it, the
round's files lie in ``staging``, where no reader looks (names with ``_`` are hidden from Spark, Hive, DuckDB
and Arrow); after it they are moved to their places. After a crash the next start first carries out what the
last commit says, then throws away what else is in ``staging``. So a file outside of ``_kerolox`` is always
committed, every message is in exactly one of them, and ``spark.read.parquet(DIR)`` sees no message twice:
at worst it looks between the commit and the moves, and sees the rest a moment later.

Files that a commit replaces (small ones, joined to a large one) go before the new one comes, for the same
reason.

Two writers. On disk a lock keeps the second out. An object store has no locks, and needs none: of two runs
that write the same number one is refused, and stops with nothing published. A run that finds files of
another one in ``staging`` cannot know whether that one is dead. So before it sweeps it takes the next number
with an empty commit: from then on the other one, should it live, is refused, and its files can never count.
Whoever came last goes on. Publishing the same commit twice does no harm: a file is copied from ``staging``
only while it is there, and it is gone from there before any later commit can remove the file again.
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
    """The files are not what the log says."""


class Head(msgspec.Struct, frozen=True):
    """What an archive is; written once."""

    form: str
    properties: str
    columns: list[str]
    made_ms: int
    partitions: tuple[str, ...] = PARTITIONS


class Commit(msgspec.Struct, frozen=True, omit_defaults=True):
    """One step of an archive."""

    form: str
    number: int
    at_ms: int
    group: str
    ranges: OffsetRanges  # what was read for it
    offsets: Tree  # where to go on, of all queues
    files: list[WrittenFile] = []
    removed: list[str] = []  # files that hold nothing but what is in these
    missing: dict[str, int] = {}  # by topic: messages that were gone before they were read
    last: LastTree = {}  # the message before each offset, where it is known
    run: str = ""  # which run made it: no two write the same document


class ParquetArchive:
    """A folder with Parquet files and a log. One process at a time writes to it."""

    def __init__(self, root: str | os.PathLike[str] | Storage, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self.storage = open_storage(root)
        self.places: QueueOffsets = {}
        self.last_read: LastReads = {}
        self.number = 0  # of the last commit
        self._clock = clock
        self._lock = StoreLock(Files(), self.storage.lock_folder)
        self._staging = Staging(self.storage, clock)
        self.swept = NOTHING  # what killed runs had left
        self._unpublished: Commit | None = None  # ours, which is there, but not yet all it says
        self._is_unsure = False  # whether the last commit is there

    @property
    def staging(self) -> str:
        return self._staging.folder

    # --- open and close -------------------------------------------------------------------------------

    def open(self, format: Format) -> Format:
        """Take it for writing, in the form it began with. What a killed run left undone is done first."""
        check_folder(self.storage)
        if self.storage.files("_delta_log"):
            raise OptionError("to", self.storage.address, "a Delta table to be written with --delta")
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
            if self._unpublished is None and not self._is_unsure:  # else the next start needs it
                self._staging.clear()
            self._lock.release()

    def _catch_up(self) -> None:
        """Go on from the last commit, once all it says is carried out."""
        last = self.last()
        if last is not None:
            self._publish(last)
            self.number = last.number
            self.places = from_tree(last.offsets)
            self.last_read = from_last_tree(last.last)

    def _sweep(self) -> None:
        """Remove what killed runs have left, after no other run can commit any more."""
        left = self._staging.leftovers()
        while left and not self.storage.is_local:
            try:
                self._write(self._made("", {}, self.places))
            except FileExistsError:  # the other one lives
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
                f"{head.properties}, with which this archive began (columns {', '.join(head.columns)}): "
                "all its files have the same columns",
            )
        return format

    def find_places(self, queues: Iterable[Queue]) -> None:
        """Nothing to find: the log has told."""

    # --- commits --------------------------------------------------------------------------------------

    def stem(self) -> str:
        """What the names of the next commit's files begin with."""
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
        """Commit it. When this returns, the commit survives any crash."""
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
                f"{self.storage.name(self._path(made.number))} was made by another run meanwhile. Two must "
                "not write to one archive at the same time: this one stops, and has changed nothing"
            ) from None
        except StorageError as error:
            raise KeroloxError(
                f"whether commit {made.number} of {self.storage} is there is not known: {error}. "
                "Start again: the same command goes on with what is committed"
            ) from error
        self.number = made.number
        self.places, self.last_read = dict(places), dict(last)
        self._unpublished, self._is_unsure = made, False
        self._publish_last()
        return made

    def _publish_last(self) -> None:
        """Every commit is carried out before the next is made: a next run looks at the last alone."""
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
        """Here it is decided. Raises FileExistsError when another run has the number."""
        self.storage.put_if_absent(self._path(made.number), msgspec.json.encode(made))

    def _publish(self, commit: Commit) -> None:
        """Carry out what a commit says. Doing it again changes nothing."""
        if failed := self.storage.delete(commit.removed):
            raise StorageError(
                f"{failed} files of {self.storage} that commit {commit.number} removes cannot be deleted. "
                "What replaces them is not published before: messages would be there twice"
            )
        for file in self._staging.publish(commit.files):
            if self.numbers()[-1:] != [commit.number]:
                raise KeroloxError(f"another run goes on with {self.storage}: this one stops")
            raise ArchiveDamaged(
                f"commit {commit.number} of {self.storage} names {file.path}; it is neither there nor in "
                f"{file.staged}. Was it deleted? The log is {self.storage.name(self._path(commit.number))}"
            )

    def _path(self, number: int) -> str:
        return f"{COMMITS}/{number:020d}.json"

    def numbers(self) -> list[int]:
        """The numbers of all commits, ascending."""
        return self._numbers(COMMITS)

    def _numbers(self, folder: str) -> list[int]:
        names = (file.path.rsplit("/", 1)[-1] for file in self.storage.files(folder))
        return sorted(int(name.removesuffix(".json")) for name in names if name[0].isdigit())

    def last(self) -> Commit | None:
        numbers = self.numbers()
        return self._decoded(self._path(numbers[-1]), Commit) if numbers else None

    def commits(self, after: int = 0) -> Iterator[Commit]:
        """From the first to the last. For readers, too: takes no lock."""
        paths = [self._path(number) for number in self.numbers() if number > after]
        for path, content in zip(paths, self.storage.read_many(paths), strict=True):
            yield _document(self.storage.name(path), content, Commit)

    def files(self) -> dict[str, WrittenFile]:
        """The files that count, by their paths below the folder."""
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
        """Remove the hours that were over before a time, by a commit. How far each queue is stays."""
        listed = [file.path for file in self.storage.files() if _is_ours(file.path)]
        known = self.files()  # read after the list: what was published before it is in the log by then
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
        """Join small files of hours that are over; how many there were."""
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
        """The last commit whose files are listed; 0 without."""
        return max(self._numbers(SAVED), default=0)

    def _saved_path(self, number: int) -> str:
        return f"{SAVED}/{number:020d}.json"


def _is_ours(path: str) -> bool:
    """Whether a file has a name and a place as archives give them. Others are nobody's orphans."""
    return path.startswith("topic=") and _FILE_NAME(path.rsplit("/", 1)[-1]) is not None


# --- what both kinds of archive share -----------------------------------------------------------------


def read_head(storage: Storage) -> Head:
    """What an archive is. Raises FileNotFoundError where none is."""
    head = _document(storage.name(HEAD), storage.read(HEAD), Head)
    if head.form != FORM:
        raise ArchiveDamaged(
            f"{storage.name(HEAD)} is of the form {head.form!r}; this version knows {FORM!r}"
        )
    return head


def check_folder(storage: Storage) -> None:
    """An archive begins in a folder of its own."""
    if isinstance(storage, LocalFolder):
        root, own = storage.root, storage.root / OWN_FOLDER
        if root.exists() and not root.is_dir():
            raise OptionError("to", str(root), "a folder; this is a file")
        is_strange = not own.exists() and not storage.is_empty()
    else:
        is_strange = not storage.is_empty() and not storage.files(OWN_FOLDER)
    if is_strange:
        raise OptionError("to", storage.address, "an archive, or a folder that is empty or not there yet")
    if isinstance(storage, LocalFolder):
        try:
            own.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OptionError("to", str(root), f"a folder that can be written ({error.strerror})") from None


def same_partitions(format: Format, begun: tuple[str, ...]) -> Format:
    """The form of an archive that has begun: its folders stay what they are."""
    if format.partitions and format.partitions != begun:
        raise OptionError(
            "partition-by", ",".join(format.partitions),
            f"{','.join(begun)}, with which this archive began. For other folders, begin another archive",
        )  # fmt: skip
    return replace(format, partitions=begun)


def take_lock(lock: StoreLock, storage: Storage) -> None:
    """Keep other processes out: on disk all of them, of an object store those of this machine."""
    try:
        lock.take()
    except StoreLocked as error:
        raise KeroloxError(
            f"another run archives to {storage}: {error.holder}. Wait for its end, or give another folder"
        ) from None


def _document(name: str, content: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(content, type=kind)
    except msgspec.MsgspecError as error:
        raise ArchiveDamaged(f"{name} cannot be read: {error}") from error
