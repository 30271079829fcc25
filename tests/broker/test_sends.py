"""Sending over real sockets, in both header encodings: what is answered, and what is stored."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from kerolox.net.dialer import Dialer
from kerolox.protocol.batch import encode_batch
from kerolox.protocol.bodies.topics import TopicConfig
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.frame import BINARY, JSON
from kerolox.protocol.headers.query import ViewMessageRequest
from kerolox.protocol.headers.send import SendRequestV2
from kerolox.protocol.hosts import host_text
from kerolox.protocol.message_id import read_offset_id
from kerolox.protocol.properties import pack, unpack
from kerolox.store.options import FlushMode
from kerolox.store.state import Obstacle
from kerolox.testing.broker import RunningBroker, running_broker
from kerolox.testing.faults import FaultyFiles

from .talk import BORN_MS, Talk, send_fields, until

UNIQUE = "7F000001162E18B4AAC28E2F6D2A0000"


@asynccontextmanager
async def talking(encoding: int = JSON, **options: Any) -> AsyncIterator[Talk]:
    async with running_broker(**options) as running, Dialer(encoding=encoding) as dialer:
        yield Talk(dialer, running)


@pytest.fixture(params=[JSON, BINARY], ids=["json", "binary"])
async def talk(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Talk]:
    async with talking(request.param, directory=tmp_path) as ours:
        yield ours


def put_topic(running: RunningBroker, topic: str, **config: Any) -> None:
    running.broker.tables.topics.put(TopicConfig(topic_name=topic, **config))


# --- what is answered and stored ---------------------------------------------------------------------


async def test_the_answer_has_rocketmqs_fields_and_no_others(talk: Talk) -> None:
    answer = await talk.send("T", properties={"UNIQ_KEY": UNIQUE, "WAIT": "true"}, queue_id=2)
    assert (answer.code, answer.remark, answer.body) == (0, None, b"")
    port = talk.running.broker.endpoints.port
    assert answer.fields == {
        "msgId": f"7F000001{port:08X}" + "0" * 16,
        "queueId": "2",
        "queueOffset": "0",
        "transactionId": UNIQUE,
        "MSG_REGION": "DefaultRegion",
        "TRACE_ON": "true",
    }
    again = await talk.send("T", queue_id=2)
    assert again.fields["queueOffset"] == "1"


async def test_a_message_is_stored_as_it_was_sent_with_what_brokers_add(talk: Talk) -> None:
    sent = {"TAGS": "A", "KEYS": "k1 k2", "colour": "grün", "UNIQ_KEY": UNIQUE, "POP_CK": "1 2 3"}
    answer = await talk.send("T", b"\x00\xff", sent, flag=7, reconsume_times=3)
    (message,) = await talk.messages("T")
    del sent["POP_CK"]
    added = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true", "CLUSTER": "DefaultCluster"}
    assert unpack(message.packed_properties) == sent | added
    assert (message.topic, message.body, message.flag, message.sys_flag) == ("T", b"\x00\xff", 7, 0)
    assert (message.queue_id, message.queue_offset, message.reconsume_times) == (0, 0, 3)
    assert message.born_timestamp == BORN_MS
    assert message.born_address.startswith("127.0.0.1:")
    assert message.store_address == talk.address
    # The id leads back to the message, at the address it names.
    place = read_offset_id(answer.fields["msgId"])
    assert host_text(place.store_host) == talk.address
    found = await talk.dialer.call(
        host_text(place.store_host),
        RequestCode.VIEW_MESSAGE_BY_ID,
        ViewMessageRequest(offset=place.physical_offset),
    )
    assert (found.code, b"\x00\xff" in found.body) == (0, True)


async def test_a_message_without_unique_key_gets_one(talk: Talk) -> None:
    answer = await talk.send("T")
    (message,) = await talk.messages("T")
    key = unpack(message.packed_properties)["UNIQ_KEY"]
    assert len(key) == 32
    assert answer.fields["transactionId"] == key
    assert (await talk.send("T")).fields["transactionId"] != key


async def test_long_field_names_do_the_same(talk: Talk) -> None:
    answer = await talk.send_v1("T", b"long", {"UNIQ_KEY": UNIQUE})
    assert (answer.code, answer.fields["transactionId"]) == (0, UNIQUE)
    assert [message.body for message in await talk.messages("T")] == [b"long"]


async def test_a_negative_queue_is_any_and_the_one_used_is_told(talk: Talk) -> None:
    put_topic(talk.running, "T", read_queue_nums=3, write_queue_nums=3)
    used = {int((await talk.send("T", queue_id=-1)).fields["queueId"]) for _ in range(60)}
    assert used == {0, 1, 2}


async def test_a_one_way_send_is_stored_and_not_answered(talk: Talk) -> None:
    await talk.dialer.tell(talk.address, 310, SendRequestV2(**send_fields("T")), b"one way")
    assert (await talk.send("T")).code == 0  # the connection is in step: nothing came for the first
    assert [message.body for message in await talk.messages("T")] == [b"one way", b"hello"]


async def test_many_sends_of_one_pass_keep_their_order(talk: Talk) -> None:
    answers = await asyncio.gather(*(talk.send("T", str(n).encode()) for n in range(500)))
    assert [int(answer.fields["queueOffset"]) for answer in answers] == list(range(500))
    assert [int(message.body) for message in await talk.messages("T")] == list(range(500))


# --- batches ---------------------------------------------------------------------------------------------


async def test_a_batch_is_many_messages_with_one_answer(talk: Talk) -> None:
    await talk.send("T")
    body = encode_batch([(n, b"m%d" % n, pack({"KEYS": f"k{n}"})) for n in range(3)])
    answer = await talk.send_batch("T", body, properties={"UNIQ_KEY": UNIQUE})
    assert answer.code == 0
    assert answer.fields["queueOffset"] == "1"
    assert answer.fields["transactionId"] == UNIQUE  # the batch's own
    ids = answer.fields["msgId"].split(",")
    messages = (await talk.messages("T"))[1:]
    assert [message.offset_id for message in messages] == ids
    assert [(m.flag, m.body, unpack(m.packed_properties)) for m in messages] == [
        (n, b"m%d" % n, {"KEYS": f"k{n}"}) for n in range(3)
    ]


async def test_a_batch_without_key_of_its_own_has_no_transaction_id(talk: Talk) -> None:
    answer = await talk.send_batch("T", encode_batch([(0, b"x", b"")]))
    assert (answer.code, "transactionId" in answer.fields) == (0, False)


@pytest.mark.parametrize(
    ("topic", "body", "fields"),
    [
        ("%RETRY%g", encode_batch([(0, b"x", b"")]), {}),
        ("T", b"", {}),
        ("T", b"nonsense", {}),
        ("T", encode_batch([(0, b"x", b"")]), {"properties": {"DELAY": "3"}}),
        ("T", encode_batch([(0, b"x", b"")]), {"sys_flag": 4}),
        ("T", encode_batch([(0, b"x" * 3_000_000, b"")] * 2), {}),
    ],
    ids=["retry", "empty", "nonsense", "delayed", "transaction", "large"],
)
async def test_batches_that_cannot_be(talk: Talk, topic: str, body: bytes, fields: dict[str, Any]) -> None:
    answer = await talk.send_batch(topic, body, **fields)
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert await talk.messages("T") == []


# --- topics made on the way ------------------------------------------------------------------------------


async def test_an_unknown_topic_is_made_after_its_template(talk: Talk) -> None:
    for topic, wanted in (("few", 3), ("many", 100), ("none", -5)):
        answer = await talk.send(topic, default_topic_queue_nums=wanted, queue_id=-1)
        assert answer.code == 0
    topics = talk.running.broker.tables.topics
    made = {name: topics.find(name) for name in ("few", "many", "none")}
    assert made["few"] == TopicConfig(topic_name="few", read_queue_nums=3, write_queue_nums=3, perm=6)
    assert made["many"] == TopicConfig(topic_name="many", read_queue_nums=8, write_queue_nums=8, perm=6)
    assert made["none"] == TopicConfig(topic_name="none", read_queue_nums=0, write_queue_nums=0, perm=6)


async def test_a_template_without_the_right_to_inherit_makes_nothing(talk: Talk) -> None:
    put_topic(talk.running, "plain", perm=6)
    answer = await talk.send("new", default_topic="plain")
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST
    answer = await talk.send("new", default_topic="absent")
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST
    assert talk.running.broker.tables.topics.find("new") is None


async def test_rights_come_from_the_template_and_units_are_marked(talk: Talk) -> None:
    put_topic(talk.running, "model", perm=5, read_queue_nums=2, write_queue_nums=2)
    await talk.send("read_only", default_topic="model", unit_mode=True)
    made = talk.running.broker.tables.topics.find("read_only")
    assert made is not None
    assert (made.perm, made.topic_sys_flag) == (4, 1)


async def test_without_automatic_topics_only_retry_topics_are_made() -> None:
    async with talking(auto_create_topics=False) as talk:
        assert talk.running.broker.tables.topics.find("TBW102") is None
        answer = await talk.send("new")
        assert answer.code == ResponseCode.TOPIC_NOT_EXIST
        assert "topic[new] not exist" in (answer.remark or "")
        assert (await talk.send("%RETRY%g", unit_mode=True)).code == 0
        made = talk.running.broker.tables.topics.find("%RETRY%g")
        assert made == TopicConfig(
            topic_name="%RETRY%g", read_queue_nums=1, write_queue_nums=1, perm=6, topic_sys_flag=2
        )


async def test_a_send_for_a_group_nobody_knows_is_refused_where_groups_are_not_made() -> None:
    async with talking(auto_create_groups=False) as talk:
        answer = await talk.send("%RETRY%nobody")
        assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        assert (await talk.send("%RETRY%TOOLS_CONSUMER")).code == 0


async def test_the_first_answer_of_a_new_topic_waits_until_the_topic_is_on_disk(tmp_path: Path) -> None:
    files = FaultyFiles()
    async with talking(directory=tmp_path, files=files) as talk:
        await talk.send("known")
        files.stall_syncs()
        try:
            new = asyncio.ensure_future(talk.send("new"))
            more = asyncio.ensure_future(talk.send("new"))
            assert (await talk.send("known")).code == 0
            assert await asyncio.to_thread(files.wait_for_stalled_sync)
            assert not new.done()
        finally:
            files.release_syncs()
        assert [(await new).code, (await more).code] == [0, 0]
        assert b'"new"' in (tmp_path / "store" / "config" / "topics.json").read_bytes()


# --- refusals ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("topic", "code"),
    [
        ("", ResponseCode.INVALID_PARAMETER),
        ("  ", ResponseCode.INVALID_PARAMETER),
        ("a.b", ResponseCode.INVALID_PARAMETER),
        ("größe", ResponseCode.INVALID_PARAMETER),
        ("t" * 128, ResponseCode.INVALID_PARAMETER),
        ("%RETRY%" + "g" * 249, ResponseCode.INVALID_PARAMETER),
        ("SCHEDULE_TOPIC_XXXX", ResponseCode.NO_PERMISSION),
        ("RMQ_SYS_TRANS_HALF_TOPIC", ResponseCode.NO_PERMISSION),
        ("RMQ_SYS_TRANS_OP_HALF_TOPIC", ResponseCode.NO_PERMISSION),
        ("TRANS_CHECK_MAX_TIME_TOPIC", ResponseCode.NO_PERMISSION),
        ("SELF_TEST_TOPIC", ResponseCode.NO_PERMISSION),
        ("OFFSET_MOVED_EVENT", ResponseCode.NO_PERMISSION),
        ("t" * 127, ResponseCode.SUCCESS),
        ("a|b%c_d-e", ResponseCode.SUCCESS),
    ],
)
async def test_names_of_topics(talk: Talk, topic: str, code: int) -> None:
    answer = await talk.send(topic)
    assert answer.code == code
    assert code == 0 or answer.remark


async def test_queue_ids_and_sizes(talk: Talk) -> None:
    put_topic(talk.running, "T", read_queue_nums=6, write_queue_nums=4)
    assert (await talk.send("T", queue_id=5)).code == 0  # as RocketMQ: the larger of both counts
    assert (await talk.send("T", queue_id=6)).code == ResponseCode.INVALID_PARAMETER
    assert (await talk.send("T", b"x" * (4 << 20))).code == 0
    assert (await talk.send("T", b"x" * (4 << 20 | 1))).code == ResponseCode.MESSAGE_ILLEGAL
    answer = await talk.send("T", properties={"p": "x" * 32_767})
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert (await talk.send("T")).code == 0


async def test_a_broker_that_may_not_be_written_refuses_ordered_topics_only(talk: Talk) -> None:
    put_topic(talk.running, "ordered", order=True)
    put_topic(talk.running, "plain")
    talk.running.broker.options.permission = 4
    assert (await talk.send("ordered")).code == ResponseCode.NO_PERMISSION
    assert (await talk.send("plain")).code == 0


async def test_messages_before_the_opening_time_are_refused() -> None:
    async with talking(accept_sends_from_ms=1 << 60) as talk:
        answer = await talk.send("T")
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "broker unable to service" in (answer.remark or "")


async def test_a_follower_refuses_up_front() -> None:
    async with talking() as talk:
        await talk.send("T")
        await talk.running.broker.leadership.follow("another one leads")
        answer = await talk.send("T")
        assert answer.code == ResponseCode.SYSTEM_BUSY
        assert (answer.remark or "").startswith("[REJECTREQUEST]")
        await talk.running.broker.leadership.lead()
        assert (await talk.send("T")).code == 0


async def test_a_store_that_takes_nothing_says_why(talk: Talk) -> None:
    await talk.send("T")
    state = talk.running.broker.store.state
    state.set(Obstacle.DISK_FULL, "the disk is at 97 percent")
    answer = await talk.send("T")
    assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert "97 percent" in (answer.remark or "")
    assert (await talk.send("never_made")).code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert talk.running.broker.tables.topics.find("never_made") is None
    state.clear(Obstacle.DISK_FULL)
    assert (await talk.send("T")).fields["queueOffset"] == "1"


async def test_a_full_disk_refuses_and_what_was_acknowledged_is_there(tmp_path: Path) -> None:
    files = FaultyFiles()
    async with talking(directory=tmp_path, files=files, commit_log_file_bytes=64 << 10) as talk:
        await talk.send("T", b"first")
        files.fill()
        bodies = [b"%04d" % n + b"x" * 20_000 for n in range(20)]
        answers = await asyncio.gather(*(talk.send("T", body) for body in bodies))
        assert {answer.code for answer in answers} == {0, ResponseCode.SERVICE_NOT_AVAILABLE}
        stored = {message.queue_offset: message.body for message in await talk.messages("T")}
        for answer, body in zip(answers, bodies, strict=True):
            if answer.code == 0:
                assert stored[int(answer.fields["queueOffset"])] == body
            else:
                assert "No space left" in (answer.remark or "") or "disk full" in (answer.remark or "")
        files.make_room()
        await until(lambda: talk.running.broker.store.state.writable)  # a round later
        assert (await talk.send("T")).fields["queueOffset"] == str(len(stored))


# --- synchronous flush -------------------------------------------------------------------------------------


@pytest.fixture
def files() -> Iterator[FaultyFiles]:
    ours = FaultyFiles()
    yield ours
    ours.release_syncs()


async def test_with_synchronous_flush_the_answer_waits_for_the_disk(
    tmp_path: Path, files: FaultyFiles
) -> None:
    async with talking(directory=tmp_path, files=files, flush_mode=FlushMode.SYNC) as talk:
        await talk.send("T")
        files.stall_syncs()
        waiting = asyncio.ensure_future(talk.send("T", properties={"WAIT": "true"}))
        quick = await talk.send("T", properties={"WAIT": "false"})
        assert quick.code == 0
        assert await asyncio.to_thread(files.wait_for_stalled_sync)
        assert not waiting.done()
        # Nobody sees what may still be lost.
        assert (await talk.pull("T", 0, 1)).code == ResponseCode.PULL_NOT_FOUND
        files.release_syncs()
        assert (await waiting).code == 0
        assert len(await talk.messages("T")) == 3


async def test_a_stalled_disk_refuses_sends_before_they_are_stored_and_serves_the_rest(
    tmp_path: Path, files: FaultyFiles
) -> None:
    async with talking(
        directory=tmp_path, files=files, flush_mode=FlushMode.SYNC, send_wait_ms=100, flush_timeout_ms=1500
    ) as talk:
        await talk.send("T")
        assert (await talk.heartbeat("known")).code == 0
        files.stall_syncs()
        first = asyncio.ensure_future(talk.send("T"))
        assert await asyncio.to_thread(files.wait_for_stalled_sync)
        flusher = talk.running.broker.store.flusher
        await until(lambda: flusher.stalled_s() > 0.1)
        end = talk.running.broker.store.progress.appended
        for _ in range(3):
            answer = await asyncio.wait_for(talk.send("T"), 0.5)
            assert answer.code == ResponseCode.SYSTEM_BUSY
            assert (answer.remark or "").startswith("[TIMEOUT_CLEAN_QUEUE]")
            assert "not stored" in (answer.remark or "")
        assert talk.running.broker.store.progress.appended == end
        assert (await asyncio.wait_for(talk.pull("T"), 0.5)).code == 0
        assert (await asyncio.wait_for(talk.heartbeat("known"), 0.5)).code == 0
        # A new group's retry topic cannot be saved: the answer does not wait for that as long as clients do.
        assert (await talk.heartbeat("new")).code == 0
        # The one that was stored hears so, with where it is, when its time is up.
        answer = await first
        assert answer.code == ResponseCode.FLUSH_DISK_TIMEOUT
        assert answer.fields["queueOffset"] == "1"
        files.release_syncs()
        await until(lambda: flusher.stalled_s() == 0)
        assert (await talk.send("T")).fields["queueOffset"] == "2"


async def test_a_failed_flush_acknowledges_nothing_any_more(tmp_path: Path, files: FaultyFiles) -> None:
    async with talking(directory=tmp_path, files=files, flush_mode=FlushMode.SYNC) as talk:
        await talk.send("T")
        files.fail_syncs(path_contains="commitlog")
        answer = await talk.send("T")
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        answer = await talk.send("T")
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert "fenced" in (answer.remark or "")
        assert len(await talk.messages("T")) == 1
