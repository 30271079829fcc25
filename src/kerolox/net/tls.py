"""TLS contexts from options, and their renewal when the files change.

A listener tells TLS from plain by the first byte (a client hello starts with 0x16, a frame with 0x00 or
0x01), so one port can accept both: mode ``permissive``. ``disabled`` drops TLS clients, ``enforcing`` drops
plain ones. A server without a certificate creates one when the first TLS client connects, if allowed
(``tls.test.mode.enable``, self_signed.py).
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from enum import Enum
from typing import TYPE_CHECKING

import msgspec

from kerolox.errors import KeroloxError, OptionError
from kerolox.net.self_signed import self_signed

if TYPE_CHECKING:
    import ssl  # loaded when needed: most processes do not use TLS

log = logging.getLogger(__name__)

CLIENT_HELLO = 0x16
Stamps = tuple[tuple[int, int], ...]  # modification times and sizes of files
MAKE_AGAIN_S = 10.0  # after a failure: clients may send hellos at any rate


class TlsMode(Enum):
    DISABLED = "disabled"
    PERMISSIVE = "permissive"
    ENFORCING = "enforcing"


class ClientAuth(Enum):
    """Requirement for client certificates, which an authority in ``client_ca`` must have signed."""

    NONE = "none"
    OPTIONAL = "optional"  # a certificate is optional, but must be valid if the client sends one
    REQUIRE = "require"


class ServerTls(msgspec.Struct, frozen=True, kw_only=True):
    """TLS settings of a listener. Without a certificate, and without a path for a self-signed one, TLS is
    off."""

    mode: TlsMode = TlsMode.PERMISSIVE
    certificate: str | None = None  # PEM file: the server's certificate chain
    key: str | None = None  # PEM file: its private key
    key_password: str | None = None
    client_ca: str | None = None  # PEM file: the authorities that may sign client certificates
    client_auth: ClientAuth = ClientAuth.NONE
    self_signed: str | None = None  # path of a self-signed certificate, used if no certificate is given
    alpn: tuple[str, ...] = ()  # protocols to agree on

    @property
    def is_spoken(self) -> bool:
        return self.mode is not TlsMode.DISABLED and bool(self.certificate or self.self_signed)


class ClientTls(msgspec.Struct, frozen=True, kw_only=True):
    """TLS settings of a client. RocketMQ's clients do not verify by default; this one does unless `verify` is
    false."""

    ca: str | None = None  # PEM file of the only trusted authorities; None: the system's
    certificate: str | None = None
    key: str | None = None
    key_password: str | None = None
    verify: bool = True
    # Require that the certificate names the address. None: only without ``ca``, because the system's
    # authorities sign certificates for everyone. With ``ca`` it is off: brokers are known by addresses, which
    # certificates rarely name.
    check_host: bool | None = None

    @property
    def checks_host(self) -> bool:
        return self.verify and (not self.ca if self.check_host is None else self.check_host)

    def __repr__(self) -> str:  # never the password
        return f"ClientTls(ca={self.ca!r}, certificate={self.certificate!r}, verify={self.verify})"


class ServerContext:
    """The listener's current context. :meth:`reload_if_changed` reads changed files again."""

    def __init__(self, options: ServerTls) -> None:
        self.options = options
        self._stamp: Stamps = ()
        self._making = threading.Lock()
        self._not_before_s = 0.0
        self._reload_error = ""
        self.current: ssl.SSLContext | None = None
        self.to_make = False  # the context is created when the first TLS client connects
        if options.mode is TlsMode.DISABLED:
            return
        if options.certificate is None or options.key is None:
            if options.certificate or options.key or options.self_signed is None:
                self._refuse_half()
                return
            _check_client_auth(options)
            self.to_make = True
            return
        self._stamp = self._stamps()
        self.current = server_context(options)

    def _refuse_half(self) -> None:
        """Reject a certificate without its key, and enforced TLS without a certificate."""
        options = self.options
        if options.certificate or options.key:
            missing = "keyPath" if options.certificate else "certPath"
            raise OptionError(f"tls.server.{missing}", None, "certificate and key together")
        if options.mode is TlsMode.ENFORCING:
            raise OptionError(
                "tls.server.mode",
                "enforcing",
                "tls.server.certPath and tls.server.keyPath as well, or tls.test.mode.enable=true",
            )

    @property
    def speaks_tls(self) -> bool:
        return self.current is not None or self.to_make

    def make(self) -> ssl.SSLContext | None:
        """Return the context; create it with a self-signed certificate if there is none. None if that failed,
        as the log shows. Blocking: call it in a thread."""
        with self._making:
            if self.current is None and time.monotonic() >= self._not_before_s:
                try:
                    path = self_signed(self.options.self_signed or "")
                    self.options = msgspec.structs.replace(self.options, certificate=path, key=path)
                    self._stamp = self._stamps()
                    self.current = server_context(self.options)
                except (OSError, KeroloxError) as error:
                    self._not_before_s = time.monotonic() + MAKE_AGAIN_S
                    log.warning(
                        "tls_refused error=%r next='set tls.server.certPath and tls.server.keyPath, or "
                        "remove the broken file; a new one is created'",
                        str(error),
                    )
        return self.current

    def reload_if_changed(self) -> bool:
        """Reload changed files. If they are invalid, keep the old context and log it. Blocking: call it in a
        thread."""
        if self.current is None:
            return False
        try:
            stamp = self._stamps()
            if stamp == self._stamp:
                return False
            self._stamp = stamp
            self.current = server_context(self.options)
            self._reload_error = ""
        except (OSError, OptionError) as error:
            if str(error) == self._reload_error:
                return False  # logged before: files are checked every second
            self._reload_error = str(error)
            log.warning(
                "tls_reload_failed error=%r next='the old certificate stays in use; repair the files'",
                str(error),
            )
            return False
        log.info("tls_reloaded certificate=%s", self.options.certificate)
        return True

    def _stamps(self) -> Stamps:
        return _stamps(self.options.certificate, self.options.key, self.options.client_ca)


class ClientContext:
    """Context of outgoing connections, created for the first one and again when the files have changed."""

    def __init__(self, options: ClientTls) -> None:
        self.options = options
        self._stamp: Stamps = ()
        self._context: ssl.SSLContext | None = None
        self._making = threading.Lock()

    def current(self) -> ssl.SSLContext:
        """Return the context. Blocking: call it in a thread. Raises OptionError if the first context cannot
        be created; later an invalid file keeps the previous context in use."""
        with self._making:
            if self._context is None:
                with contextlib.suppress(OSError):  # a missing file is reported when it is loaded
                    self._stamp = self._stamps()
                self._context = client_context(self.options)
                return self._context
            try:
                stamp = self._stamps()
                if stamp != self._stamp:
                    self._stamp = stamp
                    self._context = client_context(self.options)
                    log.info("tls_reloaded certificate=%s", self.options.certificate)
            except (OSError, OptionError) as error:
                log.warning(
                    "tls_reload_failed error=%r next='the old certificate stays in use; repair the files'",
                    str(error),
                )
            return self._context

    def _stamps(self) -> Stamps:
        return _stamps(self.options.certificate, self.options.key, self.options.ca)


def _stamps(*paths: str | None) -> Stamps:
    return tuple((s.st_mtime_ns, s.st_size) for s in (os.stat(path) for path in paths if path))


def server_context(options: ServerTls) -> ssl.SSLContext:
    """Return a context for listeners. Reads files: not on the event loop."""
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _load_chain(context, options.certificate, options.key, options.key_password, "tls.server")
    if options.alpn:
        context.set_alpn_protocols(list(options.alpn))
    if options.client_ca:
        _load_authorities(context, options.client_ca, "tls.server.trustCertPath")
    if options.client_auth is not ClientAuth.NONE:
        _check_client_auth(options)
        required = options.client_auth is ClientAuth.REQUIRE
        context.verify_mode = ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL
    return context


def _check_client_auth(options: ServerTls) -> None:
    if options.client_auth is not ClientAuth.NONE and not options.client_ca:
        raise OptionError(
            "tls.server.need.client.auth",
            options.client_auth.value,
            "tls.server.trustCertPath as well",
        )


def client_context(options: ClientTls) -> ssl.SSLContext:
    """Return a context for outgoing connections. Reads files: not on the event loop."""
    import ssl

    try:
        # If a file is given, the system's authorities are not trusted.
        context = ssl.create_default_context(cafile=options.ca or None)
    except OSError as error:  # TLS errors are of this type too
        raise OptionError("tls.client.trustCertPath", options.ca, _authorities(error)) from error
    if options.ca:
        # an intermediate authority may be the trusted one
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.check_hostname = options.checks_host
    context.verify_mode = ssl.CERT_REQUIRED if options.verify else ssl.CERT_NONE
    if options.certificate:
        _load_chain(context, options.certificate, options.key, options.key_password, "tls.client")
    return context


def _load_chain(
    context: ssl.SSLContext, certificate: str | None, key: str | None, password: str | None, side: str
) -> None:
    asked = False

    def passphrase() -> str:  # without it OpenSSL would prompt on the terminal and block the server
        nonlocal asked
        asked = True
        return password or ""

    try:
        context.load_cert_chain(certificate or "", key, passphrase)
    except (OSError, ValueError) as error:  # SSLError is an OSError; a passphrase too long is a ValueError
        if asked:
            raise OptionError(
                f"{side}.keyPassword",
                "********" if password else None,
                f"the passphrase of the key in {key or certificate} ({error})",
            ) from error
        raise OptionError(
            f"{side}.certPath", certificate, f"a PEM certificate with its key ({error})"
        ) from error


def _load_authorities(context: ssl.SSLContext, path: str, option: str) -> None:
    try:
        context.load_verify_locations(path)
    except OSError as error:  # TLS errors are of this type too
        raise OptionError(option, path, _authorities(error)) from error


def _authorities(error: OSError) -> str:
    return f"a PEM file of certificate authorities ({error})"
