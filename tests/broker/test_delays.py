"""Delay levels: when messages come, in which order, as what, and what stops, kills and clocks do to it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from kerolox.broker.later import delay_notes as delay_marks
from kerolox.broker.later.delay_levels import restore
from kerolox.broker.later.delays import BATCH_MAX
from kerolox.broker.write.pending_message import PendingMessage
from kerolox.errors import Refused
from kerolox.net.dialer import Dialer
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.flags import PULL_SUBSCRIPTION, PULL_SUSPEND
from kerolox.protocol.message import StoredMessage
from kerolox.protocol.properties import pack, unpack
from kerolox.protocol.reserved import HALF_TOPIC, SCHEDULE_TOPIC
from kerolox.store.delay_table import DEFAULT_LEVELS, parse_levels
from kerolox.store.errors import DiskFull
from kerolox.store.options import FlushMode
from kerolox.store.queue.entry import HOLE_TAGS, SIMPLE
from kerolox.store.state import Obstacle
from kerolox.testing.broker import running_broker
from kerolox.testing.faults import FaultyFiles

from .delay_kit import BORN_HOST, STORE_HOST, DelayRig
from .talk import Talk, until

DELAYS_MS = parse_levels(DEFAULT_LEVELS)


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[DelayRig]:
    rig = DelayRig(tmp_path / "store")
    await rig.open()
    yield rig
    await rig.close()


# --- when --------------------------------------------------------------------------------------------


async def test_every_level_comes_at_its_time_and_not_a_millisecond_before(rig: DelayRig) -> None:
    bodies = await rig.send(*range(1, 19))
    now_ms = 0
    for number, (delay_ms, body) in enumerate(zip(DELAYS_MS, bodies, strict=True)):
        await rig.jump((delay_ms - 1 - now_ms) / 1000)
        assert rig.delivered() == bodies[:number]
        await rig.clock.advance(0.001)
        assert rig.delivered() == bodies[: number + 1], (number + 1, body)
        now_ms = delay_ms


async def test_time_that_is_lived_through(rig: DelayRig) -> None:
    (first,) = await rig.send(3)
    await rig.clock.advance(4)
    (second,) = await rig.send(3)
    await rig.clock.advance(5.999)
    assert rig.delivered() == []
    await rig.clock.advance(0.001)
    assert rig.delivered() == [first]
    await rig.clock.advance(3.999)
    assert rig.delivered() == [first]
    await rig.clock.advance(0.001)
    assert rig.delivered() == [first, second]


async def test_a_level_past_the_last_is_the_last(rig: DelayRig) -> None:
    (body,) = await rig.send(99)
    (parked,) = rig.parked(18)
    assert unpack(parked.packed_properties)["DELAY"] == "18"
    await rig.jump(7199.999)
    assert rig.delivered() == []
    await rig.clock.advance(0.001)
    assert rig.delivered() == [body]


async def test_other_levels_by_option(tmp_path: Path) -> None:
    rig = DelayRig(tmp_path, delay_levels="2s 3d")
    await rig.open()
    bodies = await rig.send(1, 2, 3)
    await rig.clock.advance(2)
    assert rig.delivered() == bodies[:1]
    await rig.jump(3 * 86_400 - 2.001)
    assert rig.delivered() == bodies[:1]
    await rig.clock.advance(0.001)
    assert rig.delivered() == bodies
    await rig.close()


async def test_no_timer_runs_while_nothing_waits(rig: DelayRig) -> None:
    quiet = rig.clock.pending
    await rig.send(1)
    await rig.clock.advance(0)
    assert rig.clock.pending == quiet + 2  # its moment, and a look at whether the wall clock was set
    await rig.clock.advance(1)
    assert len(rig.delivered()) == 1
    assert rig.clock.pending == quiet


class OneAtATime:
    """Another broker that takes only the first message of each call."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []

    async def put(self, messages: Sequence[PendingMessage]) -> int:
        self.bodies += [message.body for message in messages[:1]]
        return len(messages[:1])


async def test_what_another_broker_did_not_take_does_not_wait_for_the_next_message(tmp_path: Path) -> None:
    rig = DelayRig(tmp_path)
    rig.outlet = outlet = OneAtATime()
    await rig.open()
    due = await rig.send(2, 2, 2)
    await rig.clock.advance(3)
    await rig.send(2)
    await rig.delays.follow()
    await rig.delays.act()
    await rig.clock.advance(2.1)
    assert outlet.bodies == due
    await rig.delays.follow()
    await rig.close()


# --- as what -----------------------------------------------------------------------------------------


async def test_what_is_parked_and_what_is_delivered(rig: DelayRig) -> None:
    properties = {"TIMER_DELAY_MS": "5", "TIMER_DELIVER_MS": "7", "TIMER_DELAY_SEC": "9", "colour": "grün"}
    pending = rig.pending(
        2, flag=7, reconsume_times=3, sys_flag=0x8, properties=properties, prepared_offset=12
    )
    sent = unpack(pending.properties)
    rig.intake.append_or_park(pending)
    await rig.intake.written()
    (parked,) = rig.parked(2)
    kept = {name: value for name, value in sent.items() if not name.startswith("TIMER_")}
    assert unpack(parked.packed_properties) == kept | {"REAL_TOPIC": "T", "REAL_QID": "1"}
    assert parked.prepared_offset == 12
    await rig.clock.advance(5)
    (message,) = rig.stored()
    # As RocketMQ: the level and the real queue stay, and the host of the first storing.
    assert message.packed_properties == parked.packed_properties
    assert (message.topic, message.queue_id, message.queue_offset, message.body) == ("T", 1, 0, parked.body)
    assert (message.flag, message.sys_flag, message.reconsume_times) == (7, 0x8, 3)
    assert (message.born_timestamp, message.born_host) == (parked.born_timestamp, BORN_HOST)
    assert (message.store_host, message.prepared_offset) == (STORE_HOST, 0)
    assert message.store_timestamp == parked.store_timestamp + 5000


async def test_the_store_host_is_the_first_brokers(tmp_path: Path) -> None:
    rig = DelayRig(tmp_path)
    await rig.open()
    await rig.send(1)
    await rig.close()
    await rig.open()
    rig.store.log.store_host = b"\x0a\x00\x00\x63\x00\x00\x2a\x9f"
    await rig.clock.advance(1)
    assert [message.store_host for message in rig.stored()] == [STORE_HOST]
    await rig.close()


@pytest.mark.parametrize("level", [None, 0, -1, ""])
async def test_without_a_level_nothing_is_parked(rig: DelayRig, level: int | None) -> None:
    bodies = await rig.send(level)
    assert rig.delivered() == bodies


async def test_a_name_that_ends_in_delay_is_no_level(rig: DelayRig) -> None:
    assert await rig.send(None, properties={"MYDELAY": "3"}) == rig.delivered()


async def test_half_messages_are_not_parked(rig: DelayRig) -> None:
    pending = rig.pending(3, sys_flag=0x4)
    rig.intake.append_or_park(pending)
    assert pending.topic == "T"
    await rig.intake.written()


@pytest.mark.parametrize("text", ["x", "1.5", "1_0", " 1", "99999999999", "2147483648"])
async def test_a_level_that_is_no_number_is_refused(rig: DelayRig, text: str) -> None:
    with pytest.raises(Refused) as caught:
        rig.intake.append_or_park(rig.pending(text))
    assert caught.value.code == 1


async def test_properties_with_a_record_crc(tmp_path: Path) -> None:
    rig = DelayRig(tmp_path, record_crc=True)
    await rig.open()
    bodies = await rig.send(1)
    await rig.clock.advance(1)
    (message,) = rig.stored()
    assert [message.body] == bodies
    assert message.packed_properties.count(b"__CRC32#\x01") == 1
    await rig.die()
    await rig.open()
    assert rig.delays.levels[0].next_offset == 1
    await rig.close()


# --- order and batches ---------------------------------------------------------------------------------


async def test_many_at_once_come_in_order_in_batches(rig: DelayRig) -> None:
    bodies = await rig.send(*[1] * (2 * BATCH_MAX + 10))
    before = rig.delays.batches
    await rig.clock.advance(1)
    await rig.until(lambda: len(rig.delivered()) == len(bodies))
    assert rig.delivered() == bodies
    assert rig.delays.batches - before == 3


async def test_large_messages_make_smaller_batches(rig: DelayRig) -> None:
    await rig.send(*[1] * 6, body=bytes(400 << 10))
    await rig.clock.advance(1)
    await rig.until(lambda: len(rig.delivered()) == 6)
    assert rig.delays.batches == 3


async def test_catching_up_with_100k_leaves_the_loop_to_others(tmp_path: Path) -> None:
    rig = DelayRig(tmp_path, commit_log_file_bytes=64 << 20)
    await rig.open()
    total = 100_000
    for _ in range(total // 1000):
        await rig.send(*[1, 2, 3, 4] * 250)
    await rig.close()
    rig.clock.step_wall(3 * 86_400_000)
    await rig.open()
    turns: list[int] = []

    async def other() -> None:
        while rig.delays.delivered < total:
            turns.append(rig.delays.delivered)
            await asyncio.sleep(0)

    await other()
    # Nobody else ever waited for more than one batch, whichever levels were due.
    assert max(after - before for before, after in pairwise(turns)) <= BATCH_MAX
    assert rig.delays.batches <= total // BATCH_MAX + 2 * 4
    for level in rig.delays.levels[:4]:
        assert level.next_offset == total // 4
    bodies = [int(body[1:]) for body in rig.delivered()]
    assert len(set(bodies)) == total == len(bodies)
    for number in range(4):  # in order within each level
        of_level = [body for body in bodies if (body - 1) % 4 == number]
        assert of_level == sorted(of_level)
    await rig.close()


# --- stops and kills -----------------------------------------------------------------------------------


async def test_a_restart_loses_nothing_and_brings_nothing_early_or_twice(tmp_path: Path) -> None:
    rig = DelayRig(tmp_path)
    await rig.open()
    bodies = await rig.send(1, 2, 3, 2)
    await rig.clock.advance(1)
    await rig.close()
    saved = json.loads((tmp_path / "config" / "delayOffset.json").read_text())
    assert saved["offsetTable"]["1"] == 1
    assert saved["offsetTable"]["2"] == 0
    await rig.clock.advance(3.999)
    await rig.open()
    assert rig.delivered() == bodies[:1]
    await rig.clock.advance(0.001)
    assert rig.delivered() == [bodies[0], bodies[1], bodies[3]]
    await rig.close()
    rig.clock.step_wall(60_000)
    await rig.open()
    assert rig.delivered() == [bodies[0], bodies[1], bodies[3], bodies[2]]
    await rig.close()


async def test_progress_is_saved_every_ten_seconds(rig: DelayRig) -> None:
    path = rig.path / "config" / "delayOffset.json"
    await rig.send(1)
    await rig.clock.advance(9.9)
    assert not path.exists()
    await rig.clock.advance(0.1)
    await until(path.exists)
    assert json.loads(path.read_text())["offsetTable"] == {"1": 1}


async def test_after_a_kill_the_marks_know_what_was_delivered(tmp_path: Path) -> None:
    rig = DelayRig(tmp_path)
    await rig.open()
    bodies = await rig.send(1, 1, 2)
    await rig.clock.advance(1)
    await rig.die()
    assert not (tmp_path / "config" / "delayOffset.json").exists()
    await rig.open()
    await rig.clock.advance(4)
    assert rig.delivered() == bodies
    await rig.close()


async def test_without_our_marks_a_kill_brings_messages_twice_from_what_was_saved(tmp_path: Path) -> None:
    rig = DelayRig(tmp_path)
    await rig.open()
    bodies = await rig.send(1, 1)
    await rig.clock.advance(1)
    await rig.die()
    (tmp_path / delay_marks.NAME).unlink()
    await rig.open()
    assert rig.delivered() == bodies * 2
    await rig.close()


@pytest.mark.parametrize("way", ["later", "other", "garbage", "short"])
async def test_a_mark_that_the_log_does_not_prove_is_not_believed(tmp_path: Path, way: str) -> None:
    rig = DelayRig(tmp_path)
    await rig.open()
    bodies = await rig.send(1, 2, 2)
    await rig.clock.advance(1)
    places = [entry[0] for entry in SIMPLE.each(rig.store.consume_queues.queue(SCHEDULE_TOPIC, 1).read(0, 2))]
    end = rig.store.log.max_offset
    await rig.die()
    marks = delay_marks.DelayNotes(rig.store.files, tmp_path)
    marks.open()
    # As if the power failed: the mark reached the disk, the delivered copy did not.
    at = {"later": end, "other": places[1], "garbage": 17}.get(way, end)
    marks.note(2, delay_marks.DelayNote(1, places[0], at))
    await marks.close()
    if way == "short":
        (tmp_path / delay_marks.NAME).write_bytes(b"\x01" * 50)
    await rig.open()
    await rig.clock.advance(4)
    twice = bodies[:1] if way == "short" else []
    assert sorted(rig.delivered()) == sorted(bodies + twice)
    await rig.close()


async def test_a_mark_that_was_half_written_leaves_the_one_before(tmp_path: Path) -> None:
    rig = DelayRig(tmp_path)
    await rig.open()
    bodies = []
    for _ in range(4):
        bodies += await rig.send(1)
        await rig.clock.advance(1)
    await rig.die()
    path = tmp_path / delay_marks.NAME
    data = bytearray(path.read_bytes())
    newest = max((0, 1), key=lambda slot: data[slot * delay_marks.SLOT_BYTES + 7])
    data[newest * delay_marks.SLOT_BYTES + 20] ^= 1
    path.write_bytes(data)
    await rig.open()
    assert rig.delivered() == [*bodies, bodies[-1]]
    await rig.die()
    await rig.open()
    assert rig.delivered() == [*bodies, bodies[-1]]
    await rig.close()


async def test_what_is_saved_is_never_ahead_of_the_flushed_log(tmp_path: Path) -> None:
    files = FaultyFiles()
    rig = DelayRig(tmp_path, files=files, flush_interval_ms=10_000_000)
    await rig.open()
    await rig.send(1)
    await rig.clock.advance(1)
    end = rig.store.progress.appended
    assert rig.store.progress.flushed < end
    await rig.delays._save()
    assert rig.store.progress.flushed >= end
    await rig.close()


# --- clocks --------------------------------------------------------------------------------------------


async def test_a_clock_set_forwards_is_noticed_within_a_tenth_of_a_second(rig: DelayRig) -> None:
    bodies = await rig.send(18)
    rig.clock.step_wall(7_200_000)
    await rig.clock.advance(0.1)
    assert rig.delivered() == bodies


@pytest.mark.parametrize("step_ms", [50, 1000, 3_600_000, 90_000_000])
async def test_a_clock_set_back_makes_nothing_early_and_nothing_late(rig: DelayRig, step_ms: int) -> None:
    """RocketMQ delivers at once what is due further ahead than its delay."""
    before = await rig.send(5)  # one minute
    await rig.clock.advance(20)
    rig.clock.step_wall(-step_ms)
    after = await rig.send(5)
    await rig.clock.advance(39.9)
    assert rig.delivered() == []
    await rig.clock.advance(0.2)  # a thousandth of the delay is how well it is remembered
    assert rig.delivered() == before
    await rig.clock.advance(19.8)
    assert rig.delivered() == before
    await rig.clock.advance(0.2)
    assert rig.delivered() == before + after


async def test_after_a_start_a_due_time_further_than_the_delay_counts_as_now(tmp_path: Path) -> None:
    rig = DelayRig(tmp_path)
    await rig.open()
    bodies = await rig.send(2)
    await rig.close()
    rig.clock.step_wall(-3_600_000)
    await rig.open()
    assert rig.delivered() == bodies
    await rig.close()


async def test_a_level_that_became_shorter(tmp_path: Path) -> None:
    rig = DelayRig(tmp_path, delay_levels="1h 2h")
    await rig.open()
    bodies = await rig.send(1, 2)
    await rig.reopen(delay_levels="1s 2h")
    assert rig.delivered() == bodies[:1]
    assert rig.delays.levels[1].due_ms == rig.clock.wall_ms() + 7_200_000
    await rig.close()


async def test_messages_of_a_level_that_is_gone_wait_and_it_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rig = DelayRig(tmp_path, delay_levels="1s 2s")
    await rig.open()
    bodies = await rig.send(1, 2)
    await rig.reopen(delay_levels="1s")
    assert "delay_level_gone level=2 waiting=1" in caplog.text
    await rig.clock.advance(10)
    assert rig.delivered() == bodies[:1]
    await rig.reopen(delay_levels="1s 2s")
    assert rig.delivered() == bodies
    await rig.close()


async def test_what_is_remembered_of_parking_is_bounded(rig: DelayRig) -> None:
    level = rig.delays.levels[0]
    for _ in range(50):
        await rig.send(*[1] * 20)
        await rig.clock.advance(0.1)
    assert len(level.parked) <= 1002
    await rig.clock.advance(1)
    assert len(rig.delivered()) == 1000
    assert len(level.parked) == 1


# --- trouble -------------------------------------------------------------------------------------------


async def test_while_nothing_can_be_stored_it_is_tried_again(rig: DelayRig) -> None:
    bodies = await rig.send(1, 1)
    rig.store.state.set(Obstacle.DISK_FULL, "for the test")
    await rig.clock.advance(1.25)
    assert rig.delivered() == []
    assert rig.delays.levels[0].retry.times == 2  # at 1.0 and 1.1 s; then at 1.3
    rig.store.state.clear(Obstacle.DISK_FULL)
    await rig.clock.advance(0.06)
    assert rig.delivered() == bodies
    assert rig.delays.levels[0].retry.times == 0


async def test_a_write_that_fails_is_repeated_from_the_same_message(tmp_path: Path) -> None:
    files = FaultyFiles()
    rig = DelayRig(tmp_path, files=files)
    await rig.open()
    bodies = await rig.send(1, 1, 1)
    write = rig.store.log.segments.append
    failures = 2

    def append(data: bytes) -> int:
        nonlocal failures
        if failures:
            failures -= 1
            raise DiskFull("no space, says the test")
        return write(data)

    rig.store.log.segments.append = append  # type: ignore[method-assign,assignment]
    await rig.clock.advance(1.25)
    assert rig.delivered() == []
    await rig.clock.advance(0.06)
    assert rig.delivered() == bodies
    await rig.close()


async def test_what_cannot_be_restored_becomes_a_dead_letter(rig: DelayRig) -> None:
    log = rig.store.log

    def put(properties: dict[str, str]) -> None:
        cursor = log.cursor(SCHEDULE_TOPIC, 0)
        log.append(cursor, b"bad", pack(properties), born_timestamp=1, born_host=BORN_HOST)

    (first,) = await rig.send(1)
    put({"DELAY": "1"})
    put({"DELAY": "1", "REAL_TOPIC": "T", "REAL_QID": "x"})
    put({"DELAY": "1", "REAL_TOPIC": HALF_TOPIC, "REAL_QID": "0"})
    put({"DELAY": "1", "REAL_TOPIC": "../T", "REAL_QID": "0"})
    put({"DELAY": "1", "REAL_TOPIC": "T", "REAL_QID": "-4"})
    await rig.intake.written()
    queue = rig.store.consume_queues.queue(SCHEDULE_TOPIC, 0)
    hole_at = queue.max_physical
    queue.extend(SIMPLE.pack(hole_at, 0, HOLE_TAGS) * 2, queue.next_offset)
    log.forget_cursors(SCHEDULE_TOPIC)
    (last,) = await rig.send(1)
    await rig.clock.advance(1)
    assert rig.delivered() == [first, last]
    assert rig.delays.passed_over == 2  # the holes
    dead = rig.stored("%DLQ%kerolox_undelivered", 0)
    assert [message.body for message in dead] == [b"bad"] * 5
    assert [message.properties.get("RETRY_TOPIC") for message in dead] == [None, "T", HALF_TOPIC, "../T", "T"]
    assert all(message.properties["KEROLOX_RETRY_REASON"] for message in dead)
    assert rig.delays.levels[0].next_offset == queue.max_offset


async def test_saved_progress_outside_of_the_queue_is_corrected(tmp_path: Path) -> None:
    rig = DelayRig(tmp_path)
    await rig.open()
    await rig.send(1, 1)
    await rig.clock.advance(1)
    await rig.close()
    path = tmp_path / "config" / "delayOffset.json"
    path.write_text('{"offsetTable":{1:500}}')  # as another broker may have left it
    await rig.open()
    assert (rig.delays.levels[0].next_offset, rig.offsets.offsets[1]) == (2, 2)
    bodies = await rig.send(1)
    await rig.clock.advance(1)
    assert rig.delivered()[2:] == bodies
    await rig.close()


async def test_a_broker_that_follows_delivers_nothing(tmp_path: Path) -> None:
    rig = DelayRig(tmp_path)
    await rig.open()
    bodies = await rig.send(1)
    await rig.close()
    rig.clock.step_wall(10_000)
    await rig.open(follows=True)
    await rig.clock.advance(20)
    assert rig.delivered() == []
    await rig.close()
    await rig.open()
    assert rig.delivered() == bodies
    await rig.close()


async def test_synchronous_flush(tmp_path: Path) -> None:
    rig = DelayRig(tmp_path, flush_mode=FlushMode.SYNC)
    await rig.open()
    bodies = await rig.send(1)
    await rig.store.acks.safe(rig.store.log.max_offset)
    await rig.clock.advance(1)
    await rig.store.flusher.flush_all()
    await rig.until(lambda: rig.delivered() == bodies)
    await rig.close()


def test_restoring_needs_nothing_but_the_record() -> None:
    message = StoredMessage(
        SCHEDULE_TOPIC, b"body", 2, 0, 0, pack({"REAL_TOPIC": "T", "REAL_QID": "3", "DELAY": "3"})
    )
    assert (restore(message).topic, restore(message).queue_id) == ("T", 3)


# --- in a broker -----------------------------------------------------------------------------------------


async def test_a_delayed_message_through_a_broker(tmp_path: Path) -> None:
    async with running_broker(directory=tmp_path) as running, Dialer() as dialer:
        talk = Talk(dialer, running)
        answer = await talk.send("T", properties={"DELAY": "1"}, queue_id=2)
        assert (answer.code, answer.fields["queueId"], answer.fields["queueOffset"]) == (0, "2", "0")
        broker = running.broker
        assert broker.figures.stats.puts[SCHEDULE_TOPIC].messages == 1
        assert "T" not in broker.figures.stats.puts
        held = asyncio.create_task(talk.pull("T", 2, 0, sys_flag=PULL_SUBSCRIPTION | PULL_SUSPEND))
        info = await dialer.call(talk.address, RequestCode.GET_BROKER_RUNTIME_INFO, None)
        assert json.loads(info.body)["table"]["scheduleMessageOffset_1"] == "0,1"
        page = await broker.figures.metrics.metrics()
        assert 'level="1"} 1' in page.text
        await until(lambda: broker.later.delays.delivered == 1)
        answer = await held
        assert answer.code == 0
        (message,) = await talk.messages("T", 2)
        queue = broker.store.consume_queues.queue(SCHEDULE_TOPIC, 0)
        assert message.store_timestamp >= queue.entry(0)[2]  # type: ignore[index]
        assert broker.figures.stats.puts["T"].messages == 1
        assert broker.figures.stats.gets[SCHEDULE_TOPIC, "SCHEDULE_CONSUMER"].messages == 1
        assert broker.figures.stats.queue_gets[SCHEDULE_TOPIC, 0, "SCHEDULE_CONSUMER"].messages == 1
        info = await dialer.call(talk.address, RequestCode.GET_BROKER_RUNTIME_INFO, None)
        assert json.loads(info.body)["table"]["scheduleMessageOffset_1"] == "1,1"


async def test_a_level_that_is_no_number_is_answered(tmp_path: Path) -> None:
    async with running_broker(directory=tmp_path) as running, Dialer() as dialer:
        answer = await Talk(dialer, running).send("T", properties={"DELAY": "abc"})
        assert answer.code == 1
        assert "DELAY" in (answer.remark or "")
