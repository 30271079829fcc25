"""Rows on which a cast of a step fails go to the bad rows, with their place; no other row does."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from kerolox.client.messages import Message
from kerolox.pipeline.flows.casts import FailingCast, failing_casts, reason_expression
from kerolox.pipeline.flows.flow import failure_text
from kerolox.testing.threads import BrokerThread
from tests.pipeline.flows.flowing import checked, run_once

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Send = Callable[[list[Message]], object]
FILE = """\
name: casts
storage: ${DIR}/state
nameserver: ${NS}
sources:
  messages: {topic: "${TOPIC}", options: {startingOffsets: earliest}}
steps:
  large: {sql: "SELECT * FROM messages WHERE CAST(properties['amount'] AS INT) > 90"}
sinks:
  large: {from: large, format: parquet, path: "${DIR}/large"}
bad_rows: {format: parquet, path: "${DIR}/bad"}
"""


def test_the_first_cast_that_fails_is_the_reason() -> None:
    casts = [FailingCast("m.a", "INT", ()), FailingCast("m.b", "DATE", ("(m.c = 1) IS NOT FALSE",))]
    assert reason_expression(casts) == (
        "CASE WHEN (m.a) IS NOT NULL AND TRY_CAST(m.a AS INT) IS NULL "
        'THEN concat("\'", left(CAST(m.a AS STRING), 40), "\' is no INT: m.a") '
        "WHEN (m.c = 1) IS NOT FALSE AND (m.b) IS NOT NULL AND TRY_CAST(m.b AS DATE) IS NULL "
        'THEN concat("\'", left(CAST(m.b AS STRING), 40), "\' is no DATE: m.b") END'
    )


def test_without_bad_rows_the_error_says_what_to_do() -> None:
    error = RuntimeError('[CAST_INVALID_INPUT] The value \'x\' of the type "STRING" cannot be cast to "INT"')
    assert "Add bad_rows to set such rows aside" in failure_text(error)


def test_rows_that_reach_a_failing_cast_and_no_others(spark: SparkSession) -> None:
    rows = [("5", "a"), ("x", "a"), ("y", "b"), (None, "a"), ("6", "b")]
    table = spark.createDataFrame(rows, "v string, t string")
    table.createOrReplaceTempView("cast_rows")

    def failing(sql: str) -> list[str] | None:
        found = failing_casts(spark.sql(sql))
        if found is None:
            return None
        reason = reason_expression(found.casts)
        return sorted(row.v for row in table.alias(found.alias).where(f"({reason}) IS NOT NULL").collect())

    assert failing("SELECT CAST(v AS INT) AS n FROM cast_rows") == ["x", "y"]
    assert failing("SELECT m.v + 1 AS n FROM cast_rows m WHERE m.t = 'a'") == ["x"]
    assert failing("SELECT * FROM cast_rows WHERE t = 'b' AND CAST(v AS INT) > 1") == ["y"]
    assert failing("SELECT * FROM cast_rows WHERE t = 'b' OR v > 1") == ["x"]
    assert failing("SELECT t, sum(CAST(v AS INT)) FROM cast_rows GROUP BY t") == ["x", "y"]
    assert failing("SELECT n FROM (SELECT CAST(v AS INT) AS n FROM cast_rows) WHERE n > 3") == ["x", "y"]
    for harmless in (
        "SELECT TRY_CAST(v AS INT) FROM cast_rows",
        "SELECT CAST(t AS STRING) FROM cast_rows",
        "SELECT CASE WHEN v RLIKE '^[0-9]+$' THEN CAST(v AS INT) END FROM cast_rows",
        "SELECT CAST(concat(u, '') AS INT) FROM (SELECT upper(v) AS u FROM cast_rows)",
        "SELECT CAST(a.v AS INT) FROM cast_rows a JOIN cast_rows b ON a.t = b.t",
    ):
        assert failing(harmless) is None, harmless


def test_one_bad_property_does_not_end_a_pipeline(
    spark: SparkSession, broker: BrokerThread, topic: str, send: Send, tmp_path: Path
) -> None:
    """The step of the guide, in ANSI mode."""
    amounts = ["95", "12", "ninety", "", "91"]
    send(
        [
            Message(topic, amount or "none", properties={"amount": amount} if amount else {})
            for amount in amounts
        ]
    )
    file = tmp_path / "casts.yaml"
    file.write_text(FILE)
    given = {"DIR": str(tmp_path), "NS": broker.nameserver_address, "TOPIC": topic}
    assert checked(spark, file, **given) == []
    made = run_once(spark, file, **given)
    assert (made.result.failed, made.result.stopped) == ({}, {})
    found = spark.read.parquet(f"{tmp_path}/large").collect()
    assert sorted(bytes(row.body) for row in found) == [b"91", b"95"]
    (bad,) = spark.read.parquet(f"{tmp_path}/bad").collect()
    assert bad.reason == "'ninety' is no INT: messages.properties['amount']"
    assert (bad.topic, bad.broker, bytes(bad.body)) == (topic, "broker-a", b"ninety")
    assert None not in (bad.queue_id, bad.queue_offset)
    assert json.loads(bad.row)["properties"]["amount"] == "ninety"
