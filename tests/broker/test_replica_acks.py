"""Sends to a broker that leads synchronously: what they are answered, whichever way they come.

The test tells what followers have; the broker, its sockets and its store are real.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from kerolox.broker.options import BrokerRole
from kerolox.protocol.batch import encode_batch
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.command import Command
from kerolox.protocol.headers.send import SendBackRequest, SendRequestV2
from kerolox.protocol.message_id import read_offset_id
from kerolox.store.options import FlushMode
from kerolox.testing.clock import ManualClock

from .talk import send_fields, until
from .test_send_runs import UNIQUE, Plain
from .test_send_runs import talking as talking_plainly

WAITS = {"UNIQ_KEY": UNIQUE, "WAIT": "true"}
QUICK = {"UNIQ_KEY": UNIQUE, "WAIT": "false"}
WAYS = ("run", "single", "batch", "half")
HALF = {"UNIQ_KEY": UNIQUE, "TRAN_MSG": "true", "PGROUP": "producers"}


class Led(Plain):
    """A client of a broker that waits for followers, and what those say."""

    clock: ManualClock

    @property
    def store(self) -> Any:
        return self.running.broker.store

    def follow(self, name: str = "f") -> None:
        self.store.replicas.joined(name)
        self.ack(name)

    def ack(self, name: str = "f") -> None:
        """It has all there is."""
        assert self.store.replicas.acked(name, self.store.progress.appended)

    def start(self, way: str) -> list[asyncio.Future[Command]]:
        batch = encode_batch([(0, b"b%d" % n, b"") for n in range(3)])
        if way == "run":
            sent = [self.send("T", b"%d" % n) for n in range(5)]
        elif way == "single":
            sent = [self.send_v1("T", properties=WAITS)]
        elif way == "batch":
            sent = [self.send_batch("T", batch, properties={"UNIQ_KEY": UNIQUE})]
        else:
            sent = [self.send("T", properties=HALF, sys_flag=4)]
        return [asyncio.ensure_future(one) for one in sent]

    async def told(self, sent: list[asyncio.Future[Command]]) -> list[Command]:
        return await asyncio.wait_for(asyncio.gather(*sent), 10)

    async def stored(self, before: int) -> None:
        await until(lambda: self.store.progress.appended > before)
        await asyncio.sleep(0.05)


@asynccontextmanager
async def led(tmp_path: Path, **options: Any) -> AsyncIterator[Led]:
    clock = ManualClock()
    settings = {"role": BrokerRole.SYNC_MASTER, "clock": clock, "directory": tmp_path, **options}
    async with talking_plainly(**settings) as talk:
        ours = Led(talk.dialer, talk.running)
        ours.runs, ours.clock = talk.runs, clock
        yield ours
        ours.store.acks.close()  # time stands still: nobody is waited for at the stop


def placed(answer: Command) -> bool:
    """Whether the answer says where the message is, as that of a success does."""
    return "queueOffset" in answer.fields and read_offset_id(answer.fields["msgId"][:32]) is not None


@pytest.mark.parametrize("way", WAYS)
async def test_the_answer_waits_for_the_follower(tmp_path: Path, way: str) -> None:
    async with led(tmp_path) as talk:
        talk.follow()
        # Enough have it, and then the answer leaves.
        before = talk.store.progress.appended
        sent = talk.start(way)
        await talk.stored(before)
        assert not any(one.done() for one in sent)
        assert (talk.taken > 0) == (way in ("run", "batch"))
        talk.ack()
        answers = await talk.told(sent)
        assert {answer.code for answer in answers} == {0}

        # It takes too long.
        before = talk.store.progress.appended
        sent = talk.start(way)
        await talk.stored(before)
        await talk.clock.advance(2.9)
        assert not any(one.done() for one in sent)
        await talk.clock.advance(0.2)
        late = await talk.told(sent)
        assert {answer.code for answer in late} == {ResponseCode.FLUSH_SLAVE_TIMEOUT}
        assert all(map(placed, late))
        assert [answer.fields.keys() for answer in late] == [answer.fields.keys() for answer in answers]

        # The follower goes meanwhile, and then is not there at all.
        talk.ack()
        before = talk.store.progress.appended
        sent = talk.start(way)
        await talk.stored(before)
        talk.store.replicas.left("f")
        for gone in (await talk.told(sent), await talk.told(talk.start(way))):
            assert {answer.code for answer in gone} == {ResponseCode.SLAVE_NOT_AVAILABLE}
            assert all(map(placed, gone))


async def test_one_entry_waits_for_many_answers(tmp_path: Path) -> None:
    async with led(tmp_path) as talk:
        talk.follow()
        entries: list[int] = []
        wait = talk.store.acks._copies.wait

        def counted(end: int, needed: int, told: Any) -> None:
            entries.append(end)
            wait(end, needed, told)

        talk.store.acks._copies.wait = counted
        before = talk.store.progress.appended
        sent = [asyncio.ensure_future(talk.send("T", b"%d" % n)) for n in range(100)]
        await talk.stored(before)
        assert len(entries) < 20
        talk.ack()
        assert {answer.code for answer in await talk.told(sent)} == {0}


async def test_who_does_not_wait_does_not_wait_for_followers(tmp_path: Path) -> None:
    async with led(tmp_path, replicas_min=2) as talk:
        assert (await talk.send("T", properties=QUICK)).code == 0
        assert (await talk.send_v1("T", properties=QUICK)).code == 0
        batch = SendRequestV2(**send_fields("T", QUICK, batch=True))
        body = encode_batch([(0, b"one", b"")])
        assert (await talk.dialer.call(talk.address, RequestCode.SEND_BATCH_MESSAGE, batch, body)).code == 0
        talk.follow()
        assert (await talk.send("T", properties=QUICK)).code == 0
        assert talk.taken == 0  # runs leave it to the handlers
        # A broker that begins to wait, or waits no longer, does so for runs too.
        talk.store.acks.wait_for_replicas = False
        assert (await talk.send("T", properties=QUICK)).code == 0
        assert (await talk.send("T")).code == 0
        assert talk.taken == 2
        talk.store.acks.wait_for_replicas = True
        assert (await talk.send("T", properties=QUICK)).code == 0
        assert talk.taken == 2


async def test_too_few_replicas_refuse_and_nothing_is_written(tmp_path: Path) -> None:
    async with led(tmp_path, replicas_min=2) as talk:
        before = talk.store.progress.appended
        for way in WAYS:
            for answer in await talk.told(talk.start(way)):
                assert answer.code == ResponseCode.SYSTEM_ERROR
                assert (answer.remark or "").startswith("in-sync replicas not enough: 1 of at least 2")
        header = SendRequestV2(**send_fields("T", {"UNIQ_KEY": UNIQUE}))
        await talk.dialer.tell(talk.address, RequestCode.SEND_MESSAGE_V2, header, b"one way")
        back = SendBackRequest(offset=0, group="g", delay_level=0, origin_msg_id="", origin_topic="T")
        answer = await talk.dialer.call(talk.address, RequestCode.CONSUMER_SEND_MSG_BACK, back)
        assert "in-sync replicas not enough" in (answer.remark or "")
        assert talk.store.progress.appended == before
        talk.follow()
        sent = talk.start("run")
        await talk.stored(before)
        talk.ack()
        assert {answer.code for answer in await talk.told(sent)} == {0}


async def test_with_fewer_followers_it_waits_for_those_there_are_if_it_may(tmp_path: Path) -> None:
    async with led(tmp_path, replicas_needed=3, replicas_degrade=True) as talk:
        assert (await talk.send("T")).code == 0
        talk.follow("a")
        before = talk.store.progress.appended
        sent = talk.start("run")
        await talk.stored(before)
        assert not any(one.done() for one in sent)
        talk.ack("a")
        assert {answer.code for answer in await talk.told(sent)} == {0}


async def test_one_replica_is_honoured_and_can_be_changed(tmp_path: Path) -> None:
    async with led(tmp_path, replicas_needed=1) as talk:
        assert (await talk.send("T")).code == 0
        update = RequestCode.UPDATE_BROKER_CONFIG
        answer = await talk.dialer.call(talk.address, update, None, b"inSyncReplicas=2\n")
        assert answer.code == 0
        assert (await talk.send("T")).code == ResponseCode.SLAVE_NOT_AVAILABLE
        answer = await talk.dialer.call(talk.address, update, None, b"inSyncReplicas=0\n")
        assert "from 1 to 65" in (answer.remark or "")


async def test_a_one_way_send_is_stored_without_a_follower(tmp_path: Path) -> None:
    async with led(tmp_path) as talk:
        header = SendRequestV2(**send_fields("T", {"UNIQ_KEY": UNIQUE}))
        await talk.dialer.tell(talk.address, RequestCode.SEND_MESSAGE_V2, header, b"one way")
        assert (await talk.send("T")).code == ResponseCode.SLAVE_NOT_AVAILABLE
        # And what is stored is read, though no follower has it.
        assert [message.body for message in await talk.messages("T")] == [b"one way", b"hello"]


async def test_a_message_sent_back_is_not_doubled_for_want_of_a_follower(tmp_path: Path) -> None:
    async with led(tmp_path) as talk:
        sent = await talk.send("T")
        place = read_offset_id(sent.fields["msgId"]).physical_offset
        back = SendBackRequest(offset=place, group="g", delay_level=1, origin_msg_id="", origin_topic="T")
        answer = await talk.dialer.call(talk.address, RequestCode.CONSUMER_SEND_MSG_BACK, back)
        assert answer.code == 0


async def test_disk_and_followers_are_waited_for_at_once(tmp_path: Path) -> None:
    async with led(tmp_path, flush_mode=FlushMode.SYNC) as talk:
        talk.follow()
        before = talk.store.progress.appended
        sent = talk.start("run")
        await talk.stored(before)
        await until(lambda: talk.store.progress.flushed == talk.store.progress.appended)
        assert not any(one.done() for one in sent)
        talk.ack()
        assert {answer.code for answer in await talk.told(sent)} == {0}


async def test_a_broker_that_stops_lets_those_who_wait_have_their_answer(tmp_path: Path) -> None:
    async with led(tmp_path, replica_timeout_ms=400) as talk:
        talk.follow()
        before = talk.store.progress.appended
        sent = talk.start("run")
        await talk.stored(before)
        stopping = asyncio.ensure_future(talk.running.stop())
        answers = await talk.told(sent)
        assert {answer.code for answer in answers} == {ResponseCode.FLUSH_SLAVE_TIMEOUT}
        await stopping
        await talk.running.start()
