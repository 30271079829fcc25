"""Archives of pipelines and ``kerolox pipeline archive`` have the same options."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from kerolox.cli.pipeline_archive import archive as command
from kerolox.client.messages import Message
from kerolox.pipeline.flows.definition import ArchiveFlow
from kerolox.testing.threads import BrokerThread
from tests.pipeline.flows.flowing import checked, run_once
from tests.pipeline.lake.flow_tables import catalog_place

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

# Parameters of the command by the keys they set, where the names differ.
COMMAND = {
    "path": {"to"},
    "format": {"delta", "iceberg"},
    "table": {"iceberg"},
    "catalog": {"catalog", "catalog_uri", "catalog_options", "warehouse"},
    "every": {"interval", "once"},  # a pipeline has --once and trigger
    "max_rows_per_file": {"rows_max"},
    "compact": {"join"},
    "storage_options": {"storage_options", "storage_file"},
}
OF_THE_RUN = {
    "master",
    "conf",
    "json",
    "runner",
}  # of one run; ``kerolox pipeline run`` decides for all its flows
FILE = """\
name: archives
storage: ${DIR}/state
nameserver: ${NS}
archives:
  lake:
    topics: ["${TOPIC}"]
    format: iceberg
    table: shop.messages
    path: ${DIR}/iceberg
    properties: string
    compression: lz4
    max_rows_per_file: 4
    options: {startingOffsets: earliest}
"""


def test_the_command_and_pipelines_have_the_same_options() -> None:
    keys = {field.name for field in msgspec.structs.fields(ArchiveFlow)}
    wanted = set().union(*(COMMAND.get(key, {key}) for key in keys)) | OF_THE_RUN
    assert set(inspect.signature(command).parameters) == wanted


def test_options_reach_the_archive(
    spark: SparkSession,
    broker: BrokerThread,
    topic: str,
    send: Callable[[list[Message]], object],
    tmp_path: Path,
) -> None:
    send([Message(topic, f"{number}") for number in range(10)])
    file = tmp_path / "archives.yaml"
    file.write_text(FILE)
    given = {"DIR": str(tmp_path), "NS": broker.nameserver_address, "TOPIC": topic}
    assert checked(spark, file, **given) == []
    made = run_once(spark, file, **given)
    assert made.result.failed == {}
    table = catalog_place({}, str(tmp_path / "iceberg")).open().load_table("shop.messages")
    rows = table.scan().to_arrow()
    assert sorted(map(int, rows["body"].to_pylist())) == list(range(10))
    assert str(rows.schema.field("properties").type).endswith("string")
    assert max(task.file.record_count for task in table.scan().plan_files()) <= 4


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("expire: 10s", "3600 s or more"), ("compression: fast", "fast"), ("table: x.y", "only Iceberg"),
        ("partition_by: [date]", "topic,date"),
    ],
)  # fmt: skip
def test_options_that_cannot_be(key: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "archives.yaml"
    text = f"name: a\nstorage: {tmp_path}/s\nnameserver: 127.0.0.1:1\narchives:\n  x:\n    topics: [t]\n"
    file.write_text(f"{text}    path: {tmp_path}/x\n    {key}\n")
    assert any(said in problem for problem in checked(None, file)), checked(None, file)
