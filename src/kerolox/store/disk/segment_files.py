"""Files of a log: finding them, and creating new ones, in advance if requested."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError, Executor, Future

from kerolox.store.disk.files import PathLike
from kerolox.store.disk.segment import (
    NAME_DIGITS,
    OpenFiles,
    Segment,
    remove_segment,
    segment_name,
)
from kerolox.store.errors import (
    DiskError,
    FileExists,
    FsyncFailed,
    SegmentGone,
    StoreError,
    StrayFile,
    WrongFileSize,
)

logger = logging.getLogger(__name__)


class SegmentFiles:
    """Directories of one log, and the prepared next file.

    A new file goes to the directory its number selects, among the sorted ones that are neither read-only nor
    in ``full``; if all are full, among those not read-only.
    """

    def __init__(
        self,
        open_files: OpenFiles,
        directories: PathLike | Sequence[PathLike],
        size: int,
        *,
        read_only: Sequence[PathLike] = (),
        warm: bool = False,
        grows: bool = False,
        remade: bool = False,
    ) -> None:
        if isinstance(directories, str | os.PathLike):
            directories = (directories,)
        self.directories = tuple(os.fspath(directory) for directory in directories)
        self.read_only = tuple(os.fspath(directory) for directory in read_only)
        self.full: set[str] = set()
        self.size = size
        self.warm = warm
        self.grows = grows
        self._remade = remade
        self._open_files = open_files
        self._files = open_files.files
        # Files of the log that this process created and that did not enter the log: they may be created
        # again.
        self._made: set[str] = set()
        self._new_dirs: list[str] = []  # created, and not yet known to be on the medium
        self._unsafe: list[Segment] = []  # created, and not yet known to survive power loss, oldest first
        self._making_safe = threading.Lock()
        self.broken: FsyncFailed | None = None  # a flush failed: the content of the log is in doubt
        self._next: tuple[int, Future[Segment]] | None = None

    @property
    def _reserved(self) -> int | None:
        # For a growing file no blocks are known to be allocated, whoever wrote it: requesting them again
        # costs nothing.
        return 0 if self.grows else None

    def find(self) -> list[Segment]:
        """Return the existing files, by offset; see :meth:`kerolox.store.disk.segments.Segments.load`."""
        found = sorted(self._entries())
        while found and self._files.size(found[-1][1]) == 0:
            path = found.pop()[1]
            logger.info("empty_segment_removed path=%s", path)
            self._files.remove(path)
        segments: list[Segment] = []
        for name, path, read_only in found:
            if not (name.isascii() and name.isdigit()):
                raise StrayFile(path, f"its name is not a {NAME_DIGITS}-digit offset")
            actual = self._files.size(path)
            if actual != self.size:
                raise WrongFileSize(path, actual, self.size)
            segment = Segment(path, int(name), self.size, read_only=read_only, reserved=self._reserved)
            if segments and segment.start < segments[-1].end:
                raise StrayFile(path, f"it overlaps {segments[-1].path}, which ends at {segments[-1].end}")
            segments.append(segment)
        return segments

    def _entries(self) -> Iterator[tuple[str, str, bool]]:
        for directory in dict.fromkeys(self.directories + self.read_only):
            for name in self._files.list_dir(directory):
                path = os.path.join(directory, name)
                if not self._files.is_dir(path):
                    yield name, path, directory in self.read_only

    def take(self, start: int) -> Segment:
        """Return the new file that starts here: the prepared one, waiting for it if necessary, or one created
        now."""
        prepared, self._next = self._next, None
        self._made.clear()
        if prepared is not None and prepared[0] != start:
            self._next = prepared
            self.discard()
        # Cancelled: it had not begun, so create the file here
        elif prepared is not None and not prepared[1].cancel():
            return prepared[1].result()
        return self._create(start)

    def ensure(self, start: int) -> None:
        """Make sure that the file that starts here exists, so that :meth:`take` cannot fail."""
        if self._next is not None and self._next[0] == start and not self._next[1].cancel():
            future = self._next[1]
            self._next = None  # a failed preparation is reported once; the next call tries again
            segment = future.result()
        else:
            if self._next is not None and self._next[0] != start:
                self.discard()
            segment = self._create(start)
        ready: Future[Segment] = Future()
        ready.set_result(segment)
        self._next = (start, ready)

    def prepare(self, start: int, executor: Executor) -> Future[Segment] | None:
        """Create that file in a thread; return None if it is created or being created already."""
        if self._next is not None:
            if self._next[0] == start:
                return None
            self.discard()
        future = executor.submit(self._create_safe, start)
        self._next = (start, future)
        return future

    def retry(self, start: int, executor: Executor) -> Future[Segment] | None:
        """Prepare that file again unless it exists; return None while it is being created."""
        if self._next is not None and self._next[0] == start:
            future = self._next[1]
            if not future.done():
                return None
            if self.prepared:
                return future
            self._next = None
        return self.prepare(start, executor)

    @property
    def prepared(self) -> bool:
        if self._next is None:
            return False
        future = self._next[1]
        return future.done() and not future.cancelled() and future.exception() is None

    def discard(self) -> None:
        """Remove the prepared file, if there is one."""
        prepared, self._next = self._next, None
        if prepared is None or prepared[1].cancel():
            return
        try:
            segment = prepared[1].result()
        except (StoreError, CancelledError):
            return  # the preparation failed
        remove_segment(self._open_files, segment)

    def sync(self, segment: Segment) -> None:
        """Flush a file, with its name and all files created before it.

        A later file must not survive a power loss that an earlier one does not survive: the store would be
        rejected for the gap. File systems with a single journal keep that order automatically, but others do
        not.
        """
        if not segment.named:
            with self._making_safe:
                self._sync_earlier(segment)
        file = self._open_files.acquire(segment)
        try:
            segment.dirty = False  # before the sync, because a write during it sets it again
            file.sync()
            if not segment.named:
                with self._making_safe:
                    self._sync_name(segment)
        except DiskError:
            segment.dirty = True
            raise
        finally:
            self._open_files.release(segment)

    def _sync_earlier(self, segment: Segment) -> None:
        for earlier in list(self._unsafe):
            if earlier.start >= segment.start and not earlier.gone:
                continue
            try:
                file = self._open_files.acquire(earlier)
            except SegmentGone:
                self._unsafe.remove(earlier)
                continue
            try:
                file.sync()
                self._sync_name(earlier)
            except FsyncFailed as error:
                if not self._remade:
                    self.broken = error
                raise
            finally:
                self._open_files.release(earlier)

    def _sync_name(self, segment: Segment) -> None:
        new_dirs, self._new_dirs = self._new_dirs, []
        try:
            for directory in new_dirs:
                self._files.sync_dir(os.path.dirname(directory))
            self._files.sync_dir(os.path.dirname(segment.path))
        except DiskError:
            self._new_dirs = new_dirs + self._new_dirs
            raise
        segment.named = True
        if segment in self._unsafe:
            self._unsafe.remove(segment)

    def _create_safe(self, start: int) -> Segment:
        # Its own thread has the time to make it survive power loss at once.
        segment = self._create(start)
        try:
            self.sync(segment)
        except StoreError:
            remove_segment(self._open_files, segment)
            raise
        return segment

    def _create(self, start: int) -> Segment:
        directory = self._directory_for(start)
        if not self._files.is_dir(directory):
            self._new_dirs += self._files.make_dirs(directory)
        path = os.path.join(directory, segment_name(start))
        segment = Segment(path, start, self.size, named=False, reserved=self._reserved)
        try:
            file = self._files.create(path, self.size, write_zeros=self.warm, sparse=self.grows)
        except FileExists:
            # A file after the end of a remade run is left from a failed removal; so is a file of the log that
            # this process created.
            if not self._remade and path not in self._made:
                raise
            self._files.remove(path)
            file = self._files.create(path, self.size, write_zeros=self.warm, sparse=self.grows)
            logger.warning("left_file_replaced path=%s", path)
        if not self._remade:
            self._made.add(path)
        self._open_files.adopt(segment, file)
        self._open_files.release(segment)
        self._unsafe.append(segment)
        return segment

    def _directory_for(self, start: int) -> str:
        writable = set(self.directories) - set(self.read_only)
        available = sorted(writable - self.full) or sorted(writable)
        if not available:
            raise StoreError(
                f"every directory of the log is read-only: {', '.join(self.directories)}. "
                "Add a writable directory to storePathCommitLog.",
                path=self.directories[0],
            )
        return available[start // self.size % len(available)]
