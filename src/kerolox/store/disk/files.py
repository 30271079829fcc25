"""Access to the disk: every file of the store, and every question about the disk, goes through
:class:`Files`.

So a test can replace it by a disk that fails (:mod:`kerolox.testing.faults`).

Nothing is memory mapped. A page fault on a map holds the interpreter for as long as the disk takes, and a
full disk kills the process (SIGBUS). ``pwrite`` and ``pread`` let other threads run and report errors. With
one write per pass they are also faster than a map. Blocks are allocated when a file is created, or in steps
before they are written, so that a write does not find the disk full.

The module is made for Linux. Elsewhere it works with these differences: without ``RWF_NOWAIT`` it is unknown
if a read would block, so :meth:`File.pread_hot` just reads; without ``posix_fallocate`` zeros are written;
without ``pread`` (Windows) all reads and writes of the process are serialised.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import struct
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Self, TypeAlias

from kerolox.compiled import compiled
from kerolox.store.errors import DiskError, FileMissing, disk_error, sync_error

Buffer: TypeAlias = bytes | bytearray | memoryview
PathLike: TypeAlias = str | os.PathLike[str]

PAGE = 4096
_ZEROS = bytes(1 << 20)
_PARTS_MAX = 1000  # IOV_MAX is 1024 on Linux and macOS

_NOWAIT: int | None = getattr(os, "RWF_NOWAIT", None)
_O_FLAGS = getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
_GAP_MAX = 8 << 10  # gap between messages that are read together: a short gap costs less than another call
_PLACE = struct.Struct(">qi8x")  # place of a message: an entry of a queue, see store/FORMAT.md
_NO_SUCH_FILE = (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG)  # no file of this name exists, or can exist
# Errors of old kernels and some file systems that reject RWF_NOWAIT.
_NO_NOWAIT = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)

_turns = threading.Lock()


def _pread(fd: int, size: int, offset: int) -> bytes:
    if hasattr(os, "pread"):
        return os.pread(fd, size, offset)
    with _turns:
        os.lseek(fd, offset, os.SEEK_SET)
        return os.read(fd, size)


def _pwrite(fd: int, data: Buffer, offset: int) -> int:
    if hasattr(os, "pwrite"):
        return os.pwrite(fd, data, offset)
    with _turns:
        os.lseek(fd, offset, os.SEEK_SET)
        return os.write(fd, data)


def _read_now(fd: int, size: int, offset: int) -> bytes | None:
    """Return the bytes if all of them are in memory; None if some are cold, or after the end of the file."""
    buffer = bytearray(size)
    try:
        got = os.preadv(fd, [buffer], offset, _NOWAIT)  # type: ignore[arg-type]
    except BlockingIOError:
        return None
    return bytes(buffer) if got == size else None


read_now: Final = compiled("read_now", _read_now)


def _read_messages(fd: int, entries: bytes, count: int, base: int, may_wait: bool) -> bytes | None:
    """Return the messages that the first entries of a queue name, back to back, from a file that begins at
    log offset ``base``. None if some are cold and ``may_wait`` is false, or if they are after the end of the
    file."""
    read = _pread if may_wait else _read_now
    return collect_messages(entries, count, base, lambda size, offset: read(fd, size, offset))


def collect_messages(
    entries: bytes, count: int, base: int, read: Callable[[int, int], bytes | None]
) -> bytes | None:
    """Return the messages of queue entries, using ``read(size, offset)``; neighbours with small gaps are read
    together."""
    parts: list[bytes] = []
    places = list(_PLACE.iter_unpack(entries[: count * _PLACE.size]))
    number = 0
    while number < len(places):
        begin, size = places[number]
        end, upto = begin + size, number + 1
        while upto < len(places) and places[upto][0] - end <= _GAP_MAX:
            end = sum(places[upto])
            upto += 1
        data = read(end - begin, begin - base)
        if data is None or len(data) < end - begin:
            return None
        parts += [data[at - begin : at - begin + size] for at, size in places[number:upto]]
        number = upto
    return b"".join(parts)


read_messages: Final = compiled("read_messages", _read_messages)


def _sync_data(fd: int) -> None:
    if sys.platform == "darwin":
        # fsync on macOS stops at the drive's cache; only F_FULLFSYNC reaches the medium.
        import fcntl

        fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
    elif hasattr(os, "fdatasync"):
        os.fdatasync(fd)
    else:
        os.fsync(fd)


@dataclass(frozen=True, slots=True)
class DiskUsage:
    """Space of a file system in bytes: total, free, and free for this user."""

    total: int
    free: int
    available: int

    @property
    def ratio(self) -> float:
        """Return the used share, rounded up to a hundredth; -1 if the file system does not report it."""
        used = self.total - self.free
        whole = used + self.available
        if self.total <= 0 or whole <= 0:
            return -1.0
        return -(-used * 100 // whole) / 100

    def ratio_unless(self, enough: int) -> float:
        """Return the used share, but 0 if ``enough`` bytes are free (0: never). A tenth of a large disk is
        more space than most brokers will ever need."""
        return 0.0 if 0 < enough <= self.available else self.ratio


class File:
    """Open file. Reads and writes name their offset, so threads may share it."""

    __slots__ = ("_fd", "_hot_known", "path", "read_only", "size")

    def __init__(self, path: str, fd: int, size: int, *, read_only: bool = False) -> None:
        self.path = path
        self.size = size
        self.read_only = read_only
        self._fd = fd
        self._hot_known = _NOWAIT is not None

    @property
    def closed(self) -> bool:
        return self._fd < 0

    def fileno(self) -> int:
        return self._fd

    def pwrite(self, data: Buffer, offset: int) -> None:
        """Write all of ``data`` at ``offset``."""
        try:
            wrote = _pwrite(self._fd, data, offset)
            while wrote < len(data):
                # A short write: the disk filled half-way (the next try says so), or a signal came.
                wrote += _pwrite(self._fd, memoryview(data)[wrote:], offset + wrote)
        except OSError as error:
            raise disk_error(error, "write", self.path, offset) from error
        if offset + len(data) > self.size:
            self.size = offset + len(data)

    def pwritev(self, parts: Sequence[Buffer], offset: int) -> None:
        """Write the parts one after the other, in one system call if the system has one for it."""
        if len(parts) > _PARTS_MAX or not hasattr(os, "pwritev"):
            self.pwrite(b"".join(parts), offset)
            return
        try:
            wrote = os.pwritev(self._fd, parts, offset)
        except OSError as error:
            raise disk_error(error, "write", self.path, offset) from error
        total = sum(map(len, parts))
        if wrote < total:
            self.pwrite(memoryview(b"".join(parts))[wrote:], offset + wrote)
        elif offset + total > self.size:
            self.size = offset + total

    def pread(self, size: int, offset: int) -> bytes:
        """Return up to ``size`` bytes, fewer only at the end of the file. May wait for the disk."""
        try:
            data = _pread(self._fd, size, offset)
            if len(data) == size or not data:
                return data
            parts = [data]
            got = len(data)
            while got < size:
                data = _pread(self._fd, size - got, offset + got)
                if not data:
                    break
                parts.append(data)
                got += len(data)
        except OSError as error:
            raise disk_error(error, "read", self.path, offset) from error
        return b"".join(parts)

    def pread_into(self, view: memoryview, offset: int) -> int:
        """Fill the view, less of it only at the end of the file. Return the number of bytes. May wait for the
        disk."""
        if not hasattr(os, "preadv"):
            data = self.pread(len(view), offset)
            view[: len(data)] = data
            return len(data)
        got = 0
        try:
            while got < len(view):
                more = os.preadv(self._fd, [view[got:]], offset + got)
                if not more:
                    break
                got += more
        except OSError as error:
            raise disk_error(error, "read", self.path, offset) from error
        return got

    def pread_hot(self, size: int, offset: int) -> bytes | None:
        """Return the bytes if all of them are in memory, else None: then call ``pread`` in a thread.

        If the system cannot answer that (not Linux, or a file system without support) it reads.
        """
        if not self._hot_known:
            return self.pread(size, offset)
        try:
            return read_now(self._fd, size, offset)
        except OSError as error:
            if error.errno in _NO_NOWAIT:
                self._hot_known = False
                return self.pread(size, offset)
            raise disk_error(error, "read", self.path, offset) from error

    def read_messages(self, entries: bytes, count: int, base: int, *, may_wait: bool) -> bytes | None:
        """Return the messages of queue entries, back to back; None if they are cold and ``may_wait`` is
        false."""
        try:
            return read_messages(self._fd, entries, count, base, may_wait or not self._hot_known)
        except OSError as error:
            if error.errno in _NO_NOWAIT and self._hot_known and not may_wait:
                self._hot_known = False
                return self.read_messages(entries, count, base, may_wait=True)
            raise disk_error(error, "read", self.path, 0) from error

    def sync(self) -> None:
        """Wait until all writes are on the medium. Must not be repeated after a failure."""
        try:
            _sync_data(self._fd)
        except OSError as error:
            raise sync_error(error, self.path) from error

    def allocate(self, size: int, *, write_zeros: bool = False) -> None:
        """Give the file this length, with blocks allocated for all of it.

        The length is set first and in one step, so that a crash leaves the old or the new one. With
        ``write_zeros`` the blocks are also written, which makes the first flush of each cheaper.
        """
        start = self.size
        try:
            if size > start:
                os.ftruncate(self._fd, size)
                self.size = size
            if not write_zeros and hasattr(os, "posix_fallocate") and size > 0:
                try:
                    os.posix_fallocate(self._fd, 0, size)
                    return
                except OSError as error:
                    if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                        raise
        except OSError as error:
            raise disk_error(error, "allocate", self.path, size) from error
        for offset in range(start, size, len(_ZEROS)):
            self.pwrite(memoryview(_ZEROS)[: size - offset], offset)

    def reserve(self, offset: int, end: int) -> None:
        """Allocate blocks for ``[offset, end)`` without changing content or length.

        If the file system cannot do that, nothing happens, and the writes themselves allocate.
        """
        if not hasattr(os, "posix_fallocate"):
            return
        try:
            os.posix_fallocate(self._fd, offset, end - offset)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                raise disk_error(error, "allocate", self.path, end) from error

    def zero(self, offset: int, end: int) -> bool:
        """Make ``[offset, end)`` read as zeros, keeping its blocks. Return True if anything was not zero.

        Only ranges that the file system reports as written are read, so the unused rest of a large file costs
        nothing.
        """
        changed = False
        # Get all ranges before the first read: a read makes the system read ahead, and pages in memory count
        # as written, so that asking again would lead through the whole file.
        for low, high in list(self.written_ranges(offset, end)):
            offset = low
            while offset < high:
                # To the next page first: a written page is reported whole, and its tail is mostly zeros.
                stop = min(high, offset + len(_ZEROS), (offset // PAGE + 1) * PAGE if offset % PAGE else high)
                if not _ZEROS.startswith(self.pread(stop - offset, offset)):
                    self.pwrite(memoryview(_ZEROS)[: stop - offset], offset)
                    changed = True
                offset = stop
        return changed

    def written_ranges(self, offset: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield the parts of ``[offset, end)`` that were ever written; all of it if the file system cannot
        tell."""
        while offset < end:
            offset = self._next_data(offset, end)
            if offset >= end:
                return
            stop = min(end, self._next_hole(offset, end))
            yield offset, stop
            offset = stop

    def _next_hole(self, offset: int, end: int) -> int:
        if not hasattr(os, "SEEK_HOLE"):
            return end
        try:
            return max(offset + 1, os.lseek(self._fd, offset, os.SEEK_HOLE))
        except OSError:
            return end

    def _next_data(self, offset: int, end: int) -> int:
        if not hasattr(os, "SEEK_DATA"):
            return offset
        try:
            return os.lseek(self._fd, offset, os.SEEK_DATA)
        except OSError as error:
            return end if error.errno == errno.ENXIO else offset

    def truncate(self, size: int) -> None:
        try:
            os.ftruncate(self._fd, size)
        except OSError as error:
            raise disk_error(error, "truncate", self.path, size) from error
        self.size = size

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            try:
                os.close(fd)
            except OSError as error:
                raise disk_error(error, "close", self.path) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Files:
    """File system of the operating system."""

    # Modes of new files and directories, before the process's umask.
    _file_mode = 0o644
    _dir_mode = 0o777

    def keep_private(self) -> None:
        """Create files and directories for their owner only, from now on."""
        self._file_mode, self._dir_mode = 0o600, 0o700

    def close_to_others(self, path: PathLike) -> int:
        """Remove the rights of other users from a directory and everything in it; return the number of
        changed files and directories. A directory that is already closed is not searched, because no other
        user gets past it."""
        name = os.fspath(path)
        if os.name != "posix" or not os.path.isdir(name) or not os.stat(name).st_mode & 0o077:
            return 0
        count = 0
        try:
            for folder, _, files in os.walk(name, topdown=False):
                for child in (*(os.path.join(folder, file) for file in files), folder):
                    mode = os.lstat(child).st_mode
                    if mode & 0o077 and not stat.S_ISLNK(mode):
                        os.chmod(child, stat.S_IMODE(mode) & 0o700)
                        count += 1
        except OSError as error:
            raise disk_error(error, "take the rights of others from", name) from error
        return count

    def absolute(self, path: PathLike) -> str:
        """Return the absolute path."""
        return os.path.abspath(path)

    def open(self, path: PathLike, *, read_only: bool = False) -> File:
        """Open an existing file."""
        return self._open(os.fspath(path), (os.O_RDONLY if read_only else os.O_RDWR) | _O_FLAGS, read_only)

    def open_no_link(self, path: PathLike) -> File:
        """Open an existing file for writing, unless its name is a symbolic link."""
        return self._open(os.fspath(path), os.O_RDWR | getattr(os, "O_NOFOLLOW", 0) | _O_FLAGS, False)

    def _open(self, name: str, flags: int, read_only: bool) -> File:
        try:
            fd = os.open(name, flags)
            try:
                return self._file(name, fd, os.fstat(fd).st_size, read_only)
            except BaseException:
                os.close(fd)
                raise
        except OSError as error:
            raise disk_error(error, "open", name) from error

    def create(
        self, path: PathLike, size: int = 0, *, write_zeros: bool = False, sparse: bool = False
    ) -> File:
        """Create a file that must not exist yet, with ``size`` zeros and blocks allocated for them.

        ``sparse``: without blocks, until :meth:`File.reserve` or a write allocates them. If there is no room
        for the file, no part of it stays behind. Its name is on the medium only after :meth:`sync_dir`.
        """
        name = os.fspath(path)
        try:
            fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | _O_FLAGS, self._file_mode)
        except OSError as error:
            raise disk_error(error, "create", name) from error
        file = self._file(name, fd, 0, False)
        try:
            if size and sparse:
                file.truncate(size)
            elif size:
                file.allocate(size, write_zeros=write_zeros)
        except DiskError:
            file.close()
            self.remove(name)
            raise
        return file

    def _file(self, path: str, fd: int, size: int, read_only: bool) -> File:
        return File(path, fd, size, read_only=read_only)

    def list_dir(self, path: PathLike) -> list[str]:
        """Return the names in a directory, sorted; none if it does not exist."""
        try:
            return sorted(os.listdir(path))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise disk_error(error, "list", os.fspath(path)) from error

    def exists(self, path: PathLike) -> bool:
        """Return True if a file or directory of this name exists. Raise DiskError if that is unknown."""
        return self._mode(path) is not None

    def is_dir(self, path: PathLike) -> bool:
        """Return True if a directory of this name exists. Raise DiskError if that is unknown."""
        mode = self._mode(path)
        return mode is not None and stat.S_ISDIR(mode)

    def _mode(self, path: PathLike) -> int | None:
        """Return type and rights of a file; None if it does not exist, or cannot."""
        try:
            return self._stat(path).st_mode
        except DiskError as error:
            if error.os_error in _NO_SUCH_FILE:
                return None
            raise

    def size(self, path: PathLike) -> int:
        return self._stat(path).st_size

    def mtime_s(self, path: PathLike) -> float:
        """Return the time of the last write, in seconds since 1970."""
        return self._stat(path).st_mtime

    def _stat(self, path: PathLike) -> os.stat_result:
        try:
            return os.stat(path)
        except OSError as error:
            raise disk_error(error, "look at", os.fspath(path)) from error

    def set_mtime(self, path: PathLike, mtime_s: float) -> None:
        try:
            os.utime(path, (mtime_s, mtime_s))
        except OSError as error:
            raise disk_error(error, "set the time of", os.fspath(path)) from error

    def make_dirs(self, path: PathLike) -> list[str]:
        """Create the directory and its missing parents; return the created ones, outermost first.

        They are on the medium once :meth:`sync_dir` was called for the parent of each.
        """
        missing: list[str] = []
        name = os.path.abspath(path)
        while not self.is_dir(name):
            missing.append(name)
            parent = os.path.dirname(name)
            if parent == name:
                break
            name = parent
        missing.reverse()
        for name in missing:
            self._make_dir(name)
        return missing

    def _make_dir(self, path: str) -> None:
        try:
            os.mkdir(path, self._dir_mode)
        except FileExistsError:
            if not self.is_dir(path):
                raise disk_error(
                    OSError(errno.EEXIST, "a file has that name"), "make directory", path
                ) from None
        except OSError as error:
            raise disk_error(error, "make directory", path) from error

    def remove(self, path: PathLike) -> bool:
        """Remove a file; return False if it did not exist. Open handles of it keep working (not on
        Windows)."""
        try:
            os.unlink(path)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise disk_error(error, "remove", os.fspath(path)) from error
        return True

    def remove_tree(self, path: PathLike) -> bool:
        """Remove a directory and everything in it; return False if it did not exist."""
        name = os.fspath(path)
        if not self.is_dir(name):
            return False
        for entry in self.list_dir(name):
            child = os.path.join(name, entry)
            if self.is_dir(child) and not os.path.islink(child):
                self.remove_tree(child)
            else:
                self.remove(child)
        try:
            os.rmdir(name)
        except OSError as error:
            raise disk_error(error, "remove directory", name) from error
        return True

    def rename(self, source: PathLike, target: PathLike) -> None:
        """Rename a file, replacing any file of the new name; readers see the old or the new file, never
        none."""
        try:
            os.replace(source, target)
        except OSError as error:
            raise disk_error(error, f"rename to {os.fspath(target)}", os.fspath(source)) from error

    def link(self, source: PathLike, target: PathLike) -> bool:
        """Give a file another name; return False if the file system cannot, or both are not on one file
        system."""
        try:
            os.link(source, target)
        except OSError as error:
            if error.errno in (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.ENOSYS):
                return False
            raise disk_error(error, f"link to {os.fspath(target)}", os.fspath(source)) from error
        return True

    def sync_dir(self, path: PathLike) -> None:
        """Wait until the names in a directory (created, renamed, removed) are on the medium."""
        if os.name == "nt":
            return  # Windows cannot open directories; its file system journals names
        name = os.fspath(path) or "."
        try:
            fd = os.open(name, os.O_RDONLY | _O_FLAGS)
        except OSError as error:
            raise disk_error(error, "open directory", name) from error
        try:
            os.fsync(fd)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.EBADF):  # file systems without this operation
                raise sync_error(error, name) from error
        finally:
            os.close(fd)

    def read(self, path: PathLike) -> bytes:
        """Return the whole content of a file."""
        file = self.open(path, read_only=True)
        try:
            return file.pread(file.size, 0) if file.size else b""
        finally:
            file.close()

    def read_if_exists(self, path: PathLike) -> bytes | None:
        try:
            return self.read(path)
        except FileMissing:
            return None

    def write_atomic(self, path: PathLike, data: Buffer, *, keep_backup: bool = False) -> None:
        """Replace the content of a file: after a crash it has the old content or the new one.

        With ``keep_backup`` the old content is first written, by the same steps, to ``<path>.bak``.
        """
        name = os.fspath(path)
        if keep_backup and (old := self.read_if_exists(name)) is not None:
            self.write_atomic(name + ".bak", old)
        fresh = name + ".tmp"
        self.remove(fresh)  # left by a crash
        file = self.create(fresh)
        try:
            file.pwrite(data, 0)
            file.sync()
        finally:
            file.close()
        self.rename(fresh, name)
        self.sync_dir(os.path.dirname(name))

    def disk_usage(self, path: PathLike) -> DiskUsage:
        """Return the space of the file system that holds ``path``."""
        name = os.fspath(path)
        try:
            if hasattr(os, "statvfs"):
                found = os.statvfs(name)
                unit = found.f_frsize
                return DiskUsage(found.f_blocks * unit, found.f_bfree * unit, found.f_bavail * unit)
            usage = shutil.disk_usage(name)
            return DiskUsage(usage.total, usage.free, usage.free)
        except OSError as error:
            raise disk_error(error, "ask the space of", name) from error

    def used_ratio(self, path: PathLike, enough: int = 0) -> float:
        """Return the used share of the disk of ``path``, 0 with ``enough`` bytes free; -1 if the path does
        not exist."""
        return self.disk_usage(path).ratio_unless(enough) if self.exists(path) else -1.0
