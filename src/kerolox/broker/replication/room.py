"""Replication of the log: to followers while this broker leads, from its leader while it follows."""

from __future__ import annotations

from collections.abc import Callable

from kerolox.access.needs.kinds import LOOKS
from kerolox.broker.base import Base
from kerolox.broker.figures.room import Figures
from kerolox.broker.tables.promotions import Promotions
from kerolox.front.requests import Answer, Request
from kerolox.front.rows import serves
from kerolox.metric_text import MetricText
from kerolox.net.dialer import Dialer
from kerolox.protocol.bodies.stats import ControlledStatus, HaClient, HaConnection, HaStatus, TurnedAway
from kerolox.protocol.codes import RequestCode
from kerolox.replication.entrance import Trust
from kerolox.replication.epoch_history import EpochHistory
from kerolox.replication.epoch_mode import EpochMode
from kerolox.replication.follower import Follower
from kerolox.replication.in_sync_set import InSyncSet
from kerolox.replication.leader import Leader
from kerolox.replication.leader_questions import HA_PROCESS, HA_PROMOTION, HA_PROOF, HA_TLS
from kerolox.replication.link_state import LinkState


class Replication:
    """Leader and follower ends of the replication; only one of them is active."""

    def __init__(self, base: Base, figures: Figures, promotions: Promotions) -> None:
        options = base.options
        self._promotions = promotions
        self._store = base.store
        self._leadership = base.leadership
        self._speaks_tls = options.tls.is_spoken
        self.dialer = Dialer(
            clock=base.clock, tls=options.own_tls, credentials=options.own_credentials
        )  # for questions to the leader
        self.epochs = self._epochs(base) if options.controlled else None
        self.controlled_status: Callable[[], ControlledStatus] | None = None
        self.leader = Leader(
            base.store,
            options,
            base.clock,
            broker_address=base.endpoints.address,
            mode=self.epochs,
            trust=self._trust(base),
        )
        # Under a controller, a leader address in a file is not used.
        ha_address = "" if options.controlled else options.ha_master_address
        self.follower = Follower(
            base.store,
            options,
            base.clock,
            self.dialer,
            ha_address=ha_address,
            mode=self.epochs,
            tls=options.own_tls,
            credentials=options.own_credentials,
            proves=base.guard.wants_signatures,
            promotion=lambda: promotions.number,
        )
        if not options.ledger:  # members of a DLedger group replicate entries themselves
            base.leadership.follow_by(self.follower)
        figures.metrics.more.append(self.metrics)

    @staticmethod
    def _trust(base: Base) -> Trust | None:
        """Return the check of followers, None without access control. A follower reads every message, so it
        must be a super user or a trusted address."""
        if not base.guard.wants_signatures:
            return None
        return Trust(base.guard.book.secret_of_super, base.options.trusted_networks)

    @staticmethod
    def _epochs(base: Base) -> EpochMode:
        return EpochMode(
            EpochHistory(base.store),
            InSyncSet(base.store, base.options, base.clock),
            start=base.start,
            is_learner=base.options.learner,
            from_last_file=base.options.from_last_file,
        )

    # --- for operators and tools ------------------------------------------------------------------------

    @serves(RequestCode.GET_BROKER_HA_STATUS, None, LOOKS)
    def ha_status(self, request: Request[None]) -> Answer:
        """Answer with the connections to followers or the leader, and their progress."""
        followers = tuple(
            HaConnection(
                addr=one.address,
                behind_ms=int(one.behind_s * 1000) if one.joined else None,
                broker_id=one.follower_id,
                diff=one.behind,
                in_sync=one.in_sync
                if self.epochs is None
                else one.follower_id in self.epochs.in_sync.members,
                slave_ack_offset=one.acked,
                transfer_from_where=one.next,
                transferred_byte_in_second=one.rate.per_second,
            )
            for one in sorted(self.leader.followers, key=lambda one: one.address)
        )
        status = HaStatus(
            controlled=None if self.controlled_status is None else self.controlled_status(),
            ha_client_runtime_info=HaClient() if self._leadership.leads else self._as_follower(),
            ha_connection_info=followers,
            in_sync_slave_nums=sum(one.in_sync for one in followers),
            leads_since=self.leader.since_ms if self._leadership.leads else None,
            master=self._leadership.leads,
            master_commit_log_max_offset=self._store.log.max_offset,
            turned_away=tuple(
                TurnedAway(
                    addr=one.address, count=one.count, text=one.text, timestamp=one.at_ms, why=one.why.value
                )
                for one in self.leader.turned_away()
            ),
        )
        return Answer(body=status.encode())

    def runtime_info(self) -> dict[str, object]:
        """Return, as text for tools, a follower's state and whether it acts for its leader; for a leader, the
        facts that followers need about its replication port."""
        if self._leadership.leads:
            return {
                HA_PROOF: self.leader.trust is not None,
                HA_TLS: self._speaks_tls,
                HA_PROCESS: self.epochs is not None,
                HA_PROMOTION: self._promotions.number,
            }
        shown: dict[str, object] = {"followerState": self.follower.text}
        return shown | {"brokerActive": True} if self._leadership.acts else shown

    def metrics(self, out: MetricText) -> None:
        joined = [one for one in self.leader.followers if one.joined]
        out.metric(
            "kerolox_followers",
            "gauge",
            "Brokers that copy from this one.",
            [({}, len(joined))],
        )
        out.metric(
            "kerolox_follower_behind_bytes",
            "gauge",
            "Bytes of the log a follower does not have yet.",
            [({"address": one.address}, one.behind) for one in joined],
        )
        out.metric(
            "kerolox_follower_behind_seconds",
            "gauge",
            "Upper bound of the time that a follower has been behind.",
            [({"address": one.address}, one.behind_s) for one in joined],
        )
        out.metric(
            "kerolox_follower_in_sync",
            "gauge",
            "1 for a follower that lacks less than haMaxGapNotInSync.",
            [({"address": one.address}, one.in_sync) for one in joined],
        )
        out.metric(
            "kerolox_followers_refused_total",
            "counter",
            "Rejected connections of followers.",
            [({"why": why.value}, count) for why, count in self.leader.refused.items()],
        )
        out.metric(
            "kerolox_follows",
            "gauge",
            "State of the replication from the leader.",
            [({"state": state.name.lower()}, state is self.follower.state) for state in LinkState],
        )
        out.metric(
            "kerolox_follower_lacks_bytes",
            "gauge",
            "Of a follower: bytes that its leader was ahead at the last report.",
            [] if self._leadership.leads else [({}, self.follower.lacking)],
        )

        out.metric(
            "kerolox_acts",
            "gauge",
            "1 if this broker acts for a leader that is gone.",
            [({}, self._leadership.acts)],
        )

    def _as_follower(self) -> HaClient:
        follower, link, note = self.follower, self.follower.link, self.follower.leaders_end.note
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

    async def close(self) -> None:
        await self.leader.follow()
        await self.follower.stop()
        await self.dialer.close()
