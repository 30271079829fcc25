"""Disks with faults.

:class:`FaultyFiles` is a real directory behind a layer that can lose power, tear a write, fail or stall a
flush, fill up, become read-only, and report data as not in memory. Pass it to a store in place of
:class:`kerolox.store.disk.files.Files`::

    disk = FaultyFiles()
    store = open_store(files=disk)
    ...
    disk.power_loss(seed=7)          # unflushed data is gone, handles are dead
    store = open_store(files=disk)   # check what it has kept

Unflushed writes are tracked by keeping the old content of each page of 4 KiB at its first write; a flush
drops it, a power loss restores it.
"""

from __future__ import annotations

import errno
import os
import random
import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kerolox.store.disk.files import PAGE, Buffer, DiskUsage, File, Files, PathLike, collect_messages
from kerolox.store.errors import Operation, StoreError, disk_error, sync_error

_KEPT_MAX = 64 * 1024 * 1024


class PowerLost(StoreError):
    """Handle of a process that is dead in the test."""


class _Unsynced:
    """Old pages of a file, as the medium still has them, and its old length (None: unchanged)."""

    __slots__ = ("pages", "size")

    def __init__(self) -> None:
        self.pages: dict[int, bytes] = {}
        self.size: int | None = None

    def add_younger(self, younger: _Unsynced) -> None:
        self.pages = {**younger.pages, **self.pages}
        self.size = younger.size if self.size is None else self.size


class _Disk:
    """Content of a file on the medium, as far as it differs from the written one."""

    __slots__ = ("lost", "since", "syncing")

    def __init__(self) -> None:
        self.since = _Unsynced()  # pages written since the last flush began
        self.syncing: list[_Unsynced] = []  # pages covered by flushes still under way, oldest first
        self.lost = _Unsynced()  # pages of a failed flush: later flushes report success and do not write them

    def begin_sync(self) -> _Unsynced:
        covered, self.since = self.since, _Unsynced()
        self.syncing.append(covered)
        return covered

    def end_sync(self, covered: _Unsynced) -> None:
        # It waited for all earlier writes, including those that older flushes cover.
        while covered in self.syncing:
            done = self.syncing.pop(0)
            for page in done.pages:
                self.lost.pages.pop(page, None)  # written again, successfully
            self.lost.size = None  # the kernel drops unwritten pages, not the length

    def fail_sync(self, covered: _Unsynced) -> None:
        if covered in self.syncing:
            self.syncing.remove(covered)
            self.lost.add_younger(covered)

    def all(self) -> _Unsynced:
        everything = _Unsynced()
        for part in (self.lost, *self.syncing, self.since):
            everything.add_younger(part)
        return everything


@dataclass(slots=True)
class _Failure:
    number: int
    operation: Operation
    path_contains: str
    left: int  # remaining times; below 0: always


class FaultyFile(File):
    """File of a :class:`FaultyFiles`."""

    __slots__ = ("_disk", "_faults", "_life")

    def __init__(self, faults: FaultyFiles, path: str, fd: int, size: int, read_only: bool) -> None:
        super().__init__(path, fd, size, read_only=read_only)
        self._faults = faults
        self._life = faults.life
        self._disk = faults._disk_of(path)

    def _alive(self) -> None:
        if self._life != self._faults.life:
            raise PowerLost(f"{self.path} belonged to a process that is dead", path=self.path)

    def pwrite(self, data: Buffer, offset: int) -> None:
        self._alive()
        faults = self._faults
        with faults._lock:
            faults.writes += 1
            faults._refuse_writes("write", self.path, offset)
            data = memoryview(data).cast("B")
            kept = faults._torn_at(len(data))
            if kept is None:
                allowed = faults._spend(max(0, offset + len(data) - self.size))
                if not allowed:
                    raise disk_error(
                        OSError(errno.ENOSPC, "No space left on device"), "write", self.path, offset
                    )
            self._remember(offset, len(data))
            super().pwrite(data if kept is None else data[:kept], offset)
            if kept is not None:
                faults._die()
                raise PowerLost(
                    f"died {kept} bytes into a write of {len(data)} to {self.path}", path=self.path
                )

    def pwritev(self, parts: Sequence[Buffer], offset: int) -> None:
        self.pwrite(b"".join(parts), offset)

    def pread(self, size: int, offset: int) -> bytes:
        self._alive()
        self._faults._refuse_reads("read", self.path, offset)
        self._faults._count_read(self.path, offset, hot=False)
        return super().pread(size, offset)

    def pread_hot(self, size: int, offset: int) -> bytes | None:
        self._alive()
        faults = self._faults
        if faults.is_cold(self.path, offset, size):
            faults.cold_answers += 1
            return None
        faults._refuse_reads("read", self.path, offset)
        faults._count_read(self.path, offset, hot=True)
        # Tests must not depend on pages that happen to be in memory: only is_cold decides.
        return super().pread(size, offset)

    def read_messages(self, entries: bytes, count: int, base: int, *, may_wait: bool) -> bytes | None:
        return collect_messages(entries, count, base, self.pread if may_wait else self.pread_hot)

    def sync(self) -> None:
        self._alive()
        faults = self._faults
        with faults._lock:
            faults.syncs += 1
            faults.synced_paths[self.path] += 1
            covered = self._disk.begin_sync()
        try:
            faults._before_sync(self.path)
            self._alive()
        except StoreError:
            with faults._lock:
                self._disk.fail_sync(covered)
            raise
        with faults._lock:
            self._disk.end_sync(covered)
        if faults.really_sync:
            super().sync()

    def allocate(self, size: int, *, write_zeros: bool = False) -> None:
        self._alive()
        with self._faults._lock:
            self._faults._refuse_writes("allocate", self.path, size)
            if not self._faults._spend(max(0, size - self.size)):
                raise disk_error(
                    OSError(errno.ENOSPC, "No space left on device"), "allocate", self.path, size
                )
            self._remember_size(size)
            super().truncate(max(size, self.size))

    def reserve(self, offset: int, end: int) -> None:
        self._alive()
        faults = self._faults
        with faults._lock:
            faults._refuse_writes("allocate", self.path, end)
            if not faults._spend_blocks(self.path, end):
                raise disk_error(OSError(errno.ENOSPC, "No space left on device"), "allocate", self.path, end)

    def truncate(self, size: int) -> None:
        self._alive()
        with self._faults._lock:
            self._faults._refuse_writes("truncate", self.path, size)
            if size < self.size:
                self._remember(size, self.size - size)
            self._remember_size(size)
            super().truncate(size)

    def close(self) -> None:
        if self._life == self._faults.life:
            with self._faults._lock:
                self._faults._handles.discard(self)
        super().close()

    def _remember(self, offset: int, length: int) -> None:
        if length <= 0:
            return
        old = self._disk.since.pages
        for page in range(offset // PAGE, (offset + length - 1) // PAGE + 1):
            if page not in old:
                old[page] = os.pread(self.fileno(), PAGE, page * PAGE)
        self._remember_size(max(self.size, offset + length))

    def _remember_size(self, new: int) -> None:
        if new != self.size and self._disk.since.size is None:
            self._disk.since.size = self.size


class FaultyFiles(Files):
    """File system with faults that tests switch on. Without any it behaves like the real one.

    ``really_sync=False`` (the default) counts flushes without doing them, which is faster and loses nothing,
    because power loss is simulated.
    """

    def __init__(self, *, really_sync: bool = False) -> None:
        self.really_sync = really_sync
        self.life = 0
        self.syncs = 0
        self.dir_syncs = 0
        self.writes = 0
        self.synced_paths: Counter[str] = Counter()
        self.cold_answers = 0
        self.failed_reads = 0  # reads that fail_reads has failed
        # Returns the error number with which an operation on a path fails; None: it succeeds. For faults that
        # fail() cannot describe. An open for reading counts as READ.
        self.fault: Callable[[Operation, str], int | None] | None = None
        self.fault_hits = 0
        self.reads: deque[tuple[str, int, bool, int]] = deque(maxlen=100_000)  # path, offset, hot, thread
        self.usage: DiskUsage | None = None  # result of disk_usage, if set
        self.read_only = False
        self.cold: Callable[[str, int, int], bool] | None = None
        self._space: int | None = None
        self._blocks: dict[str, int] = {}  # of sparse files: number of bytes with blocks
        self._tear_after: int | None = None
        self._read_failures: dict[str, int] = {}  # part of a path → error number
        self._failures: list[_Failure] = []
        self._sync_failures = 0
        self._sync_failure_paths = ""
        self._flowing = threading.Event()
        self._flowing.set()
        self._stall_s: float | None = None
        self._stalled = 0
        self._stall_changed = threading.Condition()
        self._lock = threading.RLock()
        self._disks: dict[str, _Disk] = {}
        self._handles: set[FaultyFile] = set()
        # Steps that undo changes of names, in order, with the directory whose sync makes them permanent.
        self._names: list[tuple[str, Callable[[], None]]] = []

    # Faults

    def power_loss(self, seed: int | None = None, *, names: bool = False) -> None:
        """Lose unflushed data; all open handles are dead. Without a seed, all of it is lost.

        With a seed a random part of the unflushed pages is lost, because a disk writes them in any order.
        With ``names``, the creation, renaming and removal of files since the sync of their directory is
        undone; with a seed only from a random moment on, because file systems keep their order.
        """
        chance = None if seed is None else random.Random(seed)
        with self._lock:
            self._die()
            for path, disk in sorted(self._disks.items()):
                if os.path.exists(path):
                    _put_back(path, disk.all(), chance)
            self._disks.clear()
            if names:
                first = 0 if chance is None else chance.randint(0, len(self._names))
                for _, undo in reversed(self._names[first:]):
                    undo()
            self._names.clear()

    def kill(self) -> None:
        """Kill the process but not the machine: handles are dead, written data stays."""
        with self._lock:
            self._die()

    def tear_next_write(self, after: int) -> None:
        """Stop the next write after this many bytes, and kill the process in it."""
        self._tear_after = after

    def fail_syncs(self, count: int | None = None, *, path_contains: str = "") -> None:
        """Fail the next ``count`` flushes with EIO, or all from now on; only those of matching files.

        As with a real kernel, data that a failed flush covered is then lost on :meth:`power_loss`, even if a
        later flush succeeded, unless it was written again in between.
        """
        self._sync_failures = -1 if count is None else count
        self._sync_failure_paths = path_contains

    def fail_reads(self, number: int | None = errno.EIO, *, path_contains: str = "") -> None:
        """Fail to open, read, list and stat matching files and directories with this error number; None ends
        it."""
        with self._lock:
            failures = dict(self._read_failures)  # replaced, never changed, because threads read it
            if number is None:
                failures.pop(path_contains, None)
            else:
                failures[path_contains] = number
            self._read_failures = failures

    def fail(
        self, number: int, operation: Operation, *, path_contains: str = "", count: int | None = None
    ) -> None:
        """Fail this operation with this error number: the next ``count`` times, or until :meth:`mend`; only
        on matching files. For flushes use :meth:`fail_syncs`."""
        with self._lock:
            self._failures.append(_Failure(number, operation, path_contains, -1 if count is None else count))

    def mend(self) -> None:
        """End the faults of :meth:`fail` and :meth:`fail_syncs`."""
        with self._lock:
            self._failures.clear()
            self._sync_failures = 0

    def stall_syncs(self, for_s: float | None = None) -> None:
        """Make flushes wait: this long each, or until :meth:`release_syncs`."""
        self._stall_s = for_s
        if for_s is None:
            self._flowing.clear()

    def release_syncs(self) -> None:
        self._stall_s = None
        self._flowing.set()

    def wait_for_stalled_sync(self, timeout_s: float = 10.0) -> bool:
        """Wait until a flush is stalled; return False if none was in time."""
        with self._stall_changed:
            return self._stall_changed.wait_for(lambda: self._stalled > 0, timeout_s)

    def fill(self, free_bytes: int = 0) -> None:
        """Let files grow by this much in total from now on; then the disk is full."""
        with self._lock:
            self._space = free_bytes

    def make_room(self) -> None:
        """End the full disk."""
        with self._lock:
            self._space = None

    def is_cold(self, path: str, offset: int, size: int) -> bool:
        """Return True if a read counts as not in memory, as the function ``cold`` decides if it is set."""
        return self.cold is not None and self.cold(path, offset, size)

    @property
    def reading_threads(self) -> set[int]:
        """Return the threads that made a read which may wait for the disk."""
        return {thread for _, _, hot, thread in self.reads if not hot}

    # The file system

    def _file(self, path: str, fd: int, size: int, read_only: bool) -> File:
        with self._lock:
            file = FaultyFile(self, path, fd, size, read_only)
            self._handles.add(file)
            return file

    def open(self, path: PathLike, *, read_only: bool = False) -> File:
        self._refuse_reads("open", os.fspath(path))
        if read_only:
            self._meet_fault(Operation.READ, "open", os.fspath(path))
        self._refuse("open", os.fspath(path))
        return super().open(path, read_only=read_only)

    def list_dir(self, path: PathLike) -> list[str]:
        self._refuse_reads("list", os.fspath(path))
        return super().list_dir(path)

    def _stat(self, path: PathLike) -> os.stat_result:
        self._refuse_reads("look at", os.fspath(path))
        return super()._stat(path)

    def create(
        self, path: PathLike, size: int = 0, *, write_zeros: bool = False, sparse: bool = False
    ) -> File:
        name = os.fspath(path)
        with self._lock:
            self._refuse_writes("create", name)
            self._disks.pop(_key(name), None)
            if not os.path.exists(name):
                self._note_name(name, lambda: _unlink(name))
            file = super().create(name, size, write_zeros=write_zeros, sparse=sparse)
            if sparse:
                self._blocks[_key(name)] = 0
            return file

    def _make_dir(self, path: str) -> None:
        with self._lock:
            self._refuse_writes("make directory", path)
            super()._make_dir(path)
            self._note_name(path, lambda: _rmdir(path))

    def remove(self, path: PathLike) -> bool:
        name = os.fspath(path)
        with self._lock:
            self._refuse_writes("remove", name)
            disk = self._disks.pop(_key(name), None)
            content = _content(name, disk)
            blocks = self._blocks.pop(_key(name), None)
            if self._space is not None and os.path.isfile(name):
                self._space += os.path.getsize(name) if blocks is None else blocks
            removed = super().remove(name)
            if removed and content is not None:
                self._note_name(name, lambda: _write(name, content))
            return removed

    def rename(self, source: PathLike, target: PathLike) -> None:
        old, new = os.fspath(source), os.fspath(target)
        with self._lock:
            self._refuse_writes("rename", old)
            replaced = _content(new, self._disks.pop(_key(new), None))
            super().rename(old, new)
            disk = self._disks.pop(_key(old), None)
            if disk is not None:
                self._disks[_key(new)] = disk

            def undo() -> None:
                if os.path.exists(new):
                    os.replace(new, old)
                if replaced is not None:
                    _write(new, replaced)

            self._note_name(new, undo)

    def link(self, source: PathLike, target: PathLike) -> bool:
        new = os.fspath(target)
        with self._lock:
            self._refuse_writes("link", new)
            linked = super().link(source, new)
            if linked:
                self._note_name(new, lambda: _unlink(new))
            return linked

    def set_mtime(self, path: PathLike, mtime_s: float) -> None:
        self._refuse_writes("set the time of", os.fspath(path))
        super().set_mtime(path, mtime_s)

    def sync_dir(self, path: PathLike) -> None:
        name = os.fspath(path)
        with self._lock:
            self.dir_syncs += 1
            life = self.life
        self._before_sync(name)
        with self._lock:
            if life != self.life:
                raise PowerLost(f"{name} was being synced by a process that is dead", path=name)
            directory = os.path.abspath(name)
            self._names = [step for step in self._names if not _is_settled(step[0], directory)]

    def disk_usage(self, path: PathLike) -> DiskUsage:
        return super().disk_usage(path) if self.usage is None else self.usage

    # Used by the files

    def _disk_of(self, path: str) -> _Disk:
        return self._disks.setdefault(_key(path), _Disk())

    def _die(self) -> None:
        self.life += 1
        self._tear_after = None
        self.release_syncs()
        for file in list(self._handles):
            File.close(file)
        self._handles.clear()

    def _note_name(self, path: str, undo: Callable[[], None]) -> None:
        self._names.append((os.path.dirname(os.path.abspath(path)), undo))

    def _refuse_writes(self, action: str, path: str, offset: int | None = None) -> None:
        if self.read_only:
            raise disk_error(OSError(errno.EROFS, "Read-only file system"), action, path, offset)
        self._refuse(action, path, offset)

    def _meet_fault(self, operation: Operation, action: str, path: str, offset: int | None = None) -> None:
        number = None if self.fault is None else self.fault(operation, path)
        if number is None:
            return
        self.fault_hits += 1
        error = OSError(number, os.strerror(number))
        raise sync_error(error, path) if action == "flush" else disk_error(error, action, path, offset)

    def _refuse(self, action: str, path: str, offset: int | None = None) -> None:
        if self.fault is not None:
            known = disk_error(OSError(errno.EIO, ""), action, path)
            self._meet_fault(known.operation, action, path, offset)
        if not self._failures:
            return
        with self._lock:
            for failure in self._failures:
                error = disk_error(OSError(failure.number, os.strerror(failure.number)), action, path, offset)
                if error.operation is failure.operation and failure.path_contains in path and failure.left:
                    failure.left -= failure.left > 0
                    raise error

    def _refuse_reads(self, action: str, path: str, offset: int | None = None) -> None:
        for part, number in self._read_failures.items():
            if part in path:
                self.failed_reads += 1
                raise disk_error(OSError(number, os.strerror(number)), action, path, offset)
        if action == "read":
            self._meet_fault(Operation.READ, action, path, offset)

    def _torn_at(self, length: int) -> int | None:
        after, self._tear_after = self._tear_after, None
        return None if after is None else min(after, length)

    def _spend(self, size: int) -> bool:
        if self._space is None or size == 0:
            return True
        if size > self._space:
            return False
        self._space -= size
        return True

    def _spend_blocks(self, path: str, end: int) -> bool:
        """Count the blocks of a sparse file up to ``end`` as used; any other file has all its blocks."""
        have = self._blocks.get(_key(path))
        if have is None or end <= have:
            return True
        if not self._spend(end - have):
            return False
        self._blocks[_key(path)] = end
        return True

    def _count_read(self, path: str, offset: int, *, hot: bool) -> None:
        self.reads.append((path, offset, hot, threading.get_ident()))

    def _before_sync(self, path: str) -> None:
        stall_s = self._stall_s
        if stall_s is not None or not self._flowing.is_set():
            with self._stall_changed:
                self._stalled += 1
                self._stall_changed.notify_all()
            if stall_s is not None:
                threading.Event().wait(stall_s)
            self._flowing.wait()
            with self._stall_changed:
                self._stalled -= 1
        self._meet_fault(Operation.FLUSH, "flush", path)
        with self._lock:
            if self._sync_failures and self._sync_failure_paths in path:
                self._sync_failures -= self._sync_failures > 0
                raise sync_error(OSError(errno.EIO, "Input/output error"), path)


def _is_settled(changed: str, synced: str) -> bool:
    """Return True if the names in ``changed`` are on disk after ``synced`` was synced: it is the same
    directory, or one below it that was removed with its content."""
    return changed == synced or (changed.startswith(synced + os.sep) and not os.path.isdir(changed))


def _key(path: str) -> str:
    return os.path.abspath(path)


def _put_back(path: str, unsynced: _Unsynced, chance: random.Random | None) -> None:
    size = os.path.getsize(path)
    if unsynced.size is not None and (chance is None or chance.random() < 0.5):
        size = unsynced.size
    with open(path, "r+b") as file:
        file.truncate(size)
        for page, old in sorted(unsynced.pages.items()):
            if chance is None or chance.random() < 0.5:
                file.seek(page * PAGE)
                file.write(old.ljust(PAGE, b"\0")[: max(0, size - page * PAGE)])


def _content(path: str, disk: _Disk | None) -> bytes | None:
    """Return the content on the medium of a file about to lose its name; None if it does not exist or is too
    large to keep."""
    if not os.path.isfile(path) or os.path.getsize(path) > _KEPT_MAX:
        return None
    with open(path, "rb") as file:
        content = bytearray(file.read())
    if disk is not None:
        unsynced = disk.all()
        for page, old in unsynced.pages.items():
            content[page * PAGE : page * PAGE + len(old)] = old
        if unsynced.size is not None:
            content = content[: unsynced.size].ljust(unsynced.size, b"\0")
    return bytes(content)


def _write(path: str, content: bytes) -> None:
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    with open(path, "wb") as file:
        file.write(content)


def _unlink(path: str) -> None:
    if os.path.exists(path):
        os.unlink(path)


def _rmdir(path: str) -> None:
    if os.path.isdir(path) and not os.listdir(path):
        os.rmdir(path)
