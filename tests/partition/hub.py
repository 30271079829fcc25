"""What stands between the clients and the pair, in a thread with a loop: a name server and the relay."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, TypeVar

from kerolox.testing.nameserver import running_nameserver

from .relay import Relay

T = TypeVar("T")
CALL_S = 60.0


class Hub:
    """``with`` it, inside the hub's network."""

    def __init__(self, host: str, folder: Path) -> None:
        self.nameserver = ""
        self.relay: Relay
        self._host = host
        self._folder = folder
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="hub", daemon=True)
        self._stack = AsyncExitStack()

    def __enter__(self) -> Hub:
        self._thread.start()
        self.run(self._start())
        return self

    def __exit__(self, *_: object) -> None:
        self.run(self._stack.aclose())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CALL_S)
        self._loop.close()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Do something on the hub's loop, and wait for it."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(CALL_S)

    def begin(self, work: Coroutine[Any, Any, T]) -> Callable[[], T]:
        """Do something on the hub's loop; what is returned waits for it."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        return lambda: future.result(CALL_S)

    def call(self, change: Callable[[], object]) -> None:
        """Change something there."""

        async def changed() -> None:
            change()

        self.run(changed())

    async def _start(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        server = await self._stack.enter_async_context(
            running_nameserver(directory=self._folder, bind_address=self._host)
        )
        self.nameserver = f"{self._host}:{server.port}"
        self.relay = Relay(self._host)
        await self.relay.start()
        self._stack.push_async_callback(self.relay.close)
