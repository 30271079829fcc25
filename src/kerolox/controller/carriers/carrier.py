"""Where the state of controllers lives, and who of them may change it: the interface of its carriers.

A lease may tell a controller that it leads, and be wrong: the controller may have been stalled, and another
one leads by now. So being told is never enough. Every commit compares: does the one that commits still lead,
by its token, and is the group still what it was when the change was decided, by its revision? If either is
not so, nothing is changed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

import msgspec

from kerolox.controller.state import ControllerState, ReplicaGroup
from kerolox.errors import KeroloxError

NEW = 0  # the revision of a group that is not there


class LeadingController(msgspec.Struct, frozen=True):
    """The controller that decides. Nobody had its token before it, and nobody gets it after."""

    id: str
    address: str
    token: int


class StoredState(msgspec.Struct, frozen=True):
    """All groups, and the revision of each."""

    state: ControllerState
    revisions: dict[str, int]


class Deposed(KeroloxError):
    """Another controller leads. Nothing was changed."""

    def __init__(self, token: int, now: str) -> None:
        super().__init__(f"the leadership with token {token} is over, {now}: nothing was changed")


class RevisionConflict(KeroloxError):
    """The group was changed since it was read. Nothing was changed now."""

    retriable = True

    def __init__(self, group: str, revision: int, found: int) -> None:
        super().__init__(
            f"group {group!r} has revision {found}, and the change was decided for {revision}: nothing was "
            "changed"
        )


class Carrier(Protocol):
    """Keeps the state. One for each controller; they may share what is behind them."""

    async def open(self) -> None:
        """Raises KeroloxError when what is there cannot be used."""

    async def close(self) -> None:
        """Give up leading, too."""

    async def load(self) -> StoredState:
        """All that was committed."""

    async def commit(self, token: int, name: str, revision: int, group: ReplicaGroup | None) -> int:
        """Replace one group, or drop it, if the caller still leads and the group has this revision. The new
        revision, when it is durable. Raises Deposed and RevisionConflict: nothing was changed. Any other
        KeroloxError leaves open whether it was: load again before the next decision."""

    async def lead(self, id: str, address: str) -> int:
        """Wait until this controller leads. Its token."""

    def holds(self, token: int) -> bool:
        """Whether nobody else can lead yet, by the clock of this process. Asked before each answer: what a
        controller says as leader must end before another one leads."""

    async def leader(self) -> LeadingController | None:
        """Who leads now."""

    def watch(self) -> AsyncIterator[LeadingController | None]:
        """Who leads, now and each time it changes."""
