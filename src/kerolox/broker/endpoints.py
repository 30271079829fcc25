"""The addresses of a broker: what its options say, and what was found out where they leave it open."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Endpoints:
    host: str  # the address or name that clients are told
    port: int
    vip_port: int  # the port that serves no pulls
    ha_port: int  # the port for followers
    ha_host: str = ""  # the address or name that followers are told, if it is another

    @property
    def address(self) -> str:
        """Where clients reach this broker."""
        return join(self.host, self.port)

    @property
    def ha_address(self) -> str:
        return join(self.ha_host or self.host, self.ha_port)

    def as_options(self) -> dict[str, Any]:
        """The addresses as values of options, for tools that ask for the options."""
        return {
            "advertised_host": self.host,
            "advertised_ha_host": self.ha_host or self.host,
            "listen_port": self.port,
            "vip_port": self.vip_port,
            "ha_port": self.ha_port,
        }


def join(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
