"""What a secured server has beside its data: users, the keys of the first one, and what servers say to each
other.

``access.json`` are users and rules; servers of one machine share it. ``tools.yml`` are the keys of the first
user, in the form of RocketMQ's tools. Beyond loopback there are ``tls-server.pem``, the servers' key and
certificate, and ``tls-ca.pem``, the certificate alone, for clients to trust. Nobody but the owner may read
what is secret.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from kerolox.errors import KeroloxError

if TYPE_CHECKING:
    from kerolox.access.book import Book
    from kerolox.net.signing import Credentials
    from kerolox.net.tls import ClientTls

FIRST_USER = "admin"
INNER_USER = "inner"
ACCESS_IS_ON = "Access control is on. What a client needs, in a shell:"


class NoFirstUser(KeroloxError):
    """Nobody could administer the servers."""


class Made(NamedTuple):
    """Users that were made, with their passwords."""

    first: Credentials | None
    inner: Credentials


class AccessFolder:
    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.access = self.path / "access.json"
        self.keys = self.path / "tools.yml"
        self.certificate = self.path / "tls-server.pem"
        self.authority = self.path / "tls-ca.pem"

    @property
    def is_there(self) -> bool:
        return self.access.exists()

    def make(self, first: str = FIRST_USER, inner: str = INNER_USER) -> Made:
        """Users and the keys of the first one, where there are none yet; of those that are there, who the
        servers are. Raises a KeroloxError."""
        from kerolox.access.book import Book
        from kerolox.access.book_file import lock_book, save_book
        from kerolox.cli.access_secrets import ClientFile, new_secret
        from kerolox.net.signing import Credentials

        self.path.mkdir(parents=True, exist_ok=True)
        alone = lock_book(str(self.access))
        try:
            if self.is_there:
                return Made(None, self._known(inner))
            book = Book()
            made = Made(Credentials(first, new_secret()), Credentials(inner, new_secret()))
            assert made.first is not None
            for one in made:
                assert one is not None
                book.ensure_super(one.access_key, one.secret_key)
            keys = ClientFile(self.keys, first, made.first.secret_key)
            save_book(str(self.access), book)
            keys.keep()
            return made
        finally:
            os.close(alone)

    def _known(self, inner: str) -> Credentials:
        from kerolox.access.book_file import save_book
        from kerolox.cli.access_secrets import new_secret
        from kerolox.net.signing import Credentials

        book = self.read()
        if not any(user.is_super and user.is_enabled for user in book.users.values() if user.name != inner):
            raise NoFirstUser(
                f"{self.access} has no Super user that is enabled. Make one: kerolox access user create "
                f"{FIRST_USER} --type Super --generate --file {self.access}"
            )
        if book.ensure_super(inner, new_secret()):
            save_book(str(self.access), book)
        return Credentials(inner, book.users[inner].password)

    def read(self) -> Book:
        from kerolox.access.book_file import BookBroken, decode_book

        try:
            return decode_book(self.access.read_bytes())
        except KeroloxError as error:
            raise BookBroken(str(self.access), error) from error

    def settings(self, inner: Credentials) -> dict[str, str]:
        """What every server is told, by RocketMQ's keys."""
        return {
            "authenticationEnabled": "true",
            "authorizationEnabled": "true",
            "accessPath": str(self.access),
            "innerClientAuthenticationCredentials": credentials_text(inner),
        }

    # --- TLS -----------------------------------------------------------------------------------------

    def make_certificate(self) -> None:
        """A key and a certificate for all servers of this folder, and a copy for clients."""
        from kerolox.atomic_file import write_atomically
        from kerolox.net.self_signed import self_signed

        self_signed(str(self.certificate))
        _, begin, rest = self.certificate.read_bytes().partition(b"-----BEGIN CERTIFICATE-----")
        if not self.authority.exists() or self.authority.read_bytes() != begin + rest:
            write_atomically(self.authority, begin + rest)

    def tls_settings(self) -> dict[str, str]:
        """What servers are told of it, by RocketMQ's keys."""
        return {
            "tls.server.mode": "enforcing",
            "tls.server.certPath": str(self.certificate),
            "tls.server.keyPath": str(self.certificate),
            "tls.client.trustCertPath": str(self.authority),
        }

    # --- what clients need ---------------------------------------------------------------------------

    def client_variables(self, nameserver: str, settings: Mapping[str, str]) -> dict[str, str]:
        """The environment in which commands and clients are let in. No secret is in it."""
        variables = {"NAMESRV_ADDR": nameserver}
        if self.keys.exists():
            variables["KEROLOX_KEYS_FILE"] = str(self.keys)
        if settings.get("tls.server.mode") == "enforcing":
            variables["KEROLOX_CLIENT_TLS"] = "on"
            if "tls.client.trustCertPath" in settings:
                variables["KEROLOX_CLIENT_TLS_CA"] = settings["tls.client.trustCertPath"]
        return variables

    def client_lines(self, nameserver: str, settings: Mapping[str, str]) -> list[str]:
        """The same as lines for a shell."""
        import shlex

        variables = self.client_variables(nameserver, settings)
        return [ACCESS_IS_ON, *(f"export {name}={shlex.quote(value)}" for name, value in variables.items())]


def client_tls(settings: Mapping[str, str]) -> ClientTls | None:
    """How to speak to servers with these settings."""
    from kerolox.net.tls import ClientTls

    if settings.get("tls.server.mode") != "enforcing":
        return None
    authority = settings.get("tls.client.trustCertPath")
    return ClientTls(ca=authority, verify=authority is not None)


def credentials_text(own: Credentials) -> str:
    import json

    return json.dumps({"accessKey": own.access_key, "secretKey": own.secret_key})
