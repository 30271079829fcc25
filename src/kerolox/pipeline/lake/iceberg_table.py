"""An Iceberg table that Parquet files are added to, each commit once.

Files are written first, to where the table keeps its data; they count when a snapshot names them. A commit
adds one snapshot with all files of a step, and how far the writer is: a *mark*, text under a name. Marks lie
in the summary of the snapshot and, by the same commit, in the table's properties. A reader of marks goes from
the current snapshot back through its ancestors and takes the first it finds, else the property. So a mark
outlives the expiry of old snapshots and snapshots of other writers (compaction by Spark, say), which carry no
marks; and when somebody rolls the table back, marks go back with the data.

pyiceberg repeats an append that met another commit without asking, and would add the same messages twice
when that other commit was of the same work. Here each try looks at the table's marks first, and a commit only
holds on the very snapshot that it has looked at. An outcome that nobody knows (a lost answer, a catalog that
went away) is settled by looking for the snapshot's id, which is chosen before.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
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

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

log = logging.getLogger(__name__)

PREFIX = "kerolox."  # of our names in summaries and properties
TRIES = 8
PAUSE_S = 0.1  # twice as long after each try
PAUSE_S_MAX = 3.0
# Every commit writes the whole list of snapshots anew, and a manifest with its few files: without these, old
# lists would stay for good, and planning a query would take as many reads as there were commits.
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
    """Nobody knows whether a commit came to be: the catalog does not answer. Its files must stay."""

    def __init__(self, why: str) -> None:
        super().__init__(why, retriable=True)


@dataclass(frozen=True)
class TableFile:
    """A Parquet file, with what its writer knows of it: nobody has to read it again for a commit."""

    path: str  # the whole address
    rows: int
    bytes: int
    # Least and greatest value of columns that have no nulls. Those the table is divided by must be here.
    bounds: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)


class IcebergTable:
    """A table in a catalog."""

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
        """pyiceberg's own."""
        assert self._table is not None, "load() or make() comes first"
        return self._table

    # --- the table ------------------------------------------------------------------------------------

    def load(self) -> bool:
        """Look at the table as it is now. False: there is none."""
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
        """Make the table, or take the one that is there and add the columns that it does not have."""
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
            except TableAlreadyExistsError:  # somebody was faster
                self.load()
            except Exception as error:
                raise IcebergError(f"{self.text} cannot be made: {short(error)}") from error
        self.evolve(schema)

    def evolve(self, schema: pa.Schema) -> None:
        """Add the columns that the table does not have. Refuses what would drop or narrow one."""
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
        """How to write files of these columns for the table."""
        return file_schema(self.table.schema(), schema)

    @property
    def data_folder(self) -> str:
        """Where files of the table are written, as an address."""
        return str(self.table.location_provider().data_path)

    @property
    def storage_properties(self) -> dict[str, str]:
        """What pyiceberg knows of the storage: keys, endpoints, and those that a REST catalog has lent."""
        return dict(self.table.io.properties)

    # --- marks ----------------------------------------------------------------------------------------

    def mark(self, name: str) -> str | None:
        """The value of a mark as the table is now, of the last ``load``."""
        for snapshot in self.history():
            summary = snapshot.summary
            found = summary.additional_properties.get(PREFIX + name) if summary is not None else None
            if found is not None:
                return str(found)
        return self.table.metadata.properties.get(PREFIX + name)

    def history(self) -> Iterator[Snapshot]:
        """The current snapshot and its ancestors, as far as they are kept."""
        metadata = self.table.metadata
        snapshot = metadata.current_snapshot()
        while snapshot is not None:
            yield snapshot
            parent = snapshot.parent_snapshot_id
            snapshot = None if parent is None else metadata.snapshot_by_id(parent)

    def data_files(self) -> set[str]:
        """The addresses of the files that any snapshot names, the current one or an older."""
        return self.reading(self._data_files)

    def reading(self, work: Callable[[], Read]) -> Read:
        """Read files of the table, again when their snapshots were forgotten meanwhile."""
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
        """Look at the table anew: whether somebody has committed since we did last."""
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
        """The addresses of all that the table leads to: its documents, and what snapshots lead to."""
        found = self.reading(self._reachable)  # first: it may look at the table anew
        documents = {each.metadata_file for each in self.table.metadata.metadata_log}
        return found | documents | {self.table.metadata_location}

    @property
    def drops_documents(self) -> bool:
        """Whether old documents of the table are deleted. Else somebody may want to keep them."""
        return self.table.metadata.properties.get(DROPS, "").lower() == "true"

    @property
    def metadata_folder(self) -> str | None:
        """Where the table's own files lie, as an address. None: where other tables' may lie, too."""
        if "write.metadata.path" in self.table.metadata.properties:
            return None
        return f"{self.table.location().rstrip('/')}/metadata"

    def _reachable(self) -> set[str]:
        """The addresses of all that snapshots lead to: lists of manifests, manifests, and files."""
        io = self.table.io
        found = self._data_files()
        for snapshot in self.table.metadata.snapshots:
            found.add(snapshot.manifest_list)
            found.update(manifest.manifest_path for manifest in snapshot.manifests(io))
        return found

    # --- commits --------------------------------------------------------------------------------------

    def expire_snapshots(self, before_ms: int) -> int:
        """Forget snapshots of before a time, and delete what no other leads to. Returns how many files.

        The current one stays, and those that branches and tags name. Should this be killed before all is
        deleted, files are left that no snapshot leads to: ``IcebergArchive.expire`` removes them later.
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
            except Exception as error:  # as many kinds as there are stores
                log.warning("file_not_deleted path=%s error=%r", path, short(error))
        return len(gone)

    def append(
        self,
        files: Sequence[TableFile | DataFile],
        marks: Callable[[], Marks | None],
        about: Mapping[str, str] | None = None,
        *,
        replaced: Iterable[DataFile] = (),
    ) -> bool:
        """Add files by one snapshot, with marks. False: ``marks`` wanted no commit.

        ``marks`` is called before each try, with the table as it then is. It tells the marks to write, or
        None where the work has been done by somebody else, or raises. ``about`` goes to the summary alone.
        ``replaced`` leave the table by the same snapshot: these files hold what those held.
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
                    snapshot.append_data_file(self._entry(each) if isinstance(each, TableFile) else each)
            return True

        return self._commit(stage)

    def append_once(self, paths: Sequence[str], name: str, number: int) -> bool:
        """Add written files as step ``number`` of a work: once, however often it is asked for.

        Their footers are read here. False: the table has this step, or a later one, already.
        """
        from pyiceberg.io.pyarrow import parquet_file_to_data_file

        def marks() -> Marks | None:
            done = self.mark(name)
            return None if done is not None and int(done) >= number else {name: str(number)}

        if marks() is None:
            return False
        table = self.table
        files = [
            parquet_file_to_data_file(io=table.io, table_metadata=table.metadata, file_path=path)
            for path in paths
        ]
        return self.append(files, marks)

    def remove(self, files: Iterable[DataFile], about: Mapping[str, str] | None = None) -> bool:
        """Take files out of the table by one snapshot. Marks stay what they are."""
        gone = list(files)
        return bool(gone) and self.append((), dict, about, replaced=gone)

    def _entry(self, file: TableFile) -> DataFile:
        """A file as a manifest names it."""
        from pyiceberg.conversions import to_bytes
        from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
        from pyiceberg.typedef import Record

        metadata = self.table.metadata
        schema, spec = metadata.schema(), metadata.spec()
        by_id = {schema.find_field(name).field_id: pair for name, pair in file.bounds.items()}
        kinds: dict[int, Any] = {key: schema.find_type(key) for key in by_id}
        values = []
        for part in spec.fields:
            if part.source_id not in by_id:
                column = schema.find_column_name(part.source_id)
                raise IcebergError(
                    f"{self.text} is divided by {part.transform} of {column}, "
                    f"which is not known of {file.path}. Take a table that is not divided by it"
                )
            transform = part.transform.transform(kinds[part.source_id])
            least, greatest = (transform(value) for value in by_id[part.source_id])
            if least != greatest:
                raise IcebergError(
                    f"{file.path} has rows of {part.name} {least} to {greatest}: a file "
                    f"of {self.text} is of one"
                )
            values.append(least)
        return DataFile.from_args(
            _table_format_version=metadata.format_version,
            content=DataFileContent.DATA,
            file_path=file.path,
            file_format=FileFormat.PARQUET,
            partition=Record(*values),
            record_count=file.rows,
            file_size_in_bytes=file.bytes,
            value_counts=dict.fromkeys(by_id, file.rows),
            null_value_counts=dict.fromkeys(by_id, 0),
            lower_bounds={key: to_bytes(kinds[key], pair[0]) for key, pair in by_id.items()},
            upper_bounds={key: to_bytes(kinds[key], pair[1]) for key, pair in by_id.items()},
            sort_order_id=None,
            spec_id=metadata.default_spec_id,
            equality_ids=None,
            key_metadata=None,
        )

    def _commit(self, stage: Callable[[Any], bool]) -> bool:
        """Stage and commit, again when somebody else was faster. False: there was nothing to do."""
        from pyiceberg.exceptions import CommitFailedException

        tried: list[int] = []
        unsure: set[int | None] = set()  # snapshots that a try with an unknown end may still come to lie on
        pause_s = PAUSE_S
        trouble = Exception()
        for number in range(TRIES):
            once = self._one_try()
            transaction = once.transaction()
            try:
                if not stage(transaction):
                    return False
                tried += [each.snapshot_id for each in transaction._snapshot_producers]
            except (OSError, ValueError) as error:
                trouble = error
                # The snapshot we looked at may be forgotten, and its files gone: then there is a newer one.
                if self._has_changed(error):
                    continue
                break
            try:
                transaction.commit_transaction()
            except CommitFailedException as error:
                trouble = error
            except Exception as error:  # as many kinds as there are catalogs; it may have come to be
                trouble = error
                if not _is_refused(error):
                    unsure.add(self._head())
            else:
                self._table = once  # the commit's answer is in it
                return True
            self._load_again(trouble)
            if any(self.table.metadata.snapshot_by_id(each) is not None for each in tried):
                return True
            if _is_refused(trouble):
                break
            log.info("commit_again table=%s try=%d error=%r", self.name, number + 1, short(trouble))
            time.sleep(pause_s)
            pause_s = min(PAUSE_S_MAX, 2 * pause_s)
        if self._head() in unsure:
            raise self._unknown(trouble) from trouble
        raise IcebergError(
            f"{self.text} did not take the commit: {short(trouble)}", retriable=not _is_refused(trouble)
        ) from trouble

    def _head(self) -> int | None:
        snapshot = self.table.metadata.current_snapshot()
        return None if snapshot is None else snapshot.snapshot_id

    def _one_try(self) -> Table:
        """The table with transactions that are tried once: whether to try again is decided here."""
        from pyiceberg.table import Table

        table = self.table
        metadata = table.metadata.model_copy(update={"properties": {**table.metadata.properties, **ONE_TRY}})
        return Table(table.name(), metadata, table.metadata_location, table.io, table.catalog, table.config)

    def _load_again(self, trouble: Exception) -> None:
        """Look at the table after a commit that failed, or did not."""
        pause_s = PAUSE_S
        for _ in range(TRIES):
            try:
                if self.load():
                    return
                raise IcebergError(f"{self.text} is gone: was it dropped?")
            except IcebergError as error:
                if not error.retriable:
                    raise
                time.sleep(pause_s)
                pause_s = min(PAUSE_S_MAX, 2 * pause_s)
        raise self._unknown(trouble) from trouble

    def _unknown(self, trouble: Exception) -> CommitUnknown:
        return CommitUnknown(
            f"{self.text}: whether the last commit came to be is not known, because the catalog gave no "
            f"clear answer ({short(trouble)}). It is looked up when it answers again"
        )


def _is_refused(error: Exception) -> bool:
    """Whether the catalog has said no, for good."""
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
