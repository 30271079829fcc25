"""Iceberg tables in a SQL catalog: columns, marks, and commits that meet others."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kerolox.errors import OptionError
from kerolox.pipeline.lake.iceberg_catalog import CatalogPlace, IcebergError, shown
from kerolox.pipeline.lake.iceberg_table import CommitUnknown, IcebergTable
from kerolox.pipeline.lake.shared_iceberg import SharedIceberg
from kerolox.pipeline.lake.table_file import Bounds, LakeFile

HOUR_US = 3_600_000_000
NOON_US = 1_800_000_000_000_000 // HOUR_US * HOUR_US
TIME = pa.timestamp("us", tz="UTC")
SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("number", pa.int64()),
        ("properties", pa.map_(pa.string(), pa.string())),
        ("store_timestamp", TIME),
    ]
)
PARTITIONS = [("topic", "identity"), ("store_timestamp", "hour")]


@pytest.fixture
def place(tmp_path: Path) -> CatalogPlace:
    return CatalogPlace(f"sqlite:///{tmp_path}/catalog.db", warehouse=str(tmp_path / "warehouse"))


@pytest.fixture
def table(place: CatalogPlace) -> IcebergTable:
    made = IcebergTable(place, "lake.messages")
    made.make(SCHEMA, PARTITIONS)
    return made


def written(table: IcebergTable, name: str, *numbers: int, topic: str = "orders") -> LakeFile:
    """A file with these numbers, all of one hour."""
    rows = pa.table(
        {
            "topic": [topic] * len(numbers),
            "number": list(numbers),
            "properties": [[("KEYS", f"k{number}")] for number in numbers],
            "store_timestamp": [NOON_US + number for number in numbers],
        },
        schema=SCHEMA,
    )
    path = Path(table.data_folder.removeprefix("file://")) / f"{name}.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(rows.cast(table.file_schema(SCHEMA)), path)
    bounds = {
        "topic": Bounds(topic, topic, 0),
        "number": Bounds(min(numbers), max(numbers), 0),
        "store_timestamp": Bounds(NOON_US + min(numbers), NOON_US + max(numbers), 0),
    }
    return LakeFile(
        path=path.name, staged=path.name, rows=len(numbers), bytes=path.stat().st_size, date="2026-11-16",
        hour=12, bounds=bounds,
    )  # fmt: skip


def numbers(table: IcebergTable, **scan: Any) -> list[int]:
    table.load()
    return sorted(table.table.scan(**scan).to_arrow()["number"].to_pylist())


def test_files_are_added_by_one_snapshot_with_marks(table: IcebergTable) -> None:
    files = [written(table, "a", 1, 2), written(table, "b", 3, topic="payments")]
    assert table.append(files, lambda: {"archive.offsets": "3"}, {"group": "archive"})
    assert len(list(table.history())) == 1
    assert numbers(table) == [1, 2, 3]
    assert table.mark("archive.offsets") == "3"
    summary = table.table.current_snapshot().summary.additional_properties  # type: ignore[union-attr]
    assert summary["kerolox.group"] == "archive"
    assert summary["added-records"] == "3"
    # Readers leave files out by what we told of them: nobody has looked into them.
    assert numbers(table, row_filter="topic = 'payments'") == [3]
    assert len(list(table.table.scan(row_filter="number = 2").plan_files())) == 1
    hour = datetime.fromtimestamp(NOON_US / 1e6, UTC).isoformat()
    assert len(list(table.table.scan(row_filter=f"store_timestamp < '{hour}'").plan_files())) == 0


def test_columns_are_found_by_their_ids(table: IcebergTable) -> None:
    table.append([written(table, "a", 1)], dict)
    with table.table.update_schema() as update:
        update.rename_column("number", "how_many")
    table.load()
    assert table.table.scan().to_arrow()["how_many"].to_pylist() == [1]


def test_columns_are_added_and_never_narrowed(table: IcebergTable) -> None:
    table.append([written(table, "a", 1)], dict)
    table.evolve(pa.schema([*SCHEMA, pa.field("shop", pa.string())]))
    assert table.table.scan().to_arrow()["shop"].to_pylist() == [None]
    table.evolve(SCHEMA)  # fewer columns are no loss
    assert "shop" in table.table.schema().column_names
    with pytest.raises(
        IcebergError, match=r"column number of the table is long, and the new rows have string"
    ):
        table.evolve(pa.schema([("number", pa.string())]))
    table.evolve(pa.schema([("small", pa.int32())]))
    table.evolve(pa.schema([("small", pa.int64())]))
    assert str(table.table.schema().find_type("small")) == "long"
    assert table.file_schema(pa.schema([("small", pa.int32())])).field("small").type == pa.int64()


def test_a_file_of_two_hours_is_refused(table: IcebergTable) -> None:
    file = written(table, "a", 1, HOUR_US + 1)
    with pytest.raises(IcebergError, match=r"a file of lake\.messages in sqlite.* must have one value"):
        table.append([file], dict)


def test_marks_outlive_expiry_and_other_writers_and_go_back_with_the_data(table: IcebergTable) -> None:
    table.append([written(table, "a", 1)], lambda: {"archive.offsets": "1"})
    first = table.table.current_snapshot()
    table.append([written(table, "b", 2)], lambda: {"archive.offsets": "2"})
    table.table.add_files(
        [f"{table.data_folder}/{written(table, 'x', 9).path}"]
    )  # another writer, who knows nothing of marks
    table.load()
    assert table.mark("archive.offsets") == "2"
    table.table.manage_snapshots().rollback_to_snapshot(first.snapshot_id).commit()  # type: ignore[union-attr]
    table.load()
    assert table.mark("archive.offsets") == "1"
    assert numbers(table) == [1]
    table.append([written(table, "c", 2)], lambda: {"archive.offsets": "2"})
    table.table.add_files([f"{table.data_folder}/{written(table, 'y', 9).path}"])
    table.load()
    table.table.maintenance.expire_snapshots().older_than(datetime.now()).commit()
    table.load()
    assert len(list(table.history())) == 1
    assert table.mark("archive.offsets") == "2"


def test_the_faster_of_two_writers_wins_and_the_other_looks_again(
    place: CatalogPlace, table: IcebergTable
) -> None:
    other = IcebergTable(place, table.name)
    other.load()
    seen: list[str | None] = []

    def marks() -> dict[str, str] | None:
        seen.append(other.mark("step"))
        return None if seen[-1] == "1" else {"step": "1"}

    table.append([written(table, "a", 1)], lambda: {"step": "1"})
    assert other.append([written(other, "b", 1)], marks) is False
    assert seen == [None, "1"]
    assert numbers(table) == [1]


def test_writers_of_different_work_both_get_in(place: CatalogPlace, table: IcebergTable) -> None:
    other = IcebergTable(place, table.name)
    other.load()
    table.append([written(table, "a", 1)], lambda: {"mine": "1"})
    other.append([written(other, "b", 2)], lambda: {"theirs": "1"})
    assert numbers(table) == [1, 2]
    assert (table.mark("mine"), table.mark("theirs")) == ("1", "1")


def test_a_step_is_added_once(table: IcebergTable, place: CatalogPlace) -> None:
    shared = SharedIceberg("lake.messages", place)
    shared.make(SCHEMA, PARTITIONS)
    file = written(table, "a", 1)
    assert shared.add([file], "flow.orders", 7)
    assert not shared.add([file], "flow.orders", 7)
    assert not shared.add([file], "flow.orders", 6)
    assert shared.add([written(table, "b", 2)], "flow.orders", 8)
    assert numbers(table) == [1, 2]


@pytest.mark.parametrize("landed", [True, False])
def test_an_outcome_that_nobody_knows_is_looked_up(
    table: IcebergTable, monkeypatch: pytest.MonkeyPatch, landed: bool
) -> None:
    """The answer of the catalog is lost: once the commit was made, once it was not."""
    commit, lost = table._catalog.commit_table, []

    def loses_the_first_answer(*args: Any) -> Any:
        answer = commit(*args) if landed or lost else None
        if not lost:
            lost.append(answer)
            raise ConnectionError("the peer went away")
        return answer

    monkeypatch.setattr(table._catalog, "commit_table", loses_the_first_answer)
    assert table.append([written(table, "a", 1)], lambda: {"step": "1"})
    assert len(list(table.history())) == 1
    assert numbers(table) == [1]


def test_a_catalog_that_stays_away_leaves_the_outcome_open(
    table: IcebergTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: Any) -> Any:
        raise ConnectionError("nobody there")

    monkeypatch.setattr("kerolox.pipeline.lake.iceberg_table.PAUSE_S", 0.0)
    monkeypatch.setattr(table._catalog, "commit_table", away)
    file = written(table, "a", 1)
    monkeypatch.setattr(table._catalog, "load_table", away)
    with pytest.raises(
        CommitUnknown, match="the outcome of the last commit is unknown, because the catalog gave no"
    ) as told:
        table.append([file], lambda: {"step": "1"})
    assert told.value.retriable


def test_bad_addresses_are_told(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"sqlite:///FILE, postgresql://HOST/DB or http"):
        CatalogPlace("mysql://host/db")
    with pytest.raises(OptionError, match=r"NAMESPACE\.TABLE"):
        IcebergTable(CatalogPlace(f"sqlite:///{tmp_path}/c.db", warehouse=str(tmp_path)), "messages")
    with pytest.raises(OptionError, match=r"catalog of ~/\.pyiceberg\.yaml"):
        CatalogPlace(name="no-such-catalog").open()
    with pytest.raises(IcebergError, match=r"http://127\.0\.0\.1:9 cannot be opened"):
        CatalogPlace("http://127.0.0.1:9").open()
    assert shown("postgresql://me:secret@host/db") == "postgresql://me:***@host/db"
