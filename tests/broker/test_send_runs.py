"""Plain sends over real sockets: nobody can tell them from those the handlers took."""

from __future__ import annotations

import asyncio
import errno
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from kerolox.broker.remoting.send_runs import with_code
from kerolox.client.cluster.signing import Signing
from kerolox.client.options import ClientOptions
from kerolox.net.dialer import Dialer
from kerolox.protocol.batch import encode_batch
from kerolox.protocol.bodies.topics import TopicConfig
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.command import Command, decode_command, encode_answer
from kerolox.protocol.frame import BINARY, JSON
from kerolox.protocol.headers.send import SendAnswer, SendRequestV2
from kerolox.protocol.reserved import SCHEDULE_TOPIC, TIMER_TOPIC
from kerolox.store.errors import disk_error
from kerolox.store.options import FlushMode
from kerolox.testing.broker import running_broker
from kerolox.testing.faults import FaultyFiles

from .talk import Talk, send_fields, until

UNIQUE = "7F000001162E18B4AAC28E2F6D2A0000"


class Plain(Talk):
    """Sends with a unique key, as clients do. ``runs`` counts what was taken in runs."""

    runs: list[tuple[str, int, int, int]]

    async def send(
        self, topic: str, body: bytes = b"hello", properties: dict[str, str] | None = None, **fields: Any
    ) -> Command:
        return await super().send(topic, body, {"UNIQ_KEY": UNIQUE, **(properties or {})}, **fields)

    def handle_all(self) -> None:
        """From now on everything goes to the handlers."""
        self.running.broker.ports.handlers.runs.clear()

    @property
    def taken(self) -> int:
        return sum(messages for _, messages, _, _ in self.runs)


@asynccontextmanager
async def talking(encoding: int = JSON, **options: Any) -> AsyncIterator[Plain]:
    async with running_broker(**options) as running, Dialer(encoding=encoding) as dialer:
        talk = Plain(dialer, running)
        talk.runs = []
        running.broker.remoting.send_runs.add_to(running.broker.ports.handlers, running.broker.lanes["send"])
        running.broker.remoting.send_runs.on_stored.append(lambda *run: talk.runs.append(run))
        running.broker.tables.topics.put(TopicConfig(topic_name="T", read_queue_nums=4, write_queue_nums=4))
        await running.broker.tables.topics.unsaved.all_saved()
        yield talk


@pytest.fixture(params=[JSON, BINARY], ids=["json", "binary"])
async def talk(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Plain]:
    async with talking(request.param, directory=tmp_path) as ours:
        yield ours


@pytest.fixture
def files() -> Iterator[FaultyFiles]:
    ours = FaultyFiles()
    yield ours
    ours.release_syncs()


async def test_a_send_that_is_left_to_the_handlers_is_decoded_once(
    talk: Plain, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: list[bytes] = []

    def counting(encoding: int, header: bytes, body: bytes, **more: Any) -> Command:
        if body == b"left":
            decoded.append(header)
        return decode_command(encoding, header, body, **more)

    for module in ("kerolox.net.peer", "kerolox.broker.remoting.send_runs"):
        monkeypatch.setattr(f"{module}.decode_command", counting)
    topics = talk.running.broker.tables.topics
    topics.put(TopicConfig(topic_name="ordered", read_queue_nums=4, write_queue_nums=4, order=True))
    await topics.unsaved.all_saved()
    assert (await talk.send("ordered", b"left")).code == 0
    assert (talk.taken, len(decoded)) == (0, 1)


async def test_answers_and_messages_are_those_of_the_handlers(talk: Plain) -> None:
    async def ask() -> list[Command]:
        fields = {"properties": {"UNIQ_KEY": UNIQUE}}
        batch = encode_batch([(n, b"b%d" % n, b"KEYS\x01k%d\x02" % n) for n in range(3)])
        return [
            await talk.send("T"),
            await talk.send("T", b"\x00\xff", {"TAGS": "t", "KEYS": "a b", "x": 'ü"\\ \n'}, flag=3),
            await talk.send("T", sys_flag=0x101, reconsume_times=2, unit_mode=True),
            await talk.send("T", properties={"WAIT": "false"}),
            await talk.send_batch("T", batch, **fields),
        ]

    fast = await ask()
    assert talk.taken == 7
    talk.handle_all()
    slow = await ask()
    assert talk.taken == 7
    for one, other in zip(fast, slow, strict=True):
        assert (one.code, one.remark, one.body, one.flag, one.language, one.version) == (
            other.code, other.remark, other.body, other.flag, other.language, other.version,
        )  # fmt: skip
        placed = {"msgId": other.fields["msgId"], "queueOffset": other.fields["queueOffset"]}
        assert {**one.fields, **placed} == other.fields
        assert len(one.fields["msgId"]) == len(other.fields["msgId"])
    stored = await talk.messages("T")
    assert len(stored) == 14
    assert [message.queue_offset for message in stored] == list(range(14))
    for one_message, other_message in zip(stored[:7], stored[7:], strict=True):
        for name in (
            "topic", "body", "queue_id", "packed_properties", "flag", "sys_flag", "born_timestamp",
            "store_host", "reconsume_times", "prepared_offset", "body_crc", "size",
        ):  # fmt: skip
            assert getattr(one_message, name) == getattr(other_message, name)
    keys = talk.running.broker.store
    assert len(await keys.find_by_key("T", "a")) == 2
    assert len(await keys.find_by_key("T", "k2")) == 2


async def test_messages_that_come_later_are_those_of_the_handlers(talk: Plain) -> None:
    far = str(int(time.time()) * 1000 + 3_600_000 + 17)
    asking: list[dict[str, str]] = [
        {"DELAY": "3"},
        {"x": "1", "DELAY": "2", "TIMER_DELIVER_MS": far, "REAL_TOPIC": "Other", "REAL_QID": "7"},
        {"DELAY": "99"},
        {"TIMER_DELIVER_MS": far},
        {"TIMER_DELIVER_MS": far, "TIMER_OUT_MS": "", "REAL_QID": "7", "x": 'ü"'},
        # These are left to the handlers.
        {"DELAY": "0"},
        {"DELAY": "many"},
        {"x": "DELAY"},
        {"TIMER_DELIVER_MS": "1"},
        {"TIMER_DELIVER_MS": "9" * 18},
    ]

    async def ask() -> list[Command]:
        return [await talk.send("T", b"later", own, queue_id=number % 4) for number, own in enumerate(asking)]

    await talk.send("T")
    fast = await ask()
    assert talk.taken == 1 + 5
    assert [topic for topic, _, _, _ in talk.runs[1:]] == [SCHEDULE_TOPIC] * 3 + [TIMER_TOPIC] * 2
    talk.handle_all()
    slow = await ask()
    assert talk.taken == 1 + 5
    for one, other in zip(fast, slow, strict=True):
        assert (one.code, one.remark) == (other.code, other.remark)
        if not one.code:
            placed = {"msgId": other.fields["msgId"], "queueOffset": other.fields["queueOffset"]}
            assert {**one.fields, **placed} == other.fields
    assert [one.code for one in fast] == [0, 0, 0, 0, 0, 0, 1, 0, 0, 13]
    assert ["recallHandle" in one.fields for one in fast[:5]] == [False, False, False, True, True]
    for topic, queue_id, count in (
        (SCHEDULE_TOPIC, 2, 1), (SCHEDULE_TOPIC, 1, 1), (SCHEDULE_TOPIC, 17, 1), (TIMER_TOPIC, 0, 2),
    ):  # fmt: skip
        stored = await talk.messages(topic, queue_id)
        assert len(stored) == 2 * count
        for one_message, other_message in zip(stored[:count], stored[count:], strict=True):
            for name in (
                "body",
                "packed_properties",
                "flag",
                "sys_flag",
                "reconsume_times",
                "body_crc",
                "size",
            ):
                assert getattr(one_message, name) == getattr(other_message, name)


async def test_a_pass_with_plain_and_other_sends_keeps_their_order(talk: Plain) -> None:
    def send(number: int) -> Any:
        # Every third has no key: the handlers make one.
        properties = None if number % 3 == 0 else {"UNIQ_KEY": UNIQUE}
        return Talk.send(talk, "T", b"%d" % number, properties)

    answers = await asyncio.gather(*map(send, range(300)))
    assert [int(answer.fields["queueOffset"]) for answer in answers] == list(range(300))
    assert [int(message.body) for message in await talk.messages("T")] == list(range(300))
    assert talk.taken == 200


async def test_one_way_sends(talk: Plain) -> None:
    header = SendRequestV2(**send_fields("T", {"UNIQ_KEY": UNIQUE}))
    await talk.dialer.tell(talk.address, RequestCode.SEND_MESSAGE_V2, header, b"one way")
    assert (await talk.send("T")).fields["queueOffset"] == "1"
    assert talk.taken == 2


async def test_what_changes_for_a_topic_is_heard(talk: Plain) -> None:
    topics = talk.running.broker.tables.topics
    assert (await talk.send("T", queue_id=3)).code == 0
    assert (await talk.send("T", queue_id=4)).code != 0
    topics.put(TopicConfig(topic_name="T", read_queue_nums=2, write_queue_nums=2))
    assert "queueId[3] is illegal" in ((await talk.send("T", queue_id=3)).remark or "")
    topics.put(TopicConfig(topic_name="T", read_queue_nums=8, write_queue_nums=8))
    await topics.unsaved.all_saved()
    assert (await talk.send("T", queue_id=7)).code == 0
    assert talk.taken == 2
    topics.put(TopicConfig(topic_name="T", read_queue_nums=8, write_queue_nums=8, order=True))
    assert (await talk.send("T")).code == 0
    assert talk.taken == 2  # of ordered topics the broker's own rights decide


async def test_a_deleted_topic_begins_anew(talk: Plain) -> None:
    await talk.send("T")
    await talk.send("T")
    broker = talk.running.broker
    broker.tables.topics.remove("T")
    await broker.store.delete_topic("T")
    assert (await talk.send("T", default_topic="none")).code == ResponseCode.TOPIC_NOT_EXIST
    broker.tables.topics.put(TopicConfig(topic_name="T", read_queue_nums=4, write_queue_nums=4))
    await broker.tables.topics.unsaved.all_saved()
    assert (await talk.send("T")).fields["queueOffset"] == "0"
    assert talk.taken == 3


async def test_a_gate_sees_every_request(talk: Plain) -> None:
    seen: list[int] = []
    assert (await talk.send("T")).code == 0
    assert talk.taken == 1
    talk.running.broker.ports.handlers.add_gate(lambda request: seen.append(request.code))
    assert (await talk.send("T")).code == 0
    assert seen == [RequestCode.SEND_MESSAGE_V2]
    assert talk.taken == 1


async def test_signed_sends_are_taken_in_runs_and_stored_like_others(talk: Plain) -> None:
    assert (await talk.send("T")).code == 0
    talk.dialer.handlers.hooks.append(
        Signing(ClientOptions(access_key="me", secret_key="secret", security_token="token"))
    )
    assert (await talk.send("T")).code == 0
    assert talk.taken == 2
    talk.handle_all()
    assert (await talk.send("T")).code == 0
    assert talk.taken == 2
    stored = await talk.messages("T")
    assert {(one.body, one.packed_properties) for one in stored} == {(b"hello", stored[0].packed_properties)}
    assert len(stored) == 3


async def test_sends_with_a_field_that_is_not_known_are_left_to_the_handlers(talk: Plain) -> None:
    header = SendRequestV2(**send_fields("T", {"UNIQ_KEY": UNIQUE}))
    for more in ({"ns": "mine"}, {"x": "y"}, {}):
        answer = await talk.dialer.call(talk.address, RequestCode.SEND_MESSAGE_V2, header, b"b", fields=more)
        assert answer.code == 0
    assert talk.taken == 1
    assert len(await talk.messages("T")) == 3


async def test_statistics_count_messages_and_requests(talk: Plain) -> None:
    flow = talk.running.broker.figures.stats
    await asyncio.gather(*(talk.send("T") for _ in range(10)))
    batch = encode_batch([(0, b"b", b"")] * 5)
    await talk.send_batch("T", batch, properties={"UNIQ_KEY": UNIQUE})
    puts = flow.puts["T"]
    assert (puts.messages, puts.times, talk.taken) == (15, 11, 15)
    assert puts.size_bytes == talk.running.broker.store.progress.appended
    assert flow.all_puts.messages == 15


async def test_a_write_that_fails_is_told_to_all_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with talking(directory=tmp_path) as talk:
        await talk.send("T")
        store = talk.running.broker.store

        def full(data: object) -> int:
            raise disk_error(OSError(errno.ENOSPC, "No space left on device"), "write", "file", 0)

        with monkeypatch.context() as patch:
            patch.setattr(store.segments, "append", full)
            answers = await asyncio.gather(*(talk.send("T", queue_id=n % 2) for n in range(20)))
        assert {answer.code for answer in answers} == {ResponseCode.SERVICE_NOT_AVAILABLE}
        assert all("No space left" in (answer.remark or "") for answer in answers)
        await until(lambda: store.state.writable)  # the next attempt is made a second later
        assert (await talk.send("T")).fields["queueOffset"] == "1"
        assert (await talk.send("T", queue_id=1)).fields["queueOffset"] == "0"
        assert len(await talk.messages("T")) == 2
        assert talk.taken == 23


async def test_a_full_file_is_followed_by_the_next(tmp_path: Path) -> None:
    async with talking(directory=tmp_path, commit_log_file_bytes=16 << 10) as talk:
        answers = await asyncio.gather(*(talk.send("T", b"%03d" % n + b"x" * 500) for n in range(200)))
        assert [int(answer.fields["queueOffset"]) for answer in answers] == list(range(200))
        assert [int(message.body[:3]) for message in await talk.messages("T")] == list(range(200))
        assert len(talk.running.broker.store.segments.all) > 5
        assert talk.taken > 150  # the first of each file is the handlers'


async def test_with_synchronous_flush_answers_wait_for_the_disk(tmp_path: Path, files: FaultyFiles) -> None:
    async with talking(
        directory=tmp_path, files=files, flush_mode=FlushMode.SYNC, flush_timeout_ms=1500
    ) as talk:
        assert (await talk.send("T")).code == 0
        files.stall_syncs()
        late = asyncio.ensure_future(talk.send("T"))
        assert await asyncio.to_thread(files.wait_for_stalled_sync)
        assert (await talk.send("T", properties={"WAIT": "false"})).code == 0
        assert not late.done()
        answer = await late
        assert answer.code == ResponseCode.FLUSH_DISK_TIMEOUT
        assert (answer.fields["queueOffset"], answer.fields["transactionId"]) == ("1", UNIQUE)
        files.release_syncs()
        await until(lambda: talk.running.broker.store.flusher.stalled_s() == 0)
        assert (await talk.send("T")).fields["queueOffset"] == "3"
        assert talk.taken == 3
        files.fail_syncs(path_contains="commitlog")
        refused = await asyncio.gather(*(talk.send("T") for _ in range(5)))
        assert {answer.code for answer in refused} == {ResponseCode.SERVICE_NOT_AVAILABLE}
        assert len(await talk.messages("T")) == 4


@pytest.mark.parametrize("options", [{"record_crc": True}, {"cluster": "DELAYED"}])
async def test_a_broker_whose_every_message_needs_more_takes_none_in_runs(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    async with talking(directory=tmp_path, **options) as talk:
        assert (await talk.send("T")).code == 0
        assert talk.taken == 0
        assert len(await talk.messages("T")) == 1


@pytest.mark.parametrize("code", [10, 11, 12])
def test_answers_get_another_code(code: int) -> None:
    """The same bytes as those of answers that were made with it."""
    header = SendAnswer(msg_id="7F" * 16, queue_id=3, queue_offset=1 << 40, transaction_id="AC" * 16)
    made = [(JSON, 5), (BINARY, 6), (BINARY, -1), (JSON, 1 << 30)]
    success = b"".join(encode_answer(encoding, opaque, 0, header) for encoding, opaque in made)
    assert with_code(success, code) == b"".join(
        encode_answer(encoding, opaque, code, header) for encoding, opaque in made
    )
    assert with_code(b"", code) == b""
