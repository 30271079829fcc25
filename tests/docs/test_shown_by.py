"""Pages that name the tests of their claims name tests that exist."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
PAGES = [
    page for page in sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]) if NAMED.search(page.read_text())
]


@cache
def names_in(path: Path) -> set[str]:
    nodes = ast.walk(ast.parse(path.read_text())) if path.exists() else []
    return {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_test_that_is_named_exists(page: Path) -> None:
    named = NAMED.findall(page.read_text())
    missing = [f"{path}::{name}" for path, name in named if name not in names_in(ROOT / path)]
    assert missing == []
    assert all(name.startswith("test_") for _, name in named)


def test_each_failure_of_a_replica_is_shown_by_a_test() -> None:
    text = (ROOT / "docs/RELIABILITY.md").read_text()
    table = text.partition("### What each failure takes")[2].partition("\n## ")[0]
    rows = [line for line in table.splitlines() if line.startswith("| ") and not line.startswith("| failure")]
    assert len(rows) > 15
    assert [row for row in rows if not NAMED.search(row)] == []


def test_each_known_hole_is_shown_to_be_closed_by_a_test() -> None:
    text = (ROOT / "SECURITY.md").read_text()
    table = text.partition("## Known holes of RocketMQ")[2].partition("\n## ")[0]
    rows = [line for line in table.splitlines() if line.startswith("| ") and not line.startswith("| hole")]
    assert len(rows) > 20
    assert [row for row in rows if not NAMED.search(row)] == []
