"""Stores for tests: small files, a clock that stands still, a disk that lies when told to."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from kerolox.protocol.message import StoredMessage
from kerolox.protocol.properties import pack
from kerolox.protocol.record import decode_records
from kerolox.store.dispatch.queue_units import BitsOf
from kerolox.store.message_store import MessageStore
from kerolox.store.options import FlushMode, StoreOptions
from kerolox.store.queue.reading import QueueRead, ReadStatus
from kerolox.testing.clock import ManualClock
from kerolox.testing.faults import FaultyFiles

SYNC = FlushMode.SYNC
ASYNC = FlushMode.ASYNC
LOG_FILE = 4096
QUEUE_FILE = 20 * 50


def options_for(path: Path, **changes: object) -> StoreOptions:
    values: dict[str, object] = {
        "store_path": str(path),
        "commit_log_file_bytes": LOG_FILE,
        "queue_file_bytes": QUEUE_FILE,
        "index_slots": 100,
        "index_entries": 400,
        "disk_free_enough": 64 << 20,  # the disk a test runs on may be nearly full
    }
    values.update(changes)
    return StoreOptions(**values)  # type: ignore[arg-type]


class Rig:
    """One directory, its disk and its clock, and the stores opened there one after the other."""

    def __init__(self, path: Path, *, controlled: bool = False, **changes: object) -> None:
        self.path = path
        self.controlled = controlled
        self.disk = FaultyFiles()
        self.clock = ManualClock()
        self.options = options_for(path, **changes)
        self.boot = "first"
        self._boots = 1
        self.stores: list[MessageStore] = []
        self.bits_of: BitsOf | None = None  # results of filters, for extensions of queues

    def make(self, **changes: object) -> MessageStore:
        options = self.options if not changes else options_for(self.path, **{**vars(self.options), **changes})
        store = MessageStore(
            options,
            files=self.disk,
            clock=self.clock,
            boot=self.boot,
            controlled=self.controlled,
            bits_of=self.bits_of,
        )
        self.stores.append(store)
        return store

    async def open(self, **changes: object) -> MessageStore:
        store = self.make(**changes)
        await store.open()
        # The next log file is made in a thread, with a flush of its own: a fault a test asks for next must
        # not meet that one.
        await asyncio.get_running_loop().run_in_executor(store.ahead, int)
        return store

    async def kill(self, store: MessageStore) -> None:
        """The process dies; what it wrote is there."""
        self.disk.kill()
        await self._bury(store)

    async def lose_power(self, store: MessageStore, seed: int | None = None, *, names: bool = False) -> None:
        """The machine dies; what it flushed is there."""
        self.disk.power_loss(seed, names=names)
        self._boots += 1
        self.boot = f"boot {self._boots}"
        await self._bury(store)

    async def _bury(self, store: MessageStore) -> None:
        await bury(store)
        self.disk.kill()  # what a thread, making the next file, opened after its process had died

    async def end(self) -> None:
        for store in self.stores:
            if store._opened:
                await store.close()


async def bury(store: MessageStore) -> None:
    """Give back the threads of a store whose files are dead."""
    store._opened = False
    store.expiry._closing.set()
    for timer in (store.flusher._timer, store.flusher._commit_timer, store.flusher._waits._timer):
        if timer is not None:
            timer.cancel()
    for timer in (store.housekeeper._flush_timer, store.expiry._timer, store.key_filler._timer):
        if timer is not None:
            timer.cancel()
    await asyncio.get_running_loop().run_in_executor(None, store._stop_threads)
    await asyncio.get_running_loop().run_in_executor(None, store.flusher._thread.shutdown)
    for _ in range(5):
        await asyncio.sleep(0)
    store._lock.release()


@asynccontextmanager
async def rig_at(path: Path, *, controlled: bool = False, **changes: object) -> AsyncIterator[Rig]:
    rig = Rig(path, controlled=controlled, **changes)
    try:
        yield rig
    finally:
        rig.disk.release_syncs()
        await rig.end()


async def until(condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
    """Wait for what a thread is about to bring about."""
    loop = asyncio.get_running_loop()
    end_s = loop.time() + timeout_s
    while not condition():
        assert loop.time() < end_s, "it did not come about in time"
        await asyncio.sleep(0.001)


def props(**properties: str) -> bytes:
    return pack(properties)


def messages(read: QueueRead) -> list[StoredMessage]:
    return decode_records(b"".join(read.parts))


async def read_all(store: MessageStore, topic: str, queue_id: int) -> list[StoredMessage]:
    """Everything a consumer can get of a queue, checked for what every answer must keep to."""
    got: list[StoredMessage] = []
    offset = store.queues.min_offset(topic, queue_id)
    while offset < store.queues.max_offset(topic, queue_id):
        read = await store.queues.read(topic, queue_id, offset)
        assert read.next_offset > offset, read
        found = messages(read)
        assert len(found) == read.count
        assert sum(message.size for message in found) == read.size_bytes
        assert (read.status is ReadStatus.FOUND) == bool(found)
        for message in found:
            assert (message.topic, message.queue_id) == (topic, queue_id)
            assert offset <= message.queue_offset < read.next_offset
        got += found
        offset = read.next_offset
    return got


async def bodies(store: MessageStore, topic: str = "T", queue_id: int = 0) -> list[bytes]:
    found = await read_all(store, topic, queue_id)
    offsets = [message.queue_offset for message in found]
    if offsets:
        assert offsets == list(range(offsets[0], offsets[0] + len(offsets))), "a hole between offsets"
    return [message.body for message in found]


def tree(path: Path) -> dict[str, bytes]:
    """All files below a directory, with their content."""
    return {
        os.path.relpath(os.path.join(directory, name), path): Path(directory, name).read_bytes()
        for directory, _, names in os.walk(path)
        for name in names
    }


def log_files(path: Path) -> list[int]:
    return sorted(int(name) for name in os.listdir(path / "commitlog"))


def flip(path: Path, at: int, mask: int = 0xFF) -> None:
    with open(path, "r+b") as file:
        file.seek(at)
        old = file.read(1)[0]
        file.seek(at)
        file.write(bytes([old ^ mask]))


def overwrite(path: Path, at: int, data: bytes) -> None:
    with open(path, "r+b") as file:
        file.seek(at)
        file.write(data)
