"""Steps: a sequence of requests to servers, each chosen by the responses to the earlier ones.

Steps are a generator that yields requests and receives the responses; errors are thrown into it. It returns
the result or raises the reason of the failure. The driver sends the requests: on an event loop
(:func:`awaited`) or over a blocking socket (:func:`in_turn`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from typing import NamedTuple, TypeVar

from kerolox.errors import KeroloxError
from kerolox.protocol.command import Command
from kerolox.protocol.header import Header


class Ask(NamedTuple):
    """Request to a server."""

    code: int
    header: Header | None = None
    body: bytes = b""
    address: str = ""  # empty: the address of the broker that the steps concern


T = TypeVar("T")
Steps = Generator[Ask, Command, T]


async def awaited(steps: Steps[T], ask: Callable[[Ask], Awaitable[Command]]) -> T:
    """Run the steps with an asynchronous ``ask``, and return their result."""
    try:
        question = next(steps)
        while True:
            try:
                answer = await ask(question)
            except KeroloxError as error:
                question = steps.throw(error)
            else:
                question = steps.send(answer)
    except StopIteration as end:
        found: T = end.value
        return found


def in_turn(steps: Steps[T], ask: Callable[[Ask], Command]) -> T:
    """Run the steps with a blocking ``ask``, and return their result."""
    try:
        question = next(steps)
        while True:
            try:
                answer = ask(question)
            except KeroloxError as error:
                question = steps.throw(error)
            else:
                question = steps.send(answer)
    except StopIteration as end:
        found: T = end.value
        return found
