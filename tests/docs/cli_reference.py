"""The reference of all commands in docs/CLI.md, made of the commands themselves.

``python -m tests.docs.cli_reference`` writes it anew.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer.main

from kerolox.cli.main import app

PAGE = Path(__file__).parents[2] / "docs" / "CLI.md"
PLACE = re.compile(r"(?<=<!-- commands -->\n)(.*?)(?=<!-- end -->)", re.DOTALL)
# Of nearly every command: said once, above.
SHARED = {"--json", "--nameserver", "--help"}


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """All commands there are, with the words that lead to each."""
    if hasattr(command, "commands"):
        if path and command.invoke_without_command:
            yield path, command
        for name, one in command.commands.items():
            yield from commands(one, (*path, name))
    elif not command.hidden:
        yield path, command


def rendered() -> str:
    lines: list[str] = []
    group = ""
    for words, command in commands(typer.main.get_command(app)):
        if words[0] != group:
            group = words[0]
            lines += [f"### {group}", ""]
        lines += [f"**`{usage(words, command)}`** — {plain(command.help)}", ""]
        rows = [row for option in command.params if (row := described(option))]
        if rows:
            lines += ["| | |", "|---|---|", *rows, ""]
        example = plain(command.epilog).removeprefix("Example: ")
        lines += [f"`{example}`", ""]
    return "\n".join(lines)


def usage(words: tuple[str, ...], command: Any) -> str:
    arguments = [option for option in command.params if option.param_type_name == "argument"]
    shown = [
        (f"{name}" if option.required else f"[{name}]") + ("..." if option.nargs == -1 else "")
        for option in arguments
        if (name := (option.metavar or option.name or "").strip("[]{}.").upper())
    ]
    return " ".join(("kerolox", *words, *shown))


def described(option: Any) -> str | None:
    if option.param_type_name == "argument":
        name = f"`{(option.metavar or option.name).strip('[]{}.').upper()}`"
    elif option.hidden or SHARED & set(option.opts):
        return None
    else:
        names = sorted(option.opts, key=len, reverse=True) + list(option.secondary_opts)
        name = ", ".join(f"`{each}`" for each in names)
    default = option.default
    told = str(getattr(default, "value", default))
    is_said = not option.required and not isinstance(default, bool) and told not in ("", "None", "0", "0.0")
    cells = (name, plain(option.help) + (f" Default: `{told}`." if is_said else ""))
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def plain(text: str | None) -> str:
    """On one line, and without the marks that Typer and Rich need."""
    line = " ".join((text or "").split()).replace("\\[", "[")
    return re.sub(r"(?<=\w)\*(?=\W)", r"\\*", line)


def written() -> str:
    """The page with its reference as it must be."""
    return PLACE.sub(lambda _: rendered(), PAGE.read_text())


if __name__ == "__main__":
    PAGE.write_text(written())
