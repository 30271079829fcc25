"""Files of an Iceberg table as a source of a replay, read by tasks with Arrow, without Iceberg's jar."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kerolox.pipeline.lake.iceberg_catalog import CatalogPlace
from kerolox.pipeline.lake.iceberg_storage import catalog_options, table_storage
from kerolox.pipeline.lake.iceberg_table import IcebergTable
from kerolox.pipeline.replay.lake_files import FolderValues, LakeFiles, columns_of
from kerolox.pipeline.replay.plan import ReplayError

PREFIX = "iceberg:"  # SOURCE is iceberg:NAMESPACE.TABLE


def iceberg_files(name: str, place: CatalogPlace, options: Mapping[str, Any] | None) -> LakeFiles:
    """Return the files of the current snapshot. Raises ReplayError if they cannot be read one by one."""
    told = {**catalog_options(options or {}), **place.options}
    table = IcebergTable(replace(place, options=told), name)
    if not table.load():
        raise ReplayError(f"the table {table.text} does not exist")
    below = table.data_folder.rstrip("/") + "/"
    files: list[tuple[str, FolderValues]] = []
    for each in table.table.scan().plan_files():
        if each.delete_files:
            raise ReplayError(
                f"rows of {each.file.file_path} are deleted by delete files, which a replay cannot read. "
                "Rewrite the table's files first, for example with Spark's rewrite_data_files"
            )
        if not each.file.file_path.startswith(below):
            raise ReplayError(f"{each.file.file_path} is not below {below}, the data folder of {table.text}")
        files.append((each.file.file_path.removeprefix(below), {}))
    if not files:
        raise ReplayError(f"{table.text} is empty: nothing was archived yet")
    storage = table_storage(table, options)
    return LakeFiles(storage, files, columns_of(storage, files[0][0]), ())
