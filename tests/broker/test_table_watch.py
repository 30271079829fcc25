"""A leader that promises copies answers a change of a table when its followers have it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kerolox.broker.copies import table_copy
from kerolox.broker.copies.leader_news import Ask, LeaderNews
from kerolox.errors import RequestFailed
from kerolox.net.dialer import Dialer
from kerolox.protocol.bodies.groups import GroupConfig
from kerolox.protocol.bodies.table_news import TableNews
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.command import Command
from kerolox.protocol.headers.offset import UpdateOffsetRequest
from kerolox.protocol.headers.replication import WatchTablesRequest
from kerolox.protocol.headers.topic import CreateTopicRequest, DeleteTopicRequest
from kerolox.testing.access import ADMIN, secured
from kerolox.testing.broker import RunningBroker
from kerolox.testing.clock import ManualClock
from kerolox.testing.cluster import running_cluster
from kerolox.testing.controlled import running_controlled
from tests.broker.access.test_users import Caller

from .dledger_kit import ledger_brokers
from .talk import Talk, until
from .test_follower import Pair, pair
from .test_promotion import gone, group


class Changes:
    """Somebody who changes the tables of a leader."""

    def __init__(self, dialer: Dialer, leader: RunningBroker) -> None:
        self._dialer = dialer
        self._leader = leader

    async def _ask(self, code: RequestCode, header: object = None, body: bytes = b"") -> Command:
        return await self._dialer.call(self._leader.address, code, header, body, timeout_s=30)  # type: ignore[arg-type]

    async def topic(self, name: str, queues: int = 3) -> Command:
        header = CreateTopicRequest(
            topic=name, read_queue_nums=queues, write_queue_nums=queues, perm=6,
            attributes="+message.type=FIFO",
        )  # fmt: skip
        return await self._ask(RequestCode.UPDATE_AND_CREATE_TOPIC, header)

    async def delete(self, name: str) -> Command:
        return await self._ask(RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicRequest(topic=name))

    async def group(self, name: str, retries: int = 7) -> Command:
        config = GroupConfig(group_name=name, retry_max_times=retries)
        return await self._ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, config.encode())

    async def commit(self, name: str, topic: str, offset: int, queue_id: int = 0) -> Command:
        header = UpdateOffsetRequest(
            consumer_group=name, topic=topic, queue_id=queue_id, commit_offset=offset
        )
        return await self._ask(RequestCode.UPDATE_CONSUMER_OFFSET, header)


async def watched(leader: RunningBroker, count: int = 1) -> None:
    await until(lambda: len(leader.broker.copies.watch.followers) == count)


async def sync_pair_changes(both: Pair) -> Changes:
    await both.cluster.caught_up()
    await watched(both.leader)
    return Changes(both.dialer, both.leader)


async def test_what_is_answered_is_at_the_follower(tmp_path: Path) -> None:
    async with pair(tmp_path, sync=True) as both:
        changes = await sync_pair_changes(both)
        tables, store = both.follower.broker.tables, both.follower.broker.store
        for number in range(20):
            name = f"{number}"
            answer = await changes.topic(f"T{name}")
            assert (answer.code, answer.remark) == (0, None)
            config = tables.topics.find(f"T{name}")
            assert config is not None
            assert (config.read_queue_nums, config.attributes) == (3, {"message.type": "FIFO"})
            assert (await changes.group(f"g{name}")).code == 0
            assert tables.groups.groups[f"g{name}"].retry_max_times == 7
            assert (await Talk(both.dialer, both.leader).send(f"T{name}")).code == 0
            assert (await changes.commit(f"g{name}", f"T{name}", 1)).code == 0
            assert tables.offsets.offset(f"T{name}", f"g{name}", 0) == 1
        assert (await changes.delete("T0")).code == 0
        assert tables.topics.find("T0") is None
        assert "T0" not in store.queues.by_topic


async def test_users_are_at_the_follower_too(tmp_path: Path) -> None:
    async with (
        running_cluster(1, followers=1, sync=True, directory=tmp_path, **secured()) as cluster,
        Dialer(credentials=ADMIN) as dialer,
    ):
        leader, follower = cluster.leaders["broker-a"], cluster.followers("broker-a")[1]
        await cluster.caught_up()
        await watched(leader)
        admin = Caller(leader, dialer)
        assert (await admin.create("alice", "her secret")).code == 0
        assert "alice" in follower.broker.access.book.users
        assert (await admin.allow("alice", "Topic:T", "Pub")).code == 0
        assert "alice" in follower.broker.access.book.policies


async def test_a_leader_that_waits_for_nobody_has_its_tables_copied_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_copy, "COPY_S", 3600.0)  # they are not copied by time
    async with pair(tmp_path) as both:
        changes = await sync_pair_changes(both)
        assert (await changes.topic("T")).code == 0
        await until(lambda: both.follower.broker.tables.topics.find("T") is not None)


async def test_a_change_that_does_not_arrive_is_answered_so(tmp_path: Path) -> None:
    async with pair(tmp_path, sync=True, slaveTimeout=300) as both:
        changes = await sync_pair_changes(both)
        follower = both.follower.broker
        link = both.cluster.link("broker-a", 1)
        link.cut(one_way="to_follower")
        answer = await changes.topic("T")
        assert answer.code == ResponseCode.FLUSH_SLAVE_TIMEOUT
        assert "the change of topics is stored at this leader" in (answer.remark or "")
        assert follower.address in (answer.remark or "")
        assert "300 ms have passed" in (answer.remark or "")
        assert both.leader.broker.tables.topics.find("T") is not None
        assert follower.tables.topics.find("T") is None
        link.heal()
        await until(lambda: follower.tables.topics.find("T") is not None)
        await until(lambda: both.leader.broker.copies.watch.followers == [follower.address])
        answer = await changes.topic("T")  # repeated: it waits for what is there
        assert (answer.code, answer.remark) == (0, None)


async def test_without_followers_the_answer_says_that_there_is_no_copy(tmp_path: Path) -> None:
    async with pair(tmp_path, sync=True) as both:
        changes = await sync_pair_changes(both)
        await both.follower.stop()
        await until(lambda: not both.leader.broker.copies.watch.followers)
        await until(lambda: not any(both.leader.broker.store.replicas))
        answer = await changes.topic("T")
        assert answer.code == 0
        assert "stored only at this leader: no follower is connected" in (answer.remark or "")


async def test_a_follower_that_goes_while_a_change_waits_for_it_ends_the_wait(tmp_path: Path) -> None:
    async with pair(tmp_path, sync=True, slaveTimeout=60_000) as both:
        changes = await sync_pair_changes(both)
        both.cluster.link("broker-a", 1).cut(one_way="to_follower")
        asked = asyncio.ensure_future(changes.topic("T"))
        await until(lambda: both.leader.broker.copies.watch._waits)
        both.cluster.link("broker-a", 1).cut()
        answer = await asked
        assert answer.code == ResponseCode.FLUSH_SLAVE_TIMEOUT
        assert "its connection was closed" in (answer.remark or "")


async def test_a_promoted_follower_has_all_that_was_answered_last(tmp_path: Path) -> None:
    async with group(tmp_path) as g:
        leader, follower = await g.broker(0, brokerRole="SYNC_MASTER"), await g.broker(1)
        await until(lambda: leader.broker.store.replicas.in_sync(0) == 2)
        await watched(leader)
        changes = Changes(g.dialer, leader)
        assert (await Talk(g.dialer, leader).send("T", queue_id=2)).code == 0
        assert (await changes.topic("T")).code == 0
        assert (await changes.group("g")).code == 0
        assert (await changes.commit("g", "T", 1, 2)).code == 0
        await gone(g, leader)
        assert (await g.change(follower)).code == 0
        tables = follower.broker.tables
        config = tables.topics.find("T")
        assert config is not None
        assert (config.read_queue_nums, config.attributes) == (3, {"message.type": "FIFO"})
        assert tables.groups.groups["g"].retry_max_times == 7
        assert tables.offsets.offset("T", "g", 2) == 1


async def test_who_may_be_elected_has_all_that_was_answered(tmp_path: Path) -> None:
    async with running_controlled(3, directory=tmp_path) as three, Dialer() as dialer:
        leader = await three.leading()
        await three.in_sync(3)
        await watched(leader, 2)
        changes = Changes(dialer, leader)
        for number in range(10):
            assert (await changes.topic(f"T{number}")).code == 0
            assert (await changes.group(f"g{number}")).code == 0
        await three.kill(three.number_of(leader))
        new = await three.leading(but=three.number_of(leader))
        tables = new.broker.tables
        for number in range(10):
            config = tables.topics.find(f"T{number}")
            assert config is not None
            assert config.attributes == {"message.type": "FIFO"}
            assert tables.groups.groups[f"g{number}"].retry_max_times == 7


async def test_a_change_waits_for_a_dead_follower_until_it_cannot_be_elected(tmp_path: Path) -> None:
    async with running_controlled(2, directory=tmp_path, slaveTimeout=60_000) as two, Dialer() as dialer:
        leader = await two.leading()
        await two.in_sync(2)
        await watched(leader)
        number = two.number_of(leader)
        await two.stop_controller()  # the set stays as it is
        await two.kill(3 - number)
        asked = asyncio.ensure_future(Changes(dialer, leader).topic("T"))
        await until(lambda: leader.broker.copies.watch._waits)
        await two.start_controller()
        answer = await asked
        assert (answer.code, answer.remark) == (0, None)
        assert leader.broker.copies.watch.followers == []


async def test_a_change_waits_for_a_follower_in_sync_that_has_not_asked_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_ask, watch = asyncio.Event(), LeaderNews.watch

    def watch_later(news: LeaderNews, leader: str, ask: Ask) -> None:
        if may_ask.is_set():
            watch(news, leader, ask)

    monkeypatch.setattr(LeaderNews, "watch", watch_later)
    async with running_controlled(2, directory=tmp_path, slaveTimeout=60_000) as two, Dialer() as dialer:
        leader = await two.leading()
        await two.in_sync(2)
        asked = asyncio.ensure_future(Changes(dialer, leader).topic("T"))
        await until(lambda: leader.broker.copies.watch._waits)
        may_ask.set()
        answer = await asked
        assert (answer.code, answer.remark) == (0, None)
        await two.kill(two.number_of(leader))
        new = await two.leading(but=two.number_of(leader))
        assert new.broker.tables.topics.find("T") is not None


@pytest.mark.parametrize(
    ("code", "pause_s"),
    [(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, 60.0), (ResponseCode.SYSTEM_ERROR, 0.5)],
)
async def test_a_leader_that_does_not_know_the_question_is_left_alone_for_a_minute(
    code: ResponseCode, pause_s: float
) -> None:
    clock, asked = ManualClock(), 0
    news = LeaderNews(clock, lambda: None)

    async def refused(life: str, serial: int) -> TableNews:
        nonlocal asked
        asked += 1
        raise RequestFailed(code, "request type 24001 not supported")

    for passed_s, times in ((0.0, 1), (pause_s - 0.1, 1), (0.2, 2)):
        await clock.advance(passed_s)
        news.watch("10.0.0.1:10911", refused)
        await until(lambda: news._task is None)
        assert asked == times
        assert not news.works


async def test_members_of_a_ledger_group_have_what_was_answered(tmp_path: Path) -> None:
    async with ledger_brokers(tmp_path) as group, Dialer() as dialer:
        leader = await group.leader()
        await until(lambda: len(leader.broker.copies.watch.followers) == 2, timeout_s=30)
        changes = Changes(dialer, leader)
        assert (await changes.topic("T")).code == 0
        assert (await changes.group("g")).code == 0
        for follower in group.followers():
            assert follower.broker.tables.topics.find("T") is not None
            assert follower.broker.tables.groups.groups["g"].retry_max_times == 7


async def test_a_leader_that_promises_no_copies_waits_for_nobody(tmp_path: Path) -> None:
    async with pair(tmp_path, sync=True, inSyncReplicas=1, slaveTimeout=60_000) as both:
        changes = await sync_pair_changes(both)
        both.cluster.link("broker-a", 1).cut(one_way="to_follower")
        answer = await changes.topic("T")
        assert (answer.code, answer.remark) == (0, None)


async def test_a_follower_does_not_answer_for_its_tables(tmp_path: Path) -> None:
    async with pair(tmp_path) as both:
        asked = WatchTablesRequest(broker_id=9, broker_address="127.0.0.1:9")
        answer = await both.dialer.call(both.follower.address, RequestCode.WATCH_TABLES, asked)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "does not lead" in (answer.remark or "")


@pytest.mark.parametrize("hold_millis", [-1, 0, 50])
async def test_a_question_is_held_no_longer_than_asked(tmp_path: Path, hold_millis: int) -> None:
    async with pair(tmp_path) as both:
        first = WatchTablesRequest(broker_id=9, broker_address="127.0.0.1:9")
        answer = await both.dialer.call(both.leader.address, RequestCode.WATCH_TABLES, first)
        assert answer.code == 0
        watch = both.leader.broker.copies.watch
        again = WatchTablesRequest(
            broker_id=9, broker_address="127.0.0.1:9", life=watch._life, serial=watch._serial,
            hold_millis=hold_millis,
        )  # fmt: skip
        answer = await both.dialer.call(both.leader.address, RequestCode.WATCH_TABLES, again, timeout_s=5)
        assert answer.code == 0
