"""Light queues (LMQ): a message goes into every queue it names, and nobody has to make them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from kerolox.net.dialer import Dialer
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.flags import PULL_COMMIT_OFFSET, PULL_SUBSCRIPTION, PULL_SUSPEND
from kerolox.protocol.headers.offset import MaxOffsetRequest, QueryOffsetRequest, UpdateOffsetRequest
from kerolox.protocol.record import decode_records
from kerolox.testing.broker import running_broker

from .talk import Talk, until

LIGHT = {"light_queues": True, "fill_light_queues": True}
HELD = PULL_SUBSCRIPTION | PULL_SUSPEND


@asynccontextmanager
async def talking(path: Path, **options: Any) -> AsyncIterator[Talk]:
    async with running_broker(directory=path, **{**LIGHT, **options}) as running, Dialer() as dialer:
        yield Talk(dialer, running)


async def send_to(talk: Talk, body: bytes, *names: str, **properties: str) -> None:
    answer = await talk.send("T", body, {"INNER_MULTI_DISPATCH": ",".join(names), **properties})
    assert answer.code == 0, answer.remark


async def bodies(talk: Talk, topic: str) -> list[bytes]:
    return [message.body for message in await talk.messages(topic)]


async def test_a_message_is_in_its_topic_and_in_every_queue_it_names(tmp_path: Path) -> None:
    async with talking(tmp_path) as talk:
        await send_to(talk, b"1", "%LMQ%a", "%LMQ%b")
        await send_to(talk, b"2", "%LMQ%b", "other")
        await talk.send("T", b"3")
        assert await bodies(talk, "T") == [b"1", b"2", b"3"]
        assert await bodies(talk, "%LMQ%a") == [b"1"]
        assert await bodies(talk, "%LMQ%b") == [b"1", b"2"]
        (first, second) = await talk.messages("%LMQ%b")
        # Such a message is the same everywhere: its own topic, and where it is in each queue.
        assert (second.topic, second.queue_offset) == ("T", 1)
        assert first.properties["INNER_MULTI_QUEUE_OFFSET"] == "0,0"
        answer = await talk.dialer.call(
            talk.address, RequestCode.GET_MAX_OFFSET, MaxOffsetRequest(topic="%LMQ%b", queue_id=0)
        )
        assert answer.fields["offset"] == "2"


async def test_held_pulls_of_light_queues_are_woken_by_what_comes_for_them(tmp_path: Path) -> None:
    async with talking(tmp_path) as talk:
        pulls = {
            name: asyncio.create_task(talk.pull(name, sys_flag=HELD, **wants))
            for name, wants in [
                ("%LMQ%a", {}),
                ("%LMQ%b", {"subscription": "red"}),
                ("%LMQ%c", {}),
            ]
        }
        await until(lambda: talk.running.broker.consuming.waits.held == 3)
        await send_to(talk, b"plain", "%LMQ%a", "%LMQ%b")
        woken = await asyncio.wait_for(pulls["%LMQ%a"], 5)
        assert [m.body for m in decode_records(woken.body)] == [b"plain"]
        assert talk.running.broker.consuming.waits.held == 2
        await send_to(talk, b"wanted", "%LMQ%b", TAGS="red")
        woken = await asyncio.wait_for(pulls["%LMQ%b"], 5)
        assert [m.body for m in decode_records(woken.body)] == [b"wanted"]
        assert not pulls["%LMQ%c"].done()
        pulls["%LMQ%c"].cancel()


async def test_they_need_no_topic_and_their_groups_no_settings(tmp_path: Path) -> None:
    options = {"auto_create_topics": False, "auto_create_groups": False}
    async with talking(tmp_path, **options) as talk:
        answer = await talk.pull("%LMQ%new", consumer_group="%LMQ%group")
        assert answer.code == ResponseCode.PULL_NOT_FOUND
        assert (await talk.pull("%LMQ%new", 1, consumer_group="%LMQ%group")).code == (
            ResponseCode.INVALID_PARAMETER
        )
        assert (await talk.pull("%LMQ%new")).code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        broker = talk.running.broker
        assert not [name for name in broker.tables.topics.table.topics if "LMQ" in name]
        assert not [name for name in broker.membership.groups.table.groups if "LMQ" in name]


async def test_a_broker_without_them_does_not_know_them(tmp_path: Path) -> None:
    async with talking(tmp_path, light_queues=False) as talk:
        await send_to(talk, b"1", "%LMQ%a")
        assert (await talk.pull("%LMQ%a")).code == ResponseCode.TOPIC_NOT_EXIST
        (message,) = await talk.messages("T")
        assert "INNER_MULTI_QUEUE_OFFSET" not in message.properties


@pytest.mark.parametrize("how", ["pull", "commit"])
async def test_progress_in_them_is_kept_apart_and_survives(tmp_path: Path, how: str) -> None:
    async def progress(talk: Talk, topic: str, group: str) -> str | None:
        header = QueryOffsetRequest(
            consumer_group=group, topic=topic, queue_id=0, set_zero_if_not_found=False
        )
        answer = await talk.dialer.call(talk.address, RequestCode.QUERY_CONSUMER_OFFSET, header)
        return answer.fields.get("offset")

    async with talking(tmp_path) as talk:
        for number in range(3):
            await send_to(talk, b"%d" % number, "%LMQ%a")
        for topic, group in [("%LMQ%a", "%LMQ%g"), ("%LMQ%a", "plain"), ("T", "plain")]:
            if how == "commit":
                await talk.pull(topic, consumer_group=group)  # makes the plain one
                header = UpdateOffsetRequest(consumer_group=group, topic=topic, queue_id=0, commit_offset=2)
                answer = await talk.dialer.call(talk.address, RequestCode.UPDATE_CONSUMER_OFFSET, header)
            else:
                flag = PULL_SUBSCRIPTION | PULL_COMMIT_OFFSET
                answer = await talk.pull(topic, consumer_group=group, sys_flag=flag, commit_offset=2)
            assert answer.code == 0, answer.remark
    saved = json.loads((tmp_path / "store/config/lmqConsumerOffset.json").read_text())
    assert saved["lmqOffsetTable"] == {"%LMQ%a@%LMQ%g": 2}
    assert saved["offsetTable"] == {"%LMQ%a@plain": {"0": 2}, "T@plain": {"0": 2}}
    assert not (tmp_path / "store/config/consumerOffset.json").exists()
    async with talking(tmp_path) as talk:
        assert await progress(talk, "%LMQ%a", "%LMQ%g") == "2"
        assert await progress(talk, "T", "plain") == "2"
        await send_to(talk, b"3", "%LMQ%a")  # the numbers go on
        assert await bodies(talk, "%LMQ%a") == [b"0", b"1", b"2", b"3"]


async def test_a_broker_that_gets_them_goes_on_with_its_offsets(tmp_path: Path) -> None:
    async with talking(tmp_path, light_queues=False) as talk:
        await talk.send("T")
        flag = PULL_SUBSCRIPTION | PULL_COMMIT_OFFSET
        await talk.pull("T", consumer_group="plain", sys_flag=flag, commit_offset=1)
    async with talking(tmp_path) as talk:
        assert talk.running.broker.tables.offsets.offset("T", "plain", 0) == 1


async def test_all_of_them_count_as_one(tmp_path: Path) -> None:
    async with talking(tmp_path) as talk:
        for name in ("%LMQ%a", "%LMQ%b"):
            await send_to(talk, b"1", name)
            await talk.pull(name, consumer_group="%LMQ%g-" + name[-1])
        assert set(talk.running.broker.figures.stats.gets) == {("%LMQ%", "%LMQ%")}


async def test_a_message_may_name_many_light_queues(tmp_path: Path) -> None:
    """Each is looked up once, however many there are and however often it is named."""
    async with talking(tmp_path) as talk:
        names = [f"%LMQ%{number % 700}" for number in range(1400)]
        await send_to(talk, b"1", *names)
        await send_to(talk, b"2", "%LMQ%7")
        assert await bodies(talk, "%LMQ%7") == [b"1", b"2"]
        assert await bodies(talk, "%LMQ%699") == [b"1"]


async def test_light_queues_are_bounded_over_restarts_too(tmp_path: Path) -> None:
    async with talking(tmp_path, light_queues_max=3) as talk:
        await send_to(talk, b"1", "%LMQ%a", "%LMQ%b", "other")
        await until(lambda: "%LMQ%b" in talk.running.broker.store.queues.by_topic)
    async with talking(tmp_path, light_queues_max=3) as talk:
        refused = await talk.send("T", b"2", {"INNER_MULTI_DISPATCH": "%LMQ%c,%LMQ%d"})
        assert refused.code == ResponseCode.SYSTEM_ERROR
        assert refused.remark is not None
        assert refused.remark.startswith("[LMQ_CONSUME_QUEUE_NUM_EXCEEDED]")
        assert "there are 2, the message names 2 new ones" in refused.remark
        await send_to(talk, b"3", "%LMQ%a", "%LMQ%c")
        assert await bodies(talk, "%LMQ%c") == [b"3"]
        assert await bodies(talk, "%LMQ%a") == [b"1", b"3"]


async def test_what_was_taken_before_a_restart_comes_without_the_queues_there_is_no_room_for(
    tmp_path: Path,
) -> None:
    """It was taken, so it must not be lost; and it must not hold up those behind it."""
    async with talking(tmp_path, light_queues_max=3, delay_levels="1s 2s 3s") as talk:
        await send_to(talk, b"later", "%LMQ%a", "%LMQ%b", DELAY="2")
        # What waits counts already.
        refused = await talk.send("T", b"2", {"INNER_MULTI_DISPATCH": "%LMQ%c,%LMQ%d"})
        assert refused.code == ResponseCode.SYSTEM_ERROR
    async with talking(tmp_path, light_queues_max=3, delay_levels="1s 2s 3s") as talk:
        await send_to(talk, b"first", "%LMQ%c", "%LMQ%d")
        await send_to(talk, b"last", "%LMQ%c", DELAY="2")
        await until(lambda: talk.running.broker.later.delays.delivered == 2)
        await until(lambda: talk.running.broker.store.queues.max_offset("T", 0) == 3)
        assert await bodies(talk, "T") == [b"first", b"later", b"last"]
        assert await bodies(talk, "%LMQ%c") == [b"first", b"last"]
        assert "%LMQ%a" not in talk.running.broker.store.queues.by_topic
