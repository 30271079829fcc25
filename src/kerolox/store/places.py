"""Where the files of a log lie: finding them, and making new ones, ahead of time if asked."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError, Executor, Future

from kerolox.store.errors import DiskError, StoreError, StrayFile, WrongFileSize
from kerolox.store.files import PathLike
from kerolox.store.segment import NAME_DIGITS, OpenFiles, Segment, remove_segment, segment_name

logger = logging.getLogger(__name__)


class Places:
    """The directories of one log, and the file prepared to come next.

    A new file goes to the directory its number selects, among the sorted ones that are neither
    read-only nor in ``full``; when all are full, among those not read-only.
    """

    def __init__(
        self,
        open_files: OpenFiles,
        directories: PathLike | Sequence[PathLike],
        size: int,
        *,
        read_only: Sequence[PathLike] = (),
        warm: bool = False,
    ) -> None:
        if isinstance(directories, str | os.PathLike):
            directories = (directories,)
        self.directories = tuple(os.fspath(directory) for directory in directories)
        self.read_only = tuple(os.fspath(directory) for directory in read_only)
        self.full: set[str] = set()
        self.size = size
        self.warm = warm
        self._open_files = open_files
        self._files = open_files.files
        self._new_dirs: list[str] = []  # made, and not yet known to be on the medium
        self._next: tuple[int, Future[Segment]] | None = None

    def find(self) -> list[Segment]:
        """The files there are, by offset; see :meth:`kerolox.store.segments.Segments.load`."""
        found = sorted(self._entries())
        while found and self._files.size(found[-1][1]) == 0:
            path = found.pop()[1]
            logger.info("empty_segment_removed path=%s", path)
            self._files.remove(path)
        segments: list[Segment] = []
        for name, path, read_only in found:
            if not (name.isascii() and name.isdigit()):
                raise StrayFile(path, f"files here are named by their {NAME_DIGITS}-digit offset")
            actual = self._files.size(path)
            if actual != self.size:
                raise WrongFileSize(path, actual, self.size)
            segment = Segment(path, int(name), self.size, read_only=read_only)
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
        """The new file that starts here: the prepared one, waiting for it if need be, or one made now."""
        prepared, self._next = self._next, None
        if prepared is not None and prepared[0] != start:
            self._next = prepared
            self.discard()
        elif prepared is not None and not prepared[1].cancel():  # cancelled = not begun: do it here
            return prepared[1].result()
        return self._create(start)

    def prepare(self, start: int, executor: Executor) -> Future[Segment] | None:
        """Make that file in a thread; None when it is made or being made already."""
        if self._next is not None:
            if self._next[0] == start:
                return None
            self.discard()
        future = executor.submit(self._create_safe, start)
        self._next = (start, future)
        return future

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
            return  # it came to nothing
        remove_segment(self._open_files, segment)

    def sync_names(self, segment: Segment) -> None:
        """Make the name of a new file, and those of new directories above it, survive power loss."""
        new_dirs, self._new_dirs = self._new_dirs, []
        try:
            for directory in new_dirs:
                self._files.sync_dir(os.path.dirname(directory))
            self._files.sync_dir(os.path.dirname(segment.path))
        except DiskError:
            self._new_dirs = new_dirs + self._new_dirs
            raise
        segment.named = True

    def _create_safe(self, start: int) -> Segment:
        # In its own thread there is time to make it survive power loss at once.
        segment = self._create(start)
        try:
            file = self._open_files.acquire(segment)
            try:
                file.sync()
                self.sync_names(segment)
            finally:
                self._open_files.release(segment)
        except StoreError:
            remove_segment(self._open_files, segment)
            raise
        return segment

    def _create(self, start: int) -> Segment:
        directory = self._directory_for(start)
        if not self._files.is_dir(directory):
            self._new_dirs += self._files.make_dirs(directory)
        segment = Segment(os.path.join(directory, segment_name(start)), start, self.size, named=False)
        file = self._files.create(segment.path, self.size, write_zeros=self.warm)
        self._open_files.adopt(segment, file)
        self._open_files.release(segment)
        return segment

    def _directory_for(self, start: int) -> str:
        writable = set(self.directories) - set(self.read_only)
        available = sorted(writable - self.full) or sorted(writable)
        if not available:
            raise StoreError(
                f"every directory of the log is read-only: {', '.join(self.directories)}. "
                "Give at least one that may be written (storePathCommitLog).",
                path=self.directories[0],
            )
        return available[start // self.size % len(available)]
