"""Run of fixed-size files as one long address space.

Three offsets, each at most the one before: ``wrote`` (appended), ``committed`` (in the file, visible to
readers), ``flushed`` (on the medium). ``wrote`` and ``committed`` differ only with the transient buffer.

One thread appends, rolls and truncates (the event loop). Any thread may read, flush, commit, prepare the next
file or delete old ones at the same time. A cut has two steps, so that it can be made while others read:
:meth:`Segments.lower_to` immediately and without the disk, :meth:`Segments.clear_behind` in a thread.

The length of a file does not show how much of it is used: the rest is zeros, and recovery finds the end by
parsing. After :meth:`Segments.load` everything counts as written until :meth:`Segments.truncate_to` sets the
end.
"""

from __future__ import annotations

import logging
import os
import threading
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from itertools import pairwise

from kerolox.store.disk.files import PAGE, Buffer, File, Files, PathLike
from kerolox.store.disk.segment import OpenFiles, Segment, remove_segment
from kerolox.store.disk.segment_files import SegmentFiles
from kerolox.store.errors import FsyncFailed, OffsetOutOfRange, SegmentGone, StoreError, WrongFileSize

logger = logging.getLogger(__name__)

_BUFFERS = (bytes, bytearray, memoryview)
_STEP_MAX = 1 << 20  # the most a file that grows gets at once
NOWHERE = 1 << 63  # behind all there can be
FOUND_BYTES_MAX = 64 << 20  # of remade files: found at the start, kept until they are flushed


class Segments:
    """Files of one log or one queue.

    With several ``directories``, a new file goes to the directory its number selects among those neither in
    ``read_only_directories`` nor in ``full_directories`` (which is updated as disks fill).

    ``warm`` writes the zeros of a new file instead of only allocating its blocks, in the thread that prepares
    it: flushes of a new file then take a steadier time. Locking pages in memory, RocketMQ's other half of
    warming up, has no counterpart, because nothing is mapped.

    ``grows`` gives a file its full length immediately, because RocketMQ rejects others, but its blocks in
    steps. Each step is as large as all before it and at most a megabyte: a store has thousands of queues with
    one message.

    ``transient`` collects appends in memory until :meth:`commit`: fewer and larger writes, but a killed
    process loses uncommitted data.

    ``remade`` is for files that are built from others: data appended since the last successful flush stays in
    memory, and after a failed flush all of it is written again before the next one. The log itself stays in
    doubt after a failed flush.
    """

    def __init__(
        self,
        files: Files,
        directories: PathLike | Sequence[PathLike],
        size: int,
        *,
        open_files: OpenFiles | None = None,
        read_only_directories: Sequence[PathLike] = (),
        transient: bool = False,
        warm: bool = False,
        grows: bool = False,
        remade: bool = False,
    ) -> None:
        if size <= 0:
            raise ValueError(f"segment size is {size}, expected more than 0")
        self.files = files
        self.size = size
        self.transient = transient
        self.open_files = OpenFiles(files) if open_files is None else open_files
        self._places = SegmentFiles(
            self.open_files,
            directories,
            size,
            read_only=read_only_directories,
            warm=warm,
            grows=grows,
            remade=remade,
        )
        self.directories = self._places.directories
        self.full_directories = self._places.full
        # For a log: offset from which on its records are in entries, see log/framing.py
        self.entries_from = NOWHERE
        self.wrote = 0
        self.committed = 0
        self.flushed = 0
        self._segments: list[Segment] = []  # replaced, never changed: readers hold the old one
        self._cuts = 0  # number of times that the end was lowered
        self._cut_off: list[Segment] = []  # files after the lowered end, to be removed
        self._change = threading.Lock()  # held while ``_segments`` is replaced
        self._flushing = threading.Lock()
        self._pending: list[tuple[int, Buffer]] = []  # transient: data and offsets to write, in order
        self._committing = threading.Lock()
        self._unflushed: deque[tuple[int, Buffer]] | None = deque() if remade else None
        self._unflushed_from = NOWHERE  # everything appended from here on is kept until it is flushed
        self._doubt: FsyncFailed | None = None  # for remade files: the kernel may have dropped written data

    # Content

    @property
    def all(self) -> tuple[Segment, ...]:
        return tuple(self._segments)

    @property
    def first(self) -> Segment | None:
        segments = self._segments
        return segments[0] if segments else None

    @property
    def last(self) -> Segment | None:
        segments = self._segments
        return segments[-1] if segments else None

    @property
    def min_offset(self) -> int:
        """Return the start of the oldest file; -1 if there is none."""
        segments = self._segments
        return segments[0].start if segments else -1

    @property
    def max_offset(self) -> int:
        """Return the end of the data that readers may see; 0 without files."""
        return self.committed

    @property
    def room(self) -> int:
        """Return the bytes left in the file being written; 0: roll first."""
        segments = self._segments
        return segments[-1].end - self.wrote if segments else 0

    @property
    def broken(self) -> FsyncFailed | None:
        """Return the error of the first failed flush. From then on the content of the log stays in doubt."""
        return self._places.broken

    @property
    def unflushed_bytes(self) -> int:
        """Return the bytes in memory that wait for their flush. For remade files."""
        return sum(len(data) for _, data in list(self._unflushed or ()))

    @property
    def gaps(self) -> list[tuple[int, int]]:
        """Return the missing ranges between files. Reads inside them fail; all other reads work."""
        segments = self._segments
        return [(a.end, b.start) for a, b in pairwise(segments) if a.end != b.start]

    def segment_at(self, offset: int) -> Segment | None:
        """Return the file that holds this offset, written or not."""
        segments = self._segments
        if not segments:
            return None
        i = (offset - segments[0].start) // self.size
        if i < 0:
            return None
        if i < len(segments) and segments[i].start <= offset < segments[i].end:
            return segments[i]
        i = bisect_right(segments, offset, key=_start_of) - 1  # there are gaps
        return segments[i] if i >= 0 and offset < segments[i].end else None

    def load(self) -> None:
        """Find the files. Reject a wrong length or a stray file; remove empty last files.

        A power loss soon after the creation of a file can leave it with length 0; none of it was flushed.
        RocketMQ removes one such file, and fails if there are two.
        """
        segments = self._places.find()
        self._segments = segments
        self._set_positions(segments[-1].end if segments else 0)
        for low, high in self.gaps:
            logger.warning(
                "log_gap directory=%s missing=%d..%d next='restore the missing files; until then reads "
                "there fail'",
                self.directories[0],
                low,
                high,
            )

    def _set_positions(self, offset: int) -> None:
        self.wrote = self.committed = self.flushed = offset

    # Growing

    def doubt_from(self, offset: int) -> None:
        """Count what was found from ``offset`` on as not flushed: the process that wrote it has ended.

        The bytes are kept like those that are appended, up to FOUND_BYTES_MAX. Waits for the disk.
        """
        self.flushed = min(self.flushed, offset)
        low = max(self.flushed, self.min_offset)
        if self._unflushed is None or self.wrote - low > FOUND_BYTES_MAX:
            return  # a flush that fails ends with the next start
        for segment in self._segments:
            begin, end = max(low, segment.start), min(self.wrote, segment.end)
            if begin < end:
                self._unflushed.append((begin, self.read(begin, end - begin)))
        self._unflushed_from = self.flushed

    def start_at(self, offset: int) -> None:
        """Begin an empty log at this offset; its file starts at the nearest lower multiple of the file
        size."""
        if self._segments:
            raise ValueError(f"{self.directories[0]} already holds {self.min_offset} to {self.max_offset}")
        self._grow(offset - offset % self.size)
        self._set_positions(offset)

    def append(self, data: Buffer | Sequence[Buffer]) -> int:
        """Append data in one system call, and return its offset. It must fit in :attr:`room`."""
        offset = self.wrote
        whole = data if isinstance(data, _BUFFERS) else b"".join(data)
        length = len(whole)
        segments = self._segments
        if not segments or offset + length > segments[-1].end:
            raise OffsetOutOfRange(
                f"{length} bytes do not fit in the {self.room} left: roll first",
                path=self.directories[0],
                offset=offset,
                low=self.min_offset,
                high=self.max_offset,
            )
        if self.transient:
            # First the bytes, then the offset: commit() reads them in reverse order.
            self._pending.append((offset, whole))
            self.wrote = offset + length
            return offset
        segment = segments[-1]
        at = offset - segment.start
        file = self.open_files.acquire(segment)
        try:
            if at + length > segment.reserved:
                _reserve(file, segment, at + length)
            segment.dirty = True
            try:
                file.pwrite(whole, at)
            except StoreError:
                _undo(file, at, length)
                raise
        finally:
            self.open_files.release(segment)
        if self._unflushed is not None:
            self._unflushed_from = min(self._unflushed_from, offset)
            self._unflushed.append((offset, whole))
        self.wrote = self.committed = offset + length
        return offset

    def commit(self) -> int:
        """Write the transient buffer to the files; return the committed offset. Runs in a thread."""
        with self._committing:
            # The appender only adds at the end, so the parts counted here stay in place, and include
            # everything before the offset that was read first.
            wrote = self.wrote
            count = len(self._pending)
            done = 0
            while done < count:
                start, _ = self._pending[done]
                segment = self.segment_at(start)
                if segment is None:  # deleted or truncated away meanwhile
                    done += 1
                    continue
                upto = done
                end = start
                while upto < count and self._pending[upto][0] == end and end < segment.end:
                    end += len(self._pending[upto][1])
                    upto += 1
                parts = [data for _, data in self._pending[done:upto]]
                file = self.open_files.acquire(segment)
                try:
                    segment.dirty = True
                    file.pwritev(parts, start - segment.start)
                except StoreError:
                    del self._pending[:done]
                    raise
                finally:
                    self.open_files.release(segment)
                self.committed = max(self.committed, end)
                done = upto
            del self._pending[:count]
            # A roll past an unused tail leaves nothing to write in the tail, but readers may pass it.
            self.committed = max(self.committed, wrote)
            return self.committed

    def roll(self) -> int:
        """Continue in a new file, however much room was left; return its start. Uses the prepared file if
        there is one.

        Waits for the preparation if it is under way. If that failed, its error is raised here, once, and the
        next roll tries again.
        """
        last = self.last
        start = last.end if last is not None else 0
        self._grow(start)
        self._skip_to(start)
        return start

    def _skip_to(self, offset: int) -> None:
        skipped = offset > self.wrote
        self.wrote = offset
        if not self.transient or (skipped and not self._pending):
            self.committed = offset

    def _grow(self, start: int) -> None:
        segment = self._places.take(start)
        with self._change:
            self._segments = [*self._segments, segment]

    def ensure_next(self) -> None:
        """Make sure that the next file exists, so that the :meth:`roll` that follows cannot fail."""
        last = self.last
        self._places.ensure(last.end if last is not None else 0)

    def prepare_next(self, executor: Executor) -> Future[Segment] | None:
        """Create the next file in a thread, so that the roll to it need not wait.

        Return None if it is already prepared or under way. A failure is raised by the roll.
        """
        last = self.last
        return self._places.prepare(last.end if last is not None else 0, executor)

    def retry_next(self, executor: Executor) -> Future[Segment] | None:
        """Prepare the next file again if that failed before; return None while it is being created."""
        last = self.last
        return self._places.retry(last.end if last is not None else 0, executor)

    @property
    def next_ready(self) -> bool:
        """Return True if a roll now would neither wait nor create a file itself."""
        return self._places.prepared

    def discard_next(self) -> None:
        """Remove the prepared file, if any: at shutdown, or when the log continues elsewhere."""
        self._places.discard()

    # Reading

    def readable(self, offset: int) -> int:
        """Return the number of bytes that one read from ``offset`` can give: to the end of its file or of the
        log."""
        segment = self.segment_at(offset)
        return max(0, min(segment.end, self.committed) - offset) if segment is not None else 0

    def read(self, offset: int, size: int) -> bytes:
        """Return exactly these bytes, all in one file. May wait for the disk.

        Raise OffsetOutOfRange for bytes that are not in the log: deleted, or never written. Raise Unreadable
        if the file cannot be read at the moment.
        """
        cuts = self._cuts
        segment = self._segment_with(offset, size)
        at = offset - segment.start
        try:
            file = self.open_files.acquire(segment)
            try:
                data = file.pread(size, at)
            finally:
                self.open_files.release(segment)
            if len(data) != size:
                raise WrongFileSize(segment.path, at + len(data), self.size)
        except StoreError as error:
            raise self._read_failed(segment, error, offset, size) from error
        if cuts != self._cuts:
            self._segment_with(offset, size)  # data that was cut off meanwhile may read as zeros
        return data

    def _read_failed(self, segment: Segment, error: StoreError, offset: int, size: int) -> StoreError:
        found = self.open_files.read_failed(segment, error, offset - segment.start, size)
        return self._out_of_range(offset, size) if isinstance(found, SegmentGone) else found

    def read_hot(self, offset: int, size: int) -> bytes | None:
        """Return these bytes if they are in memory and their file is open, else None: then call ``read`` in a
        thread."""
        segment = self._segment_with(offset, size)
        file = self.open_files.acquire_if_open(segment)
        if file is None:
            return None
        try:
            return file.pread_hot(size, offset - segment.start)
        except StoreError as error:
            raise self._read_failed(segment, error, offset, size) from error
        finally:
            self.open_files.release(segment)

    def read_messages(
        self, entries: bytes, count: int, begin: int, end: int, *, may_wait: bool
    ) -> bytes | None:
        """Return the messages of queue entries that lie between ``begin`` and ``end`` in one file, back to
        back. None if they are not in memory and ``may_wait`` is false."""
        cuts = self._cuts
        segment = self._segment_with(begin, end - begin)
        try:
            if may_wait:
                file = self.open_files.acquire(segment)
            else:
                opened = self.open_files.acquire_if_open(segment)
                if opened is None:
                    return None
                file = opened
            try:
                data = file.read_messages(entries, count, segment.start, may_wait=may_wait)
            finally:
                self.open_files.release(segment)
            if data is None and may_wait:
                raise WrongFileSize(segment.path, file.size, self.size)
        except StoreError as error:
            raise self._read_failed(segment, error, begin, end - begin) from error
        if cuts != self._cuts:
            self._segment_with(begin, end - begin)  # data that was cut off meanwhile may read as zeros
        return data

    def written_ranges(self, segment: Segment, start: int) -> list[tuple[int, int]]:
        """Return the offset ranges of a file from ``start`` on that were ever written. May wait for the
        disk."""
        file = self.open_files.acquire(segment)
        try:
            return [
                (segment.start + low, segment.start + high)
                for low, high in file.written_ranges(start - segment.start, segment.size)
            ]
        finally:
            self.open_files.release(segment)

    def _segment_with(self, offset: int, size: int) -> Segment:
        segment = self.segment_at(offset)
        if segment is None or offset + size > segment.end or offset + size > self.committed or size < 0:
            raise self._out_of_range(offset, size)
        return segment

    def _out_of_range(self, offset: int, size: int) -> OffsetOutOfRange:
        return OffsetOutOfRange(
            f"cannot read {size} bytes at {offset} from one file",
            path=self.directories[0],
            offset=offset,
            low=self.min_offset,
            high=self.max_offset,
        )

    # Flushing

    def flush_targets(self) -> list[Segment]:
        """Return the files with committed bytes that are not flushed, oldest first."""
        flushed, committed = self.flushed, self.committed
        return (
            [s for s in self._segments if s.end > flushed and s.start < committed]
            if flushed < committed
            else []
        )

    def flush(self, up_to: int | None = None) -> int:
        """Flush the committed data, file by file, at least to ``up_to``; return the flushed offset.

        Waits for the disk: call it in a thread. After a failure it raises the same error on every call,
        because a repeated flush would report a success that it cannot know (see :class:`FsyncFailed`); remade
        files are written again first.
        """
        with self._flushing:
            if self._places.broken is not None:
                raise self._places.broken
            if self._doubt is not None:
                self._write_again(self._doubt)
            target = self.committed  # read before the sync, which does not cover later writes
            for segment in self.flush_targets():
                if up_to is not None and self.flushed >= up_to:
                    break
                try:
                    self._places.sync(segment)
                except SegmentGone:
                    pass
                except FsyncFailed as error:
                    self.doubt(error)
                    raise
                self.flushed = max(self.flushed, min(target, segment.end))
            self._doubt = None
            unflushed = self._unflushed
            while unflushed and unflushed[0][0] + len(unflushed[0][1]) <= self.flushed:
                unflushed.popleft()
            return self.flushed

    def flush_again_from(self, offset: int) -> None:
        """Count the data from ``offset`` on, and the names of the files, as not flushed: after a crash they
        may be only in memory."""
        self.flushed = offset
        for segment in self._segments:
            segment.named = False

    def doubt(self, error: FsyncFailed) -> None:
        """Note that a flush of one of the files failed."""
        if self._unflushed is None:
            self._places.broken = error
        else:
            self._doubt = error

    def _write_again(self, doubt: FsyncFailed) -> None:
        """Write the data that the kernel may have dropped, so that the next flush really covers it."""
        assert self._unflushed is not None
        if self.flushed < min(self._unflushed_from, self.committed):
            raise doubt  # found at the start and never flushed since: a restart rebuilds it from the log
        for segment in self._segments:
            parts = [part for part in list(self._unflushed) if segment.start <= part[0] < segment.end]
            if not parts:
                continue
            file = self.open_files.acquire(segment)
            try:
                segment.dirty = True
                for offset, data in parts:
                    file.pwrite(data, offset - segment.start)
            finally:
                self.open_files.release(segment)

    # Shrinking

    def truncate_to(self, offset: int) -> None:
        """Truncate at ``offset``. Files after it are removed, and the rest of its file is zeroed.

        RocketMQ leaves the old bytes after the end, where a later crash can find a removed record that still
        parses; zeros cannot be taken for one. An offset before the first file removes all files. Waits for
        the disk.
        """
        if self.transient:
            self.commit()
        self.discard_next()
        if self.last is None:
            return
        self.lower_to(offset)
        self.clear_behind()

    def lower_to(self, offset: int) -> None:
        """Make ``offset`` the end for all later reads. The files are not changed: nothing may be appended
        before :meth:`clear_behind`. Everything must be committed."""
        with self._flushing, self._committing:
            last = self.last
            if last is None:
                return
            if offset > last.end:
                raise self._out_of_range(offset, 0)
            assert not self._pending, "uncommitted data would be written after the new end"
            self._cuts += 1
            with self._change:
                kept = [s for s in self._segments if s.start <= offset]
                self._cut_off = self._segments[len(kept) :] + self._cut_off
                self._segments = kept
            if self._unflushed is not None:
                parts = [(at, data[: offset - at]) for at, data in self._unflushed if at < offset]
                self._unflushed = deque(parts)
                self._unflushed_from = min(self._unflushed_from, offset)
            if kept:
                self.wrote = self.committed = min(offset, kept[-1].end)
                self.flushed = min(self.flushed, self.wrote)
            else:
                self._set_positions(0)

    def clear_behind(self) -> None:
        """Remove the files after the end, and zero the rest of the last one. Waits for the disk."""
        self.discard_next()
        with self._flushing, self._committing:
            removed = self._cut_off
            # Newest first, so that a crash in between leaves no gap in the log.
            while removed:
                remove_segment(self.open_files, removed[-1])
                directory = os.path.dirname(removed.pop().path)
                if not any(os.path.dirname(segment.path) == directory for segment in removed):
                    self.files.sync_dir(directory)
            last = self.last
            if last is not None and self.wrote < last.end:
                self._zero_tail(last, self.wrote)

    def _zero_tail(self, segment: Segment, offset: int) -> None:
        if segment.read_only:
            raise StoreError(
                f"the log ends at {offset} inside {segment.path}, which is in a read-only directory. "
                "Move the file to a writable directory and restart.",
                path=segment.path,
                offset=offset,
            )
        file = self.open_files.acquire(segment)
        try:
            if file.zero(offset - segment.start, self.size):
                # Now, not with the next flush: new records must not reach the disk before the zeros do.
                self._places.sync(segment)
        except FsyncFailed as error:
            self.doubt(error)
            raise
        finally:
            self.open_files.release(segment)

    def delete_before(self, offset: int) -> int:
        """Remove files that end at or before ``offset``, never the last one; return their number.

        Readers that hold one finish their read.
        """
        with self._change:
            segments = self._segments
            count = 0
            while count < len(segments) - 1 and segments[count].end <= offset:
                count += 1
            removed, self._segments = segments[:count], segments[count:]
        for done, segment in enumerate(removed):
            try:
                remove_segment(self.open_files, segment)
            except StoreError:
                with self._change:  # it still exists: keep it in the log for another try
                    self._segments = [*removed[done:], *self._segments]
                raise
        if self._segments:
            self.flushed = max(self.flushed, self._segments[0].start)  # no earlier data is left to flush
        return count

    def delete_all(self, aside: Callable[[], str] | None = None) -> None:
        """Remove every file, as when a topic is deleted. The directories stay.

        ``aside`` returns names on the same disk: the files are only moved there, which frees no space and so
        hardly waits; the caller removes them.
        """
        with self._flushing, self._committing:
            self.discard_next()
            left = list(self._segments)
            with self._change:
                self._segments = []
            try:
                while left:
                    self._remove(left[-1], aside)
                    left.pop()
            except StoreError:
                with self._change:  # these still exist and are kept for another try
                    self._segments = left
                raise
            self._begin_empty()

    def _remove(self, segment: Segment, aside: Callable[[], str] | None) -> None:
        if aside is None:
            remove_segment(self.open_files, segment)
            return
        segment.gone = True
        try:
            self.files.rename(segment.path, aside())
        except StoreError:
            segment.gone = False
            raise
        self.open_files.forget(segment)

    def forget_all(self) -> None:
        """Forget every file: their directory was renamed, and the caller removes it."""
        with self._flushing, self._committing:
            with self._change:
                removed, self._segments = self._segments, []
            for segment in removed:
                self.open_files.forget(segment)
            self._begin_empty()

    def _begin_empty(self) -> None:
        self._pending.clear()
        if self._unflushed is not None:
            self._unflushed.clear()
            self._unflushed_from = NOWHERE
        self._doubt = None
        self._set_positions(0)

    def close_idle(self) -> None:
        """Close the descriptors that are not in use."""
        for segment in self._segments:
            self.open_files.close_idle(segment)

    def close(self) -> None:
        """Close the descriptors and remove the prepared file. Commits, but does not flush."""
        if self.transient:
            self.commit()
        self.discard_next()
        self.close_idle()


def _start_of(segment: Segment) -> int:
    return segment.start


def _reserve(file: File, segment: Segment, end: int) -> None:
    """Allocate blocks of the file up to ``end`` at least: to the next power of two, or whole megabyte."""
    if end < _STEP_MAX:
        upto = max(PAGE, 1 << (end - 1).bit_length())
    else:
        upto = -(-end // _STEP_MAX) * _STEP_MAX
    upto = min(upto, segment.size)
    file.reserve(segment.reserved, upto)
    segment.reserved = upto


def _undo(file: File, offset: int, length: int) -> None:
    # Part of a failed append may be in the file. If it stayed, a record of it could later be found after a
    # shorter one written over its start, and be taken for a message.
    try:
        file.zero(offset, offset + length)
    except StoreError as error:
        logger.warning("failed_append_not_undone path=%s offset=%d error=%r", file.path, offset, error)
