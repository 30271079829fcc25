"""The file that options changed while running are written to.

What the file says otherwise stays: keys of other programs, keys this server does not know. Only what was
changed is added, so that flags and defaults of this run do not become settings of the next.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kerolox.atomic_file import LatestSave
from kerolox.options import Options, change, specs
from kerolox.protocol.bodies.properties_text import read_properties, write_properties
from kerolox.unsaved import NotSaved

log = logging.getLogger(__name__)


class ConfigFile:
    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._stored: dict[str, str] = {}
        self._file = LatestSave(self.path)
        self._changing = asyncio.Lock()

    async def load(self) -> None:
        """Remember what is in the file, to keep it. Its options were read by whoever started us."""
        try:
            raw = await asyncio.to_thread(self.path.read_bytes)
        except OSError:
            return  # none yet, or none we may read: then saving will say so
        self._stored = read_properties(raw)

    async def change(self, options: Options, wanted: Mapping[str, str]) -> dict[str, Any]:
        """Change options of a running role, by key, and keep it: all of it or nothing. The new values by our
        names. Raises OptionError and NotSaved."""
        async with self._changing:
            # First on a copy: what cannot be kept is not put in force either.
            changed = change(copy.copy(options), wanted)
            if changed:
                await self.load()  # somebody may have edited it meanwhile
                keys = [spec.key for spec in specs(type(options)) if spec.name in changed]
                stored = {**self._stored, **{key: wanted[key] for key in keys}}
                try:
                    await self._file.save(write_properties(stored).encode())
                except OSError as error:
                    raise NotSaved(self.path, error) from error
                self._stored = stored
            return change(options, wanted)

    async def close(self) -> None:
        await self._file.close()
