"""How far its leader was, as a follower heard it last: what a follower lacks is known after the leader died.

A follower has all it was sent, and the connection does not say how much more there is. So the leader is
asked, and what it says is kept in the file ``kerolox.leader`` beside the log, with why its log was refused if
it was.
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
    """What is kept. ``end`` is the largest offset that the leader's log is known to have reached."""

    address: str = ""  # of the broker
    end: int = -1
    at_ms: int = 0
    refused: str = ""  # why nothing is copied from it
    followed: bool = False  # this broker has followed since it led last


class LeadersEnd:
    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.note = LeaderNote()
        self._path = Path(root) / FILE
        self._file = LatestSave(self._path)

    async def load(self) -> None:
        """What was known before this start. A file that does not read counts as none."""
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
                "leader_note_not_saved path=%s error=%r next='how far the leader was is not known after a "
                "restart'",
                self._path, str(error),
            )  # fmt: skip

    async def close(self) -> None:
        await self._file.close()
