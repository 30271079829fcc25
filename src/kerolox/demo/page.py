"""HTML page with the measured results of ``kerolox demo``: one file without external resources."""

from __future__ import annotations

import os
import platform
from html import escape
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from kerolox.demo.shop import ALERT_FROM, BATCH, IN_FLIGHT, STEADY_RATE, STEP_MS
from kerolox.pipeline.charts import Series, TimeMark, bars, curves, legend
from kerolox.pipeline.page_style import STYLE

if TYPE_CHECKING:
    from kerolox.demo.shop import Shop


def page(shop: Shop, told: dict[str, Any] | None, words: list[str]) -> str:
    figures = shop.figures()
    parts = [_header(figures, words), _tiles(figures, told)]
    if figures["steady"]["messages"]:
        parts += _steady(shop, told)
    parts += _full_speed(figures)
    if told is not None:
        parts += _regions(told)
    parts.append(_machine())
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"/><title>kerolox demo</title>'
        '<meta name="viewport" content="width=device-width"/>'
        f"<style>{STYLE}</style></head><body><main>{''.join(parts)}</main></body></html>\n"
    )


def _header(figures: dict[str, Any], words: list[str]) -> str:
    lost, count = figures["missing"], figures["acknowledged"]
    killed = "one broker killed, " if figures["steady"]["messages"] else ""
    outcome = "none lost" if not lost else f"{lost:,} lost"
    paragraphs = "".join(f"<p>{escape(line)}</p>" for line in words)
    return (
        f'<header class="{"bad" if lost else "good"}"><p class="kind">kerolox demo</p>'
        f"<h1>{count:,} orders, {killed}{outcome}</h1>{paragraphs}</header>"
    )


def _tiles(figures: dict[str, Any], told: dict[str, Any] | None) -> str:
    steady, memory = figures["steady"], figures["brokerMemoryBytes"]
    shown = [(f"{figures['missing']:,}", "acknowledged orders that never arrived")]
    if steady["messages"]:
        shown += [
            (f"{steady['brokerAwayMs'] / 1000:.1f} s", "from kill -9 to the next acknowledgement"),
            (_ms_text(steady["p50Ms"]), f"or less for 50% of sends, at {STEADY_RATE:,} per second"),
        ]
    shown.append((f"{figures['sentInBatches']['perSecond']:,}/s", f"sent in batches of {BATCH}"))
    if memory is not None:
        shown.append((f"{memory / 1e6:.0f} MB", "memory of the broker, at most"))
    if told is not None:
        shown.append((f"{told['orders']:,}", "different orders counted by Spark"))
    tiles = "".join(
        f'<div class="tile"><b>{escape(value)}</b><span>{escape(what)}</span></div>' for value, what in shown
    )
    return f'<div class="tiles">{tiles}</div>'


def _steady(shop: Shop, told: dict[str, Any] | None) -> list[str]:
    """Return the section about the steady load, during which the broker is killed."""
    figures, timeline = shop.figures()["steady"], shop.timeline
    steps = timeline.steps
    away = TimeMark(
        shop.killed_ms, shop.back_ms, f"broker killed, back after {figures['brokerAwayMs'] / 1000:.1f} s"
    )
    shown = {
        "placed": "placed by customers",
        "sent": "acknowledged by the broker",
        "consumed": "consumed",
    }
    totals = [Series(name, timeline.totals(what, steps)) for what, name in shown.items()]
    rates = [Series(name, timeline.rates(what, steps)) for what, name in shown.items()]
    if told is not None:
        name, counts = "counted by Spark, by store time", _counted(shop, told, steps)
        rates.append(Series(name, [count * 1000 / STEP_MS for count in counts]))
        totals.append(Series(name, list(accumulate(counts))))
    times = [
        Series("50% of sends take at most", timeline.shares("send_ms", 0.5, steps)),
        Series("99% of sends take at most", timeline.shares("send_ms", 0.99, steps)),
    ]
    memory = Series("memory of the broker", [
        None if each is None else each / 1e6 for each in timeline.shares("memory", 0.5, steps)
    ])  # fmt: skip
    parts = [
        "<h2>A broker dies, and no order is lost</h2>",
        f"<p>Customers place {STEADY_RATE:,} orders per second, also while no broker runs. Under this load "
        "the broker is killed without warning and restarted from its files. Meanwhile orders wait in the "
        "producer, which sends each order until the broker acknowledges it. In the end the lines meet: "
        "every placed order was acknowledged, consumed and counted.</p>",
        legend([each.name for each in totals], strokes=True),
        curves(0, STEP_MS, totals, "orders so far", unit="orders so far", marks=[away]),
        "<h3>Orders per second</h3>",
        "<p>The waiting orders arrive at once when the broker is back.</p>",
        legend([each.name for each in rates], strokes=True),
        curves(0, STEP_MS, rates, "orders per second over time", unit="orders per second", marks=[away]),
        "<h3>Send latency</h3>",
        "<p>From placing the order to the broker's response, with all retries. Orders placed while the "
        "broker was down had to wait for it. Logarithmic scale.</p>",
        legend([each.name for each in times], strokes=True),
        curves(0, STEP_MS, times, "send times", _ms_text, unit="time of a send", powers=True, marks=[away]),
    ]
    if any(memory.values):
        parts += [
            "<h3>Memory of the broker</h3>",
            "<p>Resident memory of its process, including mapped files.</p>",
            curves(0, STEP_MS, [memory], "memory over time", unit="megabytes", marks=[away]),
        ]
    return parts


def _counted(shop: Shop, told: dict[str, Any], steps: int) -> list[int]:
    """Return Spark's counts, aligned to wall-clock time, on the timeline's steps; up to half a step apart."""
    counts = [0] * steps
    for row in told["overTime"]:
        at = round((row["ms"] - shop.timeline.began_ms) / STEP_MS)
        if 0 <= at < steps:
            counts[at] += row["orders"]
    return counts


def _full_speed(figures: dict[str, Any]) -> list[str]:
    rows = [
        (f"sent one by one, {IN_FLIGHT} at a time", figures["sent"]),
        (f"sent in batches of {BATCH}", figures["sentInBatches"]),
        ("consumed meanwhile", figures["consumed"]),
    ]
    cells = "".join(
        f"<tr><td>{escape(name)}</td><td>{row['messages']:,}</td><td>{row['perSecond']:,}</td>"
        f"<td>{row['p50Ms']:g}</td><td>{row['p99Ms']:g}</td></tr>"
        for name, row in [("sent steadily, the broker killed meanwhile", figures["steady"]), *rows]
        if row["messages"]
    )
    return [
        "<h2>Full speed</h2>",
        "<p>Orders of 200 bytes, with one producer, one consumer and one broker on this machine.</p>",
        bars(
            [name for name, _ in rows],
            [row["perSecond"] for _, row in rows],
            "orders per second",
            _per_second,
        ),
        '<div class="scroll"><table><thead><tr><th>Load</th><th>Orders</th><th>Per second</th><th>p50 ms</th>'
        f"<th>p99 ms</th></tr></thead><tbody>{cells}</tbody></table></div>",
        '<p class="small">p50 and p99: 50% and 99% took at most this time. Sends and batches: until the '
        "response. Consumed orders: from sending to the consumer.</p>",
    ]


def _regions(told: dict[str, Any]) -> list[str]:
    names = [row["region"] for row in told["regions"]]
    return [
        "<h2>Spark</h2>",
        f"<p>A streaming query (Spark {escape(told['spark'])}, Java {escape(told['java'])}) sums up the "
        f"orders in Parquet files; another sends an alert for each order of {ALERT_FROM} or more to a topic: "
        f"{told['alerts']:,} expected, {told['alertsReceived']:,} received.</p>",
        "<h3>Amount by region</h3>",
        bars(names, [row["amount"] for row in told["regions"]], "amount by region", left=120),
    ]


def _machine() -> str:
    from kerolox import __version__
    from kerolox.net.loop import LOOP_NAME

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return (
        f'<p class="small">Measured by kerolox {escape(__version__)} on {platform.system()} '
        f"{platform.machine()}, {cores} cores, Python {platform.python_version()}, {escape(LOOP_NAME)}. "
        "Broker, clients and Spark share the machine.</p>"
    )


def _ms_text(ms: float) -> str:
    return f"{ms / 1000:.3g} s" if ms >= 999.5 else f"{ms:.3g} ms"


def _per_second(rate: float) -> str:
    return f"{rate:,.0f} /s"
