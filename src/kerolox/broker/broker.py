"""The broker: its parts, and the order in which they start and stop."""

from __future__ import annotations

import asyncio
import logging
import os
import random
from collections.abc import Mapping
from contextlib import AsyncExitStack

import kerolox.protocol.fast_codecs  # noqa: F401 — registers the fast codecs
from kerolox.broker.access.room import Access
from kerolox.broker.address import advertised_host, resolve
from kerolox.broker.admin import not_supported
from kerolox.broker.admin.admin import Admin
from kerolox.broker.admin.leader_notices import LeaderNotices
from kerolox.broker.base import Base, lanes_of, set_ages
from kerolox.broker.configured.elections import ByNameServers
from kerolox.broker.configured.followers_progress import FollowersProgress
from kerolox.broker.configured.hand_back import HandBack, waits_for_followers
from kerolox.broker.configured.role_changes import RoleChanges
from kerolox.broker.configured.second_leader import SecondLeader
from kerolox.broker.consume.room import Consuming
from kerolox.broker.controlled.room import Controlled
from kerolox.broker.copies.table_copy import TableCopy
from kerolox.broker.copies.table_watch import TableWatch
from kerolox.broker.dledger.room import DLedger
from kerolox.broker.endpoints import Endpoints, join
from kerolox.broker.exporter import exporter_of
from kerolox.broker.fellows.fellows import Fellows
from kerolox.broker.fellows.group_watch import GroupWatch
from kerolox.broker.fellows.strict_locks import StrictLocks
from kerolox.broker.figures.room import Figures
from kerolox.broker.later.room import Scheduling
from kerolox.broker.members.room import Membership
from kerolox.broker.nameservers.registrations import Registrations, split_nameservers
from kerolox.broker.options import BrokerOptions
from kerolox.broker.pop.room import Popping
from kerolox.broker.produce.room import Producing
from kerolox.broker.remoting.graceful_stop import GracefulStop
from kerolox.broker.remoting.ports import Ports
from kerolox.broker.remoting.room import Remoting
from kerolox.broker.replication.room import Replication
from kerolox.broker.role.elector import Elector
from kerolox.broker.role.leadership import leadership_of
from kerolox.broker.role.settings import check_role
from kerolox.broker.tables.fit_log import FitTables
from kerolox.broker.tables.promotions import Promotions
from kerolox.broker.tables.room import Tables
from kerolox.broker.transactions.room import transactions_of
from kerolox.broker.write.remote_outlet import RemoteOutlet
from kerolox.broker.write.room import WritePath
from kerolox.client.nameservers import NameServers
from kerolox.clock import SYSTEM_CLOCK, Clock
from kerolox.front.caller import Caller, CallerEvents
from kerolox.front.handlers import Handlers
from kerolox.front.rows import rows_of
from kerolox.net.dialer import Dialer
from kerolox.protocol.hosts import host_bytes
from kerolox.protocol.message_id import UniqueKeys
from kerolox.store.disk.files import Files
from kerolox.store.errors import StoreError
from kerolox.store.message_store import MessageStore
from kerolox.store.state import Obstacle

log = logging.getLogger(__name__)


class Broker(CallerEvents):
    """Message broker: stores messages and delivers them. ``async with`` starts and stops it."""

    def __init__(
        self, options: BrokerOptions | None = None, *, clock: Clock = SYSTEM_CLOCK, files: Files | None = None
    ) -> None:
        self.options = options or BrokerOptions()
        self.clock = clock
        self.started = False
        self._files = files
        self._configured_id = self.options.broker_id
        self._old_nameservers: set[str] = set()  # name servers that do not support GET_BROKER_MEMBER_GROUP
        self.ports = Ports(self.options, self, clock)
        self._stop = AsyncExitStack()
        self._closed = False

    @property
    def address(self) -> str:
        """The address at which clients reach the broker, once it has started."""
        return self.endpoints.address

    # --- start and stop --------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start the parts in order. Each is pushed on a stack, so that they stop in the opposite order."""
        options = self.options
        check_role(options)
        options.check_server()
        push, callback = self._stop.push_async_callback, self._stop.callback
        # The address goes into every record, so the ports are bound before the store opens. Clients are
        # admitted only when all parts are running, and name servers send clients only after that.
        await self._bind()
        push(self.ports.followers.close)
        push(self.ports.close)
        await self._open_store()
        push(self.store.close)
        await self._build()
        await self._refuse_second_leader()
        await self.store.finish_cut()
        if self.replication.epochs is not None:
            await self.replication.epochs.history.load()
        for part in (
            self.membership.members, self.consuming.slow_groups, self.figures.stats, self.figures.metrics,
            self.consuming.filters,
        ):  # fmt: skip
            part.start()
            callback(part.close)
        if self.exporter is not None:
            await self.exporter.start()
            push(self.exporter.close)
        callback(self.consuming.waits.close)
        push(self.consuming.pulls.close)
        push(self.popping.pops.close)
        push(self.consuming.group_offsets.close)
        push(self.admin.close)
        await self.later.timers.open()
        push(self.later.timers.close)
        if self.dledger is not None:
            push(self.dledger.leave)  # accepted messages may still be committed
        push(self.leadership.stop)
        await self._take_back()
        await self.leadership.start()
        push(self.ports.close)
        await self.ports.open()
        push(self._answer_waiting)
        push(self.leadership.stop)
        push(self.later.timers.stop)
        push(GracefulStop(self.ports.servers, self.consuming.waits, options, self.clock).send_away)
        push(self.registrations.close)
        push(self.table_copy.close)
        self.table_copy.start()
        push(self.group_watch.close)
        push(self.elector.close)
        await self.elector.start()
        self.group_watch.start()
        self.started = True
        log.info(
            "broker_started name=%s id=%d cluster=%s address=%s listening=%s vip=%s store=%s topics=%d",
            options.broker_name, self.leadership.id, options.cluster, self.address, self.ports.server.address,
            self.ports.vip_server.address, self.store.root, len(self.tables.topics.table.topics),
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

    # --- ports and store -------------------------------------------------------------------------------

    async def _bind(self) -> None:
        options = self.options
        host = await resolve(options.bind_address, "bindAddress")
        ports = await self.ports.bind(host)
        advertised = await advertised_host(
            options.advertised_host, host, split_nameservers(options.nameservers)
        )
        self.endpoints = Endpoints(advertised, *ports, ha_host=options.advertised_ha_host)

    async def _open_store(self) -> None:
        options, endpoints = self.options, self.endpoints
        ip = await resolve(endpoints.host, "brokerIP1")
        host = host_bytes(join(ip, endpoints.port))
        store = MessageStore(
            options,
            files=self._files,
            clock=self.clock,
            store_host=host,
            controlled=options.controlled,
            epoch_path=options.epoch_path or "",
            alone=options.ledger_settings is None or len(options.ledger_settings.peers) == 1,
        )
        self.leadership = leadership_of(store, options)
        await store.open()
        self.store = store
        self.unique_keys = UniqueKeys(host[:-4], os.getpid(), random.getrandbits(32), self.clock.wall_ms)

    # --- the rooms ---------------------------------------------------------------------------------------

    async def _build(self) -> None:
        """Build the rooms from the lowest to the highest: each gets those below it, and connects itself to
        them."""
        self.lanes = lanes_of(self.options, self.clock)
        self.access = access = Access(self.options, str(self.store.root), self.clock)
        base = Base(
            self.options, self.clock, self.store, self.lanes, self.endpoints, self.leadership, access.guard
        )
        self.tables = tables = await Tables.open(base)
        self.promotions = Promotions(tables)
        await access.open()
        self._stop.push_async_callback(access.close)
        access.view.topics, access.view.groups = tables.topics, tables.groups
        self._stop.push_async_callback(tables.saver.close)
        self.membership = membership = Membership(base, tables)
        self.figures = figures = Figures(base, tables, membership)
        self.write_path = path = WritePath(base, tables, figures)
        self.remote_outlet = outlet = RemoteOutlet(self.options, self.clock)
        self._stop.push_async_callback(outlet.close)
        self.later = later = Scheduling(base, tables, figures, path, outlet)
        self.transactions = transactions_of(base, tables, membership, figures, path, outlet)
        self.replication = replication = Replication(base, figures, self.promotions)
        self._stop.push_async_callback(replication.close)
        self.leadership.fit_by(FitTables(self.store, tables))
        self.table_watch = TableWatch(
            self.store,
            tables.offsets,
            self.clock,
            in_sync=None if replication.epochs is None else replication.epochs.in_sync,
            in_ledger=self.options.ledger,
        )
        watch = self.table_watch
        tables.topics.on_change.append(lambda topic: watch.changed("topics"))
        tables.topics.on_removed.append(lambda topic: watch.changed("topics"))
        membership.groups.on_change.append(lambda group: watch.changed("groups"))
        access.file.book.on_change.append(lambda: watch.changed("users"))
        self.leadership.add(watch, path, self.transactions, later.delays, later.timers)
        if not self.options.ledger:
            self.leadership.copied_by(replication.leader)
        if self.options.remote_escape:
            self.leadership.add_acting(outlet, self.transactions, later.delays, later.timers)
        self.ports.followers.accept = replication.leader.accept
        self.consuming = await Consuming.open(base, tables, membership, figures)
        servers = split_nameservers(self.options.nameservers)
        self.popping = await Popping.open(
            base, tables, membership, path, later, self.consuming,
            NameServers(servers, replication.dialer, clock=self.clock) if servers else None,
        )  # fmt: skip
        self.leadership.add(self.popping)
        self.producing = Producing(
            base, tables, membership, figures, path, self.transactions, self.unique_keys
        )
        self.remoting = Remoting(base, figures, path, later)
        self.registrations = Registrations(
            tables.topics,
            self.leadership,
            self.options,
            address=self.endpoints.address,
            ha_address=self.endpoints.ha_address,
            clock=self.clock,
            elector=lambda: self.elector,
            start=base.start,
        )
        tables.topics.on_saved.append(self.registrations.topic_changed)
        membership.heartbeats.announced = self._announced
        self.controlled: Controlled | None = None
        if replication.epochs is not None:
            self.controlled = Controlled(
                base,
                tables,
                figures,
                replication,
                replication.epochs,
                took_role=self.registrations.begin,
            )
            self.controlled.hand_over.write = path.intake.write
            self.controlled.hand_over.is_known = self.registrations.tell_of
            replication.controlled_status = self.controlled.status
        self.dledger: DLedger | None = None
        settings = self.options.ledger_settings
        if settings is not None:
            self.dledger = DLedger(
                base,
                figures,
                settings,
                host=self.ports.server.host,
                took_role=self.registrations.begin,
                ask_who_leads=self.registrations.register_all,
            )
            await self.dledger.bind()
        nameservers = split_nameservers(self.options.nameservers)
        fellows = Fellows(
            replication.dialer, nameservers, self.options, self.address, old=self._old_nameservers
        )
        self.elector: Elector = self.controlled or self.dledger or self._by_name_servers(fellows)
        replication.follower.on_doubt.append(self.elector.doubt)
        self.table_copy = TableCopy(
            self.store,
            self.leadership,
            tables,
            membership.groups,
            later.timers if self.options.timer_wheel else None,
            self.registrations.register_all,
            lambda: replication.follower.agrees if self.dledger is None else self.dledger.follows,
            self.clock,
            address=self.address,
            tls=self.options.own_tls,
            credentials=self.options.own_credentials,
            access=self.access.file if self.options.authentication else None,
            acting=self.options.acting,
            electable=self.options.controlled or self.dledger is not None,
            keeps_topics=self.dledger is not None,
            by_epochs=self.options.controlled,
        )
        replication.follower.on_copying.append(self.table_copy.copy_now)
        self.group_watch = GroupWatch(
            self.leadership,
            tables.topics,
            self.options,
            self.clock,
            nameservers=split_nameservers(self.options.nameservers),
            address=self.endpoints.address,
            copying=lambda: replication.follower.copying,
            changed=self.registrations.register_all,
            old=self._old_nameservers,
        )
        membership.queue_locks.others = StrictLocks(
            self.options, self.group_watch, self.group_watch.dialer, self.endpoints.address
        )
        self.leader_notices = LeaderNotices(
            self.store,
            self.leadership,
            self.endpoints,
            self.group_watch,
            fellows=fellows,
            register=self.registrations.register_all,
            refuses_claims=self.elector.refuses_claims,
        )
        self.admin = Admin(
            base,
            tables,
            membership,
            figures,
            later,
            settled=self.registrations.settled,
            found=self.endpoints.as_options() | {"queue_extension_bits": self.consuming.filters.bloom.bits},
            changed=self.options_changed,
            roles=RoleChanges(
                self.store,
                self.leadership,
                replication.follower,
                fellows,
                self._followers_progress,
                self._register_role,
                self.promotions,
            ),
        )
        self.admin.runtime_info.more.append(replication.runtime_info)
        self.admin.runtime_info.more.append(self.elector.runtime_info)
        doors = (self.ports.handlers, self.ports.vip_handlers)
        self.exporter = exporter_of(
            base, tables, figures, later, self.transactions, self.producing, self.remoting, doors
        )
        self._route()

    def _by_name_servers(self, fellows: Fellows) -> ByNameServers:
        second = SecondLeader(fellows, self.leadership, self.promotions, self.store, self.address)
        return ByNameServers(self.leadership, self.registrations, second, self._configured_id)

    def _route(self) -> None:
        """Assign each request code to its handler and lane."""
        rows = [
            *self.membership.rows(),
            *self.consuming.rows(),
            *self.popping.rows(),
            *self.producing.rows(),
            *self.transactions.rows(),
            *self.admin.rows(),
            *rows_of(self.replication, self.leader_notices, self.table_watch),
            *(() if self.controlled is None else rows_of(self.controlled)),
            *self.access.rows(self.address),
        ]
        served = {row.code for row in rows}
        rows += [row for row in not_supported.ROWS if row.code not in served]
        for handlers in (self.ports.handlers, self.ports.vip_handlers):
            handlers.guard = self.access.guard
        self.ports.serve(self.table_watch.waiting(rows), self.lanes)
        for handlers in (self.ports.handlers, self.ports.vip_handlers):
            handlers.after_pass.append(self.producing.sends.end_pass)
            self.remoting.send_runs.add_to(handlers, self.lanes["send"])

    async def _take_back(self) -> None:
        """Take over the progress of followers from the time this broker was away. Only followers may connect
        meanwhile."""
        options = self.options
        nameservers = split_nameservers(options.nameservers)
        if not self.leadership.begins_as_leader or not nameservers:
            return
        leader = self.replication.leader
        async with Dialer(
            clock=self.clock, tls=options.own_tls, credentials=options.own_credentials
        ) as dialer:
            hand_back = HandBack(
                dialer,
                options,
                self.endpoints,
                self._followers_progress(dialer),
                self.clock,
                nameservers=nameservers,
                flushed=self.store.progress.flushed,
                copying=lambda: [one.address.rpartition(":")[0] for one in leader.followers if one.joined],
                old=self._old_nameservers,
            )
            if not waits_for_followers(options):
                await hand_back.take()
                return
            await self.leadership.let_copy()
            with self.ports.isolated():
                await self.ports.open()
                await hand_back.take()

    def _followers_progress(self, dialer: Dialer) -> FollowersProgress:
        acting = self.options.acting and not self.leadership.acts  # otherwise this broker delivered last
        timers = self.later.timers if acting and self.options.timer_wheel else None
        return FollowersProgress(dialer, self.store, self.tables, timers, acting=acting)

    async def _refuse_second_leader(self) -> None:
        options = self.options
        nameservers = split_nameservers(options.nameservers)
        if self.leadership.begins_as_leader and nameservers:
            async with Dialer(
                clock=self.clock, tls=options.own_tls, credentials=options.own_credentials
            ) as dialer:
                fellows = Fellows(dialer, nameservers, options, self.address, old=self._old_nameservers)
                await fellows.refuse_second_leader(str(self.store.root), self.promotions.number)
        await self._promote_at_start()

    async def _promote_at_start(self) -> None:
        """Count a start as a promotion if this broker followed when it ran last and its settings make it a
        leader."""
        if self.leadership.begins_as_leader and await self.replication.follower.has_followed():
            self.leadership.took_over()
            await self.promotions.promote((), "it followed when it ran last")
            await self.replication.follower.forget_leader()

    async def _register_role(self) -> None:
        self.registrations.register_all()
        await self.registrations.settled()

    @property
    def handlers(self) -> Handlers:
        """The table of handlers that serves the requests of all ports."""
        return self.ports.handlers

    # --- while it runs -------------------------------------------------------------------------------------

    def options_changed(self, changed: Mapping[str, object]) -> None:
        """Apply options that took new values, by our names, and pass on those that other parts have copies
        of."""
        set_ages(self.lanes, self.options)
        self.write_path.options_changed()
        if "strict_locks" in changed:
            self.group_watch.look_now()
        if changed.keys() & {"auto_create_topics", "default_topic_queues"}:
            self.tables.topics.renew_template()
        if "permission" in changed:
            # Name servers reread a topic only when its version has changed.
            self.tables.topics.table.bump()
            self.registrations.register_all()

    def closed(self, caller: Caller, reason: str, /) -> None:
        if not self._closed:
            self.consuming.waits.forget(caller)
            self.table_watch.forget(caller)
            self.membership.members.closed(caller, reason)

    async def settled(self) -> None:
        """Wait until changed topics are on disk and registered at the name servers."""
        await self.tables.topics.unsaved.all_saved()
        await self.registrations.settled()

    async def _announced(self, topic: str) -> None:
        """Wait until this new topic is on disk and registered at the name servers."""
        await self.tables.topics.unsaved.saved(topic)
        await self.registrations.settled()

    async def _answer_waiting(self) -> None:
        """Accept no more messages, and answer the sends that wait for a flush or for replicas before their
        connections are closed."""
        self.write_path.intake.write()
        self.store.state.set(Obstacle.CLOSED, "the broker is stopping")
        try:
            async with asyncio.timeout(self.options.flush_timeout_ms / 1000):
                await self.store.flusher.flush_all()
        except (StoreError, TimeoutError):
            pass  # senders get no answer and send again elsewhere; the store's close reports the failure
        await self.store.acks.settle()
        await asyncio.sleep(0)
