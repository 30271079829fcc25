"""Options of access control, shared by all servers. Keys are RocketMQ's where it has the option."""

from __future__ import annotations

import enum
import ipaddress
from dataclasses import dataclass

from kerolox.access.policies import Network
from kerolox.errors import OptionError
from kerolox.net.signing import Credentials, parse_credentials
from kerolox.options import Options, option


class Audit(enum.Enum):
    """Decisions that are written to the log ``kerolox.access.audit``."""

    NONE = "none"
    REFUSED = "refused"
    ALL = "all"


class FormTwoUse(enum.Enum):
    """Users that must sign in form 2 (``protocol/signature_v2.py``)."""

    OFF = "off"
    SIGN = "sign"  # this server signs its own requests to other servers in form 2
    INNER = "inner"  # as SIGN, and requests of the servers' own user must be in form 2
    SUPER = "super"  # as INNER, for all Super users
    ALL = "all"  # as SUPER, for all users


@dataclass
class AccessOptions(Options):
    authentication: bool = option(
        False, "Require that every request is signed by a known user.", key="authenticationEnabled"
    )
    authorization: bool = option(
        False, "Enforce the users' rules. Requires authenticationEnabled.",
        key="authorizationEnabled",
    )  # fmt: skip
    access_path: str | None = option(
        None, "File of users and rules. Default for brokers: a file in the store; name servers and "
        "controllers have no default. It is read again when it changes.",
    )  # fmt: skip
    first_user: str | None = option(
        None, 'Super user to create if the name does not exist: {"username": "admin", '
        '"password": "..."}.',
        key="initAuthenticationUser", secret=True,
    )  # fmt: skip
    inner_credentials: str | None = option(
        None, "Credentials with which servers sign requests to each other. The user must be a Super user "
        'and is created if the name does not exist: {"accessKey": "inner", "secretKey": "..."}.',
        key="innerClientAuthenticationCredentials", secret=True,
    )  # fmt: skip
    form_2: FormTwoUse = option(
        FormTwoUse.OFF, "Signatures of form 2, which cover the request code and are valid once. sign: this "
        "server's own requests carry them. inner: as sign, and required of the user in "
        "innerClientAuthenticationCredentials; super: as inner, of all Super users; all: of every user.",
        key="signatureV2",
    )  # fmt: skip
    form_2_window_s: int = option(
        60, "Largest difference between a form 2 signer's clock and this server's, seconds.",
        key="signatureV2WindowSeconds", low=1, high=3600,
    )  # fmt: skip
    unauthenticated_codes: str = option(
        "", "Request codes, separated by commas, that need no signature.", key="authenticationWhitelist"
    )
    unauthorized_codes: str = option(
        "",
        "Request codes, separated by commas, that every known user may send.",
        key="authorizationWhitelist",
    )
    access_cluster: str = option(
        "DefaultCluster", "Cluster whose rights apply to this server. For name servers and "
        "controllers, which may serve several clusters; brokers use brokerClusterName.",
    )  # fmt: skip
    admin_from: str = option(
        "", "Addresses and networks, separated by commas, that may send administration requests. Empty: this "
        "host, private networks and link-local addresses. *: any address.",
    )  # fmt: skip
    audit: Audit = option(
        Audit.REFUSED, "Decisions to log, one line each, in kerolox.access.audit.",
        key="accessAudit",
    )  # fmt: skip

    @property
    def asks_who(self) -> bool:
        """True if requests of unknown users are rejected."""
        return self.authentication

    def check_access(self) -> None:
        """Reject settings that would have no effect."""
        if self.authorization and not self.authentication:
            raise OptionError(
                "authorizationEnabled",
                True,
                "authenticationEnabled=true as well: users are not authenticated",
            )
        if self.form_2 not in (FormTwoUse.OFF, FormTwoUse.SIGN) and not self.authentication:
            raise OptionError(
                "signatureV2",
                self.form_2.value,
                "authenticationEnabled=true as well: signatures are not verified",
            )
        if self.form_2 is FormTwoUse.INNER and self.own_credentials is None:
            raise OptionError(
                "signatureV2",
                self.form_2.value,
                "innerClientAuthenticationCredentials as well, or super or all",
            )

    @property
    def own_credentials(self) -> Credentials | None:
        """Credentials with which this server signs its own requests."""
        found = parse_credentials(
            self.inner_credentials, "innerClientAuthenticationCredentials", "accessKey", "secretKey"
        )
        if found is None or self.form_2 is FormTwoUse.OFF:
            return found
        return Credentials(found.access_key, found.secret_key, form_2=True)

    @property
    def first_credentials(self) -> Credentials | None:
        return parse_credentials(self.first_user, "initAuthenticationUser", "username", "password")

    @property
    def admin_networks(self) -> tuple[Network, ...] | None:
        """Networks that may send administration requests; None: all."""
        text = self.admin_from.strip()
        if text == "*":
            return None
        if not text:
            return _NEAR
        try:
            return tuple(ipaddress.ip_network(one.strip(), strict=False) for one in text.split(","))
        except ValueError as error:
            raise OptionError(
                "adminFrom", self.admin_from, f"addresses and networks separated by commas ({error})"
            ) from None


_NEAR: tuple[Network, ...] = tuple(
    ipaddress.ip_network(text)
    for text in (
        "127.0.0.0/8", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "169.254.0.0/16",
        "::1/128", "fc00::/7", "fe80::/10",
    )
)  # fmt: skip
