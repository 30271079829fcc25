"""docs/PERFORMANCE.md, its picture and the README quote only figures of docs/results."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from bench import report

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("path", report.FILES, ids=lambda path: path.name)
def test_pages_are_made_of_the_results(path: Path) -> None:
    assert path.read_text() == report.FILES[path](), "python -m bench.report writes it anew"


def test_the_first_page_is_short() -> None:
    first_screen = report.page().partition("## Where Apache is faster")[0]
    assert len(first_screen.splitlines()) < 40


def test_figures_of_the_readme_are_those_of_the_results() -> None:
    """Each row of its table has the figures of both, and their ratio, of one row of the results."""
    section = (ROOT / "README.md").read_text().partition("## Beside Apache RocketMQ")[2].partition("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| ")][1:]
    assert len(rows) == 5
    measured = [set(row) for result in report.results() for table in result.tables for row in table.rows]
    for what, ours, theirs, times in rows:
        figures = {re.sub(r" \w+$", "", figure) for figure in (ours, theirs, times)}
        assert any(figures <= row for row in measured), what
