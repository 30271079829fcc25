"""Small files that are replaced as a whole: after a crash the content is either the old or the new one.

The content is written to a temporary file beside the target, flushed to disk and renamed to the target; then
the directory is flushed, because the new name could be lost in a power failure.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path


def write_atomically(path: str | os.PathLike[str], content: bytes, *, private: bool = False) -> None:
    """Replace a file; create its directory if it does not exist. ``private``: only its owner may read it.
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
    """Saves one file repeatedly, off the event loop.

    Saves run in order and never overlap. If several contents are queued during a write, only the newest is
    written next; it completes the older saves too.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._content = b""
        self._waiting: list[asyncio.Future[None]] = []
        self._task: asyncio.Task[None] | None = None

    def save(self, content: bytes) -> asyncio.Future[None]:
        """Return a future that is done when this content, or a newer one, is on disk; it fails with the
        OSError."""
        loop = asyncio.get_running_loop()
        saved: asyncio.Future[None] = loop.create_future()
        self._content = content
        self._waiting.append(saved)
        if self._task is None:
            self._task = loop.create_task(self._run())
        return saved

    async def close(self) -> None:
        """Wait for pending saves. Their errors are reported to the callers of :meth:`save`."""
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
    # mkstemp's files are private. A replaced file keeps its permissions; a new file in a directory that only
    # its owner can read is private too.
    try:
        return target.stat().st_mode & 0o777
    except OSError:
        return 0o644 if target.parent.stat().st_mode & 0o077 else 0o600


def sync_directory(directory: Path) -> None:
    if os.name != "posix":  # Windows cannot open directories; its journal contains the rename
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
