"""Small disks in memory, which can be filled.

They are mounted where only this thread and the processes it starts see them, and go with the last of these.
"""

from __future__ import annotations

import ctypes
import os
import shutil
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from tests.rig.netns import NoNamespaces, call

CLONE_NEWNS, CLONE_FS = 0x20000, 0x200
MS_REC, MS_PRIVATE = 0x4000, 1 << 18
OWN = "/proc/thread-self/ns/mnt"
FILLER = "filler"


class Disks:
    """One disk for each name, below a folder. ``with`` it, before anything is started."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._before = -1

    def __enter__(self) -> Disks:
        self._before = os.open(OWN, os.O_RDONLY)
        self._where = os.getcwd()
        try:
            call("unshare", CLONE_NEWNS)
            _mount("none", "/", "", MS_REC | MS_PRIVATE, "")
        except OSError as error:
            raise NoNamespaces(f"this process may not mount disks of its own: {error}") from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        call("unshare", CLONE_FS)  # a thread that ends late may share it with this one, which setns refuses
        call("setns", self._before, CLONE_NEWNS)
        os.close(self._before)
        os.chdir(self._where)

    def add(self, name: str, size_bytes: int) -> Path:
        """Where it is: empty, if it was there before."""
        path = self._folder / name
        if path.is_mount():
            self.remove(name)
        path.mkdir(parents=True, exist_ok=True)
        _mount("none", str(path), "tmpfs", 0, f"size={size_bytes}")
        return path

    def remove(self, name: str) -> None:
        _unmount(str(self._folder / name))

    def fill(self, name: str, leave_bytes: int = 0) -> None:
        """Leave only so much, or less: somebody else may write meanwhile."""
        path = self._folder / name
        with open(path / FILLER, "ab") as file:
            while (more := shutil.disk_usage(path).free - leave_bytes) > 0:
                with suppress(OSError):  # it is less by now
                    os.posix_fallocate(file.fileno(), os.path.getsize(path / FILLER), more)

    def make_room(self, name: str) -> None:
        (self._folder / name / FILLER).unlink(missing_ok=True)


def _mount(source: str, target: str, kind: str, flags: int, data: str) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    words = (source.encode(), target.encode(), kind.encode() or None, ctypes.c_ulong(flags), data.encode())
    if libc.mount(*words):
        number = ctypes.get_errno()
        raise OSError(number, f"mount {kind} at {target}: {os.strerror(number)}")


def _unmount(target: str) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.umount2(target.encode(), 2):  # detached at once: somebody may still look at it
        number = ctypes.get_errno()
        raise OSError(number, f"unmount {target}: {os.strerror(number)}")
