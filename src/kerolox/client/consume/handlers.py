"""A user's handler of messages, called the way it wants: awaited, or in a thread; one message, or many."""

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

# They return nothing: to return means that the message is taken, to raise that it is not.
Handle = Callable[[Received], Awaitable[None] | None]
BatchHandle = Callable[[list[Received]], Awaitable[None] | None]

One = TypeVar("One", bound=Handle)
Many = TypeVar("Many", bound=BatchHandle)


def check_handler(function: object, batch: int) -> None:
    """Raises OptionError for what could not be called with messages: each of them would fail."""
    given = "a list of messages" if batch else "a message"
    if not callable(function):
        raise OptionError("handler", shown(function), f"a function that takes {given}")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return  # of some functions written in C nothing is known
    try:
        signature.bind(None)
    except TypeError as error:
        name = getattr(function, "__qualname__", repr(function))
        raise OptionError(
            "handler", f"{name}{signature}", f"a function that takes {given}: {error}"
        ) from None


class Handler:
    """What is called for the messages of one topic."""

    def __init__(
        self, function: Callable[[Any], Any], batch: int, threads: Callable[[], ThreadPoolExecutor]
    ) -> None:
        if isinstance(batch, bool) or not isinstance(batch, int) or batch < 0:
            raise OptionError("batch", batch, "0 for single messages, or the most of a list")
        check_handler(function, batch)
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
        result = await in_thread(self._threads(), self.function, argument)
        if inspect.isawaitable(result):  # a plain function that returned a coroutine
            await result

    def __repr__(self) -> str:
        return getattr(self.function, "__qualname__", repr(self.function))
