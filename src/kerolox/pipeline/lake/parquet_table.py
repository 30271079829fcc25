"""A table of Parquet files with a log of its commits.

::

    DIR/_kerolox/commits/00000000000000000107.json  one for each commit
    DIR/_kerolox/files/00000000000000000100.json    all files up to a commit, to save reading all commits
    DIR/_kerolox/staging/...                        files that are not committed yet
    DIR/topic=orders/date=2026-11-16/hour=03/0000000007-002-001.parquet

A commit is a numbered JSON document with the files it adds and removes, and the marks of the writers: the
next offset of every queue of an archive, the last batch of every flow. It gets its name in one atomic step,
which is the commit: on disk a hard link, in an object store a conditional put. Before it, its files lie in
``staging``, which readers skip (names with ``_`` are hidden from Spark, Hive, DuckDB and Arrow); after it
they are moved to their places. After a crash the next writer first completes the last commit. So a file
outside of ``_kerolox`` is always committed, every row is in exactly one of them, and
``spark.read.parquet(DIR)`` reads no row twice: at worst it reads between the commit and the moves, and misses
the new files until the next read.

Files that a commit replaces (small ones, joined into a large one) are deleted before the new one appears, for
the same reason.

Several writers. Of two that write the same commit number one is rejected. The archive then stops, with
nothing published (archive/log.py); flows and upkeep read the new commit, complete it, and try the next
number. Publishing the same commit twice is harmless: a file is copied from ``staging`` only while it exists
there, and it is removed from there before any later commit can remove the published file; upkeep removes only
files of hours that are over.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, ClassVar, Final, Generic, TypeVar

import msgspec

from kerolox.errors import KeroloxError
from kerolox.pipeline.lake.staging import OWN_FOLDER, publish
from kerolox.pipeline.lake.storage import Storage, StorageError
from kerolox.pipeline.lake.table_file import LakeFile

COMMITS: Final = f"{OWN_FOLDER}/commits"
SAVED: Final = f"{OWN_FOLDER}/files"
SAVE_EVERY: Final = 100  # commits

T = TypeVar("T")


class TableContinued(KeroloxError):
    """Another run has made a newer commit."""


class TableDamaged(KeroloxError):
    """A table whose files differ from its log."""


class Commit(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One commit of a table."""

    LIST: ClassVar[Any] = list[LakeFile]  # of ``files``

    form: str
    number: int
    at_ms: int
    files: list[Any] = []
    removed: list[str] = []  # files that were expired, or whose rows are all in ``files`` now
    run: str = ""  # run that made it: no two runs write the same document


C = TypeVar("C", bound=Commit)
F = TypeVar("F", bound=LakeFile)


def stored(files: Iterable[F]) -> list[F]:
    """Return the files as commits list them: in order, without bounds."""
    return sorted((replace(file, bounds={}) for file in files), key=lambda file: file.path)


def document(name: str, content: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(content, type=kind)
    except msgspec.MsgspecError as error:
        raise TableDamaged(f"{name} cannot be read: {error}") from error


class ParquetTable(Generic[C]):
    """Folder of Parquet files with a log of commits."""

    def __init__(self, storage: Storage, kind: type[C]) -> None:
        self.storage = storage
        self._kind = kind

    # --- the log --------------------------------------------------------------------------------------

    def _path(self, number: int) -> str:
        return f"{COMMITS}/{number:020d}.json"

    def numbers(self) -> list[int]:
        """Return the numbers of all commits, ascending."""
        return self._numbers(COMMITS)

    def _numbers(self, folder: str) -> list[int]:
        names = (file.path.rsplit("/", 1)[-1] for file in self.storage.files(folder))
        return sorted(int(name.removesuffix(".json")) for name in names if name[0].isdigit())

    def last(self) -> C | None:
        numbers = self.numbers()
        return self._decoded(self._path(numbers[-1]), self._kind) if numbers else None

    def commits(self, after: int = 0) -> Iterator[C]:
        """Iterate over the commits, oldest first. Takes no lock, so readers may call it."""
        paths = [self._path(number) for number in self.numbers() if number > after]
        for path, content in zip(paths, self.storage.read_many(paths), strict=True):
            yield document(self.storage.name(path), content, self._kind)

    def files(self) -> dict[str, Any]:
        """Return the committed files, by their paths below the folder."""
        found: dict[str, Any] = {}
        saved = self._saved()
        if saved:
            listed = self._decoded(self._saved_path(saved), self._kind.LIST)
            found = {file.path: file for file in listed}
        for commit in self.commits(saved):
            for path in commit.removed:
                found.pop(path, None)
            found.update((file.path, file) for file in commit.files)
        return found

    def _decoded(self, path: str, kind: type[T]) -> T:
        return document(self.storage.name(path), self.storage.read(path), kind)

    def _saved(self) -> int:
        """Return the last commit for which a list of files was saved; 0 without one."""
        return max(self._numbers(SAVED), default=0)

    def _saved_path(self, number: int) -> str:
        return f"{SAVED}/{number:020d}.json"

    def save(self, number: int) -> None:
        """Save the list of files up to the last commit."""
        self.storage.put(self._saved_path(number), msgspec.json.encode(stored(self.files().values())))

    # --- commits --------------------------------------------------------------------------------------

    def write(self, made: C) -> None:
        """Write the commit in one atomic step. Raise FileExistsError if another run has the number."""
        self.storage.put_if_absent(self._path(made.number), msgspec.json.encode(made))

    def publish(self, commit: C) -> None:
        """Delete the removed files of a commit and move its new files to their places. Idempotent."""
        if failed := self.storage.delete(commit.removed):
            raise StorageError(
                f"{failed} files of {self.storage} that commit {commit.number} removes cannot be deleted. "
                "Their replacements are not published yet, because messages would be duplicated. Check the "
                "permission to delete, then start again"
            )
        for file in publish(self.storage, commit.files):
            if self.numbers()[-1:] != [commit.number]:
                raise TableContinued(f"another run has continued {self.storage}: this one stops")
            raise TableDamaged(
                f"commit {commit.number} of {self.storage} names {file.path}, which does not exist, nor does "
                f"{file.staged}. Was it deleted? The log is {self.storage.name(self._path(commit.number))}"
            )
