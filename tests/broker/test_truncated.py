"""A broker whose log was cut while it followed: what it noted of the rest is right again."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path

import pytest

from kerolox.protocol.codes import ResponseCode
from kerolox.protocol.flags import PULL_SUBSCRIPTION, PULL_SUSPEND
from kerolox.protocol.reserved import HALF_GROUP, HALF_TOPIC, SCHEDULE_TOPIC
from kerolox.store.disk.cut_note import Cut, CutNoteFile, QueueEnd
from kerolox.store.disk.files import Files
from kerolox.store.message_store import MessageStore
from kerolox.testing.clock import ManualClock

from .talk import Talk, until
from .test_pulls import talking
from .test_timers import NOW_MS, TIMER, Timing, after_s, timing


def place(talk: Talk, topic: str, offset: int) -> int:
    """Where a message lies in the log."""
    queue = talk.running.broker.store.queues.find(topic, 0)
    assert queue is not None
    entry = queue.entry(offset)
    assert entry is not None
    return entry[0]


async def test_cursors_offsets_and_pulls_that_wait(tmp_path: Path) -> None:
    async with talking(directory=tmp_path) as talk:
        broker = talk.running.broker
        store, offsets = broker.store, broker.tables.offsets
        for number in range(5):
            await talk.send("T", b"%d" % number)
            await talk.send("Other", b"%d" % number, queue_id=1)
        offsets.commit("T", "ahead", 0, 5)
        offsets.commit("T", "behind", 0, 2)
        offsets.commit("Elsewhere", "ahead", 0, 9)  # a leader told it, before its messages
        held = asyncio.ensure_future(talk.pull("T", 0, 5, sys_flag=PULL_SUSPEND | PULL_SUBSCRIPTION))
        await until(lambda: broker.consuming.waits.held == 1)
        await broker.leadership.follow("a test")
        await store.truncate(place(talk, "T", 3))
        answer = await asyncio.wait_for(held, 5)
        assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY  # as followers say it
        assert answer.fields["maxOffset"] == "3"
        assert [offsets.offset("T", group, 0) for group in ("ahead", "behind")] == [3, 2]
        assert offsets.offset("Elsewhere", "ahead", 0) == 9
        saved = json.loads((tmp_path / "store/config/consumerOffset.json").read_text())
        assert saved["offsetTable"]["T@ahead"] == {"0": 3}
        await broker.leadership.lead()
        for _ in range(2):  # by itself, and in a run of sends
            answers = await asyncio.gather(*(talk.send("T", b"new %d" % number) for number in range(3)))
            assert [answer.code for answer in answers] == [0, 0, 0]
        assert [m.queue_offset for m in await talk.messages("T")] == list(range(9))
        assert [m.body[:3] for m in await talk.messages("T")][2:5] == [b"2", b"new", b"new"]
        assert [m.queue_offset for m in await talk.messages("Other", 1)] == [0, 1, 2]


@pytest.mark.parametrize("restarts", [False, True])
async def test_delayed_messages_whose_delivery_was_cut_come_again(tmp_path: Path, restarts: bool) -> None:
    clock = ManualClock(NOW_MS)
    async with timing(tmp_path, clock) as talk:
        for number in range(4):
            await talk.send("T", b"%d" % number, {"DELAY": "1"})
        await clock.advance(2)
        assert await talk.bodies(count=4) == [b"0", b"1", b"2", b"3"]
        await talk.send("T", b"4", {"DELAY": "1"})
        broker = talk.running.broker
        await broker.leadership.follow("a test")
        await broker.store.truncate(place(talk, "T", 2))
        assert await talk.bodies() == [b"0", b"1"]
        assert broker.store.queues.max_offset(SCHEDULE_TOPIC, 0) == 4
        assert broker.tables.delay_offsets.offsets[1] == 2
        if not restarts:
            await broker.leadership.lead()
            await clock.advance(2)
            assert await talk.bodies(count=4) == [b"0", b"1", b"2", b"3"]
    async with timing(tmp_path, clock) as talk:
        await clock.advance(2)
        assert await talk.bodies(count=4) == [b"0", b"1", b"2", b"3"]


@pytest.mark.parametrize("restarts", [False, True])
async def test_timer_messages_whose_delivery_was_cut_come_again(tmp_path: Path, restarts: bool) -> None:

    async def check(talk: Timing) -> None:
        await talk.pass_step_by_step(3)
        assert await talk.bodies(count=4) == [b"due %d" % number for number in range(4)]
        for _ in range(3):
            await talk.pass_step_by_step(25)
        assert (await talk.bodies(count=6))[4:] == [b"much later", b"of this leader"]

    clock = ManualClock(NOW_MS)
    async with timing(tmp_path, clock) as talk:
        for number in range(4):
            await talk.send("T", b"due %d" % number, after_s(3 + number))
        await talk.send("T", b"much later", after_s(50))
        await talk.pass_step_by_step(9)
        assert len(await talk.bodies(count=4)) == 4
        await talk.send("T", b"cut off", after_s(30))
        await talk.pass_step_by_step(2)
        broker = talk.running.broker
        await broker.leadership.follow("a test")
        await broker.store.truncate(place(talk, "T", 1))
        assert broker.store.queues.max_offset(TIMER, 0) == 5
        # Another message comes to lie where the one lay that was cut off.
        await broker.leadership.lead()
        await talk.send("T", b"of this leader", after_s(70))
        if not restarts:
            await check(talk)
            return
    async with timing(tmp_path, clock) as talk:
        await check(talk)


@pytest.mark.parametrize("killed_again", [False, True])
async def test_a_cut_that_was_finished_by_the_start(tmp_path: Path, killed_again: bool) -> None:
    async with talking(directory=tmp_path) as talk:
        broker = talk.running.broker
        for number in range(5):
            await talk.send("T", b"%d" % number)
        broker.tables.offsets.commit("T", "ahead", 0, 5)
        broker.tables.offsets.commit(HALF_TOPIC, HALF_GROUP, 0, 8)
        end = place(talk, "T", 3)
        options = broker.options
    # As a process leaves it that dies in between.
    CutNoteFile(Files(), tmp_path / "store").save(Cut(end, queues=[QueueEnd("T", 0, 3)], half_ended=6))
    (tmp_path / "store/abort").write_text("1")
    if killed_again:
        # A start that has cut the files, and is killed before it has come to the tables.
        async with MessageStore(options):
            shutil.copytree(tmp_path / "store", tmp_path / "again/store")
        tmp_path /= "again"
    async with talking(directory=tmp_path) as talk:
        broker = talk.running.broker
        assert not (tmp_path / "store/kerolox.cut").exists()
        assert broker.store.queues.max_offset("T", 0) == 3
        assert broker.tables.offsets.offset("T", "ahead", 0) == 3
        assert broker.tables.offsets.offset(HALF_TOPIC, HALF_GROUP, 0) == 6
        assert int((await talk.send("T", b"next")).fields["queueOffset"]) == 3
