"""What clients can make grow at a broker has a bound, and a refusal that names it."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from kerolox.broker.bounds import GROUPS_OF_CLIENT_MAX
from kerolox.broker.consume import filters as filter_part
from kerolox.broker.figures import stats
from kerolox.broker.figures.stats import Statistics
from kerolox.broker.members import groups as group_part
from kerolox.broker.members import members as member_part
from kerolox.broker.members import queue_locks
from kerolox.broker.members.queue_locks import QueueLocks
from kerolox.errors import Refused
from kerolox.net.dialer import Dialer
from kerolox.protocol.bodies.body import MessageQueue
from kerolox.protocol.bodies.groups import CustomizedRetry, GroupConfig, GroupRetryPolicy
from kerolox.protocol.bodies.heartbeat import ConsumerData, HeartbeatData, ProducerData
from kerolox.protocol.bodies.members import LockAnswer, LockRequest
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.command import Command
from kerolox.protocol.headers.group import GroupForbiddenRequest
from kerolox.protocol.subscription import subscription
from kerolox.store.disk.files import Files
from kerolox.store.tables.groups import GroupTable
from kerolox.testing.broker import running_broker
from kerolox.testing.clock import ManualClock

from .talk import Talk


@pytest.fixture
async def talk(tmp_path: Path) -> AsyncIterator[Talk]:
    async with running_broker(directory=tmp_path) as running, Dialer() as dialer:
        yield Talk(dialer, running)


async def beat(talk: Talk, client_id: str = "c", **data: Any) -> Command:
    body = HeartbeatData(client_id=client_id, **data).encode()
    return await talk.dialer.call(talk.address, RequestCode.HEART_BEAT, None, body, timeout_s=30)


def consumers(count: int, first: int = 0) -> tuple[ConsumerData, ...]:
    return tuple(ConsumerData(group_name=f"group-{number}") for number in range(first, first + count))


def refused(answer: Command, bound: str) -> None:
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark is not None
    assert answer.remark.startswith("too many ")
    assert answer.remark.endswith(f"({bound})")


async def test_a_heartbeat_of_too_many_groups_makes_none_of_them(talk: Talk) -> None:
    broker = talk.running.broker
    before = len(broker.tables.groups.groups), len(broker.tables.topics.table.topics)
    refused(await beat(talk, consumer_data_set=consumers(GROUPS_OF_CLIENT_MAX + 1)), "GROUPS_OF_CLIENT_MAX")
    producers = tuple(ProducerData(group_name=f"p-{number}") for number in range(GROUPS_OF_CLIENT_MAX + 1))
    refused(await beat(talk, producer_data_set=producers), "GROUPS_OF_CLIENT_MAX")
    assert (len(broker.tables.groups.groups), len(broker.tables.topics.table.topics)) == before
    assert (await beat(talk, consumer_data_set=consumers(3))).code == ResponseCode.SUCCESS


async def test_a_heartbeat_of_megabytes_is_refused_before_it_is_read(talk: Talk) -> None:
    answer = await beat(talk, consumer_data_set=consumers(30_000))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "the limit for this request is 1048576" in (answer.remark or "")


async def test_a_connection_has_so_many_groups_over_all_its_heartbeats(
    talk: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(member_part, "GROUPS_OF_CLIENT_MAX", 5)
    assert (await beat(talk, consumer_data_set=consumers(3))).code == ResponseCode.SUCCESS
    refused(await beat(talk, consumer_data_set=consumers(3, first=3)), "GROUPS_OF_CLIENT_MAX")
    assert (await beat(talk, consumer_data_set=consumers(3))).code == ResponseCode.SUCCESS
    assert talk.running.broker.membership.members.members("group-5") is None


async def test_a_group_has_so_many_members(talk: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(member_part, "MEMBERS_OF_GROUP_MAX", 1)
    assert (await beat(talk, consumer_data_set=consumers(1))).code == ResponseCode.SUCCESS
    async with Dialer() as other:
        refused(await beat(Talk(other, talk.running), consumer_data_set=consumers(1)), "MEMBERS_OF_GROUP_MAX")
    assert (await beat(talk, consumer_data_set=consumers(1))).code == ResponseCode.SUCCESS


async def test_names_of_clients_are_bounded(talk: Talk) -> None:
    for told in ({"client_id": "c" * 2000}, {"producer_data_set": (ProducerData(group_name="p" * 300),)}):
        assert (await beat(talk, **told)).code == ResponseCode.INVALID_PARAMETER


async def test_groups_are_bounded_however_they_are_made(talk: Talk) -> None:
    broker = talk.running.broker
    await talk.send("T")
    broker.options.groups_max = len(broker.tables.groups.groups) + 1
    assert (await beat(talk, consumer_data_set=consumers(1))).code == ResponseCode.SUCCESS
    refused(await beat(talk, consumer_data_set=consumers(1, first=1)), "maxGroups")
    refused(await talk.pull("T", consumer_group="new"), "maxGroups")
    body = GroupConfig(group_name="new").encode()
    made = await talk.dialer.call(talk.address, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, body)
    refused(made, "maxGroups")
    assert broker.membership.groups.find("new") is None
    assert (await talk.pull("T", consumer_group="group-0")).code == ResponseCode.SUCCESS


async def test_topics_are_bounded_however_they_are_made(talk: Talk) -> None:
    broker = talk.running.broker
    broker.options.topics_max = len(broker.tables.topics.table.topics) + 1
    assert (await talk.send("T")).code == ResponseCode.SUCCESS
    refused(await talk.send("U"), "maxTopics")
    refused(await talk.send_v1("U"), "maxTopics")
    refused(await talk.send("%RETRY%nobody"), "maxTopics")
    assert broker.tables.topics.find("U") is None
    assert (await talk.send("T")).code == ResponseCode.SUCCESS
    # A group still gets the topic of its retries: groups have a bound of their own.
    assert (await beat(talk, consumer_data_set=consumers(1))).code == ResponseCode.SUCCESS
    assert broker.tables.topics.find("%RETRY%group-0") is not None


async def test_a_table_is_written_while_others_are_served(
    talk: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table is not encoded before a send was answered: on the loop that would wait for ever."""
    others_were_served = threading.Event()
    encode = GroupTable.encode

    def slowly(self: GroupTable, content: dict[str, Any] | None = None) -> bytes:
        assert others_were_served.wait(60)
        return encode(self, content)

    await talk.send("T")
    monkeypatch.setattr(GroupTable, "encode", slowly)
    assert (await beat(talk, consumer_data_set=consumers(1))).code == ResponseCode.SUCCESS
    assert (await talk.send("T")).code == ResponseCode.SUCCESS
    assert (await beat(talk, consumer_data_set=consumers(2))).code == ResponseCode.SUCCESS
    others_were_served.set()
    await talk.running.broker.tables.group_saver.saved()
    written = GroupTable(Files(), Path(talk.running.broker.tables.groups.path).parent)
    assert written.load()
    assert {"group-0", "group-1"} <= written.groups.keys()


async def test_settings_of_a_group_are_bounded_in_size(talk: Talk) -> None:
    pauses = GroupRetryPolicy(customized_retry_policy=CustomizedRetry(pauses_ms=(1_000_000,) * 5_000))
    body = GroupConfig(group_name="g", group_retry_policy=pauses).encode()
    answer = await talk.dialer.call(talk.address, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, body)
    assert answer.code == ResponseCode.INVALID_PARAMETER
    assert "GROUP_BYTES_MAX" in (answer.remark or "")


async def test_what_groups_may_not_read_is_bounded(talk: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_part, "FORBIDDEN_MAX", 2)

    async def forbid(topic: str) -> Command:
        header = GroupForbiddenRequest(group="g", topic=topic, readable=False)
        return await talk.dialer.call(talk.address, RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN, header)

    assert (await forbid("a")).code == (await forbid("b")).code == ResponseCode.SUCCESS
    refused(await forbid("c"), "FORBIDDEN_MAX")
    assert (await forbid("x" * 300)).code == ResponseCode.INVALID_PARAMETER


async def test_only_queues_that_exist_are_locked(talk: Talk) -> None:
    await talk.send("T", default_topic_queue_nums=4)
    wanted = [MessageQueue("T", "b", number) for number in (-1, 0, 3, 4, 1 << 20)]
    wanted += [MessageQueue(f"unknown-{number}", "b", 0) for number in range(1000)]
    body = LockRequest(consumer_group="g", client_id="c", mq_set=frozenset(wanted)).encode()
    answer = await talk.dialer.call(talk.address, RequestCode.LOCK_BATCH_MQ, None, body)
    assert {queue.queue_id for queue in LockAnswer.decode(answer.body).lock_ok_mq_set} == {0, 3}
    assert talk.running.broker.membership.queue_locks._count == 2


async def test_locks_are_bounded_and_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_locks, "QUEUE_LOCKS_MAX", 2)
    clock = ManualClock()
    locks = QueueLocks(clock)
    queues = [MessageQueue("T", "b", number) for number in range(3)]
    assert locks.lock("g", "c", queues[:2]) == frozenset(queues[:2])
    with pytest.raises(Refused, match="QUEUE_LOCKS_MAX"):
        locks.lock("h", "c", queues[2:])
    assert locks.lock("g", "c", queues[:2]) == frozenset(queues[:2])
    locks.unlock("g", "c", queues[:1])
    assert locks.lock("h", "c", queues[2:]) == frozenset(queues[2:])
    await clock.advance(61)  # those that nobody asked for again give way
    assert locks.lock("i", "c", queues[:2]) == frozenset(queues[:2])
    assert locks._count == 2


def test_statistics_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stats, "FLOWS_MAX", 3)
    figures = Statistics("cluster", ManualClock())
    for number in range(10):
        figures.stored(f"topic-{number}", 1, 100)
        figures.served(f"group-{number}", "topic-0", number, 1, 100, 0)
        figures.sent_back(f"group-{number}", "topic-0")
    assert len(figures.puts) == len(figures.gets) == len(figures.queue_gets) == len(figures.send_backs) == 3
    assert figures.totals == (10, 10)


async def test_conditions_of_a_topic_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filter_part, "FILTERS_OF_TOPIC_MAX", 2)
    async with running_broker(directory=tmp_path, property_filter=True) as running, Dialer() as dialer:
        talk = Talk(dialer, running)
        await talk.send("T")
        for number in range(4):
            await talk.heartbeat(f"g{number}", subscription("T", "a > 5", 1, "SQL92"))
        assert len(running.broker.consuming.filters.table.by_topic["T"]) == 2
        answer = await talk.pull("T", sys_flag=0, subscription=None, consumer_group="g3", sub_version=1)
        assert answer.code == ResponseCode.FILTER_DATA_NOT_EXIST
