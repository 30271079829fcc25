"""Where the files of an archive lie until they count, and what killed runs have left there.

Nothing is written at its place: a task's file begins below ``_kerolox/staging``, where no reader looks, and
is moved when it is whole. Every run has a folder of its own there.

On disk one run at a time holds the archive's lock, so whatever lies there when a run begins was left by a
run that was killed. In an object store the lock keeps out runs of this machine only: whoever sweeps there has
first made sure that no other run can still commit (``ParquetArchive.open``, ``DeltaArchive.open``).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from kerolox.clock import Clock
from kerolox.pipeline.archive.files import WrittenFile
from kerolox.pipeline.lake.storage import Storage, StoredFile

OWN_FOLDER: Final = "_kerolox"
STAGING: Final = f"{OWN_FOLDER}/staging"


class Swept(NamedTuple):
    """How many files and bytes of killed runs were removed."""

    files: int = 0
    bytes: int = 0

    def __add__(self, other: object) -> Swept:
        assert isinstance(other, Swept)
        return Swept(self.files + other.files, self.bytes + other.bytes)


NOTHING = Swept()


class Expired(NamedTuple):
    """What was removed because it is old, and files that nothing named."""

    files: int = 0
    rows: int = 0
    bytes: int = 0
    orphans: int = 0


class Staging:
    """The folder where a run's files lie until they are committed."""

    def __init__(self, storage: Storage, clock: Clock) -> None:
        self._storage = storage
        self.run = f"{clock.wall_ms()}-{os.getpid()}-{os.urandom(3).hex()}"  # nobody else has this name
        self.folder = f"{STAGING}/{self.run}"  # below the archive's; of this run alone

    def leftovers(self) -> list[StoredFile]:
        """What other runs have left, and what was to become a small file, and did not."""
        if self._storage.is_local:
            found = self._storage.files(OWN_FOLDER)
            return [file for file in found if file.path.startswith(f"{STAGING}/") or _is_temporary(file.path)]
        return [file for file in self._storage.files(STAGING) if not file.path.startswith(self.folder)]

    def sweep(self, left: Sequence[StoredFile]) -> Swept:
        """Remove them. What cannot be removed is in nobody's way."""
        self._storage.delete(file.path for file in left)
        if self._storage.is_local:
            self._storage.clear(STAGING)
        return Swept(len(left), sum(file.bytes for file in left))

    def clear(self) -> None:
        """Remove this run's."""
        self._storage.clear(STAGING if self._storage.is_local else self.folder)

    def discard(self, files: Iterable[WrittenFile]) -> None:
        """Throw away what was written for a round that failed."""
        self._storage.delete(file.staged for file in files)

    def publish(self, files: Iterable[WrittenFile]) -> list[WrittenFile]:
        """Move files to their places. Doing it again changes nothing. Returns those that are nowhere."""
        files = list(files)
        lost = set(self._storage.publish([(file.staged, file.path) for file in files]))
        return [file for file in files if file.path in lost]


def remove(storage: Storage, paths: Iterable[str]) -> Swept:
    """Delete files, and tell what they were."""
    wanted = set(paths)
    folders = {path.rsplit("/", 1)[0] for path in wanted if "/" in path}
    found = {file for folder in folders for file in storage.files(folder) if file.path in wanted}
    storage.delete(wanted)
    return Swept(len(found), sum(file.bytes for file in found))


def _is_temporary(path: str) -> bool:
    name = path.rsplit("/", 1)[-1]
    return name.startswith(".") and name.endswith(".tmp")
