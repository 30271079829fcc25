"""An archive that is a Delta table: DuckDB, Polars, Spark with Delta and others read it as it is.

Files count when a commit of the table names them. Until shortly before they lie where no reader looks, and
nothing of a killed run stays: which files are moved to their places is written down before, so the next run
finds those that no commit came to name. How far each queue is
lies in the same commit, as the version of an application transaction named after the queue: Delta keeps the
last version of every application for good, and refuses two writers that move the same one. So files and
offsets are committed together or not at all.
"""

from __future__ import annotations

import json
import os
import secrets
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa

from kerolox.atomic_file import write_atomically
from kerolox.client.messages import Queue
from kerolox.clock import SYSTEM_CLOCK, Clock
from kerolox.errors import KeroloxError, OptionError
from kerolox.pipeline.archive.files import Format, WrittenFile
from kerolox.pipeline.archive.folders import PARTITIONS, PROPERTY, TAG, WHOLE_DAY
from kerolox.pipeline.archive.joining import FILES_MIN, OVER_FOR_MS, end_ms
from kerolox.pipeline.archive.log import OWN_FOLDER, OffsetRanges, check_folder, same_partitions, take_lock
from kerolox.pipeline.archive.staging import NOTHING, Staging, Swept, remove
from kerolox.spark.offsets import QueueOffsets, Tree, from_tree, to_tree
from kerolox.store.disk.files import Files
from kerolox.store.disk.lock import StoreLock

MOVED: Final = "moved.json"


class Moved(msgspec.Struct, frozen=True):
    """Files that are being moved to their places, and the offsets of the commit that is to name them."""

    files: list[str]
    offsets: Tree


class DeltaArchive:
    """A Delta table that topics are archived to."""

    def __init__(self, root: str | os.PathLike[str], *, clock: Clock = SYSTEM_CLOCK) -> None:
        if find_spec("deltalake") is None:
            raise KeroloxError("deltalake is not installed. Install it: pip install 'kerolox[spark,delta]'")
        self.root = Path(root).absolute()
        self.places: QueueOffsets = {}
        self.number = 0
        self._clock = clock
        self._own = self.root / OWN_FOLDER
        self._lock = StoreLock(Files(), self._own)
        self._staging = Staging(self.root, self._own, clock)
        self.swept = NOTHING  # what killed runs had left
        self._table: Any = None
        self._folders: list[str] = []  # the columns they tell

    @property
    def staging(self) -> str:
        return self._staging.folder

    def open(self, format: Format) -> Format:
        from deltalake import DeltaTable

        path = str(self.root)
        is_there = DeltaTable.is_deltatable(path)
        if not is_there:
            check_folder(self.root)
            if (self.root / OWN_FOLDER / "archive.json").exists():
                raise OptionError("to", path, "this one to be written without --delta: it has Parquet files")
        take_lock(self._lock, self.root)
        try:
            if is_there:
                self._table = DeltaTable(path)
                format = same_partitions(format, _partitions(self._table))
            schema = table_schema(format)
            self._folders = list(format.folders)
            if not is_there:
                DeltaTable.create(
                    path, schema, partition_by=self._folders, description="topics archived by kerolox"
                )
                self._table = DeltaTable(path)
            names = [field.name for field in self._table.schema().fields]
            if set(names) != set(schema.names):
                raise OptionError("properties", format.properties, f"what gives the table's columns: {names}")
            self.number = self._table.version()
            self.swept = self._undo() + self._staging.begin()
        except BaseException:
            self._lock.release()
            raise
        return format

    def close(self) -> None:
        if self._lock.held:
            self._staging.clear()
            self._lock.release()

    def _undo(self) -> Swept:
        """Remove what a killed run has moved to its place, unless its commit came after all."""
        try:
            moved = msgspec.json.decode((self._own / MOVED).read_bytes(), type=Moved)
        except FileNotFoundError:
            return NOTHING
        except msgspec.MsgspecError as error:
            raise KeroloxError(f"{self._own / MOVED} cannot be read: {error}") from error
        versions = [
            (self._table.transaction_version(application(queue)), at)
            for queue, at in from_tree(moved.offsets).items()
        ]
        is_committed = all(found is not None and found >= at for found, at in versions)
        swept = NOTHING if is_committed else remove(self.root / path for path in moved.files)
        (self._own / MOVED).unlink()
        return swept

    def find_places(self, queues: Iterable[Queue]) -> None:
        """Learn how far these queues are; the log is asked for each by name."""
        for queue in queues:
            if queue not in self.places:
                found = self._table.transaction_version(application(queue))
                if found is not None:
                    self.places[queue] = found

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
    ) -> None:
        from deltalake import CommitProperties, Transaction
        from deltalake.exceptions import DeltaError

        now_ms = self._clock.wall_ms()
        changed = {queue: at for queue, at in places.items() if self.places.get(queue) != at}
        about = {"group": group, "ranges": json.dumps(ranges)}
        if missing:
            about["missing"] = json.dumps(missing)
        files = list(files)
        moved = Moved([file.path for file in files], to_tree(changed))
        write_atomically(self._own / MOVED, msgspec.json.encode(moved))
        for file in self._staging.publish(files):
            raise KeroloxError(f"{self.root / file.staged} is gone. Was it deleted?")
        try:
            self._table.create_write_transaction(
                [_added(file, self._folders, now_ms) for file in files],
                mode="append",
                schema=self._table.schema(),
                partition_by=self._folders,
                commit_properties=CommitProperties(
                    custom_metadata=about,
                    app_transactions=[
                        Transaction(application(queue), at, now_ms) for queue, at in changed.items()
                    ],
                ),
            )
        except DeltaError as error:
            raise KeroloxError(f"the Delta table {self.root} did not take the commit: {error}") from error
        (self._own / MOVED).unlink()
        self._table.update_incremental()
        self.number = self._table.version()
        self.places = dict(places)

    def join(self, run: object, format: Format) -> int:
        """Join small files of hours that are over; how many there were. The table does it itself."""
        now_ms = self._clock.wall_ms()
        counts: Counter[tuple[str, str, int]] = Counter()
        actions = pa.table(self._table.get_add_actions(flatten=True)).to_pylist()
        for action in actions:
            if action["size_bytes"] * 2 <= format.bytes_max and action["num_records"] * 2 <= format.rows_max:
                hour = action.get("partition.hour", WHOLE_DAY)
                where = (action["partition.topic"], str(action["partition.date"]), hour)
                counts[where] += 1
        joined = 0
        for (topic, date, hour), count in counts.items():
            if count >= FILES_MIN and end_ms(date, hour) + OVER_FOR_MS <= now_ms:
                hours = [("topic", "=", topic), ("date", "=", date)]
                if hour != WHOLE_DAY:
                    hours.append(("hour", "=", str(hour)))
                told = self._table.optimize.compact(partition_filters=hours, target_size=format.bytes_max)
                joined += told["numFilesRemoved"]
        if joined:
            self._table.update_incremental()
            self.number = self._table.version()
        return joined

    def discard(self, files: Iterable[WrittenFile]) -> None:
        self._staging.discard(files)


def application(queue: Queue) -> str:
    """The name under which a queue's next offset is kept in the table's log."""
    return f"kerolox-archive:{queue.topic}:{queue.broker}:{queue.queue_id}"


def table_schema(format: Format) -> pa.Schema:
    kinds = {"date": pa.date32(), "hour": pa.int32()}
    parts = [pa.field(name, kinds.get(name, pa.string())) for name in format.folders]
    return pa.schema([*parts, *format.schema()])


def _partitions(table: Any) -> tuple[str, ...]:
    """What a table is divided by, as we name it."""
    names = table.metadata().partition_columns
    return tuple(name if name in (*PARTITIONS, TAG) else f"{PROPERTY}{name}" for name in names)


def _added(file: WrittenFile, folders: Sequence[str], now_ms: int) -> Any:
    from deltalake.transaction import AddAction

    statistics = {
        "numRecords": file.rows,
        "minValues": {
            "queue_offset": min(part.first for part in file.parts),
            "store_timestamp": _iso(file.first_ms),
        },
        "maxValues": {
            "queue_offset": max(part.last for part in file.parts),
            "store_timestamp": _iso(file.last_ms),
        },
        "nullCount": {"queue_offset": 0, "store_timestamp": 0},
    }
    told = [file.topic, file.date, *([] if file.hour == WHOLE_DAY else [str(file.hour)]), *file.values]
    where = dict(zip(folders, told, strict=True))
    return AddAction(file.path, file.bytes, where, now_ms, True, json.dumps(statistics))


def _iso(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds")
