"""Progress of a group that shares its messages, kept at the brokers. Of broadcasting: ``offset_files.py``."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Mapping
from typing import Protocol

from kerolox.client.cluster.queue_calls import QueueCalls
from kerolox.client.messages import Queue
from kerolox.errors import KeroloxError

log = logging.getLogger(__name__)


class OffsetKeeping(Protocol):
    """Reads and saves how far queues are consumed."""

    async def load(self, queue: Queue) -> int | None:
        """None: there is no progress. Raises when that cannot be told: nothing may begin at a wrong place."""

    async def save(self, offsets: Mapping[Queue, int]) -> dict[Queue, KeroloxError]:
        """Save these, and wait until they are; returns those that could not be, and why."""

    def listener(self, queue: Queue) -> object:
        """Who hears of progress now: when that is another one, it has to be told anew. None: nobody yet, or
        it stays the same."""

    def close(self) -> None:
        """Release files and locks."""


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

    def close(self) -> None:
        """There is nothing to release."""
