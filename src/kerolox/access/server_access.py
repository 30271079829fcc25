"""Access control of one server: the users' book, its file, and the guard."""

from __future__ import annotations

import logging

from kerolox.access.book import Book
from kerolox.access.book_file import BookFile
from kerolox.access.guard import Guard
from kerolox.access.options import AccessOptions
from kerolox.clock import Clock
from kerolox.errors import OptionError
from kerolox.front.needs import View
from kerolox.net.signing import Credentials

log = logging.getLogger(__name__)


class ServerAccess:
    """Access control of a server, ready after :meth:`open`. ``path`` is used if the options name no file."""

    def __init__(self, options: AccessOptions, view: View, clock: Clock, path: str = "") -> None:
        options.check_access()
        self.file = BookFile(options.access_path or path, clock)
        self.guard = Guard(self.file.book, view, options, clock)
        self._options = options

    @property
    def book(self) -> Book:
        return self.file.book

    async def open(self) -> None:
        """Read the users and create those that the options name. Raises if no user could sign in."""
        options = self._options
        if not self.file.path:
            if options.authentication:
                raise OptionError(
                    "accessPath",
                    "",
                    "a file of users, because authenticationEnabled=true. Create one: kerolox access init",
                )
            return
        await self.file.load()
        await self._bring()
        named = [own for own in (options.first_credentials, options.own_credentials) if own is not None]
        if options.authentication:
            await self._make(named)
            if not self.book.users:
                raise OptionError(
                    "authenticationEnabled",
                    True,
                    f"at least one user: {self.file.path} has none, so every request would be rejected. Run "
                    "kerolox access init, or set initAuthenticationUser",
                )
            self.file.watch()

    async def close(self) -> None:
        await self.file.close()

    async def _bring(self) -> None:
        """Import users from elsewhere; called before the check that there is one."""

    async def _make(self, named: list[Credentials]) -> None:
        missing = [own for own in named if own.access_key not in self.book.users]
        if missing:

            def make(book: Book) -> None:
                for own in missing:
                    book.ensure_super(own.access_key, own.secret_key)

            await self.file.change(make)
            log.info("users_made names=%s path=%s", [own.access_key for own in missing], self.file.path)
        own = self._options.own_credentials
        if own is not None:
            user = self.book.users[own.access_key]
            if user.password != own.secret_key or not user.is_super or not user.is_enabled:
                log.warning(
                    "inner_user_differs name=%r next='innerClientAuthenticationCredentials must name an "
                    "enabled Super user with its password; otherwise servers reject each other'",
                    user.name,
                )  # fmt: skip
