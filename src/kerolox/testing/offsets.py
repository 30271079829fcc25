"""Isolation of broadcasting consumers under test: their progress goes to a temporary folder."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile

from kerolox.client.consume.offset_files import DIRECTORY_VARIABLE


def isolate_offsets() -> None:
    """Set the environment variable of the offsets' folder to a temporary one, for this process and its
    children.

    A folder that the environment already names stays. The temporary one is deleted when the process ends.
    """
    if DIRECTORY_VARIABLE not in os.environ:
        folder = tempfile.mkdtemp(prefix="kerolox-offsets-")
        os.environ[DIRECTORY_VARIABLE] = folder
        atexit.register(_remove, folder, os.getpid())


def _remove(folder: str, owner: int) -> None:
    if os.getpid() == owner:  # a forked child leaves the folder to its parent
        shutil.rmtree(folder, ignore_errors=True)
