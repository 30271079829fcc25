"""Prepared keys of users that sign often."""

from __future__ import annotations

from kerolox.access.book import Book
from kerolox.protocol.signature import Signer, signer


class Signers:
    """Signers by user name. Every change of the book empties it."""

    def __init__(self, book: Book) -> None:
        self._book = book
        self._known: dict[str, Signer] = {}
        book.on_change.append(self._known.clear)

    def of(self, name: str | None) -> Signer | None:
        """Return the signer of a user; None if the user does not exist or is disabled."""
        if name is None:
            return None
        found = self._known.get(name)
        if found is None:
            user = self._book.users.get(name)
            if user is None or not user.is_enabled:
                return None
            found = self._known[name] = signer(user.name, user.password)
        return found
