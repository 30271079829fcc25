from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kerolox.broker.consume import group_offsets
from kerolox.front.requests import Answer
from kerolox.protocol.bodies.body import MessageQueue
from kerolox.protocol.bodies.groups import GroupConfig
from kerolox.protocol.bodies.offsets import ConsumerStatus, CorrectionOffsets, ResetOffsets
from kerolox.protocol.codes import Language, RequestCode, ResponseCode
from kerolox.protocol.command import Command, request
from kerolox.protocol.flags import PULL_COMMIT_OFFSET, PULL_SUBSCRIPTION, PULL_SUSPEND
from kerolox.protocol.header import Header
from kerolox.protocol.headers import offset as headers
from kerolox.protocol.headers.offset import OffsetAnswer
from kerolox.protocol.headers.pull import PullAnswer, PullRequest
from kerolox.protocol.limits import INT64_MAX
from tests.broker.group_kit import Part, TestClient, clients, consumer, running, until


@pytest.fixture
async def part(tmp_path: Path) -> AsyncIterator[Part]:
    async with running(tmp_path) as part:
        part.topic("t", queues=2)
        part.groups.put(GroupConfig(group_name="g"))
        yield part


@pytest.fixture
async def client(part: Part) -> AsyncIterator[TestClient]:
    async with clients(part, "c") as (client,):
        yield client


def queue(queue_id: int, topic: str = "t") -> MessageQueue:
    return MessageQueue(topic, "broker-a", queue_id)


async def query(client: TestClient, topic: str = "t", zero: bool | None = None, group: str = "g") -> Command:
    header = headers.QueryOffsetRequest(
        consumer_group=group, topic=topic, queue_id=0, set_zero_if_not_found=zero
    )
    return await client.call(RequestCode.QUERY_CONSUMER_OFFSET, header)


def found(answer: Command) -> int | None:
    """The offset, None for "not found"; nothing else may be answered."""
    if answer.code == ResponseCode.QUERY_NOT_FOUND:
        assert answer.fields == {}
        return None
    assert answer.code == ResponseCode.SUCCESS
    return answer.header(OffsetAnswer).offset


async def update(
    client: TestClient, offset: int, topic: str = "t", group: str = "g", queue_id: int = 0
) -> Command:
    header = headers.UpdateOffsetRequest(
        consumer_group=group, topic=topic, queue_id=queue_id, commit_offset=offset
    )
    return await client.call(RequestCode.UPDATE_CONSUMER_OFFSET, header)


# --- 14 ------------------------------------------------------------------------------------------------


async def test_a_stored_offset_is_answered(part: Part, client: TestClient) -> None:
    part.offsets.commit("t", "g", 0, 7)
    assert found(await query(client)) == 7
    assert found(await query(client, zero=False)) == 7


async def test_a_new_group_on_a_young_queue_starts_at_its_beginning(part: Part, client: TestClient) -> None:
    await part.put("t", 3)
    assert found(await query(client)) == 0
    assert found(await query(client, zero=True)) == 0
    assert found(await query(client, zero=False)) is None


async def test_without_messages_there_is_no_offset(part: Part, client: TestClient) -> None:
    assert found(await query(client)) is None
    assert found(await query(client, topic="unknown")) is None


async def test_a_queue_that_lost_its_beginning_has_no_offset(part: Part, client: TestClient) -> None:
    await part.put("t", 3)
    lost = part.store.queues.find("t", 0)
    assert lost is not None
    lost.min_offset = 1
    assert found(await query(client)) is None


async def test_a_beginning_that_has_left_memory_does_not_count(part: Part, client: TestClient) -> None:
    await part.put("t", 1)
    part.store.reader._memory_bytes = 1000
    window = part.store.reader._memory_bytes * part.options.memory_percent // 100
    while part.store.progress.confirmed <= window:
        assert found(await query(client)) == 0
        await part.put("other", 1)
    assert found(await query(client)) is None


async def test_a_queue_that_is_not_in_memory_is_looked_up(
    part: Part, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await part.put("t", 1)
    cold = part.store.queues.find("t", 0)
    monkeypatch.setattr(type(cold), "read_hot", lambda self, offset, count: None)
    assert found(await query(client)) == 0
    part.store.reader._memory_bytes = 0
    assert found(await query(client)) is None


# --- 15 ------------------------------------------------------------------------------------------------


async def test_commits_overwrite_even_backwards(part: Part, client: TestClient) -> None:
    await part.put("t", 9)
    for offset in (5, 9, 2):
        assert (await update(client, offset)).code == ResponseCode.SUCCESS
        assert part.offsets.offset("t", "g", 0) == offset


async def test_commits_come_one_way(part: Part, client: TestClient) -> None:
    await part.put("t", 4, queue_id=1)
    header = headers.UpdateOffsetRequest(consumer_group="g", topic="t", queue_id=1, commit_offset=4)
    await client.dialer.tell(part.address, RequestCode.UPDATE_CONSUMER_OFFSET, header)
    await until(lambda: part.offsets.offset("t", "g", 1) == 4)


async def test_commits_for_what_is_not_known_are_refused(part: Part, client: TestClient) -> None:
    assert (await update(client, 1, group="unknown")).code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    assert part.groups.find("unknown") is None
    assert (await update(client, 1, topic="unknown")).code == ResponseCode.TOPIC_NOT_EXIST
    incomplete = await client.call(
        RequestCode.UPDATE_CONSUMER_OFFSET, fields={"consumerGroup": "g", "topic": "t", "queueId": "0"}
    )
    assert incomplete.code == ResponseCode.INVALID_PARAMETER
    assert part.offsets.offsets == {}


async def test_commits_are_void_while_a_reset_is_pending(part: Part, client: TestClient) -> None:
    await part.put("t", 9, queue_id=1)
    part.offsets.reset("t", "g", 0, 3)
    answer = await update(client, 9)
    assert (answer.code, answer.remark) == (ResponseCode.SUCCESS, "Offset has been previously reset")
    assert found(await query(client)) == 3
    await update(client, 9, queue_id=1)
    assert part.offsets.offset("t", "g", 1) == 9


@pytest.mark.parametrize(
    ("queue_id", "offset"), [(0, -1), (0, 4), (1, 1), (-1, 0), (8, 0), (1 << 30, 1 << 60), (0, -(1 << 63))]
)
async def test_commits_of_places_that_are_not_there_are_refused(
    part: Part, client: TestClient, queue_id: int, offset: int
) -> None:
    await part.put("t", 3)
    answer = await update(client, offset, queue_id=queue_id)
    assert answer.code == ResponseCode.INVALID_PARAMETER
    assert answer.remark is not None
    assert "offset rejected, group g: " in answer.remark
    assert part.offsets.offsets == {}
    assert (await update(client, 3)).code == ResponseCode.SUCCESS


async def test_offsets_are_bounded_in_number(
    part: Part, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_offsets, "OFFSETS_MAX", 2)
    part.topic("t", queues=3)
    await part.put("t", 3)
    for queue_id in (0, 1):
        assert (await update(client, 0, queue_id=queue_id)).code == ResponseCode.SUCCESS
    refused = await update(client, 0, queue_id=2)
    assert refused.code == ResponseCode.SYSTEM_ERROR
    assert refused.remark == "too many offsets of groups: the limit is 2 (OFFSETS_MAX)"
    assert (await update(client, 2)).code == ResponseCode.SUCCESS  # one it has already
    part.offsets.remove("t", "g")
    assert (await update(client, 0, queue_id=2)).code == ResponseCode.SUCCESS


async def test_a_reset_of_a_queue_that_is_not_there_is_refused(part: Part, client: TestClient) -> None:
    part.options.server_side_reset = True
    await part.put("t", 3)
    header = headers.ResetOffsetRequest(topic="t", group="g", timestamp=-1, is_force=True, queue_id=1 << 20)
    answer = await client.call(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert part.offsets.offsets == {}


# --- 29 to 32 ------------------------------------------------------------------------------------------


async def bound(client: TestClient, code: RequestCode, header: Header) -> int:
    answer = await client.call(code, header)
    assert answer.code == ResponseCode.SUCCESS
    return answer.header(OffsetAnswer).offset


async def test_the_bounds_of_a_queue(part: Part, client: TestClient) -> None:
    for topic, low, high in (("t", 0, 0), ("unknown", 0, 0)):
        assert (
            await bound(client, RequestCode.GET_MIN_OFFSET, headers.MinOffsetRequest(topic=topic, queue_id=0))
            == low
        )
        assert (
            await bound(client, RequestCode.GET_MAX_OFFSET, headers.MaxOffsetRequest(topic=topic, queue_id=0))
            == high
        )
    await part.put("t", 3)
    assert (
        await bound(client, RequestCode.GET_MAX_OFFSET, headers.MaxOffsetRequest(topic="t", queue_id=0)) == 3
    )
    assert (
        await bound(client, RequestCode.GET_MIN_OFFSET, headers.MinOffsetRequest(topic="t", queue_id=0)) == 0
    )


async def stored_at_intervals(part: Part, count: int = 5) -> int:
    """One message each second; the time of the first."""
    start = part.clock.wall_ms()
    for _ in range(count):
        await part.put("t")
        await part.clock.advance(1)
    return start


async def test_offsets_by_time(part: Part, client: TestClient) -> None:
    start = await stored_at_intervals(part)

    async def at(after_ms: int, boundary: headers.BoundaryType | None = None) -> int:
        asked = headers.SearchOffsetRequest(
            topic="t", queue_id=0, timestamp=start + after_ms, boundary_type=boundary
        )
        return await bound(client, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, asked)

    upper = headers.BoundaryType.UPPER
    assert [await at(ms) for ms in (-1, 0, 1, 2000, 4000, 4001)] == [0, 0, 1, 2, 4, 5]
    assert [await at(ms, upper) for ms in (0, 999, 1000, 2500, 99_000)] == [0, 0, 1, 2, 4]
    none = headers.SearchOffsetRequest(topic="t", queue_id=1, timestamp=start)
    assert await bound(client, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, none) == 0


async def test_the_time_of_the_first_message(part: Part, client: TestClient) -> None:
    async def earliest(queue_id: int) -> int:
        asked = headers.EarliestStoreTimeRequest(topic="t", queue_id=queue_id)
        answer = await client.call(RequestCode.GET_EARLIEST_MSG_STORETIME, asked)
        return answer.header(headers.EarliestStoreTimeAnswer).timestamp

    start = await stored_at_intervals(part, 2)
    assert await earliest(0) == start
    assert await earliest(1) == -1


# --- 222: setting a group back or forward -----------------------------------------------------------------


async def reset(
    client: TestClient, timestamp: int, group: str = "g", topic: str = "t", **more: int
) -> Command:
    header = headers.ResetOffsetRequest(topic=topic, group=group, timestamp=timestamp, **more)  # type: ignore[arg-type]
    return await client.call(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header)


async def pull(client: TestClient, offset: int, *, suspend_ms: int = 0, commit: int | None = None) -> Command:
    flags = PULL_SUBSCRIPTION | (PULL_SUSPEND if suspend_ms else 0)
    header = PullRequest(
        consumer_group="g",
        topic="t",
        queue_id=0,
        queue_offset=offset,
        max_msg_nums=32,
        sys_flag=flags | (PULL_COMMIT_OFFSET if commit is not None else 0),
        commit_offset=commit or 0,
        suspend_timeout_millis=suspend_ms,
        subscription="*",
        sub_version=0,
        expression_type="TAG",
    )
    return await client.call(RequestCode.PULL_MESSAGE, header, timeout_s=20)


async def test_a_reset_by_time_moves_every_queue(part: Part, client: TestClient) -> None:
    start = await stored_at_intervals(part)
    part.offsets.commit("t", "g", 0, 5)
    answer = await reset(client, start + 2000)
    assert answer.code == ResponseCode.SUCCESS
    assert ResetOffsets.decode(answer.body).offset_table == {queue(0): 2, queue(1): 0}
    await update(client, 5)  # a member that has not heard of it
    moved = await pull(client, 5, commit=5)
    assert moved.code == ResponseCode.PULL_OFFSET_MOVED
    assert moved.header(PullAnswer).next_begin_offset == 2
    assert part.offsets.offset("t", "g", 0) == 2
    assert (await pull(client, 2)).code == ResponseCode.SUCCESS
    await update(client, 3)  # from now on its word counts again
    assert part.offsets.offset("t", "g", 0) == 3


async def test_a_negative_time_means_the_end(part: Part, client: TestClient) -> None:
    await part.put("t", 4)
    answer = await reset(client, -1)
    assert ResetOffsets.decode(answer.body).offset_table == {queue(0): 4, queue(1): 0}


async def test_one_queue_is_moved_to_an_offset_within_it(part: Part, client: TestClient) -> None:
    await part.put("t", 4)
    answer = await reset(client, 0, queue_id=0, offset=3)
    assert ResetOffsets.decode(answer.body).offset_table == {queue(0): 3}
    assert not part.offsets.has_reset("t", "g", 1)
    by_time = await reset(client, -1, queue_id=0, offset=-1)
    assert ResetOffsets.decode(by_time.body).offset_table == {queue(0): 4}
    for offset in (-2, 6):
        refused = await reset(client, 0, queue_id=0, offset=offset)
        assert refused.code == ResponseCode.SYSTEM_ERROR
        assert refused.remark == f"Target offset {offset} not in consume queue range [0-4]"
    assert part.offsets.offset("t", "g", 0) == 4


async def test_a_held_pull_hears_of_a_reset_at_once(part: Part, client: TestClient) -> None:
    await part.put("t", 4)
    held = asyncio.create_task(pull(client, 4, suspend_ms=15_000))
    await until(lambda: part.waits.held == 1)
    await reset(client, 0)
    moved = await held
    assert moved.code == ResponseCode.PULL_OFFSET_MOVED
    assert moved.header(PullAnswer).next_begin_offset == 0


async def test_resets_of_what_is_not_known_are_refused(part: Part, client: TestClient) -> None:
    assert (await reset(client, 0, topic="unknown")).code == ResponseCode.TOPIC_NOT_EXIST
    assert (await reset(client, 0, group="unknown")).code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    part.topic("none", queues=0)
    assert (await reset(client, 0, topic="none")).remark == "No queues to reset."
    await part.leadership.follow("another one leads")
    assert (await reset(client, 0)).remark == "Can not reset offset in slave broker"


# --- 222 through the members ------------------------------------------------------------------------------


@pytest.fixture
async def pushing(part: Part) -> Part:
    part.options.server_side_reset = False
    await part.put("t", 4)
    for queue_id in (0, 1):
        part.offsets.commit("t", "g", queue_id, 2 - queue_id)
    return part


@pytest.mark.parametrize(("force", "first"), [(False, 2), (True, 4)])
async def test_members_are_told_their_new_offsets(pushing: Part, force: bool, first: int) -> None:
    async with clients(pushing, "one", "two", "admin") as (one, two, admin):
        await one.heartbeat(consumer("g"))
        await two.heartbeat(consumer("g"))
        answer = await reset(admin, -1, is_force=force)
        expected = {queue(0): first, queue(1): 0}
        assert ResetOffsets.decode(answer.body).offset_table == expected
        for member in (one, two):
            await until(lambda member=member: member.told)  # type: ignore[misc]
            [told] = member.told
            assert ResetOffsets.decode(told.body).offset_table == expected
            assert told.fields == {
                "topic": "t", "group": "g", "timestamp": "-1", "isForce": "false", "queueId": "-1",
            }  # fmt: skip
        assert pushing.offsets.offset("t", "g", 0) == 2  # members commit it themselves
        assert admin.told == []


async def test_an_administrator_in_cpp_gets_members_a_list(pushing: Part) -> None:
    async with clients(pushing, "one", "admin") as (one, admin):
        await one.heartbeat(consumer("g"))
        await admin.consumer_ids("g")
        peer = admin.dialer.connected_peer(pushing.address)
        assert peer is not None
        question = request(
            RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
            headers.ResetOffsetRequest(topic="t", group="g", timestamp=-1, is_force=True),
            opaque=peer.next_opaque(),
        )
        question.language = Language.CPP
        peer.ask(question, lambda answer: None, 3.0)
        await until(lambda: one.told)
        assert one.told[0].body == (
            b'{"offsetTable":[{"brokerName":"broker-a","offset":4,"queueId":0,"topic":"t"},'
            b'{"brokerName":"broker-a","offset":0,"queueId":1,"topic":"t"}]}'
        )


async def test_resets_through_members_need_members_and_progress(pushing: Part) -> None:
    async with clients(pushing, "one", "admin") as (one, admin):
        offline = await reset(admin, -1)
        assert offline.code == ResponseCode.CONSUMER_NOT_ONLINE
        assert (await reset(admin, -1, group="new")).code == ResponseCode.SYSTEM_ERROR
        assert (await reset(admin, -1, topic="unknown")).code == ResponseCode.TOPIC_NOT_EXIST
        await one.heartbeat(consumer("g"))
        pushing.members.consumers["g"].find("one").client.version = 27  # type: ignore[union-attr]
        old = await reset(admin, -1)
        assert old.code == ResponseCode.SYSTEM_ERROR
        assert old.remark is not None
        assert "does not support this feature" in old.remark
        assert one.told == []


# --- 223 -----------------------------------------------------------------------------------------------


async def status(client: TestClient, client_id: str | None = None, group: str = "g") -> Command:
    header = headers.ConsumerStatusRequest(topic="t", group=group, client_addr=client_id)
    return await client.call(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, header, timeout_s=10)


async def test_members_are_asked_how_far_they_are(part: Part) -> None:
    async with clients(part, "one", "two", "mute", "admin") as (one, two, mute, admin):
        for number, member in enumerate((one, two)):
            body = ConsumerStatus(message_queue_table={queue(number): 10 + number})
            member.status_answer = Answer(body=body.encode())
        for member in (one, two, mute):
            await member.heartbeat(consumer("g"))
        answer = await status(admin)
        assert answer.code == ResponseCode.SUCCESS
        table = ConsumerStatus.decode(answer.body).consumer_table
        assert table == {"one": {queue(0): 10}, "two": {queue(1): 11}}
        assert one.told[0].fields == {"topic": "t", "group": "g"}
        only = ConsumerStatus.decode((await status(admin, "two")).body).consumer_table
        assert only == {"two": {queue(1): 11}}
        assert len(one.told) == 1
        assert ConsumerStatus.decode((await status(admin, "nobody")).body).consumer_table == {}


async def test_a_member_that_leaves_instead_of_answering_is_left_out(part: Part) -> None:
    async with clients(part, "one", "admin") as (one, admin):
        await one.heartbeat(consumer("g"))
        one.status_answer = Answer(body=b"no JSON")
        assert ConsumerStatus.decode((await status(admin)).body).consumer_table == {}
        one._ask = lambda request: request.caller.close("no answer")  # type: ignore[method-assign]
        one.dialer.handlers.routes[RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT].handler = one._ask
        assert ConsumerStatus.decode((await status(admin)).body).consumer_table == {}


async def test_nobody_there_to_be_asked(part: Part, client: TestClient) -> None:
    answer = await status(client)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark == "No Any Consumer online in the consumer group: [g]"


# --- 314 and 308 -----------------------------------------------------------------------------------------


async def clone(client: TestClient, topic: str | None, offline: bool = True) -> Command:
    header = headers.CloneOffsetRequest(src_group="g", dest_group="copy", topic=topic, offline=offline)
    return await client.call(RequestCode.CLONE_GROUP_OFFSET, header)


async def test_progress_is_cloned(part: Part, client: TestClient) -> None:
    part.topic("u")
    for topic in ("t", "u", "deleted"):
        part.offsets.commit(topic, "g", 0, 5)
    assert (await clone(client, "t")).code == ResponseCode.SUCCESS
    assert part.offsets.topics_of("copy") == {"t"}
    assert (await clone(client, None)).code == ResponseCode.SUCCESS
    assert part.offsets.topics_of("copy") == {"t", "u"}
    assert part.offsets.queues("u", "copy") == {0: 5}
    assert (await clone(client, "unknown")).code == ResponseCode.SUCCESS


async def test_progress_of_a_topic_not_subscribed_is_not_cloned_from_a_group_at_work(
    part: Part, client: TestClient
) -> None:
    part.topic("u")
    for topic in ("t", "u"):
        part.offsets.commit(topic, "g", 0, 5)
    await client.heartbeat(consumer("g"))
    await clone(client, None, offline=False)
    assert part.offsets.topics_of("copy") == {"t"}
    await clone(client, None, offline=True)
    assert part.offsets.topics_of("copy") == {"t", "u"}


async def correction(client: TestClient, compare: str, left_out: str | None = None) -> dict[int, int]:
    header = headers.CorrectionOffsetRequest(topic="t", compare_group=compare, filter_groups=left_out)
    answer = await client.call(RequestCode.QUERY_CORRECTION_OFFSET, header)
    assert answer.code == ResponseCode.SUCCESS
    return CorrectionOffsets.decode(answer.body).correction_offsets


async def test_correction_offsets(part: Part, client: TestClient) -> None:
    for group, offsets in (("g", (4, 9)), ("slow", (2, 8)), ("other", (7, 1))):
        for queue_id, offset in enumerate(offsets):
            part.offsets.commit("t", group, queue_id, offset)
    assert await correction(client, "g") == {0: 2, 1: 1}
    assert await correction(client, "slow", "slow,other") == {0: INT64_MAX, 1: INT64_MAX}
    assert await correction(client, "unknown", "other") == {0: 2, 1: 8}
    assert part.offsets.groups_of("t") == {"g", "slow", "other"}  # leaving out is not forgetting
