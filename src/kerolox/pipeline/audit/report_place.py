"""Destination of an audit report: a folder on disk, or an address.

The report is completed on disk first, then moved or uploaded. It replaces only an older report.
"""

from __future__ import annotations

import ctypes
import glob
import json
import logging
import os
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

from kerolox.errors import KeroloxError, OptionError
from kerolox.own_folder import own_folder
from kerolox.pipeline.lake.local_folder import LocalFolder
from kerolox.pipeline.lake.storage import Storage
from kerolox.store.disk.files import Files
from kerolox.store.disk.lock import StoreLock

log = logging.getLogger(__name__)

FORM = "kerolox audit 1"  # identifies a report, which may be replaced
REPORT = "report.json"
UNFINISHED = "_unfinished"  # exists at an address while a report is uploaded
JUST_MADE_MS = 60_000  # a newer folder may not be locked yet


def place_of(storage: Storage) -> ReportPlace:
    if isinstance(storage, LocalFolder):
        return FolderPlace(Path(os.path.abspath(storage.root)))
    return AddressPlace(storage)


class ReportPlace(ABC):
    """Destination of a report. ``name``: the path or address."""

    name: str

    @abstractmethod
    def check(self) -> None:
        """Raise an error if the place is not writable, or contains anything but a report."""

    @abstractmethod
    def put(self, made: Path) -> None:
        """Move or upload the finished report from this folder."""

    @abstractmethod
    def _near(self) -> tuple[Path, str]:
        """Return the parent of work folders, and the prefix of the work folders of this report."""

    @contextmanager
    def work(self, now_ms: int) -> Iterator[Path]:
        """Create a work folder and remove it at the end. Folders of killed audits are removed first."""
        near, name = self._near()
        near.mkdir(parents=True, exist_ok=True)
        _remove_left(near, name, now_ms)
        work = Path(tempfile.mkdtemp(prefix=f".{name}.", suffix=".work", dir=near))
        lock = StoreLock(Files(), work)
        try:
            lock.take()
            yield work
        finally:
            lock.release()
            shutil.rmtree(work, ignore_errors=True)

    def _refuse(self) -> KeroloxError:
        return KeroloxError(f"{self.name} exists and is not an audit report. Choose another place with --to.")


def is_ours(text: str | bytes) -> bool:
    """Return True if a ``report.json`` is that of an audit."""
    try:
        return bool(json.loads(text)["form"] == FORM)
    except (ValueError, KeyError, TypeError):
        return False


def _remove_left(near: Path, name: str, now_ms: int) -> None:
    """Remove the folders of killed audits: not locked, and not just made."""
    for folder in near.glob(f".{glob.escape(name)}.*.work"):
        lock = StoreLock(Files(), folder)
        try:
            if now_ms - folder.stat().st_mtime * 1000 < JUST_MADE_MS:
                continue
            lock.take()
        except (OSError, KeroloxError):  # in use, or already removed
            continue
        lock.release()
        shutil.rmtree(folder, ignore_errors=True)
        log.info("left_by_a_killed_audit folder=%s removed=true", folder)


class FolderPlace(ReportPlace):
    """Report in a folder, replaced in one step: readers find the old report or the new one."""

    def __init__(self, target: Path) -> None:
        self._target = target
        self.name = str(target)

    def check(self) -> None:
        target = self._target
        parent = next(path for path in target.parents if path.exists())
        if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
            raise OptionError("--to", str(target), f"a writable place; {parent} cannot be written to")
        if not target.exists() or (target.is_dir() and not any(target.iterdir())):
            return
        try:
            ours = is_ours((target / REPORT).read_bytes())
        except OSError:
            ours = False
        if not ours:
            raise self._refuse()

    def _near(self) -> tuple[Path, str]:
        return self._target.parent, self._target.name

    def put(self, made: Path) -> None:
        target = self._target
        if not target.exists():
            os.rename(made, target)
        elif not _exchange(made, target):
            os.rename(target, made.with_name("old"))
            os.rename(made, target)


def _exchange(one: Path, other: Path) -> bool:
    """Exchange the names of two directories in one step. Returns False if the system cannot (not Linux)."""
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return False
    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    done: int = renameat2(here, os.fsencode(one), here, os.fsencode(other), exchange)
    return done == 0


class AddressPlace(ReportPlace):
    """Report in an object store. ``report.json`` is uploaded last: without it there is no report."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self.name = storage.address

    def check(self) -> None:
        whole = self._storage.is_empty() or self._is_ours(REPORT)
        if not whole and not self._is_ours(UNFINISHED):
            raise self._refuse()
        # Missing permissions to write or delete are found now, not after all the work.
        self._mark()
        if whole:
            self._delete([UNFINISHED])

    def _is_ours(self, name: str) -> bool:
        try:
            return is_ours(self._storage.read(name))
        except FileNotFoundError:
            return False

    def _mark(self) -> None:
        """Mark the files as an unfinished report, so that a later audit may replace them after a crash."""
        try:
            self._storage.put(UNFINISHED, json.dumps({"form": FORM}).encode())
        except FileNotFoundError:
            raise OptionError("--to", self.name, "a place in an existing bucket") from None

    def _near(self) -> tuple[Path, str]:
        # Tasks append to, rename and map files, which object stores do not support.
        return own_folder("audits"), sha256(self.name.encode()).hexdigest()[:12]

    def put(self, made: Path) -> None:
        fresh = sorted(path.relative_to(made).as_posix() for path in made.rglob("*") if path.is_file())
        before = [file.path for file in self._storage.files()]
        self._mark()
        self._delete([REPORT])
        self._delete([path for path in before if path not in (*fresh, UNFINISHED)])
        for path in (*(path for path in fresh if path != REPORT), REPORT):
            self._storage.put(path, (made / path).read_bytes())
        self._delete([UNFINISHED])

    def _delete(self, paths: list[str]) -> None:
        if self._storage.delete(paths):
            raise KeroloxError(
                f"files at {self.name} could not be deleted ({', '.join(paths[:3])}). Use credentials that "
                "may delete there, or choose another place with --to"
            )
