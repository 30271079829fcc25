"""Needs: the resources that a request accesses, and the actions on them. The row of its code declares them.

The texts of kinds and actions are RocketMQ's (5.3). Access control decides whether a user has the rights
(:mod:`kerolox.access`).
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol

import msgspec

from kerolox.front.requests import Request


class Kind(enum.Enum):
    __hash__ = object.__hash__  # enum's own is a Python call, paid in every check of a right

    CLUSTER = "Cluster"
    NAMESPACE = "Namespace"  # rules may name it; no request needs one
    TOPIC = "Topic"
    GROUP = "Group"


class Action(enum.Enum):
    __hash__ = object.__hash__

    ALL = "All"  # only in rules: every action
    PUB = "Pub"
    SUB = "Sub"
    CREATE = "Create"
    UPDATE = "Update"
    DELETE = "Delete"
    GET = "Get"
    LIST = "List"


class Resource(NamedTuple):
    """One object that a request accesses."""

    kind: Kind
    name: str

    def __str__(self) -> str:
        return f"{self.kind.value}:{self.name}"


class Need(NamedTuple):
    """A right that a request needs: at least one of these actions on a resource."""

    resource: Resource
    actions: frozenset[Action]

    def __str__(self) -> str:
        return f"{'/'.join(sorted(action.value for action in self.actions))} on {self.resource}"


class View(Protocol):
    """Facts about a server that needs depend on."""

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
    """The rule for requests of a code. ``needs`` returns everything that a request accesses, from its header,
    fields and body, as the handler will decode them. All of it must be allowed."""

    needs: Callable[[Request[Any], View], Iterable[Need]]
    administers: bool = False  # accepted only from the addresses of adminFrom
    for_super: bool = False  # only for Super users
    for_everybody: bool = False  # any known user may send it, even if it names no resource
    # Returns the values that, with the code, determine the needs; requests with an equal key share one
    # decision. None: the needs also depend on the server's state.
    key: Callable[[Request[Any]], tuple[str | None, str | None] | None] | None = None


def nothing(asked: Request[Any], view: View) -> Iterable[Need]:
    return ()


EVERYBODY = Rule(nothing, for_everybody=True)
