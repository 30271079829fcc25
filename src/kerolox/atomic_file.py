"""Small files that are replaced as a whole: after a crash there is the old content or the new, never half.

The content goes to a temporary file beside the target, is forced to disk, and takes the target's name; then
the directory is forced too, or the new name could be lost with the power.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path


def write_atomically(path: str | os.PathLike[str], content: bytes, *, private: bool = False) -> None:
    """Replace a file, making its directory when there is none. ``private``: nobody but its owner may read it.
    Blocking: not on the event loop."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".tmp", dir=target.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            if hasattr(os, "fchmod"):  # not on Windows
                os.fchmod(file.fileno(), 0o600 if private else _mode_of(target))
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException:
        _remove(temporary)
        raise
    sync_directory(target.parent)


class LatestSave:
    """Saves one file again and again, off the event loop.

    Saves never overlap and never change places. Contents that pile up while one is being written are not
    all written: the newest is, once, and all who wait for an older one are content with it.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._content = b""
        self._waiting: list[asyncio.Future[None]] = []
        self._task: asyncio.Task[None] | None = None

    def save(self, content: bytes) -> asyncio.Future[None]:
        """Done when this content, or a newer one, is on disk; or fails with the OSError."""
        loop = asyncio.get_running_loop()
        saved: asyncio.Future[None] = loop.create_future()
        self._content = content
        self._waiting.append(saved)
        if self._task is None:
            self._task = loop.create_task(self._run())
        return saved

    async def close(self) -> None:
        """Wait for what was asked for. Errors went to those who asked."""
        while self._task is not None:
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        try:
            while self._waiting:
                content, waiting, self._waiting = self._content, self._waiting, []
                error: BaseException | None = None
                try:
                    await asyncio.to_thread(write_atomically, self.path, content)
                except OSError as failed:
                    error = failed
                for saved in waiting:
                    if saved.cancelled():
                        continue
                    if error is None:
                        saved.set_result(None)
                    else:
                        saved.set_exception(error)
        finally:
            self._task = None


def _mode_of(target: Path) -> int:
    # mkstemp's files are private. A file that is replaced keeps the rights it had; a new one in a directory
    # that only its owner reads has none for others.
    try:
        return target.stat().st_mode & 0o777
    except OSError:
        return 0o644 if target.parent.stat().st_mode & 0o077 else 0o600


def sync_directory(directory: Path) -> None:
    if os.name != "posix":  # Windows cannot open directories; its rename is in the journal
        return
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass
