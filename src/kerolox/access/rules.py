"""Rules: what a request of each code needs. The tables are in :mod:`kerolox.access.needs`.

Every code that a server answers has a rule; a request without one is refused (tests/access/test_needs.py
holds the tables against the handlers).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, TypeAlias

import msgspec

from kerolox.access.resources import Need
from kerolox.front.requests import Request


class View(Protocol):
    """What a server tells rules of itself."""

    @property
    def cluster(self) -> str: ...

    @property
    def dead_letters_are_topics(self) -> bool:
        """Whether who reads ``%DLQ%group`` needs a right to that topic, and not to the group."""

    def has_topic(self, name: str) -> bool: ...

    def has_group(self, name: str) -> bool: ...


class ClusterView:
    """Of a server that has no topics and groups of its own."""

    dead_letters_are_topics = False

    def __init__(self, cluster: str) -> None:
        self.cluster = cluster

    def has_topic(self, name: str) -> bool:
        return False

    def has_group(self, name: str) -> bool:
        return False


class Rule(msgspec.Struct, frozen=True):
    """``needs`` gives everything that a request touches, from its header, fields and body, as the handler
    will read them. All of it must be allowed."""

    needs: Callable[[Request[Any], View], Iterable[Need]]
    administers: bool = False  # only from the addresses of adminFrom
    for_super: bool = False  # only users that may do everything
    for_everybody: bool = False  # every known user may send it, also when it names nothing
    # All that the needs of a request follow from, beside its code; None for one about which the server has to
    # be asked. Such requests are decided once.
    key: Callable[[Request[Any]], tuple[str | None, str | None] | None] | None = None


Rules: TypeAlias = Mapping[int, Rule]


def nothing(asked: Request[Any], view: View) -> Iterable[Need]:
    return ()


EVERYBODY = Rule(nothing, for_everybody=True)
