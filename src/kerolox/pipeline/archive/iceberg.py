"""An archive that is an Iceberg table: Spark, Trino, DuckDB, pyiceberg and others read it by its catalog.

Tasks write files directly into the table's data folder, in a subfolder of the run. A file belongs to the
table when a snapshot names it; that snapshot has the next offset of every queue and the identity of the
message before it, as marks (lake/iceberg_table.py). So files and offsets are committed together or not at
all, and no file has to be moved.

Several runs may write to one table, for different topics or the same one: a commit compares the offsets that
the table has by then with those the run began at. A run that comes second with the same messages deletes its
files and continues after them.

A run keeps a note in the table's folder while it works. A run that finds the note of another one assumes
that it was killed: it first commits a snapshot that increments the count of sweeps, then removes the files
of the other run that no snapshot names. If the other run is alive, its next commit sees the new count; it
then knows that its files may be gone, and repeats the round.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, TypeVar

import pyarrow as pa

from kerolox.client.messages import Queue
from kerolox.clock import SYSTEM_CLOCK, Clock
from kerolox.errors import KeroloxError, OptionError
from kerolox.pipeline.archive.files import Format, QueuePart, WrittenFile, join_tasks
from kerolox.pipeline.archive.folders import PARTITIONS
from kerolox.pipeline.archive.log import OffsetRanges
from kerolox.pipeline.lake.iceberg_catalog import CatalogPlace, IcebergError
from kerolox.pipeline.lake.iceberg_storage import catalog_options, table_storage
from kerolox.pipeline.lake.iceberg_table import CommitUnknown, IcebergTable, Marks
from kerolox.pipeline.lake.shared_iceberg import SharedIceberg
from kerolox.pipeline.lake.staging import NOTHING, OWN_FOLDER, Swept
from kerolox.pipeline.lake.storage import Storage, StoredFile
from kerolox.pipeline.lake.table_file import WHOLE_DAY, Bounds, LakeFile
from kerolox.pipeline.lake.unnamed_metadata import forget_old
from kerolox.pipeline.lake.upkeep import Expired, JoinTask, OthersCameFirst, remove_old
from kerolox.spark.columns import arrow_schema
from kerolox.spark.last_read import LastReads
from kerolox.spark.offsets import (
    QueueOffsets,
    from_last_tree,
    from_tree,
    last_tree,
    queue_text,
    to_tree,
)

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile

OFFSETS: Final = "archive.offsets"  # marks
LAST: Final = "archive.last"
SWEEPS: Final = "archive.sweeps"
NOTES: Final = f"{OWN_FOLDER}/running"
FILES: Final = "kerolox-"  # prefix of each run's folder below the table's data
LINGER_MS: Final = 600_000  # longer than tasks of a killed run can survive
T = TypeVar("T")
BY_TIME: Final = {"hour": True, "day": False, "month": False, "year": False}  # True: one file per hour


@dataclass(frozen=True)
class TableFormat(Format):
    """Format of the files of an Iceberg table: with the topic column and the table's field ids."""

    columns: pa.Schema = field(default_factory=lambda: pa.schema([]))

    def schema(self) -> pa.Schema:
        return self.columns


class IcebergArchive:
    """An Iceberg table that topics are archived to."""

    def __init__(
        self,
        name: str,
        place: CatalogPlace,
        *,
        storage_options: Mapping[str, Any] | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        told = {**catalog_options(storage_options or {}), **place.options}
        self.table = IcebergTable(replace(place, options=told), name)
        self.places: QueueOffsets = {}
        self.last_read: LastReads = {}
        self.swept = NOTHING
        self.run = f"{clock.wall_ms()}-{os.getpid()}-{os.urandom(3).hex()}"  # unique
        self._options = dict(storage_options or {})
        self._format_used = TableFormat()
        self._clock = clock
        self._storage: Storage | None = None
        self._base: QueueOffsets = {}  # offsets in the table; ``places`` may be ahead of them
        self._base_last: LastReads = {}
        self._entries: dict[str, tuple[WrittenFile, DataFile]] = {}  # as known() has found them
        self._sweeps = 0
        self._rounds = 0
        self._is_unsure = False  # True: the outcome of the last commit is unknown
        self._leaves_note = False  # True: files may be left behind
        self._is_writing = False  # True: tasks were started and their end is unknown
        self._files = 0  # number of this run's files that snapshots name

    @property
    def text(self) -> str:
        return self.table.text

    @property
    def storage(self) -> Storage:
        assert self._storage is not None, "open() comes first"
        return self._storage

    @property
    def staging(self) -> str:
        return f"{FILES}{self.run}"

    # --- open and close -------------------------------------------------------------------------------

    def open(self, format: Format) -> Format:
        """Create or load the table, and remove files of killed runs."""
        if format.chosen:
            raise OptionError(
                "partition-by", ",".join(format.partitions),
                "topic,date or topic,date,hour: an Iceberg table finds other columns by its statistics",
            )  # fmt: skip
        columns = arrow_schema(properties=format.properties)
        self.table.make(
            columns,
            [("topic", "identity"), ("store_timestamp", "hour" if format.by_hour else "day")],
            {"comment": "topics archived by kerolox"},
        )
        self._format_used = made = self._format(format, columns)
        self._storage = table_storage(self.table, self._options)
        self._note()
        self._sweep()
        self._learn()
        return made

    def archive_or_shared(self) -> IcebergArchive | SharedIceberg:
        """Return the table as what it is: an archive, or a table that flows write to."""
        if self.table.load() and self.table.mark(OFFSETS) is None:
            shared = SharedIceberg(self.table.name, self.table.place, self._options, self._clock)
            if shared.known():
                return shared
        return self

    def properties(self) -> str:
        """Return the form of the properties column. Raises OptionError if the table is no archive."""
        if not self.table.load() or self.table.mark(OFFSETS) is None:
            raise OptionError(
                "--iceberg", self.table.name,
                f"an archive, or a table of a pipeline; {self.table.place.text} has no such table",
            )  # fmt: skip
        names = self.table.table.schema().column_names
        if "properties" not in names:
            return "none"
        return "string" if str(self.table.table.schema().find_type("properties")) == "string" else "map"

    def close(self) -> None:
        """Delete the run's note, unless the next run has files to remove.

        A killed worker may have written a file that its task never reported; tasks of a dead JVM may still
        do so.
        """
        if self._storage is None or self._leaves_note or self._is_writing:
            return
        if len(self._storage.files(self.staging)) == self._files:
            self._storage.delete([f"{NOTES}/{self.run}"])

    def _format(self, format: Format, columns: pa.Schema) -> TableFormat:
        """Return the file format that fits this table."""
        told = self.table.file_schema(columns)
        for mine, theirs in zip(columns, told, strict=True):
            if mine.type != theirs.type:
                raise IcebergError(
                    f"column {mine.name} of {self.text} is {theirs.type}, an archive writes {mine.type}. "
                    "Use another table"
                )
        by_hour = True
        spec, schema = self.table.table.spec(), self.table.table.schema()
        for part in spec.fields:
            column, how = schema.find_column_name(part.source_id), str(part.transform)
            if column == "store_timestamp" and how in BY_TIME:
                by_hour = by_hour and BY_TIME[how]
            elif column != "topic":
                raise OptionError(
                    "iceberg", self.table.name,
                    f"a table that is divided by topic and by hour or day of store_timestamp, not {how} of "
                    f"{column}",
                )  # fmt: skip
        partitions = PARTITIONS if by_hour else PARTITIONS[:2]
        if format.partitions and format.by_hour != by_hour:
            raise OptionError(
                "partition-by", ",".join(format.partitions),
                f"{','.join(partitions)}, as when this table was created. For others, create another table",
            )  # fmt: skip
        return TableFormat(
            format.properties, format.compression, format.rows_max, format.bytes_max, partitions, told
        )

    def _note(self) -> None:
        self.storage.put(f"{NOTES}/{self.run}", b"{}")

    def _sweep(self) -> None:
        """Remove files of other runs that no snapshot names, once those runs cannot commit them any more."""
        notes = [path.rsplit("/", 1)[-1] for path, _ in self.storage.files(NOTES)]
        # On disk an unfinished note has a temporary name that begins with a dot.
        runs = [name for name in notes if not name.startswith(".")]
        left = [file for run in runs if run != self.run for file in self.storage.files(f"{FILES}{run}")]
        if left and self._strays(left):
            self._fence()
            gone = self._strays(left)
            self.storage.delete(file.path for file in gone)
            self.swept = Swept(len(gone), sum(file.bytes for file in gone))
        now_ms = self._clock.wall_ms()
        for run in runs:
            if run != self.run:
                self._forget(run, [name for name in notes if name.startswith(f".{run}.")], now_ms)
        # Runs that were killed while they wrote their first note; names of runs begin with the time.
        first = [name for name in notes if name.startswith(".") and name[1:].rsplit(".", 2)[0] not in runs]
        old = [name for name in first if _began_before(name, now_ms - LINGER_MS)]
        self.storage.delete(f"{NOTES}/{name}" for name in old)

    def _fence(self) -> None:
        """Make every other run unable to commit files that it wrote before now."""
        self.table.append((), lambda: {SWEEPS: str(self._count_sweeps() + 1)})

    def _strays(self, files: Sequence[StoredFile]) -> list[StoredFile]:
        named = self.named()
        return [file for file in files if file.path not in named]

    def _not_named(self, paths: Sequence[str]) -> list[str]:
        named = self.named() if paths else set()
        return [path for path in paths if path not in named]

    def _forget(self, run: str, unfinished: Sequence[str], now_ms: int) -> None:
        """Remove the note of a swept run, after a delay in which its last tasks may still write files."""
        note = f"{NOTES}/{run}"
        try:
            swept_ms = json.loads(self.storage.read(note)).get("sweptMs")
        except FileNotFoundError:
            return
        if swept_ms is None:
            self.storage.put(note, json.dumps({"sweptMs": now_ms}).encode())
        elif now_ms - swept_ms > LINGER_MS:
            self.storage.delete([note, *(f"{NOTES}/{name}" for name in unfinished)])

    def named(self) -> set[str]:
        """Return the files in the data folder that at least one snapshot names."""
        below = self.table.data_folder.rstrip("/") + "/"
        return {path.removeprefix(below) for path in self.table.data_files() if path.startswith(below)}

    def _count_sweeps(self) -> int:
        return int(self.table.mark(SWEEPS) or 0)

    # --- offsets --------------------------------------------------------------------------------------

    def _offsets(self) -> QueueOffsets:
        return self._read_mark(OFFSETS, from_tree)

    def _last(self) -> LastReads:
        return self._read_mark(LAST, from_last_tree)

    def _read_mark(self, name: str, decode: Callable[[object], dict[Queue, T]]) -> dict[Queue, T]:
        text = self.table.mark(name)
        try:
            return decode(json.loads(text)) if text else {}
        except ValueError as error:
            raise KeroloxError(f"the mark {name} of {self.text} cannot be read: {error}") from None

    def _learn(self) -> None:
        """Load offsets, last messages and the count of sweeps from the table."""
        self._base, self._base_last = self._offsets(), self._last()
        self.places, self.last_read = dict(self._base), dict(self._base_last)
        self._sweeps = self._count_sweeps()

    def find_places(self, queues: Iterable[Queue]) -> None:
        """Reload the offsets after a commit of unknown outcome. Called before each round."""
        if self._is_unsure:
            self.table.load()
            self._learn()
            self._is_unsure = False

    # --- commits --------------------------------------------------------------------------------------

    def stem(self) -> str:
        """Return the prefix of the next round's file names."""
        self._note()  # another run may have assumed that this one was killed, and removed the note
        self._rounds += 1
        self._is_writing = True
        return f"{self._rounds:06d}"

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
        files = list(files)
        changed = {queue: at for queue, at in places.items() if self._base.get(queue) != at}
        last = self.last_read if last is None else last
        read = {queue: known for queue, known in last.items() if self._base_last.get(queue) != known}
        about = {"group": group, "ranges": json.dumps(ranges, separators=(",", ":"))}
        if missing:
            about["missing"] = json.dumps(missing)

        def marks() -> Marks:
            there = self._offsets()
            self._check_files(files)
            there_last = self._last()
            moved = [
                queue
                for queue in changed | read
                if there.get(queue) != self._base.get(queue)
                or there_last.get(queue) != self._base_last.get(queue)
            ]
            if moved:
                first = moved[0]
                raise OthersCameFirst(
                    f"another run has archived to {self.text} meanwhile: {queue_text(first)} is at "
                    f"{there.get(first)}, and was at {self._base.get(first)}. This run continues from there"
                )
            return {
                OFFSETS: json.dumps(to_tree(there | changed), separators=(",", ":")),
                LAST: json.dumps(last_tree(there_last | read), separators=(",", ":")),
            }

        self._append(files, marks, about)
        self._base, self._base_last = self._offsets(), self._last()
        self.places, self.last_read = self._base | places, self._base_last | last

    def _append(
        self,
        files: Sequence[WrittenFile],
        marks: Callable[[], Marks],
        about: Mapping[str, str],
        replaced: Iterable[DataFile] = (),
    ) -> None:
        try:
            self.table.append([_as_placed(file) for file in files], marks, about, replaced=replaced)
        except CommitUnknown:
            self._is_unsure = self._leaves_note = True  # a snapshot may name the files
            raise
        except OthersCameFirst:
            # Keep files that a snapshot names: the answer to an earlier commit may have been lost.
            named = self.named() if files else set()
            self.discard(file for file in files if file.staged not in named)
            self._learn()
            raise
        except KeroloxError:
            self.discard(files)
            raise
        self._files += len(files)
        self._is_writing = False

    def _check_files(self, files: Sequence[WrittenFile]) -> None:
        if files and self._count_sweeps() != self._sweeps:
            raise OthersCameFirst(
                f"another run took this one for killed and removed its files in {self.text}. The "
                "round is repeated"
            )

    def discard(self, files: Iterable[WrittenFile]) -> None:
        """Delete the files of a failed round, whose tasks have all ended."""
        self.storage.delete(file.staged for file in files)
        self._is_writing = False

    # --- upkeep ---------------------------------------------------------------------------------------

    def known(self) -> dict[str, WrittenFile]:
        self.table.load()
        self._entries = self._joinable()
        return {path: file for path, (file, _) in self._entries.items()}

    def join_tasks(self, sets: Sequence[Sequence[LakeFile]]) -> list[JoinTask]:
        return join_tasks(self, sets, self._format_used, self.stem())

    def replace(self, gone: Sequence[LakeFile], made: Sequence[WrittenFile]) -> None:
        paths = {file.path for file in gone}

        def marks() -> Marks:
            self._check_files(made)
            if not paths <= self._joinable().keys():
                raise OthersCameFirst(f"another run has changed the same files of {self.text}")
            return {}

        about = {"joined" if made else "expired": str(len(gone))}
        self._append(made, marks, about, [self._entries[path][1] for path in paths])

    def expire(self, before_ms: int) -> Expired:
        """Remove the hours that ended before a time, by a snapshot. The offsets of the queues stay.

        The files are deleted when the snapshots that name them expire: after the table's
        ``history.expire.max-snapshot-age-ms`` (default: a day), or after the time for which the archive
        keeps messages, if that is shorter.
        """
        old = remove_old(self, before_ms)
        now_ms = self._clock.wall_ms()
        orphans = self._remove_orphans()
        orphans += forget_old(self.table, self.storage, self._options, now_ms, now_ms - before_ms)
        return Expired.of(old, orphans)

    def _remove_orphans(self) -> int:
        """Delete files of ended runs that no snapshot names, and return how many there were."""
        listed = [file.path for file in self.storage.files() if file.path.startswith(FILES)]
        running = {path.rsplit("/", 1)[-1] for path, _ in self.storage.files(NOTES)}
        self.table.load()  # after the notes: a run removes its note only when snapshots name all its files
        ended = [path for path in listed if path.split("/", 1)[0].removeprefix(FILES) not in running]
        if not self._not_named(ended):
            return 0
        # Another run may have removed the note of a run that is alive.
        self._fence()
        self._sweeps = self._count_sweeps()  # this run's next commit must not be affected
        gone = self._not_named(ended)
        self.storage.delete(gone)
        return len(gone)

    def _joinable(self) -> dict[str, tuple[WrittenFile, DataFile]]:
        """Return the files that archives wrote and that have no deleted rows, by their paths."""
        below = self.table.data_folder.rstrip("/") + "/"
        found = {}
        for each in self.table.reading(lambda: list(self.table.table.scan().plan_files())):
            path = each.file.file_path.removeprefix(below)
            if path.startswith(FILES) and not each.delete_files:
                found[path] = (self._written(path, each.file), each.file)
        return found

    def _written(self, path: str, file: DataFile) -> WrittenFile:
        """Rebuild a task's report about a file from its entry in a snapshot."""
        from pyiceberg.conversions import from_bytes

        schema = self.table.table.schema()

        def bounds(name: str) -> tuple[Any, Any]:
            column: Any = schema.find_field(name)
            low, high = file.lower_bounds[column.field_id], file.upper_bounds[column.field_id]
            return from_bytes(column.field_type, low), from_bytes(column.field_type, high)

        topic, _ = bounds("topic")
        first_us, last_us = bounds("store_timestamp")
        first, last = bounds("queue_offset")
        began = datetime.fromtimestamp(first_us / 1_000_000, UTC)
        by_hour = any(str(part.transform) == "hour" for part in self.table.table.spec().fields)
        return WrittenFile(
            path=path,
            staged=path,
            topic=topic,
            date=began.strftime("%Y-%m-%d"),
            hour=began.hour if by_hour else WHOLE_DAY,
            rows=file.record_count,
            bytes=file.file_size_in_bytes,
            first_ms=first_us // 1000,
            last_ms=last_us // 1000,
            parts=(QueuePart("", 0, first, last, file.record_count),),
        )


def _as_placed(file: WrittenFile) -> WrittenFile:
    """Return the file at the path where its task wrote it: nothing is moved in an Iceberg table."""
    bounds = file.bounds | {"topic": Bounds(file.topic, file.topic, 0)}
    return replace(file, path=file.staged, bounds=bounds)


def _began_before(note: str, limit_ms: int) -> bool:
    """Return whether the run of an unfinished note began before a time; never of a file of another kind."""
    began = note[1:].partition("-")[0]
    return began.isdecimal() and int(began) < limit_ms
