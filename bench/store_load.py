"""What the store benchmarks append: messages as a broker would have them, in the shapes requests come in."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from itertools import cycle
from pathlib import Path

from kerolox.protocol import properties as names
from kerolox.protocol.batch import Item
from kerolox.protocol.hosts import host_bytes
from kerolox.store.message_store import MessageStore
from kerolox.store.options import FlushMode, StoreOptions

TOPIC = "bench-topic-0000"
QUEUES = 8
BATCH = 32
BORN_HOST = host_bytes("10.20.30.40:50000")
BORN_MS = 1_700_000_000_000
OF_THE_BROKER = names.pack({"CLUSTER": "DefaultCluster", "MSG_REGION": "DefaultRegion", "TRACE_ON": "true"})
UNIQUE_KEYS = 65_536

Step = Callable[[], object]


def new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def options(root: Path, *, sync: bool = False, index: bool = True) -> StoreOptions:
    return StoreOptions(
        store_path=str(root),
        flush_mode=FlushMode.SYNC if sync else FlushMode.ASYNC,
        index_enabled=index,
    )


def of_the_client(number: int) -> bytes:
    """What a client sends with a message: an id whose last four characters count."""
    unique = f"7F0000010A2B18B4AAC21234{number >> 16 & 0xFFFF:04X}{number & 0xFFFF:04X}"
    return names.pack({"UNIQ_KEY": unique, "WAIT": "true", "TAGS": "TagA"})


class Load:
    """Messages of one body size, for ever: a cycle over prepared bytes, so that making them costs nothing."""

    def __init__(self, body_bytes: int) -> None:
        self.body = os.urandom(body_bytes)
        client = [of_the_client(number) for number in range(UNIQUE_KEYS)]
        self._whole = [own + OF_THE_BROKER for own in client]
        self._batches: list[list[Item]] = [
            [(0, self.body, own) for own in client[first : first + BATCH]]
            for first in range(0, UNIQUE_KEYS, BATCH)
        ]

    @property
    def properties(self) -> Iterator[bytes]:
        return cycle(self._whole)

    @property
    def batches(self) -> Iterator[list[Item]]:
        return cycle(self._batches)

    @property
    def properties_bytes(self) -> int:
        return len(self._whole[0])


def one_a_write(store: MessageStore, load: Load) -> Step:
    """32 messages, each written on its own."""
    return _singles(store, load, 1)


def singles_a_write(store: MessageStore, load: Load) -> Step:
    """32 messages of as many requests over all queues, written once: what one pass of the broker does."""
    return _singles(store, load, BATCH)


def _singles(store: MessageStore, load: Load, a_write: int) -> Step:
    log = store.log
    cursors = [log.cursor(TOPIC, number % QUEUES) for number in range(BATCH)]
    passes = [cursors[first : first + a_write] for first in range(0, BATCH, a_write)]
    properties = load.properties
    body = load.body

    def step() -> None:
        for one_pass in passes:
            for cursor in one_pass:
                log.append(cursor, body, next(properties), born_timestamp=BORN_MS, born_host=BORN_HOST)
            log.write()

    return step


def batch_a_write(store: MessageStore, load: Load) -> Step:
    """32 messages of one batch request, into one queue after the other."""
    log = store.log
    cursors = cycle([log.cursor(TOPIC, number) for number in range(QUEUES)])
    batches = load.batches

    def step() -> None:
        log.append_batch(
            next(cursors), next(batches), OF_THE_BROKER, born_timestamp=BORN_MS, born_host=BORN_HOST
        )
        log.write()

    return step


SHAPES: dict[str, Callable[[MessageStore, Load], Step]] = {
    "1 message a write": one_a_write,
    "32 single messages a write": singles_a_write,
    "1 batch of 32 a write": batch_a_write,
}


def fill(store: MessageStore, load: Load, size_bytes: int, queues: int = QUEUES) -> int:
    """Append until the log has grown by this much; how many messages that were. Queues take turns."""
    log = store.log
    cursors = [log.cursor(TOPIC, number % queues) for number in range(BATCH)]
    properties = load.properties
    end = log.max_offset + size_bytes
    count = 0
    while log.max_offset < end:
        for cursor in cursors:
            log.append(cursor, load.body, next(properties), born_timestamp=BORN_MS, born_host=BORN_HOST)
        log.write()
        count += BATCH
    return count


def forget_pages(store: MessageStore) -> None:
    """Make the whole log cold: its files leave the page cache. Only what is flushed can go."""
    for segment in store.segments.all:
        descriptor = os.open(segment.path, os.O_RDONLY)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)
