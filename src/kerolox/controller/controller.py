"""The controller: its parts, their start and stop order, and its own elections.

It takes no part in storing messages. While no controller runs no master is elected, no broker joins and no
in-sync set changes; RocketMQ's masters continue, kerolox masters continue until their lease ends.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from kerolox.access.metrics_server import metrics_server
from kerolox.access.server_access import ServerAccess
from kerolox.clock import SYSTEM_CLOCK, Clock, TimerHandle
from kerolox.config_file import ConfigFile
from kerolox.controller.carriers.carrier import Carrier, Deposed, LeadingController
from kerolox.controller.carriers.chosen import chosen_carrier
from kerolox.controller.decision import Decision
from kerolox.controller.figures import ControllerFigures
from kerolox.controller.handlers import NOT_LEADER, ControllerHandlers, GroupHandlers, OptionHandlers
from kerolox.controller.live import LiveTable
from kerolox.controller.notices import RoleNotices
from kerolox.controller.options import ControllerOptions, ControllerPeer
from kerolox.controller.requests import (
    NOBODY,
    ControllerRequest,
    Doubt,
    Elect,
    LastSign,
    Learn,
    Register,
)
from kerolox.controller.state import DoubtChanged, MasterChosen, ReplicaGroup, SetLearned
from kerolox.controller.term import Term
from kerolox.errors import KeroloxError
from kerolox.front.caller import Caller, CallerEvents
from kerolox.front.lanes import BODY_BYTES_MAX, Lane
from kerolox.front.needs import ClusterView
from kerolox.front.requests import Answer
from kerolox.front.rows import rows_of
from kerolox.metric_text import MetricsExporter
from kerolox.net.address import reachable_host
from kerolox.net.dialer import Dialer
from kerolox.net.handlers import RemotingHandlers
from kerolox.net.http_server import HttpServer
from kerolox.net.peer import PeerLimits
from kerolox.net.server import Server
from kerolox.protocol.codes import ResponseCode

log = logging.getLogger(__name__)

FIRST_SCAN_S = 2.0
CAMPAIGN_PAUSE_S = 1.0  # after a failed attempt to become leader


class Controller(CallerEvents):
    """Elects the masters of groups of brokers. ``async with`` starts and stops it."""

    def __init__(
        self,
        options: ControllerOptions | None = None,
        *,
        clock: Clock = SYSTEM_CLOCK,
        carrier: Carrier | None = None,
    ) -> None:
        self.options = options or ControllerOptions()
        self.live = LiveTable(clock)
        self.leading: LeadingController | None = None  # of all controllers of the group
        self.advertised = ""  # address of this controller for others
        self._carrier = carrier or chosen_carrier(self.options, clock)
        self._clock = clock
        self._config_file = ConfigFile(self.options.config_store_path)
        self._dialer = Dialer(clock=clock, tls=self.options.own_tls, credentials=self.options.own_credentials)
        self.access = ServerAccess(self.options, ClusterView(self.options.access_cluster), clock)
        self._notices = RoleNotices(self._dialer)
        self._server: Server | None = None
        self._figures: ControllerFigures | None = None
        self.exporter: HttpServer | None = None
        if self.options.metrics_exporter is MetricsExporter.PROM:
            self._figures = ControllerFigures(self, self.live, self.options, clock)
            self.exporter = metrics_server(self.options, self._figures.pages(), self.access.guard, clock)
        self._term: Term | None = None  # set while this controller leads
        self._deposed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._electing: set[str] = set()  # groups
        self._not_elected: dict[str, str | None] = {}  # by group: the reason logged last
        self._learning: set[str] = set()  # groups
        self._scans: dict[str, TimerHandle] = {}
        self._doubted_all = False  # true once this state was found to be an older copy
        self._closed = False

    async def start(self) -> None:
        self.options.check_server()
        peer = self.options.own_peer
        await self.access.open()
        self._server = Server(
            self._handlers(),
            host=self.options.bind_address,
            port=self.options.listen_port if peer is None else peer.port,
            events=self,
            limits=PeerLimits(idle_s_max=self.options.server_channel_max_idle_time_seconds),
            for_each_address=self.options.connections_for_each_address,
            tls=self.options.tls,
            clock=self._clock,
        )
        await self._server.bind()
        host = (
            await asyncio.to_thread(reachable_host, self.options.bind_address) if peer is None else peer.host
        )
        self.advertised = ControllerPeer(self.options.self_id, host, self.port).address
        await self._carrier.open()
        if self.exporter is not None:
            await self.exporter.start()
        self._start(self._watch())
        self._start(self._campaign())
        await self._server.start()
        self._scan("quiet", FIRST_SCAN_S, self._forget_quiet)
        self._scan("masters", self.options.scan_inactive_master_interval / 1000, self._look_for_masters)
        log.info("controller_started address=%s advertised=%s", self.address, self.advertised)

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        for scan in self._scans.values():
            scan.cancel()
        if self._server is not None:
            await self._server.close()
        if self.exporter is not None:
            await self.exporter.close()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)
        self._notices.close()
        await self._dialer.close()
        await self.access.close()
        await self._carrier.close()
        await self._config_file.close()
        log.info("controller_stopped address=%s", self.address)

    async def __aenter__(self) -> Controller:
        try:
            await self.start()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    @property
    def address(self) -> str:
        """Listen address, as ``ip:port``."""
        return "" if self._server is None else self._server.address

    @property
    def port(self) -> int:
        return 0 if self._server is None else self._server.port

    @property
    def is_leader(self) -> bool:
        return self._leading_term() is not None

    @property
    def groups(self) -> dict[str, ReplicaGroup]:
        """The groups; empty while this controller does not lead."""
        term = self._leading_term()
        return {} if term is None else dict(term.state.groups)

    def _handlers(self) -> RemotingHandlers:
        # Heartbeats must be processed while any number of changes wait: they are plain functions and never
        # wait.
        lane = Lane("controller", running_max=1000, body_bytes_max=BODY_BYTES_MAX, clock=self._clock)
        own = OptionHandlers(self.options, self._config_file, lambda: self.port, self.options.black_listed)
        figures = self._figures
        handlers = RemotingHandlers(self.access.guard, None if figures is None else figures.answered)
        parts = GroupHandlers(self, self.live, self.options), ControllerHandlers(self, self.options), own
        for part in parts:
            handlers.serve(rows_of(part), {lane.name: lane})
        return handlers

    # --- leading ------------------------------------------------------------------------------

    async def _watch(self) -> None:
        """Follow the leading controller, and step down when another one leads."""
        async for leader in self._carrier.watch():
            self.leading = leader
            if self._term is not None and (leader is None or leader.token != self._term.token):
                self._step_down("no controller leads" if leader is None else "another controller leads")

    async def _campaign(self) -> None:
        """Become leader whenever possible."""
        complaint = ""
        while True:
            try:
                token = await self._carrier.lead(self.options.self_id, self.advertised)
                stored = await self._carrier.load()
            except KeroloxError as error:
                if complaint != (complaint := str(error)):
                    log.warning("not_leading error=%r next='retried until it succeeds'", complaint)
                await self._clock.sleep(CAMPAIGN_PAUSE_S)
                continue
            complaint = ""
            self._deposed.clear()
            self.live.begin()
            self._term = Term(self._carrier, token, stored, self.live, self._clock)
            log.info("controller_leads token=%d groups=%d", token, len(stored.state.groups))
            doubted = sorted(name for name, group in stored.state.groups.items() if group.is_doubted)
            if doubted:
                log.warning(
                    "state_is_older groups=%r next='no master is elected for them until all in-sync replicas "
                    "have reported the set they know: kerolox controller status lists those missing'",
                    doubted,
                )
            self._look_for_masters()
            await self._deposed.wait()

    def _step_down(self, why: str) -> None:
        log.warning("controller_deposed why=%r next='brokers find the new leader'", why)
        self._term = None
        self._deposed.set()

    def _leading_term(self) -> Term | None:
        """Return the term if this controller certainly leads: its lease may end before it is notified."""
        term = self._term
        return term if term is not None and self._carrier.holds(term.token) else None

    # --- deciding -----------------------------------------------------------------------------

    def look(self, request: ControllerRequest) -> Answer:
        term = self._leading_term()
        return NOT_LEADER if term is None else term.look(request).answer

    async def change(self, request: ControllerRequest) -> Answer:
        term = self._leading_term()
        if term is None:
            return NOT_LEADER
        before = term.state
        try:
            decision = await term.change(request)
        except Deposed as error:
            if self._term is term:
                self._step_down(str(error))
            return NOT_LEADER
        if self._figures is not None:
            self._figures.decided(request, decision)
        # The requesting broker gets the result in the answer; a registering broker does not listen yet.
        by = NOBODY
        if isinstance(request, Register) or (isinstance(request, Elect) and not request.is_wanted):
            by = request.id
        if decision.events:
            self._tell_learned(before.groups.get(decision.events[0].group), term, decision)
        self._tell(term, decision, by)
        if isinstance(request, Register):
            self._note_successor(before.groups.get(request.group), request)
        return decision.answer

    def knows(self, group: str, id: int, start: int | None = None) -> bool:
        term = self._leading_term()
        if term is None:
            return True
        known = term.state.groups.get(group)
        if known is None or id not in known.replicas:
            return False
        own = known.replicas[id].start
        return start is None or own in (None, start)

    def heard(self, group: str, id: int, sign: LastSign) -> None:
        term = self._leading_term()
        if term is not None and term.heard(group, id, sign) and group not in self._learning:
            self._learning.add(group)
            self._start(self._learn_now(group))

    async def _learn_now(self, group: str) -> None:
        try:
            await self.change(Learn(group))
        except KeroloxError as error:
            log.warning(
                "not_learned group=%r error=%r next='retried with the next heartbeat'", group, str(error)
            )
        finally:
            self._learning.discard(group)

    def _note_successor(self, before: ReplicaGroup | None, request: Register) -> None:
        """Remember the process that another one replaced at the same address."""
        replica = None if before is None else before.replicas.get(request.id)
        after = self.groups.get(request.group)
        if replica is None or replica.start is None or after is None or request.id not in after.replicas:
            return
        if after.replicas[request.id].start != replica.start:
            self.live.replaced((request.group, request.id), replica.start)

    def _tell_learned(self, before: ReplicaGroup | None, term: Term, decision: Decision) -> None:
        """Log newer facts that a broker reported. The other groups of this state may be as old: doubt them
        too."""
        for event in decision.events:
            if isinstance(event, SetLearned) and before is not None:
                log.warning(
                    "state_is_older group=%r epoch=%d set_epoch=%d in_sync=%s known_epoch=%d "
                    "known_set_epoch=%d known_in_sync=%s next='the broker's report replaces the state; no "
                    "master is elected until all in-sync replicas have reported the set they know'",
                    event.group, before.master_epoch, before.in_sync_epoch, sorted(before.in_sync),
                    event.epoch, event.in_sync_epoch, sorted(event.in_sync),
                )  # fmt: skip
                for other in term.state.groups:
                    if other != event.group and not self._doubted_all:
                        self._start(self._doubt_now(other))
                self._doubted_all = True
            elif isinstance(event, DoubtChanged) and not event.is_doubted:
                log.info(
                    "state_is_newest group=%r reason='all in-sync replicas have reported the set they know'",
                    event.group,
                )

    async def _doubt_now(self, group: str) -> None:
        try:
            await self.change(Doubt(group))
        except KeroloxError as error:
            log.warning("not_doubted group=%r error=%r", group, str(error))

    def epoch(self, group: str) -> int | None:
        term = self._leading_term()
        if term is None:
            return None
        known = term.state.groups.get(group)
        return 0 if known is None else known.master_epoch

    def _tell(self, term: Term, decision: Decision, by: int) -> None:
        """Log elections and notify the brokers, except the one that asked."""
        for event in decision.events:
            group = term.state.groups.get(event.group)
            if not isinstance(event, MasterChosen) or group is None:
                continue
            if event.id is None:
                log.warning(
                    "no_master group=%r epoch=%d in_sync=%s next='start an in-sync replica'",
                    group.name,
                    group.master_epoch,
                    sorted(group.in_sync),
                )
                continue
            log.log(
                logging.WARNING if event.lost else logging.INFO,
                "master_elected group=%r id=%d address=%r epoch=%d%s",
                group.name,
                event.id,
                group.address(event.id),
                group.master_epoch,
                f" lost_bytes={event.lost}" if event.lost else "",
            )
            if self.options.notify_broker_role_changed:
                alive = self.live.view([group.name]).of(group.name)
                self._notices.send(group, [id for id in alive if id in group.replicas and id != by])

    # --- masters that go ----------------------------------------------------------------------

    def closed(self, caller: Caller, reason: str, /) -> None:
        if self._closed:
            return
        for group, id in self.live.lose(caller):
            self._lost(group, id, reason)

    def _forget_quiet(self) -> None:
        for (group, id), caller in self.live.expire():
            caller.close("its broker sent no heartbeat in time")
            self._lost(group, id, "no heartbeat in time")
        self._scan("quiet", self.options.scan_not_active_broker_interval / 1000, self._forget_quiet)

    def _lost(self, group: str, id: int, reason: str) -> None:
        log.info("broker_lost group=%r id=%d reason=%r", group, id, reason)
        known = self.groups.get(group)
        if known is not None and known.master == id:
            self._elect(group)

    def _look_for_masters(self) -> None:
        """Elect masters for groups without a living master that have a living replica."""
        groups = self.groups
        live = self.live.view(groups)
        self._not_elected = {name: why for name, why in self._not_elected.items() if name in groups}
        for name, group in groups.items():
            alive = live.of(name)
            if group.master_epoch > 0 and group.master not in alive and alive.keys() & group.replicas.keys():
                self._elect(name)
        self._scan("masters", self.options.scan_inactive_master_interval / 1000, self._look_for_masters)

    def _elect(self, group: str) -> None:
        if group not in self._electing:
            self._electing.add(group)
            self._start(self._elect_now(group))

    async def _elect_now(self, group: str) -> None:
        try:
            unclean = self.options.enable_elect_unclean_master
            answer = await self.change(Elect(group=group, allow_unclean=unclean))
            log.debug("election group=%r code=%d remark=%r", group, answer.code, answer.remark)
            why = answer.remark if answer.code == ResponseCode.CONTROLLER_MASTER_NOT_AVAILABLE else None
            if why != self._not_elected.get(group):
                self._not_elected[group] = why
                if why is not None:
                    log.warning("nobody_elected group=%r reason=%r next='retried automatically'", group, why)
        except KeroloxError as error:
            log.warning("election_failed group=%r error=%r next='retried automatically'", group, str(error))
        finally:
            self._electing.discard(group)

    # --- tasks --------------------------------------------------------------------------------

    def _scan(self, name: str, delay_s: float, look: Any) -> None:
        if name in self._scans:
            self._scans[name].cancel()
        if not self._closed:
            self._scans[name] = self._clock.beat(delay_s, look)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
