"""Rules: the needs of a request, by request code. The tables are in :mod:`kerolox.access.needs`.

Every code that a server answers has a rule; a request without one is rejected.
tests/access/test_needs_tables.py compares the tables with the handlers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, TypeAlias

import msgspec

from kerolox.access.resources import Need
from kerolox.front.requests import Request


class View(Protocol):
    """Facts about a server that rules need."""

    @property
    def cluster(self) -> str: ...

    @property
    def dead_letters_are_topics(self) -> bool:
        """True if reading ``%DLQ%group`` requires a right to that topic instead of to the group."""

    def has_topic(self, name: str) -> bool: ...

    def has_group(self, name: str) -> bool: ...


class ClusterView:
    """View of a server that has no topics or groups."""

    dead_letters_are_topics = False

    def __init__(self, cluster: str) -> None:
        self.cluster = cluster

    def has_topic(self, name: str) -> bool:
        return False

    def has_group(self, name: str) -> bool:
        return False


class Rule(msgspec.Struct, frozen=True):
    """``needs`` returns everything that a request accesses, from its header, fields and body, as the handler
    will decode them. All of it must be allowed."""

    needs: Callable[[Request[Any], View], Iterable[Need]]
    administers: bool = False  # accepted only from the addresses of adminFrom
    for_super: bool = False  # only for Super users
    for_everybody: bool = False  # any known user may send it, even if it names no resource
    # Returns the values that, with the code, determine the needs; requests with an equal key share one
    # decision. None: the needs also depend on the server's state.
    key: Callable[[Request[Any]], tuple[str | None, str | None] | None] | None = None


Rules: TypeAlias = Mapping[int, Rule]


def nothing(asked: Request[Any], view: View) -> Iterable[Need]:
    return ()


EVERYBODY = Rule(nothing, for_everybody=True)
