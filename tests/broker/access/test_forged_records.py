"""Bodies that hold the bytes of a record, and requests that name the place of these bytes."""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from kerolox.net.dialer import Dialer
from kerolox.net.signing import Credentials
from kerolox.protocol.codes import RequestCode as Code
from kerolox.protocol.codes import ResponseCode
from kerolox.protocol.command import Command
from kerolox.protocol.headers.heartbeat import ConsumeDirectlyRequest
from kerolox.protocol.headers.query import ViewMessageRequest
from kerolox.protocol.headers.send import SendBackRequest
from kerolox.protocol.headers.transaction import ResumeCheckRequest
from kerolox.protocol.message import StoredMessage
from kerolox.protocol.message_id import offset_id, read_offset_id
from kerolox.protocol.properties import pack
from kerolox.protocol.record import decode_record, encode_message
from kerolox.protocol.reserved import HALF_TOPIC
from kerolox.testing.access import ADMIN, secured
from kerolox.testing.broker import RunningBroker, running_broker
from kerolox.testing.clock import ManualClock
from tests.access.users_kit import add_user
from tests.broker.talk import BORN_MS, Talk, subscribed, until
from tests.broker.transaction_kit import COMMIT, GROUP, ROLLBACK, TOPIC, Half, Producer, Scene, scene

HEAD_BYTES = 88  # of a record, up to its body
LOCAL = bytes(4) + struct.pack(">i", 10911)
RULES = {"Topic:mine": "Pub,Sub", "Group:workers": "Sub"}


def place_of(answer: Command) -> int:
    assert answer.code == 0, answer.remark
    return read_offset_id(answer.fields["msgId"]).physical_offset


async def forge(talk: Talk, forged: StoredMessage) -> int:
    """Send the record in a body; returns the place where it lies."""
    place = talk.running.broker.store.log.max_offset + HEAD_BYTES
    forged.physical_offset = place
    assert place_of(await talk.send("mine", encode_message(forged))) + HEAD_BYTES == place
    return place


class Place:
    """A broker with an attacker, and a message of theirs."""

    def __init__(self, running: RunningBroker, stack: AsyncExitStack) -> None:
        self.running = running
        self._stack = stack

    async def talk(self, own: Credentials) -> Talk:
        return Talk(await self._stack.enter_async_context(Dialer(credentials=own)), self.running)

    async def alice(self) -> Talk:
        return await self.talk(add_user(self.running.broker.access.book, "alice", RULES))


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    async with AsyncExitStack() as stack:
        running = await stack.enter_async_context(running_broker(directory=tmp_path, **secured()))
        yield Place(running, stack)


async def view(talk: Talk, offset: int) -> Command:
    return await talk.dialer.call(
        talk.address, Code.VIEW_MESSAGE_BY_ID, ViewMessageRequest(offset=offset), timeout_s=10
    )


async def test_a_forged_record_that_spans_messages_of_others_is_not_read(place: Place) -> None:
    """Its head is the body of one message, its end that of another: what lies between is of others."""
    alice, admin = await place.alice(), await place.talk(ADMIN)
    tail = b"\x04mine\x00\x00"

    async def span(head: bytes) -> tuple[int, int]:
        first = place_of(await alice.send("mine", head))
        for number in range(3):
            await admin.send("theirs", b"their secret %d" % number)
        return first + HEAD_BYTES, place_of(await alice.send("mine", tail)) + HEAD_BYTES

    forged = encode_message(StoredMessage("", b"", 0, 0, 0, store_host=LOCAL))[:HEAD_BYTES]
    begin, end = await span(forged)
    at = place.running.broker.store.log.max_offset + HEAD_BYTES
    body_bytes = end - begin - HEAD_BYTES
    head = bytearray(forged)
    struct.pack_into(">i", head, 0, HEAD_BYTES + body_bytes + len(tail))
    struct.pack_into(">q", head, 28, at)
    struct.pack_into(">i", head, 84, body_bytes)
    assert (await span(bytes(head)))[0] == at
    assert b"their secret 2" in place.running.broker.store.log.read(at, HEAD_BYTES + body_bytes)
    answer = await view(alice, at)
    assert (answer.code, answer.body) == (ResponseCode.NO_PERMISSION, b"")
    assert (await view(admin, at)).code == ResponseCode.SYSTEM_ERROR  # nor does the administrator see one


@pytest.mark.parametrize("queue_offset", [0, 1, 2, 7])
async def test_a_record_in_a_body_is_none(place: Place, queue_offset: int) -> None:
    """Whatever queue offset it states: one of a message, its own, or one to come."""
    alice = await place.alice()
    await alice.heartbeat("workers", subscribed("mine"), subscribed("%RETRY%workers"))
    await alice.send("mine", b"first")
    at = await forge(alice, StoredMessage("mine", b"", 0, queue_offset, 0, store_host=LOCAL))
    await alice.send("mine", b"third")
    appended = place.running.broker.store.progress.appended
    answers = [await view(alice, at)]
    back = SendBackRequest(offset=at, group="workers", delay_level=1)
    answers.append(await alice.dialer.call(alice.address, Code.CONSUMER_SEND_MSG_BACK, back))
    directly = ConsumeDirectlyRequest(
        consumer_group="workers", client_id="client-1", msg_id=offset_id(LOCAL, at)
    )
    answers.append(await alice.dialer.call(alice.address, Code.CONSUME_MESSAGE_DIRECTLY, directly))
    assert [(answer.code, answer.body) for answer in answers] == [(ResponseCode.NO_PERMISSION, b"")] * 3
    assert place.running.broker.store.progress.appended == appended


async def test_without_access_control_a_record_in_a_body_is_none_either(tmp_path: Path) -> None:
    async with running_broker(directory=tmp_path) as running, Dialer() as dialer:
        talk = Talk(dialer, running)
        at = await forge(talk, StoredMessage("mine", b"", 0, 0, 0, store_host=LOCAL))
        assert (await view(talk, at)).code == ResponseCode.SYSTEM_ERROR


async def test_a_message_of_a_deleted_topic_is_read_by_who_may_look_at_the_cluster(place: Place) -> None:
    """Followers compare logs by such records, too."""
    alice, admin = await place.alice(), await place.talk(ADMIN)
    for number in range(3):
        kept = place_of(await admin.send("mine", b"message %d" % number))
    forged = await forge(alice, StoredMessage("mine", b"", 0, 9, 0, store_host=LOCAL))
    assert await place.running.broker.store.delete_topic("mine")
    assert decode_record((await view(admin, kept)).body).body == b"message 2"
    assert (await view(admin, forged)).code == ResponseCode.SYSTEM_ERROR
    assert (await view(alice, kept)).code == ResponseCode.NO_PERMISSION


# --- transactions ----------------------------------------------------------------------------------------


def half_of(victim: int) -> StoredMessage:
    """A half message of the attacker's topic, as if it lay where the victim's does."""
    properties = {"REAL_TOPIC": "mine", "REAL_QID": "0", "PGROUP": GROUP, "TRAN_MSG": "true"}
    return StoredMessage(HALF_TOPIC, b"mine", 0, victim, 0, pack(properties), store_host=LOCAL)


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Scene]:
    async with scene(tmp_path, ManualClock(BORN_MS), **secured()) as stage:
        yield stage


@pytest.mark.parametrize("in_advance", [False, True])
async def test_a_forged_half_message_ends_no_other(stage: Scene, in_advance: bool) -> None:
    book = stage.broker.access.book
    payer = Producer(
        stage.running, own=add_user(book, "payer", {f"Topic:{TOPIC}": "Pub,Sub", "Group:consumers": "Sub"})
    )
    alice = Producer(stage.running, own=add_user(book, "alice", RULES))
    async with payer.dialer, alice.dialer:
        half: Half | None = None if in_advance else await payer.prepare(b"theirs")
        at = await forge(alice, half_of(0))
        answer = await alice.dialer.call(
            alice.address, Code.END_TRANSACTION, alice.end_header(ROLLBACK, 0, at), timeout_s=5
        )
        assert answer.code == ResponseCode.NO_PERMISSION
        half = half or await payer.prepare(b"theirs")
        assert half.queue_offset == 0
        assert (await payer.end(half, COMMIT)).code == 0
        assert [order.body for order in await payer.orders()] == [b"theirs"]


async def test_a_half_message_does_not_say_whose_copy_it_is(stage: Scene) -> None:
    """A copy that a check puts back names its first offset. Were a producer believed that, the end of the
    half message that comes to lie there would end this one."""
    book = stage.broker.access.book
    payer = Producer(
        stage.running, own=add_user(book, "payer", {f"Topic:{TOPIC}": "Pub,Sub", "Group:consumers": "Sub"})
    )
    alice = Producer(stage.running, own=add_user(book, "alice", RULES))
    async with payer.dialer, alice.dialer:
        mine = await alice.prepare(
            b"mine",
            {"TRAN_PREPARED_QUEUE_OFFSET": "12", "CHECK_IMMUNITY_TIME_IN_SECONDS": "3600"},
            topic="mine",
        )
        await stage.round(60)
        await stage.round(60)
        assert stage.broker.store.queues.max_offset(HALF_TOPIC, 0) > 1  # it was put back
        assert (await alice.end(mine, ROLLBACK)).code == 0
        half = await payer.prepare(b"theirs")
        while half.queue_offset < 12:
            half = await payer.prepare(b"theirs")
        assert (await payer.end(half, COMMIT)).code == 0
        assert [order.body for order in await payer.orders()] == [b"theirs"]


async def test_only_half_messages_are_checked_again(stage: Scene) -> None:
    admin = Producer(stage.running, own=ADMIN)
    async with admin.dialer:
        sent = await admin.send("mine", b"no half message")
        forged = await forge(admin, half_of(0))
        for message_id in (sent.fields["msgId"], offset_id(LOCAL, forged)):
            answer = await admin.dialer.call(
                admin.address, Code.RESUME_CHECK_HALF_MESSAGE, ResumeCheckRequest(msg_id=message_id)
            )
            assert answer.code == ResponseCode.SYSTEM_ERROR
        assert stage.broker.store.queues.max_offset(HALF_TOPIC, 0) == 0


async def test_a_producer_does_not_say_that_its_message_was_committed(tmp_path: Path) -> None:
    """After a crash the broker looks for committed messages, to find out which half messages have ended: it
    would not ask about them any more."""
    half_key = {"UNIQ_KEY": "7F000001162E18B4AAC28E2F6D2A0000"}
    async with scene(tmp_path, ManualClock(BORN_MS)) as stage:
        payer = Producer(stage.running)
        async with payer.dialer:
            half = await payer.prepare(b"theirs", half_key)
            sent = await payer.send("mine", b"theirs", half_key, sys_flag=COMMIT)
            assert sent.code == 0
            await stage.running.kill()
            await stage.running.start()
            stage.broker = stage.running.broker
            await payer.come()
            await stage.round(60)
            await until(lambda: payer.asked)
            assert payer.asked[0].header.tran_state_table_offset > half.queue_offset  # it was put back
