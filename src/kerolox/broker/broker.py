"""The broker: its parts, and the order they start and stop in."""

from __future__ import annotations

import asyncio
import logging
import os
import random
from collections.abc import Iterable, Mapping
from contextlib import AsyncExitStack

import kerolox.protocol.fast_codecs  # noqa: F401 — the short way through the codecs
from kerolox.broker.absent import report_from_before
from kerolox.broker.admin.admin import Admin
from kerolox.broker.cluster.address import advertised_host, join, resolve
from kerolox.broker.cluster.graceful_stop import GracefulStop
from kerolox.broker.cluster.ha_port import HaPort
from kerolox.broker.cluster.leadership import Leadership
from kerolox.broker.cluster.registration import Registrations, split_nameservers
from kerolox.broker.consume.commits import Commits, Resets
from kerolox.broker.consume.filters import Filters
from kerolox.broker.consume.pulls import Pulls
from kerolox.broker.consume.queries import Queries
from kerolox.broker.consume.waiting_pulls import WaitingPulls
from kerolox.broker.exporter import exporter
from kerolox.broker.figures.metrics import Metrics
from kerolox.broker.figures.stats import Statistics
from kerolox.broker.later.delays import SCHEDULE_GROUP, Delays
from kerolox.broker.later.timer_figures import TimerFigures
from kerolox.broker.later.timer_sends import TimerSends
from kerolox.broker.later.timers import Timers
from kerolox.broker.members.groups import Groups, SlowGroups
from kerolox.broker.members.heartbeats import Heartbeats
from kerolox.broker.members.members import Members
from kerolox.broker.members.queue_locks import QueueLocks
from kerolox.broker.options import BrokerOptions
from kerolox.broker.produce.recalls import Recalls
from kerolox.broker.produce.replies import Replies
from kerolox.broker.produce.retries import Retries
from kerolox.broker.produce.send_runs import SendRuns
from kerolox.broker.produce.sends import Sends
from kerolox.broker.tables.lost_tables import mind_lost_tables
from kerolox.broker.tables.saver import TablesSaver
from kerolox.broker.tables.topics import Topics
from kerolox.broker.transactions.transactions import Transactions
from kerolox.broker.write.admission import Admission
from kerolox.broker.write.intake import LogWrites
from kerolox.broker.write.pending_message import PendingMessages
from kerolox.clock import SYSTEM_CLOCK, Clock
from kerolox.net.lanes import BODY_BYTES_MAX, Lane
from kerolox.net.peer import Budgets, Peer, PeerEvents, PeerLimits
from kerolox.net.requests import Handlers, Row
from kerolox.net.server import ListenFailed, Server
from kerolox.options import check_present
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.headers.pull import PullRequest
from kerolox.protocol.headers.send import SendRequest, SendRequestV2
from kerolox.protocol.hosts import host_bytes
from kerolox.protocol.message_id import UniqueKeys
from kerolox.protocol.reserved import SCHEDULE_TOPIC
from kerolox.store.disk.files import Files
from kerolox.store.errors import StoreError
from kerolox.store.log.cursors import LIGHT_PREFIX
from kerolox.store.message_store import MessageStore
from kerolox.store.state import Obstacle
from kerolox.store.tables.groups import GroupTable
from kerolox.store.tables.offsets import ConsumerOffsets, DelayOffsets, LightOffsets
from kerolox.store.tables.request_modes import RequestModes
from kerolox.store.tables.timer_counts import TimerCounts
from kerolox.store.tables.topics import TopicTable
from kerolox.store.tables.transaction_counts import TransactionCounts

log = logging.getLogger(__name__)

TIMER_COUNTS_MS = 10_000  # how often figures of the timer are saved
BIND_TRIES = 50  # for a free port whose neighbours, two below and one above, are free too
# The second port answers everything but these: nothing there waits long.
NOT_ON_VIP_PORT = frozenset({
    RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE, RequestCode.POP_MESSAGE,
    RequestCode.PEEK_MESSAGE, RequestCode.NOTIFICATION, RequestCode.POLLING_INFO,
})  # fmt: skip


class Broker(PeerEvents):
    """Stores messages and hands them out. ``async with`` starts and stops it."""

    def __init__(
        self, options: BrokerOptions | None = None, *, clock: Clock = SYSTEM_CLOCK, files: Files | None = None
    ) -> None:
        self.options = options or BrokerOptions()
        self.clock = clock
        self.address = ""  # where clients reach it
        self.ha_address = ""
        self.started = False
        self._files = files
        self._handlers = Handlers()
        self._vip_handlers = Handlers()
        self._budgets = Budgets()  # of the connections of both ports
        self._stop = AsyncExitStack()
        self._closed = False

    # --- start and stop --------------------------------------------------------------------------------

    async def start(self) -> None:
        """What is started is pushed on a stack, so that stopping is the same way back."""
        options = self.options
        check_present(options)
        push, callback = self._stop.push_async_callback, self._stop.callback
        # The address goes into every record, so the ports are taken before the store opens. Nobody is let
        # in before all parts are there, and name servers send nobody before that.
        server, vip_server, followers = await self._bind()
        push(followers.close)
        push(server.close)
        push(vip_server.close)
        await self._open_store()
        push(self.store.close)
        await self._load_tables()
        self._build()
        push(self.saver.close)
        for part in (self.members, self.slow_groups, self.stats, self.metrics, self.filters):
            part.start()
            callback(part.close)
        if self.http is not None:
            await self.http.start()
            push(self.http.close)
        callback(self.waiting.close)
        push(self.pulls.close)
        push(self.commits.close)
        push(self.admin.close)
        await self.transactions.load()
        await self.delays.load()
        await self.timers.open()
        push(self.timers.close)
        await server.start()
        push(server.close)
        await vip_server.start()
        push(vip_server.close)
        push(self._answer_flushed)
        self.timers.start()
        push(self.timers.stop)
        self.transactions.start()
        push(self.transactions.close)
        push(self.delays.close)
        await self.delays.start()
        push(GracefulStop((server, vip_server), self.waiting, options, self.clock).send_away)
        push(self.registrations.close)
        await self.registrations.start()
        self.started = True
        log.info(
            "broker_started name=%s id=%d cluster=%s address=%s listening=%s vip=%s store=%s topics=%d",
            options.broker_name, options.broker_id, options.cluster, self.address, server.address,
            vip_server.address, self.store.root, len(self.topics.table.topics),
        )  # fmt: skip

    async def close(self) -> None:
        """Stop: first nobody comes any more, then what is under way ends, then all of it reaches the disk."""
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

    async def _bind(self) -> tuple[Server, Server, HaPort]:
        options = self.options
        host = await resolve(options.bind_address, "bindAddress")
        for tries in range(1, BIND_TRIES + 1):
            server = self._listener(self._handlers, host, options.listen_port)
            await server.bind()
            vip_port = options.vip_port if options.vip_port >= 0 else max(0, server.port - 2)
            vip_server = self._listener(self._vip_handlers, host, vip_port)
            followers = HaPort(host, options.ha_port if options.ha_port >= 0 else server.port + 1)
            try:
                await vip_server.bind(fresh=not options.listen_port)
                await followers.start()
                break
            except ListenFailed:
                await vip_server.close()
                await server.close()
                if options.listen_port or tries == BIND_TRIES:
                    raise
        # What tools that ask for the options are told.
        options.listen_port, options.vip_port = server.port, vip_server.port
        options.ha_port = followers.port
        options.advertised_host = await advertised_host(
            options.advertised_host, host, split_nameservers(options.nameservers)
        )
        self.address = join(options.advertised_host, options.listen_port)
        self.ha_address = join(options.advertised_host, options.ha_port)
        return server, vip_server, followers

    def _listener(self, handlers: Handlers, host: str, port: int) -> Server:
        return Server(
            handlers,
            host=host,
            port=port,
            events=self,
            limits=PeerLimits(idle_s_max=self.options.idle_s_max),
            budgets=self._budgets,
            tls=self.options.tls,
            clock=self.clock,
        )

    async def _open_store(self) -> None:
        options = self.options
        ip = await resolve(options.advertised_host, "brokerIP1")
        host = host_bytes(join(ip, options.listen_port))
        store = MessageStore(options, files=self._files, clock=self.clock, store_host=host)
        self.leadership = Leadership(store.state, options.role)
        await store.open()
        self.store = store
        self.unique_keys = UniqueKeys(host[:-4], os.getpid(), random.getrandbits(32), self.clock.wall_ms)

    async def _load_tables(self) -> None:
        options, store, clock = self.options, self.store, self.clock
        directory = store.path("config")
        self.topics = Topics(TopicTable(store.files, directory, clock=clock), options)
        self.group_table = GroupTable(store.files, directory, clock=clock)
        self.offsets = (LightOffsets if options.light_queues else ConsumerOffsets)(
            store.files, directory, clock=clock, version_step=options.offsets_version_step
        )

        self.delay_offsets = DelayOffsets(
            store.files, directory, clock=clock, version_step=options.delays_version_step
        )
        self.modes = RequestModes(store.files, directory, clock=clock)
        self.transaction_counts = TransactionCounts(store.files, directory, clock=clock)

        def load() -> None:
            for table in (self.topics.table, self.group_table, self.offsets, self.delay_offsets, self.modes):
                table.load()
            self.transaction_counts.load()

        # Only after the store's lock was taken: loading may put a backup in place of a broken file.
        await asyncio.get_running_loop().run_in_executor(store.keeper, load)
        report_from_before(self.topics.table.topics, self.modes.modes)
        self.filters = await asyncio.get_running_loop().run_in_executor(
            store.keeper, Filters.of, store, options, clock
        )

    # --- the parts ---------------------------------------------------------------------------------------

    def _build(self) -> None:
        options, clock, store = self.options, self.clock, self.store
        self.lanes = {
            "send": Lane("send", age_s_max=options.send_wait_ms / 1000, clock=clock),
            "pull": Lane("pull", waiting_max=100_000, age_s_max=options.pull_wait_ms / 1000, clock=clock),
            "heartbeat": Lane(
                "heartbeat", waiting_max=50_000, age_s_max=options.heartbeat_wait_ms / 1000, clock=clock
            ),
            "reply": Lane("reply", running_max=1024, clock=clock),  # each waits for a client
            "transaction": Lane(
                "transaction",
                waiting_max=100_000,
                age_s_max=options.transaction_wait_ms / 1000,
                clock=clock,
            ),
            "query_message": Lane("query_message", waiting_max=20_000, clock=clock),
            "client_manager": Lane("client_manager", waiting_max=1_000_000, age_s_max=31.0, clock=clock),
            "consumer_manager": Lane("consumer_manager", waiting_max=1_000_000, age_s_max=31.0, clock=clock),
            "admin": Lane("admin", running_max=16, age_s_max=options.admin_wait_ms / 1000, clock=clock),
        }
        for name, lane in self.lanes.items():
            if name not in ("send", "reply"):  # those bring messages
                lane.body_bytes_max = BODY_BYTES_MAX
        self.saver = TablesSaver(clock)
        self.members = Members(options, clock)
        self.groups = Groups(self.group_table, self.members, options)
        self.stats = Statistics(options.cluster, clock, self.topics.is_system)
        self.slow_groups = SlowGroups(self.groups, self.stats.behind_by_group, options, clock)
        self.waiting = WaitingPulls(clock)
        self.writes = LogWrites(store.log)
        self.pending_messages = PendingMessages(store.log)
        self.delays = Delays(store, self.writes, self.delay_offsets, options, clock)
        self.admission = Admission(store.acks, store.state, self.topics, options, clock)
        self.sends = Sends(
            store.log,
            self.pending_messages,
            self.writes,
            store.acks,
            self.admission,
            self.topics,
            options,
            self.unique_keys,
        )
        if self.sends.light_queues is not None:
            light = (topic for topic in store.queues.by_topic if topic.startswith(LIGHT_PREFIX))
            self.sends.light_queues.update(topic.encode() for topic in light)
        self.timers = Timers(
            store,
            self.pending_messages,
            self.writes,
            TimerCounts(store.files, store.path("config"), clock=clock),
            options,
            clock,
        )
        self.timer_sends = TimerSends(options, clock, self.timers.waiting_at)
        self.send_runs = SendRuns(
            self.sends,
            store.log,
            self.writes,
            store.acks,
            self.admission,
            self.delays,
            self.timer_sends,
            options,
        )
        self.recalls = Recalls(store, self.pending_messages, self.writes, self.topics, options, clock)
        self.replies = Replies(
            store,
            self.sends,
            self.pending_messages,
            self.writes,
            self.members,
            options,
            clock,
            address=self.address,
        )
        self.transactions = Transactions(
            store,
            self.pending_messages,
            self.writes,
            self.members,
            self.topics,
            self.offsets,
            self.transaction_counts,
            options,
            clock,
        )
        self.pulls = Pulls(store, self.topics, self.groups, self.offsets, self.waiting, options, clock)
        self.queries = Queries(store, self.groups)
        self.heartbeats = Heartbeats(self.members, self.groups, self.topics, options)
        self.queue_locks = QueueLocks(clock, options.queue_lock_ms / 1000, exists=self.topics.has_queue)
        self.retries = Retries(
            store, self.admission, self.pending_messages, self.writes, self.topics, self.groups,
            self.queue_locks, self.stats, options,
        )  # fmt: skip
        self.commits = Commits(store, self.topics, self.groups, self.offsets)
        self.resets = Resets(
            store, self.topics, self.groups, self.members, self.offsets, self.waiting, options
        )
        self.metrics = Metrics(
            options,
            store,
            self.topics,
            self.groups,
            self.members,
            self.offsets,
            self.stats,
            self.lanes,
            clock,
        )
        self.registrations = Registrations(
            self.topics, options, address=self.address, ha_address=self.ha_address, clock=clock
        )
        self.filters.connect(self.pulls, self.queries, self.heartbeats, self.members, self.saver)
        self.topics.create_system_topics()
        self.groups.create_system_groups()
        mind_lost_tables(store, self.topics, self.group_table, self.offsets, self.modes)
        self._connect()
        self._connect_timers()
        self.admin = Admin(
            store,
            self.topics,
            self.groups,
            self.members,
            self.offsets,
            self.delay_offsets,
            self.modes,
            self.stats,
            self.lanes,
            options,
            clock,
            address=self.address,
            settled=self.registrations.settled,
            offsets_saved=self.offset_saver.saved,
            changed=self.options_changed,
        )
        self.admin.groups.unsaved_modes.save = self.mode_saver.save
        self.http = exporter(self, (self._handlers, self._vip_handlers))
        if options.timer_wheel:
            self.admin.broker.timers = self.timers
            self.admin.runtime_info.more.append(TimerFigures(self.timers, clock).runtime_info)
        self._route()

    def _connect_timers(self) -> None:
        timers = self.timers
        self.pending_messages.rewrites.append(self.timer_sends.park)
        timers.delivery.on_stored.append(self.stats.stored)
        self.topics.on_removed.append(timers.counts.forget)
        if self.options.timer_wheel:
            self.metrics.more.append(TimerFigures(timers, self.clock).metrics)
            self.saver.keep(timers.counts, lambda: max(self.options.timer_flush_ms, TIMER_COUNTS_MS))

    def _connect(self) -> None:
        """Who hears of whom."""
        topics, groups, sends, stats = self.topics, self.groups, self.sends, self.stats
        # Queue and key fillers are there already: a pull that is woken finds the message in its queue.
        self.store.dispatcher.followers.append(self.waiting.arrived)
        if self.options.multi_dispatch:
            self.store.dispatcher.followers.append(self.waiting.arrived_light)

        def interval_ms() -> int:
            return self.options.save_offsets_ms

        self.topic_saver = self.saver.keep(topics.table, interval_ms)
        self.group_saver = self.saver.keep(groups.table, interval_ms)
        self.mode_saver = self.saver.keep(self.modes, interval_ms)
        self.offset_saver = self.saver.keep(self.offsets, interval_ms)
        topics.unsaved.save, groups.unsaved.save = self.topic_saver.save, self.group_saver.save
        self.resets.unsaved.save = self.offset_saver.save
        topics.on_saved.append(self.registrations.topic_changed)
        topics.on_change.append(lambda config: self.send_runs.forget_topic(config.topic_name))
        topics.on_removed += [self.send_runs.forget_topic, sends.forget_topic]
        topics.on_removed.append(stats.forget_topic)
        groups.on_change.append(lambda _: self.group_saver.save())
        sends.rewrites.append(self.retries.redirect)
        sends.on_stored.append(stats.stored)
        self.send_runs.on_stored.append(stats.stored)
        self.replies.on_stored.append(stats.stored)
        transactions = self.transactions
        sends.rewrites.append(transactions.prepare)
        transactions.endings.on_stored.append(stats.stored)
        transactions.check_backs.on_read.append(stats.served)
        topics.on_removed.append(transactions.counts.forget_topic)
        self.saver.keep(self.transaction_counts, lambda: self.options.save_transaction_counts_ms)
        self.metrics.more.append(transactions.counts.metrics)
        lumped = self.options.light_queues and not self.options.light_stats
        self.pulls.on_served.append(stats.served_light if lumped else stats.served)
        self.pulls.on_caught_up.append(stats.caught_up)
        self.pulls.on_cold_read.append(stats.read_cold)
        groups.on_enabled.append(stats.forget_behind)
        stats.count_misses(lambda: self.pulls.misses)
        self.pending_messages.rewrites.insert(0, self.delays.park)  # before any time: a level wins
        self.delays.on_delivered.append(self._count_delayed)
        self.metrics.more.append(self.delays.metrics)

    def _route(self) -> None:
        """Which request goes where, in which lane."""
        sends, pulls = self.sends, self.pulls
        self._add("send", [
            (RequestCode.SEND_MESSAGE, sends.send, SendRequest),
            (RequestCode.SEND_MESSAGE_V2, sends.send, SendRequestV2),
            (RequestCode.SEND_BATCH_MESSAGE, sends.send_batch, SendRequestV2),
            *self.retries.rows(),
        ])  # fmt: skip
        self._add("pull", [
            (RequestCode.PULL_MESSAGE, pulls.pull, PullRequest),
            (RequestCode.LITE_PULL_MESSAGE, pulls.pull, PullRequest),
        ])  # fmt: skip
        self._add("reply", self.replies.rows())
        self._add("send", self.recalls.rows())
        self._add("transaction", self.transactions.end_rows())
        self._add("query_message", self.queries.rows())
        self._add("heartbeat", [row for row in self.heartbeats.rows() if row[0] == RequestCode.HEART_BEAT])
        self._add("client_manager", [r for r in self.heartbeats.rows() if r[0] != RequestCode.HEART_BEAT])
        self._add("consumer_manager", self.commits.rows())
        self._add("admin", [*self.queue_locks.rows(), *self.resets.rows(), *self.admin.rows()])
        self._add("admin", self.transactions.admin_rows())
        self.writes.due = self.stats.timed(self.writes.write)
        for handlers in (self._handlers, self._vip_handlers):
            handlers.after_pass.append(sends.end_pass)
            self.send_runs.add_to(handlers, self.lanes["send"])

    def _add(self, lane: str, rows: Iterable[Row]) -> None:
        for code, handler, header in rows:
            self._handlers.add(code, handler, header, self.lanes[lane])
            if code not in NOT_ON_VIP_PORT:
                self._vip_handlers.add(code, handler, header, self.lanes[lane])

    # --- while it runs -------------------------------------------------------------------------------------

    def options_changed(self, changed: Mapping[str, object]) -> None:
        """Options took new values, by our names: those that others have copies of are passed on."""
        options, lanes = self.options, self.lanes
        lanes["send"].age_s_max = options.send_wait_ms / 1000
        lanes["pull"].age_s_max = options.pull_wait_ms / 1000
        lanes["heartbeat"].age_s_max = options.heartbeat_wait_ms / 1000
        lanes["admin"].age_s_max = options.admin_wait_ms / 1000
        lanes["transaction"].age_s_max = options.transaction_wait_ms / 1000
        if "permission" in changed:
            # Name servers take another look only at another version.
            self.topics.table.bump()
            self.registrations.register_all()

    def _count_delayed(self, queue_id: int, topic: str, size_bytes: int, messages: int) -> None:
        if self.options.delay_stats:
            self.stats.delivered_later(SCHEDULE_GROUP, SCHEDULE_TOPIC, queue_id, topic, size_bytes, messages)

    def closed(self, peer: Peer, reason: str) -> None:
        if not self._closed:
            self.waiting.forget(peer)
            self.members.closed(peer, reason)

    async def settled(self) -> None:
        """Wait until changed topics are on disk, and told to the name servers."""
        await self.topics.unsaved.all_saved()
        await self.registrations.settled()

    async def _answer_flushed(self) -> None:
        """Take no more messages, and let those who wait for a flush have their answer before they are
        cut off."""
        self.writes.write()
        self.store.state.set(Obstacle.CLOSED, "the broker is stopping")
        try:
            await asyncio.wait_for(self.store.flusher.flush_all(), self.options.flush_timeout_ms / 1000)
        except (StoreError, TimeoutError):
            pass  # they hear nothing, and send again elsewhere; the store's own close says what failed
        await asyncio.sleep(0)
