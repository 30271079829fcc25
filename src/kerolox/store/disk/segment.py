"""Fixed-size file of a log, and a limit on the number of open files.

A store has thousands of consume-queue files, and a process about a thousand descriptors. A segment is
therefore opened when it is used, and closed when it has been idle longest (:class:`OpenFiles`). While a
thread reads a segment its descriptor stays open, even if the file is removed meanwhile.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import OrderedDict

from kerolox.store.disk.files import File, Files
from kerolox.store.disk.read_failures import ReadFailures, failed_read
from kerolox.store.errors import FileMissing, SegmentGone, StoreError, Unreadable

logger = logging.getLogger(__name__)

NAME_DIGITS = 20
_VICTIMS_LOOKED_AT = 16


def segment_name(start: int) -> str:
    """Return the file name of the segment that starts at this offset: 20 digits."""
    return f"{start:0{NAME_DIGITS}d}"


class Segment:
    """File that holds ``[start, end)`` of the log."""

    __slots__ = (
        "_file",
        "_users",
        "dirty",
        "end",
        "gone",
        "named",
        "path",
        "read_only",
        "reserved",
        "size",
        "start",
    )

    def __init__(
        self,
        path: str,
        start: int,
        size: int,
        *,
        read_only: bool = False,
        named: bool = True,
        reserved: int | None = None,
    ) -> None:
        self.path = path
        self.start = start
        self.size = size
        self.end = start + size
        self.read_only = read_only
        self.named = named  # True if its name is known to be on the medium
        self.reserved = size if reserved is None else reserved  # bytes that are known to have blocks
        self.dirty = False  # written since the last flush
        self.gone = False
        self._file: File | None = None
        self._users = 0

    @property
    def is_open(self) -> bool:
        return self._file is not None

    def __repr__(self) -> str:
        return f"Segment({self.path!r}, {self.start}..{self.end})"


class OpenFiles:
    """Open descriptors of many segments, at most ``limit`` in addition to those in use at the moment."""

    def __init__(self, files: Files, limit: int = 256, failures: ReadFailures | None = None) -> None:
        if limit < 1:
            raise ValueError(f"limit of open files is {limit}, expected at least 1")
        self.files = files
        self.failures = failures
        self.limit = limit
        self._lock = threading.Lock()
        self._open: OrderedDict[Segment, None] = OrderedDict()  # longest idle first

    def __len__(self) -> int:
        return len(self._open)

    def acquire(self, segment: Segment) -> File:
        """Return the open file, kept open until :meth:`release`. Opens it if necessary, which may wait for
        the disk."""
        file = self.acquire_if_open(segment)
        if file is not None:
            return file
        if segment.gone:
            raise SegmentGone(f"{segment.path} was removed", path=segment.path)
        try:
            opened = self.files.open(segment.path, read_only=segment.read_only)
        except FileMissing:
            if segment.gone:  # removed since the check above
                raise SegmentGone(f"{segment.path} was removed", path=segment.path) from None
            raise
        return self.adopt(segment, opened)

    def acquire_if_open(self, segment: Segment) -> File | None:
        """Return the file if it is open, else None: for callers that must not wait."""
        with self._lock:
            file = segment._file
            if file is not None:
                segment._users += 1
                self._open.move_to_end(segment)
            return file

    def adopt(self, segment: Segment, opened: File) -> File:
        """Adopt a file just opened or created for the segment, in use until :meth:`release`."""
        with self._lock:
            file: File | None = opened
            if segment.gone:
                surplus = [opened]
                file = None  # others may still hold the old descriptor, which does not count for this caller
            elif segment._file is not None:
                surplus = [opened]  # another thread was faster
                segment._users += 1
                file = segment._file
            else:
                segment._file = opened
                segment._users += 1
                self._open[segment] = None
                surplus = self._over_limit()
        for closing in surplus:
            closing.close()
        if file is None:
            raise SegmentGone(f"{segment.path} was removed", path=segment.path)
        return file

    def read_failed(self, segment: Segment, error: StoreError, offset: int, size: int) -> StoreError:
        """Return the error to raise for a failed read of these bytes of a file, and count it."""
        found = failed_read(segment, error)
        if isinstance(found, Unreadable) and found is not error and self.failures is not None:
            self.failures.note(found, segment, offset, size)
        return found

    def release(self, segment: Segment) -> None:
        with self._lock:
            segment._users -= 1
            if segment.gone and not segment._users:
                file = self._take(segment)
                closing = [file] if file is not None else []
            elif len(self._open) > self.limit:  # more than the limit were in use; now one can be closed
                closing = self._over_limit()
            else:
                return
        for file in closing:
            file.close()

    def forget(self, segment: Segment) -> None:
        """Stop opening the segment. It is closed now, or when its last reader has finished."""
        with self._lock:
            segment.gone = True
            closing = None if segment._users else self._take(segment)
        if closing is not None:
            closing.close()

    def close_idle(self, segment: Segment) -> None:
        """Close its descriptor unless it is in use; the next use opens it again."""
        with self._lock:
            closing = None if segment._users else self._take(segment)
        if closing is not None:
            closing.close()

    def close_all_idle(self) -> None:
        """Close every descriptor that is not in use, after a store could not be opened."""
        for segment in list(self._open):
            self.close_idle(segment)

    def _take(self, segment: Segment) -> File | None:
        file, segment._file = segment._file, None
        self._open.pop(segment, None)
        return file

    def _over_limit(self) -> list[File]:
        # A descriptor with unflushed writes is closed last: the kernel reports a failed write-back through
        # descriptors open at the time, and may not report it to a later one.
        closing: list[File] = []
        while len(self._open) > self.limit:
            idle: list[Segment] = []
            for segment in self._open:
                if not segment._users:
                    idle.append(segment)
                    if not segment.dirty or len(idle) >= _VICTIMS_LOOKED_AT:
                        break
            if not idle:
                break  # all in use: exceed the limit for a moment rather than fail
            victim = idle[-1] if not idle[-1].dirty else idle[0]
            file = self._take(victim)
            if file is not None:
                closing.append(file)
        return closing


def remove_segment(open_files: OpenFiles, segment: Segment) -> None:
    """Remove the file. Readers that hold it finish; its space is free once the last one has finished."""
    segment.gone = True  # first, so that no reader tries to open it while its name is removed
    try:
        if os.name == "nt":  # Windows cannot remove an open file
            open_files.forget(segment)
        open_files.files.remove(segment.path)
    except StoreError:
        segment.gone = False
        raise
    open_files.forget(segment)
