"""Figures of a run for its page and metrics: rows, batches, lag, checks, failures."""

from __future__ import annotations

import json
import threading
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from kerolox.clock import SYSTEM_CLOCK
from kerolox.pipeline.flows.batch_checks import Outcome
from kerolox.spark.offsets import StreamOffset, is_marked, queue_text

POINTS_MAX: Final = 720  # points per flow; beyond, older ones are merged in pairs
FAILURES_MAX: Final = 20
EXAMPLES_MAX: Final = 20

STATES: Final = ("waiting", "running", "restarting", "done", "stopped", "failed")


@dataclass
class Point:
    """Figures of one batch, or of several consecutive ones."""

    at_ms: int
    rows_in: int = 0
    rows_out: int = 0
    seconds: float = 0.0
    lag: int | None = None
    batches: int = 1

    def joined(self, other: Point) -> Point:
        """Return this point merged with the next."""
        return Point(
            other.at_ms, self.rows_in + other.rows_in, self.rows_out + other.rows_out,
            self.seconds + other.seconds, other.lag, self.batches + other.batches,
        )  # fmt: skip


@dataclass
class CheckFigures:
    """Counts of passed and failed runs of a check."""

    held: int = 0
    failed: int = 0
    last: str = ""  # text of the last failure


@dataclass
class FlowFigures:
    """Figures of one flow."""

    name: str
    kind: str = ""
    state: str = "waiting"
    rows_in: int = 0
    rows_out: int = 0
    batches: int = 0
    seconds: float = 0.0
    late_rows: int = 0
    bad_rows: int = 0
    restarts: int = 0
    failures: int = 0
    last_batch: int = -1
    last_batch_ms: int = 0
    watermark: str = ""
    note: str = ""
    lag: dict[str, int] = field(default_factory=dict)  # messages by queue
    checks: dict[str, CheckFigures] = field(default_factory=dict)
    points: list[Point] = field(default_factory=list)
    pending_out: int = 0  # rows written by the running batch

    @property
    def lag_total(self) -> int | None:
        return sum(self.lag.values()) if self.lag else None

    def add_point(self, point: Point) -> None:
        self.points.append(point)
        if len(self.points) > POINTS_MAX:
            old = self.points[: POINTS_MAX // 2]
            joined = [first.joined(second) for first, second in zip(old[::2], old[1::2], strict=True)]
            self.points[: POINTS_MAX // 2] = joined


@dataclass(frozen=True)
class Failure:
    """A failure of a flow, and the action taken."""

    at_ms: int
    flow: str
    text: str
    then: str


@dataclass
class RunFigures:
    """Figures of a run, shared by threads of Spark, of the server and of the run: hold ``lock``."""

    pipeline: str
    run_id: str
    started_ms: int = field(default_factory=SYSTEM_CLOCK.wall_ms)
    ended_ms: int = 0
    state: str = "starting"
    flows: dict[str, FlowFigures] = field(default_factory=dict)
    failures: deque[Failure] = field(default_factory=lambda: deque(maxlen=FAILURES_MAX))
    examples: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=EXAMPLES_MAX))
    reasons: Counter[str] = field(default_factory=Counter)  # number of bad rows by reason
    changes: int = 0
    lock: threading.RLock = field(default_factory=threading.RLock)

    def flow(self, name: str, kind: str = "") -> FlowFigures:
        with self.lock:
            found = self.flows.setdefault(name, FlowFigures(name))
            found.kind = kind or found.kind
            self.changes += 1
            return found

    def set_state(self, flow: str, state: str, note: str = "") -> None:
        with self.lock:
            found = self.flow(flow)
            found.state, found.note = state, note

    # --- from the flows ---------------------------------------------------------------------------------

    def add_checks(self, flow: str, outcomes: Sequence[Outcome]) -> None:
        with self.lock:
            found = self.flow(flow)
            for outcome in outcomes:
                check = found.checks.setdefault(outcome.name, CheckFigures())
                if outcome.held:
                    check.held += 1
                else:
                    check.failed += 1
                    check.last = outcome.text

    def add_written(self, flow: str, rows: int) -> None:
        with self.lock:
            found = self.flow(flow)
            found.rows_out += rows
            found.pending_out += rows

    def add_bad(self, flow: str, rows: int, examples: Sequence[Mapping[str, Any]]) -> None:
        with self.lock:
            self.flow(flow).bad_rows += rows
            for example in examples:
                self.examples.append({"flow": flow, **example})
            for example in examples:
                self.reasons[str(example["reason"])] += 1

    def add_failure(self, flow: str, text: str, then: str) -> None:
        with self.lock:
            self.flow(flow).failures += 1
            self.failures.append(Failure(SYSTEM_CLOCK.wall_ms(), flow, text, then))

    def add_batch(self, flow: str, rows: int, seconds: float, number: int, lag: int | None = None) -> None:
        """Add a batch of a flow that is not a streaming query."""
        with self.lock:
            found = self.flow(flow)
            found.rows_in += rows
            found.batches += 1
            found.seconds += seconds
            found.last_batch = number
            found.last_batch_ms = SYSTEM_CLOCK.wall_ms()
            out, found.pending_out = found.pending_out, 0
            found.add_point(Point(found.last_batch_ms, rows, out, seconds, lag))

    # --- from Spark -------------------------------------------------------------------------------------

    def add_progress(self, flow: str, progress: Mapping[str, Any]) -> None:
        """Add Spark's progress report of a batch of a streaming query."""
        with self.lock:
            found = self.flow(flow)
            ran = "addBatch" in progress.get("durationMs", {})
            for source in progress.get("sources", ()):
                found.lag |= queues_behind(source)
            for operator in progress.get("stateOperators", ()):
                found.late_rows += int(operator.get("numRowsDroppedByWatermark", 0))
            found.watermark = progress.get("eventTime", {}).get("watermark", "") or found.watermark
            if not ran:
                return
            rows = max(0, int(progress.get("numInputRows", 0)))
            seconds = progress.get("durationMs", {}).get("triggerExecution", 0) / 1000
            observed = progress.get("observedMetrics", {}).get("kerolox", {})
            if "rows" in observed:  # one of Spark's own sinks
                self.add_written(flow, int(observed["rows"]))
            found.rows_in += rows
            found.batches += 1
            found.seconds += seconds
            found.last_batch = int(progress.get("batchId", -1))
            found.last_batch_ms = SYSTEM_CLOCK.wall_ms()
            out, found.pending_out = found.pending_out, 0
            found.add_point(Point(found.last_batch_ms, rows, out, seconds, found.lag_total))

    # --- for others -------------------------------------------------------------------------------------

    def document(self) -> dict[str, Any]:
        """Return the figures as JSON values."""
        with self.lock:
            return {
                "pipeline": self.pipeline,
                "run": self.run_id,
                "state": self.state,
                "startedMs": self.started_ms,
                "endedMs": self.ended_ms or None,
                "flows": {
                    flow.name: {
                        "kind": flow.kind, "state": flow.state,
                        "rowsIn": flow.rows_in, "rowsOut": flow.rows_out,
                        "batches": flow.batches, "seconds": round(flow.seconds, 3), "lag": flow.lag_total,
                        "lateRows": flow.late_rows, "badRows": flow.bad_rows, "restarts": flow.restarts,
                        "failures": flow.failures,
                        "checks": {
                            name: {"held": check.held, "failed": check.failed, "last": check.last}
                            for name, check in flow.checks.items()
                        },
                    }
                    for flow in self.flows.values()
                },
                "failures": [
                    {"atMs": each.at_ms, "flow": each.flow, "text": each.text, "then": each.then}
                    for each in self.failures
                ],
            }  # fmt: skip


def queues_behind(source: Mapping[str, Any]) -> dict[str, int]:
    """Return, by queue, the messages after the end of a batch; nothing for other sources."""
    end, latest = _mark(source.get("endOffset")), _mark(source.get("latestOffset"))
    if end is None or latest is None:
        return {}
    return {
        queue_text(queue): max(0, last - end.places[queue])
        for queue, last in latest.places.items()
        if queue in end.places
    }


def _mark(offset: object) -> StreamOffset | None:
    form = offset
    if isinstance(offset, str):
        try:
            form = json.loads(offset)
        except ValueError:
            return None
    return StreamOffset.decode(form) if is_marked(form) else None  # type: ignore[arg-type]
