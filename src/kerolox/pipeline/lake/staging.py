"""Folder for the files of an archive until they are committed, and removal of those of killed runs.

No file is written at its final place: a task writes it below ``_kerolox/staging``, which readers skip, and
it is moved when it is complete. Every run has its own folder there.

On disk one run at a time holds the archive's lock, so all files found there when a run begins were left by
killed runs. In an object store the lock keeps out only runs of this machine: before files are removed there,
``ParquetArchive.open`` and ``DeltaArchive.open`` make sure that no other run can still commit.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from kerolox.clock import Clock
from kerolox.pipeline.lake.storage import Storage, StoredFile
from kerolox.pipeline.lake.table_file import LakeFile

OWN_FOLDER: Final = "_kerolox"
HEAD: Final = f"{OWN_FOLDER}/archive.json"  # description of an archive of Parquet files
STAGING: Final = f"{OWN_FOLDER}/staging"


class Swept(NamedTuple):
    """Number of removed files of killed runs, and their bytes."""

    files: int = 0
    bytes: int = 0

    def __add__(self, other: object) -> Swept:
        assert isinstance(other, Swept)
        return Swept(self.files + other.files, self.bytes + other.bytes)


NOTHING = Swept()


class Staging:
    """Folder of a run's files until they are committed."""

    def __init__(self, storage: Storage, clock: Clock) -> None:
        self._storage = storage
        self.run = f"{clock.wall_ms()}-{os.getpid()}-{os.urandom(3).hex()}"  # unique
        self.folder = f"{STAGING}/{self.run}"  # below the archive's folder; only of this run

    def leftovers(self) -> list[StoredFile]:
        """Return files left by other runs, and temporary files of unfinished notes and commits."""
        if self._storage.is_local:
            found = self._storage.files(OWN_FOLDER)
            return [file for file in found if file.path.startswith(f"{STAGING}/") or _is_temporary(file.path)]
        return [file for file in self._storage.files(STAGING) if not file.path.startswith(self.folder)]

    def sweep(self, left: Sequence[StoredFile]) -> Swept:
        """Remove these files. A file that cannot be removed does no harm."""
        self._storage.delete(file.path for file in left)
        if self._storage.is_local:
            self._storage.clear(STAGING)
        return Swept(len(left), sum(file.bytes for file in left))

    def clear(self) -> None:
        """Remove this run's folder."""
        self._storage.clear(STAGING if self._storage.is_local else self.folder)

    def discard(self, files: Iterable[LakeFile]) -> None:
        """Delete the files of a failed round."""
        self._storage.delete(file.staged for file in files)


def publish(storage: Storage, files: Iterable[LakeFile]) -> list[LakeFile]:
    """Move files to their places. Idempotent. Returns the files that exist in neither place."""
    files = list(files)
    lost = set(storage.publish([(file.staged, file.path) for file in files]))
    return [file for file in files if file.path in lost]


def remove(storage: Storage, paths: Iterable[str]) -> Swept:
    """Delete files and return their number and bytes."""
    wanted = set(paths)
    folders = {path.rsplit("/", 1)[0] for path in wanted if "/" in path}
    found = {file for folder in folders for file in storage.files(folder) if file.path in wanted}
    storage.delete(wanted)
    return Swept(len(found), sum(file.bytes for file in found))


def _is_temporary(path: str) -> bool:
    name = path.rsplit("/", 1)[-1]
    return name.startswith(".") and name.endswith(".tmp")
