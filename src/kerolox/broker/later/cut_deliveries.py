"""Delayed messages that were delivered beyond the truncated end of the log: they are delivered again.

The present leader may have delivered them, too. Then its progress counts, which a follower copies with its
tables; until that arrives, a duplicate is better than a loss.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial

from kerolox.broker.later.delay_levels import Unrestorable, real_queue_of
from kerolox.errors import ProtocolError
from kerolox.protocol.record import decode_record
from kerolox.protocol.reserved import SCHEDULE_TOPIC
from kerolox.store.disk.cut_note import Cut
from kerolox.store.errors import StoreError
from kerolox.store.message_store import MessageStore
from kerolox.store.queue.queues import Queue
from kerolox.store.tables.offsets import DelayOffsets

log = logging.getLogger(__name__)


class CutDeliveries:
    """Reset of the delay levels after a truncation. Used by a broker that does not deliver, because it
    follows."""

    def __init__(self, store: MessageStore, offsets: DelayOffsets) -> None:
        self._store = store
        self._offsets = offsets

    async def truncated(self, cut: Cut) -> None:
        offsets = self._offsets
        for level, offset in list(offsets.offsets.items()):
            queue = self._store.queues.find(SCHEDULE_TOPIC, level - 1)
            # The progress of the last message that is left, even if some delivered ones are beyond it: rather
            # twice.
            end = cut.end_of(SCHEDULE_TOPIC, level - 1)
            before = offset if end is None else min(offset, end)
            if queue is not None and (count := cut.delayed.get(level, 0)):
                before = await self._store.readers.read(partial(self._back, queue, before, count))
            if before != offset:
                log.warning(
                    "delay_offset_set_back level=%d offset=%d to=%d reason='the log was cut at %d'",
                    level, offset, before, cut.end,
                )  # fmt: skip
                offsets.update(level, before)
        if offsets.changed:
            data = offsets.encode()
            await asyncio.get_running_loop().run_in_executor(self._store.keeper, offsets.save, data)

    def _back(self, queue: Queue, offset: int, count: int) -> int:
        """Return the offset ``count`` messages before this one; undeliverable messages do not count. Runs in
        a thread."""
        while count and offset > queue.min_offset:
            offset -= 1
            entry = queue.entry(offset)
            try:
                if entry is not None:
                    real_queue_of(decode_record(self._store.log.record_at(entry[0])).packed_properties)
                    count -= 1
            except (StoreError, ProtocolError, Unrestorable):
                continue
        return offset
