"""Groups of parts of a store that its start, its background work and its cuts use together."""

from __future__ import annotations

import os
from dataclasses import dataclass

from kerolox.clock import Clock
from kerolox.store.disk.files import Files
from kerolox.store.disk.lock import StoreLock
from kerolox.store.disk.read_failures import ReadFailures
from kerolox.store.dispatch.dispatcher import Dispatcher
from kerolox.store.dispatch.keys import KeyFiller
from kerolox.store.dispatch.queues import QueueFiller
from kerolox.store.index.key_index import KeyIndex
from kerolox.store.log.acks import Acks
from kerolox.store.log.commit_log import CommitLog
from kerolox.store.log.flush import LogFlusher
from kerolox.store.options import StoreOptions
from kerolox.store.queue.consume_queues import ConsumeQueues
from kerolox.store.standing_failures import StandingFailures


@dataclass(frozen=True, slots=True)
class StoreDirectory:
    """Directory of a store, and the means to use its files."""

    root: str
    options: StoreOptions
    files: Files
    clock: Clock
    lock: StoreLock
    reads: ReadFailures

    def path(self, name: str) -> str:
        return os.path.join(self.root, name)


@dataclass(frozen=True, slots=True)
class Derived:
    """Queues and key index, with the dispatch that fills them from the log."""

    queues: ConsumeQueues
    index: KeyIndex
    dispatcher: Dispatcher
    queue_filler: QueueFiller
    key_filler: KeyFiller


@dataclass(frozen=True, slots=True)
class Writes:
    """The log, with its flushes, the answers that wait for it, and the failures that refuse writes."""

    log: CommitLog
    flusher: LogFlusher
    acks: Acks
    failing: StandingFailures
