"""A Delta table to which files are added, and from which they are removed, each commit once.

Files are written to the table's folder first; they belong to it when a commit names them. Marks are versions
of application transactions in the same commit: Delta keeps the last version of every application for good,
and rejects two writers that move the same one. A commit that removes files is tried only on the version that
it was planned for: deltalake itself does not notice that another commit has removed the same files.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date, datetime, timedelta
from importlib.util import find_spec
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa

from kerolox.clock import SYSTEM_CLOCK, Clock
from kerolox.errors import KeroloxError
from kerolox.pipeline.lake.delta_options import delta_options
from kerolox.pipeline.lake.storage import Storage, without_secrets
from kerolox.pipeline.lake.table_file import LakeFile
from kerolox.pipeline.lake.upkeep import OthersCameFirst

TRIES: Final = 30  # attempts to remove files between the commits of others
# Delta features that the data files do not show.
HIDDEN: Final = ("deletionVectors", "columnMapping")


class LakeDelta:
    """Delta table at an address."""

    def __init__(self, storage: Storage, clock: Clock = SYSTEM_CLOCK) -> None:
        if find_spec("deltalake") is None:
            raise KeroloxError("deltalake is not installed. Install it: pip install 'kerolox[spark,delta]'")
        self.storage = storage
        self._options = delta_options(storage)
        self._clock = clock
        self._table: Any = None

    # --- the table ------------------------------------------------------------------------------------

    def load(self) -> bool:
        """Load the current version. Returns False if there is no table."""
        from deltalake import DeltaTable

        with delta_errors(self.storage):
            if self._table is not None:
                self._table.update_incremental()
            elif DeltaTable.is_deltatable(self.storage.address, self._options):
                self._table = DeltaTable(self.storage.address, storage_options=self._options)
        return self._table is not None

    def make(self, columns: pa.Schema, partitions: Sequence[str], about: str) -> None:
        """Create the table, or load the existing one."""
        from deltalake import DeltaTable

        if self.load():
            return
        with delta_errors(self.storage):
            DeltaTable.create(
                self.storage.address, columns, partition_by=list(partitions), mode="ignore",
                storage_options=self._options, description=about,
            )  # fmt: skip
        self.load()

    @property
    def table(self) -> Any:
        """The table object of deltalake."""
        assert self._table is not None, "load() or make() comes first"
        return self._table

    @property
    def version(self) -> int:
        return int(self.table.version())

    @property
    def partitions(self) -> list[str]:
        return list(self.table.metadata().partition_columns)

    @property
    def column_types(self) -> dict[str, Any]:
        return {field.name: field.type for field in self.table.schema().fields}

    def file_schema(self) -> pa.Schema:
        """Return the columns of the table's files."""
        found = pa.schema(self.table.schema())
        return pa.schema([field for field in found if field.name not in self.partitions])

    def check_plain(self) -> None:
        """Raise KeroloxError if the data files alone do not show the rows."""
        hidden = sorted(set(self.table.protocol().reader_features or ()) & set(HIDDEN))
        if hidden:
            raise KeroloxError(
                f"the Delta table {self.storage} uses {', '.join(hidden)}, which kerolox cannot read. "
                "Rewrite it without (Spark with Delta: REORG TABLE ... APPLY (PURGE), then drop the feature)"
            )

    def mark(self, name: str) -> int | None:
        """Return the version of an application."""
        found: int | None = self.table.transaction_version(name)
        return found

    def actions(self) -> dict[str, dict[str, Any]]:
        """Return the table's entry for each of its files, by path."""
        found = pa.table(self.table.get_add_actions(flatten=True)).to_pylist()
        return {unquote(action["path"]): action for action in found}

    def vacuum(self) -> int:
        """Delete files that the table has not named for a week, and return how many there were."""
        with delta_errors(self.storage):
            return len(self.table.vacuum(dry_run=False))

    # --- commits --------------------------------------------------------------------------------------

    def commit(
        self,
        added: Iterable[LakeFile],
        marks: Mapping[str, int],
        about: Mapping[str, str],
        removed: Iterable[str] = (),
    ) -> None:
        """Add and remove files and move marks in one step. Raises CommitFailedError of deltalake.

        Removed files whose rows are in the added ones are no change of data; without added ones they are.
        """
        from deltalake import CommitProperties, Transaction
        from deltalake.transaction import RemoveAction

        now_ms = self._clock.wall_ms()
        partitions, added, gone = self.partitions, list(added), list(removed)
        changes = not (gone and added)
        known = self.actions() if gone else {}
        actions = [_added(file, partitions, now_ms, changes) for file in added] + [
            RemoveAction(path, changes, now_ms, known[path]["size_bytes"]) for path in gone
        ]
        self.table.create_write_transaction(
            actions,
            mode="append",
            schema=self.table.schema(),
            partition_by=partitions,
            commit_properties=CommitProperties(
                custom_metadata=dict(about),
                max_commit_retries=0 if gone else None,
                app_transactions=[Transaction(name, at, now_ms) for name, at in marks.items()],
            ),
        )
        self.table.update_incremental()

    def swap(self, removed: Sequence[str], added: Sequence[LakeFile], about: Mapping[str, str]) -> None:
        """Remove files, and add those with their rows. Raises OthersCameFirst if one is removed already."""
        from deltalake.exceptions import CommitFailedError

        with delta_errors(self.storage):
            for _ in range(TRIES):
                if not set(removed) <= self.actions().keys():
                    break
                try:
                    self.commit(added, {}, about, removed)
                except CommitFailedError:  # by a commit that may have removed the same files
                    self.load()
                else:
                    return
        raise OthersCameFirst(f"other runs have changed {self.storage} meanwhile")


@contextmanager
def delta_errors(storage: Storage, but: type[Exception] = KeroloxError) -> Iterator[None]:
    """Turn errors of deltalake into KeroloxError, without secrets, except those of one class."""
    from deltalake.exceptions import CommitFailedError, DeltaError

    try:
        yield
    except but:
        raise
    except CommitFailedError as error:
        raise KeroloxError(
            f"the Delta table {storage} rejected the commit: {error} Did another run write to it? Start "
            "again: the same command continues after the last commit"
        ) from error
    except (DeltaError, OSError) as error:
        raise KeroloxError(without_secrets(storage, f"the Delta table {storage}: {error}")) from None


def _added(file: LakeFile, partitions: Sequence[str], now_ms: int, changes: bool) -> Any:
    from deltalake.transaction import AddAction

    there = {name: found for name, found in file.bounds.items() if name not in partitions}

    least = {name: _statistic(found.least) for name, found in there.items()}
    # Delta's log has times in milliseconds.
    greatest = {name: _statistic(_rounded_up(found.greatest)) for name, found in there.items()}
    statistics = {
        "numRecords": file.rows,
        "minValues": {name: value for name, value in least.items() if value is not None},
        "maxValues": {name: value for name, value in greatest.items() if value is not None},
        "nullCount": {name: found.nulls for name, found in there.items()},
    }
    where = dict(zip(partitions, file.values, strict=True))
    return AddAction(file.path, file.bytes, where, now_ms, changes, json.dumps(statistics))


def _statistic(value: Any) -> Any:
    """Return a bound as Delta's log has it; None for types that have none there."""
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%dT%H:%M:%S}.{value.microsecond // 1000:03d}Z" if value.tzinfo else None
    if isinstance(value, date):
        return value.isoformat()
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return value if is_number or isinstance(value, str) else None


def _rounded_up(value: Any) -> Any:
    return value + timedelta(microseconds=999) if isinstance(value, datetime) else value
