"""Errors of the store, with the path, the offset and the next step.

On the wire all of them answer SERVICE_NOT_AVAILABLE unless a class says otherwise, because the caller did not
cause them. Only a full disk, a missing descriptor and an unreadable file can be retried. After a failed write
or flush the disk is not trusted until an operator has checked it.
"""

from __future__ import annotations

import errno
import os
from enum import Enum

from kerolox.errors import KeroloxError


class Operation(Enum):
    """File operations whose failures have different consequences."""

    OPEN = "open"
    CREATE = "create"  # includes allocating blocks and making a directory
    READ = "read"
    WRITE = "write"
    FLUSH = "flush"
    REMOVE = "remove"
    RENAME = "rename"
    TRUNCATE = "truncate"


# Operation by the first word of an action; see disk_error.
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
}  # all other actions (read, list, look at, ask) are READ


class Cold(Exception):
    """Data that is not in memory: read again in a thread."""


class StoreError(KeroloxError):
    """Problem with the files of the store, at ``path`` and ``offset``."""

    code = 14  # SERVICE_NOT_AVAILABLE

    def __init__(self, what: str, *, path: str = "", offset: int | None = None) -> None:
        self.path = path
        self.offset = offset
        super().__init__(what)


class DiskError(StoreError):
    """File operation that the operating system refused, for a reason without its own class."""

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
    """Disk without free space. Nothing was acknowledged; the same call succeeds when there is space again."""

    retriable = True


class ReadOnlyDisk(DiskError):
    """File system that rejects writes, because it is mounted read-only or noticed a fault."""


class FileAccessDenied(DiskError):
    """File that the process has no permission to use."""


class TooManyOpenFiles(DiskError):
    """Process without a free file descriptor."""

    retriable = True


class FileMissing(DiskError):
    """File that does not exist."""


class FileExists(DiskError):
    """File to be created that already exists."""


class FsyncFailed(DiskError):
    """Failed flush. The data it covered may be lost even when a later flush succeeds.

    The kernel drops the pages that it could not write, so a second fsync reports success without having
    written anything. The store therefore never repeats it: it stops accepting writes, and the next start
    reads the files to find out what is stored.
    """


class SegmentGone(StoreError):
    """File that the store removed between finding it and reading it."""


class Unreadable(DiskError):
    """File of the store that cannot be read at the moment; its content is unknown.

    It must not be taken for deleted data: the reader stays at the same offset and retries. The consumers of
    every client do so at this code; at the codes for deleted messages they would skip ahead.
    """

    code = 2  # SYSTEM_BUSY
    retriable = True

    @classmethod
    def of(cls, error: StoreError) -> Unreadable:
        """Return the error of a failed read, with the disk's error as its cause."""
        number = error.os_error if isinstance(error, DiskError) else None
        found = cls(str(error), path=error.path, offset=error.offset, os_error=number)
        found.__cause__ = error
        return found


class StoreLocked(StoreError):
    """Store directory that another process, or another store of this process, has locked."""

    def __init__(self, path: str, holder: str, pid: int | None = None) -> None:
        self.holder = holder
        self.pid = pid
        super().__init__(
            f"{path} is locked by {holder}. Only one process can use a store directory. Stop the other "
            "process, or set storePathRootDir to another directory.",
            path=path,
        )


class WrongFileSize(StoreError):
    """File whose size is not the fixed one, so nothing in it can be addressed."""

    def __init__(self, path: str, size: int, expected: int) -> None:
        self.size = size
        self.expected = expected
        super().__init__(
            f"{path} is {size} bytes long, expected {expected}. If the size option was changed on this "
            "store, set it back. If the file is a damaged copy, restore it or move it away.",
            path=path,
        )


class StrayFile(StoreError):
    """File that does not belong in its directory."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(
            f"{path} does not belong here: {why}. Move it out of the directory and restart.", path=path
        )


class CorruptRecord(StoreError):
    """Bytes in the store that are damaged or not valid."""


class OtherFileSize(CorruptRecord):
    """Record that crosses the end of a file here: its writer uses another file size."""


class OutOfLedger(StoreError):
    """Entry that a DLedger log does not have, or that does not continue the log."""


class QueueGap(StoreError):
    """Queue entry that does not follow the last one: entries between them are missing.

    RocketMQ appends such an entry, and from then on every message is found under a wrong offset.
    """

    def __init__(self, topic: str, queue_id: int, expected: int, got: int, path: str) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.expected = expected
        self.got = got
        super().__init__(
            f"queue {queue_id} of topic {topic!r} ends at offset {expected}, but the next entry is for "
            f"offset {got}: {got - expected} entries are missing. Stop the broker and rebuild the queues: "
            f"kerolox store repair {os.path.dirname(os.path.dirname(os.path.dirname(path)))} --queues",
            path=path,
            offset=expected,
        )


class OffsetOutOfRange(StoreError):
    """Request for bytes that the log does not hold: deleted, not yet written, or across the end of a file."""

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
    errno.EROFS: (
        ReadOnlyDisk,
        "read the kernel log for the reason, repair and remount the file system, then restart",
    ),
    errno.EACCES: (FileAccessDenied, "check owner and mode of the file and its directories"),
    errno.EPERM: (FileAccessDenied, "check owner, mode and attributes of the file"),
    errno.EMFILE: (TooManyOpenFiles, "raise the limit of open files (ulimit -n)"),
    errno.ENFILE: (TooManyOpenFiles, "raise the system's limit of open files (fs.file-max)"),
    errno.ENOENT: (FileMissing, "check the path"),
    errno.ENOTDIR: (
        DiskError,
        "a part of the path is a file, not a directory: correct the path (storePathRootDir)",
    ),
    errno.EEXIST: (FileExists, "the file should not exist: move it away"),
}


def disk_error(error: OSError, action: str, path: str, offset: int | None = None) -> DiskError:
    """Return the store's error for an error of the operating system, to be raised ``from`` it."""
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
        f"flush of {path} failed: {error.strerror or error}. Data written since the last flush may be lost, "
        "and a second flush would not detect that. Next: check the disk and the kernel log, then restart; "
        "recovery keeps all data that is on the disk.",
        path=path,
        os_error=error.errno,
        operation=Operation.FLUSH,
    )
