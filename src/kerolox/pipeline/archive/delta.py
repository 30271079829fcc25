"""An archive that is a Delta table: DuckDB, Polars, Spark with Delta and others read it as it is.

A file belongs to the table when a commit names it. Until shortly before that it lies in a folder that
readers skip. A run notes the files it is about to move to their places, so the next run can remove those
that no commit names: a killed run leaves nothing behind. The next offset of each queue is in the same
commit, as the version of an application transaction named after the queue: Delta keeps the last version of
every application for good, and rejects two writers that move the same one. So files and offsets are
committed together or not at all. The identity of each queue's last message is in the commit too, its numbers
as the versions of further applications.

Every commit also moves one application called the writer. A run that finds files of another run commits a
new writer version before it removes them: if the other run is still alive, its next commit is rejected and
it stops. This separates two writers in object stores, where there are no locks.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

import msgspec
import pyarrow as pa

from kerolox.client.messages import Queue
from kerolox.clock import SYSTEM_CLOCK, Clock
from kerolox.errors import KeroloxError, OptionError
from kerolox.pipeline.archive.files import Format, WrittenFile, join_tasks
from kerolox.pipeline.archive.folders import PARTITIONS, PROPERTY, TAG
from kerolox.pipeline.archive.log import OffsetRanges, check_folder, same_partitions, take_lock
from kerolox.pipeline.lake.delta_table import LakeDelta, delta_errors
from kerolox.pipeline.lake.staging import HEAD, NOTHING, OWN_FOLDER, Staging, Swept, publish, remove
from kerolox.pipeline.lake.storage import Storage, open_storage
from kerolox.pipeline.lake.table_file import WHOLE_DAY, LakeFile
from kerolox.pipeline.lake.upkeep import Expired, JoinTask, OthersCameFirst, remove_old
from kerolox.spark.last_read import LastRead, LastReads
from kerolox.spark.offsets import QueueOffsets
from kerolox.store.disk.files import Files
from kerolox.store.disk.lock import StoreLock

MOVED: Final = f"{OWN_FOLDER}/moved"
WRITER: Final = "kerolox-archive-writer"
TRIES: Final = 20  # attempts to commit between the commits of another run


class Moved(msgspec.Struct, frozen=True):
    """Files that are being moved to their places before a commit names them."""

    files: list[str]


class DeltaArchive:
    """A Delta table that topics are archived to."""

    def __init__(self, root: str | os.PathLike[str] | Storage, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self.storage = open_storage(root)
        self.table = LakeDelta(self.storage, clock)
        self.places: QueueOffsets = {}
        self.last_read: LastReads = {}
        self.number = 0
        self._lock = StoreLock(Files(), self.storage.lock_folder)
        self._staging = Staging(self.storage, clock)
        self._format = Format()
        self.swept = NOTHING  # files of killed runs that were removed

    @property
    def staging(self) -> str:
        return self._staging.folder

    def open(self, format: Format) -> Format:
        is_there = bool(self.storage.files("_delta_log"))
        if not is_there:
            check_folder(self.storage)
            if self.storage.exists(HEAD):
                raise OptionError(
                    "to", self.storage.address, "no --delta: this is an archive of Parquet files"
                )
        take_lock(self._lock, self.storage)
        try:
            if is_there and self.table.load():
                format = same_partitions(format, _partition_names(self.table.partitions))
            schema = table_schema(format)
            self.table.make(schema, format.folders, "topics archived by kerolox")
            names = list(self.table.column_types)
            if set(names) != set(schema.names):
                wanted = f"a value that gives the table's columns: {names}"
                raise OptionError("properties", format.properties, wanted)
            self._sweep()
            self.number = self.table.version
        except BaseException:
            self._lock.release()
            raise
        self._format = format
        return format

    def properties(self) -> str:
        """Return the form of the properties column in the existing table: map, string or none."""
        self.table.load()
        kinds = self.table.column_types
        if "properties" not in kinds:
            return "none"
        return "string" if str(getattr(kinds["properties"], "type", "")) == "string" else "map"

    def close(self) -> None:
        if self._lock.held:
            self._staging.clear()
            self._lock.release()

    def _sweep(self) -> None:
        """Remove files of killed runs, once no other run can commit them any more."""
        left, notes = self._staging.leftovers(), [file.path for file in self.storage.files(MOVED)]
        if self.storage.is_local and self.storage.exists(f"{MOVED}.json"):  # older versions had one note
            notes.append(f"{MOVED}.json")
        if (left or notes) and not self.storage.is_local:
            self._fence()
        self.swept = self._undo(notes) + self._staging.sweep(left)

    def _fence(self) -> None:
        from deltalake.exceptions import CommitFailedError

        for tries_left in reversed(range(TRIES)):
            try:
                with delta_errors(self.storage, but=CommitFailedError):
                    self._write((), {"group": ""}, {})
                break
            except CommitFailedError:
                if not tries_left:
                    raise
                self.table.load()

    def _undo(self, notes: Sequence[str]) -> Swept:
        """Remove files that killed runs moved to their places, unless a commit names them."""
        swept = NOTHING
        if not notes:
            return swept
        named = {os.path.basename(path) for path in self.table.actions()}
        for note in notes:
            try:
                moved = msgspec.json.decode(self.storage.read(note), type=Moved)
            except msgspec.MsgspecError as error:
                raise KeroloxError(f"{self.storage.name(note)} cannot be read: {error}") from error
            swept += remove(
                self.storage, (path for path in moved.files if os.path.basename(path) not in named)
            )
            self.storage.delete([note])
        return swept

    def find_places(self, queues: Iterable[Queue]) -> None:
        """Read the next offset of each of these queues from the table's log, by the queue's name."""
        for queue in queues:
            if queue not in self.places:
                found = self.table.mark(application(queue))
                if found is not None:
                    self.places[queue] = found
                    self._find_last(queue)

    def _find_last(self, queue: Queue) -> None:
        parts = [self.table.mark(last_application(queue, part)) for part in LastRead._fields]
        if None not in parts:  # commits of older versions have none
            self.last_read[queue] = LastRead(*(part for part in parts if part is not None))

    def stem(self) -> str:
        return (
            f"{self.number + 1:010d}-{secrets.token_hex(4)}"  # other programs may write to the table as well
        )

    def commit(
        self,
        group: str,
        ranges: OffsetRanges,
        places: QueueOffsets,
        files: Iterable[WrittenFile],
        *,
        missing: dict[str, int] | None = None,
        last: LastReads | None = None,
    ) -> None:
        last = self.last_read if last is None else last
        changed = {queue: at for queue, at in places.items() if self.places.get(queue) != at}
        moved = {application(queue): at for queue, at in changed.items()}
        for queue, read in last.items():
            if self.last_read.get(queue) != read:
                parts = zip(LastRead._fields, read, strict=True)
                moved |= {last_application(queue, part): value for part, value in parts}
        about = {"group": group, "ranges": json.dumps(ranges)}
        if missing:
            about["missing"] = json.dumps(missing)
        files = list(files)
        note = self._move(files)
        with delta_errors(self.storage):
            self._write(files, about, moved)
            self.storage.delete([note])
        self.places, self.last_read = dict(places), dict(last)

    def _move(self, files: Sequence[LakeFile], removed: Sequence[LakeFile] = ()) -> str:
        """Move files to their places. Returns the note of all files that a killed run may leave there."""
        note = f"{MOVED}/{self._staging.run}-{secrets.token_hex(4)}.json"
        if files or removed:
            paths = [file.path for file in (*files, *removed)]
            self.storage.put(note, msgspec.json.encode(Moved(paths)))
        for file in publish(self.storage, files):
            raise KeroloxError(f"{self.storage.name(file.staged)} is gone. Was it deleted?")
        return note

    def _write(self, files: Sequence[WrittenFile], about: dict[str, str], moved: dict[str, int]) -> None:
        """Commit to the table in one step, or raise the reason it was rejected."""
        self.table.commit(map(_valued, files), moved | {WRITER: self.number + 1}, about)
        self.number = self.table.version

    # --- upkeep ---------------------------------------------------------------------------------------

    def known(self) -> dict[str, WrittenFile]:
        self.table.load()
        self.table.check_plain()
        names = [f"partition.{name}" for name in self.table.partitions]
        fixed = len(PARTITIONS if self._format.by_hour else PARTITIONS[:2])
        return {
            path: WrittenFile(
                path=path,
                staged=path,
                topic=action["partition.topic"],
                date=str(action["partition.date"]),
                hour=action.get("partition.hour", WHOLE_DAY),
                rows=action["num_records"],
                bytes=action["size_bytes"],
                first_ms=0,
                last_ms=0,
                parts=(),
                values=tuple(action[name] for name in names[fixed:]),
            )
            for path, action in self.table.actions().items()
        }

    def join_tasks(self, sets: Sequence[Sequence[LakeFile]]) -> list[JoinTask]:
        return join_tasks(self, sets, self._format, self.stem())

    def replace(self, gone: Sequence[LakeFile], made: Sequence[WrittenFile]) -> None:
        """Remove files by a commit; those that no others replace are deleted from the folder as well."""
        note = self._move(made, () if made else gone)
        about = {"joined" if made else "expired": str(len(gone))}
        try:
            self.table.swap([file.path for file in gone], [_valued(file) for file in made], about)
        except OthersCameFirst:
            self._undo([note])
            raise
        self.number = self.table.version
        self._undo([note])

    def expire(self, before_ms: int) -> Expired:
        """Remove the hours that ended before a time, by a commit. The offsets of the queues stay.

        Files that the table no longer names are removed too, except those of the last week, which readers of
        older versions may still need.
        """
        old = remove_old(self, before_ms)
        self.storage.prune({file.path.rsplit("/", 1)[0] for file in old})
        return Expired.of(old, self.table.vacuum())

    def discard(self, files: Iterable[WrittenFile]) -> None:
        self._staging.discard(files)


def application(queue: Queue) -> str:
    """Return the application name that holds a queue's next offset in the table's log."""
    return f"kerolox-archive:{queue.topic}:{queue.broker}:{queue.queue_id}"


def last_application(queue: Queue, part: str) -> str:
    """Return the application name that holds one part of the identity of a queue's last message."""
    return f"kerolox-archive-last:{part}:{queue.topic}:{queue.broker}:{queue.queue_id}"


def table_schema(format: Format) -> pa.Schema:
    kinds = {"date": pa.date32(), "hour": pa.int32()}
    parts = [pa.field(name, kinds.get(name, pa.string())) for name in format.folders]
    return pa.schema([*parts, *format.schema()])


def _partition_names(columns: Sequence[str]) -> tuple[str, ...]:
    """Return partition columns by the names of ``--partition-by``."""
    return tuple(name if name in (*PARTITIONS, TAG) else f"{PROPERTY}{name}" for name in columns)


def _valued(file: WrittenFile) -> WrittenFile:
    """Return the file with the values of all partition columns of the table."""
    hour = [] if file.hour == WHOLE_DAY else [str(file.hour)]
    return replace(file, values=(file.topic, file.date, *hour, *file.values))
