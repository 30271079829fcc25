"""Options and tables that the settings commands of brokers and controllers share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

import typer

from kerolox.cli.output import OutputTable
from kerolox.errors import OptionError, nearest

KeysArgument = Annotated[
    list[str] | None,
    typer.Argument(help="Show settings whose key contains this text. Default: all.", metavar="[KEYS]..."),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", help="Change a setting, by RocketMQ's key. Repeatable.", metavar="KEY=VALUE"),
]


def changes_of(texts: Sequence[str] | None) -> dict[str, str]:
    """Parse ``key=value`` texts; the last value of a key wins. Raises OptionError."""
    found: dict[str, str] = {}
    for text in texts or ():
        key, separator, value = text.partition("=")
        if not separator or not key.strip():
            raise OptionError("--set", text, "key=value")
        found[key.strip()] = value
    return found


def matching(
    server: str, settings: Mapping[str, str], keys: Sequence[str] | None, changed: Mapping[str, str]
) -> dict[str, str]:
    """Return the changed settings and those whose key contains one of ``keys``; all settings without either.

    Raises NotFound when an entry of ``keys`` matches no setting.
    """
    from kerolox.client.admin.admin import NotFound

    if not keys and not changed:
        return dict(sorted(settings.items()))
    for key in keys or ():
        if not any(key.lower() in known.lower() for known in settings):
            raise NotFound(f"{server} has no setting {key!r}.{nearest(key, settings)}")
    return {
        known: value
        for known, value in sorted(settings.items())
        if known in changed or any(key.lower() in known.lower() for key in keys or ())
    }


def settings_tables(found: Mapping[str, Mapping[str, str]], columns: Sequence[str]) -> list[OutputTable]:
    """Make a table for each server."""
    return [OutputTable(columns, sorted(table.items()), title=name) for name, table in found.items()]
