"""What stands between the clients and the pair, in a thread with a loop: a name server and the relay."""

from __future__ import annotations

from pathlib import Path

from kerolox.testing.nameserver import running_nameserver
from tests.rig.loop_thread import LoopThread

from .relay import Relay


class Hub(LoopThread):
    """``with`` it, inside the hub's network."""

    def __init__(self, host: str, folder: Path) -> None:
        super().__init__()
        self.nameserver = ""
        self.relay: Relay
        self._host = host
        self._folder = folder

    async def opened(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        server = await self.stack.enter_async_context(
            running_nameserver(directory=self._folder, bind_address=self._host)
        )
        self.nameserver = f"{self._host}:{server.port}"
        self.relay = Relay(self._host)
        await self.relay.start()
        self.stack.push_async_callback(self.relay.close)
