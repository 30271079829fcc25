"""Carrier for a single controller: the state is one file, without a consensus engine.

The file ``controller.state`` is a document (document.py) with all groups. Each commit writes a new file
beside it, flushes it, renames it and flushes the directory: after a crash either the old or the new one
exists.

The file ``lock`` contains the number of the last commit. A state with a smaller number is an older copy that
was restored, and its groups are marked as doubted. So are those of a state beside a ``lock`` without a
number, because its age is unknown.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
from msgspec.structs import replace

from kerolox.atomic_file import write_atomically
from kerolox.controller.carriers.carrier import (
    NEW,
    Deposed,
    LeadingController,
    RevisionConflict,
    StoredState,
)
from kerolox.controller.carriers.document import StateUnreadable, StateUnusable, decode, encode
from kerolox.controller.state import ControllerState, ReplicaGroup
from kerolox.errors import KeroloxError
from kerolox.unsaved import NotSaved

log = logging.getLogger(__name__)

STATE_FILE = "controller.state"
LOCK_FILE = "lock"
MARK_BYTES = 21  # size of the number in the lock file
STATE_BYTES_MAX = 64 << 20


class ControllerLocked(KeroloxError):
    """Another process uses the directory."""

    def __init__(self, path: object) -> None:
        super().__init__(
            f"{path} is locked: another controller uses this directory. Stop it, or give this one a "
            "directory of its own (controllerStorePath)."
        )


class _Document(msgspec.Struct, frozen=True):
    revision: int = 0  # of the last commit
    revisions: dict[str, int] = {}
    groups: dict[str, ReplicaGroup] = {}


class EmbeddedCarrier:
    """The state in a file that only this process uses."""

    def __init__(self, directory: str | os.PathLike[str], *, private: bool = False) -> None:
        """``private``: only the owner of the directory may read it and its files."""
        self.path = Path(directory) / STATE_FILE
        self._private = private
        self._lock: int | None = None
        self._document = _Document()
        self._leader: LeadingController | None = None
        self._tokens = 0
        self._changed = asyncio.Event()
        self._turn = asyncio.Lock()

    async def open(self) -> None:
        self._lock = await asyncio.to_thread(_take_lock, self.path.parent / LOCK_FILE, self._private)
        found = await asyncio.to_thread(_read, self.path)
        marked = await asyncio.to_thread(_read_mark, self._lock)
        if found.groups and marked is not None and (marked == 0 or found.revision < marked):
            log.warning(
                "state_restored path=%s revision=%d last_revision=%s "
                "next='newer reports of brokers replace this state'",
                self.path, found.revision, marked or "unknown",
            )  # fmt: skip
            groups = {
                name: replace(group, is_doubted=group.master_epoch > 0)
                for name, group in found.groups.items()
            }
            found = _Document(max(marked, found.revision), found.revisions, groups)
        self._document = found

    async def close(self) -> None:
        async with self._turn:  # a write in progress is completed
            self._set_leader(None)
            lock, self._lock = self._lock, None
            if lock is not None:
                os.close(lock)

    async def load(self) -> StoredState:
        async with self._turn:
            document = self._document
        return StoredState(ControllerState(dict(document.groups)), dict(document.revisions))

    async def commit(self, token: int, name: str, revision: int, group: ReplicaGroup | None) -> int:
        # A cancelled caller must not stop the commit midway or release the turn early.
        return await asyncio.shield(asyncio.ensure_future(self._commit_in_turn(token, name, revision, group)))

    async def lead(self, id: str, address: str) -> int:
        while self._leader is not None and self._leader.id != id:
            await self._changed.wait()
        self._tokens += 1
        self._set_leader(LeadingController(id, address, self._tokens))
        return self._tokens

    def holds(self, token: int) -> bool:
        return self._lock is not None

    async def leader(self) -> LeadingController | None:
        return self._leader

    async def watch(self) -> AsyncIterator[LeadingController | None]:
        while True:
            changed = self._changed
            yield self._leader
            await changed.wait()

    async def _commit_in_turn(self, token: int, name: str, revision: int, group: ReplicaGroup | None) -> int:
        async with self._turn:
            self._check(token, name, revision)
            old = self._document
            number = old.revision + 1
            groups = {key: kept for key, kept in old.groups.items() if key != name}
            revisions = {key: kept for key, kept in old.revisions.items() if key != name}
            if group is not None:
                groups[name], revisions[name] = group, number
            document = _Document(number, revisions, groups)
            await self._write(document)
            return number

    def _check(self, token: int, name: str, revision: int) -> None:
        if self._leader is None or self._leader.token != token:
            now = "no controller leads" if self._leader is None else f"the token is {self._leader.token}"
            raise Deposed(token, now)
        found = self._document.revisions.get(name, NEW)
        if found != revision:
            raise RevisionConflict(name, revision, found)

    def _set_leader(self, leader: LeadingController | None) -> None:
        self._leader = leader
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def _write(self, document: _Document) -> None:
        try:
            await asyncio.to_thread(self._write_now, document)
        except OSError as error:
            raise NotSaved(self.path, error) from error
        self._document = document

    def _write_now(self, document: _Document) -> None:
        write_atomically(self.path, encode(document))
        if self._lock is None or not hasattr(os, "pwrite"):  # Windows
            return
        try:
            os.pwrite(self._lock, b"%0*d\n" % (MARK_BYTES - 1, document.revision), 0)
        except OSError as error:
            log.warning(
                "revision_not_marked path=%s error=%r next='retried with the next change; until then an "
                "older copy that is restored here is not detected'",
                self.path.parent / LOCK_FILE, str(error),
            )  # fmt: skip


def _read_mark(lock: int) -> int | None:
    """Return the number of the last commit in this directory; 0 if none is stored, None if the platform
    cannot store one."""
    if not hasattr(os, "pread"):  # Windows
        return None
    with contextlib.suppress(OSError, ValueError):
        return int(os.pread(lock, MARK_BYTES, 0))
    return 0


def _read(path: Path) -> _Document:
    try:
        if path.stat().st_size > STATE_BYTES_MAX:
            raise StateUnusable(path, f"it has more than {STATE_BYTES_MAX} bytes")
        data = path.read_bytes()
    except FileNotFoundError:
        return _Document()
    except OSError as error:
        raise StateUnreadable(path, f"it cannot be read ({error})") from error
    return decode(data, _Document, path)


def _take_lock(path: Path, private: bool) -> int:
    """Return a descriptor that holds the lock until it is closed or the process ends."""
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
    try:
        path.parent.mkdir(0o700 if private else 0o777, parents=True, exist_ok=True)
        handle = os.open(path, flags, 0o600 if private else 0o644)
    except OSError as error:
        raise StateUnreadable(path, f"it cannot be opened ({error})") from error
    try:
        if os.name == "nt":
            import msvcrt

            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined,unused-ignore]
        else:
            import fcntl

            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        raise ControllerLocked(path) from None
    if private:
        _close_to_others(path.parent)
    return handle


def _close_to_others(folder: Path) -> None:
    """Remove the access rights of other users. Files written later get none: see
    :mod:`kerolox.atomic_file`."""
    for path, mode in ((folder, 0o700), (folder / LOCK_FILE, 0o600), (folder / STATE_FILE, 0o600)):
        try:
            os.chmod(path, mode)
        except FileNotFoundError:
            continue
        except OSError as error:
            log.warning(
                "controller_open_to_others path=%s error=%r next='with access control only the owner should "
                "read it: chmod -R go= %s'", path, str(error), folder,
            )  # fmt: skip
