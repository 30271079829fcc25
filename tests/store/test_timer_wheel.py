from __future__ import annotations

import os
import random
import struct
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kerolox.store.disk.files import Files
from kerolox.store.errors import WrongFileSize
from kerolox.store.timer.wheel import SLOTS, WHEEL_BYTES, Slot, TimerWheel

MOMENT = 1_700_000_000  # of a precision of a second


def flush(wheel: TimerWheel) -> None:
    wheel.write(wheel.take_changes())
    wheel.close()


def test_the_file_is_rocketmqs(tmp_path: Path) -> None:
    path = tmp_path / "timerwheel"
    wheel = TimerWheel(Files(), path)
    wheel.load(0)
    assert wheel.missing
    wheel.put(MOMENT, 52, 104, 2)
    wheel.put(MOMENT + 1, 156, 156, -1)
    flush(wheel)
    assert path.stat().st_size == WHEEL_BYTES == 38_707_200
    assert path.stat().st_blocks * 512 < 1 << 20  # only what was written has blocks
    at = MOMENT % 1_209_600 * 32
    data = path.read_bytes()
    assert data[at : at + 64] == bytes.fromhex(
        "000000006553f100 0000000000000034 0000000000000068 00000002 00000000"
        "000000006553f101 000000000000009c 000000000000009c ffffffff 00000000"
    )
    assert data[:at] == bytes(at)
    assert data[at + 64 :] == bytes(WHEEL_BYTES - at - 64)


def test_slots_come_back_those_of_the_past_do_not(tmp_path: Path) -> None:
    wheel = TimerWheel(Files(), tmp_path / "timerwheel")
    for step in range(300):
        wheel.put(MOMENT + step * 7, step, step + 1, 1)
    flush(wheel)
    again = TimerWheel(Files(), tmp_path / "timerwheel")
    again.load(MOMENT + 700)
    assert not again.missing
    assert again.waiting == 200
    assert again.first() == MOMENT + 700
    assert [moment for moment, _ in again.slots()] == [MOMENT + step * 7 for step in range(100, 300)]
    assert again.get(MOMENT + 693) is None
    assert again.get(MOMENT + 707) == Slot(101, 102, 1)
    assert again.take_changes() == []


@pytest.mark.parametrize("size", [1, WHEEL_BYTES - 1, WHEEL_BYTES + 32])
def test_another_length_is_refused_and_left_alone(tmp_path: Path, size: int) -> None:
    path = tmp_path / "timerwheel"
    path.touch()
    os.truncate(path, size)
    with pytest.raises(WrongFileSize):
        TimerWheel(Files(), path).load(0)
    assert path.stat().st_size == size


def test_an_empty_file_is_like_none(tmp_path: Path) -> None:
    path = tmp_path / "timerwheel"
    path.touch()
    wheel = TimerWheel(Files(), path)
    wheel.load(0)
    assert wheel.missing
    wheel.put(MOMENT, 0, 0, 1)
    flush(wheel)
    assert path.stat().st_size == WHEEL_BYTES


def test_garbage_is_no_slot(tmp_path: Path) -> None:
    path = tmp_path / "timerwheel"
    path.touch()
    os.truncate(path, WHEEL_BYTES)
    with path.open("r+b") as file:
        file.write(random.Random(1).randbytes(32 * 1000))
        # Of another place; and one with its units in the wrong order.
        file.seek((MOMENT + 5) % SLOTS * 32)
        file.write(struct.pack(">qqqii", MOMENT, 0, 0, 1, 0))
        file.seek((MOMENT + 6) % SLOTS * 32)
        file.write(struct.pack(">qqqii", MOMENT + 6, 52, 0, 1, 0))
    wheel = TimerWheel(Files(), path)
    wheel.load(0)
    assert list(wheel.slots()) == []


def test_a_moment_may_be_cleared_for_a_second_time(tmp_path: Path) -> None:
    wheel = TimerWheel(Files(), tmp_path / "timerwheel")
    wheel.put(MOMENT, 0, 0, 1)
    wheel.put(MOMENT + 1, 52, 52, 1)
    flush(wheel)
    wheel.done(MOMENT)
    wheel.clear(MOMENT - 1000, MOMENT + 1000)
    flush(wheel)
    again = TimerWheel(Files(), tmp_path / "timerwheel")
    again.load(MOMENT - 2000)
    assert list(again.slots()) == [(MOMENT + 1, Slot(52, 52, 1))]


def test_memory_is_that_of_what_waits(tmp_path: Path) -> None:
    wheel = TimerWheel(Files(), tmp_path / "timerwheel")
    for step in range(10_000):
        wheel.put(MOMENT + step, step, step, 1)
        if step >= 10:
            wheel.done(MOMENT + step - 10)
        if step % 100 == 0:
            wheel.write(wheel.take_changes())
    wheel.take_changes()
    assert len(wheel._pages) <= 2
    assert wheel.waiting == 10
    wheel.close()


STEPS = st.lists(
    st.tuples(st.sampled_from(["put", "done", "flush", "pass"]), st.integers(0, 400), st.integers(-3, 3)),
    max_size=60,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(STEPS)
def test_it_behaves_like_a_table(tmp_path: Path, steps: list[tuple[str, int, int]]) -> None:
    path = tmp_path / "timerwheel"
    path.unlink(missing_ok=True)
    wheel = TimerWheel(Files(), path)
    table: dict[int, Slot] = {}
    at = 0
    for what, number, count in steps:
        moment = MOMENT + number
        if what == "put":
            slot = table[moment] = Slot(at, at + 1, count)
            wheel.put(moment, *slot)
            at += 2
        elif what == "done":
            table.pop(moment, None)
            wheel.done(moment)
        elif what == "pass":
            table = {key: slot for key, slot in table.items() if key >= moment}
            wheel.pass_to(moment)
        else:
            wheel.write(wheel.take_changes())
        assert wheel.first() == min(table, default=None)
        assert wheel.waiting == sum(slot.waiting for slot in table.values())
        assert dict(wheel.slots()) == table
        low = MOMENT + number // 2
        expected = sum(slot.waiting for key, slot in table.items() if low <= key < moment)
        assert wheel.count_between(low, moment) == expected
    wheel.close()
