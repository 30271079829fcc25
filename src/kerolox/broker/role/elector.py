"""Interface of an elector: the name servers, a controller, or a DLedger group give this broker its role."""

from __future__ import annotations

from typing import Protocol

from kerolox.broker.role.value import LeaderAddress
from kerolox.protocol.bodies.stats import ControlledStatus
from kerolox.replication.in_sync_set import InSyncSet


class Elector(Protocol):
    """It changes the role by the methods of :class:`kerolox.broker.role.leadership.Leadership`."""

    @property
    def place(self) -> str | None:
        """Place of this broker in its group, according to its files; None: its address says it."""

    @property
    def refuses_claims(self) -> str:
        """Why other brokers cannot claim to lead; empty: they can, until name servers report a leader."""

    @property
    def in_sync(self) -> InSyncSet | None:
        """The replicas that may be elected; None: the elections have no such set."""

    @property
    def agrees(self) -> bool:
        """True if this broker follows, and its log is known to be the begin of its leader's."""

    async def start(self) -> None:
        """Take part in elections from now on, and register when the broker has a role."""

    async def close(self) -> None:
        """Take no more roles. An elected leader hands over first."""

    def doubt(self) -> None:
        """Ask for the leader again: it is lost, or cannot be copied from."""

    async def before_registering(self, nameserver: str) -> None:
        """Raise if this broker must not register with its role."""

    def reported(self, leader: LeaderAddress | None) -> None:
        """Handle the leader that name servers report, or None."""

    def status(self) -> ControlledStatus | None:
        """Return the status under a controller; None without one."""

    def runtime_info(self) -> dict[str, object]:
        """Return the status of the elections as text, for tools."""
