"""The broker: its rooms, and the order in which they start and stop."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import AsyncExitStack

import kerolox.protocol.fast_codecs  # noqa: F401 — registers the fast codecs
from kerolox.broker.access.room import Access
from kerolox.broker.address import advertised_host, resolve
from kerolox.broker.admin import not_supported
from kerolox.broker.admin.broker_admin import BrokerAdmin
from kerolox.broker.admin.ha_status import HaStatusRequests
from kerolox.broker.admin.leader_notices import LeaderNotices
from kerolox.broker.admin.room import Admin
from kerolox.broker.base import Base, Started, Step, lanes_of, set_ages
from kerolox.broker.configured.room import Configured
from kerolox.broker.consume.filters import Filters
from kerolox.broker.consume.room import Consuming
from kerolox.broker.controlled.room import Controlled
from kerolox.broker.copies.room import Copies
from kerolox.broker.dledger.room import DLedger
from kerolox.broker.endpoints import Endpoints, join
from kerolox.broker.fellows.room import Fellowship
from kerolox.broker.figures.meters import Meters
from kerolox.broker.figures.room import Figures
from kerolox.broker.figures.runtime_info import RuntimeInfo
from kerolox.broker.later.room import Scheduling
from kerolox.broker.listeners import listen
from kerolox.broker.members.room import Membership
from kerolox.broker.nameservers.group_members import split_nameservers
from kerolox.broker.nameservers.room import NameServers
from kerolox.broker.options import BrokerOptions
from kerolox.broker.pop.outstanding import Outstanding
from kerolox.broker.pop.room import Popping
from kerolox.broker.produce.room import Producing
from kerolox.broker.proxy.room import Proxy
from kerolox.broker.remoting.graceful_stop import GracefulStop
from kerolox.broker.remoting.ports import Ports
from kerolox.broker.remoting.room import Remoting
from kerolox.broker.replication.room import Replication
from kerolox.broker.role.leadership import leadership_of
from kerolox.broker.role.settings import check_role
from kerolox.broker.tables.fit_log import FitTables
from kerolox.broker.tables.room import Tables
from kerolox.broker.transactions.room import transactions_of
from kerolox.broker.write.room import WritePath
from kerolox.clock import SYSTEM_CLOCK, Clock
from kerolox.front.caller import Caller, CallerEvents
from kerolox.front.handlers import Handlers
from kerolox.front.rows import rows_of
from kerolox.metric_text import MetricsExporter
from kerolox.net.dialer import Dialer
from kerolox.protocol.hosts import host_bytes
from kerolox.store.disk.files import Files
from kerolox.store.message_store import MessageStore

log = logging.getLogger(__name__)


class Broker(CallerEvents):
    """Message broker: stores messages and delivers them. ``async with`` starts and stops it."""

    def __init__(
        self, options: BrokerOptions | None = None, *, clock: Clock = SYSTEM_CLOCK, files: Files | None = None
    ) -> None:
        self.options = options or BrokerOptions()
        self.clock = clock
        self.started = False
        self._files = files or Files()
        self._stop = AsyncExitStack()
        self._closed = False

    @property
    def address(self) -> str:
        """The address at which clients reach the broker, once it has started."""
        return self.endpoints.address

    @property
    def grpc_address(self) -> str:
        """The address of the gRPC port; empty if the broker has none."""
        return self.proxy.address

    @property
    def handlers(self) -> Handlers:
        """The table of handlers that serves the requests of all ports."""
        return self.ports.handlers

    # --- start and stop --------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start everything in order. Each part is pushed on a stack, so that they stop in the opposite order.

        The address goes into every record, so the ports are bound before the store opens. Clients are
        admitted only when all parts are running, and name servers send clients only after that.
        """
        check_role(self.options)
        self.options.check_server()
        base = await self._open()
        self._build(base)
        for room in self._rooms():
            await room.start()
            self._stop.push_async_callback(room.close)
        self.started = True
        log.info(
            "broker_started name=%s id=%d cluster=%s address=%s listening=%s vip=%s store=%s topics=%d",
            self.options.broker_name, self.leadership.id, self.options.cluster, self.address,
            self.ports.server.address, self.ports.vip_server.address, self.store.root,
            len(self.tables.topics.table.topics),
        )  # fmt: skip

    async def close(self) -> None:
        """Stop: accept no more clients, finish the requests in progress, then flush everything to the
        disk."""
        if self._closed:
            return
        self._closed = True
        await self._stop.aclose()
        if self.started:
            log.info("broker_stopped name=%s address=%s", self.options.broker_name, self.address)

    async def __aenter__(self) -> Broker:
        try:
            await self.start()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    def _rooms(self) -> list[Started]:
        """Return what starts once all rooms are made, in order. It closes in the opposite order."""
        leader_start, ports = self.configured.leader_start, self.ports
        going_away = GracefulStop(ports.servers, self.consuming.waits, self.options, self.clock)
        return [
            self.write_path,
            Step(start=leader_start.check),
            self.replication,
            self.membership,
            self.consuming,
            self.popping,
            self.figures,
            Step(close=self.broker_admin.close),
            self.later,
            # It closes late: accepted messages may still be committed.
            Step() if self.dledger is None else Step(self.dledger.bind, self.dledger.leave),
            Step(close=self.leadership.stop),
            Step(start=leader_start.lead),
            Step(ports.open, ports.close),
            Step(close=self.write_path.answer_waiting),
            Step(close=self.leadership.stop),
            Step(close=self.later.timers.stop),
            Step(close=going_away.send_away),
            self.nameservers,
            self.copies,
            self.elector,
            self.fellowship,
            self.proxy,
        ]

    # --- ports, store and tables -----------------------------------------------------------------------

    async def _open(self) -> Base:
        """Open what the rooms are made of."""
        options, clock, push = self.options, self.clock, self._stop.push_async_callback
        dialer = Dialer(clock=clock, tls=options.own_tls, credentials=options.own_credentials)
        push(dialer.close)  # the last one: every other part may use it
        self.access = Access(options, clock, lambda: self.tables)
        self.meters = None
        if options.metrics_exporter is MetricsExporter.PROM:
            self.meters = Meters(clock, lambda topic: self.tables.topics.is_system(topic))
        answered = None if self.meters is None else self.meters.answered
        self.ports = Ports(options, clock, self, self.access.guard, answered)
        await self._bind()
        push(self.ports.followers.close)
        push(self.ports.close)
        self.filters = Filters.of(self._files, options, clock)
        self.store = await self._new_store()
        self.leadership = leadership_of(self.store, options)
        await self.store.open()
        push(self.store.close)
        self.tables = Tables(self.store, options, clock)
        push(self.tables.close)
        await self.tables.start()
        push(self.access.close)
        await self.access.start()
        self.lanes = lanes_of(options, clock)
        return Base(
            options,
            clock,
            self.store,
            self.lanes,
            self.endpoints,
            self.leadership,
            self.access.guard,
            dialer,
        )

    async def _bind(self) -> None:
        options = self.options
        host = await resolve(options.bind_address, "bindAddress")
        ports = await self.ports.bind(host)
        advertised = await advertised_host(
            options.advertised_host, host, split_nameservers(options.nameservers)
        )
        self.endpoints = Endpoints(advertised, *ports, ha_host=options.advertised_ha_host)

    async def _new_store(self) -> MessageStore:
        options = self.options
        ip = await resolve(self.endpoints.host, "brokerIP1")
        return MessageStore(
            options,
            files=self._files,
            clock=self.clock,
            store_host=host_bytes(join(ip, self.endpoints.port)),
            controlled=options.controlled,
            epoch_path=options.epoch_path or "",
            alone=options.ledger_settings is None or len(options.ledger_settings.peers) == 1,
            bits_of=self.filters.bits_of,
        )

    # --- the rooms -------------------------------------------------------------------------------------

    def _build(self, base: Base) -> None:
        """Make the rooms from the lowest to the highest: each gets those below it."""
        tables = self.tables
        self.nameservers = nameservers = NameServers(base, tables)
        self.membership = membership = Membership(base, tables, nameservers, self.filters.known)
        outstanding = Outstanding()
        self.figures = figures = Figures(base, tables, membership, self.meters, outstanding.progress)
        self.write_path = path = WritePath(base, tables, figures)
        self.later = later = Scheduling(base, tables, figures, path)
        self.transactions = transactions_of(base, tables, membership, path)
        self.consuming = Consuming(base, tables, membership, figures, self.filters)
        self.popping = Popping(base, tables, membership, path, later, self.consuming, outstanding)
        self.producing = Producing(base, tables, membership, figures, path, self.transactions)
        self.replication = replication = Replication(base, tables)
        self.fellowship = fellowship = Fellowship(base, tables, nameservers, membership, replication)
        self.configured = Configured(
            base, tables, later, nameservers, fellowship, replication, self.ports.only_followers
        )
        self.controlled = self.dledger = None
        settings = self.options.ledger_settings
        if replication.epochs is not None:
            self.controlled = Controlled(base, tables, path, nameservers, replication, replication.epochs)
        elif settings is not None:
            self.dledger = DLedger(base, nameservers, settings, self.ports.server.host)
        self.elector = elector = self.controlled or self.dledger or self.configured.elector
        self.copies = Copies(base, tables, self.access, membership, later, nameservers, elector)
        self.remoting = Remoting(base, figures, path, later)
        self.proxy = Proxy(base, tables, membership, self.ports.handlers, self)
        self._build_admin(base)
        self._add_parts_of_leader()
        listen(self)
        self._route(base)

    def _build_admin(self, base: Base) -> None:
        self.admin = Admin(base, self.tables, self.membership, self.figures, self.nameservers)
        info = [self.replication.runtime_info, self.elector.runtime_info]
        if self.options.timer_wheel:
            info.insert(0, self.later.timer_figures.runtime_info)
        stats = self.figures.stats
        self.broker_admin = BrokerAdmin(
            base,
            stats,
            RuntimeInfo(base, stats, self.tables.delay_offsets, info),
            self.later.timers,
            self.nameservers.registrations,
            self.configured.changes,
            self.options_changed,
        )

    def _add_parts_of_leader(self) -> None:
        """Add the parts that do the work of a leader, in the order in which they begin."""
        leadership, replication, later = self.leadership, self.replication, self.later
        leadership.fit_by(FitTables(self.store, self.tables))
        leadership.add(self.copies.watch, self.write_path, self.transactions)
        leadership.add(later.delays, later.timers, self.popping)
        if not self.options.ledger:  # members of a DLedger group replicate entries themselves
            leadership.follow_by(replication.follower)
            leadership.copied_by(replication.leader)
        if replication.epochs is not None:
            leadership.confirmed_by(replication.epochs.in_sync)
        if self.options.remote_escape:
            leadership.add_acting(self.write_path.outlet, self.transactions, later.delays, later.timers)
        self.ports.followers.open(replication.leader.accept)

    def _route(self, base: Base) -> None:
        """Assign each request code to its handler and lane."""
        notices = LeaderNotices(base, self.nameservers, self.fellowship, self.elector)
        ha_status = HaStatusRequests(base, self.replication, self.elector)
        rows = [
            *self.membership.rows(),
            *self.consuming.rows(),
            *self.popping.rows(),
            *self.producing.rows(),
            *self.transactions.rows(),
            *self.admin.rows(),
            *rows_of(self.broker_admin, self.fellowship.locks, self.copies.watch, notices, ha_status),
            *(() if self.controlled is None else rows_of(self.controlled)),
            *self.access.rows(self.address),
        ]
        served = {row.code for row in rows}
        rows += [row for row in not_supported.ROWS if row.code not in served]
        self.ports.serve(self.copies.watch.waiting(rows), self.lanes)
        for handlers in (self.ports.handlers, self.ports.vip_handlers):
            handlers.after_pass.append(self.producing.sends.end_pass)
            self.remoting.send_runs.add_to(handlers, self.lanes["send"])

    # --- while it runs -----------------------------------------------------------------------------------

    def options_changed(self, changed: Mapping[str, object]) -> None:
        """Apply options that took new values, by our names, and pass on those that other parts have copies
        of."""
        set_ages(self.lanes, self.options)
        self.write_path.options_changed()
        if "strict_locks" in changed:
            self.fellowship.watch.look_now()
        if changed.keys() & {"auto_create_topics", "default_topic_queues"}:
            self.tables.topics.renew_template()
        if "permission" in changed:
            # Name servers reread a topic only when its version has changed.
            self.tables.topics.table.bump()
            self.nameservers.registrations.register_all()

    def closed(self, caller: Caller, reason: str, /) -> None:
        if not self._closed:
            self.consuming.waits.forget(caller)
            self.copies.watch.forget(caller)
            self.membership.members.closed(caller, reason)
