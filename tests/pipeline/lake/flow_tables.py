"""Tables of flows in tests: batches are written as a flow's tasks write them, in this process."""

from __future__ import annotations

import pickle
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa

from kerolox.pipeline.archive.iceberg import IcebergArchive
from kerolox.pipeline.archive.upkeep import Place
from kerolox.pipeline.flows.definition import LakeTable
from kerolox.pipeline.flows.lake_tables import LakeWriter, catalog_place, open_lake
from kerolox.pipeline.lake.iceberg_table import IcebergTable
from kerolox.pipeline.lake.storage import open_storage

KINDS = ("parquet", "delta", "iceberg")
NAME = "shop.texts"
COLUMNS = pa.schema([("text", pa.string()), ("number", pa.int64())])


def writer(kind: str, path: Path, flow: str = "flow") -> LakeWriter:
    table = NAME if kind == "iceberg" else ""
    return open_lake(LakeTable(format=kind, path=str(path), table=table), "tests", flow)  # type: ignore[arg-type]


def write(flow: LakeWriter, number: int, *texts: str, columns: pa.Schema = COLUMNS) -> bool:
    """Write a batch unless the table has it, and return True if it was written."""
    rows = {"text": list(texts), "number": list(range(len(texts)))}
    batch = pa.table({name: rows.get(name, [None] * len(texts)) for name in columns.names}, schema=columns)
    table: Any = flow.open(columns)
    name = flow.work_name("query")
    done = table.mark(name)
    if done is not None and done >= number:
        return False
    (manifest,) = flow.work(columns, name, number)(iter(batch.to_batches()))
    flow.commit(table, [pickle.loads(file) for file in manifest.column(0).to_pylist()], name, number)
    return True


def place(kind: str, path: Path) -> Place:
    """The table as ``kerolox pipeline compact`` is told of it."""
    if kind == "iceberg":
        return IcebergArchive(NAME, catalog_place({}, str(path)))
    return open_storage(path)


def texts(kind: str, path: Path) -> Counter[str]:
    """The column ``text`` as readers see it who know nothing of pipelines."""
    return Counter(table(kind, path)["text"].to_pylist())


def table(kind: str, path: Path) -> Any:
    if kind == "parquet":
        import pyarrow.dataset as ds

        return ds.dataset(path).to_table()
    if kind == "delta":
        from deltalake import DeltaTable

        return DeltaTable(path).to_pyarrow_table()
    found = IcebergTable(catalog_place({}, str(path)), NAME)
    assert found.load()
    return found.table.scan().to_arrow()


def files(kind: str, path: Path) -> int:
    """The number of files of the table."""
    if kind == "parquet":
        return len([file for file in path.rglob("*.parquet") if "_kerolox" not in file.parts])
    if kind == "delta":
        from deltalake import DeltaTable

        return len(DeltaTable(path).file_uris())
    found = IcebergTable(catalog_place({}, str(path)), NAME)
    assert found.load()
    return len(list(found.table.scan().plan_files()))
