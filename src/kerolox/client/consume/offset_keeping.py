"""Progress of clustering groups, stored at the brokers. See ``offset_files.py`` for broadcasting."""

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
    """Storage of the progress of queues."""

    async def load(self, queue: Queue) -> int | None:
        """Return the progress of a queue; None without progress.

        Raises if it cannot be determined: consumption must not start at a wrong offset.
        """

    async def save(self, offsets: Mapping[Queue, int]) -> dict[Queue, KeroloxError]:
        """Save offsets and wait for completion. Return the failed queues with their errors."""

    def listener(self, queue: Queue) -> object:
        """Return the connection over which progress is saved; None if there is none or it never changes.

        After a change, the progress must be saved again.
        """

    def close(self) -> None:
        """Release files and locks."""


class BrokerOffsets:
    """Progress stored at the brokers.

    A multi-threaded broker may process the later of two saves first, which would set the group back. So the
    next save is sent only after the response to the previous one. RocketMQ's clients save by periodic one-way
    requests.
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
        """Do nothing: there are no files or locks."""
