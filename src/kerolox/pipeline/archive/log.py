"""An archive that is a folder of Parquet files: a table with a log (lake/parquet_table.py) and one writer.

A round of the archive ends with one commit: its files, the offsets they cover and the next offset of every
queue. A description of the archive, ``_kerolox/archive.json``, is written once.

Two writers. On disk a lock keeps the second one out. An object store has no locks, and needs none: of two
runs that write the same commit number one is rejected, and stops with nothing published. A run that finds
files of another one in ``staging`` cannot know if that run is dead. So before it deletes them it takes the
next number with an empty commit: if the other run is alive, its commit is then rejected, and its files can
never become part of the archive. The newest run wins.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Final

import msgspec

from kerolox.client.messages import Queue
from kerolox.clock import SYSTEM_CLOCK, Clock
from kerolox.errors import KeroloxError, OptionError
from kerolox.pipeline.archive.files import Format, WrittenFile, join_tasks
from kerolox.pipeline.archive.folders import PARTITIONS
from kerolox.pipeline.lake.local_folder import LocalFolder
from kerolox.pipeline.lake.parquet_table import (
    SAVE_EVERY,
    Commit,
    ParquetTable,
    TableDamaged,
    document,
    stored,
)
from kerolox.pipeline.lake.staging import HEAD, NOTHING, OWN_FOLDER, Staging
from kerolox.pipeline.lake.storage import Storage, StorageError, open_storage
from kerolox.pipeline.lake.table_file import LakeFile
from kerolox.pipeline.lake.upkeep import Expired, JoinTask, remove_old
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
_FILE_NAME = re.compile(r"\d{10}-\d{3,}-\d{3,}\.parquet").fullmatch

OffsetRanges = dict[str, dict[str, dict[str, tuple[int, int]]]]  # topic, broker, queue: start, end


class Head(msgspec.Struct, frozen=True):
    """Description of an archive, written once."""

    form: str
    properties: str
    columns: list[str]
    made_ms: int
    partitions: tuple[str, ...] = PARTITIONS


class ArchiveCommit(Commit, frozen=True, omit_defaults=True, kw_only=True):
    """One commit of an archive."""

    LIST: ClassVar[Any] = list[WrittenFile]

    group: str
    ranges: OffsetRanges  # offsets read for this commit
    offsets: Tree  # next offset of every queue
    files: list[WrittenFile] = []
    missing: dict[str, int] = {}  # by topic: messages deleted before they were read
    last: LastTree = {}  # identity of the message before each offset, where known


class ParquetArchive(ParquetTable[ArchiveCommit]):
    """Folder of Parquet files that topics are archived to. One process at a time writes to it."""

    def __init__(self, root: str | os.PathLike[str] | Storage, *, clock: Clock = SYSTEM_CLOCK) -> None:
        super().__init__(open_storage(root), ArchiveCommit)
        self.places: QueueOffsets = {}
        self.last_read: LastReads = {}
        self.number = 0  # number of the last commit
        self._clock = clock
        self._lock = StoreLock(Files(), self.storage.lock_folder)
        self._staging = Staging(self.storage, clock)
        self._format = Format()
        self.swept = NOTHING  # files of killed runs that were removed
        self._unpublished: ArchiveCommit | None = None  # commit whose files are not all published
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
            self._format = format = self._check_head(format)
            self._catch_up()
            self._sweep()
        except BaseException:
            self._lock.release()
            raise
        return format

    def properties(self) -> str:
        """Return the form of the properties column: map, string or none."""
        return read_head(self.storage).properties

    def close(self) -> None:
        if self._lock.held:
            if self._unpublished is None and not self._is_unsure:  # else the next start needs the files
                self._staging.clear()
            self._lock.release()

    def _catch_up(self) -> None:
        """Complete the last commit, and continue from it."""
        last = self.last()
        if last is not None:
            self.publish(last)
            self.number = last.number
            self.places = from_tree(last.offsets)
            self.last_read = from_last_tree(last.last)

    def _sweep(self) -> None:
        """Remove files of killed runs, once no other run can commit them any more."""
        left = self._staging.leftovers()
        while left and not self.storage.is_local:
            try:
                self.write(self._made("", {}, self.places))
            except FileExistsError:  # the other run is alive
                self._catch_up()
                left = self._staging.leftovers()
            else:
                self.number += 1
                break
        self.swept = self._staging.sweep(left)

    def _check_head(self, format: Format) -> Format:
        if not self.storage.exists(HEAD):
            if self.numbers():
                raise OptionError("to", self.storage.address, "an archive; pipelines write to this table")
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
    ) -> ArchiveCommit:
        """Commit files and offsets. When this returns, the commit survives any crash."""
        files = list(files)
        self._publish_last()
        last = self.last_read if last is None else last
        made = self._made(group, ranges, places, files, missing, removed, last)
        self._is_unsure = True
        try:
            self.write(made)
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
            self.publish(self._unpublished)
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
    ) -> ArchiveCommit:
        return ArchiveCommit(
            form=FORM,
            number=self.number + 1,
            at_ms=self._clock.wall_ms(),
            group=group,
            ranges=ranges,
            offsets=to_tree(places),
            files=stored(files),
            removed=sorted(removed),
            missing=missing or {},
            last=last_tree(self.last_read if last is None else last),
            run=self._staging.run,
        )

    def discard(self, files: Iterable[WrittenFile]) -> None:
        self._staging.discard(files)

    # --- upkeep ---------------------------------------------------------------------------------------

    def known(self) -> dict[str, WrittenFile]:
        if self.number - self._saved() >= SAVE_EVERY:
            self.save(self.number)
        return self.files()

    def join_tasks(self, sets: Sequence[Sequence[LakeFile]]) -> list[JoinTask]:
        return join_tasks(self, sets, self._format, self.stem())

    def replace(self, gone: Sequence[LakeFile], made: Sequence[WrittenFile]) -> None:
        self.commit("", {}, self.places, made, removed=[file.path for file in gone])

    def expire(self, before_ms: int) -> Expired:
        """Remove the hours that ended before a time, by a commit. The offsets of the queues stay."""
        listed = [file.path for file in self.storage.files() if _is_ours(file.path)]
        old = remove_old(self, before_ms)
        known = self.files()  # read after the list: files published before it are in the log by now
        gone = {file.path for file in old}
        orphans = [path for path in listed if path not in known and path not in gone]
        self.storage.delete(orphans)
        self.storage.prune({path.rsplit("/", 1)[0] for path in [*orphans, *gone]})
        return Expired.of(old, len(orphans))


def _is_ours(path: str) -> bool:
    """Return True for a file whose name and folder are those of an archive. Other files are never removed."""
    return path.startswith("topic=") and _FILE_NAME(path.rsplit("/", 1)[-1]) is not None


# --- shared with the Delta archive --------------------------------------------------------------------


def read_head(storage: Storage) -> Head:
    """Read the description of an archive. Raises FileNotFoundError if there is no archive."""
    head = document(storage.name(HEAD), storage.read(HEAD), Head)
    if head.form != FORM:
        raise TableDamaged(
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
