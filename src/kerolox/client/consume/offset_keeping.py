"""Where progress is kept: at the broker for a group that shares its messages, in a file for one in which
every member gets all of them."""

from __future__ import annotations

import asyncio
import logging
import os
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from kerolox.atomic_file import write_atomically
from kerolox.client.cluster.queue_calls import QueueCalls
from kerolox.client.messages import Queue
from kerolox.errors import KeroloxError, ProtocolError
from kerolox.protocol.bodies.body import Body, MessageQueue

log = logging.getLogger(__name__)

DIRECTORY = ".rocketmq_offsets"


class OffsetKeeping(Protocol):
    """Reads and saves how far queues are consumed."""

    async def load(self, queue: Queue) -> int | None:
        """None: there is no progress. Raises when that cannot be told: nothing may begin at a wrong place."""

    async def save(self, offsets: Mapping[Queue, int]) -> dict[Queue, KeroloxError]:
        """Save these, and wait until they are; returns those that could not be, and why."""

    def listener(self, queue: Queue) -> object:
        """Who hears of progress now: when that is another one, it has to be told anew. None: nobody yet, or
        it stays the same."""


class BrokerOffsets:
    """At the brokers.

    A broker with many threads may heed the later of two savings first, and then the group would be set back.
    So it gets one only when it has answered the one before. RocketMQ's clients save one way, now and then.
    """

    def __init__(self, calls: QueueCalls, *, zero_if_young: bool) -> None:
        self._calls = calls
        self._zero_if_young = zero_if_young
        self._saving: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)  # by broker

    async def load(self, queue: Queue) -> int | None:
        return await self._calls.stored_offset(queue, zero_if_young=self._zero_if_young)

    async def save(self, offsets: Mapping[Queue, int]) -> dict[Queue, KeroloxError]:
        brokers: defaultdict[str, dict[Queue, int]] = defaultdict(dict)
        for queue, offset in offsets.items():
            brokers[queue.broker][queue] = offset
        failed: dict[Queue, KeroloxError] = {}
        for found in await asyncio.gather(*(self._save_at(*item) for item in brokers.items())):
            failed |= found
        return failed

    async def _save_at(self, broker: str, offsets: Mapping[Queue, int]) -> dict[Queue, KeroloxError]:
        async with self._saving[broker]:
            saved = [self._calls.save_offset(*item) for item in offsets.items()]
            results = await asyncio.gather(*saved, return_exceptions=True)
        failed: dict[Queue, KeroloxError] = {}
        for (queue, offset), result in zip(offsets.items(), results, strict=True):
            if isinstance(result, KeroloxError):
                log.warning("offset_not_saved queue=%s offset=%d error=%r", queue, offset, str(result))
                failed[queue] = result
            elif isinstance(result, BaseException):
                raise result
        return failed

    def listener(self, queue: Queue) -> object:
        return self._calls.listener(queue)


class FileOffsets:
    """In the file RocketMQ's broadcasting consumers have: it may be taken over either way."""

    def __init__(self, client_id: str, group: str, directory: str = "") -> None:
        root = Path(directory or os.path.join(os.path.expanduser("~"), DIRECTORY))
        self.path = root / client_id / group / "offsets.json"
        self._known: dict[Queue, int] | None = None
        self._writing = asyncio.Lock()  # of two that save at once the later has all

    async def load(self, queue: Queue) -> int | None:
        if self._known is None:
            self._known = await asyncio.get_running_loop().run_in_executor(None, self._read)
        return self._known.get(queue)

    async def save(self, offsets: Mapping[Queue, int]) -> dict[Queue, KeroloxError]:
        if self._known is None:
            self._known = await asyncio.get_running_loop().run_in_executor(None, self._read)
        self._known.update(offsets)
        async with self._writing:
            content = encode_offsets(self._known)
            try:
                await asyncio.get_running_loop().run_in_executor(None, self._write, content)
            except OSError as error:
                log.warning("offsets_not_saved path=%s error=%r", self.path, str(error))
                failure = KeroloxError(f"progress could not be saved in {self.path}: {error}")
                return dict.fromkeys(offsets, failure)
        return {}

    def listener(self, queue: Queue) -> object:
        return None

    def _read(self) -> dict[Queue, int]:
        for path in (self.path, self.path.with_suffix(".json.bak")):
            try:
                text = path.read_bytes()
            except FileNotFoundError:
                continue
            try:
                return decode_offsets(text)
            except ProtocolError as error:
                log.warning(
                    "offsets_unreadable path=%s error=%r next='the backup is tried'", path, str(error)
                )
        return {}

    def _write(self, content: bytes) -> None:
        if self.path.exists():
            write_atomically(self.path.with_suffix(".json.bak"), self.path.read_bytes())
        write_atomically(self.path, content)


class _OffsetsFile(Body, frozen=True, kw_only=True):
    offset_table: dict[MessageQueue, int] = {}


def encode_offsets(offsets: Mapping[Queue, int]) -> bytes:
    """Objects as keys, which is no JSON but what RocketMQ reads and writes."""
    return _OffsetsFile(offset_table={queue.wire(): offsets[queue] for queue in sorted(offsets)}).encode()


def decode_offsets(text: bytes) -> dict[Queue, int]:
    table = _OffsetsFile.decode(text).offset_table
    return {Queue.of(queue): offset for queue, offset in table.items()}
