from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from kerolox.protocol.bodies.groups import GroupConfig
from kerolox.protocol.bodies.heartbeat import (
    CheckClient,
    ConsumeFromWhere,
    ConsumeType,
    MessageModel,
    SubscriptionData,
)
from kerolox.protocol.bodies.members import ConsumerIds
from kerolox.protocol.codes import VERSION, RequestCode, ResponseCode
from kerolox.protocol.headers.heartbeat import HeartbeatAnswer, UnregisterClientRequest
from kerolox.protocol.subscription import subscription
from tests.broker.group_kit import Part, clients, consumer, running, until, wants


@pytest.fixture
async def part(tmp_path: Path) -> AsyncIterator[Part]:
    async with running(tmp_path) as part:
        yield part


JAVA = (
    b'{"clientID":"10.0.0.9@1234#5678","consumerDataSet":[{"consumeFromWhere":"CONSUME_FROM_LAST_OFFSET",'
    b'"consumeType":"CONSUME_PASSIVELY","groupName":"CG","messageModel":"CLUSTERING","subscriptionDataSet":'
    b'[{"classFilterMode":false,"codeSet":[],"expressionType":"TAG","subString":"*","subVersion":1794766976692,'
    b'"tagsSet":[],"topic":"%RETRY%CG"},{"classFilterMode":false,"codeSet":[2598919,2598920],'
    b'"expressionType":"TAG","subString":"TagA || TagB","subVersion":1794766976681,"tagsSet":["TagA","TagB"],'
    b'"topic":"TopicTest"}],"unitMode":false}],"heartbeatFingerprint":-1145941616,"producerDataSet":'
    b'[{"groupName":"PG"}],"withoutSub":false}'
)
GO = (
    b'{"clientID":"10.0.0.9@77","producerDataSet":[],"consumerDataSet":[{"groupName":"CG","consumeType":'
    b'"CONSUME_PASSIVELY","messageModel":"Clustering","consumeFromWhere":"CONSUME_FROM_FIRST_OFFSET",'
    b'"subscriptionDataSet":[{"classFilterMode":false,"topic":"TopicTest","subString":"*","tagsSet":null,'
    b'"codeSet":null,"subVersion":1794766976681,"expressionType":"TAG"}],"unitMode":false}]}'
)


async def test_a_heartbeat_of_java(part: Part) -> None:
    async with clients(part, "any") as (client,):
        answer = await client.call(RequestCode.HEART_BEAT, body=JAVA)
    assert (answer.code, answer.version) == (ResponseCode.SUCCESS, VERSION)
    assert answer.fields == {"IS_SUPPORT_HEART_BEAT_V2": "true", "IS_SUB_CHANGE": "false"}


async def test_what_a_heartbeat_told_is_known(part: Part) -> None:
    async with clients(part, "any") as (client,):
        await client.call(RequestCode.HEART_BEAT, body=JAVA)
        group = part.members.members("CG")
        assert group is not None
        assert group.client_ids == ("10.0.0.9@1234#5678",)
        assert group.model is MessageModel.CLUSTERING
        assert group.consume_type is ConsumeType.CONSUME_PASSIVELY
        assert group.from_where is ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
        assert set(group.subscriptions) == {"%RETRY%CG", "TopicTest"}
        wanted = group.subscription("TopicTest")
        assert wanted is not None
        assert wanted.code_set == {2598919, 2598920}
        [member] = part.members.producers["PG"].values()
        assert member.client_id == "10.0.0.9@1234#5678"
        assert member.seen_ms == part.clock.wall_ms()
        assert part.members.producer("10.0.0.9@1234#5678") is member.caller
        assert part.members.consumer("CG", "10.0.0.9@1234#5678") is not None
        assert part.members.consumer("CG", "nobody") is None


async def test_a_heartbeat_of_go_with_its_own_spelling(part: Part) -> None:
    async with clients(part, "any") as (client,):
        answer = await client.call(RequestCode.HEART_BEAT, body=GO)
        group = part.members.members("CG")
        assert group is not None
        assert group.model is MessageModel.CLUSTERING
        assert group.client_ids == ("10.0.0.9@77",)
        assert group.from_where is ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
    assert answer.header(HeartbeatAnswer).subscription_changed is True


async def test_a_body_that_is_none_is_refused_and_the_connection_goes_on(part: Part) -> None:
    async with clients(part, "c") as (client,):
        for body in (b"", b"[", b'{"consumerDataSet":7}'):
            answer = await client.call(RequestCode.HEART_BEAT, body=body)
            assert answer.code == ResponseCode.SYSTEM_ERROR
        assert (await client.heartbeat(consumer("g"))).code == ResponseCode.SUCCESS


# --- groups and retry topics ---------------------------------------------------------------------------


async def test_the_retry_topic_is_made_and_told_of_once(part: Part) -> None:
    made: list[str] = []
    part.topics.on_change.append(lambda config: made.append(config.topic_name))
    part.groups.put(GroupConfig(group_name="g", retry_queue_nums=3))
    async with clients(part, "c") as (client,):
        await client.heartbeat(consumer("g"))
        await client.heartbeat(consumer("g"))
    assert made == ["%RETRY%g"]
    config = part.topics.find("%RETRY%g")
    assert config is not None
    assert (config.read_queue_nums, config.write_queue_nums, config.perm) == (3, 3, 6)
    assert (config.order, config.topic_sys_flag) == (False, 0)


async def test_the_retry_topic_of_a_unit_and_of_an_ordered_topic(part: Part) -> None:
    part.topic("ordered", order=True)
    async with clients(part, "c") as (client,):
        await client.heartbeat(consumer("unit", unit=True), consumer("g", wants("ordered")))
        unit, ordered = part.topics.find("%RETRY%unit"), part.topics.find("%RETRY%g")
        assert unit is not None
        assert (unit.topic_sys_flag, unit.order) == (2, False)
        assert ordered is not None
        assert ordered.order
        await client.heartbeat(consumer("g", wants("t")))
        ordered = part.topics.find("%RETRY%g")
        assert ordered is not None
        assert not ordered.order


async def test_a_group_that_may_not_be_made_is_passed_over(tmp_path: Path) -> None:
    async with running(tmp_path, auto_create_groups=False) as part, clients(part, "c") as (client,):
        part.groups.put(GroupConfig(group_name="known"))
        answer = await client.heartbeat(consumer("unknown"), consumer("known"), producers=("p",))
        assert answer.code == ResponseCode.SUCCESS
        assert set(part.members.consumers) == {"known"}
        assert set(part.members.producers) == {"p"}
        assert part.topics.find("%RETRY%unknown") is None
        assert part.topics.find("%RETRY%known") is not None


@pytest.mark.parametrize("broker_wide", [True, False])
async def test_notices_can_be_switched_off(tmp_path: Path, broker_wide: bool) -> None:
    async with running(tmp_path, notify_members=not broker_wide) as part, clients(part, "c") as (client,):
        part.groups.put(GroupConfig(group_name="g", notify_consumer_ids_changed_enable=broker_wide))
        await client.heartbeat(consumer("g"))
        await client.heartbeat(consumer("g", wants("u")))
        await client.consumer_ids("g")
        assert client.notices == []


# --- short heartbeats ----------------------------------------------------------------------------------


def changed(answer: object) -> bool | None:
    return answer.header(HeartbeatAnswer).subscription_changed  # type: ignore[attr-defined,no-any-return]


async def test_short_heartbeats_keep_subscriptions(part: Part) -> None:
    short = msgspec.structs.replace(consumer("g"), subscription_data_set=())
    async with clients(part, "c") as (client,):
        assert changed(await client.heartbeat(consumer("g"), fingerprint=7)) is False
        await until(lambda: client.notices == ["g"])
        assert changed(await client.heartbeat(short, fingerprint=7, without_sub=True)) is False
        group = part.members.members("g")
        assert group is not None
        assert set(group.subscriptions) == {"t"}
        assert changed(await client.heartbeat(short, fingerprint=8, without_sub=True)) is True
        assert changed(await client.heartbeat(short, fingerprint=8, without_sub=True)) is False
        assert set(group.subscriptions) == {"t"}
        assert client.notices == ["g"]


async def test_short_heartbeats_keep_a_member_alive(part: Part) -> None:
    part.members.start()
    short = msgspec.structs.replace(consumer("g"), subscription_data_set=())
    async with clients(part, "c") as (client,):
        await client.heartbeat(consumer("g"), fingerprint=7)
        for _ in range(5):
            await part.clock.advance(100)
            await client.heartbeat(short, fingerprint=7, without_sub=True)
        assert part.members.expired == 0


async def test_a_full_heartbeat_is_wanted_when_the_subscriptions_are_not_known(part: Part) -> None:
    short = msgspec.structs.replace(consumer("g"), subscription_data_set=())
    async with clients(part, "c") as (client,):  # as after a restart of the broker
        assert changed(await client.heartbeat(short, fingerprint=7, without_sub=True)) is True
        await until(lambda: client.notices == ["g"])  # yet it is there
        assert ConsumerIds.decode((await client.consumer_ids("g")).body).consumer_id_list == ("c",)
        assert changed(await client.heartbeat(consumer("g"), fingerprint=7)) is False


async def test_fingerprints_of_deserted_groups_are_forgotten(part: Part) -> None:
    async with clients(part, "c") as (client,):
        await client.heartbeat(consumer("g"), fingerprint=7)
        await client.call(
            RequestCode.UNREGISTER_CLIENT, UnregisterClientRequest(client_id="c", consumer_group="g")
        )
        assert part.heartbeats._fingerprints == {}
        assert changed(await client.heartbeat(consumer("g"), fingerprint=8)) is False


# --- good-byes and lists -------------------------------------------------------------------------------


async def test_saying_good_bye(part: Part) -> None:
    async with clients(part, "one", "two") as (one, two):
        for client in (one, two):
            await client.heartbeat(consumer("g"), consumer("h"), producers=("p",))
        await until(lambda: one.notices.count("g") == 2)
        bye = UnregisterClientRequest(client_id="two", producer_group="p", consumer_group="g")
        assert (await two.call(RequestCode.UNREGISTER_CLIENT, bye)).code == ResponseCode.SUCCESS
        await until(lambda: one.notices.count("g") == 3)
        assert one.notices.count("h") == 2
        assert part.members.consumers["g"].client_ids == ("one",)
        assert set(part.members.consumers["h"].client_ids) == {"one", "two"}
        assert len(part.members.producers["p"]) == 1
        assert part.members.producer("two") is None
        again = await two.call(RequestCode.UNREGISTER_CLIENT, bye)
        unknown = await two.call(
            RequestCode.UNREGISTER_CLIENT, UnregisterClientRequest(client_id="two", consumer_group="unknown")
        )
        assert again.code == unknown.code == ResponseCode.SUCCESS
        assert part.groups.find("unknown") is None


async def test_the_list_of_a_group(part: Part) -> None:
    async with clients(part, "one", "two") as (one, two):
        await one.heartbeat(consumer("g"))
        await two.heartbeat(consumer("g"))
        answer = await one.consumer_ids("g")
        assert answer.body == b'{"consumerIdList":["one","two"]}'
        none = await one.consumer_ids("unknown")
        assert (none.code, none.body) == (ResponseCode.SYSTEM_ERROR, b"")
        assert none.remark == "no consumer for this group, unknown"


# --- filters before they are used ------------------------------------------------------------------------


def check(wanted: SubscriptionData | None) -> bytes:
    return CheckClient(client_id="c", group="g", subscription_data=wanted).encode()


async def test_filters_by_tag_are_always_good(part: Part) -> None:
    async with clients(part, "c") as (client,):
        for body in (check(wants("t", "a || b")), check(None), b""):
            answer = await client.call(RequestCode.CHECK_CLIENT_CONFIG, body=body)
            assert answer.code == ResponseCode.SUCCESS


async def test_other_filters_are_checked_when_they_are_on(part: Part) -> None:
    good, bad = (check(subscription("t", text, 1, "SQL92")) for text in ("a > 1", "a >"))
    async with clients(part, "c") as (client,):
        off = await client.call(RequestCode.CHECK_CLIENT_CONFIG, body=good)
        assert off.code == ResponseCode.SYSTEM_ERROR
        assert off.remark is not None
        assert off.remark.startswith("The broker does not support consumer to filter message by SQL92")
        part.options.property_filter = True
        assert (await client.call(RequestCode.CHECK_CLIENT_CONFIG, body=good)).code == ResponseCode.SUCCESS
        refused = await client.call(RequestCode.CHECK_CLIENT_CONFIG, body=bad)
        assert refused.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
        assert refused.remark is not None
        assert refused.remark.startswith("invalid condition at line 1, column 4")
