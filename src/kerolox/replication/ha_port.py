"""The port name servers tell followers to copy the log from (haListenPort).

It is taken before the store opens, so that nobody else sits where followers are sent. Whoever comes before
there is a log to copy is turned away, and comes again.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from typing import cast

from kerolox.net.server import ListenFailed

BACKLOG = 16


class HaPort:
    """Listens. ``accept`` makes the protocol of each connection, once there is one."""

    def __init__(self, host: str, port: int) -> None:
        self.host = host
        self.port = port
        self.accept: Callable[[], asyncio.Protocol] = _TurnedAway
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Take the port. Raises ListenFailed."""
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            if os.name == "posix":
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.setblocking(False)
            listener.bind((self.host, self.port))
            listener.listen(BACKLOG)
        except (OSError, OverflowError) as error:
            listener.close()
            raise ListenFailed(
                f"{self.host}:{self.port}, the port for followers (haListenPort)", error
            ) from error
        self.port = listener.getsockname()[1]
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: self.accept(), sock=listener, backlog=BACKLOG)

    async def close(self) -> None:
        """Let nobody in any more. Connections are closed by who accepted them."""
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()


class _TurnedAway(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast(asyncio.Transport, transport).abort()
