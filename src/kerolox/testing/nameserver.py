"""Name server for tests: on a free port, with its files in a temporary directory."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from kerolox.clock import SYSTEM_CLOCK, Clock
from kerolox.nameserver.options import NamesrvOptions
from kerolox.nameserver.server import NameServer
from kerolox.testing.offsets import isolate_offsets


@asynccontextmanager
async def running_nameserver(
    *, clock: Clock = SYSTEM_CLOCK, directory: Path | None = None, brokers_awaited: int = 0, **options: Any
) -> AsyncIterator[NameServer]:
    """Run a name server: ``async with running_nameserver() as nameserver: nameserver.address``.

    ``options`` are those of :class:`NamesrvOptions` by kerolox's names. With a ``directory`` the files stay.
    """
    isolate_offsets()
    with tempfile.TemporaryDirectory(prefix="kerolox-nameserver-") as temporary:
        place = directory or Path(temporary)
        settings = {
            "bind_address": "127.0.0.1",
            "listen_port": 0,
            "kv_config_path": str(place / "kvConfig.json"),
            "config_store_path": str(place / "namesrv.properties"),
            **options,
        }
        server = NameServer(NamesrvOptions(**settings), clock=clock, brokers_awaited=brokers_awaited)
        async with server as nameserver:
            yield nameserver
