"""Figures of a run as Prometheus metrics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from kerolox.metric_text import MetricText
from kerolox.pipeline.flows.figures import STATES, FlowFigures, RunFigures

PREFIX: Final = "kerolox_pipeline_"

# Name, kind, help text, and the function that gets the value of a flow.
FLOW_METRICS: Final[tuple[tuple[str, str, str, Callable[[FlowFigures], float]], ...]] = (
    ("rows_in_total", "counter", "Rows read by the batches of a flow.", lambda flow: flow.rows_in),
    ("rows_out_total", "counter", "Rows written to the sink.", lambda flow: flow.rows_out),
    ("batches_total", "counter", "Batches done.", lambda flow: flow.batches),
    ("batch_seconds_total", "counter", "Total time of all batches.", lambda flow: flow.seconds),
    ("late_rows_total", "counter", "Rows dropped because they were later than the watermark.",
     lambda flow: flow.late_rows),
    ("bad_rows_total", "counter", "Rows in the side table: bodies that do not fit, rows set aside by checks.",
     lambda flow: flow.bad_rows),
    ("restarts_total", "counter", "Restarts of a flow after a failure.",
     lambda flow: flow.restarts),
    ("failures_total", "counter", "Failures of a flow.", lambda flow: flow.failures),
    ("last_batch_timestamp_seconds", "gauge", "Time of the last completed batch; 0: none yet.",
     lambda flow: flow.last_batch_ms / 1000),
)  # fmt: skip


def metrics(figures: RunFigures) -> str:
    """Return the text of a scrape."""
    with figures.lock:
        text = MetricText({"pipeline": figures.pipeline})
        flows = list(figures.flows.values())
        for name, kind, about, figure in FLOW_METRICS:
            text.metric(PREFIX + name, kind, about, [({"flow": flow.name}, figure(flow)) for flow in flows])
        text.metric(
            f"{PREFIX}lag_messages", "gauge", "Messages in a queue after the end of the last batch.",
            [
                ({"flow": flow.name, "topic": topic, "broker": broker, "queue": queue}, behind)
                for flow in flows
                for place, behind in sorted(flow.lag.items())
                for topic, broker, queue in [place.rsplit("/", 2)]
            ],
        )  # fmt: skip
        for name, about, held in (
            ("check_passes_total", "Batches that passed a check.", True),
            ("check_failures_total", "Batches that failed a check.", False),
        ):
            text.metric(
                PREFIX + name, "counter", about,
                [
                    ({"flow": flow.name, "check": check}, found.held if held else found.failed)
                    for flow in flows
                    for check, found in flow.checks.items()
                ],
            )  # fmt: skip
        text.metric(
            f"{PREFIX}flow_state", "gauge", "1 for the current state of a flow.",
            [
                ({"flow": flow.name, "state": state}, float(flow.state == state))
                for flow in flows
                for state in STATES
            ],
        )  # fmt: skip
        text.gauge(f"{PREFIX}start_timestamp_seconds", "When the run began.", figures.started_ms / 1000)
        return text.text()
