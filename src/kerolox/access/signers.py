"""The keys of those who sign often, prepared once."""

from __future__ import annotations

from kerolox.access.book import Book
from kerolox.protocol.signature import Signer, signer


class Signers:
    """Name of a user → what its signatures are checked with. Nothing outlives a change of the book."""

    def __init__(self, book: Book) -> None:
        self._book = book
        self._known: dict[str, Signer] = {}
        book.on_change.append(self._known.clear)

    def of(self, name: str | None) -> Signer | None:
        """None when there is no such user, or it may not sign anything."""
        if name is None:
            return None
        found = self._known.get(name)
        if found is None:
            user = self._book.users.get(name)
            if user is None or not user.is_enabled:
                return None
            found = self._known[name] = signer(user.name, user.password)
        return found
