"""Serialized changes of the routes; large ones run in slices.

A broker may register or remove a hundred thousand topics. Such a change is a generator: it processes a slice
of topics and yields, so that requests are served in between. No other change runs meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")

SLICE = 500  # topics: about a millisecond

ChangeSteps = Generator[None, None, T]


def at_once(steps: ChangeSteps[T]) -> T:
    """Run all steps of a change without a break, for callers that own the routes exclusively."""
    while True:
        try:
            next(steps)
        except StopIteration as ended:
            result: T = ended.value
            return result


class Changes:
    """The queue of changes."""

    def __init__(self) -> None:
        self.turn = asyncio.Lock()  # fair: first come, first served

    async def run(self, steps: ChangeSteps[T]) -> T:
        async with self.turn:
            while True:
                try:
                    next(steps)
                except StopIteration as ended:
                    result: T = ended.value
                    return result
                await asyncio.sleep(0)
