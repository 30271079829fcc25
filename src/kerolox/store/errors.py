"""What can go wrong on disk: the path, the place in it, and the next step.

All of them answer SERVICE_NOT_AVAILABLE on the wire, because none is the caller's fault. Only a full
disk is worth another try: space may come back. A disk that failed a write or a flush stays suspect
until someone has looked at it.
"""

from __future__ import annotations

import errno
import os
from enum import Enum

from kerolox.errors import KeroloxError


class Operation(Enum):
    """Operations on files, as far as their failures differ in consequence."""

    OPEN = "open"
    CREATE = "create"  # also to allocate, and to make a directory
    READ = "read"
    WRITE = "write"
    FLUSH = "flush"
    REMOVE = "remove"
    RENAME = "rename"
    TRUNCATE = "truncate"


# By the first words of an action; see disk_error.
_OPERATIONS = {
    "open": Operation.OPEN,
    "create": Operation.CREATE,
    "allocate": Operation.CREATE,
    "make": Operation.CREATE,
    "write": Operation.WRITE,
    "close": Operation.WRITE,
    "set": Operation.WRITE,
    "remove": Operation.REMOVE,
    "rename": Operation.RENAME,
    "link": Operation.RENAME,
    "truncate": Operation.TRUNCATE,
}  # read, list, look at, ask: READ


class StoreError(KeroloxError):
    """Something about the files of the store. ``path`` and ``offset`` say where."""

    code = 14  # SERVICE_NOT_AVAILABLE

    def __init__(self, what: str, *, path: str = "", offset: int | None = None) -> None:
        self.path = path
        self.offset = offset
        super().__init__(what)


class DiskError(StoreError):
    """The operating system refused a file operation for a reason without a class of its own."""

    def __init__(
        self,
        what: str,
        *,
        path: str = "",
        offset: int | None = None,
        os_error: int | None = None,
        operation: Operation = Operation.READ,
    ) -> None:
        self.os_error = os_error
        self.operation = operation
        super().__init__(what, path=path, offset=offset)


class DiskFull(DiskError):
    """No space left. Nothing was acknowledged; the same call succeeds once space is back."""

    retriable = True


class ReadOnlyDisk(DiskError):
    """The file system does not take writes, from the start or since it noticed a fault."""


class FileAccessDenied(DiskError):
    """The process may not touch this file."""


class TooManyOpenFiles(DiskError):
    """The process has no descriptor left."""

    retriable = True


class FileMissing(DiskError):
    """There is no such file."""


class FileExists(DiskError):
    """A file that was to be created is already there."""


class FsyncFailed(DiskError):
    """A flush failed. What it covered may be lost even when a later flush succeeds.

    The kernel drops the pages it could not write and forgets about them, so a second fsync answers
    "done" without having written anything. Hence it is never repeated: the store stops taking
    writes, and the next start finds out by parsing what is really there.
    """


class SegmentGone(StoreError):
    """The store removed the file between finding it and reading it."""


class Unreadable(DiskError):
    """A file of the store that cannot be read at the moment, so nothing is known of what it holds.

    Not to be taken for deleted data: whoever reads stays at the same place and tries again. Consumers of
    every client do so at this code; they would go on behind it at the codes for deleted messages.
    """

    code = 2  # SYSTEM_BUSY
    retriable = True

    @classmethod
    def of(cls, error: StoreError) -> Unreadable:
        """The error of a failed read, raised ``from`` the one of the disk."""
        number = error.os_error if isinstance(error, DiskError) else None
        found = cls(str(error), path=error.path, offset=error.offset, os_error=number)
        found.__cause__ = error
        return found


class StoreLocked(StoreError):
    """Another process, or another store of this process, uses the directory."""

    def __init__(self, path: str, holder: str, pid: int | None = None) -> None:
        self.holder = holder
        self.pid = pid
        super().__init__(
            f"{path} is locked by {holder}. One process uses a store directory at a time: stop the other "
            "one, or give this one a directory of its own (storePathRootDir).",
            path=path,
        )


class WrongFileSize(StoreError):
    """A file of a fixed size has another one, so nothing in it can be addressed."""

    def __init__(self, path: str, size: int, expected: int) -> None:
        self.size = size
        self.expected = expected
        super().__init__(
            f"{path} is {size} bytes long, expected {expected}. Was the size option changed on an existing "
            "store? Set it back; or if the file is a damaged copy, restore it or move it away.",
            path=path,
        )


class StrayFile(StoreError):
    """A file that does not belong where it lies."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(
            f"{path} does not belong here: {why}. Move it out of the directory and start again.", path=path
        )


class CorruptRecord(StoreError):
    """Bytes in the store that are not what they must be."""


class OtherFileSize(CorruptRecord):
    """A record that lies across the end of a file here: who wrote it has files of another size."""


class OutOfLedger(StoreError):
    """A DLedger log has no entry of that index, or one does not continue it."""


class QueueGap(StoreError):
    """An entry that does not follow the last one: entries between are missing.

    RocketMQ appends it all the same, and from then on every message is found under a wrong offset.
    """

    def __init__(self, topic: str, queue_id: int, expected: int, got: int, path: str) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.expected = expected
        self.got = got
        super().__init__(
            f"queue {queue_id} of topic {topic!r} ends before offset {expected}, and got an entry for {got}: "
            f"{got - expected} are missing. Stop, and rebuild the queues from the commit log: "
            f"kerolox store repair {os.path.dirname(os.path.dirname(os.path.dirname(path)))} --queues",
            path=path,
            offset=expected,
        )


class OffsetOutOfRange(StoreError):
    """Asked for bytes the log does not hold: deleted, not yet written, or across the end of a file."""

    def __init__(self, what: str, *, path: str, offset: int, low: int, high: int) -> None:
        self.low = low
        self.high = high
        super().__init__(f"{what} (the log in {path} holds {low} to {high})", path=path, offset=offset)


_KINDS: dict[int | None, tuple[type[DiskError], str]] = {
    errno.ENOSPC: (DiskFull, "free space on that disk or shorten the retention"),
    getattr(errno, "EDQUOT", errno.ENOSPC): (
        DiskFull,
        "raise the quota, free space or shorten the retention",
    ),
    errno.EROFS: (ReadOnlyDisk, "look at the kernel log for the reason, repair, remount, start again"),
    errno.EACCES: (FileAccessDenied, "check owner and mode of the file and its directories"),
    errno.EPERM: (FileAccessDenied, "check owner, mode and attributes of the file"),
    errno.EMFILE: (TooManyOpenFiles, "raise the limit of open files (ulimit -n)"),
    errno.ENFILE: (TooManyOpenFiles, "raise the system's limit of open files (fs.file-max)"),
    errno.ENOENT: (FileMissing, "check the path"),
    errno.ENOTDIR: (DiskError, "a file is where a folder is needed: correct the path (storePathRootDir)"),
    errno.EEXIST: (FileExists, "it should not be there: move it away"),
}


def disk_error(error: OSError, action: str, path: str, offset: int | None = None) -> DiskError:
    """The store's error for one of the operating system, to be raised ``from`` it."""
    kind, step = _KINDS.get(error.errno, (DiskError, "check the disk and the kernel log"))
    where = "" if offset is None else f" at byte {offset}"
    reason = error.strerror or str(error)
    return kind(
        f"cannot {action} {path}{where}: {reason}. Next: {step}.",
        path=path,
        offset=offset,
        os_error=error.errno,
        operation=_OPERATIONS.get(action.split(" ", 1)[0], Operation.READ),
    )


def sync_error(error: OSError, path: str) -> FsyncFailed:
    return FsyncFailed(
        f"flush of {path} failed: {error.strerror or error}. What was written since the last flush may be "
        "lost, and flushing again would not tell. Next: look at the disk and the kernel log, then restart: "
        "recovery keeps what is really there.",
        path=path,
        os_error=error.errno,
        operation=Operation.FLUSH,
    )
