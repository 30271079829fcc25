"""Account files: ``plain_acl.yml``, and those in the folder ``acl`` beside it.

They are checked for changes every few seconds and read again, all or none: an invalid edit leaves the
previous accounts in effect and is logged once. When a file of the folder is removed its accounts are removed.
A missing ``plain_acl.yml`` is an error instead, because editors remove files before they rewrite them.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from pathlib import Path

import msgspec

from kerolox.access.plain.accounts import Account
from kerolox.access.plain.addresses import Patterns
from kerolox.access.plain.yaml_file import (
    FILE_BYTES_MAX,
    AclFile,
    AclFileBroken,
    Tree,
    edited,
    parse,
)
from kerolox.atomic_file import write_atomically
from kerolox.clock import Clock, TimerHandle
from kerolox.errors import KeroloxError
from kerolox.observers import Observers
from kerolox.unsaved import NotSaved

log = logging.getLogger(__name__)

LOOK_S = 5.0  # as RocketMQ
FILES_MAX = 1000
ENDINGS = (".yml", ".yaml")

Stamp = tuple[int, int, int]


class Accounts(msgspec.Struct, frozen=True, kw_only=True):
    """The accounts of all files."""

    files: dict[str, AclFile] = {}  # by path
    by_key: dict[str, Account] = {}
    homes: dict[str, str] = {}  # the file that defines each account
    white: Patterns = ()
    stamps: dict[str, Stamp] = {}  # of the files, when they were read


class AclFiles:
    """Reads, watches and changes the account files. ``on_change`` is called when accounts have changed."""

    def __init__(self, path: str, folder: str, clock: Clock) -> None:
        self.path = os.path.abspath(path)
        self.folder = os.path.abspath(folder)
        self.accounts = Accounts()
        self.on_change: Observers[[]] = Observers("account files changed")
        self._clock = clock
        self._changing = asyncio.Lock()
        self._timer: TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._told = ""

    # --- reading ---------------------------------------------------------------------------------------

    async def load(self) -> None:
        """Read all files. Raises AclFileBroken, also if there is no file."""
        found = await asyncio.to_thread(self._read)
        assert found is not None, "nothing was known before"
        self._take(found)

    def watch(self) -> None:
        """Check the files for edits every LOOK_S."""
        self._timer = self._clock.beat(LOOK_S, self._begin_look)

    async def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            await asyncio.wait([self._task])
            if self._timer is not None:
                self._timer.cancel()

    def _begin_look(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._look_and_go_on())

    async def _look_and_go_on(self) -> None:
        await self.look()
        self.watch()

    async def look(self) -> None:
        """Read the files that were edited."""
        try:
            async with self._changing:
                found = await asyncio.to_thread(self._read, self.accounts)
                if found is not None:
                    self._take(found)
                    log.info("acl_read_again files=%d accounts=%d", len(found.files), len(found.by_key))
                self._told = ""
        except KeroloxError as error:
            if self._told != str(error):  # log each error once
                self._told = str(error)
                log.warning(
                    "acl_not_read error=%r next='the previous accounts stay in effect; repair the file'",
                    str(error),
                )

    def _read(self, known: Accounts | None = None) -> Accounts | None:
        """Read the files. Return None if none has changed since `known`. Blocking."""
        paths = self._paths()
        if self.path not in paths and (not paths or (known is not None and self.path in known.files)):
            raise AclFileBroken(
                self.path, 0, f"it does not exist, and {self.folder} contains no account file"
            )
        try:
            stamps = {path: _stamp(path) for path in paths}
            if known is not None and stamps == known.stamps:
                return None
            files = {}
            for path in paths:
                before = known.files.get(path) if known is not None else None
                if before is not None and known is not None and known.stamps[path] == stamps[path]:
                    files[path] = before
                else:
                    _warn_of_readers(path)
                    files[path] = parse(_content(path), path)
        except OSError as error:
            raise AclFileBroken(str(error.filename), 0, f"cannot read it: {error.strerror}") from error
        return joined(files, stamps)

    def _paths(self) -> list[str]:
        """Return the paths in RocketMQ's order: the first file that defines an account takes precedence.
        Names that begin with a dot are skipped; Kubernetes keeps the targets of its links there."""
        folder = Path(self.folder)
        found = sorted(
            str(path)
            for path in folder.rglob("*")
            if path.suffix in ENDINGS
            and not any(part.startswith(".") for part in path.relative_to(folder).parts)
            and path.is_file()
            and str(path) != self.path
        )
        if len(found) > FILES_MAX:
            raise AclFileBroken(self.folder, 0, f"{len(found)} account files, the limit is {FILES_MAX}")
        return [*found, self.path] if os.path.isfile(self.path) else found

    def _take(self, found: Accounts) -> None:
        self.accounts = found
        self.on_change()

    # --- changing --------------------------------------------------------------------------------------

    async def change(self, path: str, edit: Callable[[Tree], None]) -> None:
        """Apply `edit` to the content of one file. The change counts only once it is on disk. Raises the
        error of `edit`, AclFileBroken if the result would be invalid, or NotSaved."""
        async with self._changing:
            now_ms = self._clock.wall_ms()

            def rewrite() -> Accounts | None:
                before = _content(path) if os.path.exists(path) else b""
                write_atomically(os.path.realpath(path), edited(before, path, edit, now_ms), private=True)
                return self._read(self.accounts)

            try:
                found = await asyncio.to_thread(rewrite)
            except OSError as error:
                raise NotSaved(path, error) from error
            if found is not None:
                self._take(found)


def read_file(path: str) -> AclFile:
    """Read one account file. Blocking. Raises AclFileBroken."""
    try:
        return parse(_content(path), path)
    except OSError as error:
        raise AclFileBroken(path, 0, f"it cannot be read: {error.strerror}") from error


def joined(files: dict[str, AclFile], stamps: dict[str, Stamp]) -> Accounts:
    by_key: dict[str, Account] = {}
    homes: dict[str, str] = {}
    white: Patterns = ()
    for path, file in files.items():
        white += file.white
        for key, account in file.accounts.items():
            if key in by_key:
                log.warning(
                    "account_twice key=%r counts=%s passed_over=%s next='keep one of them'",
                    key, homes[key], path,
                )  # fmt: skip
                continue
            by_key[key], homes[key] = account, path
            if any(pattern.is_everywhere for pattern in account.white):
                log.warning(
                    "account_unguarded key=%r path=%s next='its whiteRemoteAddress accepts unsigned requests "
                    "with its key from any address: restrict it'",
                    key, path,
                )  # fmt: skip
    if any(pattern.is_everywhere for pattern in white):
        log.warning(
            "acl_unguarded next='globalWhiteRemoteAddresses accepts every address without a key: restrict it'"
        )
    return Accounts(files=files, by_key=by_key, homes=homes, white=white, stamps=stamps)


def _content(path: str) -> bytes:
    with open(path, "rb") as file:
        data = file.read(FILE_BYTES_MAX + 1)
    if len(data) > FILE_BYTES_MAX:
        raise AclFileBroken(path, 0, f"it is larger than {FILE_BYTES_MAX} bytes")
    return data


def _stamp(path: str) -> Stamp:
    stat = os.stat(path)
    return stat.st_ino, stat.st_mtime_ns, stat.st_size


def _warn_of_readers(path: str) -> None:
    mode = os.stat(path).st_mode & 0o777
    if os.name == "posix" and mode & 0o077:
        log.warning("acl_file_open path=%s mode=%o next='it holds secrets: chmod 600 %s'", path, mode, path)
