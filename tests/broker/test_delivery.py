"""What was acknowledged is delivered, whatever is set afterwards; what cannot be becomes a dead letter."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from kerolox.broker.write.delivery import LONGEST_S, Retry, dead_letter_topic_of
from kerolox.client.admin.calls import AdminCalls
from kerolox.client.admin.dead_letters import DeadLetters, origin_of, reason_of
from kerolox.client.nameservers import NameServers
from kerolox.protocol.bodies.topics import TopicConfig
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.headers.send import SendBackRequest
from kerolox.protocol.headers.topic import DeleteTopicRequest
from kerolox.protocol.message import StoredMessage
from kerolox.protocol.message_id import read_offset_id
from kerolox.store.disk.files import DiskUsage
from kerolox.store.errors import DiskFull
from kerolox.testing.clock import ManualClock
from kerolox.testing.faults import FaultyFiles

from .talk import subscribed, until
from .test_timers import NOW_MS, Timing, after_s, timing
from .transaction_kit import COMMIT, Producer

LONG = b"x" * 5000
UNDELIVERED = "%DLQ%kerolox_undelivered"
DELAYED = {"DELAY": "2"}  # 5 s


async def set_options(talk: Timing, **options: object) -> None:
    text = "\n".join(f"{key}={value}" for key, value in options.items())
    answer = await talk.dialer.call(talk.address, RequestCode.UPDATE_BROKER_CONFIG, None, text.encode())
    assert answer.code == 0, answer.remark


async def delete_topic(talk: Timing, topic: str) -> None:
    header = DeleteTopicRequest(topic=topic)
    answer = await talk.dialer.call(talk.address, RequestCode.DELETE_TOPIC_IN_BROKER, header)
    assert answer.code == 0, answer.remark


async def in_all(talk: Timing, topic: str) -> list[StoredMessage]:
    return [message for queue in range(4) for message in await talk.messages(topic, queue)]


async def dead_letters(talk: Timing) -> list[StoredMessage]:
    """As ``kerolox dlq show`` reads them."""
    admin = AdminCalls(NameServers([talk.running.nameserver_address], talk.dialer), talk.dialer)
    letters = DeadLetters(admin)
    found: list[StoredMessage] = []
    for topic in await letters.topics():
        async for page in letters.pages(topic.group, await letters.spans(topic.group, 0, 1 << 62)):
            found += page
    return found


async def pass_step_by_step(talk: Timing, seconds: int) -> None:
    for _ in range(seconds):
        await talk.entered()
        await talk.clock.advance(1)


async def test_a_limit_that_was_lowered_stops_no_message_that_was_taken(tmp_path: Path) -> None:
    async with timing(tmp_path) as talk:
        producer = Producer(talk.running)
        assert (await talk.send("T", LONG, after_s(3))).code == 0
        assert (await talk.send("T", LONG, DELAYED)).code == 0
        assert (await talk.send("T", b"small", DELAYED)).code == 0
        sent = await talk.send("T", LONG)
        half = await producer.prepare(LONG, topic="T")
        await talk.heartbeat("G", subscribed("T"))
        await set_options(talk, maxMessageSize=1000)

        refused = await talk.send("T", LONG)
        assert refused.code == ResponseCode.MESSAGE_ILLEGAL  # the limit counts for what is sent now
        assert "maxMessageSize" in (refused.remark or "")
        back = SendBackRequest(
            offset=read_offset_id(sent.fields["msgId"]).physical_offset, group="G", delay_level=0
        )
        answer = await talk.dialer.call(talk.address, RequestCode.CONSUMER_SEND_MSG_BACK, back)
        assert answer.code == 0, answer.remark
        assert (await producer.end(half, COMMIT)).code == 0

        await pass_step_by_step(talk, 12)
        store = talk.running.broker.store
        await until(
            lambda: store.queues.max_offset("T", 0) == 5 and store.queues.max_offset("%RETRY%G", 0) == 1
        )
        assert sorted(await talk.bodies("T")) == [b"small", *[LONG] * 4]
        assert await talk.bodies("%RETRY%G") == [LONG]
        assert await dead_letters(talk) == []
        await producer.dialer.close()


async def test_messages_of_a_deleted_topic_become_dead_letters_and_others_come(tmp_path: Path) -> None:
    async with timing(tmp_path) as talk:
        producer = Producer(talk.running)
        claim = {"RETRY_TOPIC": "theirs", "ORIGIN_MESSAGE_ID": "x"}  # it would be sent again to that topic
        for topic in ("gone", "stays"):
            assert (await talk.send(topic, b"delayed", {**DELAYED, **claim})).code == 0
            assert (await talk.send(topic, b"timed", {**after_s(5), **claim})).code == 0
        half = await producer.prepare(b"half", claim, topic="gone")
        await delete_topic(talk, "gone")
        answer = await producer.end(half, COMMIT)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "topic gone was deleted" in (answer.remark or "")
        await pass_step_by_step(talk, 8)
        store = talk.running.broker.store
        await until(
            lambda: store.queues.max_offset("stays", 0) == 2 and store.queues.max_offset(UNDELIVERED, 0) == 3
        )
        assert sorted(await talk.bodies("stays")) == [b"delayed", b"timed"]
        dead = await dead_letters(talk)
        assert sorted(message.body for message in dead) == [b"delayed", b"half", b"timed"]
        assert {origin_of(message) for message in dead} == {"gone"}
        assert all("topic gone was deleted" in (reason_of(message) or "") for message in dead)
        assert all(read_offset_id(m.properties["ORIGIN_MESSAGE_ID"]).physical_offset >= 0 for m in dead)
        await producer.dialer.close()


async def test_a_topic_that_is_not_writable_any_more_gets_what_was_taken(tmp_path: Path) -> None:
    async with timing(tmp_path) as talk:
        assert (await talk.send("T", b"delayed", DELAYED)).code == 0
        assert (await talk.send("T", b"timed", after_s(5))).code == 0
        read_only = TopicConfig(topic_name="T", read_queue_nums=4, write_queue_nums=4, perm=4)
        talk.running.broker.tables.topics.put(read_only)
        await set_options(talk, brokerPermission=4)
        await pass_step_by_step(talk, 8)
        assert sorted(await talk.bodies("T", 2)) == [b"delayed", b"timed"]


async def test_after_a_full_disk_all_is_delivered_and_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    files = FaultyFiles()
    async with timing(tmp_path, files=files) as talk:
        assert (await talk.send("T", b"delayed", {"DELAY": "7"})).code == 0  # 3 min
        assert (await talk.send("T", b"timed", after_s(180))).code == 0
        await talk.entered()
        state = talk.running.broker.store.state
        files.usage = DiskUsage(1 << 30, 0, 0)
        while not state.obstacles:  # the disk is looked at now and then
            await talk.clock.advance(1)
        await pass_step_by_step(talk, 150)
        assert await talk.bodies("T") == []
        files.usage = None
        while state.obstacles:
            await talk.clock.advance(1)
        await talk.clock.advance(2 * LONGEST_S)
        assert sorted(await talk.bodies("T", 2)) == [b"delayed", b"timed"]
    for event in ("delayed_messages_not_delivered", "timer_messages_not_delivered"):
        lines = [record.getMessage() for record in caplog.records if event in record.getMessage()]
        assert len([line for line in lines if "times=1 " in line]) == 1, lines
        assert len([line for line in lines if "resumed=true" in line]) == 1, lines
        assert len(lines) == 2, lines


async def test_a_message_that_does_not_fit_blocks_nothing_in_its_level(tmp_path: Path) -> None:
    """Its record is as long as a log file allows; under the longer name of its own topic it does not fit."""
    own = "t" * 127
    async with timing(tmp_path, commit_log_file_bytes=1 << 20) as talk:
        parked = (await talk.send(own, b"x", DELAYED)).code
        assert parked == 0
        # The longest that is parked.
        low, high = 0, 1 << 20
        while high - low > 1:
            middle = (low + high) // 2
            if (await talk.send(own, b"x" * middle, {"DELAY": "18"})).code == 0:
                low = middle
            else:
                high = middle
        assert (await talk.send(own, b"x" * low, DELAYED)).code == 0
        assert (await talk.send("T", b"behind", DELAYED)).code == 0
        await pass_step_by_step(talk, 8)
        assert await talk.bodies("T", 1) == [b"behind"]
        assert await talk.bodies(own, 1) == [b"x"]
        (dead,) = await dead_letters(talk)
        assert (origin_of(dead), "does not fit" in (reason_of(dead) or "")) == (own, True)


async def test_properties_with_no_room_for_the_marks_of_the_timer_come_without_them(tmp_path: Path) -> None:
    async with timing(tmp_path) as talk:
        # The longest properties that are parked.
        low, high = 0, 32767
        while high - low > 1:
            middle = (low + high) // 2
            if (await talk.send("T", b"x", after_s(3, long="x" * middle))).code == 0:
                low = middle
            else:
                high = middle
        await pass_step_by_step(talk, 6)
        store = talk.running.broker.store
        await until(lambda: not talk.timers.arrivals.behind and not talk.timers.files.wheel.waiting)
        longest = max(len(message.properties["long"]) for message in await talk.stored("T"))
        assert longest == low
        assert store.queues.max_offset(UNDELIVERED, 0) == 0


async def test_a_delay_that_is_no_number_makes_the_committed_message_a_dead_letter(tmp_path: Path) -> None:
    async with timing(tmp_path) as talk:
        producer = Producer(talk.running)
        half = await producer.prepare(b"half", {"DELAY": "soon"}, topic="T")
        assert (await producer.end(half, COMMIT)).code == ResponseCode.SYSTEM_ERROR
        (dead,) = await dead_letters(talk)
        assert (dead.body, origin_of(dead)) == (b"half", "T")
        assert "not a number" in (reason_of(dead) or "")
        await producer.dialer.close()


async def test_limits_of_timers_do_not_count_for_a_message_that_is_committed(tmp_path: Path) -> None:
    async with timing(tmp_path) as talk:
        producer = Producer(talk.running)
        half = await producer.prepare(b"half", {"TIMER_DELIVER_MS": str(NOW_MS + 9000)}, topic="T")
        talk.running.broker.options.timer_delay_s_max = 1
        assert (await producer.end(half, COMMIT)).code == 0
        await pass_step_by_step(talk, 12)
        assert await talk.bodies("T", 1) == [b"half"]
        await producer.dialer.close()


async def test_what_was_forged_becomes_a_dead_letter(tmp_path: Path) -> None:
    from kerolox.protocol.properties import pack

    async with timing(tmp_path) as talk:
        await talk.send("T", b"honest", after_s(3))
        properties = pack({"TIMER_OUT_MS": str(NOW_MS + 3000), "REAL_TOPIC": "SCHEDULE_TOPIC_XXXX"})
        await talk.running.broker.store.put("rmq_sys_wheel_timer", 0, b"forged", properties)
        await pass_step_by_step(talk, 6)
        assert await talk.bodies("T", 1) == [b"honest"]
        await until(lambda: talk.running.broker.store.queues.max_offset(UNDELIVERED, 0) == 1)
        (dead,) = await dead_letters(talk)
        assert (dead.body, origin_of(dead)) == (b"forged", "SCHEDULE_TOPIC_XXXX")


def test_the_dead_letters_of_a_group_stay_its_own() -> None:
    assert dead_letter_topic_of("%RETRY%billing") == "%DLQ%billing"
    assert dead_letter_topic_of("%DLQ%billing") == "%DLQ%billing"
    assert dead_letter_topic_of("orders") == UNDELIVERED


def test_retries_wait_longer_and_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    clock: Any = ManualClock()
    retry = Retry(clock, "thing_not_done level=1")
    waits = [retry.failed(DiskFull("no space")) for _ in range(8)]
    assert waits == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0, 1.0]
    assert [record.getMessage() for record in caplog.records] == [
        "thing_not_done level=1 times=1 error='no space' next='retried until it succeeds, at least every 1 s'"
    ]
    retry.succeeded()
    retry.succeeded()
    assert [record.getMessage() for record in caplog.records][1:] == [
        "thing_not_done level=1 resumed=true times=8 seconds=0.0"
    ]
