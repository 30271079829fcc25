"""End of a server process: by a signal, or because its parent process has ended."""

from __future__ import annotations

import asyncio
import os
import signal

PARENT_CHECK_S = 0.25


def stop_signals() -> asyncio.Event:
    """Return an event that SIGTERM and SIGINT set."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        try:
            loop.add_signal_handler(number, stop.set)
        except NotImplementedError:  # Windows
            signal.signal(number, lambda *_: loop.call_soon_threadsafe(stop.set))
    return stop


async def set_within(event: asyncio.Event, time_s: float | None) -> bool:
    """Wait for an event. Return False if it was not set within the time."""
    try:
        async with asyncio.timeout(time_s):
            await event.wait()
    except TimeoutError:
        return False
    return True


async def wait_for_stop(stop: asyncio.Event, parent: int | None) -> None:
    """Wait until ``stop`` is set or, with a ``parent``, that process has ended."""
    while not await set_within(stop, None if parent is None else PARENT_CHECK_S):
        if os.getppid() != parent:
            return
