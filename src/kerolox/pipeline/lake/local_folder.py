"""Storage of archives and tables in a folder on disk.

A file is forced to disk before it gets its final name, and then the folder with the name as well.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from kerolox.atomic_file import sync_directory, write_atomically
from kerolox.pipeline.lake.storage import FileWriter, Storage, StoredFile


class LocalFolder(Storage):
    """Storage in a folder of this machine, or in a mount shared by all machines."""

    is_local = True

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.root = Path(path).absolute()
        super().__init__(str(self.root))

    def at(self, path: str) -> Path:
        return self.root / path

    @property
    def lock_folder(self) -> Path:
        return self.root / "_kerolox"

    def read(self, path: str) -> bytes:
        return self.at(path).read_bytes()

    def put(self, path: str, content: bytes) -> None:
        write_atomically(self.at(path), content)

    def put_if_absent(self, path: str, content: bytes) -> None:
        place = self.at(path)
        self._make(place.parent)
        handle, temporary = tempfile.mkstemp(
            prefix=f".{time.time_ns() // 1_000_000:013d}-", suffix=".tmp", dir=place.parent
        )
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(temporary, 0o644)
            _take_name(temporary, place)
        finally:
            Path(temporary).unlink(missing_ok=True)
        sync_directory(place.parent)

    def check_decides(self) -> None:
        pass

    def writer(self, path: str) -> FileWriter:
        place = self.at(path)
        place.parent.mkdir(parents=True, exist_ok=True)
        return _LocalWriter(open(place, "wb"), self, path)

    def reader(self, path: str) -> BinaryIO:
        return open(self.at(path), "rb")

    def exists(self, path: str) -> bool:
        return self.at(path).exists()

    def files(self, folder: str = "") -> list[StoredFile]:
        found = []
        for path in self.at(folder).rglob("*"):
            try:
                if path.is_file():
                    found.append(StoredFile(path.relative_to(self.root).as_posix(), path.stat().st_size))
            except FileNotFoundError:
                continue
        return sorted(found)

    def is_empty(self) -> bool:
        return not self.root.exists() or not any(self.root.iterdir())

    def publish(self, moves: Sequence[tuple[str, str]]) -> list[str]:
        folders, lost = set(), []
        for staged, path in moves:
            place = self.at(path)
            if self._move(self.at(staged), place):
                folders.add(place.parent)
            elif not place.exists():
                lost.append(path)
        for folder in {folder for place in folders for folder in _up_to(place, self.root)}:
            sync_directory(folder)
        return lost

    def _move(self, staged: Path, place: Path) -> bool:
        if not staged.exists():
            return False
        place.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.replace(staged, place)
        except FileNotFoundError:  # another run moved it meanwhile
            return False
        return True

    def delete(self, paths: Iterable[str]) -> int:
        failed = 0
        for path in paths:
            try:
                self.at(path).unlink(missing_ok=True)
            except OSError:
                failed += 1
        return failed

    def prune(self, folders: Iterable[str]) -> None:
        for name in folders:
            folder = self.at(name)
            while self.root in folder.parents:
                try:
                    folder.rmdir()
                except OSError:  # not empty, or gone
                    break
                folder = folder.parent

    def clear(self, folder: str) -> None:
        shutil.rmtree(self.at(folder), ignore_errors=True)

    def arrow(self) -> tuple[Any, str]:
        from pyarrow.fs import LocalFileSystem

        return LocalFileSystem(), str(self.root)

    def _make(self, folder: Path) -> None:
        """Create a folder that survives a crash."""
        if not folder.exists():
            folder.mkdir(parents=True, exist_ok=True)
            if self.root in (folder, *folder.parents):
                for each in _up_to(folder, self.root):
                    sync_directory(each)


class _LocalWriter(FileWriter):
    def _finish(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()

    def _abandon(self) -> None:
        self._file.close()


def _take_name(temporary: str, path: Path) -> None:
    """Give a complete file its name, unless the name exists."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        raise
    except OSError:  # no hard links here: only the lock protects the name
        if path.exists():
            raise FileExistsError(str(path)) from None
        os.replace(temporary, path)


def _up_to(folder: Path, root: Path) -> Iterator[Path]:
    while folder != root:
        yield folder
        folder = folder.parent
    yield root
