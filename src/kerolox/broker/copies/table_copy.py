"""Replication of the leader's tables to a follower: topics, groups, progress of groups and delays, and the
state of the timer.

Tables are requested as soon as a leader is known, when a kerolox leader reports a change, and every ten
seconds. They are copied only while the leader's log is known to contain this follower's: a leader that
returned with an empty disk, or with another history, has tables to match, which would remove topics and
progress from the better copy.

Each table is built separately and then replaces the one before, with the leader's version, so no reader sees
half of a table; then it is saved. A table that cannot be fetched keeps its content, and the next one is
requested. RocketMQ's followers begin after a minute and copy every minute; in some versions they have no
topics meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeVar

from kerolox.access.book import Book, User
from kerolox.access.book_file import BookFile
from kerolox.access.policies import Policies
from kerolox.broker.base import Base, Room
from kerolox.broker.copies.leader_news import LeaderNews
from kerolox.broker.copies.remote_tables import RemoteTables
from kerolox.broker.later.timers import Timers
from kerolox.broker.members.groups import Groups
from kerolox.broker.nameservers.registrations import Registrations
from kerolox.broker.role.elector import Elector
from kerolox.broker.role.value import LeaderAddress
from kerolox.broker.tables.room import Tables
from kerolox.errors import ConnectFailed, KeroloxError
from kerolox.protocol.bodies.groups import GroupConfigTable, RequestModeTable
from kerolox.protocol.bodies.offsets import ConsumerOffsetTable, DelayOffsetTable
from kerolox.protocol.bodies.stats import TimerMetrics
from kerolox.protocol.bodies.table_news import TableNews
from kerolox.protocol.bodies.topics import AllTopics, DataVersion
from kerolox.store.tables.table import Table

log = logging.getLogger(__name__)

T = TypeVar("T")

COPY_S = 10.0
TIMER_S = 3.0  # the timer's checkpoint: age of a follower's knowledge of what was delivered
ACTING_S = 1.0  # that checkpoint and delays, for a follower that may act for its leader
SOON_S = 0.25  # interval of checks for changed topics and groups, for a follower that may be elected,
PROGRESS_S = (
    1.0  # and so often how far groups and delays are: but at most a twentieth of the time is spent so
)
PROGRESS_SHARE = 20


class TableCopy(Room):
    """Copies while this broker follows and a leader is known whose log agrees with this broker's. Users are
    copied if requests are authenticated, the timer's state if there is a timer."""

    def __init__(
        self,
        base: Base,
        tables: Tables,
        groups: Groups,
        timers: Timers,
        access: BookFile,
        registrations: Registrations,
        elector: Elector,
    ) -> None:
        options = base.options
        self.passes = 0  # passes in which every table was copied
        self._store = base.store
        self._leadership = base.leadership
        self._tables = tables
        self._groups = groups
        self._timers = timers if options.timer_wheel else None
        # Asked for the leader again, and notified of changed topics.
        self._register = registrations.register_all
        self._elector = elector
        self._clock = base.clock
        self._dialer = base.dialer
        self._access = access if options.authentication else None
        # This broker may act for its leader, so it needs the leader's latest deliveries soon.
        self._acting = options.acting
        self._electable = options.controlled or options.ledger  # it may lead at any moment, with all topics
        # The leader may lack topics that have messages. A DLedger group elects a member with the whole log,
        # and topics are not in it: one of RocketMQ's members may not have copied them yet.
        self._keeps_topics = options.ledger
        self._by_epochs = options.controlled  # topics of an older epoch are refused
        self._reported_epoch = 0  # the epoch of the last log line about an older table
        self._progress_s = 0.0  # time of the next look at progress
        self._address = base.endpoints.address  # by which the leader knows this broker
        self._news = LeaderNews(base.clock, self._hear)
        self._failed: dict[str, str] = {}  # last logged error by table
        self._asked = False
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._request: asyncio.Future[Any] | None = None  # the request in progress
        self._closed = False

    async def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    def copy_now(self) -> None:
        """Copy now, without waiting for the next time."""
        self._asked = True
        self._wake.set()

    def _hear(self) -> None:
        self._wake.set()

    async def close(self) -> None:
        """Send no more requests; tables that have arrived are still taken over."""
        self._closed = True
        self.copy_now()
        if self._request is not None:
            self._request.cancel()
        if self._task is not None:
            await asyncio.wait([self._task])

    # --- schedule --------------------------------------------------------------------------------------

    async def _run(self) -> None:
        try:
            await self._copy_always()
        finally:
            self._news.stop()

    async def _copy_always(self) -> None:
        next_s = 0.0
        while not self._closed:
            leader, now_s = self._leadership.leader, self._clock.monotonic_s()
            is_asked, self._asked = self._asked, False
            if leader is not None and self._elector.agrees:
                remote = RemoteTables(self._dialer, leader.address)
                watch = partial(remote.news, self._leadership.id, self._address)
                self._news.watch(leader.address, watch)  # first: the leader waits for this one from then on
                news = self._news.news
                if is_asked or now_s >= next_s:
                    await self._copy(leader, remote)
                    next_s = self._clock.monotonic_s() + COPY_S
                elif news is not None:
                    self._news.taken(news, well=await self._copy_news(leader, remote, news))
                elif self._electable:
                    await self._copy_changes(leader, remote)
                if self._acting:
                    await self._take(leader, "delay offsets", remote.delay_offsets, self._delay_offsets)
                if self._timers is not None:
                    timers = self._timers
                    await self._take(leader, "timer checkpoint", remote.timer_checkpoint, timers.heard_leader)
                self._news.watch(leader.address, watch)
            else:
                self._news.stop()
            if not self._closed:
                await self._pause()

    async def _pause(self) -> None:
        """Wait for news, for the next copy of the timer, or for a request to copy now."""
        self._wake.clear()
        if self._news.news is not None:
            return
        if self._leadership.leader is None:  # a new leader wakes this
            if not self._asked:
                await self._wake.wait()
            return
        pause_s = TIMER_S
        if self._electable:
            pause_s = PROGRESS_S if self._news.works else SOON_S
        elif self._acting:
            pause_s = ACTING_S
        timer = self._clock.call_later(pause_s, self._wake.set)
        if not self._asked:
            await self._wake.wait()
        timer.cancel()

    # --- tables ----------------------------------------------------------------------------------------

    async def _copy(self, leader: LeaderAddress, remote: RemoteTables) -> None:
        take = self._take
        done = [
            await take(leader, "topics", remote.topics, self._topics),
            await take(leader, "consumer offsets", remote.offsets, self._offsets),
            await take(leader, "delay offsets", remote.delay_offsets, self._delay_offsets),
            await take(leader, "groups", remote.groups, self._group_settings),
            await take(leader, "request modes", remote.request_modes, self._request_modes),
        ]
        if self._timers is not None:
            done.append(await take(leader, "timer metrics", remote.timer_metrics, self._timer_metrics))
        if self._access is not None:
            done.append(await self._copy_users(leader, remote, self._access))
        self.passes += all(done)

    async def _copy_news(self, leader: LeaderAddress, remote: RemoteTables, news: TableNews) -> bool:
        """Copy the tables that the leader reports as changed. Return whether all of them were copied."""
        done = [await self._take_table(leader, remote, table) for table in news.tables]
        for key, queues in news.offsets.items():
            self._tables.offsets.hear(key, queues)
        return all(done)

    async def _take_table(self, leader: LeaderAddress, remote: RemoteTables, table: str) -> bool:
        take = self._take
        if table == "topics":
            return await take(leader, "topics", remote.topics, self._topics)
        if table == "groups":
            return await take(leader, "groups", remote.groups, self._group_settings)
        if table == "modes":
            return await take(leader, "request modes", remote.request_modes, self._request_modes)
        if table == "offsets":
            return await take(leader, "consumer offsets", remote.offsets, self._offsets)
        if self._access is None:
            return True
        return await self._copy_users(leader, remote, self._access)

    async def _copy_changes(self, leader: LeaderAddress, remote: RemoteTables) -> None:
        """Copy the tables that a new leader must not lack: progress; also topics and groups, if the leader
        does not report their changes."""
        take = self._take
        if not self._news.works:
            own_topics, own_groups = self._tables.topics.table, self._groups.table
            if await self._differs(leader, "topics", remote.topics_version, own_topics.version):
                await take(leader, "topics", remote.topics, self._topics)
            if await self._differs(leader, "groups", remote.groups_version, own_groups.version):
                await take(leader, "groups", remote.groups, self._group_settings)
        began_s = self._clock.monotonic_s()
        if began_s >= self._progress_s:
            await take(leader, "consumer offsets", remote.offsets, self._offsets)
            await take(leader, "delay offsets", remote.delay_offsets, self._delay_offsets)
            ended_s = self._clock.monotonic_s()
            self._progress_s = ended_s + max(PROGRESS_S, PROGRESS_SHARE * (ended_s - began_s))

    async def _differs(
        self, leader: LeaderAddress, what: str, ask: Callable[[], Awaitable[DataVersion]], own: DataVersion
    ) -> bool:
        found: list[DataVersion] = []
        return await self._take(leader, what, ask, found.append) and found != [own]

    async def _take(
        self,
        leader: LeaderAddress,
        what: str,
        ask: Callable[[], Awaitable[T]],
        take: Callable[[T], Awaitable[None] | None],
    ) -> bool:
        """Request one table and take it over, if the leader is still the same and its log agrees. Return
        whether that worked. A repeated error is logged once."""
        if self._closed:
            return False
        try:
            self._request = asyncio.ensure_future(ask())
            found: T = await self._request
            if self._leadership.leader != leader or not self._elector.agrees:
                return False
            taking = take(found)
            if taking is not None:
                await taking
        except KeroloxError as error:
            reason = str(error).partition("; failed ")[0]
            if self._failed.get(what) != reason:
                self._failed[what] = reason
                if isinstance(error, ConnectFailed):
                    self._register()
                log.warning(
                    "table_not_copied table=%r leader=%r error=%r next='retried; the old copy is kept until "
                    "then'",
                    what, leader.address, reason,
                )  # fmt: skip
            return False
        except Exception:
            log.exception("table_not_copied table=%r leader=%r next='retried'", what, leader.address)
            return False
        if self._failed.pop(what, None):
            log.info("table_copied_again table=%r leader=%r", what, leader.address)
        return True

    async def _topics(self, found: AllTopics) -> None:
        topics = self._tables.topics
        if self._by_epochs and self._is_older(found, topics.table.state_version):
            return
        if found.data_version != topics.table.version:
            await self._replace_topics(found)
        for topic, end in found.kerolox_deleted.items():
            await self._delete_queues(topic, end)

    async def _replace_topics(self, found: AllTopics) -> None:
        topics = self._tables.topics
        configs = dict(found.topic_config_table)
        if self._keeps_topics:
            for topic, config in topics.table.topics.items():
                end = found.kerolox_deleted.get(topic, -1)
                if topic not in configs and self._store.queues.last_place(topic) > end:
                    configs[topic] = config
        gone = topics.follow(configs, found.data_version)
        log.info("topics_copied topics=%d gone=%d", len(topics.table.topics), len(gone))
        await self._tables.topic_saver.saved()
        self._register()
        # The leader may lack a topic because it had no copy of its settings when it was promoted, so the
        # queues are not deleted.
        last_place, deleted = self._store.queues.last_place, found.kerolox_deleted
        kept = [topic for topic in gone if last_place(topic) > deleted.get(topic, -1)]
        if kept:
            log.info(
                "queues_kept topics=%d first=%r reason='the leader does not have these topics, but does not "
                "report them as deleted: their messages expire with the log'",
                len(kept), kept[0],
            )  # fmt: skip

    async def _delete_queues(self, topic: str, end: int) -> None:
        """Delete the queues of a topic that the leader deleted when its log ended at ``end``. Messages stored
        after that belong to a topic that was created again."""
        store = self._store
        if 0 <= store.queues.last_place(topic) <= end <= store.progress.confirmed:
            if self._tables.topics.find(topic) is None:
                self._tables.offsets.remove_topic(topic)
            await store.delete_topic(topic, before=end)
            log.info("queues_deleted topic=%r reason='the leader deleted the topic'", topic)

    def _is_older(self, found: AllTopics, epoch: int) -> bool:
        """True if the sender of this table does not lead in the epoch known here. A leader that lost its disk
        may return at its address before an election: topics that it lacks still exist."""
        their_epoch = found.data_version.state_version
        if their_epoch < epoch != self._reported_epoch:
            self._reported_epoch = epoch
            log.warning(
                "topics_refused epoch=%d known=%d next='copied when the new leader is found'",
                their_epoch,
                epoch,
            )
        return their_epoch < epoch

    async def _offsets(self, found: ConsumerOffsetTable) -> None:
        table = self._tables.offsets
        table.follow(found.offset_table, found.data_version)
        if table.changed:
            await self._tables.offset_saver.saved()

    async def _delay_offsets(self, found: DelayOffsetTable) -> None:
        table = self._tables.delay_offsets
        if found.offset_table != table.offsets or found.data_version != table.version:
            table.replace(found.offset_table, found.data_version)
            await self._save(table)

    async def _group_settings(self, found: GroupConfigTable) -> None:
        if found.data_version == self._groups.table.version:
            return
        self._groups.follow(found.subscription_group_table, found.data_version, found.forbidden_table)
        log.info("groups_copied groups=%d", len(self._groups.table.groups))
        await self._tables.group_saver.saved()

    async def _request_modes(self, found: RequestModeTable) -> None:
        modes = self._tables.modes
        if found.message_request_mode_map != modes.modes:
            modes.replace(found.message_request_mode_map)
            await self._tables.mode_saver.saved()

    async def _copy_users(self, leader: LeaderAddress, remote: RemoteTables, own: BookFile) -> bool:
        """Copy users and policies. Servers on one machine may share the file: changes made by another process
        during the request are kept, since the leader itself may have made them after its answer."""
        known: tuple[dict[str, User], dict[str, Policies]] | None = None

        async def ask() -> Book:
            nonlocal known
            await own.refresh()
            known = (own.book.users, own.book.policies)
            return await remote.access()

        async def use(found: Book) -> None:
            if (found.users, found.policies) == (own.book.users, own.book.policies):
                return

            def replace(book: Book) -> None:
                if (book.users, book.policies) == known:
                    book.replace(found.users, found.policies)
                    log.info("users_copied users=%d", len(found.users))

            await own.change(replace)

        return await self._take(leader, "users and rules", ask, use)

    async def _timer_metrics(self, found: TimerMetrics) -> None:
        table = self._tables.timer_counts
        if found.data_version != table.body().data_version:
            table.replace(found)
            await self._save(table)

    async def _save(self, table: Table) -> None:
        """Save a table that a leader saves at intervals."""
        data = table.encode()
        await asyncio.get_running_loop().run_in_executor(self._store.keeper, table.save, data)
