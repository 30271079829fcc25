"""Dispatch of the commit log: every confirmed record, in order, once.

The log passes on the records just written, so nothing is read back. Followers get whole batches: first the
consume queues (so that messages can be found), then the key index, then all others (waiting pulls, delayed
messages, transactions).
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from kerolox.protocol.record_scan import PHYSICAL_OFFSET, SIZE, STORE_TIMESTAMP, Entry
from kerolox.store.errors import StoreError
from kerolox.store.failures import Kind
from kerolox.store.log.commit_log import CommitLog
from kerolox.store.standing_failures import StandingFailures

log = logging.getLogger(__name__)

DispatchListener = Callable[[list[Entry]], None]


class Dispatcher:
    """Dispatcher that calls the followers with newly confirmed entries."""

    def __init__(self, log: CommitLog, failing: StandingFailures) -> None:
        self._log = log
        self._failing = failing
        self.followers: list[DispatchListener] = []
        self.dispatched = 0  # every record before this offset was passed to all followers
        self.dispatched_ms = 0  # store time of the last one
        self.held = False  # True while the log is being cut: nothing is dispatched
        log.progress.followers.append(self.run)

    def run(self) -> None:
        """Dispatch the confirmed entries. Called by the log; never polls."""
        if self.held:
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
            except StoreError as error:
                # The messages are stored, so their producers get no error. They wait here, and every flush
                # round retries; memory has no room for more of them.
                waiting.extendleft(reversed(entries))
                self._failing.failed(Kind.QUEUE, error, work="dispatch", full=True)
        if not waiting:
            self._failing.passed(Kind.QUEUE, "dispatch")
            # After the last record there may be a blank one; on a replica also half a record.
            self.dispatched = max(self.dispatched, min(confirmed, self._log.whole_end))

    def cut(self, offset: int, stored_ms: int) -> None:
        """Lower the dispatched offset after a cut of the log; ``stored_ms`` is the store time of the last
        message before it."""
        self.dispatched = min(self.dispatched, offset)
        self.dispatched_ms = min(self.dispatched_ms, stored_ms)

    def give(self, entries: list[Entry]) -> None:
        """Pass a batch to all followers. Also used to rebuild: followers skip entries that they have."""
        for follower in self.followers:
            follower(entries)
        last = entries[-1]
        self.dispatched = last[PHYSICAL_OFFSET] + last[SIZE]
        self.dispatched_ms = last[STORE_TIMESTAMP]
