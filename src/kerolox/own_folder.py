"""A private folder in the temporary folder, for locks and temporary work.

All users can write to the temporary folder: another user may have created a folder or a symbolic link under a
predictable name.
"""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

from kerolox.errors import KeroloxError


def own_folder(*names: str) -> Path:
    """Return a folder in the temporary folder that only this user can read and write; create it if needed."""
    user = os.getuid() if hasattr(os, "getuid") else "user"
    path = Path(tempfile.gettempdir(), f"kerolox-{user}")
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        _check(path)
    found = path.joinpath(*names)
    found.mkdir(mode=0o700, parents=True, exist_ok=True)
    return found


def _check(path: Path) -> None:
    if os.name != "posix":
        return
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        what = "is not a folder" if not stat.S_ISDIR(found.st_mode) else f"belongs to user {found.st_uid}"
        raise KeroloxError(
            f"{path} {what}, so other users may read or change its content. Remove it, or set TMPDIR "
            "to a private folder."
        )
    if found.st_mode & 0o077:
        path.chmod(0o700)
