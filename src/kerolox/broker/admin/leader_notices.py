"""Notices about the leader between brokers of one name and name servers.

NOTIFY_MIN_BROKER_ID_CHANGE: a name server lost or found the broker with the lowest id. This is only a hint:
this broker asks for itself. EXCHANGE_BROKER_HA_INFO: a returning leader notifies its followers before it
registers, and a follower asks for the leader; the claim of a leader is compared with the reports of the name
servers. RESET_MASTER_FLUSH_OFFSET: a note that tools read.
"""

from __future__ import annotations

import logging

from kerolox.access.needs.kinds import CHANGES
from kerolox.broker.base import Base
from kerolox.broker.fellows.room import Fellowship
from kerolox.broker.nameservers.room import NameServers
from kerolox.broker.role.elector import Elector
from kerolox.broker.role.value import LeaderAddress
from kerolox.errors import InvalidRequest, Refused
from kerolox.front.requests import Answer, Request
from kerolox.front.rows import serves
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.headers.registration import MinBrokerIdChanged
from kerolox.protocol.headers.replication import HaInfo, ResetMasterFlushOffsetRequest

log = logging.getLogger(__name__)

ADDRESS_SHOWN = 100  # characters


class LeaderNotices:
    """Handlers of requests 905, 906 and 908."""

    def __init__(
        self, base: Base, nameservers: NameServers, fellowship: Fellowship, elector: Elector
    ) -> None:
        self._store = base.store
        self._leadership = base.leadership
        self._endpoints = base.endpoints
        self._registrations = nameservers.registrations
        self._watch = fellowship.watch
        self._fellows = fellowship.fellows
        self._refuses_claims = elector.refuses_claims

    @serves(RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE, MinBrokerIdChanged, CHANGES)
    def lowest_changed(self, request: Request[MinBrokerIdChanged]) -> Answer:
        """Take notice of the lowest broker id of the group, from a name server."""
        header = request.header
        log.info(
            "lowest_broker_changed id=%r address=%r gone=%r by=%s",
            header.min_broker_id, header.min_broker_addr, header.offline_broker_addr, request.caller.address,
        )  # fmt: skip
        self._registrations.register_all()
        self._watch.look_now()
        return Answer()

    @serves(RequestCode.EXCHANGE_BROKER_HA_INFO, HaInfo, CHANGES)
    async def exchange(self, request: Request[HaInfo]) -> Answer:
        """Exchange positions and addresses with another broker of the group."""
        header = request.header
        if not header.master_ha_address:
            return Answer(header=self._who_leads())
        if self._leadership.leads:
            raise self._two_leaders(header)
        if self._refuses_claims:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"{header.master_address!r} claims to lead, but {self._refuses_claims}",
            )
        await self._check(header.master_address or "")
        # Acting ends before the leader sees a connection, since the leader continues when it has one.
        await self._watch.leader_returns()
        if not self._leadership.announced(
            LeaderAddress(header.master_address or "", header.master_ha_address)
        ):
            raise self._two_leaders(header)  # this broker was promoted meanwhile
        return Answer(header=HaInfo())

    def _two_leaders(self, header: HaInfo) -> Refused:
        return Refused(
            ResponseCode.SYSTEM_ERROR,
            f"{self._endpoints.address} leads, and {header.master_address!r} claims to lead: two brokers "
            "of one name have brokerId 0. Stop one of them.",
        )

    async def _check(self, address: str) -> None:
        """Raise if name servers report another leader, or if none of them answers. If they report no leader,
        the claim is accepted until one is registered: the leader may have returned at another address."""
        others = await self._fellows.registered()
        if others is None:
            raise self._not_heeded(address, "no name server answers")
        leaders = sorted(at for id, at in others if id == 0)
        if leaders and address not in leaders:
            raise self._not_heeded(address, f"name servers report {', '.join(leaders)} as the leader")

    @staticmethod
    def _not_heeded(address: str, why: str) -> Refused:
        log.warning("leader_not_believed address=%r reason=%r", address[:ADDRESS_SHOWN], why)
        return Refused(
            ResponseCode.SYSTEM_ERROR,
            f"{address[:ADDRESS_SHOWN]!r} is not followed: {why}. If it leads, this broker follows it as "
            "soon as it is registered",
        )

    def _who_leads(self) -> HaInfo:
        if not self._leadership.leads:
            return HaInfo()
        return HaInfo(
            master_ha_address=self._endpoints.ha_address,
            master_flush_offset=self._store.progress.flushed,
            master_address=self._endpoints.address,
        )

    @serves(RequestCode.RESET_MASTER_FLUSH_OFFSET, ResetMasterFlushOffsetRequest, CHANGES)
    def reset_flushed(self, request: Request[ResetMasterFlushOffsetRequest]) -> Answer:
        """Take notice of how far the leader has flushed."""
        offset = request.header.master_flush_offset
        if offset < 0:
            raise InvalidRequest(f"masterFlushOffset is {offset}, expected 0 or more")
        if not self._leadership.leads:  # a leader has no such offset; RocketMQ's ignores the request silently
            self._store.notes.checkpoint.master_flushed_offset = offset
        return Answer()
