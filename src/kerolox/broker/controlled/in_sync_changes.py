"""Requests to the controller to change the in-sync set, whenever the leader finds other replicas in sync.

Only one request is open at a time, until its outcome is certain: a requested set counts until its rejection
is certain, because the controller may have accepted it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from msgspec.structs import replace

from kerolox.broker.base import Base
from kerolox.broker.controlled.controllers import Controllers
from kerolox.broker.controlled.elections import Elections
from kerolox.broker.controlled.mastership import from_replica_info
from kerolox.broker.role.mastership import Mastership
from kerolox.errors import KeroloxError, RequestFailed
from kerolox.protocol.bodies.controller import SyncStateSet
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.headers.controller import AlterSyncStateSetRequest, ReplicaInfoRequest
from kerolox.replication.in_sync_set import InSyncSet

log = logging.getLogger(__name__)

AGAIN_S = 0.5  # after a request without an answer, or a rejected one
# The controller may not have had a heartbeat yet of a replica that has just connected here. The request is
# repeated soon, for a limited time.
NOT_ALIVE_AGAIN_S = 0.1
NOT_ALIVE_S = 2.0


class InSyncChanges:
    """Task that requests changes. ``look_now`` asks the controller for the leader and its set."""

    def __init__(
        self,
        base: Base,
        in_sync: InSyncSet,
        controllers: Controllers,
        elections: Elections,
        look_now: Callable[[], None],
    ) -> None:
        self._in_sync = in_sync
        self._controllers = controllers
        self._elections = elections
        self._known = elections.known
        self._leadership = base.leadership
        self._options = base.options
        self._clock = base.clock
        self._look_now = look_now
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._reported = ""  # the last error
        in_sync.on_wanted.append(self._wake.set)

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            wanted = self._in_sync.wanted() if self._leadership.leads else None
            if wanted is None:
                self._wake.clear()
                timer = self._clock.call_later(self._options.in_sync_check_ms / 1000, self._wake.set)
                await self._wake.wait()
                timer.cancel()
                continue
            try:
                await self._ask(wanted)
            except Exception:
                log.exception("in_sync_not_changed wanted=%r next='retried'", sorted(wanted))
                await self._clock.sleep(AGAIN_S)

    async def _ask(self, wanted: frozenset[int]) -> None:
        """Request the set until there is an answer."""
        epoch = self._elections.mastership.epoch
        set_epoch = self._in_sync.set_epoch
        before = self._in_sync.members
        self._in_sync.asked(wanted)
        began_s = self._clock.monotonic_s()
        while self._goes_on(epoch, set_epoch):  # otherwise the answer came another way, or is not needed
            try:
                answer = await self._controllers.ask(
                    RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET,
                    AlterSyncStateSetRequest(
                        broker_name=self._options.broker_name,
                        master_broker_id=self._elections.id,
                        master_epoch=epoch,
                        invoke_time=self._clock.wall_ms(),
                    ),
                    SyncStateSet(sync_state_set=wanted, sync_state_set_epoch=set_epoch).encode(),
                )
            except RequestFailed as error:
                is_not_alive = error.response_code == ResponseCode.CONTROLLER_BROKER_NOT_ALIVE
                if is_not_alive and self._clock.monotonic_s() - began_s < NOT_ALIVE_S:
                    await self._clock.sleep(NOT_ALIVE_AGAIN_S)
                    continue
                await self._refused(wanted, error, epoch, set_epoch)
                return
            except KeroloxError as error:
                # The change may have been made: the requested set counts, and is requested again.
                self._tell(wanted, error)
                await self._clock.sleep(AGAIN_S)
                continue
            answered = SyncStateSet.decode(answer.body)
            try:
                taken = await self._adopt(epoch, answered.sync_state_set, answered.sync_state_set_epoch)
            except KeroloxError as error:
                self._tell(wanted, error)
                await self._clock.sleep(AGAIN_S)
                continue  # requested again; the answer then confirms the set
            if taken:
                self._reported = ""
                log.info(
                    "in_sync_changed from=%r to=%r epoch=%d set_epoch=%d confirmed=%d",
                    sorted(before), sorted(answered.sync_state_set), epoch, answered.sync_state_set_epoch,
                    self._in_sync.confirmed_end(),
                )  # fmt: skip
            return

    async def _refused(
        self, wanted: frozenset[int], error: RequestFailed, epoch: int, set_epoch: int
    ) -> None:
        """Handle a rejection. The change may still have been made by an earlier request whose answer was lost
        or late."""
        self._tell(wanted, error)
        await self._clock.sleep(AGAIN_S)
        if await self._is_not_taken(epoch, set_epoch):
            self._in_sync.refused()

    async def _is_not_taken(self, epoch: int, set_epoch: int) -> bool:
        """Ask for the controller's set until there is an answer. Until then both sets count. Return True if
        the requested set was not accepted."""
        while self._goes_on(epoch, set_epoch):
            try:
                answered = await self._which_set()
            except KeroloxError:
                await self._clock.sleep(AGAIN_S)
                continue
            if answered.epoch == epoch and answered.in_sync_epoch == set_epoch:
                return self._goes_on(epoch, set_epoch)
            try:
                if answered.epoch == epoch and await self._adopt(
                    epoch, answered.in_sync, answered.in_sync_epoch
                ):
                    break
            except KeroloxError as error:
                self._tell(answered.in_sync, error)
            self._look_now()  # another broker leads, or will; or this controller has an older state
            await self._clock.sleep(AGAIN_S)
        return False

    async def _adopt(self, epoch: int, members: frozenset[int], number: int) -> bool:
        """Adopt the set of the controller. It counts once it is on the disk. Raises SetNotKept."""
        mastership = self._elections.mastership
        if mastership.epoch != epoch or not self._leadership.leads:
            return False
        await self._known.keep(replace(mastership, in_sync=members, in_sync_epoch=number))
        if self._elections.mastership.epoch != epoch or not self._leadership.leads:
            return False
        return self._in_sync.adopt(members, number)

    def _goes_on(self, epoch: int, set_epoch: int) -> bool:
        """True if this broker still leads in this epoch, and knows no newer set."""
        return (
            self._leadership.leads
            and self._elections.mastership.epoch == epoch
            and self._in_sync.set_epoch == set_epoch
        )

    async def _which_set(self) -> Mastership:
        asked = ReplicaInfoRequest(broker_name=self._options.broker_name)
        return from_replica_info(await self._controllers.ask(RequestCode.CONTROLLER_GET_REPLICA_INFO, asked))

    def _tell(self, wanted: frozenset[int], error: KeroloxError) -> None:
        reason = str(error).partition("; failed ")[0]
        if reason != self._reported:
            self._reported = reason
            log.warning(
                "in_sync_not_changed wanted=%r error=%r next='retried; until then sends wait for the "
                "replicas of both sets'",
                sorted(wanted), reason,
            )  # fmt: skip
