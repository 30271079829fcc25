"""docs/OPERATIONS.md names nothing that is not there: commands, settings, metrics, log lines, links.

Commands are looked for in all pages.
"""

from __future__ import annotations

import ast
import json
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer.main

from kerolox.broker.options import BrokerOptions
from kerolox.cli.main import app
from kerolox.controller.options import ControllerOptions
from kerolox.nameserver.options import NamesrvOptions
from kerolox.options import specs
from tests.docs import cli_reference

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "OPERATIONS.md"
TEXT = PAGE.read_text()
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("src/**/*.md")])
READY = re.compile("kerolox (broker|nameserver|controller|) ?ready")  # what servers print
APACHE_METRICS = ROOT / "tests" / "broker" / "apache_metrics.json"


def commands_named(text: str) -> Iterator[str]:
    """Commands that a reader would type: lines with a prompt, and text in backticks."""
    yield from re.findall(r"^\$ (kerolox [a-z].*)$", text, re.MULTILINE)
    yield from re.findall(r"`(kerolox [a-z][^`]*)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))


@cache
def known_commands() -> dict[tuple[str, ...], Any]:
    return dict(cli_reference.commands(typer.main.get_command(app)))


def check_command(line: str) -> None:
    """Raises unless command and options are there. Arguments may be missing, or the end of its name."""
    words = shlex.split(line, comments=True)[1:]
    named = tuple(words[:3])
    if len(words) < 3 and any(path[: len(named)] == named for path in known_commands()):
        return
    length = next((n for n in (3, 2, 1) if named[:n] in known_commands()), 0)
    assert length, f"{line}: no such command"
    options = {"--help"}
    for option in known_commands()[named[:length]].params:
        options.update(option.opts, option.secondary_opts)
    for word in words[length:]:
        if word.startswith("-"):
            assert word.partition("=")[0] in options, f"{line}: no option {word}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_are_there(page: Path) -> None:
    for line in commands_named(page.read_text()):
        if not READY.match(line):
            check_command(line)


@pytest.mark.parametrize(
    "line",
    ["kerolox store mend x", "kerolox store verify x --all", "kerolox fetch", "kerolox broker --sett a=b"],
)
def test_a_command_that_is_not_there_is_noticed(line: str) -> None:
    with pytest.raises(AssertionError):
        check_command(line)


def test_settings_are_there() -> None:
    keys = {
        spec.key for options in (BrokerOptions, NamesrvOptions, ControllerOptions) for spec in specs(options)
    }
    named = set(re.findall(r"`([a-z]+[A-Z]\w+|tls\.[a-z.]+)(?:=\w*)?`", TEXT))
    section = TEXT[TEXT.index("## Settings that matter") : TEXT.index("## Watch")]
    for row in re.findall(r"^\| (`.*?) \|", section, re.MULTILINE):
        named |= set(re.findall(r"`([\w.]+)`", row))
    assert len(named) > 15
    assert named - keys == set()


def test_metrics_are_there() -> None:
    ours = set(re.findall(r'"(kerolox_[a-z_]+)"', sources()))
    there = ours | set(json.loads(APACHE_METRICS.read_text()))
    named = set(re.findall(r"\b((?:rocketmq|kerolox)_[a-z_]+)\b", TEXT))
    assert len(named) > 10
    assert {name for name in named if name not in there} == set()


def test_log_lines_are_there() -> None:
    logged = {
        node.value.partition(" ")[0]
        for path in sorted((ROOT / "src" / "kerolox").rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    section = TEXT[TEXT.index("## Log lines") : TEXT.index("## Metrics of kerolox")]
    named = {
        name
        for row in re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)
        for name in re.findall(r"`(\w+)`", row)
    }
    named |= set(re.findall(r"^(?:INFO|WARNING|ERROR) [\w.]+ (\w+)", TEXT, re.MULTILINE))
    assert len(named) > 25
    assert named - logged == set()


def test_links_lead_somewhere() -> None:
    def titles(path: Path) -> set[str]:
        found = re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE)
        return {re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in found}

    linked = re.findall(r"\]\(([^)#]*)(?:#([\w-]+))?\)", TEXT)
    assert len(linked) > 20
    for file, title in linked:
        path = (PAGE.parent / file).resolve() if file else PAGE
        assert path.exists(), file
        assert not title or title in titles(path), f"{file}#{title}"


@cache
def sources() -> str:
    return "\n".join(path.read_text() for path in sorted((ROOT / "src" / "kerolox").rglob("*.py")))
