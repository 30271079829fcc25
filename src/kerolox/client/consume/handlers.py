"""Handlers of users: awaited or run in a thread, with single messages or lists."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from kerolox.client.message_types import shown
from kerolox.client.messages import Received
from kerolox.client.user_code import in_thread
from kerolox.errors import OptionError

# Handlers return nothing: returning acknowledges the message, raising rejects it.
Handle = Callable[[Received], Awaitable[None] | None]
BatchHandle = Callable[[list[Received]], Awaitable[None] | None]

One = TypeVar("One", bound=Handle)
Many = TypeVar("Many", bound=BatchHandle)


def check_handler(function: object, batch: int) -> None:
    """Raise OptionError for a function that cannot be called with messages."""
    given = "a list of messages" if batch else "a message"
    if not callable(function):
        raise OptionError("handler", shown(function), f"a function that takes {given}")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return  # some C functions have no signature
    try:
        signature.bind(None)
    except TypeError as error:
        name = getattr(function, "__qualname__", repr(function))
        raise OptionError(
            "handler", f"{name}{signature}", f"a function that takes {given}: {error}"
        ) from None


class Handler:
    """Handler of the messages of one topic."""

    def __init__(
        self, function: Callable[[Any], Any], batch: int, threads: Callable[[], ThreadPoolExecutor]
    ) -> None:
        if isinstance(batch, bool) or not isinstance(batch, int) or batch < 0:
            raise OptionError("batch", batch, "0 for single messages, or the most of a list")
        check_handler(function, batch)
        self.function = function
        self.batch = batch  # maximum number of messages per call; 0: single messages, not in a list
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
        result = await in_thread(self._threads(), self.function, argument)
        if inspect.isawaitable(result):  # a plain function that returned a coroutine
            await result

    def __repr__(self) -> str:
        return getattr(self.function, "__qualname__", repr(self.function))
