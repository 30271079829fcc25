"""What rules have decided of late, kept beside the caller that asked.

A consumer asks for the same topic with the same group a thousand times a second, and a user may have a
thousand rules. Nothing that is kept outlives a change of the book.
"""

from __future__ import annotations

from collections.abc import Hashable

from kerolox.access.book import Book
from kerolox.access.policies import Decision
from kerolox.access.resources import Need
from kerolox.access.sources import address_of
from kerolox.front.caller import Caller

NAME_LENGTH_MAX = 255  # of what is kept; no topic and no group has a longer name
KEPT_MAX = 256  # needs, and requests, for each caller; past that they are decided anew

_DECIDED = "decided"  # of a caller: Decided


class Decided:
    """Of one user at one caller, by one version of the book."""

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
        """What was decided for a user at this caller and is still so."""
        found: Decided | None = caller.data.get(_DECIDED)
        if found is None or found.version != self._book.version or found.name != name:
            found = caller.data[_DECIDED] = Decided(self._book.version, name)
        return found

    def of(self, name: str, caller: Caller, need: Need) -> Decision:
        """What the rules of a user say about a need of a request from this caller."""
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
        """All that such a request needs is allowed."""
        words = request if isinstance(request, tuple) else (request,)
        if any(isinstance(word, str) and len(word) > NAME_LENGTH_MAX for word in words):
            return
        allowed = self.kept(name, caller).allowed
        if len(allowed) >= KEPT_MAX:
            allowed.clear()
        allowed.add(request)
