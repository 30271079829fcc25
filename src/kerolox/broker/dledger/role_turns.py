"""Role changes of a broker in a DLedger group. It follows the role of its member, one change after the other.

A broker does not lead as soon as its member is elected. The log may contain entries of earlier leaders whose
fate is open. So the broker waits until its whole log is committed and dispatched to its queues; then every
message has its offset, and new ones get the next. Producers are asked to wait meanwhile.

When its member no longer leads, the broker accepts no more messages at once; its parts are stopped after
that.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from kerolox.broker.role.leadership import Leadership
from kerolox.clock import Clock
from kerolox.errors import KeroloxError
from kerolox.replication.dledger.ledger import Ledger
from kerolox.replication.dledger.member import Member
from kerolox.store.message_store import MessageStore

log = logging.getLogger(__name__)

LOOK_S = 0.02  # interval of checks whether everything is committed
AGAIN_S = 1.0  # after a failed role change
TELL_S = 10.0  # interval of log lines of a leader that still waits


class LostLeadership(KeroloxError):
    """Another member leads, or will lead."""

    retriable = True


class RoleTurns:
    """Role changes. ``took_role`` is called after each of them, to register at the name servers."""

    def __init__(
        self,
        store: MessageStore,
        ledger: Ledger,
        leadership: Leadership,
        member: Member,
        clock: Clock,
        *,
        took_role: Callable[[], None],
    ) -> None:
        self._store = store
        self._ledger = ledger
        self._leadership = leadership
        self._member = member
        self._clock = clock
        self._took_role = took_role
        self._wake = asyncio.Event()
        self._turn = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        member.on_role.append(self._role_changed)

    def start(self) -> None:
        self._leadership.wait(self._why_not())
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        """Take no more roles. A change in progress is completed."""
        if self._task is not None:
            async with self._turn:
                self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _role_changed(self) -> None:
        if not self._member.is_leader:
            # At once: messages sent from now on are rejected with the reason.
            self._leadership.refuse(self._why_not())
        self._wake.set()

    def _why_not(self) -> str:
        member = self._member
        group = member.settings.group
        if member.is_follower:
            return f"{member.leader} leads DLedger group {group} in term {member.term}"
        return f"DLedger group {group} has no leader that this member knows of"

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                if self._member.is_leader:
                    await self._lead(self._member.term)
                else:
                    await self._follow()
            except LostLeadership as error:
                log.info("not_leading reason=%r", str(error))
            except KeroloxError as error:
                log.error("role_not_taken error=%r next='retried in a moment'", str(error))
                await self._clock.sleep(AGAIN_S)
                self._wake.set()

    async def _lead(self, term: int) -> None:
        if self._leadership.leads:
            # The member was a candidate for less time than the broker needed to notice.
            await self._follow()
        began_s = told_s = self._clock.monotonic_s()
        while not self._all_seen:
            self._check_leads(term)
            now_s = self._clock.monotonic_s()
            if now_s - told_s >= TELL_S:
                told_s = now_s
                log.warning(
                    "leader_waits seconds=%.0f committed=%d end=%d next='start more members: a majority "
                    "must have its log before it serves'",
                    now_s - began_s, self._ledger.committed_index, self._ledger.end_index,
                )  # fmt: skip
            await self._clock.sleep(LOOK_S)

        async def still_leads() -> None:
            self._check_leads(term)

        async with self._turn:
            await self._leadership.lead(still_leads, term)
        if not self._member.is_leader:
            self._leadership.refuse(self._why_not())  # lost while the parts started
            return
        log.info(
            "ledger_broker_leads term=%d entries=%d waited_ms=%.0f",
            term, self._ledger.end_index + 1, (self._clock.monotonic_s() - began_s) * 1000,
        )  # fmt: skip
        self._took_role()

    @property
    def _all_seen(self) -> bool:
        ledger = self._ledger
        return ledger.end_index == ledger.committed_index and not self._store.log.undispatched

    def _check_leads(self, term: int) -> None:
        if not self._member.is_leader or self._member.term != term:
            raise LostLeadership(f"{self._why_not()}: this broker does not lead")

    async def _follow(self) -> None:
        why = self._why_not()
        async with self._turn:
            await self._leadership.follow(why)
            self._leadership.follow_as(self._member.settings.follower_id, why, self._member.term)
        # Without a leader the broker has no role, unless it had one before; name servers route no client to
        # it in either case.
        if self._member.is_follower or self._took_before:
            self._took_before = True
            self._took_role()

    _took_before = False
