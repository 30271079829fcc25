"""Peers' texts never steer the terminal of an operator, whatever command shows them."""

from __future__ import annotations

import ast
import json
import tracemalloc
from pathlib import Path

import pytest

import kerolox.cli
from kerolox.cli.output import (
    JsonOutput,
    OutputTable,
    TableOutput,
    column,
    echo,
    json_text,
    output,
    row,
    say,
    say_error,
    table,
)
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


# Rooms that work for commands and print nothing themselves.
ROOMS = [COMMANDS.parent / room for room in ("supervise", "demo", "load")]
PROGRAMS = sorted(path for room in (COMMANDS, *ROOMS) for path in room.glob("*.py"))


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_commands_print_through_one_module(path: Path) -> None:
    if path.stem in ("output", "progress"):
        return
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            assert called not in ("typer.echo", "typer.secho", "click.echo", "print"), (
                f"line {node.lineno}: {called} shows texts of peers as they are: use cli/output.py"
            )


@row
class Sample:
    """Row of a result."""

    name: str
    queue_id: int = column("queue")
    stored: int | None = column("stored at", lambda ms: None if ms is None else f"{ms} ms")
    hidden: list[str] = column(None)
    shown: str = column("shown", in_json=False)


def test_rows_are_columns_for_people_and_keys_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [Sample("a", 1, 5, ["x"], "yes"), Sample("b", 2, None, [], "no")]
    found = table(Sample, rows, unknown="-")
    assert found.columns == ["name", "queue", "stored at", "shown"]
    assert found.rows == [("a", 1, "5 ms", "yes"), ("b", 2, "-", "no")]
    output(True).show({"rows": rows}, found)
    assert json.loads(capsys.readouterr().out)["rows"] == [
        {"name": "a", "queueId": 1, "stored": 5, "hidden": ["x"]},
        {"name": "b", "queueId": 2, "stored": None, "hidden": []},
    ]


def test_a_result_of_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    output(False).report("orders was deleted", {"topic": "orders"})
    output(True).report("orders was deleted", {"topic": "orders"})
    sentence, _, document = capsys.readouterr().out.partition("\n")
    assert (sentence, json.loads(document)) == ("orders was deleted", {"topic": "orders"})
