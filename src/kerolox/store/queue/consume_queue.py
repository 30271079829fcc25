"""One queue of a topic: where its messages lie in the commit log.

Entry ``n`` is twenty bytes at ``20 * n`` of a run of fixed-size files. New entries collect in a tail in
memory; :meth:`ConsumeQueue.write` puts them in the files, and what it returns is flushed in a thread.

The event loop appends, writes and truncates. Any thread may read.

A queue need not begin at 0: then its first file is filled, up to the first entry, with blank entries
(offset 0, the largest size) as RocketMQ does, because its broker must be able to open our files.
RocketMQ later takes them for messages and loses those behind them; here they never count.
"""

from __future__ import annotations

import logging
import os
from bisect import bisect_left
from collections.abc import Callable
from typing import NamedTuple

from kerolox.store.disk.segment import Segment
from kerolox.store.disk.segments import Segments
from kerolox.store.disk.sums import FileSum, QueueSums, first_unlike, sum_up, sums_before
from kerolox.store.disk.tail import Tail
from kerolox.store.errors import QueueGap, WrongFileSize
from kerolox.store.queue.entry import (
    BLANK,
    BLANK_SIZE,
    ENTRIES_PER_FILE,
    ENTRY,
    ENTRY_SIZE,
    HOLE_TAGS,
    NOWHERE,
    QueueEntry,
    valid_bytes,
)

logger = logging.getLogger(__name__)

__all__ = ["BLANK", "BLANK_SIZE", "ENTRIES_PER_FILE", "ENTRY", "ENTRY_SIZE", "HOLE_TAGS", "ConsumeQueue"]

_TAIL_MAX = 3200 * ENTRY_SIZE  # beyond this an append writes the tail first
_TAIL_KEPT = 400 * ENTRY_SIZE  # how much of it stays in memory after it was written
_pack = ENTRY.pack
_unpack_from = ENTRY.unpack_from


class QueueCut(NamedTuple):
    """Where a queue ends when the log was cut."""

    queue: ConsumeQueue
    end: int  # its next offset then
    max_physical: int  # where the message before ends
    units_end: int | None = None  # where its units end; None: all of them stay

    @property
    def leaves_nothing(self) -> bool:
        """Not even files to count by: the queue came with what was cut."""
        return self.end == 0 or (self.max_physical < 0 and not self.queue.file_count)


class ConsumeQueue:
    """The entries of one queue.

    ``next_offset`` is the offset the next entry gets; ``min_offset`` the first one whose message is
    still in the commit log, as of the last correction; ``max_physical`` the end of the last message
    entered, -1 when there is none. ``waiting`` is a list shared by many queues: a queue puts itself
    there when it first has something to write.
    """

    __slots__ = (
        "_segments",
        "_suspect",
        "_tail",
        "_waiting",
        "_written",
        "max_physical",
        "min_offset",
        "next_offset",
        "queue_id",
        "sums",
        "topic",
    )

    def __init__(
        self, topic: str, queue_id: int, segments: Segments, waiting: list[ConsumeQueue] | None = None
    ) -> None:
        if segments.size % ENTRY_SIZE:
            raise ValueError(f"file size {segments.size} is no multiple of the entry size, {ENTRY_SIZE}")
        self.topic = topic
        self.queue_id = queue_id
        self.next_offset = 0
        self.min_offset = 0
        self.max_physical = -1
        self._segments = segments
        self._waiting: list[ConsumeQueue] = [] if waiting is None else waiting
        self._tail: Tail | None = None
        self._written = 0  # entries below this are in the files
        self._suspect = -1  # offset of an entry that may have been half written when the power failed
        self.sums: list[FileSum] = []  # of its files, as far as they were summed

    def __repr__(self) -> str:
        return f"ConsumeQueue({self.topic!r}, {self.queue_id}, {self.min_offset}..{self.next_offset})"

    @property
    def path(self) -> str:
        return self._segments.directories[0]

    @property
    def max_offset(self) -> int:
        """One past the last entry: the same as ``next_offset``, under the name the wire has for it."""
        return self.next_offset

    @property
    def file_count(self) -> int:
        return len(self._segments.all)

    @property
    def unwritten(self) -> int:
        """How many entries are only in memory."""
        return self.next_offset - self._written

    # What vouches for it

    @property
    def written_bytes(self) -> tuple[int, int]:
        """Where what is in the files ends: of the queue, and of its extension."""
        return self._written * ENTRY_SIZE, 0

    def sum_up(self, ends: tuple[int, int]) -> QueueSums:
        """The sums of what is in the files up to these ends. For a thread."""
        self.sums = sum_up(self._segments, self.sums, ends[0])
        return QueueSums(self.topic, self.queue_id, self.sums)

    def vouched(self, known: QueueSums) -> int | None:
        """The offset before which all entries are as they were summed; None when all are. Before recovery."""
        unlike = first_unlike(self._segments, known.files)
        return None if unlike is None else unlike // ENTRY_SIZE

    # Growing

    def append(self, physical: int, size: int, tags_code: int, queue_offset: int) -> bool:
        """Add one entry; False when it is there already. No system call, but every few thousand entries.

        Raises :class:`QueueGap` when entries before it are missing, except in an empty queue, which may
        begin anywhere.
        """
        tail = self._tail
        if (
            tail is not None
            and queue_offset == self.next_offset
            and physical >= self.max_physical
            and len(tail) < _TAIL_MAX
        ):
            tail += _pack(physical, size, tags_code)
            self.next_offset = queue_offset + 1
            self.max_physical = physical + size
            if queue_offset == self._written:
                self._waiting.append(self)
            return True
        entry = _pack(physical, size, tags_code)
        if queue_offset == self._suspect:
            self._suspect = -1
            # With others behind it, it is not what was written last: this message was given an offset that
            # was taken, as Apache's brokers do after a kill in a DLedger group.
            if queue_offset == self.next_offset - 1 and self.read(queue_offset, 1) != entry:
                self._cut(queue_offset)
        if not self._must_add(physical, size, queue_offset):
            return False
        self._add(entry, physical + size)
        return True

    def extend(self, entries: bytes, first_offset: int) -> int:
        """Add many entries, of which the first has this queue offset; how many were new."""
        if len(entries) % ENTRY_SIZE:
            raise ValueError(f"{len(entries)} bytes are no whole number of {ENTRY_SIZE}-byte entries")
        if not entries:
            return 0
        if first_offset == self.next_offset and _unpack_from(entries)[0] >= self.max_physical:
            physical, size, _ = _unpack_from(entries, len(entries) - ENTRY_SIZE)
            self._add(entries, physical + size)
            return len(entries) // ENTRY_SIZE
        return sum(
            self.append(physical, size, tags_code, queue_offset)
            for queue_offset, (physical, size, tags_code) in enumerate(
                ENTRY.iter_unpack(entries), first_offset
            )
        )

    def _must_add(self, physical: int, size: int, queue_offset: int) -> bool:
        if physical + size <= self.max_physical:
            return False
        if queue_offset == self.next_offset:
            return True
        if self.max_physical < 0:  # no entries, at most blank ones
            if self._segments.last is not None:
                self._segments.delete_all()
            self._set_end(queue_offset)
            self.min_offset = queue_offset
            return True
        if queue_offset > self.next_offset:
            raise QueueGap(self.topic, self.queue_id, self.next_offset, queue_offset, self.path)
        logger.warning(
            "queue_offset_taken topic=%r queue=%d offset=%d next_offset=%d physical=%d "
            "next='the message at this place of the log cannot be consumed: send it again'",
            self.topic,
            self.queue_id,
            queue_offset,
            self.next_offset,
            physical,
        )
        return False

    def _add(self, entries: bytes, physical_end: int) -> None:
        tail = self._tail
        if tail is not None and len(tail) >= _TAIL_MAX:
            self.write()  # before the entry is taken: if this fails, it was not
            tail = self._tail
        if tail is None:
            tail = self._tail = Tail.at(self.next_offset)
        tail += entries
        if self._written == self.next_offset:
            self._waiting.append(self)
        self.next_offset += len(entries) // ENTRY_SIZE
        self.max_physical = physical_end

    # Writing

    def write(self) -> Segments | None:
        """Put the tail in the files. Returns what to flush (in a thread: it waits), None when all is.

        After a failure the entries stay in memory, to be written next time.
        """
        tail = self._tail
        segments = self._segments
        if tail is None or self._written == self.next_offset:
            return segments if segments.flushed < segments.committed else None
        if segments.last is None:
            at = self._written * ENTRY_SIZE
            segments.start_at(at - at % segments.size)
        if blanks := self._written - segments.wrote // ENTRY_SIZE:
            segments.append(BLANK * blanks)
        while self._written < self.next_offset:
            if not segments.room:
                segments.roll()
            count = min(segments.room // ENTRY_SIZE, self.next_offset - self._written)
            at = (self._written - tail.start) * ENTRY_SIZE
            segments.append(tail[at : at + count * ENTRY_SIZE])
            self._written += count
        if len(tail) > _TAIL_KEPT:
            self._tail = Tail.at(self.next_offset - _TAIL_KEPT // ENTRY_SIZE, tail[-_TAIL_KEPT:])
        return segments

    def cool(self) -> None:
        """Give the memory back: for a queue that got nothing new for a while."""
        if self._written == self.next_offset:
            self._tail = None

    # Reading

    def read(self, offset: int, count: int) -> bytes:
        """Up to ``count`` entries from ``offset`` on, as bytes; none outside of the queue. May wait."""
        return self._read(offset, count, self._segments.read) or b""

    def read_hot(self, offset: int, count: int) -> bytes | None:
        """Like read, of what is in memory; None when that is nothing: then ``read`` in a thread.

        May give fewer entries than there are.
        """
        tail = self._tail
        if tail is not None and offset >= tail.start:
            at = (offset - tail.start) * ENTRY_SIZE
            return bytes(tail[at : at + count * ENTRY_SIZE])
        return self._read(offset, count, self._segments.read_hot)

    def _read(self, offset: int, count: int, read: Callable[[int, int], bytes | None]) -> bytes | None:
        # The tail first: whatever it does not hold is in the files, and stays there.
        tail = self._tail
        segments = self._segments
        if offset < 0 or count <= 0:
            return b""
        parts: list[bytes] = []
        end = offset + count
        in_files = end if tail is None else min(end, tail.start)
        while offset < in_files:
            size = min(segments.readable(offset * ENTRY_SIZE) // ENTRY_SIZE, in_files - offset)
            if not size:
                return b"".join(parts)
            part = read(offset * ENTRY_SIZE, size * ENTRY_SIZE)
            if part is None:
                return b"".join(parts) if parts else None
            parts.append(part)
            offset += size
        if tail is not None and offset < end:
            at = (offset - tail.start) * ENTRY_SIZE
            parts.append(bytes(tail[at : at + (end - offset) * ENTRY_SIZE]))
        return b"".join(parts)

    def offset_after_file(self, offset: int) -> int:
        """The first offset of the file after the one that would hold this offset."""
        per_file = self._segments.size // ENTRY_SIZE
        return offset - offset % per_file + per_file

    def entry(self, offset: int) -> QueueEntry | None:
        """One entry; None outside of the queue. May wait for the disk."""
        data = self.read(offset, 1)
        return ENTRY.unpack(data) if data else None

    def offset_by_time(
        self, time_ms: int, store_time_of: Callable[[int], int], *, log_min: int = 0, upper: bool = False
    ) -> int:
        """The first offset stored at ``time_ms`` or later; ``upper``: the last one at or before it.

        ``store_time_of`` gives the store time of the message at a physical offset, -1 when it was deleted
        meanwhile; it raises when that cannot be told. Always between ``min_offset`` and ``max_offset``: the
        end when all are older, the beginning when (``upper``) all are younger. Reads the log and the queue,
        so it may wait.
        """
        low = first = self.min_offset
        high = self.next_offset
        while low < high:
            middle = (low + high) // 2
            entry = self.entry(middle)
            if entry is None or entry[1] == BLANK_SIZE or entry[0] < log_min:
                low = middle + 1
                continue
            stored_ms = store_time_of(entry[0])
            if stored_ms < time_ms or (upper and stored_ms == time_ms):
                low = middle + 1
            else:
                high = middle
        return max(first, low - 1) if upper else low

    # Start, and shrinking

    def load(self) -> None:
        """Find the files. What is in them is known only after :meth:`recover`.

        A file without length lost power before its first flush. It and those after it hold nothing that
        was ever counted as safe: they are removed, and come back from the commit log.
        """
        try:
            self._segments.load()
        except WrongFileSize as error:
            if error.size:
                raise
            files = self._segments.files
            for name in reversed(files.list_dir(self.path)):
                if name >= os.path.basename(error.path):
                    logger.warning("unflushed_queue_file_removed path=%s/%s", self.path, name)
                    files.remove(os.path.join(self.path, name))
            self._segments.load()
        self._set_end(self._segments.max_offset // ENTRY_SIZE)

    def recover(
        self, *, crashed: bool = True, safe_physical: int | None = None, vouched: int | None = None
    ) -> None:
        """Find the end: the first entry that is none, looking from the third-last file on; or ``vouched``,
        when entries from that offset on are to come again from the log.

        Earlier when the entries of messages from ``safe_physical`` on may not have been flushed: of
        several files written before lost power any may have kept its pages.

        What follows the end is cut off. After a crash some pages of a file may be new and others old, so an
        entry that lies across two pages must also not point before its predecessor; if the last entry
        comes again from the commit log and is another one, it is replaced; and the files wait for a
        flush, as what a killed process wrote may be in memory only.
        """
        segments = self._segments
        end = segments.max_offset
        previous = NOWHERE
        if vouched is not None:
            end = min(end, vouched * ENTRY_SIZE)
        for segment in self._doubtful_files(safe_physical) if vouched is None else ():
            valid, previous = valid_bytes(segments, segment.start, previous)
            if valid < segments.size:
                end = segment.start + valid
                break
        segments.truncate_to(end)
        self._set_end(end // ENTRY_SIZE)
        self.min_offset = max(0, segments.min_offset) // ENTRY_SIZE
        self._find_max_physical()
        self.correct_min_offset(0)
        if crashed and segments.last is not None:
            self._suspect = self.next_offset - 1
            segments.flushed = segments.min_offset
            for segment in segments.all:
                segment.named = False  # nor need its name be on the medium
            segments.files.sync_dir(os.path.dirname(self.path))
            self._waiting.append(self)

    def _doubtful_files(self, safe_physical: int | None) -> tuple[Segment, ...]:
        files = self._segments.all
        first = max(0, len(files) - 3)
        while safe_physical is not None and first > 0:
            physical, size, _ = ENTRY.unpack(self._segments.read(files[first].start, ENTRY_SIZE))
            if size == BLANK_SIZE or (size > 0 and 0 <= physical < safe_physical):
                break  # flushed, and so is all before it
            first -= 1
        return files[first:]

    def _set_end(self, offset: int) -> None:
        self.next_offset = self._written = offset
        self.min_offset = min(self.min_offset, offset)
        self._tail = None
        self._suspect = -1
        self.sums = []

    def _find_max_physical(self) -> None:
        self.max_physical = self.physical_before(self.next_offset)

    def physical_before(self, offset: int) -> int:
        """Where the message before this offset ends in the log; -1 when there is none."""
        last = self.entry(offset - 1)
        if last is None or last[1] == BLANK_SIZE:
            return -1
        # What stands for a lost message points at the next one, which may be still to come.
        return last[0] if last[2] == HOLE_TAGS else last[0] + last[1]

    def place_before(self, physical: int) -> int:
        """Where the last message begins that does so at this place of the log or before; else 0. May wait."""
        offset = self._search(self.min_offset, lambda entry: entry[1] != BLANK_SIZE and entry[0] > physical)
        entry = self.entry(offset - 1) if offset > self.min_offset else None
        return 0 if entry is None or entry[1] == BLANK_SIZE else entry[0]

    def truncate_to_physical(self, physical: int) -> None:
        """Remove the entries of messages at or beyond this place in the commit log. Waits for the disk.

        Unlike RocketMQ it never removes the last file, so that a queue whose messages are all gone
        goes on counting where it was.
        """
        if self.write() is not None:
            self._waiting.append(self)
        if self._segments.last is None:
            return
        end = self.offset_from(physical)
        if end < self.next_offset:
            self._cut(end)

    def offset_from(self, physical: int) -> int:
        """The first offset whose message lies at this place of the log or behind it. May wait."""
        # Without a file all of it is in memory. The memory may reach back to files that were deleted.
        low = self._segments.min_offset // ENTRY_SIZE if self._segments.last is not None else self._written
        return self._search(low, lambda entry: entry[1] != BLANK_SIZE and entry[0] >= physical)

    def plan_cut(self, physical: int) -> QueueCut | None:
        """What a cut of the log at this place takes; None when it takes nothing. May wait."""
        if self.max_physical < physical:
            return None
        end = self.offset_from(physical)
        return None if end >= self.next_offset else QueueCut(self, end, self.physical_before(end))

    def lower_to(self, cut: QueueCut) -> None:
        """Make it the end for whoever reads from now on. No system call: the files are as they were, and
        nothing may be added before :meth:`clear_behind`."""
        tail, end = self._tail, cut.end
        if tail is not None:
            self._tail = (
                Tail.at(tail.start, tail[: (end - tail.start) * ENTRY_SIZE]) if end > tail.start else None
            )
        if end < self._written:
            self._segments.lower_to(end * ENTRY_SIZE)
            self._written = end
        self.next_offset = end
        self.min_offset = min(self.min_offset, end)
        self.max_physical = cut.max_physical
        self._suspect = -1
        self.sums = sums_before(self.sums, end * ENTRY_SIZE)

    def clear_behind(self) -> None:
        """Take what was cut off out of the files, too. Waits for the disk."""
        self._segments.clear_behind()

    def _cut(self, end: int) -> None:
        self._segments.truncate_to(end * ENTRY_SIZE)
        self._set_end(end)
        self._find_max_physical()

    def correct_min_offset(self, log_min: int) -> None:
        """Move ``min_offset`` to the first entry whose message is in the commit log. May wait."""
        first = self._segments.min_offset // ENTRY_SIZE
        self.min_offset = self._search(
            max(self.min_offset, first), lambda entry: entry[1] != BLANK_SIZE and entry[0] >= log_min
        )

    def _search(self, low: int, wanted: Callable[[QueueEntry], bool]) -> int:
        """The first offset from ``low`` on whose entry is wanted; the end when none is.

        Physical offsets only grow, so bisection does. What cannot be read (a missing file) counts as
        not wanted.
        """

        def is_wanted(offset: int) -> bool:
            entry = self.entry(offset)
            return entry is not None and wanted(entry)

        if low >= self.next_offset or is_wanted(low):
            return low
        high = self.next_offset
        return low + bisect_left(range(low, high), True, key=is_wanted)

    def delete_before(self, log_min: int) -> int:
        """Remove files all of whose messages left the commit log, never the last; how many. For a thread."""
        segments = self._segments
        end = 0
        for segment in segments.all[:-1]:
            last = self.entry(segment.end // ENTRY_SIZE - 1)
            if last is None or last[0] >= log_min:
                break
            end = segment.end
        count = segments.delete_before(end)
        self.correct_min_offset(log_min)
        return count

    def cut_at(self, offset: int) -> None:
        """Remove the entries from this offset on. Waits for the disk."""
        if self.write() is not None:
            self._waiting.append(self)
        if self._segments.last is not None and offset < self.next_offset:
            self._cut(offset)

    def count_from(self, offset: int) -> None:
        """Give the next entry this offset, as the messages before it are lost or deleted."""
        last = self.entry(self.next_offset - 1)
        if last is not None and last[1] != BLANK_SIZE:
            self._add(_pack(last[0], last[1], HOLE_TAGS) * (offset - self.next_offset), self.max_physical)
            return
        first = offset - offset * ENTRY_SIZE % self._segments.size // ENTRY_SIZE
        self._set_end(first)
        if offset > first:
            self._add(BLANK * (offset - first), -1)
        self.min_offset = offset

    def adopt(self, known: QueueSums) -> None:
        """These sums were found to be right, and nothing they cover was cut since."""
        self.sums = known.files

    def delete(self, aside: Callable[[], str] | None = None) -> None:
        """Remove all entries and files, as when the topic is deleted or the commit log is lost. ``aside``: as
        for :meth:`Segments.delete_all`."""
        self._segments.delete_all(aside)
        self._set_end(0)
        self.max_physical = -1

    def forget_files(self) -> None:
        """Forget the files: their directory has moved aside."""
        self._segments.forget_all()
        self._set_end(0)
        self.max_physical = -1

    def close_idle(self) -> None:
        """Give back the descriptors that are not in use."""
        self._segments.close_idle()

    def close(self) -> None:
        """Write the tail and give back the descriptors. Flush what was written first, if it matters."""
        self.write()
        self._tail = None
        self._segments.close()
