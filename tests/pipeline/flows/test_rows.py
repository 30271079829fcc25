"""Rows that a table cannot take, or a check sets aside: which ones, and where they go."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import pytest
from pyspark.sql.types import StringType, StructType

from kerolox.client.messages import Queue
from kerolox.errors import KeroloxError, OptionError
from kerolox.pipeline.flows.batch_checks import REASON, CheckFailed, Outcome, look, split
from kerolox.pipeline.flows.definition import Check, LakeTable
from kerolox.pipeline.flows.figures import RunFigures
from kerolox.pipeline.flows.flow import BatchFlow, is_for_good
from kerolox.pipeline.flows.lake_files import (
    FOLDER_BYTES_MAX,
    Division,
    WriteFiles,
    part_expression,
    part_text,
    too_long_for_folders,
)
from kerolox.pipeline.flows.lake_tables import open_lake
from kerolox.pipeline.lake.storage import open_storage
from kerolox.spark.sink.options import WrongColumns, check_columns, read_settings
from kerolox.spark.source.queues import DataLoss

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_value_too_long_for_a_folder_is_refused_and_a_log_of_values_needs_none(tmp_path: Path) -> None:
    work = WriteFiles(open_storage(tmp_path), "", "stem", ("name",))
    assert work.folder_of("name", "a b/c") == "name=a b%2Fc"
    assert work.folder_of("name", "x" * 250) == "name=" + "x" * 250
    said = r"partition_by = 'name'.*'x{40}'\.\.\. of 400 characters.*405 bytes"
    with pytest.raises(OptionError, match=said):
        work.folder_of("name", "x" * 400)
    delta = WriteFiles(open_storage(tmp_path), "", "stem", ("name",), logs_values=True)
    folder = delta.folder_of("name", "x" * 400)
    assert len(folder) < FOLDER_BYTES_MAX
    assert folder != delta.folder_of("name", "x" * 401)


def test_what_another_try_would_only_repeat() -> None:
    assert is_for_good(DataLoss.gone(Queue("t", "b", 0), 5, 1.0))
    assert is_for_good(CheckFailed(Outcome("c", "stop", held=False, text="2 rows"), 1))
    assert is_for_good(OptionError("path", "x", "another"))
    settings = read_settings({"nameserver": "127.0.0.1:1", "topic": "t"})
    with pytest.raises(WrongColumns) as wrong:
        check_columns(StructType().add("body", StringType()).add("id", StringType()), settings)
    assert is_for_good(wrong.value)
    assert is_for_good(RuntimeError(f"kerolox.spark.sink.options.WrongColumns: {wrong.value}"))
    assert not is_for_good(KeroloxError("the store is away"))


def test_times_in_the_log_of_a_delta_table_are_of_utc() -> None:
    at = datetime(2026, 4, 5, 2, 15, tzinfo=ZoneInfo("Australia/Adelaide"))
    assert part_text(at) == "2026-04-05 02:15:00"
    assert part_text(at, in_utc=True) == "2026-04-04 15:45:00"
    assert part_text(datetime(2026, 4, 5, 2, 15), in_utc=True) == "2026-04-05 02:15:00"


# --- in Spark -------------------------------------------------------------------------------------------


@pytest.fixture
def abroad(spark: SparkSession) -> SparkSession:
    """A session whose zone is half an hour off, and has an hour twice in autumn."""
    own = spark.newSession()
    own.conf.set("spark.sql.session.timeZone", "Australia/Adelaide")
    return own


def test_iceberg_divides_by_days_and_hours_of_utc_whatever_the_session_goes_by(
    abroad: SparkSession, tmp_path: Path
) -> None:
    twice = datetime(2026, 4, 4, 15, 45, tzinfo=UTC)  # 02:15 for the first time, in Adelaide
    times = [twice.replace(hour=hour, minute=minute) for hour in (0, 13, 15, 16, 23) for minute in (5, 45)]
    rows = abroad.createDataFrame([(at, n) for n, at in enumerate(times)], "at timestamp, n int")
    for transform in ("hour", "day", "month", "year"):
        expression = part_expression(Division("at", transform), "timestamp")
        parts = rows.selectExpr("n", f"{expression} AS part").groupBy("part").count().count()
        assert parts == (5 if transform == "hour" else 1)
    definition = LakeTable(
        format="iceberg", table=f"shop.abroad_{transform}", path=str(tmp_path), partition_by=["hour(at)"]
    )
    writer = open_lake(definition, "p", "f")
    assert writer.write(rows.coalesce(1), 0, "q") == len(times)
    by_day = open_lake(
        LakeTable(format="iceberg", table="shop.days", path=str(tmp_path), partition_by=["day(at)"]), "p", "f"
    )
    assert by_day.write(rows.coalesce(1), 0, "q") == len(times)
    read: Any = by_day._opened().table.table.scan().to_arrow()  # type: ignore[attr-defined]
    assert sorted(row.astimezone(ZoneInfo("UTC")) for row in read["at"].to_pylist()) == times


def test_values_too_long_for_folders_go_to_the_bad_rows(spark: SparkSession, tmp_path: Path) -> None:
    words = ["ok", "x" * 400, "é" * 100, "é" * 30, "a/b" * 60, None]
    rows = spark.createDataFrame([(n, word) for n, word in enumerate(words)], "n int, word string")
    table = LakeTable(format="parquet", path=str(tmp_path / "table"), partition_by=["word"])
    side = LakeTable(format="parquet", path=str(tmp_path / "bad"))
    figures = RunFigures("p", "run")
    alone = BatchFlow("f", "p", open_lake(table, "p", "f"), {}, None, figures)
    with pytest.raises(Exception, match=r"partition_by = 'word'.* characters makes a folder's name"):
        alone.run(rows, 0, "q")
    flow = BatchFlow("f", "p", open_lake(table, "p", "f"), {}, open_lake(side, "p", "f.bad_rows"), figures)
    assert flow.run(rows, 0, "q") == 3
    bad = spark.read.parquet(str(tmp_path / "bad")).collect()
    assert sorted(json.loads(row.row)["n"] for row in bad) == [1, 2, 4]
    assert {row.reason for row in bad} == {"partition_by: a value of word is too long for a folder's name"}
    assert spark.read.parquet(str(tmp_path / "table")).count() == 3
    # The condition in SQL says what the task says.
    work = WriteFiles(open_storage(tmp_path), "", "stem", ("word",))
    edge = next(size for size in range(240, 256) if is_refused(work, "y" * size))
    told = spark.range(240, 256).selectExpr("id", "repeat('y', cast(id AS INT)) AS word")
    assert told.where(too_long_for_folders(["word"])).agg({"id": "min"}).collect()[0][0] == edge


def is_refused(work: WriteFiles, value: str) -> bool:
    try:
        work.folder_of("word", value)
    except OptionError:
        return True
    return False


def test_unique_keeps_the_first_of_equal_rows_and_every_null(spark: SparkSession) -> None:
    check = Check(of="table", unique=["k"], then="set_aside")
    rows = spark.createDataFrame(
        [("a", 5), ("a", 3), ("a", 9), (None, 1), (None, 2), ("b", 4)], "k string, queue_offset bigint"
    ).repartition(3)
    count, outcomes = look(rows, {"once": check})
    assert count == 6
    assert (outcomes[0].held, outcomes[0].rows) == (False, 2)
    assert outcomes[0].text == "2 of 6 rows: the k of another row"
    good, bad = split(rows, {"once": check}, outcomes)
    assert sorted((row.k or "", row.queue_offset) for row in good.collect()) == [
        ("", 1), ("", 2), ("a", 3), ("b", 4),
    ]  # fmt: skip
    assert sorted((row.queue_offset, row[REASON]) for row in bad.collect()) == [
        (5, "check once"), (9, "check once"),
    ]  # fmt: skip
