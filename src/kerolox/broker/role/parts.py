"""Parts that begin and end with the role of the broker: interfaces."""

from __future__ import annotations

from typing import Protocol


class Part(Protocol):
    """A part that does work of the leader only."""

    async def lead(self) -> None:
        """Find this part's progress and continue from there. The store can be written."""

    async def follow(self) -> None:
        """Begin nothing new, and return when all work in progress has ended. The store can still be
        written."""


class ActingPart(Part, Protocol):
    """A part that can do its work without writing to this broker's log."""

    async def act(self) -> None:
        """Find this part's progress and continue from there, storing messages elsewhere. Ended by
        :meth:`follow`."""


class Confirming(Protocol):
    """The replicas that must have a message before it is confirmed."""

    def rest(self) -> None:
        """Confirm nothing more: this broker does not lead, or could not."""


class Link(Protocol):
    """Replication from the leader while this broker follows."""

    async def start(self) -> None: ...

    async def stop(self) -> None:
        """Return when nothing more will be appended."""

    def lead_by(self, ha_address: str, broker_address: str) -> None:
        """Replicate from the leader with these addresses; empty: no leader is known."""

    def part(self) -> None:
        """Forget the last leader. Called while the link is stopped."""


class Fit(Protocol):
    """Repair of tables that do not match the log, when this broker takes over from another one."""

    def lead(self) -> None:
        """Repair the tables. All confirmed records are in the queues, and no message has been accepted
        yet."""

    def act(self) -> None:
        """Repair the tables of a follower that begins to act for its leader."""
