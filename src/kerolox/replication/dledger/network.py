"""How members reach each other: an address is behind each id, and somebody else opens connections."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

OnBytes = Callable[[bytes | Exception], None]


class Line(Protocol):
    """An open connection to one member: many questions at once, answers in any order."""

    @property
    def is_open(self) -> bool: ...

    def ask(self, code: int, body: bytes, on_answer: OnBytes, timeout_s: float) -> None:
        """Call back once, with the body of the answer or why there is none. Raises KeroloxError."""


class Network(Protocol):
    async def line(self, peer: str) -> Line:
        """Raises KeroloxError when there is none to be had now."""

    async def call(self, peer: str, code: int, body: bytes, timeout_s: float) -> bytes:
        """The body of the answer. Raises KeroloxError."""
