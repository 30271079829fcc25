"""Dispatch of the commit log: every confirmed record, in order, once.

The log passes on the records just written, so nothing is read back. Fillers get whole batches: first the
consume queues (so that messages can be found), then the key index. A batch that one of them does not take is
kept, and given again. Listeners (waiting pulls, delayed messages) are called after that.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from kerolox.observers import Observers
from kerolox.protocol.record_scan import PHYSICAL_OFFSET, SIZE, STORE_TIMESTAMP, Entry
from kerolox.store.errors import StoreError
from kerolox.store.failures import Kind
from kerolox.store.log.commit_log import CommitLog
from kerolox.store.standing_failures import StandingFailures

log = logging.getLogger(__name__)

Fill = Callable[[list[Entry]], None]


class Dispatcher:
    """Dispatcher that gives newly confirmed entries to the fillers, then to the listeners."""

    def __init__(self, log: CommitLog, failing: StandingFailures) -> None:
        self._log = log
        self._failing = failing
        self.fillers: list[Fill] = []
        self.listeners: Observers[[list[Entry]]] = Observers("messages dispatched")
        self.dispatched = 0  # every record before this offset was passed to all fillers
        self.dispatched_ms = 0  # store time of the last one
        self._is_held = False  # True while the log is being cut: nothing is dispatched
        log.progress.on_confirmed.append(self.run)

    def run(self) -> None:
        """Dispatch the confirmed entries. Called by the log; never polls."""
        if self._is_held:
            return
        waiting = self._log.undispatched
        confirmed = self._log.progress.confirmed
        entries: list[Entry] = []
        if waiting and waiting[-1][PHYSICAL_OFFSET] + waiting[-1][SIZE] <= confirmed:
            entries = list(waiting)  # the usual case: all written entries
            waiting.clear()
        else:
            take = waiting.popleft
            while waiting:
                entry = waiting[0]
                if entry[PHYSICAL_OFFSET] + entry[SIZE] > confirmed:
                    break
                entries.append(take())
        if entries:
            try:
                self.give(entries)
            except Exception as error:
                # The messages are stored, so their producers get no error. They wait here, and every flush
                # round retries; memory has no room for more of them.
                waiting.extendleft(reversed(entries))
                self._failing.failed(Kind.QUEUE, _named(error, entries), work="dispatch", full=True)
        if not waiting:
            self._failing.passed(Kind.QUEUE, "dispatch")
            # After the last record there may be a blank one; on a replica also half a record.
            self.dispatched = max(self.dispatched, min(confirmed, self._log.whole_end))

    def begin(self, offset: int) -> None:
        """Continue at ``offset``: all messages before it are in queues and index."""
        self.dispatched = offset

    def hold(self) -> None:
        """Dispatch nothing before :meth:`release`: the log is to be cut."""
        self._is_held = True

    def release(self) -> None:
        """Dispatch again, with the messages that were confirmed meanwhile."""
        self._is_held = False
        self.run()

    def cut(self, offset: int, stored_ms: int) -> None:
        """Lower the dispatched offset after a cut of the log; ``stored_ms`` is the store time of the last
        message before it."""
        self.dispatched = min(self.dispatched, offset)
        self.dispatched_ms = min(self.dispatched_ms, stored_ms)

    def give(self, entries: list[Entry]) -> None:
        """Give a batch to all. Also used to rebuild: fillers skip entries that they have."""
        for fill in self.fillers:
            fill(entries)
        last = entries[-1]
        self.dispatched = last[PHYSICAL_OFFSET] + last[SIZE]
        self.dispatched_ms = last[STORE_TIMESTAMP]
        self.listeners.tell(entries)


def _named(error: Exception, entries: list[Entry]) -> StoreError:
    """Return an error of the store as it is, and any other as a defect at a place of the log."""
    if isinstance(error, StoreError):
        return error
    log.error("dispatch_failed offset=%d", entries[0][PHYSICAL_OFFSET], exc_info=error)
    return StoreError(
        f"messages of the log from offset {entries[0][PHYSICAL_OFFSET]} on cannot be entered into queues and "
        f"index: {type(error).__name__}: {error}. This is a defect: report it with the log lines before it",
        offset=entries[0][PHYSICAL_OFFSET],
    )
