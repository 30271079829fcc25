"""Upkeep of tables while flows write to them: nothing is lost, and nothing is there twice."""

from __future__ import annotations

import json
import threading
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from kerolox.cli.main import app
from kerolox.errors import OptionError
from kerolox.pipeline.archive import upkeep
from kerolox.pipeline.archive.files import Format
from kerolox.pipeline.archive.log import ParquetArchive
from kerolox.pipeline.flows.definition import LakeTable
from kerolox.pipeline.flows.lake_tables import catalog_place, open_lake
from kerolox.pipeline.lake import shared_table
from kerolox.pipeline.lake.shared_table import SharedTable
from kerolox.pipeline.lake.storage import open_storage

from .flow_tables import COLUMNS, KINDS, NAME, files, place, texts, write, writer

EVERYTHING = -2 * 3_600_000  # this hour counts as over
MONTH_MS = 30 * 86_400_000


@pytest.mark.parametrize("kind", KINDS)
def test_a_flow_goes_on_beside(kind: str, tmp_path: Path) -> None:
    """Two flows write to the table, and meanwhile its files are joined again and again."""
    failures: list[BaseException] = []
    batches, path = 15, tmp_path / "table"
    write(writer(kind, path), 0, "one.0")

    def flow(name: str) -> None:
        try:
            for number in range(batches):
                own = writer(kind, path, name)
                write(own, number, f"{name}.{number}")
                assert not write(own, number, f"{name}.{number} again")
        except BaseException as error:
            failures.append(error)

    flows = [threading.Thread(target=flow, args=(name,)) for name in ("flow", "other")]
    for each in flows:
        each.start()
    joined = 0
    while any(each.is_alive() for each in flows):
        flows[0].join(0.2)
        joined += upkeep.compact(place(kind, path), older_than_ms=EVERYTHING)
        upkeep.expire(place(kind, path), keep_ms=MONTH_MS)
    assert not failures
    wanted = Counter(f"{name}.{number}" for name in ("flow", "other") for number in range(batches))
    wanted -= Counter(["flow.0"])  # the table had the first batch of this flow
    wanted["one.0"] = 1
    assert texts(kind, path) == wanted
    joined += upkeep.compact(place(kind, path), older_than_ms=EVERYTHING)
    assert joined >= 10
    assert files(kind, path) <= 2  # the hour may have changed
    assert texts(kind, path) == wanted
    assert not write(writer(kind, path), batches - 1, "again")
    assert write(writer(kind, path), batches, "more")
    assert texts(kind, path) == wanted + Counter(["more"])


@pytest.mark.parametrize("kind", KINDS)
def test_old_hours_go_and_batches_are_remembered(kind: str, tmp_path: Path) -> None:
    for number in range(3):
        write(writer(kind, tmp_path), number, f"{number}")
    assert upkeep.expire(place(kind, tmp_path), keep_ms=MONTH_MS).files == 0
    done = upkeep.expire(place(kind, tmp_path), keep_ms=EVERYTHING)
    assert (done.files, done.rows) == (3, 3)
    assert not write(writer(kind, tmp_path), 2, "again")
    assert write(writer(kind, tmp_path), 3, "3")
    assert texts(kind, tmp_path) == Counter(["3"])


@pytest.mark.parametrize("kind", KINDS)
def test_partitions_stay_apart(kind: str, tmp_path: Path) -> None:
    """Values that cannot be folder names, nulls, and one that no statistics of Parquet have."""
    table = NAME if kind == "iceberg" else ""
    definition = LakeTable(format=kind, path=str(tmp_path), table=table, partition_by=["text"])  # type: ignore[arg-type]
    values = ["ü/%", "a b", None, "x" * (100 if kind == "parquet" else 5000)]
    for number in range(2):
        own = open_lake(definition, "tests", "flow")
        parts = [pa.table({"text": [value], "number": [number]}, schema=COLUMNS) for value in values]
        write_parts(own, number, parts)
    assert upkeep.compact(place(kind, tmp_path), older_than_ms=EVERYTHING) == 8
    assert files(kind, tmp_path) == 4
    if kind == "parquet":
        import pyarrow.dataset as ds

        found = ds.dataset(tmp_path, partitioning=ds.partitioning(flavor="hive")).to_table()
    else:
        from .flow_tables import table as read

        found = read(kind, tmp_path)
    assert Counter(found["text"].to_pylist()) == Counter(dict.fromkeys(values, 2))


def write_parts(own: object, number: int, parts: list[pa.Table]) -> None:
    import pickle
    from typing import Any

    from kerolox.pipeline.flows.lake_files import Division

    flow: Any = own
    flow.parts = (Division("text"),)
    table = flow.open(COLUMNS)
    work = flow.work(COLUMNS, flow.work_name("q"), number)
    batches = [batch for part in parts for batch in part.append_column("part", part["text"]).to_batches()]
    (manifest,) = work(iter(batches))
    flow.commit(
        table, [pickle.loads(each) for each in manifest.column(0).to_pylist()], flow.work_name("q"), number
    )


def test_only_files_of_the_same_columns_are_joined(tmp_path: Path) -> None:
    wider = COLUMNS.append(pa.field("more", pa.int64()))
    for number in range(4):
        write(writer("parquet", tmp_path), number, f"{number}", columns=COLUMNS if number < 2 else wider)
    assert upkeep.compact(place("parquet", tmp_path), older_than_ms=EVERYTHING) == 4
    assert files("parquet", tmp_path) == 2
    assert texts("parquet", tmp_path) == Counter("0123")


def test_columns_that_came_later_are_null_in_a_joined_file_of_iceberg(tmp_path: Path) -> None:
    wider = COLUMNS.append(pa.field("more", pa.int64()))
    for number in range(4):
        write(writer("iceberg", tmp_path), number, f"{number}", columns=COLUMNS if number < 2 else wider)
    assert upkeep.compact(place("iceberg", tmp_path), older_than_ms=EVERYTHING) == 4
    assert files("iceberg", tmp_path) == 1
    assert texts("iceberg", tmp_path) == Counter("0123")


def test_the_log_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A flow that commits for years does not list all its commits each time."""
    monkeypatch.setattr(shared_table, "SAVE_EVERY", 4)
    monkeypatch.setattr(shared_table, "COMMITS_KEPT", 6)
    for number in range(30):
        write(writer("parquet", tmp_path), number, f"{number}")
    table = SharedTable(open_storage(tmp_path))
    assert len(table.numbers()) <= 10
    assert len(table.known()) == 30
    assert upkeep.compact(open_storage(tmp_path), older_than_ms=EVERYTHING) == 30
    assert not write(writer("parquet", tmp_path), 29, "again")
    assert texts("parquet", tmp_path) == Counter(map(str, range(30)))


def test_the_record_of_an_older_version_counts(tmp_path: Path) -> None:
    """Its last batch is committed: files that are still staged are moved, and it is not written again."""
    flow = writer("parquet", tmp_path)
    name = flow.work_name("query")
    staged = tmp_path / "_kerolox/staging" / name / "a.parquet"
    staged.parent.mkdir(parents=True)
    pq.write_table(pa.table({"text": ["old"], "number": [1]}, schema=COLUMNS), staged)
    record = tmp_path / f"_kerolox/flows/{name}.json"
    record.parent.mkdir()
    moves = [[f"_kerolox/staging/{name}/a.parquet", "a.parquet"]]
    record.write_text(json.dumps({"batch": 7, "moves": moves}))
    assert not write(flow, 7, "again")
    assert texts("parquet", tmp_path) == Counter(["old"])
    assert write(flow, 8, "new")
    assert texts("parquet", tmp_path) == Counter(["old", "new"])


def test_archives_and_tables_are_not_mixed(tmp_path: Path) -> None:
    write(writer("parquet", tmp_path / "table"), 0, "text")
    with pytest.raises(OptionError, match="pipelines write to this table"):
        ParquetArchive(tmp_path / "table").open(Format())
    archive = ParquetArchive(tmp_path / "archive")
    archive.open(Format())
    archive.close()
    with pytest.raises(OptionError, match="this is an archive"):
        write(writer("parquet", tmp_path / "archive"), 0, "text")


@pytest.mark.parametrize("kind", KINDS)
def test_the_commands(kind: str, tmp_path: Path) -> None:
    write(writer(kind, tmp_path), 0, "text")
    words = [str(tmp_path)]
    if kind == "iceberg":
        words = ["--iceberg", NAME, "--catalog-uri", catalog_place({}, str(tmp_path)).uri]
    done = CliRunner().invoke(app, ["pipeline", "compact", *words, "--json"])
    assert (done.exit_code, json.loads(done.stdout)["filesJoined"]) == (0, 0), done.output
    done = CliRunner().invoke(app, ["pipeline", "expire", *words, "--keep", "30d", "--json"])
    assert (done.exit_code, json.loads(done.stdout)["files"]) == (0, 0), done.output
