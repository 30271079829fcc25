"""The log of a Parquet archive: which files count, and how far each queue is archived.

::

    DIR/_kerolox/archive.json                       what this is, its columns, and what folders tell
    DIR/_kerolox/commits/00000000000000000107.json  one for each round
    DIR/_kerolox/files/00000000000000000100.json    all files up to a commit, so that not all need be read
    DIR/_kerolox/staging/...                        files of the round that is being written
    DIR/topic=orders/date=2026-11-16/hour=03/0000000007-002-001.parquet

A round of the archive ends with one commit: a numbered JSON document with its files, the offsets they cover
and the next offset of every queue. It gets its name in one atomic step, and that step decides. Before it, the
round's files lie in ``staging``, where no reader looks (names with ``_`` are hidden from Spark, Hive, DuckDB
and Arrow); after it they are moved to their places. After a crash the next start first carries out what the
last commit says, then throws away what else is in ``staging``. So a file outside of ``_kerolox`` is always
committed, every message is in exactly one of them, and ``spark.read.parquet(DIR)`` sees no message twice:
at worst it looks between the commit and the moves, and sees the rest a moment later.

Files that a commit replaces (small ones, joined to a large one) go before the new one comes, for the same
reason.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from kerolox.atomic_file import sync_directory, write_atomically
from kerolox.clock import SYSTEM_CLOCK, Clock
from kerolox.errors import KeroloxError, OptionError
from kerolox.pipeline.archive.files import Format, TaskResult, WrittenFile
from kerolox.pipeline.archive.folders import PARTITIONS
from kerolox.pipeline.archive.joining import JoinTask, small_files
from kerolox.pipeline.archive.staging import NOTHING, Staging
from kerolox.spark.offsets import QueueOffsets, Tree, from_tree, to_tree
from kerolox.store.disk.files import Files
from kerolox.store.disk.lock import StoreLock
from kerolox.store.errors import StoreLocked

FORM: Final = "kerolox-archive-1"
OWN_FOLDER: Final = "_kerolox"
SAVE_EVERY: Final = 100  # commits

T = TypeVar("T")

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


class ParquetArchive:
    """A folder with Parquet files and a log. One process at a time writes to it."""

    def __init__(self, root: str | os.PathLike[str], *, clock: Clock = SYSTEM_CLOCK) -> None:
        self.root = Path(root).absolute()
        self.places: QueueOffsets = {}
        self.number = 0  # of the last commit
        self._clock = clock
        self._own = self.root / OWN_FOLDER
        self._commits = self._own / "commits"
        self._lock = StoreLock(Files(), self._own)
        self._staging = Staging(self.root, self._own, clock)
        self.swept = NOTHING  # what killed runs had left
        self._is_published = True  # the last commit, with all it says

    @property
    def staging(self) -> str:
        return self._staging.folder

    # --- open and close -------------------------------------------------------------------------------

    def open(self, format: Format) -> Format:
        """Take it for writing, in the form it began with. What a killed run left undone is done first."""
        check_folder(self.root)
        if (self.root / "_delta_log").exists():
            raise OptionError("to", str(self.root), "a Delta table to be written with --delta")
        take_lock(self._lock, self.root)
        try:
            self._commits.mkdir(exist_ok=True)
            format = self._check_head(format)
            last = self.last()
            if last is not None:
                self._publish(last)
                self.number = last.number
                self.places = from_tree(last.offsets)
            self.swept = self._staging.begin()
        except BaseException:
            self._lock.release()
            raise
        return format

    def close(self) -> None:
        if self._lock.held:
            if self._is_published:  # else the next start needs it
                self._staging.clear()
            self._lock.release()

    def _check_head(self, format: Format) -> Format:
        path = self._own / "archive.json"
        if not path.exists():
            format = replace(format, partitions=format.partitions or PARTITIONS)
            columns = [*format.folders, *format.schema().names]
            head = Head(FORM, format.properties, columns, self._clock.wall_ms(), format.partitions)
            write_atomically(path, msgspec.json.format(msgspec.json.encode(head)))
            return format
        head = _decoded(path, Head)
        if head.form != FORM:
            raise ArchiveDamaged(f"{path} is of the form {head.form!r}; this version knows {FORM!r}")
        format = same_partitions(format, head.partitions)
        if (head.properties, head.columns) != (format.properties, [*format.folders, *format.schema().names]):
            raise OptionError(
                "properties",
                format.properties,
                f"{head.properties}, with which this archive began (columns {', '.join(head.columns)}): "
                "all its files have the same columns",
            )
        return format

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
    ) -> Commit:
        """Commit it. When this returns, the commit survives any crash."""
        made = Commit(
            form=FORM,
            number=self.number + 1,
            at_ms=self._clock.wall_ms(),
            group=group,
            ranges=ranges,
            offsets=to_tree(places),
            files=sorted(files, key=lambda file: file.path),
            removed=sorted(removed),
            missing=missing or {},
        )
        self._is_published = False
        self._write(made)
        self.number = made.number
        self.places = dict(places)
        self._publish(made)
        self._is_published = True
        return made

    def discard(self, files: Iterable[WrittenFile]) -> None:
        self._staging.discard(files)

    def _write(self, made: Commit) -> None:
        path = self._path(made.number)
        handle, temporary = tempfile.mkstemp(prefix=".", suffix=".tmp", dir=self._commits)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(msgspec.json.encode(made))
                file.flush()
                os.fsync(file.fileno())
            os.chmod(temporary, 0o644)
            _take_name(temporary, path)
        finally:
            Path(temporary).unlink(missing_ok=True)
        sync_directory(self._commits)

    def _publish(self, commit: Commit) -> None:
        """Carry out what a commit says. Doing it again changes nothing."""
        for path in commit.removed:
            (self.root / path).unlink(missing_ok=True)
        for file in self._staging.publish(commit.files):
            raise ArchiveDamaged(
                f"commit {commit.number} of {self.root} names {file.path}; it is neither there nor in "
                f"{file.staged}. Was it deleted? The log is {self._path(commit.number)}"
            )

    def _path(self, number: int) -> Path:
        return self._commits / f"{number:020d}.json"

    def numbers(self) -> list[int]:
        """The numbers of all commits, ascending."""
        return sorted(int(path.stem) for path in self._commits.glob("[0-9]*.json"))

    def last(self) -> Commit | None:
        numbers = self.numbers()
        return _decoded(self._path(numbers[-1]), Commit) if numbers else None

    def commits(self) -> Iterator[Commit]:
        """From the first to the last. For readers, too: takes no lock."""
        for number in self.numbers():
            yield _decoded(self._path(number), Commit)

    def files(self) -> dict[str, WrittenFile]:
        """The files that count, by their paths below the folder."""
        found: dict[str, WrittenFile] = {}
        saved = self._saved()
        if saved:
            found = {file.path: file for file in _decoded(self._saved_path(saved), list[WrittenFile])}
        for number in self.numbers():
            if number > saved:
                commit = _decoded(self._path(number), Commit)
                for path in commit.removed:
                    found.pop(path, None)
                found.update((file.path, file) for file in commit.files)
        return found

    def join(self, run: Callable[[Sequence[JoinTask]], Sequence[TaskResult]], format: Format) -> int:
        """Join small files of hours that are over; how many there were."""
        if self.number - self._saved() >= SAVE_EVERY:
            kept = sorted(self.files().values(), key=lambda file: file.path)
            write_atomically(self._saved_path(self.number), msgspec.json.encode(kept))
        sets = small_files(self.files().values(), self._clock.wall_ms(), format)
        if not sets:
            return 0
        stem = self.stem()
        works = [
            JoinTask(
                files[0].topic, tuple(files), str(self.root), self.staging, f"{stem}-{number:03d}", format
            )
            for number, files in enumerate(sets)
        ]
        results = run(works)
        made = [file for done in results for file in done.files]
        failed = [done.error for done in results if done.error]
        if failed:
            self.discard(made)
            raise KeroloxError(f"small files of {self.root} could not be joined: {failed[0]}")
        gone = [file.path for files in sets for file in files]
        self.commit("", {}, self.places, made, removed=gone)
        return len(gone)

    def _saved(self) -> int:
        """The last commit whose files are listed; 0 without."""
        return max((int(path.stem) for path in (self._own / "files").glob("[0-9]*.json")), default=0)

    def _saved_path(self, number: int) -> Path:
        return self._own / "files" / f"{number:020d}.json"


# --- what both kinds of archive share -----------------------------------------------------------------


def check_folder(root: Path) -> None:
    """An archive begins in a folder of its own."""
    own = root / OWN_FOLDER
    if root.exists() and not root.is_dir():
        raise OptionError("to", str(root), "a folder; this is a file")
    if root.exists() and not own.exists() and any(root.iterdir()):
        raise OptionError("to", str(root), "an archive, or a folder that is empty or not there yet")
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


def take_lock(lock: StoreLock, root: Path) -> None:
    try:
        lock.take()
    except StoreLocked as error:
        raise KeroloxError(
            f"another run archives to {root}: {error.holder}. Wait for its end, or give another folder"
        ) from None


def _take_name(temporary: str, path: Path) -> None:
    """Give a complete file its name, unless that is taken."""
    taken = f"{path} was made by another run meanwhile. Two must not write to one archive at the same time"
    try:
        os.link(temporary, path)
    except FileExistsError:
        raise KeroloxError(taken) from None
    except OSError:  # no hard links here: the lock has to do
        if path.exists():
            raise KeroloxError(taken) from None
        os.replace(temporary, path)


def _decoded(path: Path, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except msgspec.MsgspecError as error:
        raise ArchiveDamaged(f"{path} cannot be read: {error}") from error
