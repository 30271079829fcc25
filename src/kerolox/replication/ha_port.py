"""The port for followers (haListenPort), which name servers announce to them.

It is bound before the store opens, so that no other process can take it. Connections that arrive before the
log is available are closed; followers retry. It uses TLS like the broker's other ports.
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
    """Listener. The log accepts the connections once it is available."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        tls: ServerTls = PLAIN,
        silent_s_max: Callable[[], float] = lambda: SILENT_S_MAX,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._accept: Callable[[], asyncio.BaseProtocol] = _TurnedAway
        self._listener = Listener(
            lambda: self._accept(),
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
        """Bind the port and listen. Raises ListenFailed."""
        await self._listener.start()

    def open(self, accept: Callable[[], asyncio.BaseProtocol]) -> None:
        """Let ``accept`` create the protocol of each connection from now on."""
        self._accept = accept

    async def close(self) -> None:
        """Stop accepting connections. Existing ones are closed by their owner."""
        self._listener.close()


class _TurnedAway(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast(asyncio.Transport, transport).abort()
