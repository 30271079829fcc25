"""docs/CHANGING.md: the test it shows passes, and the commands it names exist."""

from __future__ import annotations

import importlib.util
import re
import textwrap
from pathlib import Path

from tests.broker import test_options_at_run_time
from tests.docs.test_code import ROOT, sections
from tests.simulate.schedule import run_schedule

PAGE = ROOT / "docs" / "CHANGING.md"


async def test_the_test_it_shows() -> None:
    _, piece = (piece for section in sections(PAGE, "python") for piece in section.pieces)
    names = dict(vars(test_options_at_run_time))
    before = set(names)
    exec(compile(piece.padded, piece.file, "exec"), names)
    (name,) = re.findall(r"def (test_\w+)", piece.code)
    assert name in before, "the test that is shown is one of that file"
    await names[name]()


def test_the_row_it_shows_is_one_of_the_source() -> None:
    row, _ = (piece for section in sections(PAGE, "python") for piece in section.pieces)
    source = ROOT / "src" / "kerolox" / "broker" / "admin" / "topic_admin.py"
    assert textwrap.indent(textwrap.dedent(row.code), "    ").rstrip() in source.read_text()


def test_its_commands() -> None:
    text = PAGE.read_text()
    modules = re.findall(r"python -m (tests[\w.]+)", text)
    assert len(modules) >= 5
    assert [module for module in modules if importlib.util.find_spec(module) is None] == []
    for path in re.findall(r"\b((?:src|tests)/[\w/.]+)", text):
        assert (ROOT / path.rstrip(".")).exists(), path


def test_a_schedule_has_the_lines_it_explains() -> None:
    story = "\n".join(run_schedule(7, trace=True).story)
    for words in ("Shape(", " FAULT ", "master_elected", "in_sync_set", "broker_leads"):
        assert words in story


def test_the_page_is_found() -> None:
    assert "docs/CHANGING.md" in Path(ROOT / "CONTRIBUTING.md").read_text()
