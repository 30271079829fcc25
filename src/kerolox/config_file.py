"""The file that receives options changed at run time.

The rest of the file is kept: comments, order, and keys that this server does not know. Only changed options
are written, so flags and defaults of this run do not become settings of the next one.
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
from kerolox.protocol.bodies.properties_text import edit_properties
from kerolox.unsaved import NotSaved

log = logging.getLogger(__name__)


class ConfigFile:
    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._file = LatestSave(self.path)
        self._changing = asyncio.Lock()

    async def change(self, options: Options, wanted: Mapping[str, str]) -> dict[str, Any]:
        """Change options of a running role, by key, and write them: all of them or none.

        Return the new values by attribute name. Raises OptionError and NotSaved.
        """
        async with self._changing:
            # Applied to a copy first, so that a change that cannot be written has no effect.
            changed = change(copy.copy(options), wanted)
            if changed:
                keys = [spec.key for spec in specs(type(options)) if spec.name in changed]
                try:
                    edited = edit_properties(await self._text(), {key: wanted[key] for key in keys})
                    await self._file.save(edited)
                except OSError as error:
                    raise NotSaved(self.path, error) from error
            return change(options, wanted)

    async def _text(self) -> bytes:
        """Return the current content of the file, because an operator may have edited it; empty if it does
        not exist."""
        try:
            return await asyncio.to_thread(self.path.read_bytes)
        except FileNotFoundError:
            return b""

    async def close(self) -> None:
        await self._file.close()
