"""Small SVG charts for HTML pages. Colours and fonts come from the page: ``c0`` to ``c8``, ``axis``.

The charts are plain SVG text without scripts, fonts or external resources. Shapes have titles, which
browsers show under the pointer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from html import escape
from typing import NamedTuple

WIDTH = 760
HEIGHT = 240
LEFT, RIGHT, TOP, BOTTOM = 64, 12, 14, 26
BAR_HEIGHT = 22
ROOM = 18  # height of the text above a chart
COLOURS = 9

_STEPS_MS = (
    1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 15_000, 30_000, 60_000, 120_000, 300_000,
    600_000, 900_000, 1_800_000, 3_600_000, 7_200_000, 10_800_000, 21_600_000, 43_200_000, 86_400_000,
    172_800_000, 604_800_000, 1_209_600_000, 2_592_000_000, 7_776_000_000, 31_536_000_000,
)  # fmt: skip

Text = Callable[[float], str]


class Series(NamedTuple):
    """One line or layer: its name, and a value for each step of the axis (None: no value)."""

    name: str
    values: Sequence[float | None]


class TimeMark(NamedTuple):
    """Marked span of time in a chart, with a label."""

    from_ms: float
    to_ms: float
    text: str


class Scale(NamedTuple):
    """Linear scale from values to coordinates."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        width = self.high - self.low
        return self.start + (self.end - self.start) * ((value - self.low) / width if width else 0.5)


def nice_ticks(high: float, count: int = 4) -> list[float]:
    """Return round numbers from 0 up to at least ``high``."""
    if high <= 0:
        return [0.0, 1.0]
    rough = high / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * each for each in (1, 2, 2.5, 5, 10) if power * each >= rough * 0.999999)
    return [step * number for number in range(math.ceil(high / step - 1e-9) + 1)]


def byte_ticks(high: float) -> list[float]:
    """Return round numbers of bytes from 0 up to at least ``high``, in KiB, MiB and so on."""
    unit = 1024.0 ** max(0, math.floor(math.log(max(1.0, high), 1024)))
    return [tick * unit for tick in nice_ticks(high / unit)]


def time_ticks(low_ms: float, high_ms: float, count: int = 7) -> list[int]:
    """Return round times between two others."""
    wanted = (high_ms - low_ms) / count
    step = next((each for each in _STEPS_MS if each >= wanted), _STEPS_MS[-1])
    first = math.ceil(low_ms / step) * step
    return list(range(int(first), int(high_ms) + 1, step))


def short(number: float) -> str:
    """Return a number as short text: 1234567 as 1.23M."""
    for size, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= size:
            return f"{three_digits(number / size)}{unit}"
    return three_digits(number)


def three_digits(number: float) -> str:
    """Return a number with three significant digits: 0.123, 12.3, 1234."""
    return f"{number:.3g}" if abs(number) < 999.5 else f"{number:.0f}"


def layers(
    start_ms: int,
    step_ms: int,
    series: Sequence[Series],
    title: str,
    text: Text = short,
    ticks_to: Callable[[float], list[float]] = nice_ticks,
    *,
    unit: str = "",
) -> str:
    """Draw stacked amounts over time. Value ``n`` begins at ``start + n * step``."""
    count = max((len(each.values) for each in series), default=0)
    if not count:
        return ""
    totals = [sum(each.values[at] or 0 for each in series) for at in range(count)]
    ticks = ticks_to(max(totals))
    x = Scale(start_ms, start_ms + count * step_ms, LEFT, WIDTH - RIGHT)
    y = Scale(0, ticks[-1], HEIGHT - BOTTOM, TOP + (ROOM if unit else 0))
    parts = [_frame(x, [(y(tick), text(tick)) for tick in ticks]), _unit(unit)]
    floor = [0.0] * count
    for number, each in enumerate(series):
        top = [low + (value or 0) for low, value in zip(floor, each.values, strict=True)]
        edges = [x(start_ms + at * step_ms) for at in range(count + 1)]
        forward = "".join(f"V{_n(y(top[at]))}H{_n(edges[at + 1])}" for at in range(count))
        back = "".join(f"V{_n(y(floor[at]))}H{_n(edges[at])}" for at in reversed(range(count)))
        path = f"M{_n(edges[0])},{_n(y(floor[0]))}{forward}{back}Z"
        parts.append(
            f'<path class="f{number % COLOURS}" d="{path}"><title>{escape(each.name)}</title></path>'
        )
        floor = top
    return _svg(title, parts, HEIGHT)


def lines(start_ms: int, step_ms: int, series: Sequence[Series], title: str, text: Text) -> str:
    """Draw values over time on a logarithmic scale; values below 1 are drawn at 1."""
    return curves(start_ms, step_ms, series, title, text, powers=True)


def curves(
    start_ms: int,
    step_ms: int,
    series: Sequence[Series],
    title: str,
    text: Text = short,
    *,
    unit: str = "",
    powers: bool = False,
    marks: Sequence[TimeMark] = (),
) -> str:
    """Draw values over time. ``powers``: logarithmic scale. With a start of 0 the axis shows seconds."""
    count = max((len(each.values) for each in series), default=0)
    known = [value for each in series for value in each.values if value is not None]
    if not known:
        return ""
    x = Scale(start_ms, start_ms + count * step_ms, LEFT, WIDTH - RIGHT)
    top = TOP + (ROOM if unit or marks else 0)
    if powers:
        high = max(1, math.ceil(math.log10(max(10.0, *known)) - 1e-9))
        y = Scale(0, high, HEIGHT - BOTTOM, top)
        rows = [(y(power), text(10.0**power)) for power in range(high + 1)]
    else:
        ticks = nice_ticks(max(known))
        y = Scale(0, ticks[-1], HEIGHT - BOTTOM, top)
        rows = [(y(tick), text(tick)) for tick in ticks]
    parts = [_marked(x, top, mark) for mark in marks]
    parts.append(_frame(x, rows))
    parts.append(_unit(unit))
    for number, each in enumerate(series):
        places = [
            None
            if value is None
            else (x(start_ms + (at + 0.5) * step_ms), y(math.log10(max(1.0, value)) if powers else value))
            for at, value in enumerate(each.values)
        ]
        parts.append(
            f'<path class="l{number % COLOURS}" d="{_drawn(places)}">'
            f"<title>{escape(each.name)}</title></path>"
        )
    return _svg(title, parts, HEIGHT)


def _drawn(places: Sequence[tuple[float, float] | None]) -> str:
    """Return the path of a line through these points, with gaps at missing points."""
    path, pen = "", "M"
    for at, place in enumerate(places):
        if place is None:
            pen = "M"
            continue
        path += f"{pen}{_n(place[0])},{_n(place[1])}"
        if pen == "M" and (at + 1 == len(places) or places[at + 1] is None):
            path += "h0.01"  # a single point is drawn as a dot: line ends are round
        pen = "L"
    return path


def _marked(x: Scale, top: float, mark: TimeMark) -> str:
    """Draw a marked span of time as a band with its label above."""
    left, right = x(mark.from_ms), x(mark.to_ms)
    middle = min(max((left + right) / 2, LEFT + 130.0), WIDTH - RIGHT - 130.0)
    return (
        f'<rect class="mark" x="{_n(left)}" y="{top}" width="{_n(max(1.5, right - left))}" '
        f'height="{HEIGHT - BOTTOM - top}"><title>{escape(mark.text)}</title></rect>'
        f'<text class="said" x="{_n(middle)}" y="{top - 7}" text-anchor="middle">{escape(mark.text)}</text>'
    )


def columns(
    labels: Sequence[str], values: Sequence[float], title: str, text: Text = short, *, unit: str = ""
) -> str:
    """Draw a column for each label."""
    if not values:
        return ""
    ticks = nice_ticks(max(values))
    y = Scale(0, ticks[-1], HEIGHT - BOTTOM, TOP + (ROOM if unit else 0))
    room = (WIDTH - LEFT - RIGHT) / len(values)
    parts = [_frame(None, [(y(tick), text(tick)) for tick in ticks]), _unit(unit)]
    every = math.ceil(len(labels) / (room and (WIDTH - LEFT - RIGHT) / 54))
    for number, (label, value) in enumerate(zip(labels, values, strict=True)):
        left = LEFT + room * number
        height = max(1.0, y(0) - y(value)) if value else 0.0  # small values stay visible
        parts.append(
            f'<rect class="f0" x="{_n(left + room * 0.08)}" y="{_n(y(0) - height)}" '
            f'width="{_n(room * 0.84)}" height="{_n(height)}">'
            f"<title>{escape(label)}: {value:,.0f}</title></rect>"
        )
        if number % every == 0:
            parts.append(_label(left + room / 2, HEIGHT - 8, label, "middle"))
    return _svg(title, parts, HEIGHT)


def bars(
    labels: Sequence[str], values: Sequence[float], title: str, text: Text = short, *, left: int = 300
) -> str:
    """Draw horizontal bars; ``left``: coordinate where the labels end."""
    if not values:
        return ""
    height = BAR_HEIGHT * len(values) + 8
    x = Scale(0, max(values) or 1, left, WIDTH - 90)
    parts = []
    for number, (label, value) in enumerate(zip(labels, values, strict=True)):
        top = 4 + BAR_HEIGHT * number
        shown = label if len(label) <= 44 else f"{label[:20]}…{label[-22:]}"
        parts.append(_label(left - 8, top + 15, shown, "end"))
        parts.append(
            f'<rect class="f0" x="{left}" y="{top + 3}" width="{_n(max(1.0, x(value) - left))}" '
            f'height="{BAR_HEIGHT - 6}"><title>{escape(label)}: {escape(f"{value:,.0f}")}</title></rect>'
        )
        parts.append(_label(x(value) + 6, top + 15, text(value), "start"))
    return _svg(title, parts, height)


def legend(names: Sequence[str], *, strokes: bool = False) -> str:
    """Draw the legend of the colours; ``strokes``: of lines, which have dash patterns too."""
    if strokes:
        shapes = [f'<path class="l{number % COLOURS}" d="M1,6H29"/>' for number in range(len(names))]
    else:
        shapes = [
            f'<rect class="f{number % COLOURS}" width="12" height="12" rx="2"/>'
            for number in range(len(names))
        ]
    keys = "".join(
        f'<span class="key"><svg width="{30 if strokes else 12}" height="12" aria-hidden="true">{shape}</svg>'
        f"{escape(name)}</span>"
        for shape, name in zip(shapes, names, strict=True)
    )
    return f'<p class="legend">{keys}</p>'


# --- paper and axes -----------------------------------------------------------------------------------


def _svg(title: str, parts: Sequence[str], height: int) -> str:
    inside = "".join(parts)
    return (
        f'<svg class="chart" role="img" aria-label="{escape(title)}" viewBox="0 0 {WIDTH} {height}" '
        f'preserveAspectRatio="xMinYMin meet">{inside}</svg>'
    )


def _frame(x: Scale | None, rows: Sequence[tuple[float, str]]) -> str:
    parts = []
    for place, label in rows:
        parts.append(f'<path class="grid" d="M{LEFT},{_n(place)}H{WIDTH - RIGHT}"/>')
        parts.append(_label(LEFT - 8, place + 4, label, "end"))
    if x is not None:
        ticks = time_ticks(x.low, x.high)
        for tick in ticks:
            parts.append(f'<path class="grid" d="M{_n(x(tick))},{HEIGHT - BOTTOM}v4"/>')
            parts.append(_label(x(tick), HEIGHT - 8, _time_label(tick, x.high - x.low), "middle"))
    return "".join(parts)


def _unit(text: str) -> str:
    """Draw the unit of the vertical axis."""
    return _label(8, TOP + 2, text, "start") if text else ""


def _time_label(ms: int, span_ms: float) -> str:
    if ms < 86_400_000:  # seconds since a start, not a time of day
        return f"{ms / 1000:g} s"
    time = datetime.fromtimestamp(ms / 1000, UTC)
    if span_ms > 300 * 86_400_000:
        return f"{time:%b %Y}"
    if span_ms > 5 * 86_400_000:
        return f"{time:%d %b}"
    if span_ms > 86_400_000:
        return f"{time:%d %b %H:%M}"
    return f"{time:%H:%M:%S}" if span_ms < 300_000 else f"{time:%H:%M}"


def _label(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text class="axis" x="{_n(x)}" y="{_n(y)}" text-anchor="{anchor}">{escape(text)}</text>'


def _n(number: float) -> str:
    """Return a coordinate with one decimal."""
    return f"{number:.1f}".removesuffix(".0")
