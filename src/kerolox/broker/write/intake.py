"""One write of the log for everything that one turn of the event loop appends.

Sends, delayed messages that fall due, retries and transactions append to the same log. The log hands all of
it to the operating system by one call, and takes all of it back when that fails: so whoever appended asks
here, and is told together with the others.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from kerolox.errors import KeroloxError
from kerolox.store.log.commit_log import CommitLog

log = logging.getLogger(__name__)

# Told when what was appended is written, or why it was not.
Written = Callable[[KeroloxError | None], None]


class LogWrites:
    """Owns :meth:`CommitLog.write`: nobody else in the broker calls it while sends go on."""

    def __init__(self, log: CommitLog) -> None:
        self._log = log
        self._told: list[Written] = []
        self._due_soon = False
        self.due: Callable[[], None] = self.write  # what is asked for; a broker times it
        self.before: list[Callable[[], None]] = []  # who still has something to append to each write

    def soon(self, told: Written) -> None:
        """Write what this turn of the loop appends, and tell."""
        self._told.append(told)
        if not self._due_soon:
            self._due_soon = True
            asyncio.get_running_loop().call_soon(self.due)

    async def written(self) -> None:
        """Wait until what was appended up to now is written. Raises when it was not stored."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def tell(error: KeroloxError | None) -> None:
            if done.done():
                return
            if error is None:
                done.set_result(None)
            else:
                done.set_exception(error)

        self.soon(tell)
        await done

    def write(self) -> None:
        """Write now, and tell everyone who waits."""
        self._due_soon = False
        for append in self.before:
            append()
        told, self._told = self._told, []
        failed: KeroloxError | None = None
        try:
            self._log.write()
        except KeroloxError as error:
            failed = error
        for tell in told:
            try:
                tell(failed)
            except Exception:  # the others are told all the same
                log.exception("written_not_taken")
