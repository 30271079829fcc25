"""Shared parts of commands that run a server: options from file, environment and flags, logs, clean stop."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from kerolox.cli.output import OutputTable, echo, output, say
from kerolox.errors import OptionError

PARENT_CHECK_S = 0.25
PORT_MAX = 65535

if TYPE_CHECKING:
    import asyncio

    from kerolox.options import Loaded, Options

    T = TypeVar("T", bound=Options)


class LogLevel(Enum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class Listening(Protocol):
    @property
    def address(self) -> str: ...


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
    import asyncio

    told = stop_signals()
    async with server as running:
        echo(f"kerolox {role} ready on {running.address}")
        sys.stdout.flush()
        while not told.is_set() and (parent is None or os.getppid() == parent):
            try:
                async with asyncio.timeout(None if parent is None else PARENT_CHECK_S):
                    await told.wait()
            except TimeoutError:
                pass


def stop_signals() -> asyncio.Event:
    """Return an event that SIGTERM and SIGINT set."""
    import asyncio
    import signal

    told = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        try:
            loop.add_signal_handler(number, told.set)
        except NotImplementedError:  # Windows
            signal.signal(number, lambda *_: loop.call_soon_threadsafe(told.set))
    return told
