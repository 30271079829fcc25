"""Access files in the data folder of secured servers: users, the administrator's keys, and certificates.

``access.json`` has users and rules, shared by the servers of one machine. ``tools.yml`` has the keys of the
first user, in the form of RocketMQ's tools. Beyond loopback there are also ``tls-server.pem``, the servers'
key and certificate, and ``tls-ca.pem``, only the certificate, for clients to trust. Files with secrets are
readable only by their owner.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from kerolox.access.book import Book
from kerolox.access.book_file import BookBroken, decode_book, lock_book, save_book
from kerolox.access.key_file import FIRST_USER, INNER_USER, ClientFile, new_secret
from kerolox.atomic_file import write_atomically
from kerolox.errors import KeroloxError
from kerolox.net.address import is_loopback
from kerolox.net.self_signed import self_signed
from kerolox.net.signing import Credentials
from kerolox.net.tls import ClientTls

ACCESS_IS_ON = "Access control is on. Set these variables for clients:"


class NoFirstUser(KeroloxError):
    """The access file has no enabled administrator."""


class Made(NamedTuple):
    """Created users with their passwords; ``first`` is None if the file existed."""

    first: Credentials | None
    inner: Credentials


class AccessFolder:
    """Folder with the access files of the servers of one machine."""

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

    def secured_settings(
        self, hosts: Iterable[str], chosen: Mapping[str, str], *, make: bool = True
    ) -> dict[str, str]:
        """Return the settings of servers that require authentication; beyond loopback they accept only TLS.

        ``chosen`` are the operator's settings, of which those of TLS apply. With ``make``, create missing
        users and certificates; without it, write nothing.
        """
        inner = self.make().inner if make else Credentials("inner", "made at the start")
        settings = self.settings(inner)
        if not all(map(is_loopback, hosts)):
            settings["tls.server.mode"] = "enforcing"
            if (
                chosen.get("tls.server.mode", "enforcing") == "enforcing"
                and "tls.server.certPath" not in chosen
            ):
                if make:
                    self.make_certificate()
                settings |= self.tls_settings()
        return settings | {key: value for key, value in chosen.items() if key.startswith("tls.")}

    # --- TLS -----------------------------------------------------------------------------------------

    def make_certificate(self) -> None:
        """Create a key and a certificate for all servers of this folder, and a CA file for clients."""
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
        variables = self.client_variables(nameserver, settings)
        return [ACCESS_IS_ON, *(f"export {name}={shlex.quote(value)}" for name, value in variables.items())]


def client_tls(settings: Mapping[str, str]) -> ClientTls | None:
    """Return the TLS options of a client of servers with these settings; None without TLS."""
    if settings.get("tls.server.mode") != "enforcing":
        return None
    authority = settings.get("tls.client.trustCertPath")
    return ClientTls(ca=authority, verify=authority is not None)


def credentials_text(own: Credentials) -> str:
    return json.dumps({"accessKey": own.access_key, "secretKey": own.secret_key})
