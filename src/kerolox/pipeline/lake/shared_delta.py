"""A Delta table that flows write to, and upkeep beside them. The last batch of a flow is an application's
version.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from kerolox.clock import SYSTEM_CLOCK, Clock
from kerolox.errors import KeroloxError, OptionError
from kerolox.pipeline.lake.delta_table import LakeDelta
from kerolox.pipeline.lake.storage import Storage
from kerolox.pipeline.lake.table_file import LakeFile
from kerolox.pipeline.lake.upkeep import JoinTask, OthersCameFirst
from kerolox.pipeline.lake.written_names import hour_of, joined_path, written_ms


class SharedDelta:
    """Delta table with the last batch of each flow."""

    def __init__(self, storage: Storage, clock: Clock = SYSTEM_CLOCK) -> None:
        self.storage = storage
        self.table = LakeDelta(storage, clock)

    def make(self, columns: pa.Schema, partitions: Sequence[str], about: str) -> None:
        """Create the table, or check the existing one."""
        self.table.make(columns, partitions, about)
        there = self.table.column_types
        if set(there) != set(columns.names):
            more = ", ".join(sorted(set(columns.names) ^ set(there)))
            raise OptionError(
                "path",
                self.storage.address,
                f"a table with the columns of the sink; different columns: {more}",
            )
        if self.table.partitions != list(partitions):
            raise OptionError(
                "partition_by", ", ".join(partitions),
                f"the table's partition columns: {', '.join(self.table.partitions)}",
            )  # fmt: skip

    def mark(self, name: str) -> int | None:
        """Return the last batch of a flow."""
        self.table.load()
        return self.table.mark(name)

    def add(self, files: Sequence[LakeFile], name: str, batch: int) -> bool:
        """Add the files of a batch. Returns False if the table has it already."""
        from deltalake.exceptions import DeltaError

        try:
            self.table.commit(files, {name: batch}, {"flow": name, "batch": str(batch)})
        except DeltaError as error:
            done = self.mark(name)
            if done is not None and done >= batch:  # committed by another run, which seemed dead
                return False
            raise KeroloxError(f"the Delta table {self.storage} rejected the commit: {error}") from error
        return True

    # --- upkeep ---------------------------------------------------------------------------------------

    def known(self) -> dict[str, LakeFile]:
        self.table.load()
        self.table.check_plain()
        names = [f"partition.{name}" for name in self.table.partitions]
        found = self.table.actions().items()
        return {path: _file(path, action, names) for path, action in found if written_ms(path)}

    def join_tasks(self, sets: Sequence[Sequence[LakeFile]]) -> list[JoinTask]:
        schema = self.table.file_schema()
        tasks = []
        for files in sets:
            path = joined_path(files)
            tasks.append(JoinTask(tuple(files), self.storage, path, path, schema))
        return tasks

    def replace(self, gone: Sequence[LakeFile], made: Sequence[LakeFile]) -> None:
        try:
            about = {"joined" if made else "expired": str(len(gone))}
            self.table.swap([file.path for file in gone], made, about)
        except OthersCameFirst:
            self.discard(made)
            raise

    def discard(self, files: Sequence[LakeFile]) -> None:
        self.storage.delete(file.path for file in files)

    def remove_orphans(self, keep_ms: int) -> int:
        """Delete files that the table has not named for a week, and return how many there were."""
        return self.table.vacuum()


def _file(path: str, action: dict[str, Any], partitions: Sequence[str]) -> LakeFile:
    return LakeFile(
        path=path,
        staged=path,
        rows=action["num_records"],
        bytes=action["size_bytes"],
        values=tuple(action[name] for name in partitions),
        **hour_of(written_ms(path) or 0),
    )
