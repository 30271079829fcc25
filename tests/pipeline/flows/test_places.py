"""What is wrong with places is told without Spark: topics, options, addresses, functions."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from kerolox.cli.main import app
from kerolox.testing.threads import BrokerThread
from tests.pipeline.flows.flowing import checked

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FILE = """\
name: shop
storage: ${DIR}/state
nameserver: ${NS}
sources:
  orders: {topic: orders-of-places}
steps:
  step: {python: "steps.py:work", from: [orders]}
sinks:
  table: {from: step, format: parquet, path: "${DIR}/paid"}
"""
STEPS = "def work(orders):\n    return orders\n"


@pytest.fixture
def file(tmp_path: Path, broker: BrokerThread) -> Path:
    broker.create_topic("orders-of-places")
    (tmp_path / "steps.py").write_text(STEPS)
    return tmp_path / "pipeline.yaml"


def problems(file: Path, broker: BrokerThread, text: str) -> list[str]:
    file.write_text(text)
    return checked(None, file, DIR=str(file.parent), NS=broker.nameserver_address)


LAKES = """\
  delta: {from: step, format: delta, path: "${DIR}/lakes/delta"}
  own: {from: step, format: iceberg, table: shop.own, path: "${DIR}/lakes/own"}
  named: {from: step, format: iceberg, table: shop.named, path: "${DIR}/lakes/named",
          catalog: {uri: "sqlite:///${DIR}/catalogs/one.db"}}
bad_rows: {format: parquet, path: "${DIR}/bad"}
archives:
  all: {topics: [orders-of-places], path: "${DIR}/archive"}
"""


def test_a_good_one_and_no_traces(file: Path, broker: BrokerThread) -> None:
    assert problems(file, broker, FILE + LAKES) == []
    assert {each.name for each in file.parent.iterdir()} <= {"pipeline.yaml", "steps.py", "__pycache__"}


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("topic: orders-of-places", "topic: nowhere", "5: sources.orders.topic: no route to topic"),
        ("places}", "places, options: {startingOfsets: latest}}", "sources.orders: option startingOfsets"),
        ("steps.py:work", "steps.py:wrok", "7: steps.step.python: steps.py has no function wrok. Did you"),
        ("steps.py:work", "other.py:work", "other.py does not exist"),
        ("steps.py:work", "no.such.module:work", "no.such.module cannot be imported: ModuleNotFoundError"),
        ('"${DIR}/paid"', "/proc/nowhere/paid", "9: sinks.table: /proc/nowhere/paid cannot be written to"),
        ("topic: orders-of-places", "archive: a.b, format: iceberg", "5: sources.orders: expected catalog"),
        ("topic: orders-of-places", "archive: /a, path: /b", "only Iceberg has it; this is parquet"),
        ("storage: ${DIR}/state", "storage: /proc/x", "2: storage: /proc/x cannot be written to"),
    ],
)  # fmt: skip
def test_what_is_wrong(file: Path, broker: BrokerThread, old: str, new: str, said: str) -> None:
    found = problems(file, broker, FILE.replace(old, new))
    assert any(said in each for each in found), found


def test_problems_of_the_file_and_of_places_are_told_at_once(file: Path, broker: BrokerThread) -> None:
    wrong = (
        FILE.replace("format: parquet", "format: parqet")
        .replace("topic: orders-of-places", "topic: nowhere")
        .replace("steps.py:work", "steps.py:wrok")
        .replace("steps:", "steps:\n  other: {sql: SELECT * FROM ordrs}")
    ) + "archives:\n  all: {topics: [neither], path: /proc/nowhere}\nbad_rows: {format: parquet}\n"
    file.write_text(wrong)
    given = ["--set", f"DIR={file.parent}", "--set", f"NS={broker.nameserver_address}"]
    told = CliRunner().invoke(app, ["pipeline", "check", str(file), *given, "--no-spark"]).output
    for said in (
        "sinks.table.format",
        "sources.orders.topic: no route to topic",
        "has no function wrok",
        'no source or step "ordrs"',
        "archives.all.topics",
        "archives.all.path: /proc/nowhere",
        "bad_rows: the key path is missing",
    ):
        assert said in told, (said, told)
    assert "there is no sink" not in told


def test_the_command(file: Path, broker: BrokerThread) -> None:
    file.write_text(FILE)
    given = ["--set", f"DIR={file.parent}", "--set", f"NS={broker.nameserver_address}"]
    fine = CliRunner().invoke(app, ["pipeline", "check", str(file), *given, "--no-spark", "--plan"])
    assert (fine.exit_code, "└── step (Python steps.py:work)" in fine.output) == (0, True), fine.output
    file.write_text(FILE.replace("format: parquet", "format: parqet"))
    for command in (["check", "--no-spark"], ["run"]):
        wrong = CliRunner().invoke(app, ["pipeline", command[0], str(file), *command[1:], *given])
        assert wrong.exit_code == 1
        assert 'pipeline.yaml:9: sinks.table.format: "parqet": did you mean "parquet"?' in wrong.output


def test_what_spark_says_is_told_beside_what_is_wrong_with_places(
    spark: SparkSession, file: Path, broker: BrokerThread
) -> None:
    file.write_text(
        FILE.replace("orders-of-places", "nowhere")
        .replace("from: [orders]}", "from: [orders]}\n  wrong: {sql: SELECT nothing FROM orders}")
        .replace("sinks:", 'sinks:\n  more: {from: wrong, format: parquet, path: "${DIR}/more"}')
    )
    said = checked(spark, file, DIR=str(file.parent), NS=broker.nameserver_address)
    assert any("sources.orders.topic: no route to topic" in each for each in said)
    assert any("steps.wrong: [UNRESOLVED_COLUMN" in each for each in said)
