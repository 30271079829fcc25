"""What brokers of one name and name servers tell each other about who leads.

NOTIFY_MIN_BROKER_ID_CHANGE: a name server lost the broker with the lowest id, or found one. It is only a
hint: this broker looks for itself. EXCHANGE_BROKER_HA_INFO: a leader that returns tells its followers before
it registers, and a follower asks who leads; what the leader says is held against what name servers say.
RESET_MASTER_FLUSH_OFFSET: a note that tools read.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from kerolox.broker.cluster.fellows import Fellows
from kerolox.broker.cluster.group_watch import GroupWatch
from kerolox.broker.endpoints import Endpoints
from kerolox.broker.leadership import LeaderAddress, Leadership
from kerolox.errors import InvalidRequest, Refused
from kerolox.front.requests import Answer, Request, Row
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.headers.registration import MinBrokerIdChanged
from kerolox.protocol.headers.replication import HaInfo, ResetMasterFlushOffsetRequest
from kerolox.store.message_store import MessageStore

log = logging.getLogger(__name__)

ADDRESS_SHOWN = 100  # characters


class LeaderNotices:
    """Requests 905, 906 and 908. ``register`` asks name servers anew who leads; ``copy_from`` is told the
    address followers copy from, and the broker's; None under a controller, which says who leads."""

    def __init__(
        self,
        store: MessageStore,
        leadership: Leadership,
        endpoints: Endpoints,
        watch: GroupWatch,
        *,
        fellows: Fellows,
        register: Callable[[], None],
        copy_from: Callable[[str, str], None] | None,
    ) -> None:
        self._store = store
        self._leadership = leadership
        self._endpoints = endpoints
        self._watch = watch
        self._fellows = fellows
        self._register = register
        self._copy_from = copy_from

    def rows(self) -> list[Row]:
        return [
            (RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE, self.lowest_changed, MinBrokerIdChanged),
            (RequestCode.EXCHANGE_BROKER_HA_INFO, self.exchange, HaInfo),
            (RequestCode.RESET_MASTER_FLUSH_OFFSET, self.reset_flushed, ResetMasterFlushOffsetRequest),
        ]

    def lowest_changed(self, request: Request[MinBrokerIdChanged]) -> Answer:
        told = request.header
        log.info(
            "lowest_broker_changed id=%r address=%r gone=%r by=%s",
            told.min_broker_id, told.min_broker_addr, told.offline_broker_addr, request.caller.address,
        )  # fmt: skip
        self._register()
        self._watch.look_now()
        return Answer()

    async def exchange(self, request: Request[HaInfo]) -> Answer:
        told = request.header
        if not told.master_ha_address:
            return Answer(header=self._who_leads())
        if self._leadership.leads:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"{self._endpoints.address} leads, and {told.master_address!r} says it does: two brokers of "
                "one name have brokerId 0. Stop one of them.",
            )
        if self._copy_from is None:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"{told.master_address!r} says it leads: here a controller says who does "
                "(enableControllerMode). Set it there, too, with the same controllerAddr",
            )
        await self._check(told.master_address or "")
        log.info("leader_returns address=%r ha_address=%r", told.master_address, told.master_ha_address)
        # First nobody acts any more, then the leader sees a connection: it goes on when it has one.
        await self._watch.leader_returns()
        found = LeaderAddress(told.master_address or "", told.master_ha_address)
        if found != self._leadership.leader:
            self._leadership.doubt()  # a leader that name servers name from now on is followed instead
            self._copy_from(found.ha_address, found.address)
        return Answer(header=HaInfo())

    async def _check(self, address: str) -> None:
        """Raise if name servers name another leader, or none of them answers. If they name none, the broker
        is believed until one is registered: it may have come back at another address."""
        others = await self._fellows.registered()
        if others is None:
            raise self._not_heeded(address, "no name server says who leads")
        leaders = sorted(at for id, at in others if id == 0)
        if leaders and address not in leaders:
            raise self._not_heeded(address, f"name servers name {', '.join(leaders)} as the leader")

    @staticmethod
    def _not_heeded(address: str, why: str) -> Refused:
        log.warning("leader_not_believed address=%r reason=%r", address[:ADDRESS_SHOWN], why)
        return Refused(
            ResponseCode.SYSTEM_ERROR,
            f"{address[:ADDRESS_SHOWN]!r} is not followed: {why}. If it leads, it is followed as soon as it "
            "is registered",
        )

    def _who_leads(self) -> HaInfo:
        if not self._leadership.leads:
            return HaInfo()
        return HaInfo(
            master_ha_address=self._endpoints.ha_address,
            master_flush_offset=self._store.progress.flushed,
            master_address=self._endpoints.address,
        )

    def reset_flushed(self, request: Request[ResetMasterFlushOffsetRequest]) -> Answer:
        offset = request.header.master_flush_offset
        if offset < 0:
            raise InvalidRequest(f"masterFlushOffset is {offset}, expected 0 or more")
        if not self._leadership.leads:  # a leader has nothing of the kind, and RocketMQ's says so to nobody
            self._store.checkpoint.master_flushed_offset = offset
        return Answer()
