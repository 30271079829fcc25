"""Access files in the data folder of secured servers: users, the administrator's keys, and certificates.

``access.json`` has users and rules, shared by the servers of one machine. ``tools.yml`` has the keys of the
first user, in the form of RocketMQ's tools. Beyond loopback there are also ``tls-server.pem``, the servers'
key and certificate, and ``tls-ca.pem``, only the certificate, for clients to trust. Files with secrets are
readable only by their owner.
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
ACCESS_IS_ON = "Access control is on. Set these variables for clients:"


class NoFirstUser(KeroloxError):
    """The access file has no enabled administrator."""


class Made(NamedTuple):
    """Created users with their passwords; ``first`` is None if the file existed."""

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
        """Create the users and the key file of the first user, if the access file does not exist.

        Otherwise return only the existing credentials of the servers. Raises a KeroloxError.
        """
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
                f"{self.access} has no enabled Super user. Create one: kerolox access user create "
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
        """Return the access control settings of every server, by RocketMQ's keys."""
        return {
            "authenticationEnabled": "true",
            "authorizationEnabled": "true",
            "accessPath": str(self.access),
            "innerClientAuthenticationCredentials": credentials_text(inner),
        }

    # --- TLS -----------------------------------------------------------------------------------------

    def make_certificate(self) -> None:
        """Create a key and a certificate for all servers of this folder, and a CA file for clients."""
        from kerolox.atomic_file import write_atomically
        from kerolox.net.self_signed import self_signed

        self_signed(str(self.certificate))
        _, begin, rest = self.certificate.read_bytes().partition(b"-----BEGIN CERTIFICATE-----")
        if not self.authority.exists() or self.authority.read_bytes() != begin + rest:
            write_atomically(self.authority, begin + rest)

    def tls_settings(self) -> dict[str, str]:
        """Return the TLS settings of every server, by RocketMQ's keys."""
        return {
            "tls.server.mode": "enforcing",
            "tls.server.certPath": str(self.certificate),
            "tls.server.keyPath": str(self.certificate),
            "tls.client.trustCertPath": str(self.authority),
        }

    # --- settings of clients -------------------------------------------------------------------------

    def client_variables(self, nameserver: str, settings: Mapping[str, str]) -> dict[str, str]:
        """Return the environment variables that commands and clients need. They contain no secret."""
        variables = {"NAMESRV_ADDR": nameserver}
        if self.keys.exists():
            variables["KEROLOX_KEYS_FILE"] = str(self.keys)
        if settings.get("tls.server.mode") == "enforcing":
            variables["KEROLOX_CLIENT_TLS"] = "on"
            if "tls.client.trustCertPath" in settings:
                variables["KEROLOX_CLIENT_TLS_CA"] = settings["tls.client.trustCertPath"]
        return variables

    def client_lines(self, nameserver: str, settings: Mapping[str, str]) -> list[str]:
        """Return these variables as ``export`` lines for a shell, after a heading."""
        import shlex

        variables = self.client_variables(nameserver, settings)
        return [ACCESS_IS_ON, *(f"export {name}={shlex.quote(value)}" for name, value in variables.items())]


def client_tls(settings: Mapping[str, str]) -> ClientTls | None:
    """Return the TLS options of a client of servers with these settings; None without TLS."""
    from kerolox.net.tls import ClientTls

    if settings.get("tls.server.mode") != "enforcing":
        return None
    authority = settings.get("tls.client.trustCertPath")
    return ClientTls(ca=authority, verify=authority is not None)


def credentials_text(own: Credentials) -> str:
    import json

    return json.dumps({"accessKey": own.access_key, "secretKey": own.secret_key})
