"""Groups, their progress and their members, as tools see them over a connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kerolox.broker.admin import client_admin
from kerolox.front.lanes import Lane
from kerolox.front.requests import Answer, Request
from kerolox.net.dialer import Dialer
from kerolox.net.handlers import RemotingHandlers
from kerolox.protocol.bodies.body import MessageQueue
from kerolox.protocol.bodies.clients import ConsumerConnection, ProducerConnection, ProducerTable
from kerolox.protocol.bodies.groups import (
    GroupConfig,
    GroupConfigList,
    GroupConfigTable,
    GroupForbidden,
    RequestMode,
    RequestModeTable,
    SetRequestMode,
)
from kerolox.protocol.bodies.heartbeat import HeartbeatData, ProducerData
from kerolox.protocol.bodies.members import GroupSubscription
from kerolox.protocol.bodies.offsets import ConsumerOffsetTable, DelayOffsetTable
from kerolox.protocol.bodies.routes import TopicList
from kerolox.protocol.bodies.stats import ConsumeStats, ConsumeStatsList, ConsumeTimeSpans
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.command import Command
from kerolox.protocol.header import Header
from kerolox.protocol.headers import group as headers
from kerolox.protocol.headers.heartbeat import ConsumeDirectlyRequest, ConsumerRunningInfoRequest
from kerolox.protocol.headers.send import SendAnswer
from kerolox.protocol.json_dialect import loads
from kerolox.protocol.record import decode_record
from kerolox.testing.broker import running_broker
from tests.broker.talk import Talk, subscribed


@pytest.fixture
async def talk(tmp_path: Path) -> AsyncIterator[Talk]:
    async with running_broker(directory=tmp_path) as running, Dialer() as dialer:
        yield Talk(dialer, running)


async def ask(talk: Talk, code: int, header: Header | None = None, body: bytes = b"") -> Command:
    return await talk.dialer.call(talk.address, code, header, body, timeout_s=10)


async def put(talk: Talk, group: str, **fields: object) -> Command:
    body = GroupConfig(group_name=group, **fields).encode()  # type: ignore[arg-type]
    return await ask(talk, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)


async def config(talk: Talk, group: str) -> GroupConfig | None:
    answer = await ask(
        talk, RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, headers.GroupConfigRequest(group=group)
    )
    assert answer.code in (0, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST)
    return GroupConfig.decode(answer.body) if answer.code == 0 else None


async def test_settings_are_saved_before_they_are_answered(talk: Talk, tmp_path: Path) -> None:
    assert (await put(talk, "g", retry_max_times=3)).code == 0
    saved = loads((tmp_path / "store" / "config" / "subscriptionGroup.json").read_bytes())
    assert saved["subscriptionGroupTable"]["g"]["retryMaxTimes"] == 3
    found = await config(talk, "g")
    assert found is not None
    assert found.retry_max_times == 3
    assert (await put(talk, "no good")).code == ResponseCode.INVALID_PARAMETER
    code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST
    many = GroupConfigList(group_config_list=(GroupConfig(group_name="a"), GroupConfig(group_name="b!")))
    assert (await ask(talk, code, body=many.encode())).code == ResponseCode.INVALID_PARAMETER
    assert "a" not in talk.running.broker.membership.groups.table.groups
    many = GroupConfigList(group_config_list=(GroupConfig(group_name="a"), GroupConfig(group_name="b")))
    assert (await ask(talk, code, body=many.encode())).code == 0
    talk.running.broker.options.auto_create_groups = False
    assert await config(talk, "unknown") is None


async def test_all_groups_whole_and_in_pages(talk: Talk) -> None:
    for name in ("a", "b", "c"):
        await put(talk, name)
    answer = await ask(talk, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
    whole = GroupConfigTable.decode(answer.body)
    assert {"a", "TOOLS_CONSUMER"} <= whole.subscription_group_table.keys()
    assert answer.header(headers.AllGroupConfigAnswer).total_group_num == len(whole.subscription_group_table)
    version = whole.data_version.encode().decode()
    asked = headers.AllGroupConfigRequest(group_seq=1, max_group_num=2, data_version=version)
    part = GroupConfigTable.decode(
        (await ask(talk, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, asked)).body
    )
    assert sorted(part.subscription_group_table) == sorted(whole.subscription_group_table)[1:3]


async def test_delete_with_and_without_progress(talk: Talk) -> None:
    await talk.send("t")
    offsets = talk.running.broker.tables.offsets
    for clean, left in ((False, {"t"}), (True, set())):
        await put(talk, "g")
        offsets.commit("t", "g", 0, 1)
        header = headers.DeleteGroupRequest(group_name="g", clean_offset=clean)
        assert (await ask(talk, RequestCode.DELETE_SUBSCRIPTIONGROUP, header)).code == 0
        assert "g" not in talk.running.broker.membership.groups.table.groups
        assert offsets.topics_of("g") == left
    assert (await ask(talk, RequestCode.DELETE_SUBSCRIPTIONGROUP, header)).code == 0  # whatever it was


async def test_forbidden(talk: Talk) -> None:
    async def forbidden(readable: bool | None) -> bool | None:
        header = headers.GroupForbiddenRequest(group="g", topic="t", readable=readable)
        answer = await ask(talk, RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN, header)
        return GroupForbidden.decode(answer.body).readable

    assert await forbidden(None) is True
    assert await forbidden(False) is False
    assert await forbidden(None) is False
    assert await forbidden(True) is True


async def test_what_they_consume(talk: Talk) -> None:
    broker = talk.running.broker
    await talk.send("t")
    await talk.heartbeat("g", subscribed("t", "a||b"))
    broker.tables.offsets.commit("t", "g", 0, 1)
    answer = await ask(talk, RequestCode.QUERY_TOPICS_BY_CONSUMER, headers.GroupTopicsRequest(group="g"))
    assert TopicList.decode(answer.body) == TopicList(broker_addr=broker.address, topic_list=("t",))
    asked = headers.GroupSubscriptionRequest(group="g", topic="t")
    answer = await ask(talk, RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER, asked)
    data = GroupSubscription.decode(answer.body).subscription_data
    assert data is not None
    assert data.sub_string == "a||b"
    table = ConsumerOffsetTable.decode((await ask(talk, RequestCode.GET_ALL_CONSUMER_OFFSET)).body)
    assert table.offset_table == {"t@g": {0: 1}}
    assert broker.tables.offsets.changed  # asking is not saving
    broker.tables.delay_offsets.update(3, 17)
    delays = DelayOffsetTable.decode((await ask(talk, RequestCode.GET_ALL_DELAY_OFFSET)).body)
    assert delays.offset_table == {3: 17}


async def test_request_modes(talk: Talk, tmp_path: Path) -> None:
    async def set_mode(topic: str, group: str = "g", mode: RequestMode = RequestMode.PULL) -> int:
        asked = SetRequestMode(topic=topic, consumer_group=group, mode=mode, pop_share_queue_num=2)
        return (await ask(talk, RequestCode.SET_MESSAGE_REQUEST_MODE, body=asked.encode())).code

    await talk.send("t")
    assert await set_mode("t") == 0
    assert await set_mode("%RETRY%g") == ResponseCode.NO_PERMISSION
    assert await set_mode("unknown") == ResponseCode.TOPIC_NOT_EXIST
    talk.running.broker.options.auto_create_groups = False
    assert await set_mode("t", "unknown") == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    found = RequestModeTable.decode((await ask(talk, RequestCode.GET_ALL_MESSAGE_REQUEST_MODE)).body)
    assert found.message_request_mode_map["t"]["g"].mode is RequestMode.PULL
    saved = loads((tmp_path / "store" / "config" / "messageRequestMode.json").read_bytes())
    assert saved["messageRequestModeMap"]["t"]["g"]["popShareQueueNum"] == 2


async def test_progress(talk: Talk) -> None:
    broker = talk.running.broker
    for _ in range(4):
        await talk.send("t", queue_id=2)
    await talk.pull("t", 2, consumer_group="g", max_msg_nums=3)
    broker.tables.offsets.commit("t", "g", 2, 1)
    broker.tables.offsets.commit("gone", "g", 0, 1)
    code = RequestCode.GET_CONSUME_STATS

    async def stats(**fields: str) -> ConsumeStats:
        header = headers.ConsumeStatsRequest(consumer_group="g", **fields)
        return ConsumeStats.decode((await ask(talk, code, header)).body)

    table = (await stats()).offset_table
    assert len(table) == 4
    row = table[MessageQueue("t", "broker-a", 2)]
    assert (row.broker_offset, row.consumer_offset, row.pull_offset) == (4, 1, 3)
    assert row.last_timestamp > 0
    fresh = table[MessageQueue("t", "broker-a", 0)]
    assert (fresh.broker_offset, fresh.consumer_offset, fresh.last_timestamp) == (0, 0, 0)
    assert len((await stats(topic="t")).offset_table) == 4
    assert (await stats(topic="unknown")).offset_table == {}
    # What members do not want any more is left out, unless it is asked for by name.
    await talk.heartbeat("g", subscribed("other"))
    assert (await stats()).offset_table == {}
    assert (await stats(topic="t")).offset_table == {}
    assert len((await stats(topic_list="t;unknown")).offset_table) == 4


async def test_progress_of_all_groups(talk: Talk) -> None:
    await talk.send("t", queue_id=0)
    for group in ("a", "b"):
        await put(talk, group)
        talk.running.broker.tables.offsets.commit("t", group, 0, 0)
    code = RequestCode.GET_BROKER_CONSUME_STATS
    found = ConsumeStatsList.decode((await ask(talk, code, headers.BrokerConsumeStatsRequest())).body)
    assert found.total_diff == 2
    assert [list(entry) for entry in found.consume_stats_list] == [["a"], ["b"]]
    ordered = headers.BrokerConsumeStatsRequest(is_order=True)
    assert ConsumeStatsList.decode((await ask(talk, code, ordered)).body).consume_stats_list == ()


async def test_time_span(talk: Talk) -> None:
    for _ in range(2):
        await talk.send("t", queue_id=0)
    talk.running.broker.tables.offsets.commit("t", "g", 0, 1)
    asked = headers.ConsumeTimeSpanRequest(topic="t", group="g")
    answer = await ask(talk, RequestCode.QUERY_CONSUME_TIME_SPAN, asked)
    spans = ConsumeTimeSpans.decode(answer.body).consume_time_span_set
    assert len(spans) == 4
    first = spans[0]
    assert 0 < first.min_time_stamp <= first.max_time_stamp
    assert first.consume_time_stamp == first.min_time_stamp
    assert 0 <= first.delay_time < 60_000
    assert spans[1].max_time_stamp == -1
    asked = headers.ConsumeTimeSpanRequest(topic="no", group="g")
    assert (await ask(talk, RequestCode.QUERY_CONSUME_TIME_SPAN, asked)).code == ResponseCode.TOPIC_NOT_EXIST


async def test_connections(talk: Talk) -> None:
    await talk.heartbeat("g", subscribed("t"))
    beat = HeartbeatData(client_id="p1", producer_data_set=(ProducerData(group_name="pg"),))
    await ask(talk, RequestCode.HEART_BEAT, body=beat.encode())
    code = RequestCode.GET_CONSUMER_CONNECTION_LIST
    found = ConsumerConnection.decode(
        (await ask(talk, code, headers.ConsumerConnectionRequest(consumer_group="g"))).body
    )
    (connection,) = found.connection_set
    assert (connection.client_id, connection.version) == ("client-1", 513)
    assert connection.client_addr is not None
    assert connection.client_addr.startswith("127.0.0.1:")
    assert found.subscription_table["t"].sub_string == "*"
    answer = await ask(talk, code, headers.ConsumerConnectionRequest(consumer_group="nobody"))
    assert answer.code == ResponseCode.CONSUMER_NOT_ONLINE
    code = RequestCode.GET_PRODUCER_CONNECTION_LIST
    producers = ProducerConnection.decode(
        (await ask(talk, code, headers.ProducerConnectionRequest(producer_group="pg"))).body
    )
    assert [producer.client_id for producer in producers.connection_set] == ["p1"]
    answer = await ask(talk, code, headers.ProducerConnectionRequest(producer_group="nobody"))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    table = ProducerTable.decode((await ask(talk, RequestCode.GET_ALL_PRODUCER_INFO)).body)
    assert table.data["pg"][0].remote_ip == "/" + connection.client_addr


async def test_questions_are_passed_on(talk: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the consumer, over its own connection, and its answer comes back as it is."""
    asked: list[Command] = []

    async def consumer(request: Request[None]) -> Answer | None:
        asked.append(request.ticket)
        if request.fields.get("jstackEnable") == "true":
            await asyncio.sleep(60)
        return Answer(code=0, remark="from the consumer", body=b'{"it":1}')

    handlers = RemotingHandlers()
    lane = Lane("client")
    for code in (RequestCode.GET_CONSUMER_RUNNING_INFO, RequestCode.CONSUME_MESSAGE_DIRECTLY):
        handlers.add(code, consumer, None, lane)
    async with Dialer(handlers) as theirs:
        await Talk(theirs, talk.running).heartbeat("g", subscribed("t"))
        header = ConsumerRunningInfoRequest(consumer_group="g", client_id="client-1")
        answer = await ask(talk, RequestCode.GET_CONSUMER_RUNNING_INFO, header)
        assert (answer.code, answer.remark, answer.body) == (0, "from the consumer", b'{"it":1}')
        assert asked[0].fields["clientId"] == "client-1"

        sent = (await talk.send("t", b"once more")).header(SendAnswer)
        direct = ConsumeDirectlyRequest(
            consumer_group="g", client_id="client-1", msg_id=sent.msg_id, topic="t"
        )
        assert (await ask(talk, RequestCode.CONSUME_MESSAGE_DIRECTLY, direct)).code == 0
        assert decode_record(asked[1].body).body == b"once more"
        fields = asked[1].fields
        assert (fields["brokerName"], fields["topicSysFlag"], fields["groupSysFlag"]) == (
            "broker-a",
            "0",
            "0",
        )

        monkeypatch.setattr(client_admin, "RELAY_TIMEOUT_S", 0.2)
        slow = ConsumerRunningInfoRequest(consumer_group="g", client_id="client-1", jstack_enable=True)
        answer = await ask(talk, RequestCode.GET_CONSUMER_RUNNING_INFO, slow)
        assert answer.code == ResponseCode.CONSUME_MSG_TIMEOUT
        await lane.close()
    nobody = ConsumerRunningInfoRequest(consumer_group="g", client_id="other")
    answer = await ask(talk, RequestCode.GET_CONSUMER_RUNNING_INFO, nobody)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "not online" in (answer.remark or "")
    wrong = ConsumeDirectlyRequest(consumer_group="g", client_id="client-1")
    assert (await ask(talk, RequestCode.CONSUME_MESSAGE_DIRECTLY, wrong)).code != 0
