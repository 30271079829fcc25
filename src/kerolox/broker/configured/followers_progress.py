"""Progress that a returning leader takes over from its followers: offsets that groups committed there, and
delayed messages that an acting follower delivered.

RocketMQ's leader asks for neither unless followers may act for it; its groups consume those messages again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from kerolox.broker.base import Base
from kerolox.broker.bounds import OFFSETS_MAX
from kerolox.broker.copies.remote_tables import RemoteTables
from kerolox.broker.later.timers import Timers
from kerolox.broker.tables.room import Tables
from kerolox.errors import KeroloxError, ProtocolError
from kerolox.protocol.bodies.offsets import ConsumerOffsetTable, DelayOffsetTable
from kerolox.protocol.reserved import SCHEDULE_TOPIC
from kerolox.replication.leader_questions import LeaderQuestions, LogRange
from kerolox.store.tables.offsets import advance

log = logging.getLogger(__name__)

T = TypeVar("T")

ASK_S = 3.0  # longest wait of a start for one follower


class FollowersProgress:
    """Questions to followers, before consumers are admitted and before delayed messages are delivered. For
    each queue and delay level the larger offset counts. Followers that cannot have acted are asked for the
    progress of groups only."""

    def __init__(self, base: Base, tables: Tables, timers: Timers) -> None:
        self._dialer = base.dialer
        self._store = base.store
        self._leadership = base.leadership
        self._options = base.options
        self._tables = tables
        self._timers = timers

    @property
    def _acting(self) -> bool:
        """True if a follower may have delivered last. One that acts itself was the last one."""
        return self._options.acting and not self._leadership.acts

    async def take(self, followers: Iterable[str]) -> None:
        for found in await asyncio.gather(*[self._ask_all(address) for address in followers]):
            offsets, delays, timer, log_range = found
            if offsets is not None:
                self._take_offsets(offsets)
            if delays is not None:
                self._take_delays(delays, log_range)
            if timer:
                self._take_timer(timer)

    async def _ask_all(
        self, address: str
    ) -> tuple[ConsumerOffsetTable | None, DelayOffsetTable | None, bytes | None, LogRange | None]:
        remote = RemoteTables(self._dialer, address)
        offsets = await self._ask(address, remote.offsets)
        if not self._acting:
            return offsets, None, None, None
        delays = await self._ask(address, remote.delay_offsets)
        log_range = await self._ask(address, LeaderQuestions(self._dialer, address).log_range)
        timer = await self._ask(address, remote.timer_checkpoint) if self._options.timer_wheel else None
        return offsets, delays, timer, log_range

    async def _ask(self, address: str, ask: Callable[[], Awaitable[T]]) -> T | None:
        try:
            async with asyncio.timeout(ASK_S):
                return await ask()
        except (KeroloxError, TimeoutError) as error:
            log.warning(
                "progress_not_taken follower=%r error=%r next='nothing: messages that groups consumed there, "
                "or that it delivered, may come again'",
                address, str(error),
            )  # fmt: skip
            return None

    def _take_timer(self, found: bytes) -> None:
        try:
            self._timers.take_back(found)
        except ProtocolError as error:
            log.warning("timer_not_taken error=%r next='nothing: due messages may come again'", str(error))

    def _take_offsets(self, found: ConsumerOffsetTable) -> None:
        offsets, topics = self._tables.offsets, self._tables.topics
        version = found.data_version
        if version is not None and version.timestamp < offsets.version.timestamp:
            return  # groups may have been reset here since
        taken = 0
        for key, queues in found.offset_table.items():
            topic, _, group = key.partition("@")
            if topics.find(topic) is None or not offsets.has_room(topic, group, 0, OFFSETS_MAX):
                continue
            # Messages lost from the log here must not be skipped when other messages have taken their place.
            inside = {
                queue_id: min(offset, max(0, self._store.queues.max_offset(topic, queue_id)))
                for queue_id, offset in queues.items()
            }
            ours = offsets.offsets.get(key, {})
            if advance(ours, inside):
                offsets.offsets[key] = ours
                taken += 1
        if taken:
            offsets.bump()
            log.info("progress_taken groups=%d reason='consumed from a follower meanwhile'", taken)

    def _take_delays(self, found: DelayOffsetTable, there: LogRange | None) -> None:
        table = self._tables.delay_offsets
        version = found.data_version
        acted = version is not None and version.newer_than(table.version)
        if not acted and (there is None or there.end > self._store.log.max_offset):
            # It has copied what this broker delivered, and part of that may be lost here. (A follower of
            # RocketMQ's that acted has a newer version only after 200 messages.)
            return
        taken = 0
        for level, offset in found.offset_table.items():
            inside = min(offset, max(0, self._store.queues.max_offset(SCHEDULE_TOPIC, level - 1)))
            if inside > table.offsets.get(level, 0):
                table.update(level, inside)
                taken += 1
        if acted and version is not None:
            table.version = version
        if taken:
            log.info("delays_taken_back levels=%d", taken)
