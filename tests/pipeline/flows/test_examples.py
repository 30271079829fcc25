"""The examples run as they are, each against real topics and tables."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.dataset as ds
import pytest

from kerolox.client.messages import Message
from kerolox.pipeline.flows import lake_tables
from kerolox.pipeline.flows.lake_tables import catalog_place
from kerolox.pipeline.lake.iceberg_table import IcebergTable
from kerolox.testing.threads import BrokerThread
from tests.pipeline.flows.flowing import EXAMPLES, checked, run_once
from tests.spark.sinking import texts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Send = Callable[[list[Message]], object]


def order(number: int, **more: object) -> Message:
    return Message("orders", json.dumps({"id": f"o-{number}", "customer": "c", "amount": number} | more))


def test_orders_with_bad_rows_set_aside(
    spark: SparkSession, broker: BrokerThread, send: Send, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table's commit is followed by a failure before Spark knows of it: the batch is run again, and is
    there once."""
    given = {"DATA": str(tmp_path), "NAMESRV": broker.nameserver_address}
    broker.create_topic("orders")
    send([*map(order, range(20)), Message("orders", "no order"), order(20, customer=None)])
    send([Message("orders", '{"id": "o-21"}')])
    assert checked(spark, EXAMPLES / "orders.yaml", **given) == []
    commit, failed = lake_tables.IcebergWriter.commit, []

    def fail_behind(self: lake_tables.IcebergWriter, *args: object) -> None:
        commit(self, *args)  # type: ignore[arg-type]
        if not failed:
            failed.append(1)
            raise ConnectionError("the driver is cut off")

    monkeypatch.setattr(lake_tables.IcebergWriter, "commit", fail_behind)
    run = run_once(spark, EXAMPLES / "orders.yaml", **given)
    assert (run.result.failed, failed) == ({}, [1])
    table = IcebergTable(catalog_place({}, str(tmp_path / "lake")), "shop.orders")
    assert table.load()
    rows = table.table.scan().to_arrow().to_pylist()
    assert sorted(row["id"] for row in rows) == sorted(f"o-{number}" for number in range(20))
    bad = ds.dataset(tmp_path / "bad_orders").to_table().to_pylist()
    assert len(bad) == 3
    reasons = {row["body"]: row["reason"] for row in bad}
    assert reasons[None] == "check customer_known"
    assert "not valid JSON" in reasons[b"no order"]
    assert "missing required field amount" in reasons[b'{"id": "o-21"}']
    misfit = next(row for row in bad if row["body"] == b"no order")
    assert None not in (misfit["broker"], misfit["queue_id"], misfit["queue_offset"])
    assert (misfit["topic"], misfit["pipeline"], misfit["flow"]) == (
        "orders",
        "orders",
        "bad_rows_of_messages",
    )
    flow = run.figures.flows["table"]
    assert (flow.restarts, flow.state, flow.bad_rows) == (1, "done", 1)


@pytest.mark.long
def test_alerts_joined_from_two_topics(
    spark: SparkSession, broker: BrokerThread, send: Send, tmp_path: Path
) -> None:
    given = {"DATA": str(tmp_path), "NAMESRV": broker.nameserver_address}
    for name in ("placed", "paid", "alerts"):
        broker.create_topic(name, queues=1)
    for number in range(6):
        paid = 10 if number % 3 else 4
        send([Message("placed", "x", keys=[f"o-{number}"], properties={"amount": "10"})])
        send([Message("paid", "x", keys=[f"o-{number}"], properties={"amount": str(paid)})])
    assert checked(spark, EXAMPLES / "alerts.yaml", **given) == []
    for _ in range(2):  # the second run finds nothing new
        run = run_once(spark, EXAMPLES / "alerts.yaml", **given)
        assert run.result.failed == {}
    assert [json.loads(text)["id"] for text in texts(broker.nameserver_address, "alerts")] == ["o-0", "o-3"]


@pytest.mark.long
def test_an_archive(spark: SparkSession, broker: BrokerThread, send: Send, tmp_path: Path) -> None:
    given = {"DATA": str(tmp_path), "NAMESRV": broker.nameserver_address}
    for name in ("clicks", "views"):
        broker.create_topic(name)
        send([Message(name, f"{name}-{number}") for number in range(10)])
    assert checked(spark, EXAMPLES / "archive.yaml", **given) == []
    run = run_once(spark, EXAMPLES / "archive.yaml", **given)
    assert run.result.failed == {}
    rows = ds.dataset(tmp_path / "archive", partitioning="hive").to_table().to_pylist()
    assert len({row["body"] for row in rows}) == len(rows) == 20
    assert run.figures.flows["hourly"].rows_out == 20
