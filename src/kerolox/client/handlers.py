"""A user's handler of messages, called the way it wants: awaited, or in a thread; one message, or many."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from kerolox.client.messages import Received

Handle = Callable[[Any], Any]


class Handler:
    """What is called for the messages of one topic."""

    def __init__(self, function: Handle, batch: int, threads: Callable[[], ThreadPoolExecutor]) -> None:
        self.function = function
        self.batch = batch  # how many messages at once; 0: one, and not in a list
        self.count = batch or 1
        self._threads = threads
        called = function if inspect.isroutine(function) else getattr(function, "__call__", function)  # noqa: B004
        while isinstance(called, functools.partial):
            called = called.func
        self.is_async = inspect.iscoroutinefunction(called)

    async def __call__(self, messages: Sequence[Received]) -> None:
        argument = list(messages) if self.batch else messages[0]
        if self.is_async:
            await self.function(argument)
            return
        loop = asyncio.get_running_loop()
        result = await loop.run_in_executor(self._threads(), self.function, argument)
        if inspect.isawaitable(result):  # a plain function that returned a coroutine
            await result

    def __repr__(self) -> str:
        return getattr(self.function, "__qualname__", repr(self.function))
