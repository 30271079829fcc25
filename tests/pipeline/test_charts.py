"""Charts: where things lie on the paper."""

from __future__ import annotations

import itertools
import math
import re
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kerolox.pipeline import charts
from kerolox.pipeline.charts import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Scale, Series

HOUR = 3_600_000
START = 1_700_000_000_000 // HOUR * HOUR


def parsed(text: str) -> ElementTree.Element:
    return ElementTree.fromstring(text)


def corners(path: str) -> list[tuple[float, float]]:
    """The points of a path made of M, L, H and V."""
    x = y = 0.0
    found = []
    for step, numbers in re.findall(r"([MLHV])([-\d.,]+)", path):
        values = [float(number) for number in numbers.split(",")]
        if step == "H":
            x = values[0]
        elif step == "V":
            y = values[0]
        else:
            x, y = values
        found.append((x, y))
    return found


@pytest.mark.parametrize(
    ("high", "ticks"),
    [(0, [0, 1]), (1, [0, 0.25, 0.5, 0.75, 1]), (7, [0, 2, 4, 6, 8]), (100, [0, 25, 50, 75, 100]),
     (1234, [0, 500, 1000, 1500]), (0.03, [0, 0.01, 0.02, 0.03])],
)  # fmt: skip
def test_ticks_are_round(high: float, ticks: list[float]) -> None:
    assert charts.nice_ticks(high) == pytest.approx(ticks)


def test_ticks_of_bytes_are_round_in_their_unit() -> None:
    assert charts.byte_ticks(3_900_000) == [number << 20 for number in range(5)]
    assert charts.byte_ticks(700) == [0, 200, 400, 600, 800]
    assert charts.byte_ticks(0) == [0, 1]


@given(st.floats(1e-9, 1e15))
@settings(max_examples=100)
def test_ticks_reach_the_highest_value(high: float) -> None:
    ticks = charts.nice_ticks(high)
    assert 2 <= len(ticks) <= 7
    assert ticks[-1] >= high * 0.999999
    assert ticks[-2] < high


@given(st.integers(0, 4_000_000_000_000), st.integers(1, 100_000_000_000))
@settings(max_examples=100)
def test_times_are_few_and_inside(low: int, span: int) -> None:
    ticks = charts.time_ticks(low, low + span)
    assert len(ticks) <= 9
    assert all(low <= tick <= low + span for tick in ticks)


def test_a_scale_goes_from_end_to_end() -> None:
    scale = Scale(10, 20, 100, 0)
    assert [scale(10), scale(15), scale(20)] == [100, 50, 0]
    assert Scale(5, 5, 0, 10)(5) == 5  # no width: the middle


def test_layers_lie_on_each_other_without_a_gap() -> None:
    svg = parsed(charts.layers(START, HOUR, [Series("a", [10, 20, 0]), Series("b", [5, None, 20])], "rates"))
    paths = [path for path in svg.iter("path") if path.attrib["class"].startswith("f")]
    assert [path.find("title").text for path in paths] == ["a", "b"]  # type: ignore[union-attr]
    y = Scale(0, 20, HEIGHT - BOTTOM, TOP)
    lower, upper = corners(paths[0].attrib["d"]), corners(paths[1].attrib["d"])
    floor = HEIGHT - BOTTOM
    assert lower[0] == (LEFT, floor)
    assert max(x for x, _ in lower) == WIDTH - RIGHT
    tops = [place for _, place in lower[1:6:2]]
    assert tops == pytest.approx([y(10), y(20), y(0)], abs=0.06)
    assert [place for _, place in upper[1:6:2]] == pytest.approx([y(15), y(20), y(20)], abs=0.06)
    # The upper one goes back along the top of the lower one.
    assert [place for _, place in reversed(upper[7::2])] == pytest.approx(tops, abs=0.06)


def test_lines_are_on_a_scale_of_powers_and_break_where_nothing_is() -> None:
    values = [1, 100, None, 1000, None, 0]
    svg = parsed(charts.lines(START, HOUR, [Series("p99", values)], "latency", str))
    (path,) = [each for each in svg.iter("path") if each.attrib["class"] == "l0"]
    assert path.attrib["d"].count("M") == 3
    assert path.attrib["d"].count("h") == 2  # dots
    y = Scale(0, 3, HEIGHT - BOTTOM, TOP)
    places = [place for _, place in corners(path.attrib["d"])]
    assert places == pytest.approx([y(0), y(2), y(3), y(0)], abs=0.06)
    labels = [text.text for text in svg.iter("text") if text.attrib["text-anchor"] == "end"]
    assert labels == ["1.0", "10.0", "100.0", "1000.0"]


def test_columns_stand_on_the_floor() -> None:
    svg = parsed(charts.columns(["≤ 1", "≤ 2", "≤ 4"], [1, 4, 2], "sizes"))
    few = parsed(charts.columns(["many", "few", "none"], [1e6, 1, 0], "sizes"))
    assert [float(each.attrib["height"]) for each in few.iter("rect")][1:] == [1, 0]
    rects = [
        {key: float(value) for key, value in each.attrib.items() if key != "class"}
        for each in svg.iter("rect")
    ]
    assert len(rects) == 3
    for rect, value in zip(rects, (1, 4, 2), strict=True):
        assert rect["y"] + rect["height"] == pytest.approx(HEIGHT - BOTTOM, abs=0.1)
        assert rect["height"] == pytest.approx((HEIGHT - BOTTOM - TOP) * value / 4, abs=0.1)
    assert all(a["x"] + a["width"] < b["x"] for a, b in itertools.pairwise(rects))


def test_bars_are_as_long_as_their_values_and_long_names_are_cut() -> None:
    svg = parsed(charts.bars(["a" * 60, "b"], [40, 10], "dead letters"))
    wide, narrow = (float(each.attrib["width"]) for each in svg.iter("rect"))
    assert wide == pytest.approx(4 * narrow)
    texts = [each.text or "" for each in svg.iter("text")]
    assert max(map(len, texts)) <= 44


@pytest.mark.parametrize("count", [1, 2, 240])
def test_nothing_lies_beyond_the_paper(count: int) -> None:
    values = [float(number % 17) for number in range(count)]
    series = [Series("a", values), Series("b", list(reversed(values)))]
    for text in (
        charts.layers(START, 60_000, series, "t"),
        charts.lines(START, 60_000, series, "t", str),
        charts.columns([str(number) for number in range(count)], values, "t"),
    ):
        svg = parsed(text)
        width, height = map(float, svg.attrib["viewBox"].split()[2:])
        assert "nan" not in text
        for path in svg.iter("path"):
            for x, y in corners(path.attrib["d"]):
                assert 0 <= x <= width
                assert 0 <= y <= height + 0.1
        for label in svg.iter("text"):
            assert 0 <= float(label.attrib["x"]) <= width


def test_what_is_empty_draws_nothing() -> None:
    assert charts.layers(0, 1, [], "t") == charts.lines(0, 1, [], "t", str) == charts.bars([], [], "t") == ""
    assert charts.columns([], [], "t") == ""


def test_names_cannot_break_out() -> None:
    evil = '"><script>alert(1)</script>'
    for text in (
        charts.bars([evil], [1], evil),
        charts.legend([evil]),
        charts.layers(0, 1, [Series(evil, [1])], evil),
    ):
        assert "<script>" not in text
        parsed(text)


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0"), (999, "999"), (1234, "1.23k"), (1_204_331, "1.2M"), (2.5e9, "2.5G"), (999_900, "1000k")],
)
def test_numbers_are_short(number: float, text: str) -> None:
    assert charts.short(number) == text
    assert math.isfinite(number)
