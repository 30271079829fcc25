"""Queue of a topic: the places of its messages in the commit log.

Entry ``n`` is twenty bytes at ``20 * n`` of a run of fixed-size files. New entries collect in a tail in
memory; :meth:`ConsumeQueue.write` writes them to the files and returns what must be flushed in a thread. The
event loop appends, writes and truncates. Any thread may read.

A queue may begin after 0: then its first file is filled, up to the first entry, with blank entries (offset 0,
the largest size), as RocketMQ does, because its broker must be able to open these files. RocketMQ later takes
them for messages and loses those after them; here they never count.
"""

from __future__ import annotations

import logging
import os
from bisect import bisect_left
from collections.abc import Callable, Iterable
from typing import NamedTuple

from kerolox.store.disk.segment import Segment
from kerolox.store.disk.segments import Segments
from kerolox.store.disk.sums import FileSum, QueueSums, first_unlike, sum_up, sums_before
from kerolox.store.disk.tail import Tail
from kerolox.store.errors import QueueGap, WrongFileSize
from kerolox.store.queue.entry import BLANK_SIZE, HOLE_TAGS, NOWHERE, SIMPLE, QueueEntry
from kerolox.store.queue.extension import Unit

logger = logging.getLogger(__name__)

_TAIL_MAX = 64_000  # bytes; above this an append first writes the tail
_TAIL_KEPT = 400  # entries that stay in memory after they were written


class QueueCut(NamedTuple):
    """End of a queue after a cut of the log."""

    queue: ConsumeQueue
    end: int  # its new next offset
    max_physical: int  # end of the message before it
    units_end: int | None = None  # end of its units; None: all of them stay

    @property
    def leaves_nothing(self) -> bool:
        """Return True if the queue came with the removed messages, and has no files that hold its offset."""
        return self.end == 0 or (self.max_physical < 0 and not self.queue.file_count)


class ConsumeQueue:
    """Entries of one queue.

    ``next_offset`` is the offset of the next entry; ``min_offset`` the first one whose message is still in
    the commit log, as of the last correction; ``max_physical`` the end of the last message entered, -1
    without any. ``waiting`` is a list shared by many queues: a queue adds itself when it first has something
    to write.
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
    format = SIMPLE  # of its entries
    has_units = False

    def __init__(
        self, topic: str, queue_id: int, segments: Segments, waiting: list[ConsumeQueue] | None = None
    ) -> None:
        if segments.size % self.format.size:
            raise ValueError(
                f"file size {segments.size} is not a multiple of the entry size, {self.format.size}"
            )
        self.topic = topic
        self.queue_id = queue_id
        self.next_offset = 0
        self.min_offset = 0
        self.max_physical = -1
        self._segments = segments
        self._waiting: list[ConsumeQueue] = [] if waiting is None else waiting
        self._tail: Tail | None = None
        self._written = 0  # entries before this offset are in the files
        self._suspect = -1  # offset of an entry that may be half written after a power loss
        self.sums: list[FileSum] = []  # sums of its files, as far as they are known

    def __repr__(self) -> str:
        return f"ConsumeQueue({self.topic!r}, {self.queue_id}, {self.min_offset}..{self.next_offset})"

    @property
    def path(self) -> str:
        return self._segments.directories[0]

    @property
    def max_offset(self) -> int:
        """Return the offset after the last entry: ``next_offset``, by its name on the wire."""
        return self.next_offset

    @property
    def file_count(self) -> int:
        return len(self._segments.all)

    @property
    def unwritten(self) -> int:
        """Return the number of entries that are only in memory."""
        return self.next_offset - self._written

    # Sums

    @property
    def written_bytes(self) -> tuple[int, int]:
        """Return the ends of the written data: of the queue, and of its extension."""
        return self._written * self.format.size, 0

    def sum_up(self, ends: tuple[int, int]) -> QueueSums:
        """Return the sums of the files up to these ends. Runs in a thread."""
        self.sums = sum_up(self._segments, self.sums, ends[0])
        return QueueSums(self.topic, self.queue_id, self.sums)

    def verified_end(self, known: QueueSums) -> int | None:
        """Return the offset before which all entries match their sums; None if all match. Call it before
        recovery."""
        unlike = first_unlike(self._segments, known.files)
        return None if unlike is None else unlike // self.format.size

    # Growing

    def append(self, physical: int, size: int, tags_code: int, queue_offset: int) -> bool:
        """Add one entry; return False if the queue has it already. Makes a system call only every few
        thousand entries.

        Raise :class:`QueueGap` if entries before it are missing, except in an empty queue, which may begin at
        any offset.
        """
        tail = self._tail
        if (
            tail is not None
            and queue_offset == self.next_offset
            and physical >= self.max_physical
            and len(tail) < _TAIL_MAX
        ):
            tail += self.format.pack(physical, size, tags_code)
            self.next_offset = queue_offset + 1
            self.max_physical = physical + size
            if queue_offset == self._written:
                self._waiting.append(self)
            return True
        entry = self.format.pack(physical, size, tags_code)
        if queue_offset == self._suspect:
            self._suspect = -1
            # If other entries follow, it is not the last written one: this message got an offset that was in
            # use, as Apache's brokers assign after a kill in a DLedger group.
            if queue_offset == self.next_offset - 1 and self.read(queue_offset, 1) != entry:
                self._cut(queue_offset)
        if not self._must_add(physical, size, queue_offset):
            return False
        self._add(entry, 1, physical + size)
        return True

    def extend(self, entries: bytes, first_offset: int) -> int:
        """Add many entries, the first with this queue offset; return the number of new ones."""
        count = self.format.count(entries)
        if not count:
            return 0
        unpack_from = self.format.unpack_from
        if first_offset == self.next_offset and unpack_from(entries)[0] >= self.max_physical:
            physical, size, _ = unpack_from(entries, len(entries) - self.format.size)
            self._add(entries, count, physical + size)
            return count
        return sum(
            self.append(physical, size, tags_code, queue_offset)
            for queue_offset, (physical, size, tags_code) in enumerate(
                self.format.each(entries), first_offset
            )
        )

    def _must_add(self, physical: int, size: int, queue_offset: int) -> bool:
        if physical + size <= self.max_physical:
            return False
        if queue_offset == self.next_offset:
            return True
        if self.max_physical < 0:  # no entries, or only blank ones
            if self._segments.last is not None:
                self._segments.delete_all()
            self._set_end(queue_offset)
            self.min_offset = queue_offset
            return True
        if queue_offset > self.next_offset:
            raise QueueGap(self.topic, self.queue_id, self.next_offset, queue_offset, self.path)
        logger.warning(
            "queue_offset_taken topic=%r queue=%d offset=%d next_offset=%d physical=%d "
            "next='send this message again: another one has its queue offset, so it cannot be consumed'",
            self.topic,
            self.queue_id,
            queue_offset,
            self.next_offset,
            physical,
        )
        return False

    def _add(self, entries: bytes, count: int, physical_end: int) -> None:
        tail = self._tail
        if tail is not None and len(tail) >= _TAIL_MAX:
            self.write()  # before the entry is added: if the write fails, it is not added
            tail = self._tail
        if tail is None:
            tail = self._tail = Tail.at(self.next_offset)
        tail += entries
        if self._written == self.next_offset:
            self._waiting.append(self)
        self.next_offset += count
        self.max_physical = physical_end

    # Writing

    def write(self) -> Segments | None:
        """Write the tail to the files. Return the files to flush (in a thread: it waits), None if all are
        flushed.

        After a failure the entries stay in memory, and the next call writes them.
        """
        tail = self._tail
        segments = self._segments
        if tail is None or self._written == self.next_offset:
            return segments if segments.flushed < segments.committed else None
        if segments.last is None:
            at = self._written * self.format.size
            segments.start_at(at - at % segments.size)
        if blanks := self._written - segments.wrote // self.format.size:
            segments.append(self.format.blank * blanks)
        while self._written < self.next_offset:
            if not segments.room:
                segments.roll()
            count = min(segments.room // self.format.size, self.next_offset - self._written)
            at = (self._written - tail.start) * self.format.size
            segments.append(tail[at : at + count * self.format.size])
            self._written += count
        kept = _TAIL_KEPT * self.format.size
        if len(tail) > kept:
            self._tail = Tail.at(self.next_offset - _TAIL_KEPT, tail[-kept:])
        return segments

    def cool(self) -> None:
        """Release the memory of a queue that got no new entries for a while."""
        if self._written == self.next_offset:
            self._tail = None

    # Reading

    def read(self, offset: int, count: int) -> bytes:
        """Return up to ``count`` entries from ``offset`` on, as bytes; none outside of the queue. May
        wait."""
        return self._read(offset, count, self._segments.read) or b""

    def read_hot(self, offset: int, count: int) -> bytes | None:
        """Return entries that are in memory; None if there are none: then call ``read`` in a thread.

        May return fewer entries than exist.
        """
        tail = self._tail
        if tail is not None and offset >= tail.start:
            at = (offset - tail.start) * self.format.size
            return bytes(tail[at : at + count * self.format.size])
        return self._read(offset, count, self._segments.read_hot)

    def _read(self, offset: int, count: int, read: Callable[[int, int], bytes | None]) -> bytes | None:
        # The tail first: entries that it does not hold are in the files, and stay there.
        tail = self._tail
        segments = self._segments
        if offset < 0 or count <= 0:
            return b""
        parts: list[bytes] = []
        end = offset + count
        in_files = end if tail is None else min(end, tail.start)
        while offset < in_files:
            size = min(segments.readable(offset * self.format.size) // self.format.size, in_files - offset)
            if not size:
                return b"".join(parts)
            part = read(offset * self.format.size, size * self.format.size)
            if part is None:
                return b"".join(parts) if parts else None
            parts.append(part)
            offset += size
        if tail is not None and offset < end:
            at = (offset - tail.start) * self.format.size
            parts.append(bytes(tail[at : at + (end - offset) * self.format.size]))
        return b"".join(parts)

    def offset_after_file(self, offset: int) -> int:
        """Return the first offset of the file after the one that would hold this offset."""
        per_file = self._segments.size // self.format.size
        return offset - offset % per_file + per_file

    def entry(self, offset: int, *, may_wait: bool = True) -> QueueEntry | None:
        """Return one entry; None outside of the queue, or if it is not in memory and ``may_wait`` is
        false."""
        data = self.read(offset, 1) if may_wait else self.read_hot(offset, 1)
        return self.format.at(data) if data else None

    def entries(self, offset: int, count: int, *, may_wait: bool) -> Iterable[QueueEntry] | None:
        """Return up to ``count`` entries from ``offset`` on, none outside of the queue. None: they are not in
        memory, and ``may_wait`` is false."""
        data = self.read(offset, count) if may_wait else self.read_hot(offset, count)
        return None if data is None else self.format.each(data)

    def units(self, codes: list[int], *, may_wait: bool) -> dict[int, Unit]:
        """Return the units of entries by their tags codes; without an extension there are none."""
        return {}

    def offset_by_time(
        self, time_ms: int, store_time_of: Callable[[int], int], *, log_min: int = 0, upper: bool = False
    ) -> int:
        """Return the first offset stored at ``time_ms`` or later; ``upper``: the last one at or before it.

        ``store_time_of`` returns the store time of the message at a physical offset, -1 if it was deleted
        meanwhile; it raises if that is unknown. The result is always between ``min_offset`` and
        ``max_offset``: the end if all messages are older, the beginning if (``upper``) all are younger. Reads
        the log and the queue, so it may wait.
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

    # Start, and truncation

    def load(self) -> None:
        """Find the files. Their content is known only after :meth:`recover`.

        A file of length 0 lost power before its first flush. It and the later ones hold nothing that ever
        counted as safe: they are removed, and rebuilt from the commit log.
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
        self._set_end(self._segments.max_offset // self.format.size)

    def recover(
        self, *, crashed: bool = True, safe_physical: int | None = None, verified_end: int | None = None
    ) -> None:
        """Find the end: the first invalid entry, from the third-last file on; or ``verified_end``, if entries
        from that offset on are to be rebuilt from the log.

        The search begins earlier if entries of messages from ``safe_physical`` on may be unflushed: after a
        power loss, any of several files may have kept its pages.

        Data after the end is cut off. After a crash some pages of a file may be new and others old. Therefore
        an entry that crosses two pages must also not point before its predecessor; the last entry is replaced
        if the commit log has another one; and the files wait for a flush, because data of a killed process
        may be only in memory.
        """
        segments = self._segments
        end = segments.max_offset
        previous = NOWHERE
        if verified_end is not None:
            end = min(end, verified_end * self.format.size)
        for segment in self._doubtful_files(safe_physical) if verified_end is None else ():
            valid, previous = self.format.valid_bytes(segments, segment.start, previous)
            if valid < segments.size:
                end = segment.start + valid
                break
        segments.truncate_to(end)
        self._set_end(end // self.format.size)
        self.min_offset = max(0, segments.min_offset) // self.format.size
        self._find_max_physical()
        self.correct_min_offset(0)
        if crashed and segments.last is not None:
            self._suspect = self.next_offset - 1
            segments.flush_again_from(segments.min_offset)
            segments.files.sync_dir(os.path.dirname(self.path))
            self._waiting.append(self)

    def _doubtful_files(self, safe_physical: int | None) -> tuple[Segment, ...]:
        files = self._segments.all
        first = max(0, len(files) - 3)
        while safe_physical is not None and first > 0:
            physical, size, _ = self.format.at(self._segments.read(files[first].start, self.format.size))
            if size == BLANK_SIZE or (size > 0 and 0 <= physical < safe_physical):
                break  # flushed, as is everything before it
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
        """Return the end of the message before this offset in the log; -1 without one."""
        last = self.entry(offset - 1)
        if last is None or last[1] == BLANK_SIZE:
            return -1
        # The entry of a lost message points at the next message, which may not be dispatched yet.
        return last[0] if last[2] == HOLE_TAGS else last[0] + last[1]

    def place_before(self, physical: int) -> int:
        """Return the beginning of the last message that begins at or before this log offset; else 0. May
        wait."""
        offset = self._search(self.min_offset, lambda entry: entry[1] != BLANK_SIZE and entry[0] > physical)
        entry = self.entry(offset - 1) if offset > self.min_offset else None
        return 0 if entry is None or entry[1] == BLANK_SIZE else entry[0]

    def truncate_to_physical(self, physical: int) -> None:
        """Remove the entries of messages at or after this log offset. Wait for the disk.

        Unlike RocketMQ it never removes the last file, so that a queue whose messages are all gone keeps its
        next offset.
        """
        if self.write() is not None:
            self._waiting.append(self)
        if self._segments.last is None:
            return
        end = self.offset_from(physical)
        if end < self.next_offset:
            self._cut(end)

    def offset_from(self, physical: int) -> int:
        """Return the first offset whose message lies at or after this log offset. May wait."""
        # Without files all entries are in memory. The memory may reach back to deleted files.
        low = (
            self._segments.min_offset // self.format.size
            if self._segments.last is not None
            else self._written
        )
        return self._search(low, lambda entry: entry[1] != BLANK_SIZE and entry[0] >= physical)

    def plan_cut(self, physical: int) -> QueueCut | None:
        """Return what a cut of the log at this offset removes; None if nothing. May wait."""
        if self.max_physical < physical:
            return None
        end = self.offset_from(physical)
        return None if end >= self.next_offset else QueueCut(self, end, self.physical_before(end))

    def lower_to(self, cut: QueueCut) -> None:
        """Make the cut visible to all later reads. No system call: the files are not changed, and nothing may
        be added before :meth:`clear_behind`."""
        tail, end = self._tail, cut.end
        if tail is not None:
            self._tail = (
                Tail.at(tail.start, tail[: (end - tail.start) * self.format.size])
                if end > tail.start
                else None
            )
        if end < self._written:
            self._segments.lower_to(end * self.format.size)
            self._written = end
        self.next_offset = end
        self.min_offset = min(self.min_offset, end)
        self.max_physical = cut.max_physical
        self._suspect = -1
        self.sums = sums_before(self.sums, end * self.format.size)

    def clear_behind(self) -> None:
        """Remove the cut entries from the files, too. Wait for the disk."""
        self._segments.clear_behind()

    def _cut(self, end: int) -> None:
        self._segments.truncate_to(end * self.format.size)
        self._set_end(end)
        self._find_max_physical()

    def correct_min_offset(self, log_min: int) -> None:
        """Move ``min_offset`` to the first entry whose message is in the commit log. May wait."""
        first = self._segments.min_offset // self.format.size
        self.min_offset = self._search(
            max(self.min_offset, first), lambda entry: entry[1] != BLANK_SIZE and entry[0] >= log_min
        )

    def _search(self, low: int, wanted: Callable[[QueueEntry], bool]) -> int:
        """Return the first offset from ``low`` on whose entry is wanted; the end if none is.

        Physical offsets only increase, so bisection works. Entries that do not exist (a missing file) count
        as not wanted.
        """

        def is_wanted(offset: int) -> bool:
            entry = self.entry(offset)
            return entry is not None and wanted(entry)

        if low >= self.next_offset or is_wanted(low):
            return low
        high = self.next_offset
        return low + bisect_left(range(low, high), True, key=is_wanted)

    def delete_before(self, log_min: int) -> int:
        """Remove files whose messages have all left the commit log, never the last one; return their number.
        Runs in a thread."""
        segments = self._segments
        end = 0
        for segment in segments.all[:-1]:
            last = self.entry(segment.end // self.format.size - 1)
            if last is None or last[0] >= log_min:
                break
            end = segment.end
        count = segments.delete_before(end)
        self.correct_min_offset(log_min)
        return count

    def cut_at(self, offset: int) -> None:
        """Remove the entries from this offset on. Wait for the disk."""
        if self.write() is not None:
            self._waiting.append(self)
        if self._segments.last is not None and offset < self.next_offset:
            self._cut(offset)

    def count_from(self, offset: int) -> None:
        """Set the offset of the next entry, because the messages before it are lost or deleted."""
        last = self.entry(self.next_offset - 1)
        if last is not None and last[1] != BLANK_SIZE:
            missing = offset - self.next_offset
            hole = self.format.pack(last[0], last[1], HOLE_TAGS)
            self._add(hole * missing, missing, self.max_physical)
            return
        first = offset - offset * self.format.size % self._segments.size // self.format.size
        self._set_end(first)
        if offset > first:
            self._add(self.format.blank * (offset - first), offset - first, -1)
        self.min_offset = offset

    def adopt(self, known: QueueSums) -> None:
        """Keep these sums, which match the files; nothing they cover was cut since."""
        self.sums = known.files

    def delete(self, aside: Callable[[], str] | None = None) -> None:
        """Remove all entries and files, as when the topic is deleted or the commit log is lost. ``aside``:
        see :meth:`Segments.delete_all`."""
        self._segments.delete_all(aside)
        self._set_end(0)
        self.max_physical = -1

    def forget_files(self) -> None:
        """Forget the files, because their directory was moved aside."""
        self._segments.forget_all()
        self._set_end(0)
        self.max_physical = -1

    def close_idle(self) -> None:
        """Close the descriptors that are not in use."""
        self._segments.close_idle()

    def close(self) -> None:
        """Write the tail and close the descriptors. To keep the data safe, flush before."""
        self.write()
        self._tail = None
        self._segments.close()
