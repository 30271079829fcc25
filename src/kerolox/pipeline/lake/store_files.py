"""Files of a broker's store at an address, with the interface of files on disk.

A store that was copied to an object store is read in place, by ranges, without a file on disk. Slow requests
are avoided: a listing returns a thousand names at once and is cached, and a read fetches ahead, twice as
much each time reading continues. An object has no holes: all of it counts as written.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any, NamedTuple

from kerolox.pipeline.lake.local_folder import LocalFolder
from kerolox.pipeline.lake.remote_store import RemoteStore
from kerolox.pipeline.lake.storage import Storage, open_storage
from kerolox.store.disk.files import File, PathLike, collect_messages
from kerolox.store.errors import FileMissing
from kerolox.store.offline.layout import OnlyReading

FIRST_BYTES = 128 << 10  # of a first read in a file; covers most consume queues
READ_BYTES_MAX = 8 << 20  # per request
KEPT_BYTES_MAX = 32 << 20  # cached for all files of a task

Address = str | os.PathLike[str] | Storage


def files_at(place: Address) -> tuple[str, OnlyReading | None]:
    """Return the directory of a store and its file layer; None: on disk. Opens nothing."""
    storage = open_storage(place)
    if isinstance(storage, LocalFolder):
        return os.path.abspath(storage.root), None
    assert isinstance(storage, RemoteStore)
    return storage.address, AddressFiles(storage)


class AddressFiles(OnlyReading):
    """Files below an address. Pickled to tasks without its caches."""

    def __init__(self, storage: RemoteStore) -> None:
        super().__init__()
        self.storage = storage
        self._listed: dict[str, dict[str, int | None]] = {}  # by folder: the names in it
        self._whole: set[str] = set()  # folders listed with all folders below
        self._kept = _Kept()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.storage,)

    def absolute(self, path: PathLike) -> str:
        return os.fspath(path).rstrip("/")

    def _below(self, path: PathLike) -> str:
        return os.fspath(path).removeprefix(self.storage.address).strip("/")

    def _names(self, folder: str) -> dict[str, int | None]:
        """Return the names in a folder with sizes of files, None for folders."""
        if folder not in self._listed and not any(folder.startswith(f"{each}/") for each in self._whole):
            if folder:
                self._list_all(folder)
            else:  # the address may contain much more than a store
                self._listed[""] = self.storage.names()
        return self._listed.get(folder, {})

    def _list_all(self, top: str) -> None:
        """List all files below a folder: a request returns a thousand files, and queues have many folders."""
        self._whole.add(top)
        self._listed[top] = {}
        for path, size in self.storage.files(top):
            if not path.startswith(f"{top}/"):
                continue  # ``top`` is itself a file
            folder, _, name = path.rpartition("/")
            self._listed.setdefault(folder, {})[name] = size
            while folder != top:
                folder, _, name = folder.rpartition("/")
                names = self._listed.setdefault(folder, {})
                if name in names:
                    break
                names[name] = None

    def _find(self, path: PathLike) -> tuple[str, int | None]:
        """Return the path below the address, and the size. Raises FileMissing."""
        below = self._below(path)
        folder, _, name = below.rpartition("/")
        names = self._names(folder)
        if name not in names:
            raise FileMissing(f"{os.fspath(path)} does not exist", path=os.fspath(path))
        return below, names[name]

    def list_dir(self, path: PathLike) -> list[str]:
        found = sorted(self._names(self._below(path)))
        return [name for name in found if os.path.join(path, name) not in self.hidden]

    def exists(self, path: PathLike) -> bool:
        try:
            self._find(path)
        except FileMissing:
            return False
        return True

    def is_dir(self, path: PathLike) -> bool:
        return bool(self._names(self._below(path)))

    def size(self, path: PathLike) -> int:
        return self._find(path)[1] or 0

    def open(self, path: PathLike, *, read_only: bool = False) -> File:
        below, size = self._find(path)
        if size is None:
            raise FileMissing(f"{os.fspath(path)} is a folder", path=os.fspath(path))
        return AddressFile(os.fspath(path), below, size, self.storage, self._kept)


class AddressFile(File):
    """File at an address. Each read is a separate request, so there is nothing to close."""

    __slots__ = ("_below", "_kept", "_storage")

    def __init__(self, path: str, below: str, size: int, storage: RemoteStore, kept: _Kept) -> None:
        super().__init__(path, -1, size, read_only=True)
        self._hot_known = False  # reads always wait for the network
        self._below = below
        self._storage = storage
        self._kept = kept

    def pread(self, size: int, offset: int) -> bytes:
        end = min(offset + size, self.size)
        if end <= offset:
            return b""
        window = self._kept.get(self._below)
        if window is None or not window.start <= offset <= window.end:
            window = Window(offset, b"", FIRST_BYTES)
        if end > window.end:
            window = self._go_on(window, offset, end)
        return window.data[offset - window.start : end - window.start]

    def _go_on(self, window: Window, offset: int, end: int) -> Window:
        """Return the window from ``offset`` on, extended by the next bytes of the file."""
        fetch_end = min(max(end, window.end + window.ahead), self.size)
        try:
            more = self._storage.read_range(self._below, window.end, fetch_end)
        except FileNotFoundError:
            raise FileMissing(f"{self.path} was deleted after it was listed", path=self.path) from None
        ahead = min(2 * window.ahead, READ_BYTES_MAX)
        return self._kept.keep(
            self._below, Window(offset, window.data[offset - window.start :] + more, ahead)
        )

    def pread_into(self, view: memoryview, offset: int) -> int:
        got = 0
        while got < len(view):  # in pieces: the view may be as large as a file
            piece = self.pread(min(len(view) - got, READ_BYTES_MAX), offset + got)
            if not piece:
                break
            view[got : got + len(piece)] = piece
            got += len(piece)
        return got

    def read_messages(self, entries: bytes, count: int, base: int, *, may_wait: bool) -> bytes | None:
        return collect_messages(entries, count, base, self.pread)

    def written_ranges(self, offset: int, end: int) -> Iterator[tuple[int, int]]:
        if offset < end:
            yield offset, end


class Window(NamedTuple):
    """Part of a file that was read last."""

    start: int
    data: bytes
    ahead: int  # bytes to fetch at once when reading continues

    @property
    def end(self) -> int:
        return self.start + len(self.data)


class _Kept:
    """Cache of one window per file, least recently used first out."""

    def __init__(self) -> None:
        self._windows: OrderedDict[str, Window] = OrderedDict()
        self._bytes = 0

    def get(self, name: str) -> Window | None:
        if name not in self._windows:
            return None
        self._windows.move_to_end(name)
        return self._windows[name]

    def keep(self, name: str, window: Window) -> Window:
        before = self._windows.pop(name, None)
        self._bytes += len(window.data) - (len(before.data) if before else 0)
        self._windows[name] = window
        while self._bytes > KEPT_BYTES_MAX and len(self._windows) > 1:
            self._bytes -= len(self._windows.popitem(last=False)[1].data)
        return window
