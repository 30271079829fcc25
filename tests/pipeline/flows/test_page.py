"""The page of a run: a file that loads nothing, with all that went wrong near its top."""

from __future__ import annotations

import itertools
import re
import xml.etree.ElementTree as ET

from kerolox.pipeline.flows.graph import boxes, drawing
from kerolox.pipeline.flows.page import page
from tests.pipeline.flows.sample_run import BROKEN, figures, plan


def test_the_page_is_whole_and_tells_what_failed() -> None:
    made = page(plan(), figures())
    body = made.partition("\n")[2]
    ET.fromstring(body)  # every element is closed, every text escaped
    assert "http" not in body.replace("http-equiv", "")
    assert "<h1>copy failed</h1>" in body
    assert body.count(BROKEN) == 1  # five failures in a row that say the same
    assert "5 times, the first at" in body
    assert body.index(BROKEN) < body.index("<h2>Graph</h2>") < body.index("Checks") < body.index("Bad rows")
    assert "&lt;order id=&quot;17&quot;&gt;" in body
    assert '<span class="state stopped">' in body  # because of another: nothing to worry about by itself


def test_a_page_that_is_live_is_loaded_again() -> None:
    running = figures()
    running.ended_ms = 0
    assert 'http-equiv="refresh"' in page(plan(), running)
    assert 'http-equiv="refresh"' not in page(plan(), figures())


def test_no_arrow_crosses_a_box() -> None:
    made = plan()
    found = boxes(made, {}, ["orders"])
    assert len({box.column for box in found.values() if box.style.startswith("sink")}) == 1
    for box in found.values():
        for each in box.reads:
            assert found[each].column == box.column - 1  # from column to column, with room of its own
    for column in {box.column for box in found.values()}:
        there = sorted((box.row, box.height) for box in found.values() if box.column == column)
        for (row, height), (below, _) in itertools.pairwise(there):
            assert row + height <= below + 1e-9
    archive = found["archive hourly"]  # reads the sources of its topics: no second box for them
    assert "topic orders" not in found
    assert archive.column == found["sink table"].column
    ET.fromstring(drawing(made, {}, ["orders"]))


def test_a_long_word_does_not_widen_the_page() -> None:
    made = figures()
    word = "x" * 500
    made.add_failure("table", f"{word} failed", "given up")
    made.add_bad("table", 1, [{"reason": word, "where": "t/b/0/1", "text": word}])
    text = page(plan(), made)
    assert word in text
    (rule,) = [each for each in re.findall(r"([^{}]+){([^}]*)}", text) if each[1] == "overflow-wrap:anywhere"]
    assert {"td", ".fail", "header", ".tile"} <= set(rule[0].split(","))
