"""Tables between a leader and a follower, one of them Apache's. Java's follower begins a minute after its
start."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kerolox.net.dialer import Dialer
from kerolox.protocol.bodies.groups import GroupConfig, GroupConfigTable
from kerolox.protocol.bodies.offsets import ConsumerOffsetTable
from kerolox.protocol.bodies.topics import TopicConfigTable
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.headers.offset import UpdateOffsetRequest
from kerolox.protocol.headers.send import SendRequestV2
from kerolox.protocol.headers.topic import CreateTopicRequest, DeleteTopicRequest
from kerolox.testing.broker import running_broker
from kerolox.testing.nameserver import running_nameserver
from tests.broker.talk import send_fields

from .conftest import Factory


async def eventually(ready: Callable[[], object], timeout_s: float) -> None:
    end_s = time.monotonic() + timeout_s
    while not ready():
        assert time.monotonic() < end_s, "it did not come"
        await asyncio.sleep(0.2)


async def set_up(dialer: Dialer, leader: str) -> None:
    """A topic with attributes, a group, and its progress."""
    for topic in ("T", "gone"):
        header = CreateTopicRequest(
            topic=topic, default_topic="TBW102", read_queue_nums=3, write_queue_nums=3, perm=6,
            topic_filter_type="SINGLE_TAG", topic_sys_flag=0, order=False,
            attributes="+message.type=NORMAL",
        )  # fmt: skip
        assert (await dialer.call(leader, RequestCode.UPDATE_AND_CREATE_TOPIC, header)).code == 0
    group = GroupConfig(group_name="g", retry_max_times=3)
    code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
    assert (await dialer.call(leader, code, None, group.encode())).code == 0
    for _ in range(5):
        sent = await dialer.call(leader, RequestCode.SEND_MESSAGE_V2, SendRequestV2(**send_fields("T")), b"x")
        assert sent.code == 0
    progress = UpdateOffsetRequest(consumer_group="g", topic="T", queue_id=0, commit_offset=4)
    assert (await dialer.call(leader, RequestCode.UPDATE_CONSUMER_OFFSET, progress)).code == 0


async def tables_of(
    dialer: Dialer, broker: str
) -> tuple[TopicConfigTable, GroupConfigTable, ConsumerOffsetTable]:
    topics = await dialer.call(broker, RequestCode.GET_ALL_TOPIC_CONFIG)
    groups = await dialer.call(broker, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
    offsets = await dialer.call(broker, RequestCode.GET_ALL_CONSUMER_OFFSET)
    return (
        TopicConfigTable.decode(topics.body),
        GroupConfigTable.decode(groups.body),
        ConsumerOffsetTable.decode(offsets.body),
    )


async def test_our_follower_has_the_tables_of_apaches_leader(
    java: Factory, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_nameserver(directory=tmp_path / "n") as nameserver, Dialer() as dialer:
        made = await asyncio.to_thread(java.broker, nameserver.address)
        await set_up(dialer, made.address)
        async with running_broker(
            directory=tmp_path / "f", nameserver=nameserver, brokerRole="SLAVE", brokerId=1
        ) as follower:
            copy, tables = follower.broker.table_copy, follower.broker.tables
            await eventually(lambda: copy.passes, 30)
            assert "table_not_copied" not in caplog.text
            topics, groups, offsets = await tables_of(dialer, made.address)
            assert tables.topics.table.version == topics.data_version
            ours = tables.topics.table.topics
            assert {name: ours[name] for name in topics.topic_config_table} == topics.topic_config_table
            assert tables.groups.version == groups.data_version
            assert groups.subscription_group_table.items() <= tables.groups.groups.items()
            assert tables.offsets.offset("T", "g", 0) == 4
            assert tables.offsets.offsets == offsets.offset_table
            gone = DeleteTopicRequest(topic="gone")
            assert (await dialer.call(made.address, RequestCode.DELETE_TOPIC_IN_BROKER, gone)).code == 0
            copy.copy_now()
            await eventually(lambda: tables.topics.find("gone") is None, 30)


async def test_apaches_follower_has_the_tables_of_our_leader(java: Factory, tmp_path: Path) -> None:
    async with (
        running_nameserver(directory=tmp_path / "n") as nameserver,
        running_broker(directory=tmp_path / "l", nameserver=nameserver) as leader,
        Dialer() as dialer,
    ):
        await set_up(dialer, leader.address)
        follower = await asyncio.to_thread(
            lambda: java.broker(nameserver.address, broker_id=1, properties={"brokerRole": "SLAVE"})
        )
        deadline_s = time.monotonic() + 150
        while True:
            topics, groups, offsets = await tables_of(dialer, follower.address)
            if "T@g" in offsets.offset_table and "g" in groups.subscription_group_table:
                break
            assert time.monotonic() < deadline_s, follower.tail()
            await asyncio.sleep(1)
        ours = leader.broker.tables
        assert topics.topic_config_table["T"] == ours.topics.find("T")
        assert topics.data_version == ours.topics.table.version
        assert groups.subscription_group_table["g"].retry_max_times == 3
        assert offsets.offset_table["T@g"] == {0: 4}
