"""Handover of leadership by a leader that stops, or whose disk has failed.

The leader accepts no more messages, waits until the whole in-sync set has its log, and asks the controller to
elect a replica that it names. That replica leads some milliseconds later. Without a handover the controller
would first have to detect the loss, and waiting producers would get the answer that their message may not be
safe.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from kerolox.broker.base import Base
from kerolox.broker.controlled.controllers import Controllers
from kerolox.broker.controlled.elections import Elections
from kerolox.broker.controlled.mastership import from_election
from kerolox.broker.nameservers.registrations import Registrations
from kerolox.broker.write.intake import Intake
from kerolox.errors import KeroloxError
from kerolox.observers import Observers
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.headers.controller import ElectMasterRequest
from kerolox.replication.in_sync_set import InSyncSet, MemberStatus
from kerolox.store.state import Obstacle

log = logging.getLogger(__name__)

COPIED_S = 2.0  # time for the others to copy the log
KNOWN_S = 1.0  # time for name servers to learn of the new leader
FOLLOWS_S = 3.0  # time for this broker to stop its parts, and for the next one to lead


def successor(own_id: int, members: list[MemberStatus]) -> MemberStatus | None:
    """Return the next leader: in sync, connected, and with the longest log. None if there is none."""
    others = [one for one in members if one.in_set and one.connected and one.id != own_id]
    return min(others, key=lambda one: (-one.acked, one.id), default=None)


class HandOver:
    """Steps of a handover."""

    def __init__(
        self,
        base: Base,
        intake: Intake,
        registrations: Registrations,
        in_sync: InSyncSet,
        controllers: Controllers,
        elections: Elections,
    ) -> None:
        self._sends = base.lanes["send"]
        self._intake = intake
        self._registrations = registrations
        self._store = base.store
        self._leadership = base.leadership
        self._in_sync = in_sync
        self._controllers = controllers
        self._elections = elections
        self._options = base.options
        self._clock = base.clock
        self._under_way: asyncio.Task[bool] | None = None
        base.store.state.on_change.append(self._look)
        elections.on_role.append(self._took_role)

    async def close(self) -> None:
        if self._under_way is not None:
            self._under_way.cancel()
            await asyncio.gather(self._under_way, return_exceptions=True)

    def _look(self) -> None:
        """Hand over if the store can no longer be written."""
        if self._store.state.fenced and self._leadership.leads and self._under_way is None:
            self._under_way = asyncio.get_running_loop().create_task(self.hand_over("its disk failed"))

    def _took_role(self) -> None:
        if not self._leadership.leads:
            self._store.state.clear(Obstacle.HANDED_OVER)  # replication may write the store

    async def hand_over(self, why: str) -> bool:
        """Hand the leadership to another replica. Return whether it leads. Does nothing if no other replica
        can lead, or no controller is known."""
        if not self._leadership.leads or not self._controllers.leader:
            return False
        if successor(self._elections.id, self._in_sync.status()) is None:
            log.info("not_handed_over reason='no other replica is in sync' because=%r", why)
            return False
        self._sends.hold()  # a client rejected before the new leader registers would find no leader
        try:
            return await self._hand_over(why)
        finally:
            self._store.state.clear(Obstacle.HANDED_OVER)
            self._sends.release()

    async def _hand_over(self, why: str) -> bool:
        began_s = self._clock.monotonic_s()
        state, progress = self._store.state, self._store.progress
        fenced = state.fenced
        if not fenced:
            self._intake.write()
            state.set(Obstacle.HANDED_OVER, f"this broker hands its leadership over: {why}")
            await self._until(
                lambda: progress.confirmed >= progress.appended, COPIED_S, progress.on_confirmed
            )
        next_one = successor(self._elections.id, self._in_sync.status())
        if next_one is None or not (fenced or next_one.acked >= progress.appended):
            log.info("not_handed_over reason='the others did not copy everything in time' because=%r", why)
            return False
        if not await self._elect(next_one, why):
            return False
        await self._until(lambda: self._leadership.leader is not None, FOLLOWS_S, self._leadership.on_leader)
        # Clients rejected here ask the name servers next.
        await self._registrations.tell_of(self._elections.mastership.address, KNOWN_S)
        log.info(
            "handed_over to=%d because=%r end=%d took_ms=%.0f",
            next_one.id, why, progress.appended, (self._clock.monotonic_s() - began_s) * 1000,
        )  # fmt: skip
        return True

    async def _elect(self, one: MemberStatus, why: str) -> bool:
        try:
            answer = await self._controllers.ask(
                RequestCode.CONTROLLER_ELECT_MASTER,
                ElectMasterRequest(
                    cluster_name=self._options.cluster,
                    broker_name=self._options.broker_name,
                    broker_id=one.id,
                    designate_elect=True,
                    invoke_time=self._clock.wall_ms(),
                ),
            )
        except KeroloxError as error:
            log.warning(
                "not_handed_over to=%d because=%r error=%r next='the controller elects after the heartbeat "
                "timeout'",
                one.id, why, str(error),
            )  # fmt: skip
            return False
        self._elections.offer(from_election(answer), f"this broker asked for it: {why}")
        return True

    async def _until(
        self,
        condition: Callable[[], bool],
        timeout_s: float,
        listeners: Observers[...],
    ) -> None:
        """Wait for a condition that may change when ``listeners`` are called, at most ``timeout_s``."""
        changed = asyncio.Event()

        def look(*_: object) -> None:
            changed.set()

        until_s = self._clock.monotonic_s() + timeout_s
        timer = self._clock.call_later(timeout_s, look)
        listeners.append(look)
        try:
            while not condition() and self._clock.monotonic_s() < until_s:
                changed.clear()
                await changed.wait()
        finally:
            listeners.remove(look)
            timer.cancel()
