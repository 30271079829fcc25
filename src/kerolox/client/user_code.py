"""Calls of users' functions: in threads, each in a context of its own, and their unusual ends."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any, TypeVar

T = TypeVar("T")


class HandlerExit(Exception):
    """A user's function ended by an exception that is meant to end more than it: SystemExit, for instance."""

    def __init__(self, cause: BaseException) -> None:
        super().__init__(repr(cause))
        self.__cause__ = cause


def contained(function: Callable[..., T], *arguments: Any) -> T:
    """Call a user's function in a task of ours, which goes on whatever it raises.

    Raises HandlerExit for an exception that would end the task, and the loop with it.
    """
    try:
        return function(*arguments)
    except Exception:
        raise
    except BaseException as error:
        raise HandlerExit(error) from error


async def in_thread(threads: Executor | None, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function in a thread, in a copy of the current context, which ends with the call."""
    context = contextvars.copy_context()
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(threads, context.run, _called, function, *arguments)


def _called(function: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except StopIteration as error:
        # A future of Python 3.11 does not take it: its waiter would wait for ever.
        raise RuntimeError("the function raised StopIteration") from error
