"""A follower as a broker: what it registers, copies and answers. The log itself is another story."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kerolox import Message, Producer, PushConsumer, Received
from kerolox.broker.broker import Broker
from kerolox.broker.options import BrokerOptions, BrokerRole
from kerolox.broker.role.value import LeaderAddress
from kerolox.errors import OptionError
from kerolox.net.dialer import Dialer
from kerolox.protocol.bodies.body import MessageQueue
from kerolox.protocol.bodies.groups import GroupConfig, SetRequestMode
from kerolox.protocol.bodies.members import LockAnswer, LockRequest
from kerolox.protocol.bodies.routes import KVTable
from kerolox.protocol.bodies.stats import HaStatus
from kerolox.protocol.bodies.topics import TopicConfig
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.flags import PULL_SUBSCRIPTION, PULL_SUSPEND
from kerolox.protocol.headers.offset import ResetOffsetRequest, UpdateOffsetRequest
from kerolox.protocol.headers.topic import CreateTopicRequest, DeleteTopicRequest
from kerolox.replication.link_state import LinkState
from kerolox.testing.broker import RunningBroker, running_broker
from kerolox.testing.cluster import RunningCluster, running_cluster
from kerolox.testing.nameserver import running_nameserver

from .talk import Talk, until

HELD = PULL_SUBSCRIPTION | PULL_SUSPEND


@dataclass
class Pair:
    cluster: RunningCluster
    dialer: Dialer

    @property
    def leader(self) -> RunningBroker:
        return self.cluster.leaders["broker-a"]

    @property
    def follower(self) -> RunningBroker:
        return self.cluster.followers("broker-a")[1]

    @property
    def talk(self) -> Talk:
        """With the follower."""
        return Talk(self.dialer, self.follower)

    async def commit(self, to: RunningBroker, group: str, offset: int, topic: str = "T") -> int:
        header = UpdateOffsetRequest(consumer_group=group, topic=topic, queue_id=0, commit_offset=offset)
        return (await self.dialer.call(to.address, RequestCode.UPDATE_CONSUMER_OFFSET, header)).code

    def progress(self, of: RunningBroker, group: str, topic: str = "T") -> int:
        return of.broker.tables.offsets.offset(topic, group, 0)


@asynccontextmanager
async def pair(path: Path, **options: Any) -> AsyncIterator[Pair]:
    options = {"slaveReadEnable": False} | options
    async with running_cluster(1, followers=1, directory=path, **options) as cluster, Dialer() as dialer:
        yield Pair(cluster, dialer)


@asynccontextmanager
async def strangers(path: Path, **options: Any) -> AsyncIterator[tuple[RunningBroker, RunningBroker]]:
    """A leader, and a follower with options and perhaps a past of its own."""
    async with (
        running_nameserver(directory=path / "n") as nameserver,
        running_broker(directory=path / "a", nameserver=nameserver) as leader,
        running_broker(
            directory=path / "b", nameserver=nameserver, brokerRole="SLAVE", brokerId=1, **options
        ) as follower,
    ):
        yield leader, follower


# --- who it is -----------------------------------------------------------------------------------------


async def test_a_follower_has_a_number_and_a_leader_has_none(tmp_path: Path) -> None:
    options = BrokerOptions(role=BrokerRole.SLAVE, store_path=str(tmp_path / "store"))
    with pytest.raises(OptionError, match="Slave's brokerId must be > 0"):
        async with Broker(options):
            pass
    assert not (tmp_path / "store").exists()
    async with running_broker(directory=tmp_path, brokerId=7) as running:
        group = running.nameserver.routes.groups["broker-a"]
        assert group.addresses == {0: running.address}


async def test_it_registers_and_learns_who_leads(tmp_path: Path) -> None:
    async with strangers(tmp_path, brokerIP2="127.0.0.2") as (first, second), Dialer() as dialer:
        leader, follower = first.broker, second.broker
        routes = first.nameserver.routes
        assert routes.groups["broker-a"].addresses == {0: leader.address, 1: follower.address}
        alive = routes.alive["DefaultCluster", follower.address]
        assert alive.ha_address == f"127.0.0.2:{follower.endpoints.ha_port}"
        assert follower.leadership.leader == LeaderAddress(leader.address, leader.endpoints.ha_address)
        heard: list[LeaderAddress | None] = []
        follower.leadership.on_leader.append(heard.append)
        await first.stop()
        follower.nameservers.registrations.register_all()
        await until(lambda: heard == [None])
        await first.start()
        follower.nameservers.registrations.register_all()
        await until(lambda: len(heard) == 2)
        assert heard[1] == LeaderAddress(leader.address, leader.endpoints.ha_address)
        info = await dialer.call(follower.address, RequestCode.GET_BROKER_RUNTIME_INFO)
        assert KVTable.decode(info.body).table["brokerActive"] == "false"
        status = await dialer.call(follower.address, RequestCode.GET_BROKER_HA_STATUS)
        assert not HaStatus.decode(status.body).master


# --- what it copies ------------------------------------------------------------------------------------


async def test_it_has_the_tables_of_its_leader_at_once(tmp_path: Path) -> None:
    async with pair(tmp_path) as both:
        leader, follower = both.leader.broker.tables, both.follower.broker.tables
        await both.leader.create_topic("T", queues=3, attributes="+message.type=FIFO")
        groups = both.leader.broker.membership.groups
        groups.put(GroupConfig(group_name="g", retry_max_times=3))
        groups.set_readable("g", "T", readable=False)
        leader.offsets.commit("T", "g", 0, 5)
        leader.delay_offsets.update(3, 17)
        leader.modes.put(SetRequestMode(topic="T", consumer_group="g"))
        leader.timer_counts.add("T", 4)
        await both.cluster.caught_up()
        assert follower.topics.table.topics == leader.topics.table.topics
        assert follower.topics.table.version == leader.topics.table.version
        assert follower.groups.groups == leader.groups.groups
        assert follower.groups.forbidden == {"g": {"T": 4}}
        assert follower.groups.version == leader.groups.version
        assert follower.offsets.offsets == leader.offsets.offsets
        assert follower.delay_offsets.offsets == {3: 17}
        assert follower.modes.modes == leader.modes.modes
        assert follower.timer_counts.counts == {"T": 4}
        await both.follower.stop()
        await both.leader.stop()
        await both.follower.start()
        kept = both.follower.broker.tables
        assert kept.topics.table.topics == leader.topics.table.topics
        assert kept.groups.groups == leader.groups.groups
        assert kept.offsets.offset("T", "g", 0) == 5
        assert kept.delay_offsets.offsets == {3: 17}


async def test_many_topics_come_in_pages(tmp_path: Path) -> None:
    async with pair(tmp_path) as both:
        leader, follower = both.leader.broker.tables, both.follower.broker.tables
        for number in range(4500):
            leader.topics.table.put(TopicConfig(topic_name=f"T{number:04d}", write_queue_nums=1))
            leader.groups.put(GroupConfig(group_name=f"g{number:04d}"))
        await both.cluster.caught_up()
        assert follower.topics.table.topics == leader.topics.table.topics
        assert follower.groups.groups == leader.groups.groups


async def test_a_topic_that_is_gone_takes_its_queues_along(tmp_path: Path) -> None:
    async with pair(tmp_path) as both:
        for topic in ("gone", "kept"):
            await both.leader.create_topic(topic)
            await Talk(both.dialer, both.leader).send(topic)
        both.leader.broker.tables.offsets.commit("gone", "g", 0, 1)
        await both.cluster.caught_up()
        assert both.follower.broker.tables.offsets.offset("gone", "g", 0) == 1
        await both.follower.stop()
        header = DeleteTopicRequest(topic="gone")
        await both.dialer.call(both.leader.address, RequestCode.DELETE_TOPIC_IN_BROKER, header)
        await both.follower.start()
        store, tables = both.follower.broker.store, both.follower.broker.tables
        await until(lambda: "gone" not in store.queues.by_topic)
        assert "kept" in store.queues.by_topic
        assert tables.topics.find("gone") is None
        assert tables.offsets.offset("gone", "g", 0) == -1
        # System topics stay, whatever the leader has.
        assert tables.topics.find("SCHEDULE_TOPIC_XXXX") is not None


async def test_a_leader_that_came_back_empty_takes_nothing_from_the_better_copy(tmp_path: Path) -> None:
    """Its tables are as empty as its log, which is refused. Topics, queues and progress here stay."""
    async with running_broker(directory=tmp_path / "b") as before, Dialer() as dialer:
        await Talk(dialer, before).send("T")
        before.broker.tables.offsets.commit("T", "g", 0, 1)
    async with strangers(tmp_path) as (leader, follower):
        broker = follower.broker
        await until(lambda: broker.replication.follower.state is LinkState.LEADER_BEHIND)
        assert leader.broker.tables.topics.find("T") is None
        broker.copies.copy.copy_now()
        await asyncio.sleep(0.5)  # more than it takes to copy them all
        assert broker.copies.copy.passes == 0
        assert broker.tables.topics.find("T") is not None
        assert broker.tables.offsets.offset("T", "g", 0) == 1
        assert sum(queue.next_offset for queue in broker.store.queues.by_topic["T"].values()) == 1


async def test_a_table_that_cannot_be_had_stays_and_the_others_come(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with pair(tmp_path) as both:
        leader, follower = both.leader.broker, both.follower.broker
        leader.tables.topics.table.topics["bad"] = TopicConfig(topic_name="other")
        leader.tables.topics.table.bump()
        leader.tables.groups.put(GroupConfig(group_name="g"))
        before = dict(follower.tables.topics.table.topics)
        follower.copies.copy.copy_now()
        await until(lambda: "table_not_copied table='topics'" in caplog.text)
        await until(lambda: "g" in follower.tables.groups.groups)
        assert follower.tables.topics.table.topics == before


# --- progress of groups ----------------------------------------------------------------------------------


async def test_progress_follows_the_leader_backwards_too(tmp_path: Path) -> None:
    async with pair(tmp_path) as both:
        leader = both.leader.broker
        for _ in range(10):
            await Talk(both.dialer, both.leader).send("T")
        leader.membership.groups.config("g")
        assert await both.commit(both.leader, "g", 8) == 0
        await both.cluster.caught_up()
        assert both.progress(both.follower, "g") == 8
        leader.tables.offsets.reset("T", "g", 0, 2)
        await both.cluster.caught_up()
        assert both.progress(both.follower, "g") == 2


async def test_progress_made_at_the_follower_is_not_undone(tmp_path: Path) -> None:
    """RocketMQ's groups consume again what they had consumed while the leader was away (#1094)."""
    async with pair(tmp_path) as both:
        leader = both.leader.broker
        for _ in range(10):
            await Talk(both.dialer, both.leader).send("T")
        leader.membership.groups.config("g")
        assert await both.commit(both.leader, "g", 3) == 0
        await both.cluster.caught_up()
        assert await both.commit(both.follower, "g", 9) == 0
        leader.tables.offsets.bump()  # much happened at the leader since
        await both.cluster.caught_up()
        assert both.progress(both.follower, "g") == 9
        # The leader has as much: from now on its word counts again.
        assert await both.commit(both.leader, "g", 9) == 0
        await both.cluster.caught_up()
        leader.tables.offsets.reset("T", "g", 0, 1)
        await both.cluster.caught_up()
        assert both.progress(both.follower, "g") == 1


async def test_a_leader_that_returns_takes_the_progress_made_meanwhile(tmp_path: Path) -> None:
    async with pair(tmp_path) as both:
        for _ in range(10):
            await Talk(both.dialer, both.leader).send("T")
        for group in ("g", "ahead", "set_back"):
            both.leader.broker.membership.groups.config(group)
            assert await both.commit(both.leader, group, 3) == 0
        await both.cluster.caught_up()
        await both.leader.stop()
        assert await both.commit(both.follower, "g", 9) == 0
        assert await both.commit(both.follower, "ahead", 99) == 0  # further than the leader's log
        await both.leader.start()
        assert both.progress(both.leader, "g") == 9
        assert both.progress(both.leader, "ahead") == 10
        assert both.progress(both.leader, "set_back") == 3


async def test_a_group_that_was_set_back_stays_where_it_is(tmp_path: Path) -> None:
    """The follower has not heard of it, and nobody consumed there since."""
    async with pair(tmp_path) as both:
        for _ in range(10):
            await Talk(both.dialer, both.leader).send("T")
        both.leader.broker.membership.groups.config("g")
        assert await both.commit(both.leader, "g", 8) == 0
        await both.cluster.caught_up()
        both.leader.broker.tables.offsets.reset("T", "g", 0, 2)
        await both.leader.stop()
        assert both.progress(both.follower, "g") == 8
        await both.leader.start()
        assert both.progress(both.leader, "g") == 2


# --- what it answers ---------------------------------------------------------------------------------------


async def test_it_takes_no_messages_and_says_who_does(tmp_path: Path) -> None:
    async with pair(tmp_path) as both:
        refused = await both.talk.send("T")
        assert refused.code == ResponseCode.SYSTEM_BUSY
        assert (refused.remark or "").startswith("[REJECTREQUEST]system busy, start flow control for a while")
        pulled = await both.talk.pull("T")
        assert pulled.code == ResponseCode.SYSTEM_BUSY
        assert "slaveReadEnable" in (pulled.remark or "")
        reset = ResetOffsetRequest(topic="T", group="g", timestamp=0)
        answer = await both.dialer.call(
            both.follower.address, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset
        )
        assert (answer.code, answer.remark) == (
            ResponseCode.SYSTEM_ERROR, "Can not reset offset in slave broker",
        )  # fmt: skip


async def test_it_grants_locks_and_takes_settings(tmp_path: Path) -> None:
    async with pair(tmp_path) as both:
        await both.leader.create_topic("T")
        await both.cluster.caught_up()
        queue = MessageQueue("T", "broker-a", 0)
        asked = LockRequest(client_id="c", consumer_group="g", mq_set=frozenset({queue}))
        answer = await both.dialer.call(
            both.follower.address, RequestCode.LOCK_BATCH_MQ, None, asked.encode()
        )
        assert LockAnswer.decode(answer.body).lock_ok_mq_set == {queue}
        header = CreateTopicRequest(topic="mine", read_queue_nums=1, write_queue_nums=1, perm=6)

        async def makes() -> bool:  # the copy of the leader's table may take it back at once
            code = RequestCode.UPDATE_AND_CREATE_TOPIC
            assert (await both.dialer.call(both.follower.address, code, header)).code == 0
            return both.follower.broker.tables.topics.find("mine") is not None

        assert any([await makes() for _ in range(20)])
        await both.cluster.caught_up()
        assert both.follower.broker.tables.topics.find("mine") is None


async def test_consumers_are_sent_to_the_leader_and_held_without_one(tmp_path: Path) -> None:
    async with pair(tmp_path, slaveReadEnable=True) as both:
        await both.leader.create_topic("T")
        await both.cluster.caught_up()
        for offset in (0, 5):  # at the end of the copy, and behind it
            answer = await both.talk.pull("T", offset=offset, sys_flag=HELD)
            assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
            assert answer.fields["suggestWhichBrokerId"] == "0"
            assert answer.fields["nextBeginOffset"] == str(offset)
        leadership, waiting = both.follower.broker.leadership, both.follower.broker.consuming.waits
        leader = leadership.leader
        leadership.led_by(None)
        held = [asyncio.ensure_future(both.talk.pull("T", offset=at, sys_flag=HELD)) for at in (0, 5)]
        await until(lambda: waiting.held == 2)
        leadership.led_by(leader)
        for at, pull in zip((0, 5), held, strict=True):
            answer = await pull
            assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
            assert answer.fields["nextBeginOffset"] == str(at)
        leadership.led_by(None)
        timed_out = await both.talk.pull("T", offset=0, sys_flag=HELD, suspend_timeout_millis=50)
        assert timed_out.code == ResponseCode.PULL_NOT_FOUND
        both.follower.broker.options.correct_while_following = True
        moved = await both.talk.pull("T", offset=5, sys_flag=HELD)
        assert moved.code == ResponseCode.PULL_OFFSET_MOVED
        assert moved.fields["nextBeginOffset"] == "0"


# --- with the log ------------------------------------------------------------------------------------------


async def test_what_the_leader_took_is_consumed_from_the_follower_when_it_is_gone(tmp_path: Path) -> None:
    async with pair(tmp_path, slaveReadEnable=True) as both:
        await both.leader.create_topic("T", queues=1)
        producer = Producer(both.leader.nameserver_address, group="p")
        async with producer:
            for number in range(20):
                await producer.send(Message("T", b"%d" % number))
        leader, follower = both.leader.broker, both.follower.broker
        await both.cluster.caught_up()
        status = await both.dialer.call(leader.address, RequestCode.GET_BROKER_HA_STATUS)
        seen = HaStatus.decode(status.body)
        assert seen.master
        assert seen.in_sync_slave_nums == 1
        assert seen.ha_connection_info[0].slave_ack_offset == leader.store.log.max_offset
        status = await both.dialer.call(follower.address, RequestCode.GET_BROKER_HA_STATUS)
        own = HaStatus.decode(status.body)
        assert not own.master
        assert own.ha_client_runtime_info.master_addr == follower.replication.follower.leader
        assert own.ha_client_runtime_info.max_offset == leader.store.log.max_offset
        await both.leader.stop()
        got: list[bytes] = []
        consumer = PushConsumer(both.leader.nameserver_address, group="g")

        @consumer.on("T")
        async def take(message: Received) -> None:
            got.append(message.body)

        async with consumer:
            await until(lambda: len(got) == 20, timeout_s=30)
        assert got == [b"%d" % number for number in range(20)]
        await until(lambda: both.progress(both.follower, "g") == 20)
        await both.leader.start()
        assert both.progress(both.leader, "g") == 20


async def test_a_topic_that_is_made_again_begins_anew_at_the_follower_too(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """RocketMQ's followers miss its messages until there are as many as before (alibaba#351)."""
    async with pair(tmp_path, slaveReadEnable=True) as both:
        await both.leader.create_topic("T", queues=1)
        talk = Talk(both.dialer, both.leader)
        for number in range(10):
            assert (await talk.send("T", b"old %d" % number)).code == 0
        store = both.follower.broker.store
        await until(lambda: store.queues.max_offset("T", 0) == 10)
        await store.housekeeper.flush()
        gone = DeleteTopicRequest(topic="T")
        answer = await both.dialer.call(both.leader.address, RequestCode.DELETE_TOPIC_IN_BROKER, gone)
        assert answer.code == 0
        await both.leader.create_topic("T", queues=1)  # before the follower has heard that it was gone
        for number in range(3):
            assert (await talk.send("T", b"new %d" % number)).code == 0
        await until(lambda: store.queues.max_offset("T", 0) == 3)
        assert store.consume_queues.gone == 1  # a file, which is removed in the thread that flushes
        await store.housekeeper.flush()
        assert store.files.list_dir(store.path("consumequeue.gone")) == []
        await both.cluster.caught_up()
        assert [one.body for one in await both.talk.messages("T")] == [b"new 0", b"new 1", b"new 2"]
        for sums in (True, False):
            await both.follower.stop()
            if not sums:  # then queues are compared with the log, which has the old messages, too
                assert store.files.remove(store.path("kerolox.sums"))
            await both.follower.start()
            await both.cluster.caught_up()
            assert [one.body for one in await both.talk.messages("T")] == [b"new 0", b"new 1", b"new 2"]
        assert "queue_damaged" not in caplog.text
