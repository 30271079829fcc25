"""Elections in a DLedger group: the broker takes the role of its member.

A broker does not lead as soon as its member is elected. The log may contain entries of earlier leaders whose
fate is open. So the broker waits until its whole log is committed and dispatched to its queues; then every
message has its offset, and new ones get the next. Producers are asked to wait meanwhile.

When its member no longer leads, the broker accepts no more messages at once; its parts are stopped after
that.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from kerolox.broker.role.leader_search import LeaderSearch
from kerolox.broker.role.leadership import Leadership
from kerolox.broker.role.mastership import Mastership
from kerolox.broker.role.turns import AGAIN_S, RoleTurns
from kerolox.broker.role.value import LeaderAddress
from kerolox.clock import Clock
from kerolox.errors import KeroloxError
from kerolox.replication.dledger.ledger import Ledger
from kerolox.replication.dledger.member import Member
from kerolox.store.message_store import MessageStore

log = logging.getLogger(__name__)

LOOK_S = 0.02  # interval of checks whether everything is committed
TELL_S = 10.0  # interval of log lines of a leader that still waits
ASK_FIRST_S = 0.2  # first interval of questions for the broker of the leading member
ASK_MAX_S = 5.0


class LostLeadership(KeroloxError):
    """Another member leads, or will lead."""

    retriable = True


class NotCommitted(KeroloxError):
    """The member leads, but a part of its log is not committed yet."""

    retriable = True


class Elections:
    """Role changes. ``took_role`` is called after each of them, to register at the name servers. ``ask``
    registers, too: members know only each other's ports, and name servers know the brokers."""

    def __init__(
        self,
        store: MessageStore,
        ledger: Ledger,
        leadership: Leadership,
        member: Member,
        clock: Clock,
        *,
        took_role: Callable[[], None],
        ask: Callable[[], None],
    ) -> None:
        self._store = store
        self._ledger = ledger
        self._leadership = leadership
        self._member = member
        self._clock = clock
        self._took_role = took_role
        self._ask = ask
        self._turns: RoleTurns[int] = RoleTurns(self._take, self._not_taken, clock)
        self._search = LeaderSearch(
            leadership, self._find_broker, clock, first_s=ASK_FIRST_S, max_s=ASK_MAX_S, at_once=False
        )
        self._elected_s: float | None = None  # time of the election, until the broker leads
        self._told_s = 0.0
        self._has_followed = False
        member.on_role.append(self._role_changed)

    def start(self) -> None:
        self._leadership.wait(self._why_not())
        self._turns.start()

    async def close(self) -> None:
        """Take no more roles. A change in progress is completed."""
        await self._search.close()
        await self._turns.close()

    def _role_changed(self) -> None:
        if not self._member.is_leader:
            # At once: messages sent from now on are rejected with the reason.
            self._leadership.refuse(self._why_not())
        self._elected_s = None
        self._turns.offer(self._member.term)

    def _why_not(self) -> str:
        member = self._member
        group = member.settings.group
        if member.is_follower:
            return f"{member.leader} leads DLedger group {group} in term {member.term}"
        return f"DLedger group {group} has no leader that this member knows of"

    # --- changes --------------------------------------------------------------------------------------

    async def _take(self, term: int) -> None:
        if self._member.is_leader:
            await self._lead(self._member.term)
        else:
            await self._follow()

    def _not_taken(self, term: int, error: KeroloxError | OSError) -> float | None:
        if isinstance(error, LostLeadership):
            log.info("not_leading reason=%r", str(error))
            return None
        if isinstance(error, NotCommitted):
            return LOOK_S
        log.error("role_not_taken error=%r next='retried in a moment'", str(error))
        return AGAIN_S

    async def _lead(self, term: int) -> None:
        if self._leadership.leads:
            # The member was a candidate for less time than the broker needed to notice.
            await self._follow()
        now_s = self._clock.monotonic_s()
        if self._elected_s is None:
            self._elected_s = self._told_s = now_s
        if not self._all_seen:
            if now_s - self._told_s >= TELL_S:
                self._told_s = now_s
                log.warning(
                    "leader_waits seconds=%.0f committed=%d end=%d next='start more members: a majority "
                    "must have its log before it serves'",
                    now_s - self._elected_s, self._ledger.committed_index, self._ledger.end_index,
                )  # fmt: skip
            raise NotCommitted(f"entries up to {self._ledger.committed_index} are committed")
        began_s = self._elected_s

        async def still_leads() -> None:
            if not self._member.is_leader or self._member.term != term:
                raise LostLeadership(f"{self._why_not()}: this broker does not lead")

        await self._leadership.lead(still_leads, Mastership(epoch=term, address=self._member.self_id))
        if not self._member.is_leader:
            self._leadership.refuse(self._why_not())  # lost while the parts started
            return
        log.info(
            "ledger_broker_leads term=%d entries=%d waited_ms=%.0f",
            term, self._ledger.end_index + 1, (self._clock.monotonic_s() - began_s) * 1000,
        )  # fmt: skip
        self._registers()

    @property
    def _all_seen(self) -> bool:
        ledger = self._ledger
        return ledger.end_index == ledger.committed_index and not self._store.log.undispatched

    async def _follow(self) -> None:
        why = self._why_not()
        await self._leadership.follow(why)
        member, before = self._member, self._leadership.role.mastership
        now = Mastership(epoch=member.term, address=member.leader or "")
        self._leadership.follow_as(member.settings.follower_id, why, now)
        # Without a leader the broker has no role, unless it had one before; name servers route no client to
        # it in either case.
        if member.is_follower or self._has_followed:
            self._has_followed = True
            if now.address != before.address:
                self._leadership.led_by(None)  # the earlier leader no longer leads
            self._registers()

    def _registers(self) -> None:
        self._took_role()
        self._search.stop()
        if self._member.is_follower:
            self._search.look_for(self._member.leader or "")

    async def _find_broker(self, member: str) -> LeaderAddress | str:
        if self._leadership.leader is None:
            self._ask()
        return self._leadership.leader or f"no name server knows the broker of member {member}"
