"""Broker of ``kerolox demo``: a separate process, so that it can be killed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Self

from kerolox.supervise.embedded import EMBEDDED
from kerolox.supervise.process import ServerProcess

NAME = "demo-broker"
STOP_S = 20.0


class DemoBroker(ServerProcess):
    """Broker process that can be killed and restarted at the same address."""

    def __init__(self, nameserver: str, place: Path) -> None:
        words = [
            "broker",
            *("--advertised-host", "127.0.0.1"),
            *("--name", NAME),
            *("--store", str(place / NAME)),
            *("--nameserver", nameserver),
            *("--log-level", "warning"),
            *(word for key, value in EMBEDDED.items() for word in ("--set", f"{key}={value}")),
        ]
        super().__init__(NAME, words, place / "broker.log", stop_s=STOP_S)
        self._settings = words

    async def start(self) -> None:
        self.words = [*self._settings, "--listen", self.address or "127.0.0.1:0"]
        await super().start()

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.stop()
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        await asyncio.shield(self.stop())
