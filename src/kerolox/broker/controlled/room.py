"""A broker under a controller: its place in its group, and its role.

The parts are created and connected here. Requests: NOTIFY_BROKER_ROLE_CHANGED, the controller's notice of a
new leader, and GET_BROKER_EPOCH_CACHE, by which tools query the epochs of the log.
"""

from __future__ import annotations

import logging
from functools import partial

from kerolox.access.needs.kinds import CHANGES, LOOKS
from kerolox.broker.base import Base, Room
from kerolox.broker.controlled.agent import Agent
from kerolox.broker.controlled.controllers import Controllers
from kerolox.broker.controlled.elections import Elections
from kerolox.broker.controlled.hand_over import HandOver
from kerolox.broker.controlled.heartbeats import Heartbeats, LogState
from kerolox.broker.controlled.identity import Identity
from kerolox.broker.controlled.in_sync_changes import InSyncChanges
from kerolox.broker.controlled.known_sets import KnownSets
from kerolox.broker.controlled.leader_addresses import ask_leader
from kerolox.broker.controlled.lease import Lease
from kerolox.broker.controlled.lease_watch import LeaseWatch
from kerolox.broker.nameservers.room import NameServers
from kerolox.broker.replication.room import Replication
from kerolox.broker.role.leader_search import LeaderSearch
from kerolox.broker.role.value import LeaderAddress
from kerolox.broker.tables.room import Tables
from kerolox.broker.write.room import WritePath
from kerolox.front.requests import Answer, Request
from kerolox.front.rows import serves
from kerolox.metric_text import MetricText
from kerolox.protocol.bodies.controller import EpochRanges
from kerolox.protocol.bodies.stats import ControlledStatus
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.headers.controller import BrokerRoleChanged
from kerolox.replication.epoch_mode import EpochMode
from kerolox.replication.link_state import REFUSED

log = logging.getLogger(__name__)

ASK_FIRST_S = 0.02  # first interval of questions for the replication address of the leader
ASK_MAX_S = 1.0


class Controlled(Room):
    """Elector and parts of a broker under a controller."""

    refuses_claims = (
        "a controller elects the leader of this broker (enableControllerMode). Set enableControllerMode "
        "there, too, with the same controllerAddr"
    )

    def __init__(
        self,
        base: Base,
        tables: Tables,
        path: WritePath,
        nameservers: NameServers,
        replication: Replication,
        mode: EpochMode,
    ) -> None:
        options, clock = base.options, base.clock
        self._options = options
        self._store = base.store
        self._leadership = base.leadership
        self._replication = replication
        self._registrations = nameservers.registrations
        self._mode = mode
        self._start = base.start
        self.in_sync = mode.in_sync
        self.controllers = Controllers(options, clock)
        self.identity = Identity(options, base.endpoints.address, clock)
        self.lease = Lease(clock, options.controller_silence_ms / 1000)
        self.heartbeats = Heartbeats(base, self.controllers, self.lease, self._log_state)
        self.search = LeaderSearch(
            base.leadership, partial(ask_leader, base.dialer), clock, first_s=ASK_FIRST_S, max_s=ASK_MAX_S
        )
        known = KnownSets(base.store, self.identity.path)
        self.elections = Elections(base, tables, mode, self.search, known)
        self.watch = LeaseWatch(base, self.lease, lambda: self.agent.last_error)
        self.agent = Agent(
            base,
            self.controllers,
            self.identity,
            self.heartbeats,
            self.watch,
            self.elections,
            self._log_state,
        )
        self.in_sync_changes = InSyncChanges(
            base, mode.in_sync, self.controllers, self.elections, self.agent.look_now
        )
        self.hand_over = HandOver(
            base, path.intake, self._registrations, mode.in_sync, self.controllers, self.elections
        )
        self.identity.on_known.append(mode.known_as)
        self.elections.on_role.append(self.watch.look)
        self.elections.on_role.append(lambda: self._registrations.begin(self))
        self.lease.on_renewed.append(self.agent.look_now)

    @property
    def agrees(self) -> bool:
        return self._replication.follower.agrees

    @property
    def place(self) -> str:
        return f"controller {self.identity.id}"

    async def start(self) -> None:
        self.agent.start()
        self.in_sync_changes.start()

    async def close(self) -> None:
        """Hand over the leadership, then stop. The connections to the controllers are closed last: a leader
        that could not hand over is replaced then."""
        await self.hand_over.hand_over("it stops")
        await self.hand_over.close()
        await self.in_sync_changes.close()
        await self.agent.close()
        await self.search.close()
        await self.elections.close()
        await self.heartbeats.close()
        self.lease.close()
        await self.controllers.close()

    def doubt(self) -> None:
        """Ask for the leader again: it is lost, or cannot be copied from."""
        self.agent.look_now()
        if not self._replication.follower.copying:
            self.elections.lost_leader()
        mastership = self.elections.mastership
        if mastership.is_there and mastership.id != self.identity.id:
            self.search.look_for(mastership.address)

    async def before_registering(self, nameserver: str) -> None: ...

    def reported(self, leader: LeaderAddress | None) -> None:
        """Ignore the leader that name servers report: the controller names it."""

    def _log_state(self) -> LogState | None:
        if self._store.state.fenced:
            return None
        progress, known, mastership = (
            self._store.progress,
            self.elections.known.newest,
            self.elections.mastership,
        )
        leads = self._leadership.leads and self._mode.in_sync.leads
        follower = self._replication.follower
        return LogState(
            self._mode.history.last,
            self._store.log.max_offset,
            progress.confirmed,
            self._start,
            known,
            leads=leads and known.epoch == mastership.epoch and mastership.id == self.identity.id,
            kept=min(progress.confirmed, progress.flushed) if leads else None,
            refusal=follower.text if not leads and follower.state in REFUSED else None,
        )

    # --- for controllers and tools ----------------------------------------------------------------------

    @serves(RequestCode.NOTIFY_BROKER_ROLE_CHANGED, BrokerRoleChanged, CHANGES)
    def role_changed(self, request: Request[BrokerRoleChanged]) -> Answer:
        """Take notice of an elected leader, from the controller."""
        self.agent.notice(request.header, request.body, request.caller.address)
        return Answer()

    @serves(RequestCode.GET_BROKER_EPOCH_CACHE, None, LOOKS)
    def epochs(self, request: Request[None]) -> Answer:
        """Return the epochs of the log."""
        body = EpochRanges(
            broker_id=self._leadership.id,
            broker_name=self._options.broker_name,
            cluster_name=self._options.cluster,
            epoch_list=self._mode.history.ranges(),
            max_offset=self._store.log.max_offset,
        )
        return Answer(body=body.encode())

    def status(self) -> ControlledStatus:
        """Return the status of this broker under the controller."""
        mastership, leads = self.elections.mastership, self._leadership.leads
        return ControlledStatus(
            broker_id=self.identity.id,
            confirmed_offset=self._store.progress.confirmed,
            controller=self.controllers.leader,
            in_sync_set=tuple(sorted(self._mode.in_sync.members)) if leads else None,
            lease_ms=int(self.lease.remaining_s * 1000) if leads else None,
            master_broker_id=mastership.id,
            master_epoch=mastership.epoch,
            waits_for=self._leadership.waits_for or None,
        )

    def runtime_info(self) -> dict[str, object]:
        """Return the same status as text, for tools."""
        status = self.status()
        shown: dict[str, object] = {
            "controllerBrokerId": status.broker_id,
            "controller": status.controller,
            "masterEpoch": status.master_epoch,
            "masterBrokerId": status.master_broker_id,
            "confirmedOffset": status.confirmed_offset,
        }
        if status.waits_for is not None:
            shown["waitsFor"] = status.waits_for
        if status.in_sync_set is not None:
            shown["inSyncSet"] = ";".join(map(str, status.in_sync_set))
            shown["leaseMs"] = status.lease_ms
        return shown

    def metrics(self, out: MetricText) -> None:
        mastership, leads = self.elections.mastership, self._leadership.leads
        out.metric("kerolox_leads", "gauge", "1 if this broker leads its group.", [({}, leads)])
        out.metric(
            "kerolox_master_epoch", "gauge", "Known number of elections of this broker's group.",
            [({}, mastership.epoch)],
        )  # fmt: skip
        out.metric(
            "kerolox_in_sync_replicas", "gauge",
            "Of a leader: replicas with all acknowledged messages, including itself.",
            [({}, len(self._mode.in_sync.members))] if leads else [],
        )  # fmt: skip
        out.metric(
            "kerolox_confirmed_offset", "gauge", "End of the part of the log that may be read.",
            [({}, self._store.progress.confirmed)],
        )  # fmt: skip
        out.metric(
            "kerolox_controller_lease_seconds", "gauge",
            "Of a leader: time for which it accepts messages without controller answers.",
            [({}, self.lease.remaining_s)] if leads else [],
        )  # fmt: skip
