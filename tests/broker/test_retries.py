"""Messages given back over real sockets: when they come again, and when they are dead letters."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from kerolox.broker.names import group_of_retry_topic
from kerolox.net.dialer import Dialer
from kerolox.net.handlers import Hook, RemotingHandlers
from kerolox.net.peer import Peer
from kerolox.protocol.bodies.body import MessageQueue
from kerolox.protocol.bodies.groups import GroupConfig
from kerolox.protocol.bodies.topics import TopicConfig
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.command import Command
from kerolox.protocol.frame import BINARY, JSON
from kerolox.protocol.headers.send import SendBackRequest
from kerolox.protocol.message import StoredMessage
from kerolox.protocol.message_id import read_offset_id
from kerolox.store.options import FlushMode
from kerolox.store.state import Obstacle
from kerolox.testing.broker import running_broker
from kerolox.testing.faults import FaultyFiles

from .talk import BORN_MS, Talk, until

SCHEDULE = "SCHEDULE_TOPIC_XXXX"
UNIQUE = "7F000001162E18B4AAC28E2F6D2A0000"


@asynccontextmanager
async def talking(encoding: int = JSON, **options: Any) -> AsyncIterator[Talk]:
    async with running_broker(**options) as running, Dialer(encoding=encoding) as dialer:
        yield Talk(dialer, running)


@pytest.fixture
async def talk(tmp_path: Path) -> AsyncIterator[Talk]:
    async with talking(directory=tmp_path) as ours:
        yield ours


class Older(Hook):
    """A client before 3.4.9."""

    def before_request(self, peer: Peer, request: Command) -> None:
        request.version = 120


async def stored(talk: Talk, topic: str = "T", **fields: Any) -> int:
    """Where a message of the topic lies."""
    properties = fields.pop("properties", {"UNIQ_KEY": UNIQUE, "TAGS": "A", "KEYS": "k1", "colour": "red"})
    answer = await talk.send(topic, fields.pop("body", b"\x00body"), properties, **fields)
    assert answer.code == 0, answer.remark
    return read_offset_id(answer.fields["msgId"]).physical_offset


async def back(talk: Talk, offset: int, **fields: Any) -> Command:
    asked = {"offset": offset, "group": "G", "delay_level": 0, "origin_topic": "T", **fields}
    return await talk.dialer.call(
        talk.address, RequestCode.CONSUMER_SEND_MSG_BACK, SendBackRequest(**asked), timeout_s=20
    )


async def parked(talk: Talk, level: int) -> list[StoredMessage]:
    """What waits at a level of the delay table."""
    return await talk.messages(SCHEDULE, level - 1)


# --- given back -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", [JSON, BINARY], ids=["json", "binary"])
async def test_a_message_given_back_waits_for_the_retry_topic_of_its_group(
    encoding: int, tmp_path: Path
) -> None:
    async with talking(encoding, directory=tmp_path) as talk:
        offset = await stored(talk, flag=7)
        answer = await back(talk, offset)
        assert (answer.code, answer.remark, answer.body, answer.fields) == (0, None, b"", {})
        (first,) = await talk.messages("T")
        (again,) = await parked(talk, 3)
        assert (again.body, again.flag, again.sys_flag) == (b"\x00body", 7, 0)
        assert (again.reconsume_times, again.prepared_offset) == (1, 0)
        assert (again.born_timestamp, again.born_host) == (BORN_MS, first.born_host)
        assert again.store_address == talk.address
        assert again.properties == first.properties | {
            "RETRY_TOPIC": "T",
            "ORIGIN_MESSAGE_ID": first.offset_id,
            "WAIT": "false",
            "DELAY": "3",
            "REAL_TOPIC": "%RETRY%G",
            "REAL_QID": "0",
        }
        made = talk.running.broker.tables.topics.find("%RETRY%G")
        assert made == TopicConfig(topic_name="%RETRY%G", read_queue_nums=1, write_queue_nums=1, perm=6)
        route = await talk.route("%RETRY%G")
        assert route is not None
        assert route.queue_datas[0].perm == 6


async def test_the_reason_of_the_last_attempt_stays_with_the_message(talk: Talk) -> None:
    first = await stored(talk)
    await back(talk, first, reason="  no stock\n of \x02TAGS\x01B")
    (again,) = await parked(talk, 3)
    assert again.properties["KEROLOX_RETRY_REASON"] == "no stock of TAGS B"
    assert again.properties["TAGS"] == "A"
    await back(talk, again.physical_offset, reason="ü" * 5000)
    (again,) = await parked(talk, 4)
    assert again.properties["KEROLOX_RETRY_REASON"] == "ü" * 256
    await back(talk, again.physical_offset)  # who gives none takes the old one away
    (again,) = await parked(talk, 5)
    assert "KEROLOX_RETRY_REASON" not in again.properties
    await back(talk, again.physical_offset, delay_level=-1, reason="broken for good")
    (dead,) = await talk.messages("%DLQ%G")
    assert dead.properties["KEROLOX_RETRY_REASON"] == "broken for good"


async def test_a_reason_never_keeps_a_message_from_coming_again(talk: Talk) -> None:
    """Properties have an end: then the reason is left out."""
    full = await stored(talk, properties={"UNIQ_KEY": UNIQUE, "large": "x" * 31_500})
    assert (await back(talk, full, reason="y" * 600)).code == 0
    (again,) = await parked(talk, 3)
    assert len(again.properties["large"]) == 31_500
    assert "KEROLOX_RETRY_REASON" not in again.properties


async def test_a_producer_does_not_say_where_its_message_comes_from(talk: Talk) -> None:
    """Consumers would take its copy for a message of that topic, and its dead letter be sent again to it."""
    forged = {"UNIQ_KEY": UNIQUE, "RETRY_TOPIC": "theirs", "ORIGIN_MESSAGE_ID": "0" * 32}
    offset = await stored(talk, properties=forged)
    (first,) = await talk.messages("T")
    await back(talk, offset)
    (again,) = await parked(talk, 3)
    await back(talk, offset, delay_level=-1)
    (dead,) = await talk.messages("%DLQ%G")
    for copy in (again, dead):
        assert copy.properties["RETRY_TOPIC"] == "T"
        assert copy.properties["ORIGIN_MESSAGE_ID"] == first.offset_id


async def test_every_attempt_waits_longer_and_keeps_where_the_message_came_from(talk: Talk) -> None:
    offset = await stored(talk)
    (first,) = await talk.messages("T")
    for attempt in range(3):
        assert (await back(talk, offset)).code == 0
        (again,) = await parked(talk, 3 + attempt)
        assert again.reconsume_times == attempt + 1
        assert again.properties["ORIGIN_MESSAGE_ID"] == first.offset_id
        assert again.properties["RETRY_TOPIC"] == "T"
        offset = again.physical_offset
    assert not await talk.messages("%DLQ%G")


async def test_a_consumer_may_choose_the_delay(talk: Talk) -> None:
    assert (await back(talk, await stored(talk), delay_level=7)).code == 0
    (again,) = await parked(talk, 7)
    assert again.properties["DELAY"] == "7"
    assert again.reconsume_times == 1


async def test_a_message_given_up_is_a_dead_letter_at_once(talk: Talk) -> None:
    assert (await back(talk, await stored(talk), delay_level=-1)).code == 0
    (dead,) = await talk.messages("%DLQ%G")
    (first,) = await talk.messages("T")
    assert (dead.body, dead.reconsume_times, dead.queue_id) == (first.body, 1, 0)
    assert dead.properties == first.properties | {
        "RETRY_TOPIC": "T",
        "ORIGIN_MESSAGE_ID": first.offset_id,
        "WAIT": "false",
        "DELAY": "0",
    }
    made = talk.running.broker.tables.topics.find("%DLQ%G")
    assert made == TopicConfig(topic_name="%DLQ%G", read_queue_nums=1, write_queue_nums=1, perm=6)


@pytest.mark.parametrize(
    ("times", "dead"), [(15, False), (16, True), (17, True)], ids=["last", "enough", "more"]
)
async def test_the_seventeenth_attempt_is_none(times: int, dead: bool, talk: Talk) -> None:
    assert (await back(talk, await stored(talk, reconsume_times=times))).code == 0
    assert len(await talk.messages("%DLQ%G")) == dead
    assert len(await parked(talk, 18)) == (not dead)


async def test_how_often_is_enough_is_said_by_the_group_or_by_a_client_that_is_new_enough(talk: Talk) -> None:
    groups = talk.running.broker.membership.groups
    groups.put(GroupConfig(group_name="G", retry_max_times=2))
    await back(talk, await stored(talk, reconsume_times=2))
    assert len(await talk.messages("%DLQ%G")) == 1
    await back(talk, await stored(talk, reconsume_times=2), max_reconsume_times=3)
    assert len(await talk.messages("%DLQ%G")) == 1
    await back(talk, await stored(talk, reconsume_times=3), max_reconsume_times=3)
    assert len(await talk.messages("%DLQ%G")) == 2
    handlers = RemotingHandlers()
    handlers.hooks.append(Older())
    async with Dialer(handlers) as dialer:
        await back(Talk(dialer, talk.running), await stored(talk, reconsume_times=2), max_reconsume_times=30)
    assert len(await talk.messages("%DLQ%G")) == 3


async def test_a_group_without_retry_queues_gives_up_silently(talk: Talk) -> None:
    talk.running.broker.membership.groups.put(GroupConfig(group_name="G", retry_queue_nums=0))
    assert (await back(talk, await stored(talk))).code == 0
    assert not await parked(talk, 3)
    assert talk.running.broker.tables.topics.find("%RETRY%G") is None


async def test_retries_are_spread_over_the_retry_queues_of_the_group(talk: Talk) -> None:
    talk.running.broker.membership.groups.put(GroupConfig(group_name="G", retry_queue_nums=3))
    offset = await stored(talk)
    for _ in range(60):
        await back(talk, offset)
    found = [message.properties["REAL_QID"] for message in await parked(talk, 3)]
    assert len(found) == 60
    assert set(found) == {"0", "1", "2"}
    made = talk.running.broker.tables.topics.find("%RETRY%G")
    assert made is not None
    assert (made.read_queue_nums, made.write_queue_nums) == (3, 3)


async def test_a_unit_is_noted_with_the_retry_topic(talk: Talk) -> None:
    await back(talk, await stored(talk), unit_mode=True)
    made = talk.running.broker.tables.topics.find("%RETRY%G")
    assert made is not None
    assert made.topic_sys_flag == 2


async def test_what_is_refused_is_told_as_rocketmq_does(tmp_path: Path) -> None:
    async with talking(directory=tmp_path, auto_create_groups=False) as talk:
        broker = talk.running.broker
        offset = await stored(talk)
        answer = await back(talk, offset)
        assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        assert (answer.remark or "").startswith("subscription group not exist, G")
        broker.membership.groups.put(GroupConfig(group_name="G"))

        for wrong in (offset + 1, 10_000_000, -1):
            answer = await back(talk, wrong)
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert (answer.remark or "").startswith(f"look message by offset failed, {wrong}")

        broker.tables.topics.put(
            TopicConfig(topic_name="%RETRY%G", read_queue_nums=1, write_queue_nums=1, perm=4)
        )
        answer = await back(talk, offset)
        assert answer.code == ResponseCode.NO_PERMISSION
        assert answer.remark == "the topic[%RETRY%G] sending message is forbidden"
        broker.tables.topics.put(
            TopicConfig(topic_name="%RETRY%G", read_queue_nums=1, write_queue_nums=1, perm=6)
        )

        broker.options.permission = 4
        answer = await back(talk, offset)
        assert answer.code == ResponseCode.NO_PERMISSION
        assert (answer.remark or "").startswith("the broker[127.0.0.1] sending message is forbidden")
        broker.options.permission = 6

        broker.store.state.set(Obstacle.DISK_FULL, "told so")
        answer = await back(talk, offset)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert (answer.remark or "").startswith("SERVICE_NOT_AVAILABLE")
        broker.store.state.clear(Obstacle.DISK_FULL)

        await broker.leadership.follow("another one leads")
        assert (await back(talk, offset)).code == ResponseCode.SYSTEM_BUSY
        await broker.leadership.lead()
        assert not await parked(talk, 3)
        assert (await back(talk, offset)).code == 0


async def test_properties_that_have_no_room_for_more_make_a_dead_letter(talk: Talk) -> None:
    """RocketMQ refuses it each time, and its consumer never gets rid of it."""
    offset = await stored(talk, properties={"UNIQ_KEY": UNIQUE, "long": "x" * 32_600})
    answer = await back(talk, offset)
    assert answer.code == 0, answer.remark
    (dead,) = await talk.messages("%DLQ%G")
    assert (dead.body, dead.properties["RETRY_TOPIC"]) == ((await talk.messages("T"))[0].body, "T")
    assert dead.properties["long"] == "x" * 32_600


async def test_a_crc_over_the_record_is_made_anew(tmp_path: Path) -> None:
    async with talking(directory=tmp_path, record_crc=True) as talk:
        await back(talk, await stored(talk), delay_level=-1)
        (first,), (dead,) = await talk.messages("T"), await talk.messages("%DLQ%G")
        assert dead.packed_properties.count(b"__CRC32#") == 1
        assert first.properties["__CRC32#"] != dead.properties["__CRC32#"]


async def test_what_comes_back_is_counted(talk: Talk) -> None:
    stats = talk.running.broker.figures.stats
    offset = await stored(talk)
    before = stats.puts.get(SCHEDULE)
    assert before is None
    await back(talk, offset)
    (again,) = await parked(talk, 3)
    await back(talk, again.physical_offset, delay_level=-1)
    assert stats.send_backs["T", "G"].messages == 2
    assert stats.dead_letters["T", "G"].messages == 1
    assert stats.puts[SCHEDULE].messages == 1
    assert stats.puts[SCHEDULE].size_bytes == again.size


async def test_with_synchronous_flush_a_message_is_back_when_it_is_on_the_disk(tmp_path: Path) -> None:
    files = FaultyFiles()
    async with talking(directory=tmp_path, files=files, flush_mode=FlushMode.SYNC) as talk:
        await talk.send("%RETRY%G")  # topics are written now, not while the disk stalls
        offset = await stored(talk)
        files.stall_syncs()
        answer = asyncio.ensure_future(back(talk, offset))
        assert await asyncio.to_thread(files.wait_for_stalled_sync)
        await asyncio.sleep(0)
        assert not answer.done()
        files.release_syncs()
        assert (await answer).code == 0


async def test_a_flush_that_takes_too_long_is_no_success(tmp_path: Path) -> None:
    files = FaultyFiles()
    async with talking(
        directory=tmp_path, files=files, flush_mode=FlushMode.SYNC, flush_timeout_ms=100
    ) as talk:
        await talk.send("%RETRY%G")
        offset = await stored(talk)
        files.stall_syncs()
        try:
            answer = await back(talk, offset)
        finally:
            files.release_syncs()
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert (answer.remark or "").startswith("FLUSH_DISK_TIMEOUT")


async def test_the_answer_waits_until_a_new_topic_is_on_disk(tmp_path: Path) -> None:
    files = FaultyFiles()
    async with talking(directory=tmp_path, files=files) as talk:
        offset = await stored(talk)
        files.stall_syncs()
        answer = asyncio.ensure_future(back(talk, offset, delay_level=-1))
        try:
            assert await asyncio.to_thread(files.wait_for_stalled_sync)
            await until(lambda: talk.running.broker.tables.topics.find("%RETRY%G"))
            assert (await talk.send("T")).code == 0
            assert not answer.done()
        finally:
            files.release_syncs()
        assert (await answer).code == 0


async def test_a_message_read_from_a_closed_store_comes_again_after_a_restart(tmp_path: Path) -> None:
    async with talking(directory=tmp_path) as talk:
        offset = await stored(talk)
    async with talking(directory=tmp_path) as talk:
        assert (await back(talk, offset)).code == 0
        assert len(await parked(talk, 3)) == 1


# --- sent by the client itself ------------------------------------------------------------------------------


async def test_a_send_to_a_retry_topic_is_kept_until_it_was_tried_often_enough(talk: Talk) -> None:
    properties = {"UNIQ_KEY": UNIQUE, "RETRY_TOPIC": "T", "DELAY": "5", "RECONSUME_TIME": "3"}
    for times, limit in ((3, 3), (16, None), (0, 0)):
        answer = await talk.send(
            "%RETRY%G", properties=properties, reconsume_times=times, max_reconsume_times=limit
        )
        assert answer.code == 0, answer.remark
    assert [message.reconsume_times for message in await parked(talk, 5)] == [3, 16, 0]
    for times, limit in ((4, 3), (17, None), (1, 0)):
        answer = await talk.send(
            "%RETRY%G", properties=properties, reconsume_times=times, max_reconsume_times=limit
        )
        assert (answer.code, answer.fields["queueId"]) == (0, "0")
    dead = await talk.messages("%DLQ%G")
    assert [message.reconsume_times for message in dead] == [4, 17, 1]
    assert {message.properties["DELAY"] for message in dead} == {"-1"}
    assert {message.properties["RETRY_TOPIC"] for message in dead} == {"T"}
    assert len(await parked(talk, 5)) == 3
    made = talk.running.broker.tables.topics.find("%DLQ%G")
    assert made == TopicConfig(topic_name="%DLQ%G", read_queue_nums=1, write_queue_nums=1, perm=6)
    stats = talk.running.broker.figures.stats
    assert stats.puts["%DLQ%G"].messages == 3
    assert stats.dead_letters["%RETRY%G", "producers"].messages == 3


async def test_what_an_ordered_consumer_sends_is_a_dead_letter_at_once(talk: Talk) -> None:
    locks = talk.running.broker.membership.queue_locks
    await talk.send("T")
    queue = MessageQueue("T", "broker-a", 0)
    locks.lock("G", "client", [queue])
    assert (await talk.send("%RETRY%G", reconsume_times=1)).code == 0
    assert len(await talk.messages("%DLQ%G")) == 1
    locks.unlock("G", "client", [queue])
    assert (await talk.send("%RETRY%G", reconsume_times=1)).code == 0
    assert len(await talk.messages("%DLQ%G")) == 1
    assert len(await talk.messages("%RETRY%G")) == 1


async def test_the_group_of_a_retry_topic_is_known_in_both_its_spellings(tmp_path: Path) -> None:
    assert group_of_retry_topic("%RETRY%G") == "G"
    assert group_of_retry_topic("%RETRY%G_T") == "G_T"
    assert group_of_retry_topic("%RETRY%G+T") == "G"
    assert group_of_retry_topic("%RETRY%G+") == "G+"
    assert group_of_retry_topic("%RETRY%G+T+U") == "G+T+U"
    async with talking(directory=tmp_path, auto_create_groups=False) as talk:
        for group in ("G", "consumers"):
            talk.running.broker.membership.groups.put(GroupConfig(group_name=group))
        talk.running.broker.tables.topics.put(
            TopicConfig(topic_name="%RETRY%G+T", read_queue_nums=1, write_queue_nums=1)
        )
        assert (await talk.send("%RETRY%G+T", reconsume_times=17)).code == 0
        assert len(await talk.messages("%DLQ%G")) == 1
        refused = await talk.send("%RETRY%other", reconsume_times=17)
        assert refused.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
