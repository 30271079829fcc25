"""Every kind of source and of sink, in pipelines that run as they would for a user."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kerolox.client.messages import Message
from kerolox.pipeline.archive.upkeep import compact
from kerolox.testing.threads import BrokerThread
from tests.pipeline.archiving import archive
from tests.pipeline.flows.flowing import checked, run_once
from tests.pipeline.lake.flow_tables import KINDS, place, texts
from tests.spark.store_maker import StoreMaker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Send = Callable[[list[Message]], object]
WRITE = """\
name: write
storage: ${DIR}/state-of-write
sources:
  people: {format: csv, path: "${DIR}/people.csv", schema: "id INT, name STRING", options: {header: "true"}}
sinks:
  delta: {from: people, format: delta, path: "${DIR}/delta", partition_by: [name]}
  iceberg: {from: people, format: iceberg, table: shop.people, path: "${DIR}/iceberg", partition_by: [name]}
  parquet: {from: people, format: parquet, path: "${DIR}/parquet", partition_by: [name]}
  csv: {from: people, format: csv, path: "${DIR}/csv", options: {header: "true"}}
"""
READ = """\
name: read
storage: ${DIR}/state-of-read
nameserver: ${NS}
sources:
  store: {store: "${DIR}/broker-a/store"}
  archive: {archive: "${DIR}/archive"}
  delta: {archive: "${DIR}/delta", format: delta}
  iceberg: {archive: shop.people, format: iceberg, path: "${DIR}/iceberg"}
  parquet: {archive: "${DIR}/parquet"}
  csv: {format: csv, path: "${DIR}/csv", schema: "id INT, name STRING", options: {header: "true"}}
  topic: {topic: "${TOPIC}", stream: false}
steps:
  all:
    sql: |
      SELECT 'store' AS kind, CAST(body AS STRING) AS what FROM store
      UNION ALL SELECT 'archive', CAST(body AS STRING) FROM archive
      UNION ALL SELECT 'topic', CAST(body AS STRING) FROM topic
      UNION ALL SELECT 'delta', concat(id, name) FROM delta
      UNION ALL SELECT 'iceberg', concat(id, name) FROM iceberg
      UNION ALL SELECT 'parquet', concat(id, name) FROM parquet
      UNION ALL SELECT 'csv', concat(id, name) FROM csv
sinks:
  json: {from: all, format: json, path: "${DIR}/json"}
"""
STREAM = """\
name: stream
storage: ${DIR}/state-of-stream
nameserver: ${NS}
sources:
  messages: {topic: "${TOPIC}", options: {startingOffsets: earliest}}
  delta: {archive: "${DIR}/delta", format: delta}
steps:
  named: {sql: "SELECT name FROM messages JOIN delta ON CAST(CAST(body AS STRING) AS INT) = id"}
  counted: {sql: "SELECT name, count(*) AS count FROM named GROUP BY name"}
sinks:
  own: {from: named, format: json, path: "${DIR}/own", stream: true}
  whole: {from: counted, format: json, path: "${DIR}/whole", mode: complete}
trigger: 100ms
"""


def json_rows(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for file in folder.glob("*.json") for line in file.read_text().splitlines()]


TABLES = """\
name: tables
storage: ${DIR}/state
nameserver: ${NS}
sources:
  messages: {topic: "${TOPIC}", columns: [tags, body], options: {startingOffsets: earliest}}
steps:
  texts: {sql: "SELECT tags AS tag, CAST(body AS STRING) AS text FROM messages"}
sinks:
  delta: {from: texts, format: delta, path: "${DIR}/delta", partition_by: [tag]}
  iceberg: {from: texts, format: iceberg, table: shop.texts, path: "${DIR}/iceberg", partition_by: [tag]}
  parquet: {from: texts, format: parquet, path: "${DIR}/parquet", partition_by: [tag]}
"""


def test_streams_to_each_table_format(
    spark: SparkSession, broker: BrokerThread, topic: str, send: Send, tmp_path: Path
) -> None:
    """Each message is there once after every run, and when the small files are joined."""
    file = tmp_path / "tables.yaml"
    file.write_text(TABLES)
    given = {"DIR": str(tmp_path), "NS": broker.nameserver_address, "TOPIC": topic}
    sent: list[str] = []
    for _ in range(2):
        more = [f"{len(sent) + number}" for number in range(6)]
        send([Message(topic, text, tags="ä/b" if int(text) % 2 else "") for text in more])
        sent += more
        made = run_once(spark, file, **given)
        assert {name: flow.state for name, flow in made.figures.flows.items()} == dict.fromkeys(KINDS, "done")
        for kind in KINDS:
            assert texts(kind, tmp_path / kind) == Counter(sent)
    for kind in KINDS:
        assert compact(place(kind, tmp_path / kind), older_than_ms=-7_200_000) >= 4
        assert texts(kind, tmp_path / kind) == Counter(sent)


@pytest.mark.long
def test_every_kind(
    spark: SparkSession, broker: BrokerThread, topic: str, send: Send, tmp_path: Path
) -> None:
    (tmp_path / "people.csv").write_text("id,name\n1,ann\n2,bob\n3,ann\n")
    send([Message(topic, f"{number}") for number in (1, 2, 3, 1)])
    archive(tmp_path / "archive", broker.nameserver_address, topic)
    maker = StoreMaker(tmp_path / "broker-a" / "store")
    maker.add("orders", b"in the store")
    maker.write()
    given = {"DIR": str(tmp_path), "NS": broker.nameserver_address, "TOPIC": topic}
    file = tmp_path / "pipeline.yaml"

    def run(text: str, **names: str) -> dict[str, tuple[str, int]]:
        file.write_text(text)
        assert checked(spark, file, **names) == []
        made = run_once(spark, file, **names)
        assert (made.result.failed, made.result.stopped) == ({}, {})
        return {name: (flow.state, flow.rows_out) for name, flow in made.figures.flows.items()}

    written = run(WRITE, DIR=str(tmp_path))
    assert written == dict.fromkeys(("delta", "iceberg", "parquet", "csv"), ("done", 3))

    assert run(READ, **given) == {"json": ("done", 1 + 4 + 4 + 4 * 3)}
    people = ["1ann", "2bob", "3ann"]
    found: dict[str, list[object]] = {}
    for row in json_rows(tmp_path / "json"):
        found.setdefault(str(row["kind"]), []).append(row["what"])
    assert {kind: sorted(map(str, texts)) for kind, texts in found.items()} == {
        "store": ["in the store"],
        "archive": ["1", "1", "2", "3"],
        "topic": ["1", "1", "2", "3"],
        **dict.fromkeys(("delta", "iceberg", "parquet", "csv"), people),
    }

    assert run(STREAM, **given) == {"own": ("done", 4), "whole": ("done", 2)}
    assert Counter(row["name"] for row in json_rows(tmp_path / "own")) == {"ann": 3, "bob": 1}
    send([Message(topic, "2")])
    assert run(STREAM, **given) == {"own": ("done", 1), "whole": ("done", 2)}
    assert {row["name"]: row["count"] for row in json_rows(tmp_path / "whole")} == {"ann": 3, "bob": 2}
