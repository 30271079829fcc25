"""Checks that a pipeline can write to a place, without leaving files there."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from kerolox.errors import KeroloxError
from kerolox.pipeline.lake.staging import OWN_FOLDER
from kerolox.pipeline.lake.storage import Storage, open_storage

SQLITE: Final = "sqlite:///"


def check_writable(storage: Storage) -> None:
    """Write a small file and delete it, with the folders that were created for it."""
    probe = f"{OWN_FOLDER}/probe-{os.getpid()}"
    missing = _missing_folders(Path(storage.name(probe)).parent) if storage.is_local else []
    try:
        storage.put(probe, b"")
    except OSError as error:
        raise KeroloxError(f"{storage} cannot be written to: {error.strerror or error}") from None
    else:
        storage.delete([probe])
    finally:
        _remove(missing)


def _missing_folders(folder: Path) -> list[Path]:
    """Return this folder and its parents that do not exist, the deepest first."""
    return [each for each in (folder, *folder.parents) if not each.exists()]


def _remove(folders: list[Path]) -> None:
    for folder in folders:
        try:
            folder.rmdir()
        except OSError:  # already removed, never created, or used by another process
            return


def sqlite_file(uri: str) -> Path | None:
    """Return the file of a SQLite catalog; None for other catalogs, and for one in memory."""
    kind, separator, path = uri.partition(":///")
    is_file = separator and kind.partition("+")[0] == "sqlite" and path and not path.startswith(":")
    return Path(path.partition("?")[0]) if is_file else None


def make_catalog_folder(uri: str) -> None:
    """Create the folder of a SQLite catalog: SQLite creates the file, but not its folder."""
    file = sqlite_file(uri)
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)


def check_catalog_file(uri: str) -> bool:
    """Return False if opening the catalog would create its file. Raises if the file cannot be created."""
    file = sqlite_file(uri)
    if file is None or file.exists():
        return True
    check_writable(open_storage(file.parent))
    return False
