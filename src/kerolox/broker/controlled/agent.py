"""Membership of this broker under the controller: it obtains its id, registers, asks for the leader, and
requests an election if there is none.

All of this runs in the background and is retried until it works: a broker whose controller is unreachable
starts, listens, and reports what it waits for. Answers of the controller go to the queue of role changes
(:mod:`kerolox.broker.controlled.elections`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from kerolox.broker.base import Base
from kerolox.broker.controlled.controllers import Controllers
from kerolox.broker.controlled.elections import Elections
from kerolox.broker.controlled.heartbeats import Heartbeats, LogState
from kerolox.broker.controlled.identity import Identity
from kerolox.broker.controlled.lease_watch import LeaseWatch
from kerolox.broker.controlled.mastership import (
    from_election,
    from_notice,
    from_registration,
    from_replica_info,
)
from kerolox.broker.role.mastership import Mastership, News, news
from kerolox.errors import KeroloxError, RequestFailed
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.headers import controller as headers

log = logging.getLogger(__name__)

AGAIN_FIRST_S = 0.2  # first pause after a failed step; it doubles after each failure
AGAIN_MAX_S = 5.0
NO_ROLE_S = 1.0  # interval of questions for the leader while there is none


class IdentityTaken(KeroloxError):
    """Another process uses the identity of this broker."""


class Agent:
    """Background task of the membership, from :meth:`start` to :meth:`close`."""

    def __init__(
        self,
        base: Base,
        controllers: Controllers,
        identity: Identity,
        heartbeats: Heartbeats,
        watch: LeaseWatch,
        elections: Elections,
        state: Callable[[], LogState | None],
    ) -> None:
        """``state``: the state of the log, None if the broker cannot lead."""
        self._options = base.options
        self._clock = base.clock
        self._leadership = base.leadership
        self._controllers = controllers
        self._identity = identity
        self._heartbeats = heartbeats
        self._watch = watch
        self._elections = elections
        self._known = elections.known
        self._address = base.endpoints.address
        self._start = base.start
        self._state = state
        self._wake = asyncio.Event()
        self.last_error = ""
        self._is_registered = False
        self._is_noticed = False  # a notice has arrived since the last round began
        self._task: asyncio.Task[None] | None = None
        controllers.on_lost.append(self.look_now)
        heartbeats.on_unknown.append(self._unknown)
        heartbeats.on_epoch.append(self._heard_epoch)
        elections.on_role.append(self.look_now)
        base.leadership.wait("no controller has been asked yet")

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def look_now(self) -> None:
        """Ask for the leader now."""
        self._wake.set()

    def notice(self, offered: headers.BrokerRoleChanged, body: bytes, by: str) -> None:
        """Handle a notice of the controller about a changed leader. Raises ProtocolError.

        Any client can send a notice, and it may have been meant for an earlier process. So the controller is
        asked, and only its answer counts. An epoch accepted from elsewhere could never be superseded.
        """
        mastership = from_notice(offered, body)
        if self._is_other_process(mastership):
            self._unknown()
        elif news(self._elections.mastership, mastership) in (News.EPOCH, News.MOVED, News.IN_SYNC):
            self._is_noticed = True
            self.look_now()
        else:
            self._elections.offer(mastership, f"a notice of {by}")  # logs contradictions

    def _is_other_process(self, offered: Mastership) -> bool:
        """True if a controller reports that this broker leads, but at the address of another process with its
        identity."""
        return offered.is_there and offered.id == self._identity.id and offered.address != self._address

    def _unknown(self) -> None:
        self._is_registered = False
        self.look_now()

    def _heard_epoch(self, epoch: int) -> None:
        if epoch > self._elections.mastership.epoch:
            self.look_now()

    # --- loop -------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        failures = 0
        while True:
            self._wake.clear()
            self._is_noticed = False
            try:
                await self._round()
                self._went_well()
                failures = 0
                wait_s = self._pause_s
            except KeroloxError as error:
                self._failed(error)
                wait_s = min(AGAIN_MAX_S, self._pause_s, AGAIN_FIRST_S * 2 ** min(failures, 10))
                if self._is_noticed:
                    wait_s = AGAIN_FIRST_S
                failures += 1
                # The loss of the controller may have been found in this round. An immediate question would
                # name the same one.
                self._wake.clear()
            except Exception:
                log.exception("controller_not_asked next='retried'")
                wait_s = AGAIN_MAX_S
            timer = self._clock.call_later(wait_s, self._wake.set)
            await self._wake.wait()
            timer.cancel()

    @property
    def _pause_s(self) -> float:
        pause_s = self._options.who_leads_ms / 1000
        return pause_s if self._elections.mastership.epoch else min(NO_ROLE_S, pause_s)

    async def _round(self) -> None:
        """Register if needed; then ask for the leader; if there is none, request an election."""
        self._controllers.look_around()
        if not self._identity.id:
            id = await self._identity.obtain(self._controllers)
            self._elections.start(id)
        await self._known.load(self._options.cluster, self._options.broker_name, self._identity.id)
        asked_s = self._clock.monotonic_s()
        if not self._is_registered:
            offered = await self._register()
            self._is_registered = True
            self._heartbeats.start(self._identity.id)
        else:
            offered = await self._who_leads()
        if self._is_other_process(offered):
            self._is_registered = False
            raise IdentityTaken(
                f"the controller at {self._controllers.leader} reports that broker {offered.id}, the id of "
                f"this broker, leads at {offered.address}, but this one is at {self._address}: two processes "
                "have one identity, or this broker has moved. It registers again"
            )
        found = self._elections.offer(offered, "asked who leads")
        if self._still_leads(offered, found):
            self._watch.confirmed(asked_s)
        if (
            not offered.is_there
            and found in (News.EPOCH, News.NONE)
            and offered.epoch >= self._elections.mastership.epoch
        ):
            try:
                offered = await self._elect()
            except RequestFailed as error:
                if error.response_code == ResponseCode.CONTROLLER_BROKER_ID_INVALID:
                    self._is_registered = False
                raise
            self._elections.offer(offered, "an election that was asked for")

    def _still_leads(self, offered: Mastership, found: News) -> bool:
        """True if no other broker can lead in this broker's place: the controller confirms its leadership, or
        the controller fell back to an older epoch, and all replicas it could have elected follow this
        broker."""
        if found is News.OLDER:
            return self._elections.is_followed_since(self._watch.doubted_s)
        return found in (News.NONE, News.IN_SYNC) and offered.is_there and offered.id == self._identity.id

    async def _register(self) -> Mastership:
        options = self._options
        state = self._state()
        report = {"broker_start": self._start} if state is None else state.report()
        asked = headers.RegisterToControllerRequest(
            cluster_name=options.cluster,
            broker_name=options.broker_name,
            broker_id=self._identity.id,
            broker_address=self._address,
            invoke_time=self._clock.wall_ms(),
            election_priority=options.election_priority,
            **report,
        )
        try:
            answer = await self._controllers.ask(RequestCode.CONTROLLER_REGISTER_BROKER, asked)
        except RequestFailed as error:
            if error.response_code == ResponseCode.CONTROLLER_BROKER_ID_INVALID:
                raise self._identity_taken(error) from error
            raise
        log.info("registered_at_controller id=%d controller=%r", self._identity.id, self._controllers.leader)
        return from_registration(answer)

    def _identity_taken(self, error: RequestFailed) -> IdentityTaken:
        """Stop accepting messages, since another process has this identity. Return the error."""
        self._watch.give_up()
        text = f"{error.remark} (the controller at {self._controllers.leader})"
        if self.last_error != text:
            log.error("identity_taken id=%d path=%s reason=%r", self._identity.id, self._identity.path, text)
        return IdentityTaken(text)

    async def _who_leads(self) -> Mastership:
        try:
            answer = await self._controllers.ask(
                RequestCode.CONTROLLER_GET_REPLICA_INFO,
                headers.ReplicaInfoRequest(broker_name=self._options.broker_name),
            )
        except RequestFailed as error:
            if error.response_code == ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST:
                self._is_registered = False
            raise
        return from_replica_info(answer)

    async def _elect(self) -> Mastership:
        options = self._options
        answer = await self._controllers.ask(
            RequestCode.CONTROLLER_ELECT_MASTER,
            headers.ElectMasterRequest(
                cluster_name=options.cluster,
                broker_name=options.broker_name,
                broker_id=self._identity.id,
                invoke_time=self._clock.wall_ms(),
                broker_start=self._start,
            ),
            also=(ResponseCode.CONTROLLER_MASTER_STILL_EXIST,),
        )
        return from_election(answer)

    # --- log lines --------------------------------------------------------------------------------------

    def _went_well(self) -> None:
        if self.last_error:
            log.info("controller_answers controller=%r", self._controllers.leader)
            self.last_error = ""

    def _failed(self, error: KeroloxError) -> None:
        reason = str(error).partition("; failed ")[0]
        if reason != self.last_error:
            self.last_error = reason
            log.warning("controller_not_asked error=%r next='retried'", reason)
        if self._leadership.waits_for:
            self._leadership.wait(reason)
