"""Steps: questions to servers, one after the other, each chosen by the answers to those before.

Steps are a generator that yields questions and is sent the answers; what went wrong on the way is thrown into
it. It returns what was to be found out, or raises why that cannot be. Who follows the steps does the asking:
over an event loop (:func:`awaited`) or over a blocking socket (:func:`in_turn`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from typing import NamedTuple, TypeVar

from kerolox.errors import KeroloxError
from kerolox.protocol.command import Command
from kerolox.protocol.header import Header


class Ask(NamedTuple):
    """A question to a server."""

    code: int
    header: Header | None = None
    body: bytes = b""
    address: str = ""  # empty: the broker's that the steps are about


T = TypeVar("T")
Steps = Generator[Ask, Command, T]


async def awaited(steps: Steps[T], ask: Callable[[Ask], Awaitable[Command]]) -> T:
    """What the steps find out, when every question is asked like this."""
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
    """What the steps find out, when who asks waits for every answer."""
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
