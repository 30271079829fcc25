"""Lock of a store directory: only one process uses it.

The lock is the one Apache RocketMQ takes: an exclusive POSIX record lock on the first byte of the file
``lock``. Its content is ``lock``, or ``kero`` while no other broker has used the store. So neither broker
starts on a directory that the other one has open.

Two problems of such locks are solved here. They never conflict inside one process: a registry rejects the
second store. And closing *any* descriptor of the file, even one opened only for reading, drops the lock: the
registry is checked before the file is opened, and no other code of the process may open it.
"""

from __future__ import annotations

import errno
import os
import struct
import sys
import threading

from kerolox.store.disk.files import File, Files, PathLike
from kerolox.store.errors import FileExists, StoreLocked, disk_error

_MARK = b"lock"
_SIGN = b"kero"  # written in its place while no other broker has used the store

_registry_lock = threading.Lock()
_held: dict[tuple[int, int], File] = {}  # by device and inode, which the kernel uses to identify files


class StoreLock:
    """Lock of a store directory, held from :meth:`take` to :meth:`release`."""

    def __init__(self, files: Files, directory: PathLike) -> None:
        self._files = files
        self.directory = os.fspath(directory)
        self.path = os.path.join(self.directory, "lock")
        self._file: File | None = None

    @property
    def held(self) -> bool:
        return self._file is not None and not self._file.closed

    def take(self) -> None:
        """Acquire the lock, or raise :class:`StoreLocked` with its holder. Never waits."""
        if self.held:
            return
        with _registry_lock:
            key = _identity(self.path)
            if key is not None and (holder := _held.get(key)) is not None:
                if not holder.closed:
                    raise StoreLocked(
                        self.path, f"this process ({os.getpid()}), in another store", os.getpid()
                    )
                del _held[key]  # closed by other code: the kernel dropped that lock as well
            file = self._open()
            try:
                if not _try_lock(file.fileno()):
                    raise self._locked(file.fileno())
                if not file.pread(len(_MARK), 0):
                    file.pwrite(_MARK, 0)
                    file.sync()
                key = _identity(self.path)
                assert key is not None
            except BaseException:
                file.close()
                raise
            _held[key] = file
            self._file = file

    @property
    def signed(self) -> bool:
        """Return True if no other broker has used the store since :meth:`sign`: RocketMQ writes ``lock``."""
        assert self._file is not None
        return self._file.pread(len(_SIGN), 0) == _SIGN

    def sign(self) -> None:
        """Note that kerolox opened this store. Wait for the disk."""
        assert self._file is not None
        if not self.signed:
            self._file.pwrite(_SIGN, 0)
            self._file.sync()

    def release(self) -> None:
        """Release the lock. The file stays, as with RocketMQ."""
        with _registry_lock:
            file, self._file = self._file, None
            if file is None:
                return
            for key, holder in list(_held.items()):
                if holder is file:
                    del _held[key]
            file.close()

    def __enter__(self) -> StoreLock:
        self.take()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def _open(self) -> File:
        self._files.make_dirs(self.directory)
        if not self._files.exists(self.path):
            try:
                return self._files.create(self.path)
            except FileExists:
                pass  # another process was faster
        return self._files.open_no_link(self.path)  # opened for writing, because its content is changed

    def _locked(self, fd: int) -> StoreLocked:
        pid = _holder_pid(fd)
        if pid is not None:
            return StoreLocked(self.path, _describe(pid), pid)
        # The pid is unknown: another pid namespace, host or system. The file abort may have it.
        noted = (self._files.read_if_exists(os.path.join(self.directory, "abort")) or b"").strip()
        if noted.isdigit():
            return StoreLocked(
                self.path, f"another process, probably {noted.decode()} (from the file abort)", int(noted)
            )
        return StoreLocked(self.path, "another process")


def is_signed(files: Files, directory: PathLike) -> bool:
    """Return True if no other broker has used a store since :meth:`StoreLock.sign`, even if the store is
    open."""
    path = os.path.join(os.fspath(directory), "lock")
    with _registry_lock:
        key = _identity(path)
        holder = None if key is None else _held.get(key)
        if holder is not None and not holder.closed:
            return holder.pread(len(_SIGN), 0) == _SIGN
        return (files.read_if_exists(path) or b"").startswith(_SIGN)


def _identity(path: str) -> tuple[int, int] | None:
    # stat, not open: see the module's note on closing descriptors.
    try:
        stat = os.stat(path)
    except OSError:
        return None
    return stat.st_dev, stat.st_ino


def _try_lock(fd: int) -> bool:
    try:
        if sys.platform == "win32":
            import msvcrt

            os.lseek(fd, 0, os.SEEK_SET)
            msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EAGAIN, errno.EDEADLK):
            return False
        raise disk_error(error, "lock", "the file lock") from error
    return True


def _holder_pid(fd: int) -> int | None:
    """Return the pid of the lock's holder, from the kernel; None if it does not report one."""
    if sys.platform == "linux":
        layout = struct.Struct("hhqqi4x")  # type, whence, start, length, pid
    elif sys.platform == "darwin":
        layout = struct.Struct("qqihh")  # start, length, pid, type, whence
    else:
        return None
    import fcntl

    try:
        if sys.platform == "linux":
            asked = layout.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
            pid = layout.unpack(fcntl.fcntl(fd, fcntl.F_GETLK, asked))[4]
        else:
            asked = layout.pack(0, 1, 0, fcntl.F_WRLCK, os.SEEK_SET)
            pid = layout.unpack(fcntl.fcntl(fd, fcntl.F_GETLK, asked))[2]
    except (OSError, struct.error):
        return None
    return pid if pid > 0 else None


def _describe(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            command = " ".join(file.read(4096).replace(b"\0", b" ").decode(errors="replace").split())
    except OSError:
        command = ""
    if len(command) > 120:
        command = command[:117] + "..."
    return f"process {pid}" + (f" ({command})" if command else "")
