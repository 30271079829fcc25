"""HTML page of a run: state, graph, rates, lag, checks, bad rows, last failures.

The page is a single file without scripts or external resources; during the run the browser reloads it. All
figures are counts, not estimates.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime
from html import escape
from typing import Any, Final

from kerolox.pipeline.charts import Series, curves, legend, short
from kerolox.pipeline.flows.figures import Failure, FlowFigures, Point, RunFigures
from kerolox.pipeline.flows.graph import drawing
from kerolox.pipeline.flows.plan import MISFITS, Plan
from kerolox.pipeline.page_style import STYLE

AGAIN_S: Final = 5  # seconds between reloads by the browser
STEPS: Final = 60  # steps of a time axis
POINTS_MIN: Final = 3  # fewer batches are not drawn as a line
QUEUES_MAX: Final = 8  # queues shown: those with the largest lag
SERIES_MAX: Final = 4  # lines in a chart that remain distinguishable

# Characters that are not allowed in a page; rows may contain any.
_NOT_ALLOWED: Final = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")

OWN_STYLE: Final = """
main{max-width:1120px}.tiles{grid-template-columns:repeat(auto-fit,minmax(132px,1fr))}
.tile.warn b{color:var(--c1)}.wide td,.wide th{padding:7px 8px;white-space:nowrap}
header.live{background:var(--paper)}header.live h1{color:var(--ink)}
.flows{display:block;width:100%;height:auto;margin:10px 0}
.flows text{font-family:inherit}.flows .what{font-size:14px;font-weight:650;fill:var(--ink)}
.flows .kind{font-size:11.5px;fill:var(--soft)}
.flows .box rect{fill:var(--paper);stroke:var(--line)}.flows .box rect.bar{stroke:none}
.flows .source rect.bar{fill:var(--c0)}.flows .step rect.bar{fill:var(--c6)}
.flows .sink rect.bar{fill:var(--c2)}
.flows .side rect.bar{fill:var(--c5)}.flows .failed rect.bar{fill:var(--bad)}
.flows .failed rect:first-of-type{stroke:var(--bad)}.flows .restarting rect.bar{fill:var(--c1)}
.flows .edge{fill:none;stroke:var(--c8);stroke-width:1.6}.flows .tip{fill:var(--c8)}
.state{display:inline-block;border-radius:99px;padding:1px 9px;font-size:12px;font-weight:600;
border:1px solid var(--line);color:var(--soft)}
.state.running,.state.done{color:var(--good);border-color:var(--good)}
.state.failed{color:var(--bad);border-color:var(--bad)}
.state.restarting,.state.stopped.why{color:var(--c1);border-color:var(--c1)}
td,.fail,header,.tile{overflow-wrap:anywhere}
td.r,th.r{text-align:right}.fail{background:var(--paper);border:1px solid var(--line);
border-left:4px solid var(--bad);border-radius:6px;padding:8px 14px;margin:10px 0}
.fail.again{border-left-color:var(--c1)}
""".replace("\n", "")


def page(plan: Plan, figures: RunFigures) -> str:
    """Return the current page."""
    with figures.lock:
        live = not figures.ended_ms
        parts = [
            _header(figures, live),
            _tiles(figures),
            _failures(figures),
            _graph(plan, figures),
            _flows(figures),
            _rates(figures),
            _lag(figures),
            _checks(plan, figures),
            _bad_rows(plan, figures),
            _about(figures, live),
        ]
    again = f'<meta http-equiv="refresh" content="{AGAIN_S}"/>' if live else ""
    text = (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"/>'
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>'
        f'<meta name="color-scheme" content="light dark"/>{again}'
        f"<title>{escape(figures.pipeline)}: {escape(_headline(figures))}</title>"
        f"<style>{STYLE}{OWN_STYLE}</style></head>\n<body><main>\n{''.join(parts)}\n</main></body></html>\n"
    )
    return _NOT_ALLOWED.sub("·", text)


def _headline(figures: RunFigures) -> str:
    flows = list(figures.flows.values())
    failed = [flow.name for flow in flows if flow.state == "failed"]
    written = sum(flow.rows_out for flow in flows)
    if failed:
        return f"{_listed(failed)} failed"
    if figures.ended_ms:
        return f"done: {written:,} rows written"
    restarting = [flow.name for flow in flows if flow.state == "restarting"]
    if restarting:
        return f"{_listed(restarting)} will restart"
    return "starting" if figures.state == "starting" else f"running, {written:,} rows written"


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _header(figures: RunFigures, live: bool) -> str:
    flows = figures.flows.values()
    failed = any(flow.state in ("failed", "stopped") and flow.note for flow in flows)
    mood = "bad" if failed else "live" if live else "good"
    for_s = ((figures.ended_ms or _now_ms()) - figures.started_ms) / 1000
    ended = "" if live else f", ended {time_text(figures.ended_ms)}"
    return (
        f'<header class="{mood}"><p class="kind">Pipeline {escape(figures.pipeline)}</p>'
        f"<h1>{escape(_headline(figures))}</h1>"
        f"<p>Run <code>{escape(figures.run_id)}</code>, begun {time_text(figures.started_ms)} UTC{ended}, "
        f"{span_text(for_s)}.</p></header>"
    )


def _tiles(figures: RunFigures) -> str:
    flows = list(figures.flows.values())
    sinks = [flow for flow in flows if not flow.name.startswith(MISFITS)]
    lags = [flow.lag_total for flow in flows if flow.lag_total is not None]
    recent = sum(_recent_rate(flow) for flow in sinks)
    live = not figures.ended_ms
    written = sum(flow.rows_out for flow in flows)
    shown = [(short(written) if written >= 10_000_000 else f"{written:,}", "rows written")]
    if live:
        shown.append((f"{short(recent)}/s", "read in the last minute"))
    else:
        seconds = max(0.001, (figures.ended_ms - figures.started_ms) / 1000)
        shown.append(
            (f"{short(sum(flow.rows_in for flow in sinks) / seconds)}/s", "read, over the whole run")
        )
    shown.append((f"{max(lags):,}" if lags else "–", "messages behind, at most"))
    shown.append((f"{sum(flow.batches for flow in flows):,}", "batches"))
    shown.append((f"{sum(flow.bad_rows for flow in flows):,}", "bad rows set aside"))
    late, restarts = sum(flow.late_rows for flow in flows), sum(flow.restarts for flow in flows)
    shown += [(f"{late:,}", "rows too late")] if late else []
    shown += [(f"{restarts:,}", "restarts")] if restarts else []
    tiles = "".join(
        f'<div class="tile"><b>{escape(value)}</b><span>{escape(what)}</span></div>' for value, what in shown
    )
    return f'<div class="tiles">{tiles}</div>'


def _recent_rate(flow: FlowFigures) -> float:
    since_ms = _now_ms() - 60_000
    points = [point for point in flow.points if point.at_ms >= since_ms]
    return sum(point.rows_in for point in points) / 60 if points else 0.0


def _graph(plan: Plan, figures: RunFigures) -> str:
    notes = {
        flow.name: (flow.state, f"{flow.rows_out:,} rows, {flow.state}") for flow in figures.flows.values()
    }
    misfits = [name.removeprefix(MISFITS) for name in figures.flows if name.startswith(MISFITS)]
    return f"<h2>Graph</h2>{drawing(plan, notes, misfits)}"


def _flows(figures: RunFigures) -> str:
    rows = []
    for flow in figures.flows.values():
        mean = flow.seconds / flow.batches if flow.batches else 0.0
        cells = (
            f"{flow.rows_in:,}", f"{flow.rows_out:,}", f"{flow.batches:,}",
            f"{mean:.2f} s" if flow.batches else "", "–" if flow.lag_total is None else f"{flow.lag_total:,}",
            f"{flow.late_rows:,}", f"{flow.bad_rows:,}", f"{flow.restarts:,}",
        )  # fmt: skip
        last = time_text(flow.last_batch_ms)[11:] if flow.last_batch_ms else ""
        rows.append(
            f"<tr><td><b>{escape(flow.name)}</b><br/><span class='small'>{escape(flow.kind)}</span></td>"
            f'<td><span class="state {escape(flow.state)}{" why" if flow.note else ""}">'
            f"{escape(flow.state)}</span></td>"
            + "".join(f'<td class="r">{cell}</td>' for cell in cells)
            + f"<td class='at'>{last}</td></tr>"
        )
    heads = ("rows in", "rows out", "batches", "mean batch", "behind", "late", "bad", "restarts")
    head = "".join(f'<th class="r">{name}</th>' for name in heads)
    return (
        "<h2>Flows</h2><div class='scroll'><table class='wide'>"
        f"<tr><th>flow</th><th></th>{head}<th>last batch</th></tr>"
        f"{''.join(rows)}</table></div>"
    )


# --- over time ----------------------------------------------------------------------------------------


def _axis(figures: RunFigures) -> tuple[int, int]:
    """Return the start of the time axis and the length of a step, in ms."""
    end_ms = figures.ended_ms or _now_ms()
    step_ms = max(1000, -(-(end_ms - figures.started_ms) // STEPS))
    return figures.started_ms, step_ms


def _shown(figures: RunFigures) -> list[FlowFigures]:
    """Return the flows shown in charts: those with the most rows."""
    flows = [flow for flow in figures.flows.values() if flow.points and not flow.name.startswith(MISFITS)]
    return sorted(flows, key=lambda flow: -flow.rows_in)[:SERIES_MAX]


def _buckets(figures: RunFigures, flow: FlowFigures) -> list[list[Point]]:
    start_ms, step_ms = _axis(figures)
    end_ms = figures.ended_ms or _now_ms()
    count = max(1, -(-(end_ms - start_ms) // step_ms))
    found: list[list[Point]] = [[] for _ in range(count)]
    for point in flow.points:
        found[min(count - 1, max(0, (point.at_ms - start_ms) // step_ms))].append(point)
    return found


def _rates(figures: RunFigures) -> str:
    flows = _shown(figures)
    if not flows:
        return ""
    start_ms, step_ms = _axis(figures)
    rates = [
        Series(flow.name, [sum(p.rows_in for p in each) * 1000 / step_ms for each in _buckets(figures, flow)])
        for flow in flows
    ]
    times = [
        Series(
            flow.name,
            [
                sum(p.seconds for p in each) / sum(p.batches for p in each) if each else None
                for each in _buckets(figures, flow)
            ],
        )
        for flow in flows
    ]
    names = [flow.name for flow in flows]
    shown = (
        "<h2>Rows a second</h2>"
        + legend(names, strokes=True)
        + curves(start_ms, step_ms, rates, "rows a second", unit="rows read a second")
    )
    if max(len(flow.points) for flow in flows) < POINTS_MIN:
        return shown
    return (
        shown
        + "<h2>How long a batch takes</h2>"
        + legend(names, strokes=True)
        + curves(start_ms, step_ms, times, "seconds a batch", unit="seconds, mean")
    )


def _lag(figures: RunFigures) -> str:
    flows = [flow for flow in _shown(figures) if flow.lag]
    if not flows:
        return ""
    start_ms, step_ms = _axis(figures)
    series = [
        Series(flow.name, [each[-1].lag if each else None for each in _buckets(figures, flow)])
        for flow in flows
    ]
    queues = sorted(
        ((behind, flow.name, queue) for flow in flows for queue, behind in flow.lag.items()), reverse=True
    )[:QUEUES_MAX]
    rows = "".join(
        f'<tr><td>{escape(flow)}</td><td><code>{escape(queue)}</code></td><td class="r">{behind:,}</td></tr>'
        for behind, flow, queue in queues
    )
    chart = ""
    if max(len(flow.points) for flow in flows) >= POINTS_MIN:
        chart = legend([flow.name for flow in flows], strokes=True)
        chart += curves(start_ms, step_ms, series, "messages behind", unit="messages behind")
    return (
        f"<h2>Messages behind</h2>{chart}"
        "<div class='scroll'><table><tr><th>flow</th><th>queue</th><th class='r'>behind</th></tr>"
        + f"{rows}</table></div>"
    )


# --- what went wrong ----------------------------------------------------------------------------------


def _checks(plan: Plan, figures: RunFigures) -> str:
    rows = []
    for name, check in plan.pipeline.checks.items():
        flow = figures.flows.get(check.of)
        found = flow.checks.get(name) if flow else None
        held, failed = (found.held, found.failed) if found else (0, 0)
        mark = "<td class='n'>–</td>" if not held + failed else (
            "<td class='no'>✗</td>" if failed else "<td class='yes'>✓</td>"
        )  # fmt: skip
        rows.append(
            f"<tr>{mark}<td><b>{escape(name)}</b></td><td>{escape(_said(check))}</td><td>{escape(check.of)}</td>"
            f'<td class="r">{held:,}</td><td class="r">{failed:,}</td>'
            f"<td>{escape(check.then.replace('_', ' '))}</td>"
            f"<td class='small'>{escape(found.last if found else '')}</td></tr>"
        )
    if not rows:
        return ""
    return (
        "<h2>Checks</h2><div class='scroll'><table><tr><th></th><th>check</th><th>holds when</th>"
        "<th>sink</th><th class='r'>held</th><th class='r'>failed</th><th>then</th><th>last failure</th></tr>"
        f"{''.join(rows)}</table></div>"
    )


def _said(check: Any) -> str:
    if check.rows is not None:
        high = "" if check.rows.max is None else f", at most {check.rows.max:,}"
        return f"at least {check.rows.min:,} rows{high}"
    if check.fresh is not None:
        return f"newest {check.fresh.column} within {span_text(check.fresh.within)}"
    if check.not_null:
        return f"no nulls in {', '.join(check.not_null)}"
    return f"unique {', '.join(check.unique)}" if check.unique else str(check.where or check.total)


def _failures(figures: RunFigures) -> str:
    if not figures.failures:
        return ""
    parts = []
    for same in reversed(_runs(figures.failures)):
        first, last = same[0], same[-1]
        times = f"{len(same)} times, the first at {time_text(first.at_ms)[11:]}, " if len(same) > 1 else ""
        parts.append(
            f'<div class="fail{"" if last.then == "given up" else " again"}"><b>{escape(last.flow)}</b> '
            f'<span class="small">{time_text(last.at_ms)} UTC, {times}{escape(last.then)}</span>'
            f"<br/>{escape(last.text)}</div>"
        )
    return f"<h2>Last failures</h2>{''.join(parts)}"


def _runs(failures: Iterable[Failure]) -> list[list[Failure]]:
    """Group consecutive failures with the same flow and text."""
    found: list[list[Failure]] = []
    for each in failures:
        if found and (found[-1][0].flow, found[-1][0].text) == (each.flow, each.text):
            found[-1].append(each)
        else:
            found.append([each])
    return found


def _bad_rows(plan: Plan, figures: RunFigures) -> str:
    if not figures.examples:
        return ""
    table = plan.pipeline.bad_rows
    where = (table.table or table.path) if table else ""
    rows = "".join(
        f"<tr><td>{escape(each['flow'].removeprefix(MISFITS))}</td><td>{escape(each['reason'] or '')}</td>"
        f"<td><code>{escape(each['where'])}</code></td><td><code>{escape(each['text'])}</code></td></tr>"
        for each in reversed(figures.examples)
    )
    return (
        f"<h2>Bad rows</h2><p>Set aside in <code>{escape(where)}</code>. The last of them:</p>"
        "<div class='scroll'><table><tr><th>from</th><th>why</th><th>place</th><th>row</th></tr>"
        f"{rows}</table></div>"
    )


def _about(figures: RunFigures, live: bool) -> str:
    again = f" The browser reloads it every {AGAIN_S} s." if live else ""
    return f"<p class='small'>Made {time_text(_now_ms())} UTC.{again}</p>"


# --- texts --------------------------------------------------------------------------------------------


def _now_ms() -> int:
    return int(datetime.now(UTC).timestamp() * 1000)


def time_text(ms: int) -> str:
    return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d %H:%M:%S}"


def span_text(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 90 else f"{minutes / 60:.1f} h"
