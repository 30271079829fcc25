"""Files of a broker that tests can kill: after that no write of the broker reaches the disk."""

from __future__ import annotations

from collections.abc import Sequence

from kerolox.store.disk.files import Buffer, File, Files, PathLike
from kerolox.store.errors import StoreError


class BrokerKilled(StoreError):
    """Write of a broker that is dead in the test."""


class MortalFiles(Files):
    """Real file system until the broker is killed. Then the files stay as they were at that moment, whatever
    the rest of the broker still tries."""

    def __init__(self) -> None:
        self.is_dead = False

    def kill(self) -> None:
        self.is_dead = True

    def check(self, path: PathLike) -> None:
        if self.is_dead:
            raise BrokerKilled(f"{path} belonged to a broker that was killed")

    def _file(self, path: str, fd: int, size: int, read_only: bool) -> File:
        return _MortalFile(self, path, fd, size, read_only)

    def create(
        self, path: PathLike, size: int = 0, *, write_zeros: bool = False, sparse: bool = False
    ) -> File:
        self.check(path)
        return super().create(path, size, write_zeros=write_zeros, sparse=sparse)

    def _make_dir(self, path: str) -> None:
        self.check(path)
        super()._make_dir(path)

    def remove(self, path: PathLike) -> bool:
        self.check(path)
        return super().remove(path)

    def remove_tree(self, path: PathLike) -> bool:
        self.check(path)
        return super().remove_tree(path)

    def rename(self, source: PathLike, target: PathLike) -> None:
        self.check(source)
        super().rename(source, target)

    def set_mtime(self, path: PathLike, mtime_s: float) -> None:
        self.check(path)
        super().set_mtime(path, mtime_s)


class _MortalFile(File):
    __slots__ = ("_files",)

    def __init__(self, files: MortalFiles, path: str, fd: int, size: int, read_only: bool) -> None:
        super().__init__(path, fd, size, read_only=read_only)
        self._files = files

    def pwrite(self, data: Buffer, offset: int) -> None:
        self._files.check(self.path)
        super().pwrite(data, offset)

    def pwritev(self, parts: Sequence[Buffer], offset: int) -> None:
        self._files.check(self.path)
        super().pwritev(parts, offset)

    def sync(self) -> None:
        self._files.check(self.path)
        super().sync()

    def allocate(self, size: int, *, write_zeros: bool = False) -> None:
        self._files.check(self.path)
        super().allocate(size, write_zeros=write_zeros)

    def reserve(self, offset: int, end: int) -> None:
        self._files.check(self.path)
        super().reserve(offset, end)

    def zero(self, offset: int, end: int) -> bool:
        self._files.check(self.path)
        return super().zero(offset, end)

    def truncate(self, size: int) -> None:
        self._files.check(self.path)
        super().truncate(size)
