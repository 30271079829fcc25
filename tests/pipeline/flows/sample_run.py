"""A run of a shop with several flows, lag, a failure and bad rows: figures made up for pages.

``python -m tests.pipeline.flows.sample_run`` makes the picture in docs/PIPELINES.md; it needs chromium.
"""

from __future__ import annotations

import math
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

from kerolox.pipeline.flows.batch_checks import Outcome
from kerolox.pipeline.flows.figures import Failure, Point, RunFigures
from kerolox.pipeline.flows.page import page
from kerolox.pipeline.flows.plan import Plan, make_plan
from kerolox.pipeline.flows.reading import read_pipeline

PICTURE = Path(__file__).parents[3] / "docs" / "images" / "pipeline-page.png"
BEGUN_MS = 1_795_021_200_000
BATCHES = 180
BATCH_MS = 10_000
FILE = """\
name: shop
storage: /data/pipelines/shop
nameserver: 127.0.0.1:9876
sources:
  orders: {topic: orders, body: {format: json, schema: "id STRING, customer STRING, amount DOUBLE"}}
  payments: {topic: payments}
  customers: {archive: /data/customers, format: delta}
steps:
  known: {sql: "SELECT * FROM orders JOIN customers ON customer = name"}
  short: {sql: "SELECT * FROM known JOIN payments ON id = keys"}
sinks:
  table: {from: known, format: iceberg, table: shop.orders, path: /data/lake}
  alerts: {from: short, topic: alerts, once: true}
  copy: {from: payments, format: delta, path: "s3://shop/payments"}
checks:
  customer_known: {not_null: [customer], of: table, then: set_aside}
  no_negative_amounts: {where: amount >= 0, of: table, then: fail}
  ids_differ: {unique: [id], of: table, then: warn}
bad_rows: {format: parquet, path: /data/bad_orders}
archives:
  hourly: {topics: [orders, payments], path: /data/archive}
"""
BROKEN = (
    "s3://shop/payments/_delta_log/00000000000000000151.json could not be written: connect timeout after 20 s"
)


class Sample(NamedTuple):
    """One flow: rows a second, after how many batches it fails, and the topics it reads."""

    name: str
    kind: str
    rate: int
    topics: tuple[str, ...]
    fails_at: int = BATCHES


SAMPLES = (
    Sample("table", "iceberg table", 5200, ("orders",)),
    Sample("alerts", "topic, once", 310, ("orders", "payments")),
    Sample("copy", "delta table", 2100, ("payments",), 151),
    Sample("bad_rows_of_orders", "bad rows", 5200, ("orders",)),
    Sample("hourly", "parquet archive", 7300, ("orders", "payments")),
)


def plan() -> Plan:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "shop.yaml"
        file.write_text(FILE)
        pipeline, document = read_pipeline(file, {}, {})
    return make_plan(pipeline, document)


def figures() -> RunFigures:
    """The run has ended, because one flow failed."""
    made = RunFigures("shop", "20261118T150000Z-9c1e", started_ms=BEGUN_MS, state="failed")
    made.ended_ms = BEGUN_MS + BATCHES * BATCH_MS
    for sample in SAMPLES:
        _fill(made, sample)
    made.flows["alerts"].late_rows = 214
    made.flows["copy"].restarts = 4
    made.set_state("copy", "failed", BROKEN)
    made.flows["bad_rows_of_orders"].bad_rows = 61
    made.flows["table"].bad_rows = 12
    for number in range(BATCHES):
        nulls, doubles = "4 of 51,220 rows: nulls in customer", "2 of 48,031 rows: the same id more than once"
        outcomes = [
            Outcome("customer_known", "set_aside", number % 30 != 7, 4, nulls),
            Outcome("no_negative_amounts", "fail", True),
            Outcome("ids_differ", "warn", number != 3, 2, doubles),
        ]
        made.add_checks("table", outcomes)
    for number in range(5):
        then = "given up" if number == 4 else f"restarted after {2**number} s"
        made.failures.append(Failure(made.ended_ms - 280_000 + number * 50_000, "copy", BROKEN, then))
    xml, comma = '<order id="17"><amount>9.90</amount></order>', '{"id":"o-18311","amount":"12,50"}'
    for flow, reason, where, text in (
        ("bad_rows_of_orders", "not valid JSON", "orders/broker-a/1/90121", xml),
        ("bad_rows_of_orders", 'amount: expected a number, found "12,50"', "orders/broker-b/0/88310", comma),
        ("table", "check customer_known", "", '{"id":"o-18377","amount":17.2}'),
    ):
        made.examples.append({"flow": flow, "reason": reason, "where": where, "text": text})
    return made


def _fill(made: RunFigures, sample: Sample) -> None:
    flow = made.flow(sample.name, sample.kind)
    flow.state = "stopped"
    for number in range(sample.fails_at):
        wave = 1 + 0.35 * math.sin(number / 13 + sample.rate) + 0.12 * math.sin(number * 1.7 + sample.rate)
        rows, seconds = int(sample.rate * 10 * wave), 0.4 + 1.2 * wave
        behind = 40_000 * math.exp(-number / 25) + 900 * wave
        if sample.fails_at < BATCHES and number > sample.fails_at - 12:
            behind += 60_000
        flow.last_batch_ms = BEGUN_MS + number * BATCH_MS
        flow.add_point(Point(flow.last_batch_ms, rows, rows, seconds, int(behind)))
        flow.rows_in += rows
        flow.rows_out += 0 if sample.name.startswith("bad_rows") else rows
        flow.batches += 1
        flow.seconds += seconds
    queues = [
        f"{topic}/broker-{broker}/{queue}" for topic in sample.topics for broker in "ab" for queue in (0, 1)
    ]
    flow.lag = {queue: int(behind / len(queues)) for queue in queues}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "page.html"
        file.write_text(page(plan(), figures()))
        PICTURE.parent.mkdir(exist_ok=True)
        subprocess.run(
            ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
             "--window-size=1160,1410", f"--screenshot={PICTURE}", file.as_uri()],
            check=True,
        )  # fmt: skip


if __name__ == "__main__":
    main()
