"""A leader's replication: it sends its log to the other members and computes the committed index."""

from __future__ import annotations

import logging

from kerolox.clock import Clock
from kerolox.errors import KeroloxError
from kerolox.protocol.ledger_entry import NO_INDEX
from kerolox.replication.dledger.commit import committed
from kerolox.replication.dledger.dispatcher import Dispatcher
from kerolox.replication.dledger.ledger import Ledger
from kerolox.replication.dledger.member import Member
from kerolox.replication.dledger.network import Network

log = logging.getLogger(__name__)

BARRIER_AGAIN_S = 1.0


class Leading:
    """Begins and ends with the role."""

    def __init__(self, member: Member, ledger: Ledger, network: Network, clock: Clock) -> None:
        self.dispatchers: dict[str, Dispatcher] = {}
        self._member = member
        self._ledger = ledger
        self._network = network
        self._clock = clock
        self._first_own = 0  # index of the first entry of this term
        self._ending: list[Dispatcher] = []
        ledger.on_appended.append(self._appended)
        ledger.on_safe.append(self._count)
        member.on_role.append(self._role_changed)

    def _role_changed(self) -> None:
        if self._member.is_leader:
            self._begin()
        elif self.dispatchers or self._ledger.leads:
            self._end()

    def _begin(self) -> None:
        member, ledger, settings = self._member, self._ledger, self._member.settings
        unknown = ledger.end_index - ledger.committed_index
        # Alone it is its own majority: whatever it has stays.
        self._first_own = 0 if len(settings.peers) == 1 else ledger.end_index + 1
        ledger.lead(member.term)
        self.dispatchers = {
            peer: Dispatcher(settings, peer, member.term, ledger, self._network, self._clock, self._count)
            for peer in settings.others
        }
        log.info(
            "ledger_leads group=%r id=%r term=%d entries=%d..%d not_committed=%d",
            settings.group, member.self_id, member.term, ledger.begin_index, ledger.end_index, unknown,
        )  # fmt: skip
        if unknown and len(settings.peers) > 1:
            self._append_barrier(member.term)
        self._count()

    def _append_barrier(self, term: int) -> None:
        """Now, or as soon as it can be written."""
        if not self._ledger.leads or self._member.term != term or self._ledger.end_index >= self._first_own:
            return
        try:
            self._ledger.append_barrier()
        except KeroloxError as error:
            log.error(
                "barrier_not_written term=%d error=%r next='this broker does not serve before it is: look at "
                "the disk'",
                term, str(error),
            )  # fmt: skip
            self._clock.call_later(BARRIER_AGAIN_S, lambda: self._append_barrier(term))

    def _end(self) -> None:
        for dispatcher in self.dispatchers.values():
            dispatcher.stop()
        self._ending += self.dispatchers.values()
        self.dispatchers = {}
        self._ledger.follow()

    async def settled(self) -> None:
        """Wait until nothing of an earlier term is sent any more."""
        while self._ending:
            await self._ending[-1].close()
            self._ending.pop()

    async def close(self) -> None:
        self._ending += self.dispatchers.values()
        self.dispatchers = {}
        await self.settled()

    def follows(self, peer: str) -> None:
        """It answered a heartbeat."""
        dispatcher = self.dispatchers.get(peer)
        if dispatcher is not None:
            dispatcher.ready()

    def lag(self, peer: str) -> int | None:
        """How many entries it lacks; None while that is not known."""
        dispatcher = self.dispatchers.get(peer)
        if dispatcher is None or (dispatcher.acked == NO_INDEX and self._ledger.end_index != NO_INDEX):
            return None
        return dispatcher.lag

    def _appended(self) -> None:
        for dispatcher in self.dispatchers.values():
            dispatcher.wake()
        self._count()

    def _count(self) -> None:
        if not self._member.is_leader or not self._ledger.leads:
            return
        ledger = self._ledger
        marks = [ledger.safe_index, *(one.acked for one in self.dispatchers.values())]
        index = min(committed(marks, self._first_own, ledger.committed_index), ledger.end_index)
        if index > ledger.committed_index:
            ledger.commit(index)
            for dispatcher in self.dispatchers.values():
                dispatcher.wake()
