"""The newest mastership and in-sync set this broker has heard of, on its disk: ``brokerIdentity-set``.

A leader counts on a set only when it stands here. So when an older copy of the controllers' state is
restored, the brokers together still know who has everything that was acknowledged, and tell the controller
(:mod:`kerolox.controller.knowledge`). The name begins as that of the identity, for they go together: whoever
removes the one removes the other.
"""

from __future__ import annotations

import asyncio
import logging
import os
import zlib
from collections.abc import Callable
from typing import TypeVar

import msgspec

from kerolox.broker.controlled.mastership import Mastership
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
    """``newest`` is what is on the disk; epoch 0: nothing yet."""

    def __init__(self, store: MessageStore, identity_path: str | os.PathLike[str]) -> None:
        self.newest = Mastership(epoch=0)
        self.path = os.fspath(identity_path) + SET_SUFFIX
        self._store = store
        self._whose: tuple[str, str, int] | None = None
        self._turn = asyncio.Lock()

    async def load(self, cluster: str, name: str, id: int) -> None:
        """Read it, once the identity is known; another identity's is passed over. Raises SetUnreadable."""
        if self._whose is None:
            found = await self._in_keeper(self._read)
            self._whose = (cluster, name, id)
            if found is not None and (found.cluster, found.name, found.id) == self._whose:
                self.newest = Mastership(
                    epoch=found.epoch, id=found.master, in_sync=frozenset(found.members),
                    in_sync_epoch=found.number,
                )  # fmt: skip

    async def keep(self, told: Mastership) -> None:
        """Write down what a controller said, unless this or something newer is there already. Raises
        SetNotKept."""
        async with self._turn:
            newest = self.newest
            is_newer = (told.epoch, told.in_sync_epoch) > (newest.epoch, newest.in_sync_epoch)
            if self._whose is None or not is_newer or not told.id or told.id not in told.in_sync:
                return
            cluster, name, id = self._whose
            note = _Note(
                cluster, name, id, told.epoch, told.in_sync_epoch, told.id, tuple(sorted(told.in_sync))
            )
            await self._in_keeper(lambda: self._write(note))
            self.newest = told

    def _read(self) -> _Note | None:
        try:
            data = self._store.files.read_if_exists(self.path)
        except (OSError, KeroloxError) as error:
            raise SetUnreadable(f"{self.path} cannot be read: {error}. Let this broker read it") from error
        if data is None:
            return None
        crc, _, body = bytes(data[:FILE_BYTES_MAX]).partition(b" ")
        try:
            if int(crc, 16) == zlib.crc32(body):
                return msgspec.json.decode(body, type=_Note)
        except (ValueError, msgspec.DecodeError):
            pass
        raise SetUnreadable(
            f"{self.path} is damaged: its CRC is not that of what follows. Remove it if no older copy of "
            "the controllers' state was restored: the controller knows then what stands there"
        )

    def _write(self, note: _Note) -> None:
        body = msgspec.json.encode(note)
        try:
            self._store.files.make_dirs(os.path.dirname(self.path))
            self._store.files.write_atomic(self.path, b"%08x %b" % (zlib.crc32(body), body))
        except (OSError, KeroloxError) as error:
            raise SetNotKept(
                f"{self.path} cannot be written: {error}. Until it is, this broker does not count on the set "
                f"{list(note.members)} of epoch {note.epoch}: free space, or see to the disk"
            ) from error

    async def _in_keeper(self, work: Callable[[], T]) -> T:
        # Shielded, so that memory and disk hold the same when the caller is cancelled.
        loop = asyncio.get_running_loop()
        return await asyncio.shield(loop.run_in_executor(self._store.keeper, work))
