"""Output of commands: one interface with a text renderer and a JSON renderer.

A command returns rows (:func:`row`), whose fields are both columns of a table (for people) and keys of JSON
objects (for programs). ``queue_id`` is the column "queue id" and the key "queueId", unless :func:`column`
says otherwise. Results go to stdout, everything else to stderr. An error is one line of text or, with
``--json``, one JSON object on a line.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import Field, dataclass, field, fields
from typing import Annotated, Any, ParamSpec, Protocol, TypeVar, dataclass_transform

import typer

from kerolox.errors import KeroloxError
from kerolox.shown_text import shortened, visible

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

PART_CHARS = 1 << 20  # of a JSON document, written at once
NOTHING = "there is nothing to show"

JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


@dataclass
class OutputTable:
    """Table of a result, for people."""

    columns: Sequence[str]
    rows: Sequence[Sequence[object]] = field(default_factory=list)
    title: str | None = None
    empty: str = NOTHING  # printed instead of a table without rows


def column(title: str | None, shown: Callable[[Any], object] | None = None, *, in_json: bool = True) -> Any:
    """Declare a field of a row: title of its column, and a function that makes its cells.

    Without a title the field is only in JSON; without ``in_json`` it is only in the table.
    """
    return field(metadata={"title": title, "shown": shown, "in_json": in_json})


@dataclass_transform(field_specifiers=(column,))
def row(cls: type[T]) -> type[T]:
    """Decorate a class of rows: a dataclass."""
    return dataclass(cls)


def table(
    kind: type[Any],
    rows: Sequence[object],
    *,
    title: str | None = None,
    empty: str = NOTHING,
    unknown: str | None = None,
) -> OutputTable:
    """Return the table of rows of one class. ``unknown`` is shown for values that are None."""
    columns = [one for one in fields(kind) if one.metadata.get("title", "") is not None]
    titles = [one.metadata.get("title") or one.name.replace("_", " ") for one in columns]
    cells = [tuple(_shown(one, getattr(each, one.name), unknown) for one in columns) for each in rows]
    return OutputTable(titles, cells, title, empty)


def _shown(one: Field[Any], value: object, unknown: str | None) -> object:
    shown = one.metadata.get("shown")
    value = value if shown is None else shown(value)
    return unknown if value is None else value


def plain(value: Any) -> Any:
    """Return a row or a struct as plain values for JSON."""
    if hasattr(value, "__struct_fields__"):
        import msgspec

        return msgspec.to_builtins(value)
    return {
        _camel(one.name): getattr(value, one.name)
        for one in fields(value)
        if one.metadata.get("in_json", True)
    }


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(map(str.capitalize, rest))


def echo(text: object, *, err: bool = False) -> None:
    """Print text for people, with terminal control characters escaped.

    Commands print everything by this function or by :func:`json_text`: peers choose names, message bodies and
    error texts, which must not control the user's terminal.
    """
    typer.echo(visible(str(text), lines=True), err=err)


def json_text(document: Any, indent: int | None = None) -> str:
    """Return a document as JSON; escape also the non-ASCII characters that control a terminal."""
    import json

    return _escaped(json.dumps(document, ensure_ascii=False, indent=indent, default=plain))


def _escaped(text: str) -> str:
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
        """Print the result: the tables, or the document as JSON."""

    def report(self, sentence: str, document: Any) -> None:
        """Print a result that is one sentence, or the document as JSON."""


class TableOutput:
    """Text renderer."""

    def note(self, text: str) -> None:
        echo(text)

    def table(self, table: OutputTable) -> None:
        self.show(None, table)

    def report(self, sentence: str, document: Any) -> None:
        echo(sentence)

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
            typer.echo("\n".join(line for line in lines if line))  # the cells are escaped already


class JsonOutput:
    """JSON renderer: prints one document."""

    def note(self, text: str) -> None:
        pass

    def table(self, table: OutputTable) -> None:
        pass

    def report(self, sentence: str, document: Any) -> None:
        self.show(document)

    def show(self, document: Any, *tables: OutputTable) -> None:
        import json

        # In parts: bodies of messages, each byte of which may take six, need no copies of the whole text.
        parts: list[str] = []
        size = 0
        for part in json.JSONEncoder(ensure_ascii=False, indent=2, default=plain).iterencode(document):
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


def command(app: typer.Typer, name: str, example: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate a command of ``app`` whose help ends with an example."""

    def register(function: Callable[P, R]) -> Callable[P, R]:
        return app.command(name, epilog=f"Example: {example}")(one_line_errors(function))

    return register


def _cell(value: object) -> str:
    from rich.markup import escape

    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return escape(visible(str(value), lines=True))
