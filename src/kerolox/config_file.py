"""The file that options changed while running are written to.

What the file says otherwise stays: keys of other programs, keys this server does not know. Only what was
changed is added, so that flags and defaults of this run do not become settings of the next.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping
from pathlib import Path

from kerolox.atomic_file import LatestSave
from kerolox.protocol.bodies.properties_text import read_properties, write_properties

log = logging.getLogger(__name__)


class ConfigFile:
    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._stored: dict[str, str] = {}
        self._file = LatestSave(self.path)

    async def load(self) -> None:
        """Remember what is in the file, to keep it. Its options were read by whoever started us."""
        try:
            raw = await asyncio.to_thread(self.path.read_bytes)
        except OSError:
            return  # none yet, or none we may read: then saving will say so
        self._stored = read_properties(raw)

    def save(self, changed: Mapping[str, str]) -> asyncio.Future[None]:
        self._stored.update(changed)
        return self._file.save(write_properties(self._stored).encode())

    async def close(self) -> None:
        await self._file.close()
