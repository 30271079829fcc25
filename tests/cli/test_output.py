"""Peers' texts never steer the terminal of an operator, whatever command shows them."""

from __future__ import annotations

import ast
import json
import tracemalloc
from pathlib import Path

import pytest

import kerolox.cli
from kerolox.cli.output import JsonOutput, OutputTable, TableOutput, echo, json_text, say, say_error
from kerolox.errors import KeroloxError

HOSTILE = "\x1b[2J\x1b]0;owned\x07\x9b31m‮evil\x7f"
STEERS = set("\x1b\x07\x9b‮\x7f")
COMMANDS = Path(kerolox.cli.__file__).parent


def test_texts_of_peers_are_escaped_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    out = TableOutput()
    out.note(f"note {HOSTILE}")
    out.show(f"document {HOSTILE}")
    out.show(None, OutputTable(("tag",), [(HOSTILE,)]), OutputTable(("tag",), empty=f"empty {HOSTILE}"))
    out.show(None, OutputTable(("tag",), [("x" * 80,)], title=f"title {HOSTILE}"))
    echo(f"line {HOSTILE}\nnext")
    say(f"error {HOSTILE}")
    say_error(KeroloxError(f"remark {HOSTILE}" + "x" * 900_000), json=False)
    found = capsys.readouterr()
    assert not STEERS & set(found.out + found.err)
    assert found.out.count("\\x1b[2J\\x1b]0;owned\\x07\\x9b31m\\u202eevil\\x7f") == 6
    assert len(found.err) < 5000


def test_json_says_the_same_and_steers_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    document = {HOSTILE: [HOSTILE, "größe", "half \ud83d"]}
    JsonOutput().show(document)
    say_error(KeroloxError(HOSTILE), json=True)
    found = capsys.readouterr()
    assert not STEERS & set(found.out + found.err)
    assert "größe" in found.out
    assert json.loads(found.out) == document
    assert json.loads(json_text(HOSTILE)) == HOSTILE


def test_long_documents_are_written_in_parts(capsys: pytest.CaptureFixture[str]) -> None:
    document = {"found": [{"body": HOSTILE + "x" * 300_000, "number": number} for number in range(20)]}
    tracemalloc.start()
    JsonOutput().show(document)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 5_000_000 + 2 * 6_000_000  # what was captured, and not its text as a whole as well
    found = capsys.readouterr().out
    assert not STEERS & set(found)
    assert json.loads(found) == document
    assert found == json_text(document, indent=2) + "\n"


@pytest.mark.parametrize("path", sorted(COMMANDS.glob("*.py")), ids=lambda path: path.stem)
def test_commands_print_through_one_module(path: Path) -> None:
    if path.stem in ("output", "progress"):
        return
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            assert called not in ("typer.echo", "typer.secho", "click.echo", "print"), (
                f"line {node.lineno}: {called} shows texts of peers as they are: use cli/output.py"
            )
