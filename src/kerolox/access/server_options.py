"""Options of every server: listen address, TLS, access control, and settings that no request may change.

They belong together: the listen address and the authentication decide whether a server requires TLS and
whether it warns that it is open.
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
    # No request may change these, regardless of configBlackList.
    ALWAYS_BLACK_LISTED: ClassVar[frozenset[str]] = frozenset({"configBlackList", "rocketmqHome"})

    bind_address: str = option(
        "0.0.0.0", "Listen address. A loopback address accepts only local connections."
    )
    connections_for_each_address: int = option(
        0,
        "Limit of connections per source address and port. 0: three quarters of the port's limit.",
        key="connectionsPerAddressMax",
        low=0,
        high=1_000_000,
    )
    config_black_list: str = option(
        "configBlackList", "Option keys, separated by semicolons, that no request may change."
    )

    def black_listed(self, key: str) -> bool:
        return key in self.ALWAYS_BLACK_LISTED or key in map(str.strip, self.config_black_list.split(";"))

    @property
    def enforces_by_default(self) -> bool:
        """True if TLS is required by default. An eavesdropper can read and replay signed requests; so a
        server with users and a non-loopback address requires TLS unless tls.server.mode is set."""
        return self.tls_mode is None and self.authentication and not is_loopback(self.bind_address)

    @property
    def effective_tls_mode(self) -> TlsMode:
        return TlsMode.ENFORCING if self.enforces_by_default else super().effective_tls_mode

    def chosen(self) -> Mapping[str, object]:
        return {**super().chosen(), "tls_mode": self.effective_tls_mode}

    def check_server(self) -> None:
        """Reject contradictory settings and log once what an operator should know. Called at the start."""
        self.check_tls()
        if self.enforces_by_default:
            if not (self.tls_certificate or self.tls_self_signed):
                raise OptionError(
                    "tls.server.certPath",
                    None,
                    f"a certificate: with authenticationEnabled=true on {self.bind_address} TLS is enforced. "
                    "Or set tls.server.mode=permissive if the network is trusted",
                )
            log.info(
                "tls_enforced role=%s address=%s next='with authenticationEnabled=true on a non-loopback "
                "address plain connections are rejected; tls.server.mode=permissive accepts them'",
                self.ROLE, self.bind_address,
            )  # fmt: skip
        elif not self.asks_who and not self._asks_for_certificates and not is_loopback(self.bind_address):
            log.warning(
                "open_to_everybody role=%s address=%s next='every client that reaches it may do everything: "
                "set authenticationEnabled=true (kerolox access init creates the users), or "
                "bindAddress=127.0.0.1'",
                self.ROLE, self.bind_address,
            )  # fmt: skip

    @property
    def _asks_for_certificates(self) -> bool:
        mode = self.effective_tls_mode
        return mode is TlsMode.ENFORCING and self.tls_client_auth is ClientAuth.REQUIRE
