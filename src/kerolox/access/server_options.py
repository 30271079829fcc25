"""What every server has: an address to listen on, TLS, access control, and settings no request may change.

The three are looked at together: whoever is let in, on which address, decides whether a server speaks TLS
alone, and whether its operator should be told that it is open.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from kerolox.access.options import AccessOptions
from kerolox.errors import OptionError
from kerolox.net.address import is_loopback
from kerolox.net.tls import ClientAuth, TlsMode
from kerolox.net.tls_options import TlsOptions
from kerolox.options import option

log = logging.getLogger(__name__)


@dataclass
class ServerOptions(TlsOptions, AccessOptions):
    # Never changed by a request, whatever configBlackList says.
    ALWAYS_BLACK_LISTED: ClassVar[frozenset[str]] = frozenset({"configBlackList", "rocketmqHome"})

    bind_address: str = option("0.0.0.0", "Address to listen on; a loopback address shuts others out.")
    connections_for_each_address: int = option(
        0,
        "Connections that one source address may have on a port; 0: three quarters of those the port takes.",
        key="connectionsPerAddressMax",
        low=0,
        high=1_000_000,
    )
    config_black_list: str = option(
        "configBlackList", "Keys, joined by semicolons, that no request may change."
    )

    def black_listed(self, key: str) -> bool:
        return key in self.ALWAYS_BLACK_LISTED or key in map(str.strip, self.config_black_list.split(";"))

    @property
    def enforces_by_default(self) -> bool:
        """Signed requests can be read and sent again by who sees them: beyond loopback, with users, a server
        speaks TLS alone, unless it is told otherwise."""
        return self.tls_mode is None and self.authentication and not is_loopback(self.bind_address)

    @property
    def effective_tls_mode(self) -> TlsMode:
        return TlsMode.ENFORCING if self.enforces_by_default else super().effective_tls_mode

    def chosen(self) -> Mapping[str, object]:
        return {**super().chosen(), "tls_mode": self.effective_tls_mode}

    def check_server(self) -> None:
        """Refuse what contradicts itself, and say once what an operator should know. Called at the start."""
        self.check_tls()
        if self.enforces_by_default:
            if not (self.tls_certificate or self.tls_self_signed):
                raise OptionError(
                    "tls.server.certPath",
                    None,
                    f"a certificate: with authenticationEnabled=true on {self.bind_address} TLS is enforced. "
                    "Or say tls.server.mode=permissive, if nobody on the network between reads along",
                )
            log.info(
                "tls_enforced role=%s address=%s next='with authenticationEnabled=true beyond loopback plain "
                "connections are refused; tls.server.mode=permissive takes them'",
                self.ROLE, self.bind_address,
            )  # fmt: skip
        elif not self.asks_who and not self._asks_for_certificates and not is_loopback(self.bind_address):
            log.warning(
                "open_to_everybody role=%s address=%s next='whoever reaches it may do everything: set "
                "authenticationEnabled=true (kerolox access init makes the users), or bindAddress=127.0.0.1'",
                self.ROLE, self.bind_address,
            )  # fmt: skip

    @property
    def _asks_for_certificates(self) -> bool:
        mode = self.effective_tls_mode
        return mode is TlsMode.ENFORCING and self.tls_client_auth is ClientAuth.REQUIRE
