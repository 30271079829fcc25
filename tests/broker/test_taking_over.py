"""A follower that takes over before it has a copy of its leader's newest tables."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from kerolox.broker.options import BrokerRole
from kerolox.net.dialer import Dialer
from kerolox.protocol.bodies.topics import TopicConfig
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.headers.topic import DeleteTopicRequest
from kerolox.protocol.record import decode_records
from kerolox.testing.broker import RunningBroker

from .acting_kit import company
from .talk import Talk, until
from .test_follower import pair
from .test_promotion import Group, gone, group, has_all

TOPIC, RETRIES = "made-late", "%RETRY%late"
QUEUES = 6


async def bodies(dialer: Dialer, broker: RunningBroker, topic: str = TOPIC) -> list[bytes]:
    config = broker.broker.tables.topics.find(topic)
    found: list[bytes] = []
    for queue_id in range(0 if config is None else config.read_queue_nums):
        answer = await Talk(dialer, broker).pull(topic, queue_id)
        found += [message.body for message in decode_records(answer.body)]
    return sorted(found)


async def made_late(g: Group, leader: RunningBroker, follower: RunningBroker, count: int = 24) -> list[bytes]:
    """The follower has a copy of the log, and of no table that changed since."""
    await has_all(follower, leader)
    await follower.broker.copies.copy.close()
    topic = TopicConfig(topic_name=TOPIC, read_queue_nums=QUEUES, write_queue_nums=QUEUES)
    before = follower.broker.tables.topics.find(TOPIC)
    leader.broker.tables.topics.put(topic)
    leader.broker.tables.topics.for_group(RETRIES, 1)
    sent = [b"%02d" % number for number in range(count)]
    talk = Talk(g.dialer, leader)
    for number, body in enumerate(sent):
        assert (await talk.send(TOPIC, body, queue_id=number % QUEUES)).code == 0
    assert (await talk.send(RETRIES, b"again")).code == 0
    end = leader.broker.store.log.max_offset
    await until(lambda: follower.broker.replication.follower.leaders_end.note.end == end)
    assert follower.broker.tables.topics.find(TOPIC) == before != topic
    return sent


async def test_a_promoted_follower_makes_topics_of_its_log_and_the_old_leader_keeps_its_queues(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    async with group(tmp_path) as g:
        leader, follower = await g.broker(0, brokerRole="SYNC_MASTER"), await g.broker(1)
        await until(lambda: leader.broker.store.replicas.in_sync(0) == 2)
        sent = await made_late(g, leader, follower)
        await gone(g, leader)
        assert (await g.change(follower)).code == 0
        assert await bodies(g.dialer, follower) == sent
        assert await bodies(g.dialer, follower, RETRIES) == [b"again"]
        config = follower.broker.tables.topics.find(TOPIC)
        assert config is not None
        assert (config.read_queue_nums, config.write_queue_nums) == (QUEUES, QUEUES)
        assert "late" in follower.broker.tables.groups.groups
        assert f"topic_made_again topic={TOPIC!r} queues={QUEUES}" in caplog.text
        assert TOPIC in g.nameserver.routes.topics
        leader.broker.options.role, leader.broker.options.broker_id = BrokerRole.SLAVE, 1
        await leader.start()
        await has_all(leader, follower)
        assert sum(queue.max_offset for queue in leader.broker.store.queues.by_topic[TOPIC].values()) == 24
        assert leader.broker.tables.topics.find(TOPIC) is not None


async def test_a_promoted_follower_reads_the_queues_that_a_topic_was_given_last(tmp_path: Path) -> None:
    async with group(tmp_path) as g:
        leader, follower = await g.broker(0), await g.broker(1)
        leader.broker.tables.topics.put(TopicConfig(topic_name=TOPIC, read_queue_nums=1, write_queue_nums=1))
        sent = await made_late(g, leader, follower)
        await gone(g, leader)
        assert (await g.change(follower)).code == 0
        assert await bodies(g.dialer, follower) == sent
        config = follower.broker.tables.topics.find(TOPIC)
        assert config is not None
        assert (config.read_queue_nums, config.write_queue_nums) == (QUEUES, 1)


async def test_a_follower_that_acts_makes_topics_of_its_log(tmp_path: Path) -> None:
    async with company(tmp_path) as c:
        await c.copied()
        await c.follower.broker.copies.copy.close()
        await c.send(TOPIC, b"1")
        end = c.leader.broker.store.log.max_offset
        await until(lambda: c.follower.broker.store.log.max_offset == end)
        assert c.follower.broker.tables.topics.find(TOPIC) is None
        await c.leader_goes()
        await c.acts()
        assert await bodies(c.dialer, c.follower) == [b"1"]


async def test_queues_stay_when_the_leader_lacks_a_topic_and_go_when_it_deleted_it(tmp_path: Path) -> None:
    async with pair(tmp_path) as both:
        talk = Talk(both.dialer, both.leader)
        for topic in ("lost", "deleted"):
            assert (await talk.send(topic)).code == 0
        await both.cluster.caught_up()
        leader, follower = both.leader.broker, both.follower.broker
        assert follower.tables.topics.find("lost") is not None
        leader.tables.topics.table.remove("lost")
        header = DeleteTopicRequest(topic="deleted")
        await both.dialer.call(both.leader.address, RequestCode.DELETE_TOPIC_IN_BROKER, header)
        await both.cluster.caught_up()
        await until(lambda: "deleted" not in follower.store.queues.by_topic)
        assert follower.tables.topics.find("deleted") is None
        assert [queue.max_offset for queue in follower.store.queues.by_topic["lost"].values()] == [1]
        # Nor by a request to clean up: the follower's table is a copy.
        for broker, count in ((both.follower, 1), (both.leader, 0)):
            clean = await both.dialer.call(broker.address, RequestCode.CLEAN_UNUSED_TOPIC)
            assert clean.code == 0
            assert len(broker.broker.store.queues.by_topic.get("lost", ())) == count
        # Made again and read from its new beginning: what was deleted does not come back.
        assert (await talk.send("deleted", b"new")).code == 0
        await both.cluster.caught_up()
        ends = {id: one.max_offset for id, one in follower.store.queues.by_topic["deleted"].items()}
        assert ends == {id: one.max_offset for id, one in leader.store.queues.by_topic["deleted"].items()}
        assert sum(ends.values()) == 1
