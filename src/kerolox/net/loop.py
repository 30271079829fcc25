"""The event loop: uvloop where the platform has it, plain asyncio elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar, cast

T = TypeVar("T")

_run: Callable[[Coroutine[Any, Any, Any]], Any]
try:
    import uvloop
except ImportError:  # Windows, or an interpreter uvloop is not built for
    _run, LOOP_NAME = asyncio.run, "asyncio"
else:
    _run, LOOP_NAME = uvloop.run, "uvloop"


def run(main: Coroutine[Any, Any, T]) -> T:
    """Like ``asyncio.run``, on the fastest loop there is here."""
    return cast(T, _run(main))
