"""Reading a queue: the messages a pull gets, and its status if it gets none.

The decision is made on the event loop from data in memory. If some is cold, the same function runs again in a
thread with reads that may wait: the loop never waits.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Final, TypedDict, cast

import msgspec

from kerolox.compiled import compiled
from kerolox.protocol.limits import INT64_MAX
from kerolox.store.errors import Cold, OffsetOutOfRange, StoreError, Unreadable
from kerolox.store.log.commit_log import CommitLog
from kerolox.store.log.readable_log import GAP_BYTES_MAX
from kerolox.store.options import StoreOptions
from kerolox.store.queue.consume_queue import ConsumeQueue
from kerolox.store.queue.entry import BLANK_SIZE, HOLE_TAGS, SIMPLE, EntryFormat
from kerolox.store.queue.extension import ADDRESS_MAX, NotInMemory, Unit
from kerolox.store.queue.property_scan import PropertyCondition, ScanEnd, scan_properties
from kerolox.store.queue.read_check import ReadCheck

PULL_BYTES_MAX = 128 << 20
PULL_BYTES_MIN = 100
BLOCK_BYTES = 64 << 10  # bytes read at once when a filter reads every record
SCAN_COUNT_MAX = 16_384  # maximum messages of a scan, however short they are
JUDGED_MAX = 1024  # entries of a scan that are judged one by one
# Limits of a scan on the loop: log bytes it spans, messages that lie far apart, bytes of a part of the log
# that no start has checked.
SPAN_MAX = 8 << 20
READS_MAX = 64
CHECKED_MAX = 256 << 10
LOOKED_AT_MAX = 4096  # entries examined by a filtered pull, however many messages are requested
# Bytes of filtered records times the terms of the condition: the limit for one pull on the loop.
FILTER_WORK_MAX = 4 << 20
_HOLE = HOLE_TAGS.to_bytes(8)


class ReadStatus(Enum):
    """Result of a read. The names are RocketMQ's remarks of the answer."""

    FOUND = "FOUND"
    NO_MATCHED_MESSAGE = "NO_MATCHED_MESSAGE"
    MESSAGE_WAS_REMOVING = "MESSAGE_WAS_REMOVING"
    NO_MATCHED_LOGIC_QUEUE = "NO_MATCHED_LOGIC_QUEUE"
    NO_MESSAGE_IN_QUEUE = "NO_MESSAGE_IN_QUEUE"
    OFFSET_TOO_SMALL = "OFFSET_TOO_SMALL"
    OFFSET_OVERFLOW_ONE = "OFFSET_OVERFLOW_ONE"
    OFFSET_OVERFLOW_BADLY = "OFFSET_OVERFLOW_BADLY"
    OFFSET_FOUND_NULL = "OFFSET_FOUND_NULL"


class QueueRead(msgspec.Struct):
    """Messages found by a read. ``parts`` are records back to back, in as few pieces as they have in the
    log."""

    status: ReadStatus
    next_offset: int
    min_offset: int
    max_offset: int
    parts: list[bytes] = []
    count: int = 0
    size_bytes: int = 0
    behind_bytes: int = 0  # distance of the last examined message from the end of the log
    slow: bool = False  # further behind than memory reaches: a replica may serve the reader
    filtered: int = 0


# Filters: (tags code) → may match; (bytes, offset of a record in them, its size) → matches. None: all match.
# Units exist only in queues with an extension; then the unit's tags code is checked too.
QueueFilter = Callable[[int], bool]
UnitFilter = Callable[[Unit], bool]
RecordFilter = Callable[[bytes, int, int], bool]


class ReadFilters(TypedDict, total=False):
    """Filters for :meth:`QueueReader.read`."""

    queue_filter: QueueFilter | None
    unit_filter: UnitFilter | None
    record_filter: RecordFilter | None


class ReadLimits(msgspec.Struct, frozen=True):
    """Limits of one read, in messages and bytes, for data in memory and on disk."""

    count_hot: int
    bytes_hot: int
    count_cold: int
    bytes_cold: int
    is_scan: bool = False

    @classmethod
    def of_pulls(cls, options: StoreOptions) -> ReadLimits:
        """Return the limits of pulls by consumers."""
        return cls(
            options.batch_count_hot,
            options.batch_bytes_hot,
            options.batch_count_cold,
            options.batch_bytes_cold,
        )

    @classmethod
    def of_scans(cls, options: StoreOptions, bytes_wanted: int) -> ReadLimits | None:
        """Return the limits of a table scan; None if the limits of consumers apply to it."""
        if not options.scan_bytes_max or bytes_wanted <= 0:
            return None
        size = min(bytes_wanted, options.scan_bytes_max)
        return cls(SCAN_COUNT_MAX, size, SCAN_COUNT_MAX, size, is_scan=True)


class _Asked(msgspec.Struct):
    """Parameters of a read, and the offsets of its queue."""

    offset: int
    count_max: int
    bytes_max: int
    min_offset: int
    max_offset: int
    may_wait: bool
    limits: ReadLimits
    format: EntryFormat


class QueueReader:
    """Reader of messages by queue offset."""

    def __init__(self, log: CommitLog, options: StoreOptions, memory_bytes: int) -> None:
        self._log = log
        self._options = options
        self._memory_bytes = memory_bytes
        self._read_check = ReadCheck(log)
        self.checked_from = 0  # the start has checked the log from this offset on

    def recovered(self, start: int) -> None:
        """Note that the start has checked the log from ``start`` on."""
        self.checked_from = start

    def cut(self, offset: int) -> None:
        """Check later messages after a cut of the log at ``offset``: the start has not seen them."""
        self.checked_from = min(self.checked_from, offset)

    @property
    def hot_from(self) -> int:
        """Return the log offset from which on messages count as being in memory."""
        return self._log.progress.confirmed - self._memory_bytes * self._options.memory_percent // 100

    def read(
        self,
        queue: ConsumeQueue | None,
        offset: int,
        count_max: int,
        *,
        bytes_max: int = PULL_BYTES_MAX,
        queue_filter: QueueFilter | None = None,
        unit_filter: UnitFilter | None = None,
        record_filter: RecordFilter | None = None,
        may_wait: bool = False,
        limits: ReadLimits | None = None,
    ) -> QueueRead:
        """Return the messages from ``offset`` on, within the limits, by default those of pulls. Raise
        :class:`Cold` instead of waiting for the disk unless ``may_wait``."""
        if queue is None:
            return QueueRead(ReadStatus.NO_MATCHED_LOGIC_QUEUE, 0, 0, 0)
        low, high = queue.min_offset, queue.max_offset
        if high == 0:
            return QueueRead(ReadStatus.NO_MESSAGE_IN_QUEUE, 0, low, high)
        if offset < low:
            return QueueRead(ReadStatus.OFFSET_TOO_SMALL, low, low, high)
        if offset == high:
            return QueueRead(ReadStatus.OFFSET_OVERFLOW_ONE, offset, low, high)
        if offset > high:
            return QueueRead(ReadStatus.OFFSET_OVERFLOW_BADLY, high, low, high)
        options = self._options
        limits = limits or ReadLimits.of_pulls(options)
        count_max = max(count_max, 1)  # the first message is returned whatever the limits
        if queue_filter is None and record_filter is None:
            # Clients request more than they get: entries over the limit need not be read.
            wanted = min(count_max, max(limits.count_hot, limits.count_cold, 1))
        else:
            wanted = max(options.filter_bytes_max // queue.format.size, min(count_max, LOOKED_AT_MAX))
        entries = self._entries(queue, offset, wanted, may_wait)
        if not entries:
            return QueueRead(ReadStatus.OFFSET_FOUND_NULL, queue.offset_after_file(offset), low, high)
        if queue.has_units and (queue_filter is not None or unit_filter is not None):
            units = self._units(queue, entries, may_wait)
            queue_filter = _with_units(units, queue_filter, unit_filter)
        bytes_max = min(max(bytes_max, PULL_BYTES_MIN), PULL_BYTES_MAX)
        asked = _Asked(offset, count_max, bytes_max, low, high, may_wait, limits, queue.format)
        try:
            found = self._collect(asked, entries, queue_filter, record_filter)
        except StoreError:
            # One by one: messages deleted meanwhile are skipped, and an unreadable one ends the read.
            found = self._collect(asked, entries, queue_filter, record_filter or _everything)
        if found.count and queue.format.unpack_from(entries)[0] < self.checked_from:
            seen = queue.format.part(entries, 0, found.next_offset - offset)
            self._read_check.check(queue, offset, seen, found.count, b"".join(found.parts))
        return found

    def _units(self, queue: ConsumeQueue, entries: bytes, may_wait: bool) -> dict[int, Unit]:
        try:
            return queue.units([code for _, _, code in queue.format.each(entries)], may_wait=may_wait)
        except NotInMemory:
            raise Cold from None
        except OffsetOutOfRange:
            return {}  # deleted meanwhile: then the filter reads the messages themselves

    def _entries(self, queue: ConsumeQueue, offset: int, count: int, may_wait: bool) -> bytes:
        if may_wait:
            return queue.read(offset, count)
        entries = queue.read_hot(offset, count)
        if entries is None:
            raise Cold
        return entries

    def _collect(
        self,
        asked: _Asked,
        entries: bytes,
        queue_filter: QueueFilter | None,
        record_filter: RecordFilter | None,
    ) -> QueueRead:
        at_once: QueueRead | None = None
        if queue_filter is None and record_filter is None:
            at_once = self._plain(asked, entries)
        elif queue_filter is None and getattr(record_filter, "answers", None) is not None:
            at_once = self._scanned(asked, entries, cast(PropertyCondition, record_filter))
        if at_once is not None:
            return at_once
        if queue_filter is None and record_filter in (None, _everything):
            entries = asked.format.part(entries, 0, JUDGED_MAX)
        limits = asked.limits
        count_max, bytes_max = asked.count_max, asked.bytes_max
        log_end = self._log.progress.confirmed
        hot_from = self.hot_from
        log_min = self._log.min_offset
        status = ReadStatus.NO_MATCHED_MESSAGE
        seen = 0
        removed_before = 0  # entries before this log offset were deleted with their file
        count = size_bytes = filtered = asked_bytes = 0
        terms = getattr(record_filter, "terms", 1)
        last_physical = log_end
        ranges: list[tuple[int, int]] = []  # ranges of the log, neighbours joined
        taken: list[bytes] = []  # records that passed the filter one by one
        block, block_at = b"", 0  # bytes read ahead for them
        for physical, size, tags_code in asked.format.each(entries):
            is_hot = physical >= hot_from
            if count and (
                count >= count_max
                or size_bytes + size > bytes_max
                or size_bytes + size > (limits.bytes_hot if is_hot else limits.bytes_cold)
                or count >= (limits.count_hot if is_hot else limits.count_cold)
            ):
                break
            if asked_bytes > FILTER_WORK_MAX:
                break
            seen += 1
            last_physical = physical
            if physical < removed_before or tags_code == HOLE_TAGS:
                continue
            if queue_filter is not None and not queue_filter(tags_code):
                if not count:
                    status = ReadStatus.NO_MATCHED_MESSAGE
                continue
            if size == BLANK_SIZE or physical < log_min:
                # A blank entry, or a message whose file is deleted while its queue entry still stands.
                if not count:
                    status = ReadStatus.MESSAGE_WAS_REMOVING
                    removed_before = log_min
                continue
            if record_filter is not None:
                at = physical - block_at
                if at < 0 or at + size > len(block):
                    try:
                        block = self._block(physical, size, log_end, asked.may_wait)
                    except Unreadable:
                        if seen == 1:
                            raise
                        seen -= 1  # the next read begins here, and raises
                        break
                    block_at, at = physical, 0
                if at >= len(block):
                    if not count:
                        status = ReadStatus.MESSAGE_WAS_REMOVING
                    continue
                asked_bytes += size * terms
                if not record_filter(block, at, size):
                    filtered += 1
                    if not count:
                        status = ReadStatus.NO_MATCHED_MESSAGE
                    continue
                taken.append(block[at : at + size])
            elif ranges and ranges[-1][1] == physical:
                ranges[-1] = (ranges[-1][0], physical + size)
            else:
                ranges.append((physical, physical + size))
            count += 1
            size_bytes += size
            status = ReadStatus.FOUND
        parts = taken if record_filter is not None else self._log.read_ranges(ranges, may_wait=asked.may_wait)
        return self._ended(asked, status, seen, parts, count, size_bytes, log_end - last_physical, filtered)

    def _ended(
        self,
        asked: _Asked,
        status: ReadStatus,
        seen: int,
        parts: list[bytes],
        count: int,
        size_bytes: int,
        behind: int,
        filtered: int = 0,
    ) -> QueueRead:
        """Return the result of a read after ``seen`` entries, the last of which lies ``behind`` bytes before
        the end of the log."""
        return QueueRead(
            status,
            asked.offset + seen,
            asked.min_offset,
            asked.max_offset,
            parts,
            count,
            size_bytes,
            behind,
            behind > self._memory_bytes * self._options.memory_percent // 100,
            filtered,
        )

    def _plain(self, asked: _Asked, entries: bytes) -> QueueRead | None:
        """Read the usual case: entries that are messages, in one file, all visible; as many as the limits
        allow. Return None if the first entry is different: then every entry is judged separately."""
        log, limits = self._log, asked.limits
        count_max = min(asked.count_max, limits.count_hot)
        bytes_max = min(asked.bytes_max, limits.bytes_hot)
        run = entry_run(entries, count_max, bytes_max, log.segments.size)
        if run is None:
            return None
        count, size_bytes, first, last, end, _ = run
        if size_bytes > bytes_max or first < log.min_offset:
            return None
        if not limits.is_scan and (
            first < self.hot_from or count < min(len(entries) // asked.format.size, count_max)
        ):
            return None  # a pull gets all it may have, including messages of the next file
        if limits.is_scan and not asked.may_wait and not self._is_quick(run):
            raise Cold
        data: bytes | None
        if end - first == size_bytes:
            data = log.read(first, size_bytes) if asked.may_wait else log.read_hot(first, size_bytes)
        else:
            data = log.segments.read_messages(entries, count, first, end, may_wait=asked.may_wait)
        if data is None:
            raise Cold
        behind = log.progress.confirmed - last
        return self._ended(asked, ReadStatus.FOUND, count, [data], count, size_bytes, behind)

    def _is_quick(self, run: EntryRun) -> bool:
        """Return True if other work of the loop can wait for this read, although it is in memory."""
        count, size_bytes, first, _, end, step_max = run
        span = end - first
        if first < self.checked_from:  # the read is going to be checked
            return size_bytes <= CHECKED_MAX
        return span <= SPAN_MAX and (span == size_bytes or step_max <= GAP_BYTES_MAX or count <= READS_MAX)

    def _scanned(self, asked: _Asked, entries: bytes, condition: PropertyCondition) -> QueueRead | None:
        """Return messages selected by their properties, if all entries are messages and hot; else None, as
        above."""
        if _HOLE in entries:
            return None
        log_end = self._log.progress.confirmed
        count_max = min(asked.count_max, asked.limits.count_hot)
        bytes_max = min(asked.bytes_max, asked.limits.bytes_hot)
        floor = max(self.hot_from, self._log.min_offset)
        taken: list[bytes] = []
        number = count = size_bytes = filtered = asked_bytes = 0
        block, block_at = b"", 0
        while True:
            number, count, size_bytes, left_out, why = scan_properties(
                entries, number, block, block_at, floor, condition.keys, condition.answers, taken,
                count, count_max, size_bytes, bytes_max,
            )  # fmt: skip
            filtered += left_out
            if why == ScanEnd.DONE:
                break
            physical, size, _ = asked.format.at(entries, number)
            if why == ScanEnd.ODD or size == BLANK_SIZE:
                return None
            if why == ScanEnd.ELSEWHERE:
                block, block_at = self._block(physical, size, log_end, asked.may_wait), physical
                if len(block) < size:
                    return None
                continue
            at = physical - block_at  # values without a remembered answer
            asked_bytes += size * condition.terms
            if condition(block, at, size):
                taken.append(block[at : at + size])
                count += 1
                size_bytes += size
            else:
                filtered += 1
            number += 1
            if asked_bytes > FILTER_WORK_MAX:
                break
        behind = log_end - asked.format.at(entries, number - 1)[0]
        status = ReadStatus.FOUND if count else ReadStatus.NO_MATCHED_MESSAGE
        return self._ended(asked, status, number, taken, count, size_bytes, behind, filtered)

    def _block(self, physical: int, size: int, log_end: int, may_wait: bool) -> bytes:
        """Return a record and the bytes after it, where the next ones probably are; nothing if it was
        deleted. Raise Unreadable if the log cannot be read there now."""
        file_bytes = self._log.segments.size
        upto = min(physical + BLOCK_BYTES, log_end, (physical // file_bytes + 1) * file_bytes)
        longer = max(size, upto - physical)
        read = self._log.read if may_wait else self._log.read_hot
        block: bytes | None = None
        try:
            try:
                block = read(physical, longer)
            except Unreadable:
                if longer == size:
                    raise
            if block is None and longer > size:
                block = read(physical, size)  # only the bytes after it may be cold, or damaged
        except OffsetOutOfRange:
            return b""
        if block is None:
            raise Cold
        return block


# Count, bytes, first offset, last offset, its end, widest step
EntryRun = tuple[int, int, int, int, int, int]


def _entry_run(entries: bytes, count_max: int, bytes_max: int, file_bytes: int) -> EntryRun | None:
    """Return the run of first entries that name messages in ascending order in one file of the log: as many
    as the limits allow, and at least one. None if the first names none."""
    count = total = first = last = end = step_max = 0
    for physical, size, tags_code in SIMPLE.each(entries):
        if physical < 0 or size < 0 or tags_code == HOLE_TAGS:
            break
        after = min(physical + size, INT64_MAX)
        if not count:
            first = physical
        elif (
            physical <= last
            or count >= count_max
            or total + size > bytes_max
            or after > min((first // file_bytes + 1) * file_bytes, INT64_MAX)
        ):
            break
        else:
            step_max = max(step_max, physical - last)
        last, end = physical, after
        count += 1
        total += size
    return (count, total, first, last, end, step_max) if count else None


entry_run: Final = compiled("entry_run", _entry_run)


def _everything(data: bytes, at: int, size: int) -> bool:
    return True


def _with_units(
    units: dict[int, Unit], queue_filter: QueueFilter | None, unit_filter: UnitFilter | None
) -> QueueFilter:
    """Return a filter for entries that may have addresses. An entry whose unit is lost may match."""

    def matches(tags_code: int) -> bool:
        if tags_code <= ADDRESS_MAX:
            unit = units.get(tags_code)
            if unit is None:
                return True
            if unit_filter is not None and not unit_filter(unit):
                return False
            tags_code = unit.tags_code
        return queue_filter is None or queue_filter(tags_code)

    return matches
