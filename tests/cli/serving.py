"""A broker in a thread, for commands: they run an event loop of their own."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

from typer.testing import CliRunner

from kerolox.cli.main import app
from kerolox.testing.broker import RunningBroker, running_broker


class Cluster:
    """A name server and a broker, and commands against them."""

    def __init__(self, running: RunningBroker, loop: asyncio.AbstractEventLoop) -> None:
        self.running = running
        self.address = running.nameserver_address
        self._loop = loop

    def run(self, *args: str, stdin: str | None = None, fails: bool = False) -> tuple[str, str]:
        """What a command printed to stdout and to stderr."""
        result = CliRunner().invoke(app, args, input=stdin, env={"NAMESRV_ADDR": self.address})
        assert (result.exit_code != 0) == fails, result.output
        return result.stdout, result.stderr

    def ok(self, *args: str, stdin: str | None = None) -> str:
        return self.run(*args, stdin=stdin)[0]

    def json(self, *args: str, stdin: str | None = None) -> Any:
        return json.loads(self.ok(*args, "--json", stdin=stdin))

    def error(self, *args: str, stdin: str | None = None) -> str:
        out, errors = self.run(*args, stdin=stdin, fails=True)
        assert out == ""
        (line,) = errors.splitlines()
        assert line.startswith("kerolox: ")
        return line

    def on_loop(self, work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        """Run something where the broker runs."""
        return asyncio.run_coroutine_threadsafe(work(), self._loop).result(10)


@contextmanager
def running_cluster(**options: Any) -> Iterator[Cluster]:
    started = threading.Event()
    found: list[Any] = []

    async def serve() -> None:
        stop = asyncio.Event()
        try:
            async with running_broker(**options) as running:
                found.extend((Cluster(running, asyncio.get_running_loop()), stop))
                started.set()
                await stop.wait()
        finally:
            started.set()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        assert started.wait(20)
        assert found, "the broker did not start"
        yield found[0]
    finally:
        if found:
            found[0]._loop.call_soon_threadsafe(found[1].set)
        thread.join(20)
