"""A file system in which the process kills itself at a chosen operation: before, during or after it."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

from kerolox.store.disk.files import Buffer, File, Files, PathLike

T = TypeVar("T")


class DyingFiles(Files):
    """Counts every change of the disk, and at number ``at`` ends the process by SIGKILL.

    ``how``: "before" the operation, "after" it, or "torn": a write stops after ``part`` of its bytes.
    """

    def __init__(self, at: int, how: str, part: float = 0.5) -> None:
        self.at = at
        self.how = how
        self.part = part
        self.count = 0
        self._lock = threading.Lock()

    def change(self, do: Callable[[], T], torn: Callable[[], object] | None = None) -> T:
        with self._lock:
            self.count += 1
            mine = self.count == self.at
        if not mine:
            return do()
        if self.how == "after":
            do()
        elif self.how == "torn" and torn is not None:
            torn()
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("unreachable")

    def _file(self, path: str, fd: int, size: int, read_only: bool) -> File:
        return _DyingFile(self, path, fd, size, read_only)

    def create(
        self, path: PathLike, size: int = 0, *, write_zeros: bool = False, sparse: bool = False
    ) -> File:
        make = super().create
        return self.change(
            lambda: make(path, size, write_zeros=write_zeros, sparse=sparse), lambda: make(path)
        )

    def _make_dir(self, path: str) -> None:
        make = super()._make_dir
        self.change(lambda: make(path))

    def remove(self, path: PathLike) -> bool:
        remove = super().remove
        return self.change(lambda: remove(path))

    def rename(self, source: PathLike, target: PathLike) -> None:
        rename = super().rename
        self.change(lambda: rename(source, target))

    def sync_dir(self, path: PathLike) -> None:
        sync = super().sync_dir
        self.change(lambda: sync(path))


class _DyingFile(File):
    __slots__ = ("_files",)

    def __init__(self, files: DyingFiles, path: str, fd: int, size: int, read_only: bool) -> None:
        super().__init__(path, fd, size, read_only=read_only)
        self._files = files

    def pwrite(self, data: Buffer, offset: int) -> None:
        write = super().pwrite
        kept = int(len(data) * self._files.part)
        self._files.change(lambda: write(data, offset), lambda: write(memoryview(data)[:kept], offset))

    def pwritev(self, parts: Sequence[Buffer], offset: int) -> None:
        self.pwrite(b"".join(parts), offset)

    def sync(self) -> None:
        sync = super().sync
        self._files.change(sync)

    def truncate(self, size: int) -> None:
        truncate = super().truncate
        self._files.change(lambda: truncate(size))
