"""One controller, one file: the carrier for those who have no consensus engine.

The file ``controller.state`` is one line and a JSON document. The line says what it is, which version, the
CRC of the document and its length in bytes::

    kerolox-controller 1 8d5fe1a4 412
    {"revision":7,"revisions":{"broker-a":7},"groups":{"broker-a":{...}}}

Each commit writes it anew beside the old one, flushes it, renames it, and flushes the directory: after a
crash there is the old or the new one. A file that is something else is named and refused, and never written
over: a controller that forgot its epochs could not move brokers that know higher ones.
"""

from __future__ import annotations

import asyncio
import os
import re
import zlib
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec

from kerolox.atomic_file import write_atomically
from kerolox.controller.carriers.carrier import (
    NEW,
    Deposed,
    LeadingController,
    RevisionConflict,
    StoredState,
)
from kerolox.controller.state import ControllerState, ReplicaGroup
from kerolox.errors import KeroloxError, sentences
from kerolox.unsaved import NotSaved

STATE_FILE = "controller.state"
LOCK_FILE = "lock"
STATE_BYTES_MAX = 64 << 20

_VERSION = 1
_HEAD = re.compile(rb"kerolox-controller (\d{1,9}) ([0-9a-f]{8}) (\d{1,9})\n")


class StateUnusable(KeroloxError):
    """The file of the state is damaged, or of something else."""

    next_step = (
        "restore a copy of it. Without one: stop the group's brokers, move the file away, and remove "
        "brokerIdentity and epochFileCheckpoint from the brokers' stores, for they know higher epochs"
    )

    def __init__(self, path: object, what: str) -> None:
        self.path = str(path)
        super().__init__(sentences(f"the controller's state {path} cannot be used: {what}", self.next_step))


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
    """The state in a file of this process alone."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.path = Path(directory) / STATE_FILE
        self._lock: int | None = None
        self._document = _Document()
        self._leader: LeadingController | None = None
        self._tokens = 0
        self._changed = asyncio.Event()
        self._turn = asyncio.Lock()

    async def open(self) -> None:
        self._lock = await asyncio.to_thread(_take_lock, self.path.parent / LOCK_FILE)
        self._document = await asyncio.to_thread(_read, self.path)

    async def close(self) -> None:
        async with self._turn:  # what is being written is written
            self._set_leader(None)
            lock, self._lock = self._lock, None
            if lock is not None:
                os.close(lock)

    async def load(self) -> StoredState:
        document = self._document
        return StoredState(ControllerState(dict(document.groups)), dict(document.revisions))

    async def commit(self, token: int, name: str, revision: int, group: ReplicaGroup | None) -> int:
        # Whoever gives up waiting does not stop it half way, and lets nobody else in meanwhile.
        return await asyncio.shield(asyncio.ensure_future(self._commit_in_turn(token, name, revision, group)))

    async def lead(self, id: str, address: str) -> int:
        while self._leader is not None and self._leader.id != id:
            await self._changed.wait()
        self._tokens += 1
        self._set_leader(LeadingController(id, address, self._tokens))
        return self._tokens

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
            now = "nobody leads" if self._leader is None else f"the token is {self._leader.token}"
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
            await asyncio.to_thread(write_atomically, self.path, _encode(document))
        except OSError as error:
            raise NotSaved(self.path, error) from error
        self._document = document


def _encode(document: _Document) -> bytes:
    body = msgspec.json.encode(document) + b"\n"
    return b"kerolox-controller %d %08x %d\n%b" % (_VERSION, zlib.crc32(body), len(body), body)


def _read(path: Path) -> _Document:
    try:
        if path.stat().st_size > STATE_BYTES_MAX:
            raise StateUnusable(path, f"it has more than {STATE_BYTES_MAX} bytes")
        data = path.read_bytes()
    except FileNotFoundError:
        return _Document()
    except OSError as error:
        raise StateUnusable(path, f"it cannot be read ({error})") from error
    head = _HEAD.match(data)
    if head is None:
        raise StateUnusable(path, f"it begins with {data[:40]!r}, not with kerolox-controller")
    version, crc, length = int(head[1]), int(head[2], 16), int(head[3])
    if version != _VERSION:
        raise StateUnusable(path, f"it has version {version}, this program reads {_VERSION}")
    body = data[head.end() :]
    if len(body) != length:
        raise StateUnusable(path, f"its document has {len(body)} bytes, the first line says {length}")
    if zlib.crc32(body) != crc:
        raise StateUnusable(
            path, f"the CRC of its document is {zlib.crc32(body):08x}, the first line says {crc:08x}"
        )
    try:
        return msgspec.json.decode(body, type=_Document)
    except msgspec.DecodeError as error:
        raise StateUnusable(path, f"its document is something else ({error})") from error


def _take_lock(path: Path) -> int:
    """A descriptor that holds the lock until it is closed, however the process ends."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise StateUnusable(path, f"it cannot be opened ({error})") from error
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
    return handle
