"""The leader's log end as last known to a follower, so that its lag is known after the leader died.

The replication connection does not show how much more the leader has. So the follower asks the leader and
stores the answer in the file ``kerolox.leader`` beside the log, with the reason if its log was rejected.
"""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path

import msgspec

from kerolox.atomic_file import LatestSave

log = logging.getLogger(__name__)

FILE = "kerolox.leader"


class LeaderNote(msgspec.Struct, frozen=True):
    """The stored note. ``end`` is the largest known end of the leader's log."""

    address: str = ""  # of the leader's broker
    end: int = -1
    at_ms: int = 0
    refused: str = ""  # the reason why its log is not replicated
    followed: bool = False  # this broker has followed since it last led


class LeadersEnd:
    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.note = LeaderNote()
        self._path = Path(root) / FILE
        self._file = LatestSave(self._path)

    async def load(self) -> None:
        """Load the note of the previous run. An unreadable file counts as none."""
        try:
            self.note = msgspec.json.decode(await asyncio.to_thread(self._path.read_bytes), type=LeaderNote)
        except FileNotFoundError:
            pass
        except (OSError, msgspec.MsgspecError) as error:
            log.warning("leader_note_unread path=%s error=%r", self._path, str(error))

    async def keep(self, note: LeaderNote) -> None:
        if note == self.note:
            return
        self.note = note
        try:
            await asyncio.shield(self._file.save(msgspec.json.encode(note)))
        except OSError as error:
            log.warning(
                "leader_note_not_saved path=%s error=%r next='the lag behind the leader is unknown after a "
                "restart'",
                self._path, str(error),
            )  # fmt: skip

    async def close(self) -> None:
        await self._file.close()
