"""The file of users, passwords and rules, readable only by its owner (mode 0600).

It is one JSON object, ``{"users": [...], "acls": [...], "keroloxCrc32": n}``, with users and rules in the
shape that tools exchange, and ends with the CRC-32 of the rest, so that a flipped bit cannot grant a right.
Leave the CRC out when you write the file by hand. The file is replaced as a whole. It is read again when
another process has replaced it: a name server that shares a broker's file knows the broker's users. An
unreadable file prevents the start; at run time it is reported and the users and rules in memory stay.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from typing import Any, TypeVar
from zlib import crc32

import msgspec

from kerolox.access.book import Book, rules_of, user_body, users_of
from kerolox.access.policies import policies_body
from kerolox.atomic_file import write_atomically
from kerolox.clock import Clock, TimerHandle
from kerolox.errors import KeroloxError
from kerolox.protocol.bodies import access as bodies
from kerolox.protocol.bodies.body import decode_list
from kerolox.protocol.json_dialect import dumps, loads
from kerolox.unsaved import NotSaved

log = logging.getLogger(__name__)

T = TypeVar("T")

CRC = "keroloxCrc32"
LOOK_S = 0.25  # interval of checks for changes of the file by other processes
FILE_BYTES_MAX = 64 << 20

Stamp = tuple[int, int, int]


class BookBroken(KeroloxError):
    """The file of users cannot be read."""

    def __init__(self, path: str, why: object) -> None:
        super().__init__(
            f"{path} cannot be read: {why}. Restore it from a backup, or create a new one: kerolox access "
            "init"
        )


class BookFile:
    """A book and its file. Without a path the book is kept only in memory."""

    def __init__(self, path: str, clock: Clock) -> None:
        self.path = path
        self.book = Book()
        self._clock = clock
        self._stamp: Stamp | None = None  # of the version of the file that this process has read or written
        self._changing = asyncio.Lock()
        self._timer: TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._told = ""

    # --- reading -------------------------------------------------------------------------------------

    async def load(self) -> bool:
        """Read the file. Return False if it does not exist. Raises BookBroken."""
        found = await asyncio.to_thread(self._read)
        if found is None:
            return False
        self._take(found)
        return True

    def watch(self) -> None:
        """Check the file for changes by other processes every LOOK_S."""
        self._timer = self._clock.call_later(LOOK_S, self._look)

    async def refresh(self) -> None:
        """Check the file for changes by other processes now. Raises BookBroken."""
        async with self._changing:
            await self._read_changed()

    async def _read_changed(self) -> bool:
        found = await asyncio.to_thread(self._read, self._stamp) if self.path else None
        if found is not None:
            self._take(found)
        return found is not None

    def _look(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._reload())

    async def _reload(self) -> None:
        try:
            async with self._changing:
                if await self._read_changed():
                    log.info("access_read_again path=%s users=%d", self.path, len(self.book.users))
                self._told = ""
        except KeroloxError as error:
            if self._told != str(error):  # log each error once
                self._told = str(error)
                log.warning(
                    "access_not_read error=%r next='the previous users stay in effect; repair the file'",
                    str(error),
                )
        self.watch()

    def _read(self, known: Stamp | None = None) -> tuple[Book, Stamp] | None:
        """Read the file. Return None if it does not exist, or still has the stamp `known`."""
        try:
            with open(self.path, "rb") as file:
                stat = os.fstat(file.fileno())
                stamp = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
                if stamp == known:
                    return None
                _warn_of_readers(self.path, stat.st_mode)
                return decode_book(file.read(FILE_BYTES_MAX)), stamp
        except FileNotFoundError:
            if known is not None:
                raise BookBroken(self.path, "it was removed") from None
            return None
        except (OSError, KeroloxError) as error:
            raise BookBroken(self.path, error) from error

    def _take(self, found: tuple[Book, Stamp]) -> None:
        book, self._stamp = found
        self.book.replace(book.users, book.policies)

    # --- changing ------------------------------------------------------------------------------------

    async def change(self, change: Callable[[Book], T]) -> T:
        """Apply `change` to the book. The change counts only once it is on disk; otherwise the book is
        unchanged. Return the result of `change`. Raises its error, or NotSaved."""
        async with self._changing:
            alone = await asyncio.to_thread(lock_book, self.path) if self.path else None
            try:
                await self._read_changed()  # keep the changes of other servers
                draft = self.book.copy()
                result = change(draft)
                if draft.version:
                    self._stamp = await self._save(draft)
                    self.book.replace(draft.users, draft.policies)
                return result
            finally:
                if alone is not None:
                    os.close(alone)

    async def _save(self, book: Book) -> Stamp | None:
        if not self.path:
            return None
        try:
            return await asyncio.to_thread(save_book, self.path, book)
        except OSError as error:
            raise NotSaved(self.path, error) from error

    async def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            await asyncio.wait([self._task])
            if self._timer is not None:
                self._timer.cancel()


def lock_book(path: str) -> int:
    """Wait for the exclusive lock on the file across processes; close the returned descriptor to release it.
    Blocking. The lock is on the directory, because each change replaces the file."""
    try:
        import fcntl
    except ImportError:  # Windows: every server has its own file there
        return os.open(os.devnull, os.O_RDONLY)
    directory = os.path.dirname(path) or "."
    os.makedirs(directory, exist_ok=True)
    handle = os.open(directory, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    return handle


def save_book(path: str, book: Book) -> Stamp:
    """Write the book to its file. Blocking."""
    write_atomically(path, encode_book(book), private=True)
    stat = os.stat(path)
    return stat.st_ino, stat.st_mtime_ns, stat.st_size


def encode_book(book: Book) -> bytes:
    tree: dict[str, Any] = {
        "users": [user_body(user, with_password=True) for user in book.users.values()],
        "acls": [
            bodies.Acl(policies=policies_body(book.policies[name]), subject=user.subject)
            for name, user in book.users.items()
            if name in book.policies
        ],
    }
    content = msgspec.json.format(dumps(tree), indent=1)
    return content[: content.rindex(b"\n}")] + b',\n "%b": %d\n}\n' % (CRC.encode(), crc32(content))


def decode_book(data: bytes) -> Book:
    """Decode the content of a file. Raises a KeroloxError with the reason."""
    head, separator, tail = data.rpartition(b',\n "%b": ' % CRC.encode())
    if separator:
        data = head + b"\n}"
        if crc32(data) != int(tail.strip(b"\n }") or b"-1"):
            raise KeroloxError(f"its CRC is wrong. If it was edited by hand, remove {CRC}")
    tree = loads(data)
    if not isinstance(tree, dict):
        raise KeroloxError("it is no JSON object")
    book = Book()
    users = users_of(decode_list(dumps(tree.get("users") or []), bodies.User))
    book.replace(users, rules_of(decode_list(dumps(tree.get("acls") or []), bodies.Acl)))
    return book


def _warn_of_readers(path: str, mode: int) -> None:
    if os.name == "posix" and mode & 0o077:
        log.warning(
            "access_file_open path=%s mode=%o next='it holds passwords: chmod 600 %s'",
            path, mode & 0o777, path,
        )  # fmt: skip
