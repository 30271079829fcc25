"""Topics as tools handle them, over a connection."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from kerolox.broker.admin.topic_admin import QUEUES_MAX
from kerolox.net.dialer import Dialer
from kerolox.protocol.bodies.body import MessageQueue
from kerolox.protocol.bodies.members import GroupList
from kerolox.protocol.bodies.routes import TopicList
from kerolox.protocol.bodies.stats import TopicStats
from kerolox.protocol.bodies.topics import TopicConfig, TopicConfigList, TopicConfigTable
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.command import Command
from kerolox.protocol.header import Header
from kerolox.protocol.headers import topic as headers
from kerolox.protocol.headers.offset import UpdateOffsetRequest
from kerolox.protocol.json_dialect import loads
from kerolox.store.offline.layout import find_layout
from kerolox.store.offline.verify import verify
from kerolox.store.options import StoreOptions
from kerolox.testing.broker import SMALL, running_broker
from tests.broker.talk import Talk, subscribed


@pytest.fixture
async def talk(tmp_path: Path) -> AsyncIterator[Talk]:
    async with running_broker(directory=tmp_path) as running, Dialer() as dialer:
        yield Talk(dialer, running)


async def ask(talk: Talk, code: int, header: Header | None = None, body: bytes = b"") -> Command:
    return await talk.dialer.call(talk.address, code, header, body)


async def create(talk: Talk, topic: str = "t", **fields: object) -> Command:
    header = headers.CreateTopicRequest(
        **{  # type: ignore[arg-type]
            "topic": topic,
            "default_topic": "TBW102",
            "read_queue_nums": 4,
            "write_queue_nums": 4,
            "perm": 6,
            **fields,
        }
    )
    return await ask(talk, RequestCode.UPDATE_AND_CREATE_TOPIC, header)


async def config(talk: Talk, topic: str = "t") -> TopicConfig | None:
    answer = await ask(talk, RequestCode.GET_TOPIC_CONFIG, headers.TopicConfigRequest(topic=topic))
    assert answer.code in (0, ResponseCode.TOPIC_NOT_EXIST)
    return TopicConfig.decode(answer.body) if answer.code == 0 else None


async def test_a_new_topic_is_saved_and_known_before_it_is_answered(talk: Talk, tmp_path: Path) -> None:
    assert (await create(talk, attributes="+message.type=FIFO")).code == 0
    route = await talk.route("t")
    assert route is not None
    assert route.queue_datas[0].write_queue_nums == 4
    saved = loads((tmp_path / "store" / "config" / "topics.json").read_bytes())
    assert saved["topicConfigTable"]["t"]["attributes"] == {"message.type": "FIFO"}
    assert (await create(talk, write_queue_nums=8, perm=4)).code == 0
    route = await talk.route("t")
    assert route is not None
    assert (route.queue_datas[0].write_queue_nums, route.queue_datas[0].perm) == (8, 4)
    found = await config(talk)
    assert found is not None
    assert found.attributes == {"message.type": "FIFO"}  # what is not named stays


REFUSED: list[tuple[dict[str, Any], int]] = [
    ({"topic": "bad name"}, ResponseCode.INVALID_PARAMETER),
    ({"topic": "TBW102"}, ResponseCode.INVALID_PARAMETER),
    ({"topic": "rmq_sys_x"}, ResponseCode.INVALID_PARAMETER),
    ({"topic": "broker-a"}, ResponseCode.INVALID_PARAMETER),
    ({"attributes": "+message.type=MIXED"}, ResponseCode.INVALID_PARAMETER),
    ({"write_queue_nums": QUEUES_MAX + 1}, ResponseCode.INVALID_PARAMETER),
    ({"read_queue_nums": -1}, ResponseCode.INVALID_PARAMETER),
    ({"attributes": "+message.type=WRONG"}, ResponseCode.SYSTEM_ERROR),
    ({"attributes": "+unknown=1"}, ResponseCode.SYSTEM_ERROR),
    ({"attributes": "-message.type"}, ResponseCode.SYSTEM_ERROR),
    ({"attributes": "message.type=FIFO"}, ResponseCode.SYSTEM_ERROR),
    ({"attributes": "+reserve.time=-2"}, ResponseCode.SYSTEM_ERROR),
    ({"attributes": "+reserve.time=x"}, ResponseCode.SYSTEM_ERROR),
    ({"topic_filter_type": "NO_TAG"}, ResponseCode.SYSTEM_ERROR),
]


async def test_refused(talk: Talk) -> None:
    for fields, code in REFUSED:
        answer = await create(talk, **fields)
        assert (answer.code, bool(answer.remark)) == (code, True), fields
    assert "t" not in talk.running.broker.tables.topics.table.topics


async def test_attributes_change(talk: Talk) -> None:
    assert (await create(talk, attributes="+message.type=FIFO,+queue.type=SimpleCQ")).code == 0
    assert (await create(talk, attributes="-message.type,+reserve.time=-1")).code == 0
    found = await config(talk)
    assert found is not None
    assert found.attributes == {"queue.type": "SimpleCQ", "reserve.time": "-1"}
    for wrong in ("+queue.type=BatchCQ", "-queue.type", "-message.type", "+a=1,+a=2"):
        assert (await create(talk, attributes=wrong)).code == ResponseCode.SYSTEM_ERROR


async def test_many_topics_or_none(talk: Talk) -> None:
    good = [TopicConfig(topic_name=name, read_queue_nums=2, write_queue_nums=2) for name in ("a", "b")]
    code = RequestCode.UPDATE_AND_CREATE_TOPIC_LIST
    bad = TopicConfigList(topic_config_list=(*good, TopicConfig(topic_name="no good")))
    assert (await ask(talk, code, body=bad.encode())).code == ResponseCode.INVALID_PARAMETER
    assert await config(talk, "a") is None
    assert (await ask(talk, code, body=TopicConfigList(topic_config_list=tuple(good)).encode())).code == 0
    assert await config(talk, "b") is not None
    assert await talk.route("a") is not None


async def test_all_topics_whole_and_in_pages(talk: Talk) -> None:
    answer = await ask(talk, RequestCode.GET_ALL_TOPIC_CONFIG)
    whole = TopicConfigTable.decode(answer.body)
    total = len(whole.topic_config_table)
    assert answer.header(headers.AllTopicConfigAnswer).total_topic_num == total
    assert "TBW102" in whole.topic_config_table
    version = whole.data_version.encode().decode()
    seen: dict[str, TopicConfig] = {}
    while len(seen) < total:
        asked = headers.AllTopicConfigRequest(topic_seq=len(seen), max_topic_num=5, data_version=version)
        answer = await ask(talk, RequestCode.GET_ALL_TOPIC_CONFIG, asked)
        part = TopicConfigTable.decode(answer.body).topic_config_table
        assert 0 < len(part) <= 5
        assert not part.keys() & seen.keys()
        seen |= part
    assert seen == whole.topic_config_table
    for changed in ('{"counter":1}', "no version", None):  # then from the beginning
        asked = headers.AllTopicConfigRequest(topic_seq=7, max_topic_num=1, data_version=changed)
        part = TopicConfigTable.decode((await ask(talk, RequestCode.GET_ALL_TOPIC_CONFIG, asked)).body)
        assert list(part.topic_config_table) == [min(whole.topic_config_table)]


async def test_stats(talk: Talk) -> None:
    await create(talk, read_queue_nums=3, write_queue_nums=2)
    for _ in range(3):
        await talk.send("t", queue_id=1)
    answer = await ask(talk, RequestCode.GET_TOPIC_STATS_INFO, headers.TopicStatsRequest(topic="t"))
    table = TopicStats.decode(answer.body).offset_table
    assert len(table) == 3
    bounds = table[MessageQueue("t", "broker-a", 1)]
    assert (bounds.min_offset, bounds.max_offset) == (0, 3)
    assert bounds.last_update_timestamp > 0
    assert table[MessageQueue("t", "broker-a", 0)].last_update_timestamp == 0
    answer = await ask(talk, RequestCode.GET_TOPIC_STATS_INFO, headers.TopicStatsRequest(topic="no"))
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST


async def test_retries_of_a_group_with_a_long_name_are_not_deleted_with_a_topic(talk: Talk) -> None:
    """%RETRY%g_t is where POP puts messages of t for g, and the retry topic of a group g_t."""
    await create(talk, "t")
    await talk.send("t", queue_id=0)
    await talk.heartbeat("g_t", subscribed("other"))
    await talk.heartbeat("g", subscribed("t"))
    commit = UpdateOffsetRequest(consumer_group="g", topic="t", queue_id=0, commit_offset=1)
    assert (await ask(talk, RequestCode.UPDATE_CONSUMER_OFFSET, commit)).code == 0
    answer = await ask(talk, RequestCode.DELETE_TOPIC_IN_BROKER, headers.DeleteTopicRequest(topic="t"))
    assert answer.code == 0
    assert "%RETRY%g_t" in talk.running.broker.tables.topics.table.topics


async def test_deleted_with_everything(talk: Talk, tmp_path: Path) -> None:
    broker = talk.running.broker
    for name in ("t", "%RETRY%g+t", "%RETRY%g_t"):
        await create(talk, name)
    await talk.send("t", queue_id=0)
    commit = UpdateOffsetRequest(consumer_group="g", topic="t", queue_id=0, commit_offset=1)
    await talk.heartbeat("g", subscribed("t"))
    assert (await ask(talk, RequestCode.UPDATE_CONSUMER_OFFSET, commit)).code == 0
    assert (
        await ask(talk, RequestCode.DELETE_TOPIC_IN_BROKER, headers.DeleteTopicRequest(topic="t"))
    ).code == 0
    assert not {"t", "%RETRY%g+t", "%RETRY%g_t"} & broker.tables.topics.table.topics.keys()
    assert broker.tables.offsets.groups_of("t") == set()
    assert broker.store.queues.find("t", 0) is None
    assert "t" not in broker.figures.stats.puts
    saved = loads((tmp_path / "store" / "config" / "topics.json").read_bytes())
    assert "t" not in saved["topicConfigTable"]
    # A topic of that name begins anew.
    await create(talk)
    assert (await talk.send("t", b"again", queue_id=0)).fields["queueOffset"] == "0"
    assert [message.body for message in await talk.messages("t")] == [b"again"]
    for wrong in (" ", "TBW102"):
        answer = await ask(talk, RequestCode.DELETE_TOPIC_IN_BROKER, headers.DeleteTopicRequest(topic=wrong))
        assert answer.code == ResponseCode.INVALID_PARAMETER


async def test_a_topic_deleted_before_a_kill_does_not_come_back(talk: Talk, tmp_path: Path) -> None:
    """Its messages end the log."""
    await create(talk, "kept")
    await create(talk)
    for number in range(40):
        await talk.send("kept" if number < 10 else "t", queue_id=number % 4)
    asked = headers.DeleteTopicRequest(topic="t")
    assert (await ask(talk, RequestCode.DELETE_TOPIC_IN_BROKER, asked)).code == 0
    shutil.copytree(tmp_path / "store", tmp_path / "killed" / "store")
    assert (tmp_path / "killed" / "store" / "abort").exists()
    async with running_broker(directory=tmp_path / "killed") as running:
        again = Talk(talk.dialer, running)
        assert "t" not in running.broker.store.queues.by_topic
        assert await config(again) is None
        await create(again)
        assert (await again.send("t", b"again", queue_id=1)).fields["queueOffset"] == "0"
        assert [message.body for message in await again.messages("t", 1)] == [b"again"]
    layout = find_layout(tmp_path / "killed" / "store", StoreOptions(**SMALL))
    assert verify(layout).findings == []


async def test_who_consumes_it(talk: Talk) -> None:
    await create(talk)
    await talk.heartbeat("online", subscribed("t"))
    talk.running.broker.tables.offsets.commit("t", "offline", 0, 5)
    answer = await ask(talk, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, headers.TopicConsumersRequest(topic="t"))
    assert GroupList.decode(answer.body).group_list == ("offline", "online")


async def test_system_topics_and_unused_queues(talk: Talk) -> None:
    listed = TopicList.decode((await ask(talk, RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)).body)
    assert {"TBW102", "broker-a", "DefaultCluster"} <= set(listed.topic_list)
    await create(talk)
    await talk.send("t")
    broker = talk.running.broker
    await broker.store.put("orphan", 0, b"x")
    assert broker.store.queues.find("orphan", 0) is not None
    assert (await ask(talk, RequestCode.CLEAN_UNUSED_TOPIC)).code == 0
    assert broker.store.queues.find("orphan", 0) is None
    assert broker.store.queues.find("t", 0) is not None
