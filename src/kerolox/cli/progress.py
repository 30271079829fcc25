"""Progress of long commands, on stderr."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn

PROGRESS_EVERY_S = 0.5
LINES_EVERY_S = 10.0  # if stderr is not a terminal


def bars(*columns: ProgressColumn, quiet: bool, transient: bool = False) -> Progress:
    """Return progress bars on stderr; none with ``quiet`` or if it is not a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}"), BarColumn(), *columns, TimeRemainingColumn(),
        console=console, disable=quiet or not console.is_terminal, transient=transient,
    )  # fmt: skip


class ProgressLine:
    """Periodic progress text: updated in place on a terminal, otherwise one line each time."""

    def __init__(self, text: Callable[[], str]) -> None:
        from kerolox.clock import SYSTEM_CLOCK

        self._text = text
        self._clock = SYSTEM_CLOCK
        self._in_place = sys.stderr.isatty()
        self._told_s = self._clock.monotonic_s()

    def tell(self) -> None:
        now_s = self._clock.monotonic_s()
        if now_s - self._told_s >= (PROGRESS_EVERY_S if self._in_place else LINES_EVERY_S):
            self._told_s = now_s
            typer.echo(
                f"\r{self._text()} " if self._in_place else self._text(), err=True, nl=not self._in_place
            )

    def end(self) -> None:
        """End the line, so that later output starts at the first column."""
        if self._in_place:
            typer.echo("\r", err=True, nl=False)
