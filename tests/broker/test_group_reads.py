"""Reads by groups, as a receive from all queues of a topic and of a retry topic uses them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kerolox.broker.consume.group_reads import GroupRead, GroupReads
from kerolox.broker.consume.message_waits import ANY_QUEUE, Wait, WaitPoint
from kerolox.broker.consume.read_filter import ReadFilter, ReadRefused
from kerolox.net.dialer import Dialer
from kerolox.protocol.bodies.groups import GroupConfig
from kerolox.protocol.codes import ResponseCode
from kerolox.protocol.properties import pack
from kerolox.protocol.record import decode_records
from kerolox.store.queue.reading import ReadStatus
from kerolox.testing.broker import running_broker

from .talk import Talk, until

RETRY = "%RETRY%g_T"


@pytest.fixture
async def talk(tmp_path: Path) -> AsyncIterator[Talk]:
    async with running_broker(directory=tmp_path) as running, Dialer() as dialer:
        talk = Talk(dialer, running)
        for queue_id in range(2):
            await talk.send("T", b"old", queue_id=queue_id)
        yield talk


def reads_of(talk: Talk) -> GroupReads:
    return talk.running.broker.consuming.reads


def checked(talk: Talk, expression: str = "*") -> GroupRead:
    reads = reads_of(talk)
    reads.check_broker()
    topic = reads.topic("T")
    filter = reads.filter_in_request("T", expression, "TAG")
    return GroupRead(topic, reads.group("g"), filter)


class Receive:
    """A receive from every queue of a topic, by share ``g``, held until there is a message."""

    def __init__(self, talk: Talk, expression: str = "*", *, offset: int = 1) -> None:
        self.reads = reads_of(talk)
        self.read = checked(talk, expression)
        self.points = (WaitPoint("T", 0, offset), WaitPoint("T", 1, offset), WaitPoint(RETRY, ANY_QUEUE))
        self.resumed = asyncio.Event()
        wait = Wait(
            self.points,
            talk.running.broker.clock.monotonic_s() + 10,
            self.resumed.set,
            self.read.filter.by_properties,
            share="g",
        )
        self.is_held = self.reads.wait(wait)

    def bodies(self) -> list[bytes]:
        found: list[bytes] = []
        for _, queue_id, offset in self.points[:2]:
            read = self.reads.read(self.read, queue_id, offset, 32)
            self.reads.note(self.read, queue_id, read)
            found += [message.body for message in decode_records(b"".join(read.parts))]
        return found


async def test_a_receive_gets_the_message_of_whichever_queue(talk: Talk) -> None:
    receive = Receive(talk)
    assert receive.is_held
    await talk.send("T", b"new", queue_id=1)
    await asyncio.wait_for(receive.resumed.wait(), 10)
    assert receive.bodies() == [b"new"]
    broker = talk.running.broker
    assert broker.consuming.waits.held == 0
    assert broker.tables.offsets.pull_offset("T", "g", 1) == 2
    assert broker.tables.offsets.pull_offset("T", "g", 0) == 1


async def test_a_retry_topic_that_did_not_exist_ends_a_receive(talk: Talk) -> None:
    filtered = Receive(talk, "A")
    await talk.send("T", b"no", {"TAGS": "B"}, queue_id=0)
    await talk.running.broker.store.put(RETRY, 0, b"again", pack({"TAGS": "A"}))
    await asyncio.wait_for(filtered.resumed.wait(), 10)
    assert filtered.bodies() == []


async def test_two_receives_of_a_group_take_turns(talk: Talk) -> None:
    first, second = Receive(talk), Receive(talk)
    await talk.send("T", queue_id=0)
    await asyncio.wait_for(first.resumed.wait(), 10)
    assert not second.resumed.is_set()
    await talk.send("T", queue_id=1)
    await asyncio.wait_for(second.resumed.wait(), 10)
    await until(lambda: talk.running.broker.consuming.waits.held == 0)


async def test_nothing_is_held_behind_a_message_that_has_arrived(talk: Talk) -> None:
    assert not Receive(talk, offset=0).is_held
    assert talk.running.broker.consuming.waits.held == 0


async def test_a_read_is_refused_with_code_and_kind(talk: Talk) -> None:
    reads = reads_of(talk)
    with pytest.raises(ReadRefused) as refused:
        reads.topic("unknown")
    assert (refused.value.code, refused.value.forbidden_type) == (ResponseCode.TOPIC_NOT_EXIST, None)
    talk.running.broker.membership.groups.put(GroupConfig(group_name="off", consume_enable=False))
    with pytest.raises(ReadRefused) as refused:
        reads.group("off")
    assert (refused.value.code, refused.value.forbidden_type) == (ResponseCode.NO_PERMISSION, 2)


async def test_a_read_knows_when_its_topic_or_group_has_changed(talk: Talk) -> None:
    read = checked(talk)
    reads = reads_of(talk)
    assert reads.is_current(read)
    talk.running.broker.membership.groups.put(GroupConfig(group_name="g", retry_max_times=3))
    assert not reads.is_current(read)


async def test_a_read_without_messages_counts_as_a_miss(talk: Talk) -> None:
    reads = reads_of(talk)
    read = GroupRead(reads.topic("T"), reads.group("g"), ReadFilter())
    caught_up: list[tuple[str, str, int]] = []
    reads.on_caught_up.append(lambda *flow: caught_up.append(flow))
    before = reads.misses
    found = reads.read(read, 0, 1, 32)
    assert found.status is ReadStatus.OFFSET_OVERFLOW_ONE
    reads.note(read, 0, found)
    assert (reads.misses, caught_up) == (before + 1, [("g", "T", 0)])
