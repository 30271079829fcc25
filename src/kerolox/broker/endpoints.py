"""Addresses of a broker: from its options, or detected where the options leave them open."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Endpoints:
    host: str  # the address or name advertised to clients
    port: int
    vip_port: int  # the port that serves no pulls
    ha_port: int  # the port for followers
    ha_host: str = ""  # the address or name advertised to followers, if it differs

    @property
    def address(self) -> str:
        """Return the address at which clients reach this broker."""
        return join(self.host, self.port)

    @property
    def ha_address(self) -> str:
        return join(self.ha_host or self.host, self.ha_port)

    def as_options(self) -> dict[str, Any]:
        """Return the addresses as option values, for tools that query the options."""
        return {
            "advertised_host": self.host,
            "advertised_ha_host": self.ha_host or self.host,
            "listen_port": self.port,
            "vip_port": self.vip_port,
            "ha_port": self.ha_port,
        }


def join(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
