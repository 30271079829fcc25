"""Changes of the routes, one after the other, large ones in slices.

A broker may bring a hundred thousand topics, and take them away again. Such a change is a generator: it works
on a slice of topics and yields, and others are served before it goes on. Nobody else changes anything
meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")

SLICE = 500  # topics: about a millisecond

ChangeSteps = Generator[None, None, T]


def at_once(steps: ChangeSteps[T]) -> T:
    """Do all steps of a change at once: for callers that have the routes to themselves."""
    while True:
        try:
            next(steps)
        except StopIteration as ended:
            result: T = ended.value
            return result


class Changes:
    """The queue of changes: each waits for its turn here."""

    def __init__(self) -> None:
        self.turn = asyncio.Lock()  # first come, first served

    async def run(self, steps: ChangeSteps[T]) -> T:
        async with self.turn:
            while True:
                try:
                    next(steps)
                except StopIteration as ended:
                    result: T = ended.value
                    return result
                await asyncio.sleep(0)
