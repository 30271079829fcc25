"""Where a broker is reached: what its options say, and what was found where they leave it open."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Endpoints:
    host: str  # as clients are told, an address or a name
    port: int
    vip_port: int  # without pulls
    ha_port: int  # for followers

    @property
    def address(self) -> str:
        """Where clients reach this broker."""
        return join(self.host, self.port)

    @property
    def ha_address(self) -> str:
        return join(self.host, self.ha_port)

    def as_options(self) -> dict[str, Any]:
        """The same as values of options, for tools that ask for those."""
        return {
            "advertised_host": self.host,
            "listen_port": self.port,
            "vip_port": self.vip_port,
            "ha_port": self.ha_port,
        }


def join(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
