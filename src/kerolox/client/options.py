"""The options of a client: what its producers and consumers share."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from kerolox.client.ids import DEFAULT_INSTANCE
from kerolox.client.nameservers import split_addresses
from kerolox.errors import OptionError
from kerolox.net.tls import ClientTls
from kerolox.protocol.frame import JSON

NAMESERVER_VARIABLE = "NAMESRV_ADDR"


@dataclass(frozen=True)
class ClientOptions:
    """How a client finds its cluster and speaks to it."""

    # --- where
    nameservers: str | Sequence[str] = ""  # "host:port;host:port"; empty: the variable NAMESRV_ADDR
    vip_channel: bool = False  # send and ask over the broker's second port (its own minus 2)

    # --- who
    instance: str = DEFAULT_INSTANCE  # clients of one machine with the same name count as one
    unit: str = ""
    unit_mode: bool = False
    namespace: str = ""  # put before topics and groups: ns%topic
    namespace_v2: str = ""  # 5.x: sent beside the names instead
    access_key: str = ""
    secret_key: str = ""
    security_token: str = ""
    tls: ClientTls | None = None

    # --- how often, how long
    route_refresh_s: float = 30.0
    heartbeat_s: float = 30.0
    heartbeat_v2: bool = False  # 5.x: repeat what groups want only when it changed
    request_timeout_s: float = 3.0
    connect_timeout_s: float = 3.0

    encoding: int = JSON  # of command headers: frame.JSON or frame.BINARY

    def __post_init__(self) -> None:
        for name in ("route_refresh_s", "heartbeat_s", "request_timeout_s", "connect_timeout_s"):
            if getattr(self, name) <= 0:
                raise OptionError(name, getattr(self, name), "a number of seconds over 0")
        if bool(self.access_key) != bool(self.secret_key):
            raise OptionError("access_key", self.access_key, "access_key and secret_key, or neither")

    def addresses(self) -> list[str]:
        """The name servers."""
        given = self.nameservers or os.environ.get(NAMESERVER_VARIABLE, "")
        text = given if isinstance(given, str) else ";".join(given)
        if not text.strip():
            raise OptionError(
                "nameservers", given, f"host:port of a name server, or {NAMESERVER_VARIABLE} set"
            )
        return split_addresses(text)
