"""Requests of which only the store tells what they are about: who may not have it hears nothing of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from kerolox.net.dialer import Dialer
from kerolox.net.signing import Credentials
from kerolox.protocol.codes import RequestCode as Code
from kerolox.protocol.codes import ResponseCode
from kerolox.protocol.command import Command
from kerolox.protocol.flags import PULL_SUBSCRIPTION, PULL_SUSPEND
from kerolox.protocol.headers.heartbeat import ConsumeDirectlyRequest
from kerolox.protocol.headers.query import QueryMessageRequest, ViewMessageRequest
from kerolox.protocol.headers.send import SendBackRequest
from kerolox.protocol.message_id import read_offset_id
from kerolox.protocol.record import decode_record, decode_records
from kerolox.testing.access import ADMIN, secured
from kerolox.testing.broker import RunningBroker, running_broker
from kerolox.testing.clock import ManualClock
from tests.access.users_kit import add_user
from tests.broker.talk import BORN_MS, Talk, subscribed, until
from tests.broker.transaction_kit import TOPIC, Producer, scene

NOWHERE = 7  # no record begins there


class Place:
    """A broker with two topics, ``mine`` and ``theirs``, and a message in each."""

    def __init__(self, running: RunningBroker, stack: AsyncExitStack) -> None:
        self.running = running
        self._stack = stack
        self.mine = ""
        self.theirs = ""

    async def talk(self, own: Credentials) -> Talk:
        return Talk(await self._stack.enter_async_context(Dialer(credentials=own)), self.running)

    async def user(self, **rules: str) -> Talk:
        rules = {name.replace("_", ":", 1): actions for name, actions in rules.items()}
        return await self.talk(add_user(self.running.broker.access.book, "alice", rules))

    async def fill(self) -> None:
        admin = await self.talk(ADMIN)
        self.mine = (await admin.send("mine", b"my message")).fields["msgId"]
        self.theirs = (await admin.send("theirs", b"their secret")).fields["msgId"]


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    async with AsyncExitStack() as stack:
        running = await stack.enter_async_context(running_broker(directory=tmp_path, **secured()))
        place = Place(running, stack)
        await place.fill()
        yield place


def offset_of(message_id: str) -> int:
    return read_offset_id(message_id).physical_offset


def told(answer: Command) -> tuple[int, str | None]:
    assert b"secret" not in answer.body
    assert "theirs" not in (answer.remark or "")
    return answer.code, answer.remark


async def view(talk: Talk, offset: int, topic: str | None = None) -> Command:
    header = ViewMessageRequest(offset=offset, topic=topic)
    return await talk.dialer.call(talk.address, Code.VIEW_MESSAGE_BY_ID, header)


@pytest.mark.parametrize("right", ["Sub", "Get"])
async def test_a_message_is_read_by_its_place_with_a_right_to_its_topic(place: Place, right: str) -> None:
    alice = await place.user(Topic_mine=right)
    mine = await view(alice, offset_of(place.mine))
    assert decode_record(mine.body).body == b"my message"
    theirs = told(await view(alice, offset_of(place.theirs)))
    assert theirs[0] == ResponseCode.NO_PERMISSION
    # The same for a message that is not there, and when she says that it is of her topic.
    assert told(await view(alice, NOWHERE)) == theirs
    assert told(await view(alice, offset_of(place.theirs), "mine")) == theirs
    assert (await view(alice, offset_of(place.mine), "theirs")).code == ResponseCode.NO_PERMISSION
    admin = await place.talk(ADMIN)
    assert decode_record((await view(admin, offset_of(place.theirs))).body).body == b"their secret"
    assert (await view(admin, NOWHERE)).code == ResponseCode.SYSTEM_ERROR


async def send_back(talk: Talk, offset: int) -> Command:
    header = SendBackRequest(offset=offset, group="workers", delay_level=1)
    return await talk.dialer.call(talk.address, Code.CONSUMER_SEND_MSG_BACK, header)


async def test_only_a_message_that_the_user_may_consume_is_sent_back(place: Place) -> None:
    alice = await place.user(Topic_mine="Sub", Group_workers="Sub")
    assert (await alice.heartbeat("workers", subscribed("mine"), subscribed("%RETRY%workers"))).code == 0
    appended = place.running.broker.store.progress.appended
    theirs = told(await send_back(alice, offset_of(place.theirs)))
    assert theirs[0] == ResponseCode.NO_PERMISSION
    assert told(await send_back(alice, NOWHERE)) == theirs
    assert place.running.broker.store.progress.appended == appended  # no copy of it anywhere
    assert (await send_back(alice, offset_of(place.mine))).code == 0
    assert place.running.broker.store.progress.appended > appended


async def test_a_message_of_another_groups_retries_is_not_sent_back(place: Place) -> None:
    admin = await place.talk(ADMIN)
    assert (await admin.heartbeat("others", subscribed("theirs"))).code == 0
    retried = await admin.send("%RETRY%others", b"their secret, again")
    alice = await place.user(Topic_mine="Sub", Group_workers="Sub")
    assert (await alice.heartbeat("workers", subscribed("mine"))).code == 0
    answer = await send_back(alice, offset_of(retried.fields["msgId"]))
    assert told(answer)[0] == ResponseCode.NO_PERMISSION


async def test_a_consumer_is_handed_only_messages_that_the_user_may_consume(place: Place) -> None:
    alice = await place.user(Topic_mine="Sub", Group_workers="Sub")

    async def hand(message_id: str) -> Command:
        header = ConsumeDirectlyRequest(consumer_group="workers", client_id="c", msg_id=message_id)
        return await alice.dialer.call(alice.address, Code.CONSUME_MESSAGE_DIRECTLY, header)

    mine = await hand(place.mine)
    assert "not online" in (mine.remark or "")
    theirs = told(await hand(place.theirs))
    assert theirs[0] == ResponseCode.NO_PERMISSION
    assert told(await hand(f"{place.theirs[:-16]}{NOWHERE:016X}")) == theirs


async def test_a_key_that_meets_another_topics_finds_nothing(tmp_path: Path) -> None:
    """The index knows 32 bits of topic and key: "Aa#k" and "BB#k" have the same. The right is to one
    topic."""
    async with running_broker(directory=tmp_path) as running, Dialer() as dialer:
        talk = Talk(dialer, running)
        assert (await talk.send("Aa", b"theirs", {"KEYS": "k"})).code == 0

        async def find(topic: str) -> Command:
            header = QueryMessageRequest(
                topic=topic, key="k", max_num=32, begin_timestamp=0, end_timestamp=(1 << 63) - 1
            )
            return await dialer.call(running.address, Code.QUERY_MESSAGE, header)

        assert (await find("BB")).code == ResponseCode.QUERY_NOT_FOUND
        assert [message.body for message in decode_records((await find("Aa")).body)] == [b"theirs"]


async def test_a_pull_that_waits_gets_nothing_once_the_right_is_gone(place: Place) -> None:
    alice = await place.user(Topic_mine="Sub", Group_consumers="Sub")
    waiting = place.running.broker.consuming.waits
    pull = asyncio.create_task(alice.pull("mine", 0, 1, sys_flag=PULL_SUBSCRIPTION | PULL_SUSPEND))
    await until(lambda: waiting.held == 1)
    add_user(place.running.broker.access.book, "alice", {"Group:consumers": "Sub"})
    assert (await pull).code == ResponseCode.PULL_NOT_FOUND
    assert (await alice.pull("mine")).code == ResponseCode.NO_PERMISSION


# --- transactions ----------------------------------------------------------------------------------------


async def test_a_transaction_is_ended_by_who_may_send_to_its_topic(tmp_path: Path) -> None:
    async with scene(tmp_path, **secured()) as stage:
        book = stage.broker.access.book
        rules = {f"Topic:{TOPIC}": "Pub,Sub", "Group:consumers": "Sub"}
        payer = Producer(stage.running, own=add_user(book, "payer", rules))
        alice = Producer(stage.running, own=add_user(book, "alice", {"Topic:mine": "Pub"}))
        async with payer.dialer, alice.dialer:
            half = await payer.prepare(b"their secret")
            refused = told(await alice.end(half))
            assert refused[0] == ResponseCode.NO_PERMISSION
            assert told(await alice.end(half, topic="mine")) == refused
            assert told(await alice.end(half, place=NOWHERE)) == refused
            assert await payer.orders() == []
            assert (await payer.end(half)).code == 0
            assert [order.body for order in await payer.orders()] == [b"their secret"]


async def test_only_who_may_send_to_its_topic_is_asked_how_a_transaction_ended(tmp_path: Path) -> None:
    """The question shows the message, and everybody can say that they are of a producer group."""
    clock = ManualClock(BORN_MS)
    async with scene(tmp_path, clock, **secured()) as stage:
        book = stage.broker.access.book
        rules = {f"Topic:{TOPIC}": "Pub"}
        payer = Producer(stage.running, "payer-1", own=add_user(book, "payer", rules))
        alice = Producer(stage.running, "payer-2", own=add_user(book, "alice", {"Topic:mine": "Pub"}))
        async with payer.dialer, alice.dialer:
            await alice.come()
            halves = [await payer.prepare(b"their secret") for _ in range(3)]
            await stage.round(60)
            await stage.round(60)
            assert alice.asked == []
            await payer.come()
            for _ in range(5):  # one that had begun before the payer came may be over only now
                await stage.round(60)
                if payer.asked:
                    break
            await until(lambda: len(payer.asked) >= len(halves))
            assert alice.asked == []
