"""Replication of the log: to followers while this broker leads, from its leader while it follows."""

from __future__ import annotations

from kerolox.broker.base import Base, Room
from kerolox.broker.tables.room import Tables
from kerolox.metric_text import MetricText
from kerolox.replication.entrance import Trust
from kerolox.replication.epoch_history import EpochHistory
from kerolox.replication.epoch_mode import EpochMode
from kerolox.replication.follower import Follower
from kerolox.replication.in_sync_set import InSyncSet
from kerolox.replication.leader import Leader
from kerolox.replication.leader_questions import HA_PROCESS, HA_PROMOTION, HA_PROOF, HA_TLS
from kerolox.replication.link_state import LinkState


class Replication(Room):
    """Leader and follower ends of the replication; only one of them is active."""

    def __init__(self, base: Base, tables: Tables) -> None:
        options = base.options
        self._promotions = tables.promotions
        self._store = base.store
        self._leadership = base.leadership
        self._speaks_tls = options.tls.is_spoken
        self.epochs = self._epochs(base) if options.controlled else None
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
            base.dialer,
            ha_address=ha_address,
            mode=self.epochs,
            tls=options.own_tls,
            credentials=options.own_credentials,
            proves=base.guard.wants_signatures,
            promotion=lambda: tables.promotions.number,
        )

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

    async def start(self) -> None:
        """Complete a truncation that was interrupted, and read the epochs of the log."""
        await self._store.finish_cut()
        if self.epochs is not None:
            await self.epochs.history.load()

    async def close(self) -> None:
        await self.leader.follow()
        await self.follower.stop()
