"""A loop in a thread, for whatever stands beside those who are judged."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from typing import Any, Self, TypeVar

T = TypeVar("T")
CALL_S = 60.0


class LoopThread:
    """``with`` it: inside a network, it is there too. What is pushed on ``stack`` ends with it."""

    def __init__(self) -> None:
        self.stack = AsyncExitStack()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="beside", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self.run(self.opened())
        return self

    def __exit__(self, *_: object) -> None:
        self.run(self.stack.aclose())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CALL_S)
        self._loop.close()

    async def opened(self) -> None:
        """What is there from the beginning."""

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Do something on the loop, and wait for it."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(CALL_S)

    def begin(self, work: Coroutine[Any, Any, T]) -> Callable[[], T]:
        """Do something on the loop; what is returned waits for it."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        return lambda: future.result(CALL_S)

    def call(self, change: Callable[[], object]) -> None:
        """Change something there."""

        async def changed() -> None:
            change()

        self.run(changed())
