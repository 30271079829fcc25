"""Request for the state of the replication: connections to followers or the leader, and their progress."""

from __future__ import annotations

from kerolox.access.needs.kinds import LOOKS
from kerolox.broker.base import Base
from kerolox.broker.replication.room import Replication
from kerolox.broker.role.elector import Elector
from kerolox.front.requests import Answer, Request
from kerolox.front.rows import serves
from kerolox.protocol.bodies.stats import HaClient, HaConnection, HaStatus, TurnedAway
from kerolox.protocol.codes import RequestCode


class HaStatusRequests:
    """Handler of GET_BROKER_HA_STATUS."""

    def __init__(self, base: Base, replication: Replication, elector: Elector) -> None:
        self._store = base.store
        self._leadership = base.leadership
        self._leader = replication.leader
        self._follower = replication.follower
        self._in_sync = elector.in_sync
        self._elector = elector

    @serves(RequestCode.GET_BROKER_HA_STATUS, None, LOOKS)
    def ha_status(self, request: Request[None]) -> Answer:
        """Answer with the connections to followers or the leader, and their progress."""
        followers = tuple(
            HaConnection(
                addr=one.address,
                behind_ms=int(one.behind_s * 1000) if one.joined else None,
                broker_id=one.follower_id,
                diff=one.behind,
                in_sync=one.in_sync if self._in_sync is None else one.follower_id in self._in_sync.members,
                slave_ack_offset=one.acked,
                transfer_from_where=one.next,
                transferred_byte_in_second=one.rate.per_second,
            )
            for one in sorted(self._leader.followers, key=lambda one: one.address)
        )
        status = HaStatus(
            controlled=self._elector.status(),
            ha_client_runtime_info=HaClient() if self._leadership.leads else self._as_follower(),
            ha_connection_info=followers,
            in_sync_slave_nums=sum(one.in_sync for one in followers),
            leads_since=self._leader.since_ms if self._leadership.leads else None,
            master=self._leadership.leads,
            master_commit_log_max_offset=self._store.log.max_offset,
            turned_away=tuple(
                TurnedAway(
                    addr=one.address, count=one.count, text=one.text, timestamp=one.at_ms, why=one.why.value
                )
                for one in self._leader.turned_away()
            ),
        )
        return Answer(body=status.encode())

    def _as_follower(self) -> HaClient:
        follower, link, note = self._follower, self._follower.link, self._follower.leaders_end.note
        return HaClient(
            leader_address=note.address or None,
            leader_end=note.end if note.address else None,
            leader_end_timestamp=note.at_ms if note.address else None,
            link_address=link.own_address if follower.copying and link is not None else None,
            link_state=follower.state.name.lower(),
            link_text=follower.text,
            master_addr=follower.leader or None,
            max_offset=self._store.log.max_offset,
            last_read_timestamp=0 if link is None else link.heard_ms,
            last_write_timestamp=0 if link is None else link.said_ms,
            transferred_byte_in_second=0 if link is None else link.rate.per_second,
        )
