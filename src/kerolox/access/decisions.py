"""What rules have decided of late, kept beside the caller that asked.

A consumer asks for the same topic with the same group a thousand times a second, and a user may have a
thousand rules. Nothing that is kept outlives a change of the book.
"""

from __future__ import annotations

from kerolox.access.book import Book
from kerolox.access.policies import Decision
from kerolox.access.resources import Need
from kerolox.access.sources import address_of
from kerolox.front.caller import Caller

NEEDS_MAX = 256  # kept for each caller; past that they are decided anew

_DECIDED = "decided"  # of a caller: version of the book, name of the user, need → decision


class Decisions:
    def __init__(self, book: Book) -> None:
        self._book = book

    def of(self, name: str, caller: Caller, need: Need) -> Decision:
        """What the rules of a user say about a need of a request from this caller."""
        book = self._book
        kept: tuple[int, str, dict[Need, Decision]] | None = caller.data.get(_DECIDED)
        if kept is None or kept[0] != book.version or kept[1] != name:
            kept = caller.data[_DECIDED] = (book.version, name, {})
        decided = kept[2]
        found = decided.get(need)
        if found is None:
            if len(decided) >= NEEDS_MAX:
                decided.clear()
            found = decided[need] = book.rules_of(name).decide(need, address_of(caller))
        return found
