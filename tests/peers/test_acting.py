"""A follower of ours acts under Apache's name server, and what is due goes to Apache's broker; and a follower
of Apache's acts for our leader."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from kerolox.client.admin.calls import AdminCalls
from kerolox.client.nameservers import NameServers
from kerolox.clock import SYSTEM_CLOCK
from kerolox.net.dialer import Dialer
from kerolox.protocol.bodies.routes import TopicRoute
from kerolox.protocol.bodies.topics import TopicConfig, TopicConfigTable
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.headers.route import RouteRequest
from kerolox.protocol.message import StoredMessage
from kerolox.testing.broker import running_broker
from kerolox.testing.nameserver import running_nameserver
from tests.broker.acting_kit import ACTING, stopped, until
from tests.broker.talk import Talk
from tests.broker.transaction_kit import COMMIT, Producer

from .conftest import Factory
from .processes import JavaBroker

PATIENT_S = 60


async def route_of(dialer: Dialer, nameserver: str, topic: str) -> TopicRoute | None:
    asked = RouteRequest(topic=topic, standard_json_only=True)
    answer = await dialer.call(nameserver, RequestCode.GET_ROUTEINFO_BY_TOPIC, asked)
    return TopicRoute.decode(answer.body) if answer.code == 0 else None


class There:
    """Apache's broker, seen as talk.py sees ours."""

    def __init__(self, broker: JavaBroker) -> None:
        self.address = broker.address


async def messages(dialer: Dialer, broker: JavaBroker, topic: str) -> list[StoredMessage]:
    return await Talk(dialer, There(broker)).messages(topic)  # type: ignore[arg-type]


async def come(dialer: Dialer, broker: JavaBroker, topic: str, count: int) -> list[bytes]:
    """Wait for so many messages."""
    for _ in range(PATIENT_S * 5):
        found = await messages(dialer, broker, topic)
        if len(found) >= count:
            return sorted(message.body for message in found)
        await asyncio.sleep(0.2)
    raise AssertionError(f"{topic}: {len(found)} of {count} came. {broker.tail()}")


async def make_topics(dialer: Dialer, address: str, *topics: str) -> None:
    admin = AdminCalls(NameServers([address], dialer), dialer)
    for topic in topics:
        await admin.put_topic(address, TopicConfig(topic_name=topic, read_queue_nums=1, write_queue_nums=1))


async def test_our_follower_acts_under_apaches_name_server_and_sends_to_apaches_broker(
    java: Factory, tmp_path: Path, unique: Callable[[str], str]
) -> None:
    nameserver = await asyncio.to_thread(
        lambda: java.nameserver(properties={"supportActingMaster": True, "scanNotActiveBrokerInterval": 500})
    )
    checks = {"transactionCheckInterval": 6000, "transactionTimeOut": 1000}  # notes take it 3 s
    other = await asyncio.to_thread(
        lambda: java.broker(nameserver.address, name="broker-b", properties=checks)
    )
    topics = delayed, timed, paid = unique("delayed"), unique("timed"), unique("paid")
    numbers = [b"%d" % number for number in range(3)]
    settings = {**ACTING, "nameservers": nameserver.address, "delay_levels": "4s"}
    patient = {**settings, "transaction_check_ms": 60_000}
    async with (
        running_broker(directory=tmp_path / "a0", **patient) as leader,
        running_broker(directory=tmp_path / "a1", brokerRole="SLAVE", brokerId=1, **settings) as follower,
        Dialer() as dialer,
    ):
        ours = follower.broker
        for address in (leader.address, other.address):
            await make_topics(dialer, address, *topics)
        payer, producer = Producer(leader), Producer(There(other))  # type: ignore[arg-type]
        await payer.come()
        for number in numbers:
            key = {"UNIQ_KEY": f"7F000001162E18B4AAC28E2F6D2A{int(number):04d}"}
            assert (await payer.send(delayed, number, {**key, "DELAY": "1"})).code == 0
            assert (await payer.send(timed, number, {**key, "TIMER_DELAY_MS": "5000"})).code == 0
            await payer.prepare(number, key, topic=paid, born_timestamp=SYSTEM_CLOCK.wall_ms())
        await until(lambda: ours.store.log.max_offset == leader.broker.store.log.max_offset)
        await until(lambda: ours.copies.copy.passes)
        producer.outcome = COMMIT
        await producer.come()
        ports = await stopped(leader)
        await until(lambda: ours.leadership.acts, lambda: ours.fellowship.watch.members)

        shown = await route_of(dialer, nameserver.address, delayed)
        assert shown is not None
        assert {one.broker_name: one.broker_addrs for one in shown.broker_datas}["broker-a"] == {
            0: follower.address
        }
        assert {one.broker_name: one.perm for one in shown.queue_datas} == {"broker-a": 4, "broker-b": 6}
        for topic in topics:
            assert await come(dialer, other, topic, 3) == numbers, topic

        ports.close()
        await leader.start()
        assert not ours.leadership.acts
        await until(lambda: ours.leadership.leader is not None)
        shown = await route_of(dialer, nameserver.address, delayed)
        assert shown is not None
        assert {one.broker_name: one.perm for one in shown.queue_datas} == {"broker-a": 6, "broker-b": 6}
        await asyncio.sleep(2)  # what came back would come now
        for topic in topics:
            assert leader.broker.store.queues.max_offset(topic, 0) <= 0
            assert sorted(one.body for one in await messages(dialer, other, topic)) == numbers
        await payer.dialer.close()
        await producer.dialer.close()


async def test_apaches_follower_acts_for_our_leader(
    java: Factory, tmp_path: Path, unique: Callable[[str], str]
) -> None:
    topic = unique("delayed")
    numbers = [b"%d" % number for number in range(3)]
    settings = {**ACTING, "delay_levels": "8s"}
    async with (
        running_nameserver(
            directory=tmp_path / "n", support_acting_master=True, notify_min_broker_id_changed=True
        ) as nameserver,
        running_broker(
            directory=tmp_path / "b", nameserver=nameserver, broker_name="broker-b", **settings
        ) as other,
        running_broker(directory=tmp_path / "a", nameserver=nameserver, **settings) as leader,
        Dialer() as dialer,
    ):
        acting = {
            "brokerRole": "SLAVE", "slaveReadEnable": True, "enableSlaveActingMaster": True,
            "enableRemoteEscape": True, "totalReplicas": 2, "messageDelayLevel": "8s",
            "mappedFileSizeCommitLog": leader.broker.options.commit_log_file_bytes,
        }  # fmt: skip
        for running in (leader, other):
            await running.create_topic(topic, queues=1)
        follower = await asyncio.to_thread(
            lambda: java.broker(nameserver.address, broker_id=1, properties=acting)
        )
        store, connections = leader.broker.store, leader.broker.replication.leader.followers
        asked = RequestCode.GET_ALL_TOPIC_CONFIG

        async def has_tables() -> bool:
            told = TopicConfigTable.decode((await dialer.call(follower.address, asked)).body)
            return topic in told.topic_config_table

        for _ in range(600):  # it asks for tables after a minute
            if await has_tables():
                break
            await asyncio.sleep(0.2)
        assert await has_tables(), follower.tail()
        for number in numbers:
            key = {"UNIQ_KEY": f"7F000001162E18B4AAC28E2F6D2A{int(number):04d}"}
            assert (await Talk(dialer, leader).send(topic, number, {**key, "DELAY": "1"})).code == 0
        await until(lambda: any(one.acked == store.log.max_offset for one in connections))
        ports = await stopped(leader)
        there = other.broker.store
        await until(lambda: there.queues.max_offset(topic, 0) == 3, follower.tail, 40)
        shown = await route_of(dialer, nameserver.address, topic)
        assert shown is not None
        addresses = {one.broker_name: one.broker_addrs for one in shown.broker_datas}
        assert addresses["broker-a"] == {0: follower.address}
        ports.close()
        await leader.start()
        assert leader.broker.leadership.leads
        assert leader.broker.tables.delay_offsets.offsets == {1: 3}
        await asyncio.sleep(3)  # what came back would come now
        assert leader.broker.store.queues.max_offset(topic, 0) <= 0
        assert sorted(one.body for one in await Talk(dialer, other).messages(topic)) == numbers
