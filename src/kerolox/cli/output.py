"""Output of commands: one interface with a text renderer and a JSON renderer.

A command builds a document (plain values, for ``--json``) and tables of the same content (for people); the
renderer prints one of them. Results go to stdout, everything else to stderr. An error is one line of text or,
with ``--json``, one JSON object on a line.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ParamSpec, Protocol, TypeVar

import typer

from kerolox.errors import KeroloxError
from kerolox.shown_text import shortened, visible

P = ParamSpec("P")
R = TypeVar("R")

JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@dataclass
class OutputTable:
    """Table of a result, for people."""

    columns: Sequence[str]
    rows: Sequence[Sequence[object]] = field(default_factory=list)
    title: str | None = None
    empty: str = "there is nothing to show"  # printed instead of a table without rows


def echo(text: object, *, err: bool = False) -> None:
    """Print text for people, with terminal control characters escaped.

    Commands print everything by this function or by :func:`json_text`: peers choose names, message bodies and
    error texts, which must not control the user's terminal.
    """
    typer.echo(visible(str(text), lines=True), err=err)


def json_text(document: Any, indent: int | None = None) -> str:
    """Return a document as JSON; escape also the non-ASCII characters that control a terminal."""
    import json

    text = json.dumps(document, ensure_ascii=False, indent=indent)
    if text.isascii() and "\x7f" not in text:
        return text
    return _STEERING.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


_STEERING = re.compile("[\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]")


class Output(Protocol):
    def note(self, text: str) -> None:
        """Print a line about the progress of the command. Omitted from JSON output."""

    def table(self, table: OutputTable) -> None:
        """Print an intermediate table. Omitted from JSON output."""

    def show(self, document: Any, *tables: OutputTable) -> None:
        """Print the result."""


class TableOutput:
    """Text renderer."""

    def note(self, text: str) -> None:
        echo(text)

    def table(self, table: OutputTable) -> None:
        self.show(None, table)

    def show(self, document: Any, *tables: OutputTable) -> None:
        if not tables:
            echo(document)
            return
        from rich import box
        from rich.console import Console
        from rich.table import Table as RichTable

        # A pipe has no width. Lines are then not wrapped, so that grep and awk match whole words.
        console = Console(file=sys.stdout, highlight=False, width=None if sys.stdout.isatty() else 10_000)
        for table in tables:
            if not table.rows:
                echo(table.empty)
                continue
            shown = RichTable(
                *table.columns, title=table.title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False
            )
            for row in table.rows:
                shown.add_row(*(_cell(value) for value in row))
            with console.capture() as captured:
                console.print(shown)
            lines = (line.rstrip() for line in captured.get().splitlines())
            typer.echo("\n".join(line for line in lines if line))  # the cells are escaped already


class JsonOutput:
    """JSON renderer: prints one document."""

    def note(self, text: str) -> None:
        pass

    def table(self, table: OutputTable) -> None:
        pass

    def show(self, document: Any, *tables: OutputTable) -> None:
        typer.echo(json_text(document, indent=2))


def output(json: bool) -> Output:
    return JsonOutput() if json else TableOutput()


def say(text: object) -> None:
    """Print one line for people on stderr. Only results go to stdout."""
    echo(f"kerolox: {shortened(' '.join(str(text).split()))}", err=True)


def say_document(document: Any) -> None:
    """Print a JSON object on one line of stderr, for commands whose stdout carries other data."""
    typer.echo(json_text(document), err=True)


def say_error(error: Exception, json: bool) -> None:
    """Print an error on stderr: one line of text, or with ``json`` one object."""
    if not json:
        say(error)
        return
    say_document(
        {
            "error": " ".join(str(error).split()),
            "kind": type(error).__name__,
            "retriable": bool(getattr(error, "retriable", False)),
        }
    )


def one_line_errors(command: Callable[P, R]) -> Callable[P, R]:
    """Decorate a command: expected errors become one line on stderr and exit code 1, without a traceback."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except (KeroloxError, OSError) as error:
            say_error(error, bool(kwargs.get("json")))
            raise typer.Exit(1) from error

    return run


def _cell(value: object) -> str:
    from rich.markup import escape

    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return escape(visible(str(value), lines=True))
