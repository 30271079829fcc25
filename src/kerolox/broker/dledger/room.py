"""A broker of a DLedger group: its member, the member's port, and the broker's role that follows from it."""

from __future__ import annotations

import asyncio
import logging
import random

from kerolox.broker.base import Base, Room
from kerolox.broker.dledger.elections import Elections
from kerolox.broker.dledger.member_guard import MemberGuard
from kerolox.broker.nameservers.room import NameServers
from kerolox.broker.role.value import LeaderAddress
from kerolox.metric_text import MetricText
from kerolox.replication.dledger.group import LedgerGroup
from kerolox.replication.dledger.port import MemberNetwork, MemberPort
from kerolox.replication.dledger.settings import GroupSettings
from kerolox.replication.dledger.term_file import Promise, TermFile

log = logging.getLogger(__name__)

ALONE_S = 10.0  # a group of one elects itself sooner


class DLedger(Room):
    """Elector and parts of a broker in a DLedger group."""

    place = None
    in_sync = None  # a majority of the members decides
    refuses_claims = "the members of its DLedger group elect the leader (enableDLegerCommitLog)"

    def __init__(
        self,
        base: Base,
        nameservers: NameServers,
        settings: GroupSettings,
        host: str,
    ) -> None:
        assert base.store.ledger is not None
        self.settings = settings
        self.group: LedgerGroup | None = None
        self._store = base.store
        self._ledger = base.store.ledger
        self._leadership = base.leadership
        self._clock = base.clock
        self._registrations = nameservers.registrations
        self._file = TermFile(self._ledger.directory, base.store.files)
        options = base.options
        self._network = MemberNetwork(
            settings, base.clock, tls=options.own_tls, credentials=options.own_credentials
        )
        guard = MemberGuard(base.guard, options.trusted_networks) if base.guard.wants_signatures else None
        self._port = MemberPort(settings, host=host, clock=base.clock, tls=options.tls, guard=guard)
        self._elections: Elections | None = None
        self._led = asyncio.Event()

    async def bind(self) -> None:
        """Bind the member's port. Raises ListenFailed."""
        await self._port.bind()

    async def start(self) -> None:
        """Vote, follow or lead from now on."""
        loop, urgent = asyncio.get_running_loop(), self._store.urgent
        promise = await loop.run_in_executor(urgent, self._file.load)

        async def save(promise: Promise) -> None:
            # Completed even if the caller is cancelled, because a half-done save could not be told from a
            # complete one.
            await asyncio.shield(loop.run_in_executor(urgent, self._file.save, promise))

        group = self.group = LedgerGroup(
            self.settings,
            self._ledger,
            self._network,
            promise,
            save,
            clock=self._clock,
            chance=random.Random(),
        )
        self._elections = Elections(
            self._store, self._ledger, self._leadership, group.member, self._clock,
            took_role=self._took, ask=self._registrations.register_all,
        )  # fmt: skip
        self._elections.start()
        await self._port.start(group)
        group.start()
        log.info(
            "ledger_member group=%r id=%r term=%d voted_for=%r entries=%d..%d members=%d",
            self.settings.group, self.settings.self_id, promise.term, promise.voted_for,
            self._ledger.begin_index, self._ledger.end_index, len(self.settings.peers),
        )  # fmt: skip
        if self._ledger.alone:
            log.warning(
                "ledger_alone group=%r id=%r next='name three members in dLegerPeers, or use a controller: a "
                "group of one has no second copy of its data'",
                self.settings.group, self.settings.self_id,
            )  # fmt: skip
            await self._lead_alone()

    async def _lead_alone(self) -> None:
        """Wait until this only member leads, so that the broker serves when its start returns."""
        try:
            async with asyncio.timeout(ALONE_S):
                await self._led.wait()
        except TimeoutError:
            log.warning(
                "ledger_no_leader group=%r next='retried; check the log for errors'", self.settings.group
            )

    async def close(self) -> None:
        """Take no more roles, because the broker closes. A leader first transfers its leadership."""
        if self.group is not None:
            await self.group.transfer.leave()
        if self._elections is not None:
            await self._elections.close()

    async def leave(self) -> None:
        """Stop voting, replicating and answering."""
        await self.close()
        if self.group is not None:
            await self.group.close()
        await self.hang_up()

    async def hang_up(self) -> None:
        """Close all connections to other members at once."""
        await self._network.close()
        await self._port.close()

    def doubt(self) -> None:
        self._registrations.register_all()  # the answers name the leader

    async def before_registering(self, nameserver: str) -> None: ...

    def reported(self, leader: LeaderAddress | None) -> None:
        self._leadership.led_by(leader)

    def _took(self) -> None:
        if self._leadership.leads:
            self._led.set()
        self._registrations.begin(self)

    # --- for operators and tools --------------------------------------------------------------------------

    @property
    def agrees(self) -> bool:
        """True if this member follows a leader and shares its log."""
        return self.group is not None and self.group.member.is_follower

    def status(self) -> None:
        return None

    def runtime_info(self) -> dict[str, object]:
        """Return the status of this member as text, for tools."""
        if self.group is None:
            return {}
        member = self.group.member
        shown: dict[str, object] = {
            "ledgerGroup": self.settings.group,
            "ledgerId": self.settings.self_id,
            "ledgerRole": member.role_name,
            "ledgerTerm": member.term,
            "ledgerLeader": member.leader or "",
            "ledgerCommittedIndex": self._ledger.committed_index,
            "ledgerEndIndex": self._ledger.end_index,
        }
        if self._leadership.waits_for:
            shown["waitsFor"] = self._leadership.waits_for
        if member.is_leader:
            shown["ledgerFollowers"] = ";".join(
                f"{peer}:{dispatcher.stage.value}:{dispatcher.acked}"
                for peer, dispatcher in self.group.leading.dispatchers.items()
            )
        return shown

    def metrics(self, out: MetricText) -> None:
        if self.group is None:
            return
        member, ledger = self.group.member, self._ledger
        out.metric(
            "kerolox_leads", "gauge", "1 if this broker leads its group.", [({}, self._leadership.leads)]
        )
        out.metric(
            "kerolox_ledger_term", "gauge", "The term of this member's DLedger group.", [({}, member.term)]
        )
        out.metric(
            "kerolox_ledger_end_index",
            "gauge",
            "The last entry of this member's log.",
            [({}, ledger.end_index)],
        )
        out.metric(
            "kerolox_ledger_committed_index", "gauge", "The last entry that a majority is known to have.",
            [({}, ledger.committed_index)],
        )  # fmt: skip
        out.metric(
            "kerolox_ledger_follower_behind", "gauge", "Of a leader: entries that a member lacks.",
            [({"member": peer}, one.lag) for peer, one in self.group.leading.dispatchers.items()],
        )  # fmt: skip
        out.metric(
            "kerolox_ledger_cuts_refused_total", "counter",
            "Leaders that asked this member to drop entries that were committed.",
            [({}, self.group.pushes.cuts_refused)],
        )  # fmt: skip
