"""The event loop: uvloop where the platform has it, plain asyncio elsewhere."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar, cast

T = TypeVar("T")

_run: Callable[[Coroutine[Any, Any, Any]], Any]
try:
    import uvloop
except ImportError:  # Windows, or an interpreter without a build of uvloop
    _run, LOOP_NAME = asyncio.run, "asyncio"
else:
    _run, LOOP_NAME = uvloop.run, "uvloop"


# A server makes a few objects per request that live for one read pass and are freed by reference count; a
# collection every 700 allocations would find nothing.
GC_THRESHOLDS = (50_000, 20, 50)


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run like ``asyncio.run``, on the fastest loop available, in a process tuned for serving."""
    gc.collect()
    gc.freeze()  # objects made by the imports stay: exclude them from collections
    gc.set_threshold(*GC_THRESHOLDS)
    return cast(T, _run(main))
