"""The TLS options, the same for every server. The keys are RocketMQ's.

RocketMQ reads them as properties of the JVM, or from a file of their own, which wins. Here they are lines of
the server's file, and that file of their own is read as well (:func:`with_tls_file`).
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

TLS_FILE = "/etc/rocketmq/tls.properties"  # where RocketMQ looks for one
# RocketMQ takes these as properties alone; in the file they do nothing.
_NOT_IN_THE_FILE = frozenset({"tls.server.mode", "tls.enable", "tls.config.file", "useTLS"})

T = TypeVar("T", bound=Options)


@dataclass
class TlsOptions(Options):
    # --- what its ports speak
    tls_mode: TlsMode | None = option(
        None, "disabled: plain only; permissive: both; enforcing: TLS only. Unset: permissive.",
        key="tls.server.mode",
    )  # fmt: skip
    tls_certificate: str | None = option(
        None, "PEM file with the certificate chain of this server.", key="tls.server.certPath"
    )
    tls_key: str | None = option(None, "PEM file with its private key.", key="tls.server.keyPath")
    tls_key_password: str | None = option(
        None, "Passphrase of that key.", key="tls.server.keyPassword", secret=True
    )
    tls_client_ca: str | None = option(
        None, "PEM file with the authorities that sign certificates of clients.",
        key="tls.server.trustCertPath",
    )  # fmt: skip
    tls_client_auth: ClientAuth = option(
        ClientAuth.NONE,
        "none; optional: who shows a certificate must show a good one; require: everybody must.",
        key="tls.server.need.client.auth",
    )
    tls_auth_client: bool | None = option(
        None, "Whoever is asked for a certificate must show a good one: false changes nothing here.",
        key="tls.server.authClient",
    )  # fmt: skip
    tls_self_signed: bool = option(
        True, "Without a certificate: make one when the first TLS client comes, and keep it.",
        key="tls.test.mode.enable",
    )  # fmt: skip
    tls_file: str = option(
        TLS_FILE, "A file with more of these lines, read if it is there; what it says wins.",
        key="tls.config.file",
    )  # fmt: skip

    # --- what it speaks to other servers
    use_tls: bool | None = option(
        None, "Speak TLS to other servers; unset: as tls.enable says.", key="useTLS"
    )
    tls_enable: bool | None = option(
        None, "The same; unset: if tls.server.mode is enforcing.", key="tls.enable"
    )
    tls_own_ca: str | None = option(
        None, "PEM file with the authorities of other servers, and no others; unset: the system's, and the "
        "certificate must name the address.",
        key="tls.client.trustCertPath",
    )  # fmt: skip
    tls_own_verify: bool | None = option(
        None, "Whether other servers must show a good certificate; unset: if tls.client.trustCertPath is "
        "set.",
        key="tls.client.authServer",
    )  # fmt: skip
    tls_own_certificate: str | None = option(
        None, "PEM file with the certificate shown to other servers.", key="tls.client.certPath"
    )
    tls_own_key: str | None = option(None, "PEM file with its private key.", key="tls.client.keyPath")
    tls_own_key_password: str | None = option(
        None, "Passphrase of that key.", key="tls.client.keyPassword", secret=True
    )

    @property
    def self_signed_path(self) -> str:
        """Where a certificate of its own is kept."""
        raise NotImplementedError

    @property
    def effective_tls_mode(self) -> TlsMode:
        return self.tls_mode or TlsMode.PERMISSIVE

    @property
    def tls(self) -> ServerTls:
        """What its ports speak."""
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
        """How it speaks to other servers; None: plainly."""
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
        """Refuse what contradicts itself, and say once what is not as it may seem. Called at the start."""
        if None not in (self.use_tls, self.tls_enable) and self.use_tls is not self.tls_enable:
            raise OptionError("useTLS", self.use_tls, f"{self.tls_enable}, as tls.enable says, or nothing")
        if (self.tls_own_certificate is None) != (self.tls_own_key is None):
            missing = "keyPath" if self.tls_own_certificate else "certPath"
            raise OptionError(f"tls.client.{missing}", None, "certificate and key to be set together")
        if self.tls_auth_client is False and self.tls_client_auth is not ClientAuth.NONE:
            log.warning(
                "certificates_are_verified next='tls.server.authClient=false has no effect: who is asked for "
                "a certificate (tls.server.need.client.auth=%s) must show a good one'",
                self.tls_client_auth.value,
            )
        if self.tls_client_auth is ClientAuth.REQUIRE and self.effective_tls_mode is TlsMode.PERMISSIVE:
            log.warning(
                "plain_clients_not_asked next='tls.server.need.client.auth=require asks TLS clients alone: "
                "tls.server.mode=enforcing shuts out the others'"
            )
        own = self.own_tls
        if own is not None and not own.verify:
            log.warning(
                "servers_not_verified role=%s next='set tls.client.trustCertPath: now anybody who gets "
                "between this server and the others can read and change what they say'",
                self.ROLE,
            )


def with_tls_file(loaded: Loaded[T]) -> Loaded[T]:
    """The same options with what their tls.config.file says. Reads that file: not on the event loop.

    A file that was named must be there; the one RocketMQ looks for by default need not.
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
        expected = f"a file of TLS settings that can be read ({error.strerror or error})"
        raise OptionError("tls.config.file", name, expected, loaded.sources.get("tls_file", "")) from error
    by_key = {spec.key: spec for spec in specs(type(options)) if spec.key.startswith("tls.")}
    found = {}
    unknown = dict(loaded.unknown)
    for key, value in read_properties(text).items():
        if key in _NOT_IN_THE_FILE:
            raise OptionError(key, value, "a line of the server's own file, where it is looked for", name)
        spec = by_key.get(key)
        if spec is None:
            unknown[key] = name
        else:
            found[spec.name] = spec.parse(value, name)
    sources = {**loaded.sources, **dict.fromkeys(found, name)}
    return Loaded(replace(options, **found), sources, unknown)
