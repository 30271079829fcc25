"""Handlers of requests to a controller, one method per request code."""

from __future__ import annotations

import logging
from typing import Protocol

from kerolox.access.needs.kinds import CHANGES, CHANGES_OPTIONS, LOOKS
from kerolox.controller.carriers.carrier import LeadingController
from kerolox.controller.live import LiveTable
from kerolox.controller.options import ControllerOptions
from kerolox.controller.requests import (
    PRIORITY_LOWEST,
    ChangeInSync,
    ControllerRequest,
    DescribeGroups,
    Elect,
    Forget,
    KnownSet,
    LastSign,
    NextId,
    Register,
    TakeId,
    WhoIsMaster,
)
from kerolox.controller.state import REPLICAS_MAX
from kerolox.errors import Refused
from kerolox.front.caller import Caller
from kerolox.front.own_options import OwnOptions
from kerolox.front.requests import Answer, Later, Request
from kerolox.front.rows import serves
from kerolox.protocol.bodies.controller import SyncStateSet, decode_broker_names
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.headers import controller as headers
from kerolox.protocol.headers.registration import BrokerHeartbeatRequest

log = logging.getLogger(__name__)

REFUSAL_LENGTH_MAX = 600  # characters of a follower's refusal reason
TOLD_MAX = 1000  # refused brokers remembered, so that each is logged once

NOT_LEADER = Answer(code=ResponseCode.CONTROLLER_NOT_LEADER, remark="The controller is not in leader state")


class Decider(Protocol):
    """The part of the controller that handlers use."""

    @property
    def is_leader(self) -> bool: ...

    def look(self, request: ControllerRequest) -> Answer:
        """Answer a request that changes nothing."""

    async def change(self, request: ControllerRequest) -> Answer:
        """Answer once the change is durable."""

    def knows(self, group: str, id: int, start: int | None = None) -> bool:
        """Return whether the replica has its id from this controller and this is the process that registered
        with it. A controller that does not lead cannot know and returns True."""

    def heard(self, group: str, id: int, sign: LastSign) -> None:
        """Take over a broker's report."""

    def epoch(self, group: str) -> int | None:
        """Return the master epoch of a group; None while this controller does not lead."""


class GroupHandlers:
    """Handlers of requests about broker groups: ids, registration, elections, in-sync sets."""

    def __init__(self, decider: Decider, live: LiveTable, options: ControllerOptions) -> None:
        self._decider = decider
        self._live = live
        self._options = options
        self._told: dict[tuple[str, int], str] = {}  # address whose refusal was logged last

    @serves(RequestCode.CONTROLLER_GET_NEXT_BROKER_ID, headers.NextBrokerIdRequest, LOOKS, lane="controller")
    def next_id(self, request: Request[headers.NextBrokerIdRequest]) -> Answer:
        """Return the next free broker id of a group."""
        asked = request.header
        group = _given(asked.broker_name, "brokerName")
        return self._decider.look(NextId(_given(asked.cluster_name, "clusterName"), group))

    @serves(RequestCode.CONTROLLER_APPLY_BROKER_ID, headers.ApplyBrokerIdRequest, CHANGES, lane="controller")
    async def take_id(self, request: Request[headers.ApplyBrokerIdRequest]) -> Answer:
        """Give a broker the id that it asks for."""
        asked = request.header
        taken = TakeId(
            _given(asked.cluster_name, "clusterName"),
            _given(asked.broker_name, "brokerName"),
            _number(asked.applied_broker_id, "appliedBrokerId"),
            _given(asked.register_check_code, "registerCheckCode"),
        )
        return await self._decider.change(taken)

    @serves(
        RequestCode.CONTROLLER_REGISTER_BROKER,
        headers.RegisterToControllerRequest,
        CHANGES,
        lane="controller",
    )
    async def register(self, request: Request[headers.RegisterToControllerRequest]) -> Answer:
        """Register a broker with its id."""
        asked = request.header
        group, id = _given(asked.broker_name, "brokerName"), _number(asked.broker_id, "brokerId")
        address = _given(asked.broker_address, "brokerAddress")
        sign = sign_of(asked)
        if sign.start is None:
            self._note(request.caller, group, id)
        answer = await self._decider.change(Register(asked.cluster_name or "", group, id, address, sign))
        if sign.start is not None and answer.code == ResponseCode.SUCCESS:
            # Two processes may request one identity: only the accepted one counts as alive.
            self._live.hear((group, id), request.caller, sign)
            self._decider.heard(group, id, sign)
            self._told.pop((group, id), None)
        elif answer.code == ResponseCode.CONTROLLER_BROKER_ID_INVALID:
            self._tell_refused(group, id, address, answer.remark)
        return answer

    def _tell_refused(self, group: str, id: int, address: str, reason: str | None) -> None:
        """Log a refused identity once: the broker retries continuously."""
        if self._told.get((group, id)) != address:
            if len(self._told) >= TOLD_MAX:
                self._told.clear()
            self._told[group, id] = address
            log.warning("identity_refused group=%r id=%d address=%r reason=%r", group, id, address, reason)

    @serves(RequestCode.CONTROLLER_ELECT_MASTER, headers.ElectMasterRequest, CHANGES, lane="controller")
    async def elect(self, request: Request[headers.ElectMasterRequest]) -> Answer:
        """Elect the master of a group."""
        asked = request.header
        group = _given(asked.broker_name, "brokerName")
        if not asked.designate_elect:
            self._note(request.caller, group, asked.broker_id, asked.broker_start)
        return await self._decider.change(
            Elect(
                group=group,
                id=asked.broker_id,
                is_wanted=asked.designate_elect,
                allow_unclean=self._options.enable_elect_unclean_master,
                start=asked.broker_start,
                accepted_loss=asked.accepted_loss if asked.designate_elect else None,
            )
        )

    @serves(
        RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET,
        headers.AlterSyncStateSetRequest,
        CHANGES,
        lane="controller",
    )
    def change_in_sync(self, request: Request[headers.AlterSyncStateSetRequest]) -> Later:
        """Change the in-sync set of a group."""
        asked, body = request.header, SyncStateSet.decode(request.body)
        change = ChangeInSync(
            group=_given(asked.broker_name, "brokerName"),
            master=_number(asked.master_broker_id, "masterBrokerId"),
            master_epoch=_number(asked.master_epoch, "masterEpoch"),
            in_sync=body.sync_state_set,
            in_sync_epoch=body.sync_state_set_epoch,
        )
        return lambda: self._decider.change(change)

    @serves(RequestCode.CONTROLLER_GET_REPLICA_INFO, headers.ReplicaInfoRequest, LOOKS, lane="controller")
    def who_is_master(self, request: Request[headers.ReplicaInfoRequest]) -> Answer:
        """Return the master of a group."""
        return self._decider.look(WhoIsMaster(_given(request.header.broker_name, "brokerName")))

    @serves(
        RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, headers.SyncStateDataRequest, LOOKS, lane="controller"
    )
    def describe(self, request: Request[headers.SyncStateDataRequest]) -> Answer:
        """Return the replicas and in-sync sets of groups."""
        if request.header.all_groups:
            return self._decider.look(DescribeGroups(None))
        names = decode_broker_names(request.body) if request.body else ()
        if not names:
            return Answer(
                code=ResponseCode.SYSTEM_ERROR,
                remark="the body has no broker names: expected an array of names",
            )
        return self._decider.look(DescribeGroups(names))

    @serves(RequestCode.CLEAN_BROKER_DATA, headers.CleanBrokerDataRequest, CHANGES, lane="controller")
    async def forget(self, request: Request[headers.CleanBrokerDataRequest]) -> Answer:
        """Delete replicas that are gone for good."""
        asked = request.header
        answer = await self._decider.change(
            Forget(
                group=asked.broker_name,
                ids=asked.broker_controller_ids_to_clean,
                even_living=asked.is_clean_living_broker,
            )
        )
        if answer.code == ResponseCode.SUCCESS:
            log.info(
                "brokers_forgotten group=%r ids=%r by=%s",
                asked.broker_name,
                asked.broker_controller_ids_to_clean,
                request.caller.address,
            )
        return answer

    @serves(RequestCode.BROKER_HEARTBEAT, BrokerHeartbeatRequest, CHANGES, lane="controller")
    def heartbeat(self, request: Request[BrokerHeartbeatRequest]) -> Answer:
        """Process a heartbeat, also on controllers that do not lead: they may lead next.

        Unlike RocketMQ's, the answer contains whether this controller leads and the master epoch. From it a
        master learns that no other broker was elected, or that it missed a notice.
        """
        told = request.header
        if told.broker_id is None:
            return Answer(
                code=ResponseCode.CONTROLLER_INVALID_REQUEST, remark="the heartbeat has no brokerId"
            )
        sign = sign_of(told)
        if not self._decider.knows(told.broker_name, told.broker_id, sign.start):
            # Not stored: a client that invents names would use up the table of living brokers.
            return Answer(
                code=ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED,
                remark=f"broker {told.broker_name!r} with id {told.broker_id} has no id at this controller, "
                "or another process has registered with it",
            )
        timeout_ms = told.heartbeat_timeout_mills
        timeout_s = None if timeout_ms is None else timeout_ms / 1000
        self._live.hear((told.broker_name, told.broker_id), request.caller, sign, timeout_s)
        self._decider.heard(told.broker_name, told.broker_id, sign)
        epoch = self._decider.epoch(told.broker_name)
        leads = epoch is not None
        return Answer(
            code=ResponseCode.SUCCESS if leads else NOT_LEADER.code,
            header=headers.ControllerHeartbeatAnswer(is_leader=leads, master_epoch=epoch),
            remark="Heart beat success" if leads else NOT_LEADER.remark,
        )

    def _note(self, caller: Caller, group: str, id: int, start: int | None = None) -> None:
        if self._decider.knows(group, id, start):
            self._live.note((group, id), caller)


def sign_of(told: BrokerHeartbeatRequest | headers.RegisterToControllerRequest) -> LastSign:
    """Return a broker's report. RocketMQ's brokers omit parts of it, and all of it when they register."""
    known = None
    if told.known_master_epoch and told.known_set_epoch and told.known_master_id:
        ids = _ids(told.known_set)
        if ids is not None:
            known = KnownSet(
                told.known_master_epoch,
                told.known_set_epoch,
                told.known_master_id,
                ids,
                bool(told.known_leads),
            )
    return LastSign(
        max(0, told.epoch or 0),
        -1 if told.max_offset is None else told.max_offset,
        -1 if told.confirm_offset is None else told.confirm_offset,
        PRIORITY_LOWEST if told.election_priority is None else told.election_priority,
        told.broker_start,
        known,
        -1 if told.kept_offset is None else told.kept_offset,
        None if told.follower_refusal is None else told.follower_refusal[:REFUSAL_LENGTH_MAX],
    )


class OwnPlace(Protocol):
    """The controller's facts about itself and the leading controller."""

    @property
    def leading(self) -> LeadingController | None: ...

    @property
    def is_leader(self) -> bool: ...

    @property
    def advertised(self) -> str: ...


class ControllerHandlers:
    """Handler of the one request that every controller answers: the leading controller (1005)."""

    def __init__(self, place: OwnPlace, options: ControllerOptions) -> None:
        self._place = place
        self._options = options

    @serves(RequestCode.CONTROLLER_GET_METADATA_INFO, None, LOOKS, lane="controller")
    def metadata(self, request: Request[None]) -> Answer:
        """Return the leader and the members of the controller group."""
        leader = self._place.leading
        header = headers.ControllerMetadataAnswer(
            group=self._options.group,
            controller_leader_id=None if leader is None else leader.id,
            controller_leader_address=None if leader is None else leader.address,
            is_leader=self._place.is_leader,
            peers="".join(f"{id}:{address};" for id, address in self._peers()),
        )
        return Answer(header=header)

    def _peers(self) -> list[tuple[str, str]]:
        peers = [(peer.id, peer.address) for peer in self._options.all_peers]
        return peers or [(self._options.self_id, self._place.advertised)]


class OptionHandlers(OwnOptions):
    """Handlers of requests about the controller's options."""

    @serves(RequestCode.UPDATE_CONTROLLER_CONFIG, None, CHANGES_OPTIONS, lane="controller")
    async def update(self, request: Request[None]) -> Answer:
        """Change options that are changeable at run time, all or none, and write them to the configuration
        file."""
        return await super().update(request)

    @serves(RequestCode.GET_CONTROLLER_CONFIG, None, LOOKS, lane="controller")
    def show(self, request: Request[None]) -> Answer:
        """Return the options of the controller."""
        return super().show(request)


def _given(text: str | None, field: str) -> str:
    if not text:
        raise Refused(ResponseCode.CONTROLLER_INVALID_REQUEST, f"the request has no {field}")
    return text


def _ids(text: str | None) -> frozenset[int] | None:
    """Return the ids of ``1;2``; None if the text is invalid."""
    parts = (text or "").split(";")
    if len(parts) > REPLICAS_MAX or not all(part.isascii() and part.isdigit() for part in parts):
        return None
    return frozenset(map(int, parts)) if all(len(part) < 20 for part in parts) else None


def _number(number: int | None, field: str) -> int:
    if number is None:
        raise Refused(ResponseCode.CONTROLLER_INVALID_REQUEST, f"the request has no {field}")
    return number
