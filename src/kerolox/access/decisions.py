"""Recent decisions of rules, cached per connection.

A consumer may ask for the same topic with the same group a thousand times a second, and a user may have a
thousand rules. Every change of the book empties the cache.
"""

from __future__ import annotations

from collections.abc import Hashable

from kerolox.access.book import Book
from kerolox.access.policies import Decision
from kerolox.access.sources import address_of
from kerolox.front.caller import Caller
from kerolox.front.needs import Need

NAME_LENGTH_MAX = 255  # longest name in the cache; no topic or group has a longer one
KEPT_MAX = 256  # needs, and requests, per connection; the cache is emptied at this limit

_DECIDED = "decided"  # key in ``caller.data``: Decided


class Decided:
    """Cached decisions for one user on one connection, by one version of the book."""

    __slots__ = ("allowed", "name", "needs", "version")

    def __init__(self, version: int, name: str) -> None:
        self.version = version
        self.name = name
        self.needs: dict[Need, Decision] = {}
        self.allowed: set[Hashable] = set()  # requests, by their code and the key of their rule


class Decisions:
    def __init__(self, book: Book) -> None:
        self._book = book

    def kept(self, name: str, caller: Caller) -> Decided:
        """Return the cached decisions for a user on this connection that are still valid."""
        found: Decided | None = caller.data.get(_DECIDED)
        if found is None or found.version != self._book.version or found.name != name:
            found = caller.data[_DECIDED] = Decided(self._book.version, name)
        return found

    def of(self, name: str, caller: Caller, need: Need) -> Decision:
        """Return the decision of a user's rules about a need of a request from this caller."""
        needs = self.kept(name, caller).needs
        found = needs.get(need)
        if found is None:
            found = self._book.rules_of(name).decide(need, address_of(caller))
            if len(need.resource.name) <= NAME_LENGTH_MAX:
                if len(needs) >= KEPT_MAX:
                    needs.clear()
                needs[need] = found
        return found

    def keep_allowed(self, name: str, caller: Caller, request: Hashable) -> None:
        """Remember that every need of requests with this code and key is allowed."""
        words = request if isinstance(request, tuple) else (request,)
        if any(isinstance(word, str) and len(word) > NAME_LENGTH_MAX for word in words):
            return
        allowed = self.kept(name, caller).allowed
        if len(allowed) >= KEPT_MAX:
            allowed.clear()
        allowed.add(request)
