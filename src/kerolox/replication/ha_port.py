"""The port name servers tell followers to copy the log from (haListenPort).

It is taken before the store opens, so that nobody else sits where followers are sent. Whoever comes before
there is a log to copy is turned away, and comes again. It speaks TLS as the other ports of the broker do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

from kerolox.clock import SYSTEM_CLOCK, Clock
from kerolox.net.listener import SILENT_S_MAX, Listener
from kerolox.net.tls import ServerTls, TlsMode

PLAIN = ServerTls(mode=TlsMode.DISABLED)


class HaPort:
    """Listens. ``accept`` makes the protocol of each connection, once there is one."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        tls: ServerTls = PLAIN,
        silent_s_max: Callable[[], float] = lambda: SILENT_S_MAX,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.accept: Callable[[], asyncio.BaseProtocol] = _TurnedAway
        self._listener = Listener(
            lambda: self.accept(),
            host=host,
            port=port,
            tls=tls,
            silent_s_max=silent_s_max,
            about=", the port for followers (haListenPort)",
            clock=clock,
        )

    @property
    def port(self) -> int:
        return self._listener.port

    @property
    def speaks_tls(self) -> bool:
        return self._listener.tls is not None and self._listener.tls.speaks_tls

    async def start(self) -> None:
        """Take the port. Raises ListenFailed."""
        await self._listener.start()

    async def close(self) -> None:
        """Let nobody in any more. Connections are closed by who accepted them."""
        self._listener.close()


class _TurnedAway(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast(asyncio.Transport, transport).abort()
