"""Pulling over real sockets, in both header encodings: every status, filters, and being held."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kerolox.net.dialer import Dialer
from kerolox.protocol.bodies.groups import GroupConfig
from kerolox.protocol.bodies.heartbeat import MessageModel
from kerolox.protocol.bodies.topics import TopicConfig
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.flags import PULL_COMMIT_OFFSET, PULL_SUBSCRIPTION, PULL_SUSPEND
from kerolox.protocol.frame import BINARY, JSON
from kerolox.protocol.record import decode_records
from kerolox.store.errors import Cold
from kerolox.testing.broker import running_broker
from kerolox.testing.faults import FaultyFiles

from .talk import Talk, subscribed, until

HELD = PULL_SUSPEND | PULL_SUBSCRIPTION


@asynccontextmanager
async def talking(encoding: int = JSON, **options: Any) -> AsyncIterator[Talk]:
    async with running_broker(**options) as running, Dialer(encoding=encoding) as dialer:
        yield Talk(dialer, running)


@pytest.fixture(params=[JSON, BINARY], ids=["json", "binary"])
async def talk(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Talk]:
    async with talking(request.param, directory=tmp_path) as ours:
        yield ours


def offsets(answer: Any) -> tuple[int, int, int]:
    """Next, min and max offset of an answer."""
    fields = answer.fields
    return int(fields["nextBeginOffset"]), int(fields["minOffset"]), int(fields["maxOffset"])


# --- statuses ----------------------------------------------------------------------------------------


async def test_messages_come_as_they_are_stored(talk: Talk) -> None:
    for number in range(40):
        await talk.send("T", b"%d" % number, {"TAGS": "AB"[number % 2]})
    answer = await talk.pull("T")
    assert (answer.code, answer.remark) == (0, "FOUND")
    assert answer.fields == {
        "suggestWhichBrokerId": "0",
        "nextBeginOffset": "32",
        "minOffset": "0",
        "maxOffset": "40",
        "topicSysFlag": "0",
        "groupSysFlag": "0",
    }
    messages = decode_records(answer.body)
    assert [(m.queue_offset, m.body) for m in messages] == [(n, b"%d" % n) for n in range(32)]
    lite = await talk.pull("T", 0, 35, max_msg_nums=3, code=RequestCode.LITE_PULL_MESSAGE)
    assert [m.queue_offset for m in decode_records(lite.body)] == [35, 36, 37]


@pytest.mark.parametrize(
    ("offset", "code", "status", "after"),
    [
        (3, ResponseCode.PULL_NOT_FOUND, "OFFSET_OVERFLOW_ONE", 3),
        (9, ResponseCode.PULL_OFFSET_MOVED, "OFFSET_OVERFLOW_BADLY", 3),
    ],
)
async def test_offsets_outside_the_queue(talk: Talk, offset: int, code: int, status: str, after: int) -> None:
    for _ in range(3):
        await talk.send("T")
    answer = await talk.pull("T", 0, offset)
    assert (answer.code, answer.remark, offsets(answer)) == (code, status, (after, 0, 3))
    assert answer.body == b""


@pytest.mark.parametrize(("offset", "code"), [(0, 19), (5, 21)])
async def test_an_empty_queue(talk: Talk, offset: int, code: int) -> None:
    talk.running.broker.tables.topics.put(TopicConfig(topic_name="T"))
    answer = await talk.pull("T", 0, offset)
    assert (answer.code, answer.remark) == (code, "NO_MATCHED_LOGIC_QUEUE")
    assert offsets(answer) == (0, 0, 0)


async def test_an_offset_that_was_deleted_moves_to_the_first_kept(talk: Talk) -> None:
    for _ in range(4):
        await talk.send("T")
    queue = talk.running.broker.store.queues.find("T", 0)
    assert queue is not None
    queue.min_offset = 2
    answer = await talk.pull("T", 0, 1)
    assert (answer.code, answer.remark, offsets(answer)) == (21, "OFFSET_TOO_SMALL", (2, 2, 4))


async def test_tags_pass_over_what_is_not_wanted(talk: Talk) -> None:
    for number in range(6):
        await talk.send("T", properties={"TAGS": "ABC"[number % 3]})
    answer = await talk.pull("T", subscription="A || C")
    assert [m.queue_offset for m in decode_records(answer.body)] == [0, 2, 3, 5]
    assert offsets(answer) == (6, 0, 6)
    answer = await talk.pull("T", subscription="D")
    assert (answer.code, answer.remark) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "NO_MATCHED_MESSAGE")
    assert offsets(answer) == (6, 0, 6)


async def test_a_reset_is_told_once(talk: Talk) -> None:
    for _ in range(5):
        await talk.send("T")
    talk.running.broker.tables.offsets.reset("T", "consumers", 0, 2)
    answer = await talk.pull("T", 0, 5, sys_flag=PULL_COMMIT_OFFSET | HELD, commit_offset=5)
    assert (answer.code, answer.remark, offsets(answer)) == (21, "OFFSET_RESET", (2, 0, 5))
    assert talk.running.broker.tables.offsets.offset("T", "consumers", 0) == 2  # the commit came too late
    assert (await talk.pull("T", 0, 2)).code == 0


async def test_a_held_pull_is_told_of_a_reset(talk: Talk) -> None:
    broker = talk.running.broker
    for _ in range(3):
        await talk.send("T")
    held = asyncio.create_task(talk.pull("T", 0, 3, sys_flag=HELD))
    await until(lambda: broker.consuming.waits.held == 1)
    broker.tables.offsets.reset("T", "consumers", 0, 1)
    broker.consuming.waits.wake_queue("T", 0)
    answer = await asyncio.wait_for(held, 5)
    assert (answer.code, answer.remark, offsets(answer)) == (21, "OFFSET_RESET", (1, 0, 3))


async def test_a_held_pull_is_refused_when_its_group_may_not_consume_any_more(talk: Talk) -> None:
    broker = talk.running.broker
    await talk.send("T")
    held = asyncio.create_task(talk.pull("T", 0, 1, sys_flag=HELD))
    await until(lambda: broker.consuming.waits.held == 1)
    assert broker.membership.groups.disable("consumers", "too slow")
    await talk.send("T")
    answer = await asyncio.wait_for(held, 5)
    assert (answer.code, answer.fields["forbiddenType"]) == (ResponseCode.NO_PERMISSION, "2")


async def test_a_pull_carries_a_commit(talk: Talk) -> None:
    await talk.send("T")
    flags = PULL_COMMIT_OFFSET | PULL_SUBSCRIPTION
    await talk.pull("T", 0, 1, sys_flag=flags, commit_offset=1)
    assert talk.running.broker.tables.offsets.offset("T", "consumers", 0) == 1
    await talk.pull("T", 0, 1, commit_offset=7)  # without the flag
    assert talk.running.broker.tables.offsets.offset("T", "consumers", 0) == 1


# --- refusals, in RocketMQ's order --------------------------------------------------------------------


async def test_who_may_not_pull(talk: Talk) -> None:
    broker = talk.running.broker
    await talk.send("T")
    options = broker.options

    async def refused(**fields: Any) -> tuple[int, str | None]:
        answer = await talk.pull(**{"topic": "T", **fields})
        return answer.code, answer.fields.get("forbiddenType")

    assert await refused(queue_id=4) == (ResponseCode.INVALID_PARAMETER, None)
    assert await refused(queue_id=-1) == (ResponseCode.INVALID_PARAMETER, None)
    assert await refused(topic="absent") == (ResponseCode.TOPIC_NOT_EXIST, None)
    assert await refused(consumer_group="a b") == (ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, None)
    options.property_filter = False
    assert await refused(subscription="a >", expression_type="SQL92") == (ResponseCode.SYSTEM_ERROR, None)
    options.property_filter = True
    assert await refused(subscription="||") == (ResponseCode.SUBSCRIPTION_PARSE_FAILED, None)
    broker.tables.topics.put(TopicConfig(topic_name="write_only", perm=2))
    assert await refused(topic="write_only") == (ResponseCode.NO_PERMISSION, "3")
    broker.membership.groups.put(GroupConfig(group_name="off", consume_enable=False))
    assert await refused(consumer_group="off") == (ResponseCode.NO_PERMISSION, "2")
    options.lite_pull = False
    assert await refused(code=RequestCode.LITE_PULL_MESSAGE) == (ResponseCode.NO_PERMISSION, "1")
    options.auto_create_groups = False
    assert await refused(consumer_group="new") == (ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, None)
    options.permission = 2
    assert await refused() == (ResponseCode.NO_PERMISSION, "1")


async def test_pulls_by_what_heartbeats_subscribed(talk: Talk) -> None:
    broker = talk.running.broker
    await talk.send("T", properties={"TAGS": "A"})
    await talk.send("T", properties={"TAGS": "B"})

    async def pull(**fields: Any) -> Any:
        return await talk.pull(
            **{"topic": "T", "sys_flag": 0, "subscription": None, "consumer_group": "g", **fields}
        )

    assert (await pull()).code == ResponseCode.SUBSCRIPTION_NOT_EXIST  # nobody of the group is here
    await talk.heartbeat("g", subscribed("T", "B", version=5))
    answer = await pull(sub_version=5)
    assert [m.queue_offset for m in decode_records(answer.body)] == [1]
    assert (await pull(sub_version=4)).code == 0
    assert (await pull(sub_version=6)).code == ResponseCode.SUBSCRIPTION_NOT_LATEST
    await talk.send("other")
    assert (await pull(topic="other")).code == ResponseCode.SUBSCRIPTION_NOT_EXIST
    broker.membership.groups.set_readable("g", "T", False)
    answer = await pull()
    assert (answer.code, answer.fields["forbiddenType"]) == (ResponseCode.NO_PERMISSION, "5")
    broker.membership.groups.set_readable("g", "T", True)
    await talk.heartbeat("g", subscribed("T"), model=MessageModel.BROADCASTING)
    group = broker.membership.groups.config("g")
    assert group is not None
    broker.membership.groups.put(msgspec.structs.replace(group, consume_broadcast_enable=False))
    answer = await pull()
    assert (answer.code, answer.fields["forbiddenType"]) == (ResponseCode.NO_PERMISSION, "4")


async def test_the_second_port_serves_everything_but_pulls(talk: Talk) -> None:
    vip = f"127.0.0.1:{talk.running.broker.endpoints.vip_port}"
    assert talk.running.broker.endpoints.vip_port == talk.running.broker.endpoints.port - 2
    for code in (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE):
        answer = await talk.pull("T", code=code, address=vip)
        assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    talk.address = vip
    assert (await talk.send("T")).code == 0
    assert (await talk.heartbeat("g")).code == 0


# --- held pulls --------------------------------------------------------------------------------------------


async def test_a_held_pull_is_woken_by_a_message(talk: Talk) -> None:
    await talk.send("T")
    held = asyncio.ensure_future(talk.pull("T", 0, 1, sys_flag=HELD))
    await until(lambda: talk.running.broker.consuming.waits.held == 1)
    await talk.send("T", b"elsewhere", queue_id=1)
    assert not held.done()
    started_s = time.monotonic()
    await talk.send("T", b"news")
    answer = await held
    assert [m.body for m in decode_records(answer.body)] == [b"news"]
    assert offsets(answer) == (2, 0, 2)
    assert time.monotonic() - started_s < 5  # not at the end of its time
    assert talk.running.broker.consuming.waits.held == 0


async def test_a_held_pull_of_a_queue_that_is_not_there_yet(talk: Talk) -> None:
    talk.running.broker.tables.topics.put(TopicConfig(topic_name="T"))
    held = asyncio.ensure_future(talk.pull("T", sys_flag=HELD))
    await until(lambda: talk.running.broker.consuming.waits.held == 1)
    await talk.send("T")
    assert (await held).code == 0


async def test_a_held_pull_is_answered_19_when_its_time_is_up(talk: Talk) -> None:
    await talk.send("T")
    started_s = time.monotonic()
    answer = await talk.pull("T", 0, 1, sys_flag=HELD, suspend_timeout_millis=300)
    assert 0.25 < time.monotonic() - started_s < 5
    assert (answer.code, answer.remark, offsets(answer)) == (19, "OFFSET_OVERFLOW_ONE", (1, 0, 1))


async def test_without_long_polling_a_pull_is_held_shortly() -> None:
    async with talking(long_polling=False, short_polling_ms=100) as talk:
        await talk.send("T")
        started_s = time.monotonic()
        assert (await talk.pull("T", 0, 1, sys_flag=HELD, suspend_timeout_millis=60_000)).code == 19
        assert time.monotonic() - started_s < 5


async def test_a_held_pull_is_woken_only_by_what_it_wants(talk: Talk) -> None:
    await talk.send("T")
    waiting = talk.running.broker.consuming.waits
    held = asyncio.ensure_future(talk.pull("T", 0, 1, sys_flag=HELD, subscription="A"))
    await until(lambda: waiting.held == 1)
    for _ in range(3):
        await talk.send("T", properties={"TAGS": "B"})
    await talk.send("T")
    assert waiting.held == 1
    await talk.send("T", b"this", properties={"TAGS": "A"})
    answer = await held
    assert [m.body for m in decode_records(answer.body)] == [b"this"]
    assert offsets(answer) == (6, 0, 6)


async def test_a_pull_that_is_held_survives_a_dead_neighbour(talk: Talk) -> None:
    await talk.send("T")
    async with Dialer() as other:
        gone = asyncio.ensure_future(Talk(other, talk.running).pull("T", 0, 1, sys_flag=HELD))
        held = asyncio.ensure_future(talk.pull("T", 0, 1, sys_flag=HELD))
        await until(lambda: talk.running.broker.consuming.waits.held == 2)
    assert isinstance((await asyncio.gather(gone, return_exceptions=True))[0], Exception)
    await talk.send("T")
    assert (await held).code == 0


async def test_a_thousand_held_pulls_are_woken_without_stalling_others(tmp_path: Path) -> None:
    async with talking(directory=tmp_path) as talk:
        await talk.send("T")
        held = [asyncio.ensure_future(talk.pull("T", 0, 1, sys_flag=HELD, timeout_s=30)) for _ in range(1000)]
        await until(lambda: talk.running.broker.consuming.waits.held == 1000)
        # What the loop does while they are woken: a step for each slice of them.
        steps = 0
        waking = asyncio.ensure_future(talk.send("T", b"x" * 1000))
        while not all(pull.done() for pull in held):
            await asyncio.sleep(0)
            steps += 1
        assert (await waking).code == 0
        answers = [await pull for pull in held]
        assert {answer.code for answer in answers} == {0}
        assert {answer.fields["nextBeginOffset"] for answer in answers} == {"2"}
        assert steps > 1000 / 128


# --- messages that are not in memory -----------------------------------------------------------------------


async def test_cold_messages_are_read_by_a_thread_and_hot_ones_answered_meanwhile(tmp_path: Path) -> None:
    files = FaultyFiles()
    async with talking(directory=tmp_path, files=files) as talk:
        for number in range(3):
            await talk.send("T", b"%d" % number)
        files.cold = lambda path, offset, size: "commitlog" in path
        answers = await asyncio.gather(*(talk.pull("T", 0, offset) for offset in (0, 1, 2)))
        assert [decode_records(answer.body)[0].body for answer in answers] == [b"0", b"1", b"2"]
        assert threading.get_ident() not in files.reading_threads
        assert talk.running.broker.figures.stats.get_ms_max > 0
        # Nobody waits who could be answered: at the end of the queue there is nothing to read.
        held = asyncio.ensure_future(talk.pull("T", 0, 3, sys_flag=HELD))
        await until(lambda: talk.running.broker.consuming.waits.held == 1)
        await talk.send("T", b"3")
        assert decode_records((await held).body)[0].body == b"3"


async def test_a_message_that_came_while_a_thread_looked_is_not_slept_through(tmp_path: Path) -> None:
    async with talking(directory=tmp_path) as talk:
        await talk.send("T")
        real_read = talk.running.broker.store.reader.read
        looked = asyncio.Event()

        async def slow_read(*args: Any, **kwargs: Any) -> Any:
            found = real_read(talk.running.broker.store.queues.find("T", 0), 1, 32)
            looked.set()
            await asyncio.sleep(0.05)  # the message comes now
            return found

        def cold(*args: Any, **kwargs: Any) -> Any:
            talk.running.broker.store.reader.read = real_read  # type: ignore[method-assign]
            raise Cold

        talk.running.broker.store.queues.read = slow_read  # type: ignore[method-assign]
        talk.running.broker.store.reader.read = cold  # type: ignore[method-assign]
        held = asyncio.ensure_future(talk.pull("T", 0, 1, sys_flag=HELD))
        await looked.wait()
        await talk.send("T", b"in between")
        answer = await asyncio.wait_for(held, 5)
        assert decode_records(answer.body)[0].body == b"in between"
