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
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.util import find_spec
from typing import Any, Final

import msgspec
import pyarrow as pa

from kerolox.client.messages import Queue
from kerolox.clock import SYSTEM_CLOCK, Clock
from kerolox.errors import KeroloxError, OptionError
from kerolox.pipeline.archive.files import Format, WrittenFile
from kerolox.pipeline.archive.folders import PARTITIONS, PROPERTY, TAG, WHOLE_DAY
from kerolox.pipeline.archive.joining import FILES_MIN, OVER_FOR_MS, JoinRule, end_ms
from kerolox.pipeline.archive.log import HEAD, OffsetRanges, check_folder, same_partitions, take_lock
from kerolox.pipeline.archive.staging import NOTHING, OWN_FOLDER, Expired, Staging, Swept, remove
from kerolox.pipeline.lake.delta_options import delta_options
from kerolox.pipeline.lake.storage import Storage, open_storage, without_secrets
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
        if find_spec("deltalake") is None:
            raise KeroloxError("deltalake is not installed. Install it: pip install 'kerolox[spark,delta]'")
        self.storage = open_storage(root)
        self.places: QueueOffsets = {}
        self.last_read: LastReads = {}
        self.number = 0
        self._clock = clock
        self._lock = StoreLock(Files(), self.storage.lock_folder)
        self._staging = Staging(self.storage, clock)
        self.swept = NOTHING  # files of killed runs that were removed
        self._table: Any = None
        self._folders: list[str] = []  # columns whose values are in folder names

    @property
    def staging(self) -> str:
        return self._staging.folder

    def open(self, format: Format) -> Format:
        path, options = self.storage.address, delta_options(self.storage)
        is_there = bool(self.storage.files("_delta_log"))
        if not is_there:
            check_folder(self.storage)
            if self.storage.exists(HEAD):
                raise OptionError("to", path, "no --delta: this is an archive of Parquet files")
        take_lock(self._lock, self.storage)
        try:
            with delta_errors(self.storage):
                from deltalake import DeltaTable

                if is_there:
                    self._table = DeltaTable(path, storage_options=options)
                    format = same_partitions(format, _partitions(self._table))
                schema = table_schema(format)
                self._folders = list(format.folders)
                if not is_there:
                    about = "topics archived by kerolox"
                    self._table = DeltaTable.create(
                        path, schema, partition_by=self._folders, description=about, storage_options=options
                    )
                names = [field.name for field in self._table.schema().fields]
                if set(names) != set(schema.names):
                    wanted = f"a value that gives the table's columns: {names}"
                    raise OptionError("properties", format.properties, wanted)
                self._sweep()
                self.number = self._table.version()
        except BaseException:
            self._lock.release()
            raise
        return format

    def properties(self) -> str:
        """Return the form of the properties column in the existing table: map, string or none."""
        from deltalake import DeltaTable

        with delta_errors(self.storage):
            table = DeltaTable(self.storage.address, storage_options=delta_options(self.storage))
            kinds = {field.name: field.type for field in table.schema().fields}
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
                self._write((), {"group": ""}, {})
                break
            except CommitFailedError:
                if not tries_left:
                    raise
                self._table.update_incremental()
        self._table.update_incremental()

    def _undo(self, notes: Sequence[str]) -> Swept:
        """Remove files that killed runs moved to their places, unless a commit names them."""
        swept = NOTHING
        if not notes:
            return swept
        named = {os.path.basename(path) for path in self._paths()}
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

    def _paths(self) -> list[str]:
        """Return the files of the table."""
        return [str(action["path"]) for action in self._actions()]

    def find_places(self, queues: Iterable[Queue]) -> None:
        """Read the next offset of each of these queues from the table's log, by the queue's name."""
        for queue in queues:
            if queue not in self.places:
                found = self._table.transaction_version(application(queue))
                if found is not None:
                    self.places[queue] = found
                    self._find_last(queue)

    def _find_last(self, queue: Queue) -> None:
        parts = [self._table.transaction_version(last_application(queue, part)) for part in LastRead._fields]
        if None not in parts:  # commits of older versions have none
            self.last_read[queue] = LastRead(*parts)

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
        note = f"{MOVED}/{self._staging.run}-{secrets.token_hex(4)}.json"
        if files:
            self.storage.put(note, msgspec.json.encode(Moved([file.path for file in files])))
        for file in self._staging.publish(files):
            raise KeroloxError(f"{self.storage.name(file.staged)} is gone. Was it deleted?")
        with delta_errors(self.storage):
            self._write(files, about, moved)
            self.storage.delete([note])
            self._table.update_incremental()
            self.number = self._table.version()
        self.places, self.last_read = dict(places), dict(last)

    def _write(self, files: Sequence[WrittenFile], about: dict[str, str], moved: dict[str, int]) -> None:
        """Commit to the table in one step, or raise the reason it was rejected."""
        from deltalake import CommitProperties, Transaction

        now_ms = self._clock.wall_ms()
        moved = moved | {WRITER: self.number + 1}
        self._table.create_write_transaction(
            [_added(file, self._folders, now_ms) for file in files],
            mode="append",
            schema=self._table.schema(),
            partition_by=self._folders,
            commit_properties=CommitProperties(
                custom_metadata=about,
                app_transactions=[Transaction(name, at, now_ms) for name, at in moved.items()],
            ),
        )

    def join(self, run: object, format: Format, rule: JoinRule | None = None) -> int:
        """Join small files of past hours and return how many there were. deltalake does the joining."""
        rule = rule or JoinRule(OVER_FOR_MS, FILES_MIN)
        now_ms = self._clock.wall_ms()
        counts: Counter[tuple[str, str, int]] = Counter()
        for action in self._actions():
            if action["size_bytes"] * 2 <= format.bytes_max and action["num_records"] * 2 <= format.rows_max:
                counts[_hour_of(action)] += 1
        joined = 0
        with delta_errors(self.storage):
            for (topic, date, hour), count in counts.items():
                if count >= rule.files_min and end_ms(date, hour) + rule.over_for_ms <= now_ms:
                    hours = [("topic", "=", topic), ("date", "=", date)]
                    if hour != WHOLE_DAY:
                        hours.append(("hour", "=", str(hour)))
                    told = self._table.optimize.compact(partition_filters=hours, target_size=format.bytes_max)
                    joined += told["numFilesRemoved"]
            if joined:
                self._table.update_incremental()
                self.number = self._table.version()
        return joined

    def expire(self, before_ms: int) -> Expired:
        """Remove the hours that ended before a time, by a commit. The offsets of the queues stay.

        Files that the table no longer names are removed too, except those of the last week, which readers of
        older versions may still need.
        """
        old = [action for action in self._actions() if end_ms(*_hour_of(action)[1:]) <= before_ms]
        names = {os.path.basename(action["path"]) for action in old}
        with delta_errors(self.storage):
            base = f"{self.storage.address}/"
            uris = (str(uri).removeprefix(base) for uri in self._table.file_uris())
            files = [path for path in uris if os.path.basename(path) in names]
            if files:
                note = f"{MOVED}/{self._staging.run}-{secrets.token_hex(4)}.json"
                self.storage.put(note, msgspec.json.encode(Moved(files)))
                self._table.delete(_older_than(old))
                self._table.update_incremental()
                self.number = self._table.version()
                self._undo([note])
                self.storage.prune({path.rsplit("/", 1)[0] for path in files})
            orphans = self._table.vacuum(dry_run=False)
        rows, size = (sum(action[name] for action in old) for name in ("num_records", "size_bytes"))
        return Expired(len(files), rows, size, len(orphans))

    def _actions(self) -> list[dict[str, Any]]:
        """Return the table's entry for each of its files."""
        found: list[dict[str, Any]] = pa.table(self._table.get_add_actions(flatten=True)).to_pylist()
        return found

    def discard(self, files: Iterable[WrittenFile]) -> None:
        self._staging.discard(files)


@contextmanager
def delta_errors(storage: Storage) -> Iterator[None]:
    """Turn errors of deltalake into KeroloxError, without secrets."""
    from deltalake.exceptions import CommitFailedError, DeltaError

    try:
        yield
    except CommitFailedError as error:
        raise KeroloxError(
            f"the Delta table {storage} rejected the commit: {error} Did another run write to it? Start "
            "again: the same command continues after the last commit"
        ) from error
    except (DeltaError, OSError) as error:
        raise KeroloxError(without_secrets(storage, f"the Delta table {storage}: {error}")) from None


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


def _partitions(table: Any) -> tuple[str, ...]:
    """Return the partition columns of a table, by the names of ``--partition-by``."""
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


def _hour_of(action: dict[str, Any]) -> tuple[str, str, int]:
    """Return topic, date and hour of a file."""
    hour = action.get("partition.hour", WHOLE_DAY)
    return action["partition.topic"], str(action["partition.date"]), hour


def _older_than(actions: Sequence[dict[str, Any]]) -> str:
    """Return an SQL condition that matches exactly the hours of these files."""
    hours: dict[str, set[int]] = {}
    for _, date, hour in map(_hour_of, actions):
        hours.setdefault(date, set()).add(hour)
    told = []
    for date, found in sorted(hours.items()):
        text = f"date = '{date}'"
        if WHOLE_DAY not in found:
            text = f"({text} AND hour IN ({', '.join(map(str, sorted(found)))}))"
        told.append(text)
    return " OR ".join(told)


def _iso(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds")
