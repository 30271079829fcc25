"""What commands print: one interface, a renderer for people and one for programs.

A command makes a document (plain values, for ``--json``) and tables of the same content (for eyes), and
does not know which of them is shown. Results go to stdout, everything else to stderr: errors are a line for
people and, with ``--json``, an object on a line for programs.
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

PART_CHARS = 1 << 20  # of a JSON document, written at once

JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


@dataclass
class OutputTable:
    """Rows for people."""

    columns: Sequence[str]
    rows: Sequence[Sequence[object]] = field(default_factory=list)
    title: str | None = None
    empty: str = "there is nothing to show"  # said in its place when it has no rows


def echo(text: object, *, err: bool = False) -> None:
    """Print text for people. Everything that commands show goes through here, or through :func:`json_text`:
    what peers have written into names, messages and errors must not steer a terminal."""
    typer.echo(visible(str(text), lines=True), err=err)


def json_text(document: Any, indent: int | None = None) -> str:
    """Return a document as JSON, with escapes also for the characters beyond ASCII that steer a terminal."""
    import json

    return _escaped(json.dumps(document, ensure_ascii=False, indent=indent))


def _escaped(text: str) -> str:
    if text.isascii() and "\x7f" not in text:
        return text
    return _STEERING.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


_STEERING = re.compile("[\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]")


class Output(Protocol):
    def note(self, text: str) -> None:
        """A line for people that says what happens; programs do not get it."""

    def table(self, table: OutputTable) -> None:
        """Rows for people on the way to the result; programs do not get them."""

    def show(self, document: Any, *tables: OutputTable) -> None:
        """The result."""


class TableOutput:
    """For people."""

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

        # A pipe has no width: then nothing is folded, so that grep and awk find whole words.
        console = Console(file=sys.stdout, highlight=False, width=None if sys.stdout.isatty() else 10_000)
        for table in tables:
            if not table.rows:
                echo(table.empty)
                continue
            shown = RichTable(
                *table.columns,
                title=table.title and _cell(table.title),
                title_justify="left",
                box=box.SIMPLE_HEAD,
                pad_edge=False,
            )
            for row in table.rows:
                shown.add_row(*(_cell(value) for value in row))
            with console.capture() as captured:
                console.print(shown)
            lines = (line.rstrip() for line in captured.get().splitlines())
            typer.echo("\n".join(line for line in lines if line))  # its cells are escaped


class JsonOutput:
    """For programs: one JSON document."""

    def note(self, text: str) -> None:
        pass

    def table(self, table: OutputTable) -> None:
        pass

    def show(self, document: Any, *tables: OutputTable) -> None:
        import json

        # In parts: bodies of messages, each byte of which may take six, need no copies of the whole text.
        parts: list[str] = []
        size = 0
        for part in json.JSONEncoder(ensure_ascii=False, indent=2).iterencode(document):
            parts.append(part)
            size += len(part)
            if size > PART_CHARS:
                typer.echo(_escaped("".join(parts)), nl=False)
                parts, size = [], 0
        typer.echo(_escaped("".join(parts)))


def output(json: bool) -> Output:
    return JsonOutput() if json else TableOutput()


def say(text: object) -> None:
    """Print one line for people on stderr. Only results go to stdout."""
    echo(f"kerolox: {shortened(' '.join(str(text).split()))}", err=True)


def say_document(document: Any) -> None:
    """An object on a line of stderr, for programs whose stdout is something else."""
    typer.echo(json_text(document), err=True)


def say_error(error: Exception, json: bool) -> None:
    """What went wrong, on stderr: for people a line, for programs an object."""
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
    """What goes wrong on purpose is one line on stderr and exit code 1, not a stack trace."""

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
