"""The options of access control, the same for every server. The keys are RocketMQ's where it has them."""

from __future__ import annotations

import enum
import ipaddress
from dataclasses import dataclass

from kerolox.access.policies import Network
from kerolox.errors import OptionError
from kerolox.net.signing import Credentials, parse_credentials
from kerolox.options import Options, option


class Audit(enum.Enum):
    """Which decisions are written to the log ``kerolox.access.audit``."""

    NONE = "none"
    REFUSED = "refused"
    ALL = "all"


class FormTwoUse(enum.Enum):
    """Who uses signatures of form 2 (``protocol/signature_v2.py``)."""

    OFF = "off"
    SIGN = "sign"  # this server, for what it asks others
    INNER = "inner"  # and the user that servers sign as has to
    SUPER = "super"  # and all users that may do everything
    ALL = "all"  # and every user


@dataclass
class AccessOptions(Options):
    authentication: bool = option(
        False, "Every request must be signed by a known user.", key="authenticationEnabled"
    )
    authorization: bool = option(
        False, "What a user may do is decided by its rules; without authenticationEnabled nobody is one.",
        key="authorizationEnabled",
    )  # fmt: skip
    access_path: str | None = option(
        None, "The file of users and rules. A broker keeps its own in the store if unset; name servers and "
        "controllers need one. It is read again when it changes.",
    )  # fmt: skip
    first_user: str | None = option(
        None, 'A user that may do everything, made if there is none of that name: {"username": "admin", '
        '"password": "..."}.',
        key="initAuthenticationUser", secret=True,
    )  # fmt: skip
    inner_credentials: str | None = option(
        None, "Servers sign with these what they ask each other; the user may do everything, and is made if "
        'there is none of that name: {"accessKey": "inner", "secretKey": "..."}.',
        key="innerClientAuthenticationCredentials", secret=True,
    )  # fmt: skip
    form_2: FormTwoUse = option(
        FormTwoUse.OFF, "Signatures of form 2, which cover the request code and count once. sign: what this "
        "server asks others carries them. inner: and requests of the user of "
        "innerClientAuthenticationCredentials must, super: those of all Super users, all: of every user.",
        key="signatureV2",
    )  # fmt: skip
    form_2_window_s: int = option(
        60, "How far the clock of a program that signs in form 2 may differ from this server's, seconds.",
        key="signatureV2WindowSeconds", low=1, high=3600,
    )  # fmt: skip
    unauthenticated_codes: str = option(
        "", "Request codes, joined by commas, that need no signature.", key="authenticationWhitelist"
    )
    unauthorized_codes: str = option(
        "", "Request codes, joined by commas, that every known user may send.", key="authorizationWhitelist"
    )
    access_cluster: str = option(
        "DefaultCluster", "Who has rights on this cluster has them on this server: of name servers and "
        "controllers, which may serve several. Brokers have brokerClusterName.",
    )  # fmt: skip
    admin_from: str = option(
        "", "Addresses and networks, joined by commas, from which anything may be administered; empty: this "
        "host, private networks and link-local addresses. * is everywhere.",
    )  # fmt: skip
    audit: Audit = option(
        Audit.REFUSED, "Which decisions are logged, a line each, under kerolox.access.audit.",
        key="accessAudit",
    )  # fmt: skip

    @property
    def asks_who(self) -> bool:
        """Whether it lets in only those who prove who they are."""
        return self.authentication

    def check_access(self) -> None:
        """Refuse settings that would protect nothing."""
        if self.authorization and not self.authentication:
            raise OptionError(
                "authorizationEnabled", True, "authenticationEnabled=true as well: nobody proves who they are"
            )
        if self.form_2 not in (FormTwoUse.OFF, FormTwoUse.SIGN) and not self.authentication:
            raise OptionError(
                "signatureV2",
                self.form_2.value,
                "authenticationEnabled=true as well: no signature is looked at",
            )
        if self.form_2 is FormTwoUse.INNER and self.own_credentials is None:
            raise OptionError(
                "signatureV2",
                self.form_2.value,
                "innerClientAuthenticationCredentials as well, or super or all",
            )

    @property
    def own_credentials(self) -> Credentials | None:
        """What this server signs its own requests with."""
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
        """None: administration from everywhere."""
        text = self.admin_from.strip()
        if text == "*":
            return None
        if not text:
            return _NEAR
        try:
            return tuple(ipaddress.ip_network(one.strip(), strict=False) for one in text.split(","))
        except ValueError as error:
            raise OptionError(
                "adminFrom", self.admin_from, f"addresses and networks joined by commas ({error})"
            ) from None


_NEAR: tuple[Network, ...] = tuple(
    ipaddress.ip_network(text)
    for text in (
        "127.0.0.0/8", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "169.254.0.0/16",
        "::1/128", "fc00::/7", "fe80::/10",
    )
)  # fmt: skip
