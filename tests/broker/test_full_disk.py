"""A disk that takes no more tables: what is answered with success is on disk, what is not was undone."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from kerolox.net.dialer import Dialer
from kerolox.protocol.batch import encode_batch
from kerolox.protocol.bodies.groups import GroupConfig, RequestMode, SetRequestMode
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.command import Command
from kerolox.protocol.header import Header
from kerolox.protocol.headers import group, offset, topic
from kerolox.protocol.headers.send import SendBackRequest
from kerolox.protocol.json_dialect import loads
from kerolox.protocol.reserved import DEAD_LETTER_PREFIX, RETRY_PREFIX
from kerolox.store.tables.table import CRC, Table
from kerolox.testing.broker import running_broker
from kerolox.testing.faults import FaultyFiles
from tests.broker.talk import Talk, subscribed, until

Asked = tuple[RequestCode, Header | None, bytes]


@pytest.fixture
def files() -> FaultyFiles:
    return FaultyFiles()


@pytest.fixture
async def talk(tmp_path: Path, files: FaultyFiles) -> AsyncIterator[Talk]:
    # No save by interval: what is on disk was saved because somebody was promised it.
    options = {"save_offsets_ms": 3_600_000, "server_side_reset": True}
    async with (
        running_broker(directory=tmp_path, files=files, **options) as running,
        Dialer() as dialer,
    ):
        ours = Talk(dialer, running)
        assert (await ours.send("T")).code == 0
        running.broker.membership.groups.config("g")
        running.broker.membership.groups.config("consumers")
        running.broker.tables.offsets.commit("T", "g", 0, 1)
        await running.broker.tables.offset_saver.saved()
        await running.broker.tables.topic_saver.saved()
        await running.broker.tables.group_saver.saved()
        yield ours
        files.make_room()


def tables(talk: Talk) -> list[Table]:
    broker = talk.running.broker
    return [broker.tables.topics.table, broker.tables.groups, broker.tables.offsets, broker.tables.modes]


def in_memory(talk: Talk) -> dict[str, Any]:
    """What the tables say, without the versions that count changes."""
    return {table.NAME: _content(loads(table.encode())) for table in tables(talk)}


def on_disk(talk: Talk) -> dict[str, Any]:
    found = {}
    for table in tables(talk):
        path = Path(table.path)
        found[table.NAME] = _content(loads(path.read_bytes())) if path.exists() else {}
    return found


def _content(tree: Any) -> Any:
    return {key: value for key, value in tree.items() if key not in ("dataVersion", CRC) and value}


def create(name: str, queues: int = 4) -> Asked:
    header = topic.CreateTopicRequest(topic=name, read_queue_nums=queues, write_queue_nums=queues, perm=6)
    return RequestCode.UPDATE_AND_CREATE_TOPIC, header, b""


def put_group(**fields: Any) -> Asked:
    return RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, GroupConfig(**fields).encode()


REQUESTS: dict[str, Asked] = {
    "create topic": create("new"),
    "change topic": create("T", 8),
    "delete topic": (RequestCode.DELETE_TOPIC_IN_BROKER, topic.DeleteTopicRequest(topic="T"), b""),
    "create group": put_group(group_name="new"),
    "change group": put_group(group_name="g", retry_max_times=3),
    "delete group": (
        RequestCode.DELETE_SUBSCRIPTIONGROUP,
        group.DeleteGroupRequest(group_name="g", clean_offset=True),
        b"",
    ),
    "forbid": (
        RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN,
        group.GroupForbiddenRequest(group="g", topic="T", readable=False),
        b"",
    ),
    "request mode": (
        RequestCode.SET_MESSAGE_REQUEST_MODE,
        None,
        SetRequestMode(topic="T", consumer_group="g", mode=RequestMode.PULL).encode(),
    ),
    "reset": (
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
        offset.ResetOffsetRequest(topic="T", group="g", queue_id=0, offset=0),
        b"",
    ),
    "clone": (
        RequestCode.CLONE_GROUP_OFFSET,
        offset.CloneOffsetRequest(src_group="g", dest_group="other", topic="T"),
        b"",
    ),
}


async def ask(talk: Talk, asked: Asked) -> Command:
    code, header, body = asked
    return await talk.dialer.call(talk.address, code, header, body, timeout_s=20)


@pytest.mark.parametrize("asked", REQUESTS.values(), ids=REQUESTS.keys())
async def test_what_is_acknowledged_is_on_disk_and_what_is_refused_was_undone(
    talk: Talk, files: FaultyFiles, asked: Asked
) -> None:
    before = in_memory(talk)
    files.fill()
    answer = await ask(talk, asked)
    assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert "nothing was changed" in (answer.remark or "")
    assert "No space left" in (answer.remark or "")
    assert in_memory(talk) == before == on_disk(talk)
    assert len(await talk.messages("T")) == 1
    files.make_room()
    assert (await ask(talk, asked)).code == 0
    assert in_memory(talk) != before
    assert on_disk(talk) == in_memory(talk)


def count_saves(files: FaultyFiles) -> int:
    """Of the topic table, that have begun."""
    return sum(count for path, count in files.synced_paths.items() if "topics.json" in path)


@pytest.mark.parametrize("name", ["delete topic", "delete group"])
async def test_a_deletion_whose_offsets_stay_on_disk_says_so(
    talk: Talk, files: FaultyFiles, name: str
) -> None:
    files.fail_syncs(path_contains="consumerOffset")
    answer = await ask(talk, REQUESTS[name])
    assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert "was deleted, but its offsets are still in" in (answer.remark or "")
    files.fail_syncs(0)
    assert (await ask(talk, REQUESTS[name])).code == 0
    assert in_memory(talk)["consumerOffset.json"] == on_disk(talk)["consumerOffset.json"] == {}


async def test_an_identical_request_that_came_meanwhile_shares_the_refusal(
    talk: Talk, files: FaultyFiles
) -> None:
    """It changes nothing more in memory: but what it asks for is not on disk either."""
    saves = count_saves(files)
    files.stall_syncs()
    first = asyncio.ensure_future(ask(talk, create("new")))
    await until(lambda: count_saves(files) > saves)
    second = asyncio.ensure_future(ask(talk, create("new")))
    await ask(talk, (RequestCode.GET_ALL_TOPIC_CONFIG, topic.AllTopicConfigRequest(), b""))
    files.fail_syncs(1, path_contains="topics.json")
    files.release_syncs()
    assert {(await first).code, (await second).code} == {ResponseCode.SERVICE_NOT_AVAILABLE}
    assert "new" not in talk.running.broker.tables.topics.table.topics


async def test_a_failed_change_leaves_the_one_that_came_after_it(talk: Talk, files: FaultyFiles) -> None:
    topics = talk.running.broker.tables.topics
    saves = count_saves(files)
    files.stall_syncs()
    first = asyncio.ensure_future(ask(talk, create("T", 6)))
    await until(lambda: count_saves(files) > saves)
    second = asyncio.ensure_future(ask(talk, create("T", 8)))
    await until(lambda: topics.table.topics["T"].write_queue_nums == 8)
    files.fail_syncs(1, path_contains="topics.json")
    files.release_syncs()
    assert (await first).code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert (await second).code == 0
    assert topics.table.topics["T"].write_queue_nums == 8
    assert on_disk(talk) == in_memory(talk)


# --- messages to topics that are made by them --------------------------------------------------------------


async def test_a_message_to_a_topic_that_cannot_be_saved_is_refused_and_not_stored(
    talk: Talk, files: FaultyFiles
) -> None:
    broker = talk.running.broker
    end = broker.store.log.max_offset
    files.fill()
    batch = encode_batch([(0, b"a", b""), (0, b"b", b"")])
    for answer in (await talk.send("new"), await talk.send_batch("new", batch)):
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert "topics.json could not be written" in (answer.remark or "")
    assert broker.tables.topics.find("new") is None
    assert broker.store.log.max_offset == end
    assert (await talk.route("new")) is None
    assert (await talk.send("T")).code == 0  # a topic that is on disk takes messages still
    files.make_room()
    assert (await talk.send("new", b"again")).fields["queueOffset"] == "0"
    assert [message.body for message in await talk.messages("new")] == [b"again"]


async def test_acknowledged_messages_of_new_topics_are_there_after_a_kill(
    talk: Talk, files: FaultyFiles, tmp_path: Path
) -> None:
    """The disk fills up in the middle of it."""
    acknowledged = []
    for number in range(20):
        if number == 7:
            files.fill()
        if number == 13:
            files.make_room()
        if (await talk.send(f"new-{number}")).code == 0:
            acknowledged.append(f"new-{number}")
    assert 7 <= len(acknowledged) < 20
    shutil.copytree(tmp_path / "store", tmp_path / "killed" / "store")  # as a kill leaves it
    async with running_broker(directory=tmp_path / "killed") as running:
        again = Talk(talk.dialer, running)
        for name in acknowledged:
            assert len(await again.messages(name)) == 1


async def test_sends_to_a_topic_on_its_way_to_the_disk_wait_and_keep_their_order(
    talk: Talk, files: FaultyFiles
) -> None:
    saves = count_saves(files)
    files.stall_syncs()
    sent = [asyncio.ensure_future(talk.send("new", b"%d" % number)) for number in range(10)]
    await until(lambda: count_saves(files) > saves)
    assert (await talk.send("T")).code == 0  # others do not wait
    assert not any(task.done() for task in sent)
    files.release_syncs()
    answers = await asyncio.gather(*sent)
    assert [answer.code for answer in answers] == [0] * 10
    assert [answer.fields["queueOffset"] for answer in answers] == [str(number) for number in range(10)]
    assert [message.body for message in await talk.messages("new")] == [b"%d" % n for n in range(10)]


async def test_what_waits_for_new_topics_is_bounded(
    talk: Talk, files: FaultyFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kerolox.broker.produce.sends.HELD_BYTES_MAX", 2000)
    saves = count_saves(files)
    files.stall_syncs()
    held = asyncio.ensure_future(talk.send("new", b"x" * 900))
    await until(lambda: count_saves(files) > saves)
    answer = await talk.send("new", b"x" * 200)
    assert answer.code == ResponseCode.SYSTEM_BUSY
    assert "wait for new topics" in (answer.remark or "")
    files.release_syncs()
    assert (await held).code == 0
    assert (await talk.send("new", b"x" * 900)).code == 0


@pytest.mark.parametrize("level", [0, -1], ids=["retry", "dead letter"])
async def test_a_message_is_not_taken_back_into_a_topic_that_cannot_be_saved(
    talk: Talk, files: FaultyFiles, level: int
) -> None:
    asked: Asked = (
        RequestCode.CONSUMER_SEND_MSG_BACK,
        SendBackRequest(offset=0, group="g", delay_level=level, origin_topic="T"),
        b"",
    )
    store = talk.running.broker.store
    end = store.log.max_offset
    files.fill()
    answer = await ask(talk, asked)
    assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert store.log.max_offset == end
    files.make_room()
    assert (await ask(talk, asked)).code == 0
    name = (RETRY_PREFIX if level == 0 else DEAD_LETTER_PREFIX) + "g"
    assert name in on_disk(talk)["topics.json"]["topicConfigTable"]


async def test_consumers_go_on_while_their_new_group_cannot_be_saved(talk: Talk, files: FaultyFiles) -> None:
    """A group made by its first use promises nothing: it has the usual settings, and is made again."""
    files.fill()
    assert (await talk.heartbeat("made", subscribed("T"))).code == 0
    answer = await talk.pull("T", consumer_group="made")
    assert answer.code == 0
    assert talk.running.broker.membership.groups.find("made") is not None
    files.make_room()
    assert (await talk.heartbeat("made", subscribed("T"))).code == 0
    await talk.running.broker.tables.group_saver.saved()
    await talk.running.broker.nameservers.settled()
    saved = on_disk(talk)
    assert "made" in saved["subscriptionGroup.json"]["subscriptionGroupTable"]
    assert RETRY_PREFIX + "made" in saved["topics.json"]["topicConfigTable"]
