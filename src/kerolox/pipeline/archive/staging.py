"""Where the files of an archive lie until they count, and what killed runs have left there.

Nothing is written at its place: a task's file begins below ``_kerolox/staging``, where no reader looks, and
is moved when it is whole. One run at a time holds the archive's lock, so whatever lies there when a run
begins was left by a run that was killed.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from kerolox.atomic_file import sync_directory
from kerolox.clock import Clock
from kerolox.pipeline.archive.files import WrittenFile


class Swept(NamedTuple):
    """How many files and bytes of killed runs were removed."""

    files: int = 0
    bytes: int = 0

    def __add__(self, other: object) -> Swept:
        assert isinstance(other, Swept)
        return Swept(self.files + other.files, self.bytes + other.bytes)


NOTHING = Swept()


class Staging:
    """The folder where files lie until they are committed. Only the holder of the archive's lock uses it."""

    def __init__(self, root: Path, own: Path, clock: Clock) -> None:
        self._root = root
        self._own = own
        self._clock = clock
        self.folder = ""  # below the archive's; of this run alone

    def begin(self) -> Swept:
        """Remove what is there, and make a folder for this run."""
        left = [path for path in (self._own / "staging").rglob("*") if path.is_file()]
        left += self._own.rglob(".*.tmp")  # what was to become a small file, and did not
        swept = remove(left)
        self.clear()
        self.folder = f"{self._own.name}/staging/{self._clock.wall_ms()}-{os.getpid()}"
        (self._root / self.folder).mkdir(parents=True)
        return swept

    def clear(self) -> None:
        shutil.rmtree(self._own / "staging", ignore_errors=True)

    def discard(self, files: Iterable[WrittenFile]) -> None:
        """Throw away what was written for a round that failed."""
        for file in files:
            (self._root / file.staged).unlink(missing_ok=True)

    def publish(self, files: Iterable[WrittenFile]) -> list[WrittenFile]:
        """Move files to their places. Doing it again changes nothing. Returns those that are nowhere."""
        folders, lost = set(), []
        for file in files:
            staged, place = self._root / file.staged, self._root / file.path
            if staged.exists():
                place.parent.mkdir(parents=True, exist_ok=True)
                os.replace(staged, place)
                folders.add(place.parent)
            elif not place.exists():
                lost.append(file)
        for folder in {folder for place in folders for folder in _up_to(place, self._root)}:
            sync_directory(folder)
        return lost


def remove(paths: Iterable[Path]) -> Swept:
    swept = NOTHING
    for path in paths:
        try:
            size = path.stat().st_size
            path.unlink()
        except OSError:  # gone, or not to be had: it is in nobody's way
            continue
        swept += Swept(1, size)
    return swept


def _up_to(folder: Path, root: Path) -> Iterator[Path]:
    while folder != root:
        yield folder
        folder = folder.parent
    yield root
