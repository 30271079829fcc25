"""The newest mastership and in-sync set known to this broker, kept on its disk in ``brokerIdentity-set``.

A leader uses a set only after it is stored here. So if an older copy of the controllers' state is restored,
the brokers together still know the replicas with all acknowledged messages, and report them to the controller
(:mod:`kerolox.controller.knowledge`). The name begins with the name of the identity file, so that both are
removed together.
"""

from __future__ import annotations

import asyncio
import logging
import os
import zlib
from collections.abc import Callable
from typing import TypeVar

import msgspec

from kerolox.broker.role.mastership import Mastership
from kerolox.errors import KeroloxError
from kerolox.protocol.broker_identity import SET_SUFFIX
from kerolox.store.message_store import MessageStore

log = logging.getLogger(__name__)

FILE_BYTES_MAX = 64 << 10

T = TypeVar("T")


class SetUnreadable(KeroloxError):
    """The file is damaged, or cannot be read."""


class SetNotKept(KeroloxError):
    """The file could not be written. Nothing was changed."""

    retriable = True


class _Note(msgspec.Struct, frozen=True):
    cluster: str
    name: str
    id: int
    epoch: int
    number: int
    master: int
    members: tuple[int, ...]


class KnownSets:
    """Store of the newest set. ``newest`` is the content on the disk; epoch 0: none yet."""

    def __init__(self, store: MessageStore, identity_path: str | os.PathLike[str]) -> None:
        self.newest = Mastership(epoch=0)
        self.path = os.fspath(identity_path) + SET_SUFFIX
        self._store = store
        self._whose: tuple[str, str, int] | None = None
        self._turn = asyncio.Lock()

    async def load(self, cluster: str, name: str, id: int) -> None:
        """Read the file, once the identity is known. A file of another identity is ignored. Raises
        SetUnreadable."""
        if self._whose is None:
            found = await self._in_thread(self._read)
            self._whose = (cluster, name, id)
            if found is not None and (found.cluster, found.name, found.id) == self._whose:
                self.newest = Mastership(
                    epoch=found.epoch, id=found.master, in_sync=frozenset(found.members),
                    in_sync_epoch=found.number,
                )  # fmt: skip

    async def keep(self, offered: Mastership) -> None:
        """Store a report of a controller, unless it or a newer one is stored already. Raises SetNotKept."""
        async with self._turn:
            newest = self.newest
            is_newer = (offered.epoch, offered.in_sync_epoch) > (newest.epoch, newest.in_sync_epoch)
            if self._whose is None or not is_newer or not offered.id or offered.id not in offered.in_sync:
                return
            cluster, name, id = self._whose
            note = _Note(
                cluster,
                name,
                id,
                offered.epoch,
                offered.in_sync_epoch,
                offered.id,
                tuple(sorted(offered.in_sync)),
            )
            await self._in_thread(lambda: self._write(note))
            self.newest = offered

    def _read(self) -> _Note | None:
        try:
            data = self._store.files.read_if_exists(self.path)
        except (OSError, KeroloxError) as error:
            raise SetUnreadable(
                f"{self.path} cannot be read: {error}. Give this broker read access"
            ) from error
        if data is None:
            return None
        crc, _, body = bytes(data[:FILE_BYTES_MAX]).partition(b" ")
        try:
            if int(crc, 16) == zlib.crc32(body):
                return msgspec.json.decode(body, type=_Note)
        except (ValueError, msgspec.DecodeError):
            pass
        raise SetUnreadable(
            f"{self.path} is damaged: its CRC does not match its content. If no older copy of the "
            "controllers' state was restored, remove it: then the controller knows its content"
        )

    def _write(self, note: _Note) -> None:
        body = msgspec.json.encode(note)
        try:
            self._store.files.make_dirs(os.path.dirname(self.path))
            self._store.files.write_atomic(self.path, b"%08x %b" % (zlib.crc32(body), body))
        except (OSError, KeroloxError) as error:
            raise SetNotKept(
                f"{self.path} cannot be written: {error}. Until it is, this broker does not use the set "
                f"{list(note.members)} of epoch {note.epoch}: free space, or repair the disk"
            ) from error

    async def _in_thread(self, work: Callable[[], T]) -> T:
        # Shielded, so that memory and disk stay equal when the caller is cancelled.
        loop = asyncio.get_running_loop()
        return await asyncio.shield(loop.run_in_executor(self._store.urgent, work))
