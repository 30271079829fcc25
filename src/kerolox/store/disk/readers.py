"""Threads that read from the disk, with a limit for requests and a guard against cuts of the log.

All reads of the broker that may wait for the disk go through here: a read of data that a cut removes
meanwhile would return data that the log does not have any more, or half of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from kerolox.errors import Overloaded
from kerolox.store.errors import StoreError

THREADS = 4
READS_MAX = 1000  # reads that may wait for the disk; further ones of requests are refused

T = TypeVar("T")


class Readers:
    """Reader threads of one store."""

    def __init__(self) -> None:
        self.waiting = 0  # number of reads that wait, or are under way
        self._cuts = 0
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="kerolox-read")

    async def read(self, look: Callable[[], T], *, limited: bool = False) -> T:
        """Run ``look``, which may wait for the disk, in a thread. Repeat it if data was removed meanwhile: it
        must have no effect but its result.

        ``limited``: a client asked for it. Raise Overloaded if too many reads wait.
        """
        if limited and self.waiting >= READS_MAX:
            raise Overloaded(f"[OVERLOAD]{self.waiting} reads wait for the disk, the limit is {READS_MAX}")
        self.waiting += 1
        try:
            while True:
                cuts = self._cuts
                try:
                    found = await asyncio.get_running_loop().run_in_executor(self._threads, look)
                except StoreError:
                    if cuts == self._cuts:
                        raise
                else:
                    if cuts == self._cuts:
                        return found
        finally:
            self.waiting -= 1

    def repeat(self) -> None:
        """Repeat the reads under way: data that they may have seen was removed or is about to be."""
        self._cuts += 1

    def close(self) -> None:
        """Wait for the reads under way, and end the threads."""
        self._threads.shutdown(wait=True)
