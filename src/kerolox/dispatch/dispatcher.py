"""Follow the commit log: every confirmed record, in order, once.

The log hands over what it has just written, so nothing is read back. Who follows gets whole batches:
first the consume queues (so that messages can be found), then the key index, then everyone else
(waiting pulls, delayed messages, transactions).
"""

from __future__ import annotations

from collections.abc import Callable

from kerolox.protocol.record_scan import PHYSICAL_OFFSET, SIZE, Entry
from kerolox.store.commit_log import CommitLog

Follower = Callable[[list[Entry]], None]


class Dispatcher:
    """Calls the followers with what became confirmed."""

    def __init__(self, log: CommitLog) -> None:
        self._log = log
        self.followers: list[Follower] = []
        self.dispatched = 0  # every record before this offset was given to all followers
        log.progress.followers.append(self.run)

    def run(self) -> None:
        """Dispatch what is confirmed and not yet dispatched. Woken by the log; never polls."""
        waiting = self._log.undispatched
        confirmed = self._log.progress.confirmed
        entries: list[Entry] = []
        take = waiting.popleft
        while waiting:
            entry = waiting[0]
            if entry[PHYSICAL_OFFSET] + entry[SIZE] > confirmed:
                break
            entries.append(take())
        if entries:
            self.give(entries)
        if not waiting:
            # Behind the last record there may be a blank one.
            self.dispatched = max(self.dispatched, confirmed)

    def give(self, entries: list[Entry]) -> None:
        """Hand a batch to all followers. Also used to rebuild: followers know what they have already."""
        for follower in self.followers:
            follower(entries)
        last = entries[-1]
        self.dispatched = last[PHYSICAL_OFFSET] + last[SIZE]
