"""Commands are many, and Typer reads the signatures of all of them for every call. Here it does so once."""

from __future__ import annotations

import functools

import typer.main
import typer.testing

typer.testing._get_command = functools.cache(typer.main.get_command)  # type: ignore[attr-defined]
