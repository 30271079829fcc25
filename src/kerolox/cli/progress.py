"""Progress of long commands, on stderr."""

from __future__ import annotations

import sys
from collections.abc import Callable

import typer

PROGRESS_EVERY_S = 0.5
LINES_EVERY_S = 10.0  # if stderr is not a terminal


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
