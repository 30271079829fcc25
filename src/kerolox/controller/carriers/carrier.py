"""Interface of the carriers, which store the controllers' state and decide which controller may change it.

A lease can claim that a controller leads and be wrong: the controller may have been stalled while another one
took over. So a lease is never sufficient. Every commit compares the token of the leadership and the revision
of the group with those the decision was based on. If either differs, nothing is changed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

import msgspec

from kerolox.controller.state import ControllerState, ReplicaGroup
from kerolox.errors import KeroloxError

NEW = 0  # revision of a group that does not exist


class LeadingController(msgspec.Struct, frozen=True):
    """The leading controller. Its token is unique over time."""

    id: str
    address: str
    token: int


class StoredState(msgspec.Struct, frozen=True):
    """All groups and their revisions."""

    state: ControllerState
    revisions: dict[str, int]


class Deposed(KeroloxError):
    """Error: another controller leads. Nothing was changed."""

    def __init__(self, token: int, now: str) -> None:
        super().__init__(f"the leadership with token {token} is over, {now}: nothing was changed")


class RevisionConflict(KeroloxError):
    """Error: the group has changed since it was read. Nothing was changed by this commit."""

    retriable = True

    def __init__(self, group: str, revision: int, found: int) -> None:
        super().__init__(
            f"group {group!r} has revision {found}, and the change was decided for {revision}: nothing was "
            "changed"
        )


class Carrier(Protocol):
    """Storage of the state. Each controller has its own carrier; carriers may share a backend."""

    async def open(self) -> None:
        """Open the storage. Raises KeroloxError if the stored state is unusable."""

    async def close(self) -> None:
        """Resign leadership and close the storage."""

    async def load(self) -> StoredState:
        """Return everything that was committed."""

    async def commit(self, token: int, name: str, revision: int, group: ReplicaGroup | None) -> int:
        """Replace one group, or remove it (None), if the caller still leads and the group has this revision.
        Return the new revision once it is durable.

        Raises Deposed or RevisionConflict if nothing was changed. After any other KeroloxError the result is
        unknown: load again before the next decision.
        """

    async def lead(self, id: str, address: str) -> int:
        """Wait until this controller leads. Return its token."""

    def holds(self, token: int) -> bool:
        """Return whether no other controller can lead yet, by this process's clock. Checked before each
        answer: a controller must stop answering as leader before another one leads."""

    async def leader(self) -> LeadingController | None:
        """Return the leading controller."""

    def watch(self) -> AsyncIterator[LeadingController | None]:
        """Yield the leading controller, now and after each change."""
