"""Any-time delays over real sockets, with a clock that tests move."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from kerolox.broker.later.timer_sends import make_handle, read_handle, rounded
from kerolox.metric_text import MetricsExporter
from kerolox.net.dialer import Dialer
from kerolox.protocol.batch import encode_batch
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.headers.send import RecallRequest
from kerolox.protocol.message import StoredMessage
from kerolox.protocol.properties import pack, unpack
from kerolox.protocol.record import decode_record
from kerolox.store.errors import StoreError
from kerolox.store.options import FlushMode
from kerolox.store.state import Obstacle
from kerolox.store.timer.checkpoint import decode_leader
from kerolox.testing.broker import running_broker
from kerolox.testing.clock import ManualClock
from kerolox.testing.faults import FaultyFiles

from .talk import Talk, until

NOW_MS = 1_700_000_000_000
TIMER = "rmq_sys_wheel_timer"
UNIQUE = "7F000001162E18B4AAC28E2F6D2A0000"
SMALL = {"timer_log_file_bytes": 52 * 100 + 16, "recall": True}


class Timing(Talk):
    """A client, and the clock of the broker."""

    clock: ManualClock

    @property
    def timers(self) -> Any:
        return self.running.broker.later.timers

    async def entered(self) -> None:
        await until(lambda: not self.timers.arrivals.behind)

    async def pass_s(self, seconds: float, *, step: bool = False) -> None:
        """Let time pass. A step sets the wall clock, and lets the timer notice."""
        await self.entered()
        if step:
            self.clock.step_wall(int(seconds * 1000))
            seconds = 1.001
        await self.clock.advance(seconds)

    async def pass_step_by_step(self, seconds: int) -> None:
        """The same, a second at a time, each time until the timer's threads have done what was due."""
        for _ in range(seconds):
            await self.pass_s(1)
            await until(lambda: self.timers.read_ms >= self.clock.wall_ms() // 1000 * 1000)

    async def bodies(self, topic: str = "T", count: int | None = None) -> list[bytes]:
        """What is in the topic, once it is that many."""
        if count is not None:
            await until(lambda: self.running.broker.store.queues.max_offset(topic, 0) >= count)
        return [message.body for message in await self.stored(topic)]

    async def stored(self, topic: str = "T") -> list[StoredMessage]:
        store = self.running.broker.store
        found = []
        for offset in range(store.queues.min_offset(topic, 0), store.queues.max_offset(topic, 0)):
            queue = store.queues.find(topic, 0)
            assert queue is not None
            entry = queue.entry(offset)
            assert entry is not None
            found.append(decode_record(store.log.read(entry[0], entry[1])))
        return found


@asynccontextmanager
async def timing(tmp_path: Path, clock: ManualClock | None = None, **options: Any) -> AsyncIterator[Timing]:
    clock = clock or ManualClock(NOW_MS)
    async with (
        running_broker(directory=tmp_path, clock=clock, **{**SMALL, **options}) as running,
        Dialer() as dialer,
    ):
        talk = Timing(dialer, running)
        talk.clock = clock
        yield talk


@pytest.fixture
async def talk(tmp_path: Path) -> AsyncIterator[Timing]:
    async with timing(tmp_path) as ours:
        yield ours


def after_s(seconds: float, **more: str) -> dict[str, str]:
    return {"TIMER_DELAY_MS": str(int(seconds * 1000)), **more}


# --- what is parked, refused, passed -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "out_ms"),
    [
        ({"TIMER_DELAY_SEC": "10"}, NOW_MS + 9_000),  # an exact multiple falls a whole step
        ({"TIMER_DELAY_MS": "10001"}, NOW_MS + 10_000),
        ({"TIMER_DELIVER_MS": str(NOW_MS + 10_999)}, NOW_MS + 10_000),
        ({"TIMER_DELAY_SEC": "2", "TIMER_DELAY_MS": "9001", "TIMER_DELIVER_MS": "x"}, NOW_MS + 1_000),
        ({"TIMER_DELAY_SEC": "259200"}, NOW_MS + 259_199_000),
    ],
)
async def test_a_message_is_parked_until_its_time(talk: Timing, asked: dict[str, str], out_ms: int) -> None:
    answer = await talk.send("T", b"later", {"UNIQ_KEY": UNIQUE, **asked}, queue_id=0, flag=3)
    assert answer.code == 0
    assert answer.fields["recallHandle"] == make_handle("T", "broker-a", out_ms + 1, UNIQUE)
    assert await talk.stored("T") == []
    (message,) = await talk.stored(TIMER)
    assert (message.body, message.queue_id, message.flag) == (b"later", 0, 3)
    properties = unpack(message.packed_properties)
    assert properties["TIMER_OUT_MS"] == str(out_ms)
    assert (properties["REAL_TOPIC"], properties["REAL_QID"]) == ("T", "0")
    assert asked.items() <= properties.items()
    await talk.entered()
    assert talk.timers.waiting_at(out_ms) == 1 or out_ms - NOW_MS > 172_800_000


@pytest.mark.parametrize(
    "asked",
    [
        {"TIMER_DELIVER_MS": str(NOW_MS)},
        {"TIMER_DELAY_SEC": "0"},
        {"TIMER_DELAY_SEC": "-5"},
        {"TIMER_DELAY_SEC": str(2**63 - 1)},  # wraps around to a second ago
        {"TIMER_OUT_MS": str(NOW_MS + 5000), "TIMER_DELAY_SEC": "5"},
    ],
)
async def test_what_is_due_already_is_stored_at_once(talk: Timing, asked: dict[str, str]) -> None:
    answer = await talk.send("T", b"now", asked)
    assert answer.code == 0
    assert "recallHandle" not in answer.fields
    assert await talk.bodies("T") == [b"now"]


@pytest.mark.parametrize(
    "asked",
    [
        {"TIMER_DELAY_SEC": "259201"},
        {"TIMER_DELIVER_MS": str(2**63 - 1)},
        {"TIMER_DELAY_MS": "soon"},
        {"TIMER_DELAY_MS": "1 "},
        {"TIMER_DELIVER_MS": str(2**63)},
        {"TIMER_DELIVER_MS": "1", "TIMER_DEL_UNIQKEY": "T+1"},
    ],
)
async def test_a_time_that_cannot_be_is_refused(talk: Timing, asked: dict[str, str]) -> None:
    answer = await talk.send("T", b"x", asked)
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert answer.remark is not None
    assert answer.remark.startswith("timer message illegal, the delay time should not be bigger than the max")
    assert "259200000ms" in answer.remark


async def test_switched_off_timers_are_refused_with_rocketmqs_words(tmp_path: Path) -> None:
    async with timing(tmp_path, timer_wheel=False) as talk:
        answer = await talk.send("T", b"x", after_s(5))
        assert (answer.code, answer.remark) == (
            ResponseCode.SYSTEM_ERROR,
            "accurate timer message is not enabled, timerWheelEnable is false",
        )
        asked = await talk.dialer.call(talk.address, RequestCode.GET_TIMER_CHECK_POINT)
        assert (asked.code, asked.remark) == (1, "The checkpoint is null")


async def test_too_many_for_one_moment_are_refused(tmp_path: Path) -> None:
    async with timing(tmp_path, timer_slot_messages_max=2) as talk:
        codes = []
        for _ in range(12):
            answer = await talk.send("T", b"x", after_s(5.5))
            codes.append(answer.code)
            await talk.entered()
        assert codes[:3] == [0, 0, 0]
        assert codes[-1] == ResponseCode.SYSTEM_ERROR
        assert "flow control, max num limit is 4" in (answer.remark or "")


async def test_a_delay_level_wins(talk: Timing) -> None:
    await talk.send("T", b"x", {"DELAY": "3", **after_s(60)})
    assert await talk.stored(TIMER) == []


def test_rounding() -> None:
    assert [rounded(t, 1000) for t in (1, 999, 1000, 1001, 2000)] == [0, 0, 0, 1000, 1000]
    assert rounded(250, 100) == 200


@pytest.mark.parametrize("text", ["", "v1", "!!!", "djEgYSBi", "é", "djIgVCBiIDEgaw=="])
def test_what_is_no_handle_reads_as_none(text: str) -> None:
    assert read_handle(text) is None


def test_handles_are_rocketmqs() -> None:
    handle = make_handle("T", "b", 1, "k")
    assert handle == "djEgVCBiIDEgaw=="
    assert read_handle(handle) == read_handle(handle.rstrip("=")) == ("T", "b", "1", "k")


# --- what is delivered, when -------------------------------------------------------------------------


async def test_it_comes_when_its_moment_has_passed_and_not_before(talk: Timing) -> None:
    await talk.send("T", b"later", after_s(10, colour="blue"), reconsume_times=2, flag=9)
    before = (await talk.stored(TIMER))[0]
    await talk.pass_s(9.98)
    assert await talk.bodies() == []
    await talk.pass_s(0.03)
    assert await talk.bodies(count=1) == [b"later"]
    (message,) = await talk.stored()
    properties = unpack(message.packed_properties)
    expected = unpack(before.packed_properties) | {
        "TIMER_ENQUEUE_MS": str(NOW_MS),
        "TIMER_DEQUEUE_MS": properties["TIMER_DEQUEUE_MS"],
    }
    assert properties == expected
    assert 0 <= int(properties["TIMER_DEQUEUE_MS"]) - (NOW_MS + 10_000) < 100
    assert (message.flag, message.reconsume_times, message.born_timestamp) == (9, 2, before.born_timestamp)
    assert (message.born_host, message.store_host) == (before.born_host, before.store_host)
    await talk.pass_s(30)
    assert await talk.bodies() == [b"later"]


async def test_many_of_one_moment_come_in_order_in_files_that_fill(talk: Timing) -> None:
    bodies = [str(number).encode() for number in range(350)]  # four files of the timer log
    for body in bodies:
        await talk.send("T", body, after_s(20))
    await talk.pass_s(21)
    assert await talk.bodies(count=350) == bodies
    assert talk.timers.files.wheel.waiting == 0
    assert len(talk.timers.files.log.segments.all) == 4


async def test_finer_moments(tmp_path: Path) -> None:
    async with timing(tmp_path, timer_precision_ms=100) as talk:
        await talk.send("T", b"a", after_s(0.35))
        await talk.pass_s(0.38)
        assert await talk.bodies() == []
        await talk.pass_s(0.03)
        assert await talk.bodies(count=1) == [b"a"]


async def test_a_message_due_before_it_is_entered_is_delivered_at_once(tmp_path: Path) -> None:
    async with timing(tmp_path, timer_stop_enqueue=True) as talk:
        await talk.send("T", b"late", after_s(1.5))
        await talk.clock.advance(5)
        assert await talk.bodies() == []
        talk.running.broker.options.timer_stop_enqueue = False
        await talk.clock.advance(1.1)
        assert await talk.bodies(count=1) == [b"late"]
        (message,) = await talk.stored()
        assert unpack(message.packed_properties)["TIMER_ENQUEUE_MS"] == str(2**63 - 1)


async def test_three_days_are_reached_by_rolling(talk: Timing) -> None:
    await talk.send("T", b"far", after_s(259_200))
    await talk.pass_s(172_800 - 2, step=True)
    assert len(await talk.stored(TIMER)) == 1
    await talk.pass_s(3)
    await until(lambda: talk.running.broker.store.queues.max_offset(TIMER, 0) == 2)
    first, second = await talk.stored(TIMER)
    properties = unpack(second.packed_properties)
    assert properties["TIMER_ROLL_TIMES"] == "1"
    assert properties["TIMER_OUT_MS"] == unpack(first.packed_properties)["TIMER_OUT_MS"]
    await talk.pass_s(86_400 - 10, step=True)
    assert await talk.bodies() == []
    await talk.pass_s(10)
    assert await talk.bodies(count=1) == [b"far"]
    (message,) = await talk.stored()
    assert unpack(message.packed_properties)["TIMER_ROLL_TIMES"] == "1"
    assert talk.timers.counts.counts == {"T": 0}


async def test_a_short_window_rolls_often(tmp_path: Path) -> None:
    async with timing(tmp_path, timer_roll_slots=10) as talk:
        await talk.send("T", b"far", after_s(64.5))
        await talk.pass_step_by_step(63)
        assert await talk.bodies() == []
        await talk.pass_s(3)
        assert await talk.bodies(count=1) == [b"far"]
        times = int(unpack((await talk.stored())[0].packed_properties)["TIMER_ROLL_TIMES"])
        assert times >= 5


# --- clocks that are set -----------------------------------------------------------------------------


async def test_a_clock_set_forwards_is_noticed_within_a_second(talk: Timing) -> None:
    await talk.send("T", b"x", after_s(3600))
    await talk.pass_s(3601, step=True)
    assert await talk.bodies(count=1) == [b"x"]


async def test_a_clock_set_back_delays_what_waits_and_delivers_nothing_twice(tmp_path: Path) -> None:
    clock = ManualClock(NOW_MS)
    async with timing(tmp_path, clock) as talk:
        await talk.send("T", b"first", after_s(5))
        await talk.pass_s(6.5)
        assert await talk.bodies(count=1) == [b"first"]
        await talk.send("T", b"waits", after_s(10))  # due at 16.5
        await talk.entered()
        clock.step_wall(-6_000)
        await talk.send("T", b"soon", after_s(2))  # due at 2.5, a moment that has been
        await talk.pass_s(1.9)
        assert await talk.bodies() == [b"first"]
        await talk.pass_s(1.2)
        assert await talk.bodies(count=2) == [b"first", b"soon"]
        await talk.timers.flush()
    async with timing(tmp_path, clock) as talk:
        await talk.pass_s(11)
        assert await talk.bodies() == [b"first", b"soon"]
        await talk.pass_s(3)
        assert await talk.bodies(count=3) == [b"first", b"soon", b"waits"]


# --- recall ------------------------------------------------------------------------------------------


async def recall(talk: Talk, handle: str, topic: str = "T") -> Any:
    header = RecallRequest(topic=topic, recall_handle=handle, producer_group="producers")
    return await talk.dialer.call(talk.address, RequestCode.RECALL_MESSAGE, header)


async def test_a_recalled_message_does_not_come_others_do(talk: Timing) -> None:
    handles = {}
    for number in range(3):
        key = f"{UNIQUE[:-1]}{number}"
        answer = await talk.send("T", key.encode(), {"UNIQ_KEY": key, **after_s(10)})
        handles[key] = answer.fields["recallHandle"]
    key = f"{UNIQUE[:-1]}1"
    answer = await recall(talk, handles[key])
    assert (answer.code, answer.fields) == (0, {"msgId": key, "MSG_REGION": "DefaultRegion"})
    await talk.entered()
    assert talk.timers.files.wheel.waiting == 2
    await talk.pass_s(12)
    assert await talk.bodies(count=2) == [f"{UNIQUE[:-1]}{number}".encode() for number in (0, 2)]
    assert talk.timers.counts.counts == {"T": 0}
    late = await recall(talk, handles[key])
    assert (late.code, late.remark) == (604, "recall failed, timestamp invalid")


async def test_a_recall_of_a_rolled_message_is_rolled_too(tmp_path: Path) -> None:
    async with timing(tmp_path, timer_roll_slots=20) as talk:
        answer = await talk.send("T", b"gone", {"UNIQ_KEY": UNIQUE, **after_s(70)})
        await talk.send("T", b"stays", after_s(70))
        await talk.pass_s(5)
        assert (await recall(talk, answer.fields["recallHandle"])).code == 0
        await talk.pass_step_by_step(70)
        assert await talk.bodies(count=1) == [b"stays"]


async def test_a_recall_of_what_was_never_sent_does_nothing(talk: Timing) -> None:
    await talk.send("T", b"stays", after_s(10))
    assert (await recall(talk, make_handle("T", "broker-a", NOW_MS + 9_001, "other"))).code == 0
    await talk.pass_s(12)
    assert await talk.bodies(count=1) == [b"stays"]
    assert talk.timers.counts.counts == {"T": 0}


async def test_a_message_takes_back_none_of_another_topic(talk: Timing) -> None:
    """Who may publish to U may not cancel what waits for T."""
    await talk.send("T", b"stays", {"UNIQ_KEY": UNIQUE, **after_s(10)})
    await talk.send("U", b"x")
    for key in (f"T+{UNIQUE}", UNIQUE, f"+T+{UNIQUE}"):
        answer = await talk.send("U", b"0", {"TIMER_DEL_UNIQKEY": key, **after_s(10)})
        assert (answer.code, answer.fields) == (ResponseCode.NO_PERMISSION, {})
        assert "topic not match" in (answer.remark or "")
    await talk.pass_s(12)
    assert await talk.bodies(count=1) == [b"stays"]


async def test_a_message_takes_back_nothing_while_recalls_are_off(tmp_path: Path) -> None:
    async with timing(tmp_path, recall=False) as talk:
        await talk.send("T", b"stays", {"UNIQ_KEY": UNIQUE, **after_s(10)})
        answer = await talk.send("T", b"0", {"TIMER_DEL_UNIQKEY": f"T+{UNIQUE}", **after_s(10)})
        assert answer.code == ResponseCode.NO_PERMISSION
        assert "recallMessageEnable is false" in (answer.remark or "")
        await talk.pass_s(12)
        assert await talk.bodies(count=1) == [b"stays"]


@pytest.mark.parametrize("late", [False, True])
async def test_a_stored_deletion_of_another_topic_is_ignored(talk: Timing, late: bool) -> None:
    """As a broker of another kind may have stored it."""
    out_ms = NOW_MS + (-1000 if late else 9000)
    goal = {"TIMER_OUT_MS": str(out_ms), "REAL_QID": "0", "UNIQ_KEY": UNIQUE}
    store = talk.running.broker.store
    await talk.send("T", b"first")
    for topic, more in (("T", {}), ("U", {"TIMER_DEL_UNIQKEY": f"T+{UNIQUE}"})):
        await store.put(TIMER, 0, b"stays", pack({**goal, **more, "REAL_TOPIC": topic}))
    await talk.pass_s(12)
    assert await talk.bodies(count=2) == [b"first", b"stays"]


async def test_recalls_that_are_refused(talk: Timing) -> None:
    await talk.send("T", b"x")
    good = make_handle("T", "broker-a", NOW_MS + 9_001, UNIQUE)
    options = talk.running.broker.options
    for handle, topic, code, remark in (
        (good, "U", ResponseCode.TOPIC_NOT_EXIST, "recall failed, the topic[U] not exist"),
        ("xx", "T", 604, "recall handle is invalid"),
        (make_handle("V", "broker-a", 1, UNIQUE), "T", 604, "recall failed, topic not match"),
        (
            make_handle("T", "other", NOW_MS + 9, UNIQUE),
            "T",
            604,
            "recall failed, broker service not available",
        ),
        (make_handle("T", "broker-a", NOW_MS, UNIQUE), "T", 604, "recall failed, timestamp invalid"),
        (
            make_handle("T", "broker-a", NOW_MS + 259_200_000, "k"),
            "T",
            604,
            "recall failed, timestamp invalid",
        ),
    ):
        answer = await recall(talk, handle, topic)
        assert (answer.code, answer.remark) == (code, remark)
    options.permission, options.recall_unwritable = 4, False
    assert (await recall(talk, good)).code == ResponseCode.SERVICE_NOT_AVAILABLE
    options.recall = False
    answer = await recall(talk, good)
    assert (answer.code, answer.remark) == (16, "recall failed, operation is forbidden")


# --- restarts, obstacles -----------------------------------------------------------------------------


async def test_what_waits_survives_restarts_and_downtime(tmp_path: Path) -> None:
    clock = ManualClock(NOW_MS)
    async with timing(tmp_path, clock) as talk:
        for number in range(5):
            await talk.send("T", str(number).encode(), after_s(10 * (number + 1)))
        await talk.pass_s(12)
        assert await talk.bodies(count=1) == [b"0"]
    clock.step_wall(20_000)
    async with timing(tmp_path, clock) as talk:
        await talk.clock.advance(0.1)
        assert await talk.bodies(count=3) == [b"0", b"1", b"2"]
        assert talk.timers.files.wheel.waiting == 2
        await talk.pass_s(20)
        assert await talk.bodies(count=5) == [str(number).encode() for number in range(5)]
    async with timing(tmp_path, clock) as talk:
        await talk.pass_s(5)
        assert await talk.bodies() == [str(number).encode() for number in range(5)]


async def test_a_moment_half_delivered_at_a_stop_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kerolox.broker.later.timers.DELIVER_MAX", 10)
    monkeypatch.setattr("kerolox.broker.later.timer_delivery.DELIVER_MAX", 10)
    clock = ManualClock(NOW_MS)
    bodies = [str(number).encode() for number in range(60)]
    async with timing(tmp_path, clock) as talk:
        for body in bodies:
            await talk.send("T", body, after_s(5))
        await talk.entered()
        timers = talk.timers
        put = timers.delivery._deliver

        async def put_twice(*args: Any, **more: Any) -> None:
            await put(*args, **more)
            if timers.delivery.delivered.total() == 20:
                timers._closing.set()

        monkeypatch.setattr(timers.delivery, "_deliver", put_twice)
        await talk.pass_s(6)
        assert await talk.bodies(count=20) == bodies[:20]
    async with timing(tmp_path, clock) as talk:
        await talk.pass_s(1)
        assert await talk.bodies(count=60) == bodies


async def test_an_error_in_the_middle_of_a_moment_delivers_nothing_twice(
    talk: Timing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kerolox.broker.later.timers.DELIVER_MAX", 10)
    monkeypatch.setattr("kerolox.broker.later.timer_delivery.DELIVER_MAX", 10)
    bodies = [str(number).encode() for number in range(60)]
    for body in bodies:
        await talk.send("T", body, after_s(5))
    await talk.entered()
    read, calls = talk.timers.files.log.units, 0

    def failing(places: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls % 3 == 0:
            raise StoreError("a cable came loose")
        return read(places)

    monkeypatch.setattr(talk.timers.files.log, "units", failing)
    await talk.pass_s(6)
    # A failure is waited out, and that takes time of this clock.
    while len(await talk.bodies()) < 60:
        await talk.pass_s(1)
    assert await talk.bodies() == bodies


async def test_the_timer_waits_until_the_store_takes_messages(talk: Timing) -> None:
    await talk.send("T", b"x", after_s(3))
    await talk.entered()
    state = talk.running.broker.store.state
    state.set(Obstacle.CUTTING, "test")
    await talk.clock.advance(40)
    assert await talk.bodies() == []
    state.clear(Obstacle.CUTTING)
    await talk.clock.advance(1)
    assert await talk.bodies(count=1) == [b"x"]


async def test_a_follower_enters_what_its_leader_has_and_delivers_nothing(talk: Timing) -> None:
    leadership, timers = talk.running.broker.leadership, talk.timers
    await talk.send("T", b"x", after_s(3))
    await talk.entered()
    await timers.flush()
    read_ms, offset, _ = decode_leader(timers.files.checkpoint.encode())
    assert offset == 1
    await leadership.follow("test")
    timers.heard_leader(timers.files.checkpoint.encode())
    await talk.clock.advance(10)
    assert await talk.bodies() == []
    await leadership.lead()
    await talk.clock.advance(1.1)
    assert await talk.bodies(count=1) == [b"x"]
    assert read_ms <= NOW_MS + 3_000


async def test_a_follower_passes_over_what_its_leader_delivered(talk: Timing) -> None:
    leadership, timers = talk.running.broker.leadership, talk.timers
    await talk.send("T", b"x", after_s(3))
    await talk.entered()
    await leadership.follow("test")
    checkpoint = timers.files.checkpoint
    checkpoint.read_ms, checkpoint.leader_queue_offset = NOW_MS + 10_000, 1
    timers.heard_leader(checkpoint.encode())
    assert timers.files.wheel.waiting == 0
    await leadership.lead()
    await talk.clock.advance(20)
    assert await talk.bodies() == []


@pytest.mark.parametrize("seed", [None, 1, 2, 3, 4, 5])
async def test_what_waits_survives_power_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int | None
) -> None:
    """Acknowledged after a flush: then it comes, whatever of the timer's files was lost."""
    chance = random.Random(seed)
    clock = ManualClock(NOW_MS)
    expected: set[bytes] = set()
    for round_ in range(3):
        monkeypatch.setattr("kerolox.store.message_store.boot_identity", lambda: f"boot {round_}")  # noqa: B023
        disk = FaultyFiles()
        async with timing(tmp_path, clock, files=disk, flush_mode=FlushMode.SYNC) as talk:
            for number in range(30):
                body = f"{round_}-{number}".encode()
                answer = await talk.send("T", body, after_s(chance.uniform(1, 12)))
                if answer.code == 0:  # a flush that meets a moved clock is said to be slow
                    expected.add(body)
                if chance.random() < 0.3:
                    await talk.clock.advance(chance.uniform(0.1, 1.0))
            disk.read_only = True  # the old broker must not write any more
            disk.power_loss(seed, names=True)
    monkeypatch.setattr("kerolox.store.message_store.boot_identity", lambda: "boot last")
    async with timing(tmp_path, clock) as talk:
        await talk.pass_s(15)
        await until(lambda: not talk.timers.arrivals.behind and talk.timers.files.wheel.first() is None)
        found = await talk.bodies()
        assert expected <= set(found)
        assert len(expected) > 30


async def test_power_loss_repeats_only_what_was_delivered_since_the_last_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Short lives: what was delivered before the timer's files were saved, once a second, comes once."""
    clock = ManualClock(NOW_MS)
    sent: list[bytes] = []
    for life in range(5):
        monkeypatch.setattr("kerolox.store.message_store.boot_identity", lambda: f"boot {life}")  # noqa: B023
        disk = FaultyFiles()
        async with timing(tmp_path, clock, files=disk) as talk:
            for number in range(20):
                sent.append(f"{life}-{number}".encode())
                assert (await talk.send("T", sent[-1], after_s(1.5), queue_id=0)).code == 0
            await talk.pass_step_by_step(2)
            await talk.bodies(count=len(sent))
            await talk.timers.flush()  # as it does every second
            disk.read_only = True
            disk.power_loss(names=True)
    monkeypatch.setattr("kerolox.store.message_store.boot_identity", lambda: "boot last")
    async with timing(tmp_path, clock) as talk:
        await talk.pass_s(5)
        assert sorted(await talk.bodies()) == sorted(sent)


# --- figures -----------------------------------------------------------------------------------------


async def test_figures(tmp_path: Path) -> None:
    async with timing(tmp_path, metrics_exporter=MetricsExporter.PROM, metrics_port=0) as talk:
        for seconds in (3, 30, 30, 7200, 172_000):
            await talk.send("T", b"x", after_s(seconds))
        await talk.entered()
        figures = talk.running.broker.later.timer_figures.runtime_info()
        info = {name: str(value) for name, value in figures.items()}
        assert (info["timerCongestNum"], info["timerOffsetBehind"], info["timerReadBehind"]) == (
            "5",
            "0",
            "0",
        )
        assert [info[f"timerDueWithin_{bound}"] for bound in (5, 60, 300, 14_400, 86_400, 1_209_600)] == [
            "1", "2", "0", "1", "0", "1",
        ]  # fmt: skip
        page = (await talk.running.broker.figures.metrics.metrics()).text
        assert 'rocketmq_timing_messages{node_type="broker"' in page
        assert 'topic="T"} 5' in page
        assert 'timer_bound_s="60"} 2' in page
        answer = await talk.dialer.call(talk.address, RequestCode.GET_TIMER_METRICS)
        assert b'"T":{"count":5' in answer.body
        await talk.timers.flush()
        answer = await talk.dialer.call(talk.address, RequestCode.GET_TIMER_CHECK_POINT)
        assert len(answer.body) == 56
        assert decode_leader(answer.body)[1] == 5


async def test_an_idle_timer_sleeps(talk: Timing, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0
    look = talk.timers.arrivals.read

    async def counted(*args: Any) -> Any:
        nonlocal looks
        looks += 1
        return await look(*args)

    monkeypatch.setattr(talk.timers.arrivals, "read", counted)
    await talk.clock.advance(60)
    assert looks == 0
    await talk.send("T", b"x", after_s(3600))
    await talk.entered()
    looks = 0
    await talk.clock.advance(60)
    assert looks <= 62  # only to notice a clock that was set


# --- what clients may not forge ------------------------------------------------------------------------

CLOSED = (TIMER, "rmq_sys_REVIVE_LOG_DefaultCluster", "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC")


@pytest.mark.parametrize("topic", CLOSED)
async def test_topics_of_the_broker_itself_are_closed_to_clients(talk: Timing, topic: str) -> None:
    """Also on the way of plain sends, which the second one of each kind goes."""
    forged = {
        "TIMER_OUT_MS": str(NOW_MS + 5000),
        "REAL_TOPIC": "RMQ_SYS_TRANS_HALF_TOPIC",
        "REAL_QID": "77",
        "UNIQ_KEY": UNIQUE,
    }
    before = talk.running.broker.store.progress.appended
    batch = encode_batch([(0, b"x", b"")] * 3)
    for _ in range(3):
        for answer in (
            await talk.send(topic, b"x", forged),
            await talk.send(topic, b"x"),
            await talk.send_v1(topic, b"x", forged),
            await talk.send_batch(topic, batch),
        ):
            assert answer.code == ResponseCode.NO_PERMISSION
            assert answer.remark == f"Sending message to topic[{topic}] is forbidden."
    assert talk.running.broker.store.progress.appended == before
    handle = make_handle(topic, "broker-a", NOW_MS + 9_001, UNIQUE)
    assert (await recall(talk, handle, topic)).code == ResponseCode.NO_PERMISSION
    assert talk.running.broker.store.progress.appended == before


@pytest.mark.parametrize("goal", [*CLOSED, ""])
async def test_what_was_forged_before_is_not_delivered_into_closed_topics(talk: Timing, goal: str) -> None:
    """As a store may have it that took such a message once."""
    store = talk.running.broker.store
    queue = "9999999999" if not goal else "0"
    properties = pack(
        {"TIMER_OUT_MS": str(NOW_MS + 3000), "REAL_TOPIC": goal or "T", "REAL_QID": queue, "UNIQ_KEY": UNIQUE}
    )
    await talk.send("T", b"honest", after_s(4))
    await store.put(TIMER, 0, b"forged", properties)
    before = {topic: store.queues.max_offset(topic, 0) for topic in CLOSED if topic != TIMER}
    await talk.pass_s(8)
    assert await talk.bodies(count=1) == [b"honest"]
    assert {topic: store.queues.max_offset(topic, 0) for topic in before} == before
