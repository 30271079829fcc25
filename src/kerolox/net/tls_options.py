"""TLS options, shared by all servers. The keys are RocketMQ's.

RocketMQ reads them as JVM properties or from a separate file, which takes precedence. Here they are lines of
the server's configuration file, and the separate file is read as well (:func:`with_tls_file`).
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from kerolox.errors import OptionError
from kerolox.net.tls import ClientAuth, ClientTls, ServerTls, TlsMode
from kerolox.options import Loaded, Options, option, specs
from kerolox.protocol.bodies.properties_text import read_properties

log = logging.getLogger(__name__)

TLS_FILE = "/etc/rocketmq/tls.properties"  # RocketMQ's default
# RocketMQ reads these only as JVM properties; in the file they have no effect.
_NOT_IN_THE_FILE = frozenset({"tls.server.mode", "tls.enable", "tls.config.file", "useTLS"})

T = TypeVar("T", bound=Options)


@dataclass
class TlsOptions(Options):
    # --- ports
    tls_mode: TlsMode | None = option(
        None, "TLS on the ports. disabled: only plain; permissive: both; enforcing: only TLS. Default: "
        "permissive.",
        key="tls.server.mode",
    )  # fmt: skip
    tls_certificate: str | None = option(
        None, "PEM file of this server's certificate chain.", key="tls.server.certPath"
    )
    tls_key: str | None = option(None, "PEM file of the server's private key.", key="tls.server.keyPath")
    tls_key_password: str | None = option(
        None, "Passphrase of the server's private key.", key="tls.server.keyPassword", secret=True
    )
    tls_client_ca: str | None = option(
        None, "PEM file of the authorities that sign client certificates.",
        key="tls.server.trustCertPath",
    )  # fmt: skip
    tls_client_auth: ClientAuth = option(
        ClientAuth.NONE,
        "Client certificates. none: not requested; optional: verified if sent; require: required.",
        key="tls.server.need.client.auth",
    )
    tls_auth_client: bool | None = option(
        None, "No effect: client certificates that are requested are always verified.",
        key="tls.server.authClient",
    )  # fmt: skip
    tls_self_signed: bool = option(
        True, "Create a self-signed certificate when the first TLS client connects and none is configured.",
        key="tls.test.mode.enable",
    )  # fmt: skip
    tls_file: str = option(
        TLS_FILE, "Additional file of TLS options, read if it exists. It overrides this configuration.",
        key="tls.config.file",
    )  # fmt: skip

    # --- connections to other servers
    use_tls: bool | None = option(
        None, "Use TLS to other servers. Default: the value of tls.enable.", key="useTLS"
    )
    tls_enable: bool | None = option(
        None, "Use TLS to other servers. Default: true if tls.server.mode is enforcing.", key="tls.enable"
    )
    tls_own_ca: str | None = option(
        None, "PEM file of the only trusted authorities for other servers. Default: the system's, and the "
        "certificate must name the address.",
        key="tls.client.trustCertPath",
    )  # fmt: skip
    tls_own_verify: bool | None = option(
        None, "Verify the certificates of other servers. Default: true if tls.client.trustCertPath is "
        "set.",
        key="tls.client.authServer",
    )  # fmt: skip
    tls_own_certificate: str | None = option(
        None, "PEM file of the client certificate for other servers.", key="tls.client.certPath"
    )
    tls_own_key: str | None = option(
        None, "PEM file of the private key of tls.client.certPath.", key="tls.client.keyPath"
    )
    tls_own_key_password: str | None = option(
        None, "Passphrase of the key in tls.client.keyPath.", key="tls.client.keyPassword", secret=True
    )

    @property
    def self_signed_path(self) -> str:
        """Path of the server's self-signed certificate."""
        raise NotImplementedError

    @property
    def effective_tls_mode(self) -> TlsMode:
        return self.tls_mode or TlsMode.PERMISSIVE

    @property
    def tls(self) -> ServerTls:
        """TLS settings of the server's ports."""
        return ServerTls(
            mode=self.effective_tls_mode,
            certificate=self.tls_certificate,
            key=self.tls_key,
            key_password=self.tls_key_password,
            client_ca=self.tls_client_ca,
            client_auth=self.tls_client_auth,
            self_signed=self.self_signed_path if self.tls_self_signed else None,
        )

    @property
    def own_tls(self) -> ClientTls | None:
        """TLS settings of connections to other servers; None: plain."""
        asked = self.tls_enable if self.use_tls is None else self.use_tls
        if asked is False or (asked is None and self.effective_tls_mode is not TlsMode.ENFORCING):
            return None
        return ClientTls(
            ca=self.tls_own_ca,
            certificate=self.tls_own_certificate,
            key=self.tls_own_key,
            key_password=self.tls_own_key_password,
            verify=self.tls_own_ca is not None if self.tls_own_verify is None else self.tls_own_verify,
        )

    def check_tls(self) -> None:
        """Reject contradictory settings and log misleading ones. Called at the start."""
        if None not in (self.use_tls, self.tls_enable) and self.use_tls is not self.tls_enable:
            raise OptionError(
                "useTLS", self.use_tls, f"{self.tls_enable} (the value of tls.enable), or unset"
            )
        if (self.tls_own_certificate is None) != (self.tls_own_key is None):
            missing = "keyPath" if self.tls_own_certificate else "certPath"
            raise OptionError(f"tls.client.{missing}", None, "certificate and key together")
        if self.tls_auth_client is False and self.tls_client_auth is not ClientAuth.NONE:
            log.warning(
                "certificates_are_verified next='tls.server.authClient=false has no effect: a requested "
                "client certificate (tls.server.need.client.auth=%s) is always verified'",
                self.tls_client_auth.value,
            )
        if self.tls_client_auth is ClientAuth.REQUIRE and self.effective_tls_mode is TlsMode.PERMISSIVE:
            log.warning(
                "plain_clients_not_asked next='tls.server.need.client.auth=require applies only to TLS "
                "clients: set tls.server.mode=enforcing to reject plain ones'"
            )
        own = self.own_tls
        if own is not None and not own.verify:
            log.warning(
                "servers_not_verified role=%s next='set tls.client.trustCertPath: otherwise an attacker "
                "on the network can read and change the traffic between the servers'",
                self.ROLE,
            )


def with_tls_file(loaded: Loaded[T]) -> Loaded[T]:
    """Return the options with those in tls.config.file. Reads that file: not on the event loop.

    A file that the options name must exist; RocketMQ's default file need not.
    """
    options = loaded.options
    if not isinstance(options, TlsOptions) or not options.tls_file:
        return loaded
    name = options.tls_file
    try:
        text = Path(name).read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        if isinstance(error, FileNotFoundError) and "tls_file" not in loaded.sources:
            return loaded
        expected = f"a readable file of TLS settings ({error.strerror or error})"
        raise OptionError("tls.config.file", name, expected, loaded.sources.get("tls_file", "")) from error
    by_key = {spec.key: spec for spec in specs(type(options)) if spec.key.startswith("tls.")}
    found = {}
    unknown = dict(loaded.unknown)
    for key, value in read_properties(text).items():
        if key in _NOT_IN_THE_FILE:
            raise OptionError(key, value, "this key only in the server's configuration file", name)
        spec = by_key.get(key)
        if spec is None:
            unknown[key] = name
        else:
            found[spec.name] = spec.parse(value, name)
    sources = {**loaded.sources, **dict.fromkeys(found, name)}
    return Loaded(replace(options, **found), sources, unknown)
