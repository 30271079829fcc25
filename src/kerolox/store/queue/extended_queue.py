"""Queue with an extension: its entries have an address in place of a tag hash."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable

from kerolox.protocol.reserved import SCHEDULE_TOPIC
from kerolox.store.disk.segments import Segments
from kerolox.store.disk.sums import FileSum, QueueSums, first_unlike, sum_up, sums_before
from kerolox.store.queue.consume_queue import ConsumeQueue, QueueCut
from kerolox.store.queue.entry import HOLE_TAGS
from kerolox.store.queue.extension import NotInMemory, QueueExtension, Unit, is_address, offset_of

logger = logging.getLogger(__name__)

_CHUNK = 4096  # entries examined at a time
_CHUNKS_MAX = 16  # chunks searched backward for an address; beyond that the units themselves are scanned


class NotedMessage:
    """Data of the current message for its unit, which entries do not hold."""

    __slots__ = ("bits", "stored_ms")

    def __init__(self) -> None:
        self.stored_ms = 0
        self.bits = b""


class ExtendedQueue(ConsumeQueue):
    """Queue that adds a unit for each new entry if ``writes``, and reads units in any case.

    Delayed messages have plain entries, because their delivery needs the due time; it is also returned where
    RocketMQ has stored an address.
    """

    __slots__ = ("_noted", "_writes", "extension", "unit_sums")
    has_units = True

    def __init__(
        self,
        topic: str,
        queue_id: int,
        segments: Segments,
        waiting: list[ConsumeQueue],
        extension: QueueExtension,
        noted: NotedMessage,
        *,
        writes: bool,
    ) -> None:
        super().__init__(topic, queue_id, segments, waiting)
        self.extension = extension
        self._noted = noted
        self._writes = writes and topic != SCHEDULE_TOPIC
        self.unit_sums: list[FileSum] = []

    # Growing

    def append(self, physical: int, size: int, tags_code: int, queue_offset: int) -> bool:
        if (
            self._writes
            and physical + size > self.max_physical
            and (queue_offset == self.next_offset or self.max_physical < 0)
        ):
            noted = self._noted
            address = self.extension.put(tags_code, noted.stored_ms, noted.bits)
            if address is not None:
                tags_code = address
        return super().append(physical, size, tags_code, queue_offset)

    def extend(self, entries: bytes, first_offset: int) -> int:
        if not self._writes:
            return super().extend(entries, first_offset)
        count = 0
        for number, (physical, size, tags_code) in enumerate(self.format.each(entries)):
            offset = first_offset + number
            if tags_code == HOLE_TAGS:
                entry = self.format.part(entries, number, number + 1)
                count += super().extend(entry, offset)
            else:
                count += self.append(physical, size, tags_code, offset)
        return count

    def write(self) -> Segments | None:
        self.extension.write()
        return super().write()

    # Sums

    @property
    def written_bytes(self) -> tuple[int, int]:
        return super().written_bytes[0], self.extension.segments.wrote

    def sum_up(self, ends: tuple[int, int]) -> QueueSums:
        sums = super().sum_up(ends)
        self.unit_sums = sums.extension = sum_up(self.extension.segments, self.unit_sums, ends[1])
        return sums

    def verified_end(self, known: QueueSums) -> int | None:
        """Return 0 if the units do not match their sums, because the whole queue is then rebuilt; else as the
        base class."""
        if first_unlike(self.extension.segments, known.extension) is not None:
            return 0
        return super().verified_end(known)

    def adopt(self, known: QueueSums) -> None:
        super().adopt(known)
        last = known.extension[-1] if known.extension else FileSum(0, 0, 0)
        self.unit_sums = known.extension if last.start + last.size <= self.extension.end else []

    # Reading

    def units(self, codes: list[int], *, may_wait: bool) -> dict[int, Unit]:
        return self.extension.units(codes, may_wait=may_wait) if min(codes, default=0) < 0 else {}

    def read(self, offset: int, count: int) -> bytes:
        entries = super().read(offset, count)
        return self._plain(entries, may_wait=True) if self.topic == SCHEDULE_TOPIC else entries

    def read_hot(self, offset: int, count: int) -> bytes | None:
        entries = super().read_hot(offset, count)
        if entries is None or self.topic != SCHEDULE_TOPIC:
            return entries
        try:
            return self._plain(entries, may_wait=False)
        except NotInMemory:
            return None

    def _plain(self, entries: bytes, *, may_wait: bool) -> bytes:
        units = self.units([code for _, _, code in self.format.each(entries)], may_wait=may_wait)
        if not units:
            return entries
        return b"".join(
            self.format.pack(physical, size, units[code].tags_code if code in units else code)
            for physical, size, code in self.format.each(entries)
        )

    # Start, and truncation

    def load(self) -> None:
        super().load()
        self.extension.load()

    def recover(
        self, *, crashed: bool = True, safe_physical: int | None = None, verified_end: int | None = None
    ) -> None:
        """Recover as any queue does; then end the units with that of the last entry.

        Entries at the end without their units, as after a power loss, are cut off: both are rebuilt from the
        commit log.
        """
        super().recover(crashed=crashed, safe_physical=safe_physical, verified_end=verified_end)
        extension = self.extension
        last_valid: tuple[int, Unit] | None = None
        last_address: int | None = None
        without_unit = -1
        upto = self.next_offset
        for _ in range(_CHUNKS_MAX):
            first = max(self._segments.min_offset // self.format.size, upto - _CHUNK)
            if first >= upto or last_valid is not None:
                break
            codes = [code for _, _, code in self.format.each(ConsumeQueue.read(self, first, upto - first))]
            units = extension.units(codes)
            for number in range(len(codes) - 1, -1, -1):
                code = codes[number]
                if not is_address(code):
                    continue
                last_address = code if last_address is None else max(code, last_address)
                if code in units:
                    last_valid = (code, units[code])
                    break
                without_unit = first + number
            upto = first
        if last_valid is not None:
            if without_unit >= 0:
                logger.warning(
                    "units_missing topic=%r queue=%d first=%d end=%d next='no action needed: they are "
                    "rebuilt from the log'",
                    self.topic, self.queue_id, without_unit, self.next_offset,
                )  # fmt: skip
                self._cut(without_unit)
            extension.end_behind(*last_valid)
        elif last_address is not None:
            logger.warning(
                "units_lost topic=%r queue=%d path=%s next='no action needed: filters read the messages "
                "instead'",
                self.topic, self.queue_id, extension.segments.directories[0],
            )  # fmt: skip
            extension.skip_past(last_address)
        else:
            extension.end_at(extension.find_end())
        if crashed and extension.segments.last is not None:
            extension.segments.flush_again_from(extension.segments.min_offset)
            extension.segments.files.sync_dir(os.path.dirname(extension.segments.directories[0]))
            self._waiting.append(self)

    def plan_cut(self, physical: int) -> QueueCut | None:
        cut = super().plan_cut(physical)
        return None if cut is None else cut._replace(units_end=self._units_end(cut.end))

    def _units_end(self, end: int) -> int | None:
        """Return the offset of the first unit that an entry from ``end`` on has; None if none has one."""
        for first in range(end, self.next_offset, _CHUNK):
            for _, _, code in self.format.each(ConsumeQueue.read(self, first, _CHUNK)):
                if is_address(code):
                    return offset_of(code)
        return None

    def lower_to(self, cut: QueueCut) -> None:
        super().lower_to(cut)
        if cut.units_end is not None:
            self.extension.lower_to(cut.units_end)
            self.unit_sums = sums_before(self.unit_sums, cut.units_end)

    def clear_behind(self) -> None:
        super().clear_behind()
        self.extension.segments.clear_behind()

    def delete_before(self, log_min: int) -> int:
        count = super().delete_before(log_min)
        entry = self.entry(self.min_offset)
        if entry is not None:
            self.extension.delete_before(entry[2])
        return count

    def delete(self, aside: Callable[[], str] | None = None) -> None:
        super().delete(aside)
        self.extension.delete_all(aside)
        self.unit_sums = []

    def forget_files(self) -> None:
        super().forget_files()
        self.extension.forget_files()
        self.unit_sums = []

    def close_idle(self) -> None:
        super().close_idle()
        self.extension.segments.close_idle()

    def close(self) -> None:
        super().close()
        self.extension.segments.close()
