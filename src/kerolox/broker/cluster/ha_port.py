"""The port name servers tell followers to copy the log from.

This broker does not let itself be copied. The port is taken all the same: so that no other process sits where
followers are sent, and so that followers, and operators who start two brokers with ports too close to each
other, get an error.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket

from kerolox.net.address import address_text
from kerolox.net.server import ListenFailed

log = logging.getLogger(__name__)

BACKLOG = 16
TOLD_MAX = 100  # followers that are logged one by one: they come again every few seconds


class HaPort:
    """Listens, and turns everybody away."""

    def __init__(self, host: str, port: int) -> None:
        self.host = host
        self.port = port
        self.refused = 0
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
        self._server = await asyncio.start_server(self._refuse, sock=listener)

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    async def _refuse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.refused += 1
        if self.refused <= TOLD_MAX:
            log.warning(
                "follower_refused peer=%s times=%d next='start no SLAVE of this name: the broker cannot "
                "be followed'",
                address_text(writer.get_extra_info("peername")),
                self.refused,
            )
        writer.close()
