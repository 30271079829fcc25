"""Handing leadership over: by request of an operator, or because another member is preferred.

The leader takes no more messages, tells the other one how far its log has to reach, and goes on if that one
does not lead in time. The other one waits until it has that much, and then is a candidate before anyone else.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from kerolox.clock import Clock
from kerolox.errors import KeroloxError
from kerolox.protocol.bodies.dledger import LedgerAnswer, LedgerCode, LedgerStatus, TransferRequest
from kerolox.replication.dledger.bell import Bell
from kerolox.replication.dledger.elections import Elections
from kerolox.replication.dledger.leading import Leading
from kerolox.replication.dledger.ledger import Ledger
from kerolox.replication.dledger.member import Member
from kerolox.replication.dledger.network import Network
from kerolox.replication.dledger.push import Pushes

log = logging.getLogger(__name__)

PREFERRED_LOOK_S = 1.0
TAKEN_S = 2.0  # a round of votes takes less
Status = LedgerStatus


def may_hand_over(member: Member, asked: TransferRequest, lag: int | None, *, handing: bool) -> Status | None:
    """Why the leader does not; None when it does."""
    to = asked.transferee_id
    if not member.is_leader:
        return Status.NOT_LEADER
    if asked.term != member.term:
        return Status.INCONSISTENT_TERM
    if to == member.self_id or to not in member.settings.peers:
        return Status.UNKNOWN_MEMBER
    if handing:
        return Status.LEADER_TRANSFERRING
    if lag is None or lag >= member.settings.transfer_lag_max:
        return Status.FALL_BEHIND_TOO_MUCH
    return None


def may_take_over(member: Member, asked: TransferRequest) -> Status | None:
    """Why a follower does not; None when it does."""
    if asked.term != member.term:
        return Status.INCONSISTENT_TERM
    if not member.is_follower:
        return Status.NOT_FOLLOWER
    if asked.leader_id != member.leader:
        return Status.INCONSISTENT_LEADER
    return None


def preferred_follower(
    member: Member, lag: Callable[[str], int | None], is_there: Callable[[str], bool]
) -> str | None:
    """To whom a leader that is not preferred hands over by itself: who lacks least."""
    preferred = member.settings.preferred
    if not member.is_leader or not preferred or member.self_id in preferred:
        return None
    return nearest(member, preferred, lag, is_there)


def nearest(
    member: Member, peers: Iterable[str], lag: Callable[[str], int | None], is_there: Callable[[str], bool]
) -> str | None:
    """Of those that could lead at once, the one that lacks least."""
    lags = {peer: lag(peer) for peer in peers if is_there(peer)}
    known = {peer: value for peer, value in lags.items() if value is not None}
    near = [peer for peer, value in known.items() if value < member.settings.transfer_lag_max]
    return min(near, key=lambda peer: known[peer], default=None)


class Transfer:
    """Both sides of it."""

    def __init__(
        self,
        member: Member,
        ledger: Ledger,
        network: Network,
        pushes: Pushes,
        leading: Leading,
        elections: Elections,
        clock: Clock,
    ) -> None:
        self._member = member
        self._ledger = ledger
        self._network = network
        self._leading = leading
        self._elections = elections
        self._clock = clock
        self._handing = False
        self._bells: list[Bell] = []  # of who waits for entries, or for the role
        pushes.on_grown.append(self._ring)
        member.on_role.append(self._ring)

    async def handle(self, asked: TransferRequest) -> LedgerAnswer:
        own = self._member.self_id
        if asked.transfer_id == own:
            return await self._hand_over(asked)
        if asked.transferee_id == own:
            return await self._take_over(asked)
        return LedgerAnswer(code=Status.UNEXPECTED_ARGUMENT, term=self._member.term)

    async def run_preferred(self) -> None:
        """Hand over to a preferred member whenever one could lead."""
        member = self._member
        while True:
            await self._clock.sleep(PREFERRED_LOOK_S)
            to = preferred_follower(member, self._leading.lag, self._elections.heard_lately)
            if to is not None and not self._handing:
                answer = await self._hand_over(self._asked(to))
                log.info("preferred_leader to=%r code=%d", to, answer.code)

    async def leave(self) -> None:
        """This member stops: another one leads first, if one can, instead of after six seconds of silence."""
        member = self._member
        if not member.is_leader or self._handing:
            return
        settings = member.settings
        lag, is_there = self._leading.lag, self._elections.heard_lately
        to = nearest(member, settings.preferred, lag, is_there) or nearest(
            member, settings.others, lag, is_there
        )
        if to is not None:
            answer = await self._hand_over(self._asked(to))
            log.info("leader_leaves to=%r code=%d", to, answer.code)

    def _asked(self, to: str) -> TransferRequest:
        own = self._member.self_id
        return TransferRequest(
            group=self._member.settings.group,
            leader_id=own,
            remote_id=own,
            term=self._member.term,
            transfer_id=own,
            transferee_id=to,
        )

    async def _hand_over(self, asked: TransferRequest) -> LedgerAnswer:
        member, settings = self._member, self._member.settings
        to = asked.transferee_id
        lag = self._leading.lag(to) if isinstance(to, str) and self._elections.heard_lately(to) else None
        refused = may_hand_over(member, asked, lag, handing=self._handing)
        if refused is not None or not isinstance(to, str):
            return LedgerAnswer(code=refused or Status.UNKNOWN_MEMBER, term=member.term)
        term = member.term
        self._handing = True
        self._ledger.pause(f"leadership is handed over to {to}")
        log.info("ledger_hands_over to=%r term=%d index=%d", to, term, self._ledger.end_index)
        try:
            own = member.self_id
            data = await self._network.call(
                to,
                LedgerCode.LEADERSHIP_TRANSFER,
                TransferRequest(
                    group=settings.group,
                    leader_id=own,
                    local_id=own,
                    remote_id=to,
                    take_leadership_ledger_index=self._ledger.end_index,
                    term=term,
                    transfer_id=own,
                    transferee_id=to,
                ).encode(),
                settings.call_ms / 1000,
            )
            answer = LedgerAnswer.decode(data)
        except KeroloxError as error:
            log.warning("ledger_not_handed_over to=%r error=%r", to, str(error))
            answer = LedgerAnswer(code=Status.TAKE_LEADERSHIP_FAILED, term=member.term)
        finally:
            self._handing = False
            self._ledger.pause(None)
        return LedgerAnswer(code=answer.code, term=max(answer.term, member.term))

    async def _take_over(self, asked: TransferRequest) -> LedgerAnswer:
        member, settings = self._member, self._member.settings
        refused = may_take_over(member, asked)
        if refused is not None:
            return LedgerAnswer(code=refused, term=member.term)
        wanted = asked.take_leadership_ledger_index
        has_it = await self._wait(
            lambda: self._ledger.end_index >= wanted or may_take_over(member, asked) is not None,
            settings.transfer_wait_ms / 1000,
        )
        if not has_it or may_take_over(member, asked) is not None:
            return LedgerAnswer(code=Status.TAKE_LEADERSHIP_FAILED, term=member.term)
        term = member.term + 1
        self._elections.campaign_soon(term)
        await self._wait(
            lambda: (member.is_leader and member.term == term) or member.taking_term != term, TAKEN_S
        )
        leads = member.is_leader and member.term == term
        return LedgerAnswer(code=Status.SUCCESS if leads else Status.TAKE_LEADERSHIP_FAILED, term=member.term)

    async def _wait(self, done: Callable[[], bool], timeout_s: float) -> bool:
        until_s = self._clock.monotonic_s() + timeout_s
        bell = Bell(self._clock)
        while not done():
            left_s = until_s - self._clock.monotonic_s()
            if left_s <= 0:
                return False
            self._bells.append(bell)
            try:
                await bell.wait(left_s)
            finally:
                self._bells.remove(bell)
        return True

    def _ring(self) -> None:
        for bell in self._bells:
            bell.ring()
