"""An Iceberg table that flows write to, and upkeep beside them. The last batch of a flow is a mark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from kerolox.clock import SYSTEM_CLOCK, Clock
from kerolox.pipeline.lake.iceberg_catalog import CatalogPlace
from kerolox.pipeline.lake.iceberg_schema import Partitions
from kerolox.pipeline.lake.iceberg_storage import catalog_options, table_storage
from kerolox.pipeline.lake.iceberg_table import CommitUnknown, IcebergTable, Marks
from kerolox.pipeline.lake.storage import Storage
from kerolox.pipeline.lake.table_file import LakeFile
from kerolox.pipeline.lake.unnamed_metadata import forget_old
from kerolox.pipeline.lake.upkeep import JoinTask, OthersCameFirst
from kerolox.pipeline.lake.written_names import abandoned, hour_of, joined_path, written_ms

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile


class SharedIceberg:
    """Iceberg table with the last batch of each flow."""

    def __init__(
        self,
        name: str,
        place: CatalogPlace,
        options: Mapping[str, Any] | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._options = dict(options or {})
        told = {**catalog_options(self._options), **place.options}
        self.table = IcebergTable(replace(place, options=told), name)
        self._clock = clock
        self._entries: dict[str, DataFile] = {}  # as known() has found them

    @property
    def storage(self) -> Storage:
        return table_storage(self.table, self._options)

    def make(self, columns: pa.Schema, partitions: Partitions) -> None:
        """Create the table, or add missing columns."""
        self.table.make(columns, partitions)

    def mark(self, name: str) -> int | None:
        """Return the last batch of a flow."""
        found = self.table.mark(name)
        return None if found is None else int(found)

    def add(self, files: Sequence[LakeFile], name: str, batch: int) -> bool:
        """Add the files of a batch. Returns False if the table has it already."""

        def marks() -> Marks | None:
            done = self.mark(name)
            return None if done is not None and done >= batch else {name: str(batch)}

        return self.table.append(files, marks)

    # --- upkeep ---------------------------------------------------------------------------------------

    def known(self) -> dict[str, LakeFile]:
        self.table.load()
        self._entries = self._found()
        return {path: _file(path, entry) for path, entry in self._entries.items()}

    def _found(self) -> dict[str, DataFile]:
        """Return the files that flows wrote under the current partitions and that have no deleted rows."""
        below = self.table.data_folder.rstrip("/") + "/"
        spec = self.table.table.metadata.default_spec_id
        found = {}
        for each in self.table.reading(lambda: list(self.table.table.scan().plan_files())):
            path = each.file.file_path.removeprefix(below)
            if "://" not in path and written_ms(path) and not each.delete_files and each.file.spec_id == spec:
                found[path] = each.file
        return found

    def join_tasks(self, sets: Sequence[Sequence[LakeFile]]) -> list[JoinTask]:
        table = self.table.table
        schema = self.table.file_schema(table.schema().as_arrow())
        spec = [each for each in table.spec().fields if str(each.transform) == "identity"]
        constant = tuple(table.schema().find_column_name(each.source_id) or "" for each in spec)
        tasks = []
        for files in sets:
            path = joined_path(files)
            tasks.append(JoinTask(tuple(files), self.storage, path, path, schema, constant=constant))
        return tasks

    def replace(self, gone: Sequence[LakeFile], made: Sequence[LakeFile]) -> None:
        paths = {file.path for file in gone}

        def marks() -> Marks:
            if not paths <= self._found().keys():
                raise OthersCameFirst(f"another run has changed the same files of {self.table.text}")
            return {}

        about = {"joined" if made else "expired": str(len(gone))}
        try:
            self.table.append(made, marks, about, replaced=[self._entries[path] for path in paths])
        except CommitUnknown:
            raise
        except OthersCameFirst:
            self.discard([file for file in made if file.path not in self._found()])
            raise

    def discard(self, files: Sequence[LakeFile]) -> None:
        self.storage.delete(file.path for file in files)

    def remove_orphans(self, keep_ms: int) -> int:
        """Expire old snapshots with their files, and delete files that killed runs wrote a day ago or longer.

        Returns how many of the latter there were.
        """
        now_ms, storage = self._clock.wall_ms(), self.storage
        old = [file.path for file in storage.files() if abandoned(file.path, now_ms)]
        below = self.table.data_folder.rstrip("/") + "/"
        self.table.load()
        named = {path.removeprefix(below) for path in self.table.data_files()} if old else set()
        gone = [path for path in old if path not in named]
        storage.delete(gone)
        return len(gone) + forget_old(self.table, storage, self._options, now_ms, keep_ms)


def _file(path: str, entry: DataFile) -> LakeFile:
    values = (entry.partition[at] for at in range(len(entry.partition)))
    return LakeFile(
        path=path,
        staged=path,
        rows=entry.record_count,
        bytes=entry.file_size_in_bytes,
        values=tuple(None if value is None else str(value) for value in values),
        **hour_of(written_ms(path) or 0),
    )
