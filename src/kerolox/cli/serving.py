"""Shared parts of commands that run a server: options from file, environment and flags, logs, clean stop."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol, TypeVar

import typer

from kerolox.cli.output import OutputTable, echo, output, say
from kerolox.errors import OptionError

PORT_MAX = 65535

if TYPE_CHECKING:
    from kerolox.options import Loaded, Options

    T = TypeVar("T", bound=Options)


ListenOption = Annotated[
    str | None,
    typer.Option("--listen", help="Listen address. Port 0 picks a free port.", metavar="HOST:PORT"),
]
PrintConfigFlag = Annotated[
    bool, typer.Option("--print-config", help="Print every option with its value and source, then exit.")
]
ParentOption = Annotated[int | None, typer.Option(hidden=True, help="Stop when this process ends.")]


class LogLevel(Enum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class Listening(Protocol):
    @property
    def address(self) -> str: ...


LogLevelOption = Annotated[LogLevel, typer.Option(help="Lowest log level, on stderr.")]


def load_options(cls: type[T], file: Path | None, flags: Mapping[str, Any]) -> Loaded[T]:
    from kerolox.net.tls_options import with_tls_file
    from kerolox.options import load

    try:
        text = None if file is None else file.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        expected = (
            f"a readable properties file ({error.strerror or error}). Correct the path or the permissions, "
            "or omit the option to use the defaults"
        )
        raise OptionError("--config-file", str(file), expected) from error
    found = load(cls, file_text=text, file_name=str(file or ""), environment=os.environ, flags=flags)
    return with_tls_file(found)


def print_options(loaded: Loaded[Any], json: bool) -> None:
    """Print every option with its value and the source of the value, and warn about ineffective keys."""
    output(json).show(options_document(loaded), options_table(loaded))
    for key, source, near in loaded.slips():
        say(f"{key} in {source} is not an option and has no effect.{near}")
    for key, source in loaded.without_effect():
        say(f"{key} in {source} is a setting of RocketMQ that has no effect in kerolox.")


def options_document(loaded: Loaded[Any]) -> dict[str, dict[str, str]]:
    return {key: {"value": value, "source": source} for key, value, source in loaded.rows()}


def options_table(loaded: Loaded[Any], title: str | None = None) -> OutputTable:
    return OutputTable(("option", "value", "source"), loaded.rows(), title=title)


def log_to_stderr(level: LogLevel) -> None:
    from kerolox.log_lines import log_to

    log_to(sys.stderr, level.name)


def listen_address(text: str, flag: str = "--listen") -> tuple[str, int]:
    """Parse ``0.0.0.0:9876``, ``[::]:9876``, or ``:9876`` for all addresses. Port 0 means a free port.

    Raises OptionError with ``flag`` as the name of the option.
    """
    host, separator, port = text.rpartition(":")
    if not separator or not port.isdigit():
        raise OptionError(flag, text, "host:port, as in 0.0.0.0:9876 or [::]:9876")
    if int(port) > PORT_MAX:
        raise OptionError(flag, text, f"a port from 0 to {PORT_MAX}; {port} is out of range")
    return host.removeprefix("[").removesuffix("]") or "0.0.0.0", int(port)


async def serve_until_told(
    role: str, server: AbstractAsyncContextManager[Listening], *, parent: int | None = None
) -> None:
    """Run a server, print one line when it is ready, and stop it cleanly on SIGTERM or SIGINT.

    With a ``parent``, also stop the server when that process has ended: no other process would stop it.
    """
    from kerolox.supervise.stopping import stop_signals, wait_for_stop

    stop = stop_signals()
    async with server as running:
        say_ready(role, running.address)
        await wait_for_stop(stop, parent)


def say_ready(role: str, address: str) -> None:
    """Print the line that a parent process waits for (kerolox/supervise/process.py)."""
    echo(f"kerolox {role} ready on {address}")
    sys.stdout.flush()
