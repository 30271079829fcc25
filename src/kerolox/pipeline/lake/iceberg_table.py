"""An Iceberg table to which Parquet files are added, each commit once.

Files are written to the table's data folder first; they belong to the table when a snapshot names them. A
commit adds one snapshot with all files of a step and the progress of the writer: a *mark*, text under a
name. Marks are in the summary of the snapshot and, by the same commit, in the table's properties. A mark is
read from the newest snapshot that has it, starting at the current one and following its ancestors, else from
the property. So a mark survives the expiry of old snapshots, and snapshots of other writers (such as
compaction by Spark), which have no marks; and if the table is rolled back, marks go back with the data.

pyiceberg automatically repeats an append that conflicted with another commit, and would add the same
messages twice if that commit was of the same work. Here each try reads the table's marks first, and a commit
succeeds only on the snapshot it has read. An unknown outcome (a lost answer, an unreachable catalog) is
resolved by a search for the snapshot's id, which is chosen before the commit.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime
from datetime import time as clock_time
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from kerolox.pipeline.lake.iceberg_catalog import (
    CatalogPlace,
    IcebergError,
    is_missing,
    make_namespace,
    short,
    split_name,
)
from kerolox.pipeline.lake.iceberg_schema import (
    Partitions,
    file_schema,
    iceberg_schema,
    missing_columns,
    partition_spec,
)
from kerolox.pipeline.lake.table_file import LakeFile

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

log = logging.getLogger(__name__)

PREFIX = "kerolox."  # prefix of kerolox's names in summaries and properties
TRIES = 8
COMMIT_TRIES = 24  # of a commit, which other writers of the table may overtake
PAUSE_S = 0.1  # seconds, doubled after each try
PAUSE_S_MAX = 3.0
# Every commit writes a new list of all snapshots, and a manifest with its few files. Without these settings
# old lists would never be deleted, and planning a query would read one manifest per commit.
DROPS = "write.metadata.delete-after-commit.enabled"
TIDY = {
    DROPS: "true",
    "write.metadata.previous-versions-max": "20",
    "commit.manifest-merge.enabled": "true",
}
ONE_TRY = {"commit.retry.num-retries": "0"}

Marks = Mapping[str, str]
Read = TypeVar("Read")


class CommitUnknown(IcebergError):
    """Unknown outcome of a commit, because the catalog does not answer. The files must not be deleted."""

    def __init__(self, why: str) -> None:
        super().__init__(why, retriable=True)


class IcebergTable:
    """Table in a catalog."""

    def __init__(self, place: CatalogPlace, name: str) -> None:
        self.place = place
        self.name = name
        self._parts = split_name(name)
        self._catalog = place.open()
        self._table: Table | None = None

    @property
    def text(self) -> str:
        return f"{self.name} in {self.place.text}"

    @property
    def table(self) -> Table:
        """The table object of pyiceberg."""
        assert self._table is not None, "load() or make() comes first"
        return self._table

    # --- the table ------------------------------------------------------------------------------------

    def load(self) -> bool:
        """Load the current version of the table. Returns False if it does not exist."""
        try:
            self._table = self._catalog.load_table(self._parts)
        except Exception as error:
            if is_missing(error):
                return False
            raise IcebergError(f"{self.text} cannot be read: {short(error)}", retriable=True) from error
        return True

    def make(
        self, schema: pa.Schema, partitions: Partitions = (), properties: Mapping[str, str] | None = None
    ) -> None:
        """Create the table, or load the existing one and add missing columns."""
        from pyiceberg.exceptions import TableAlreadyExistsError

        if not self.load():
            columns = iceberg_schema(schema)
            try:
                make_namespace(self._catalog, self._parts[:-1])
                self._table = self._catalog.create_table(
                    self._parts,
                    columns,
                    partition_spec=partition_spec(columns, partitions),
                    properties={**TIDY, **(properties or {})},
                )
                return
            except TableAlreadyExistsError:  # created by another process meanwhile
                self.load()
            except Exception as error:
                raise IcebergError(f"{self.text} cannot be created: {short(error)}") from error
        self.evolve(schema)

    def evolve(self, schema: pa.Schema) -> None:
        """Add missing columns and widen others. Raises an error for changes that narrow a column."""
        wanted = iceberg_schema(schema)

        def stage(transaction: Any) -> bool:
            added, widened = missing_columns(self.table.schema(), wanted)
            if not added and not widened:
                return False
            with transaction.update_schema() as update:
                for each in added:
                    update.add_column(each.name, each.field_type)
                for each in widened:
                    update.update_column(each.name, each.field_type)
            return True

        self._commit(stage)

    def file_schema(self, schema: pa.Schema) -> pa.Schema:
        """Return the schema of files with these columns for the table."""
        return file_schema(self.table.schema(), schema)

    @property
    def data_folder(self) -> str:
        """Address of the folder for data files."""
        return str(self.table.location_provider().data_path)

    @property
    def storage_properties(self) -> dict[str, str]:
        """pyiceberg's storage properties: keys and endpoints, including credentials from a REST catalog."""
        return dict(self.table.io.properties)

    # --- marks ----------------------------------------------------------------------------------------

    def mark(self, name: str) -> str | None:
        """Return the value of a mark in the version loaded last."""
        for snapshot in self.history():
            summary = snapshot.summary
            found = summary.additional_properties.get(PREFIX + name) if summary is not None else None
            if found is not None:
                return str(found)
        return self.table.metadata.properties.get(PREFIX + name)

    def history(self) -> Iterator[Snapshot]:
        """Yield the current snapshot and its ancestors that still exist."""
        metadata = self.table.metadata
        snapshot = metadata.current_snapshot()
        while snapshot is not None:
            yield snapshot
            parent = snapshot.parent_snapshot_id
            snapshot = None if parent is None else metadata.snapshot_by_id(parent)

    def data_files(self) -> set[str]:
        """Return the addresses of the files that the current or an older snapshot names."""
        return self.reading(self._data_files)

    def reading(self, work: Callable[[], Read]) -> Read:
        """Read files of the table, and retry if their snapshots expired meanwhile."""
        for _ in range(TRIES):
            try:
                return work()
            except OSError as error:
                if not self._has_changed(error):
                    raise IcebergError(
                        f"{self.text} cannot be read: {short(error)}", retriable=True
                    ) from error
        return work()

    def _has_changed(self, trouble: Exception) -> bool:
        """Reload the table. Returns True if there was another commit since the last load."""
        seen = self.table.metadata_location
        self._load_again(trouble)
        return self.table.metadata_location != seen

    def _data_files(self) -> set[str]:
        io = self.table.io
        seen: set[str] = set()
        found: set[str] = set()
        for snapshot in self.table.metadata.snapshots:
            for manifest in snapshot.manifests(io):
                if manifest.manifest_path not in seen:
                    seen.add(manifest.manifest_path)
                    found.update(e.data_file.file_path for e in manifest.fetch_manifest_entry(io))
        return found

    def reachable(self) -> set[str]:
        """Return the addresses of all files of the table: its documents, and all that snapshots refer to."""
        found = self.reading(self._reachable)  # first: it may reload the table
        documents = {each.metadata_file for each in self.table.metadata.metadata_log}
        return found | documents | {self.table.metadata_location}

    @property
    def drops_documents(self) -> bool:
        """True if the table's properties allow old documents to be deleted."""
        return self.table.metadata.properties.get(DROPS, "").lower() == "true"

    @property
    def metadata_folder(self) -> str | None:
        """Address of the metadata folder; None if other tables may share it."""
        if "write.metadata.path" in self.table.metadata.properties:
            return None
        return f"{self.table.location().rstrip('/')}/metadata"

    def _reachable(self) -> set[str]:
        """Return the addresses that snapshots refer to: lists of manifests, manifests, and files."""
        io = self.table.io
        found = self._data_files()
        for snapshot in self.table.metadata.snapshots:
            found.add(snapshot.manifest_list)
            found.update(manifest.manifest_path for manifest in snapshot.manifests(io))
        return found

    # --- commits --------------------------------------------------------------------------------------

    def expire_snapshots(self, before_ms: int) -> int:
        """Expire snapshots older than a time, and delete the files that only they refer to. Returns their
        number.

        The current snapshot stays, and those that branches and tags name. A kill in between leaves
        unreferenced files, which ``IcebergArchive.expire`` removes later.
        """
        self.load()
        metadata = self.table.metadata
        kept = {ref.snapshot_id for ref in metadata.refs.values()}
        old = [
            each.snapshot_id
            for each in metadata.snapshots
            if each.timestamp_ms < before_ms and each.snapshot_id not in kept
        ]
        if not old:
            return 0
        led_to = self.reading(self._reachable)

        def stage(transaction: Any) -> bool:
            from pyiceberg.table.update.snapshot import ExpireSnapshots

            there = self.table.metadata
            named = {ref.snapshot_id for ref in there.refs.values()}
            still = [each for each in old if there.snapshot_by_id(each) is not None and each not in named]
            if still:
                with ExpireSnapshots(transaction) as update:
                    update.by_ids(still)
            return bool(still)

        self._commit(stage)
        self.load()
        gone = led_to - self.reading(self._reachable)
        for path in gone:
            try:
                self.table.io.delete(path)
            except Exception as error:  # each store has its own errors
                log.warning("file_not_deleted path=%s error=%r", path, short(error))
        return len(gone)

    def append(
        self,
        files: Sequence[LakeFile | DataFile],
        marks: Callable[[], Marks | None],
        about: Mapping[str, str] | None = None,
        *,
        replaced: Iterable[DataFile] = (),
    ) -> bool:
        """Add files and marks by one snapshot. Returns False if ``marks`` returned None.

        ``marks`` is called before each try, after the table is loaded. It returns the marks to write, or
        None if another process has done the work, or raises. ``about`` goes only to the summary.
        ``replaced`` files are removed by the same snapshot: the new files have their rows.
        """
        gone = list(replaced)

        def stage(transaction: Any) -> bool:
            told = marks()
            if told is None:
                return False
            named = {PREFIX + name: value for name, value in told.items()}
            summary = named | {PREFIX + name: value for name, value in (about or {}).items()}
            if named:
                transaction.set_properties(named)
            if gone:
                update = transaction.update_snapshot(snapshot_properties=summary).overwrite()
            else:
                update = transaction.update_snapshot(snapshot_properties=summary).merge_append()
            with update as snapshot:
                for file in gone:
                    snapshot.delete_data_file(file)
                for each in files:
                    snapshot.append_data_file(self._entry(each) if isinstance(each, LakeFile) else each)
            return True

        return self._commit(stage)

    def remove(self, files: Iterable[DataFile], about: Mapping[str, str] | None = None) -> bool:
        """Remove files from the table by one snapshot. Marks do not change."""
        gone = list(files)
        return bool(gone) and self.append((), dict, about, replaced=gone)

    def _entry(self, file: LakeFile) -> DataFile:
        """Return the manifest entry of a file, whose bounds came from its writer."""
        from pyiceberg.conversions import to_bytes
        from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
        from pyiceberg.typedef import Record

        metadata = self.table.metadata
        schema, spec = metadata.schema(), metadata.spec()
        by_id = {schema.find_field(name).field_id: found for name, found in file.bounds.items()}
        kinds: dict[int, Any] = {key: schema.find_type(key) for key in by_id}
        values = []
        for part in spec.fields:
            known = by_id.get(part.source_id)
            if known is None or (known.least is None and known.nulls < file.rows):
                column = schema.find_column_name(part.source_id)
                raise IcebergError(
                    f"{self.text} is partitioned by {part.transform} of {column}, "
                    f"and {file.path} has no value of it. Use a table without this partition"
                )
            transform = part.transform.transform(kinds[part.source_id])
            least, greatest = transform(_internal(known.least)), transform(_internal(known.greatest))
            if least != greatest or (known.nulls and known.nulls < file.rows):
                raise IcebergError(
                    f"{file.path} has rows of {part.name} {least} to {greatest}: a file "
                    f"of {self.text} must have one value"
                )
            values.append(least)
        filled = {key: found for key, found in by_id.items() if found.least is not None}
        return DataFile.from_args(
            _table_format_version=metadata.format_version,
            content=DataFileContent.DATA,
            file_path=f"{self.data_folder.rstrip('/')}/{file.path}",
            file_format=FileFormat.PARQUET,
            partition=Record(*values),
            record_count=file.rows,
            file_size_in_bytes=file.bytes,
            value_counts=dict.fromkeys(by_id, file.rows),
            null_value_counts={key: found.nulls for key, found in by_id.items()},
            lower_bounds={key: to_bytes(kinds[key], _internal(each.least)) for key, each in filled.items()},
            upper_bounds={
                key: to_bytes(kinds[key], _internal(each.greatest)) for key, each in filled.items()
            },
            sort_order_id=None,
            spec_id=metadata.default_spec_id,
            equality_ids=None,
            key_metadata=None,
        )

    def _commit(self, stage: Callable[[Any], bool]) -> bool:
        """Stage and commit, with retries after conflicts. Returns False if there was nothing to commit."""
        from pyiceberg.exceptions import CommitFailedException

        tried: list[int] = []
        unsure: set[int | None] = set()  # parents on which a try of unknown outcome may still commit
        pause_s = PAUSE_S
        trouble = Exception()
        for number in range(COMMIT_TRIES):
            once = self._one_try()
            transaction = once.transaction()
            try:
                if not stage(transaction):
                    return False
                tried += [each.snapshot_id for each in transaction._snapshot_producers]
            except (OSError, ValueError) as error:
                trouble = error
                # The loaded snapshot may have expired with its files: then a newer one exists.
                if self._has_changed(error):
                    continue
                break
            try:
                transaction.commit_transaction()
            except CommitFailedException as error:
                trouble = error
            except Exception as error:  # each catalog has its own errors; the commit may have succeeded
                trouble = error
                if not _is_refused(error):
                    unsure.add(self._head())
            else:
                self._table = once  # it has the answer of the commit
                return True
            self._load_again(trouble)
            if any(self.table.metadata.snapshot_by_id(each) is not None for each in tried):
                return True
            if _is_refused(trouble):
                break
            log.info("commit_again table=%s try=%d error=%r", self.name, number + 1, short(trouble))
            time.sleep(pause_s * random.uniform(0.5, 1.0))  # two writers must not meet again
            pause_s = min(PAUSE_S_MAX, 2 * pause_s)
        if self._head() in unsure:
            raise self._unknown(trouble) from trouble
        raise IcebergError(
            f"{self.text} rejected the commit: {short(trouble)}", retriable=not _is_refused(trouble)
        ) from trouble

    def _head(self) -> int | None:
        snapshot = self.table.metadata.current_snapshot()
        return None if snapshot is None else snapshot.snapshot_id

    def _one_try(self) -> Table:
        """Return the table without pyiceberg's own retries: ``_commit`` decides about retries."""
        from pyiceberg.table import Table

        table = self.table
        metadata = table.metadata.model_copy(update={"properties": {**table.metadata.properties, **ONE_TRY}})
        return Table(table.name(), metadata, table.metadata_location, table.io, table.catalog, table.config)

    def _load_again(self, trouble: Exception) -> None:
        """Reload the table after a failed commit, with retries."""
        pause_s = PAUSE_S
        for _ in range(TRIES):
            try:
                if self.load():
                    return
                raise IcebergError(f"{self.text} does not exist any more. Was it dropped?")
            except IcebergError as error:
                if not error.retriable:
                    raise
                time.sleep(pause_s)
                pause_s = min(PAUSE_S_MAX, 2 * pause_s)
        raise self._unknown(trouble) from trouble

    def _unknown(self, trouble: Exception) -> CommitUnknown:
        return CommitUnknown(
            f"{self.text}: the outcome of the last commit is unknown, because the catalog gave no "
            f"clear answer ({short(trouble)}). It is looked up when the catalog answers again"
        )


def _internal(value: Any) -> Any:
    """Return a value as Iceberg counts it: times in microseconds, dates in days."""
    from pyiceberg.utils.datetime import (
        date_to_days,
        datetime_to_micros,
        time_to_micros,
    )

    if isinstance(value, datetime):
        return datetime_to_micros(value)
    if isinstance(value, date):
        return date_to_days(value)
    return time_to_micros(value) if isinstance(value, clock_time) else value


def _is_refused(error: Exception) -> bool:
    """Return True if the catalog rejected the commit permanently."""
    from pyiceberg.exceptions import (
        BadRequestError,
        ForbiddenError,
        UnauthorizedError,
        ValidationException,
    )

    return is_missing(error) or isinstance(
        error,
        (BadRequestError, ForbiddenError, UnauthorizedError, ValidationException),
    )
