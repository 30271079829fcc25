"""Timer log, checkpoint, and how wheel and log are brought in step."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kerolox.errors import ProtocolError
from kerolox.store.disk.files import Files
from kerolox.store.errors import FsyncFailed, WrongFileSize
from kerolox.store.timer.checkpoint import TimerCheckpoint, decode_leader
from kerolox.store.timer.log import (
    DELETE,
    PLAIN,
    ROLL,
    UNIT_BYTES,
    TimerUnit,
    decode_unit,
    encode_blank,
    encode_unit,
)
from kerolox.store.timer.timer_store import Entering, TimerRecovered, TimerStore
from kerolox.testing.faults import FaultyFiles

NOW_MS = 1_700_000_000_000
SMALL = UNIT_BYTES * 10 + 16


def make(root: Path, **more: int) -> TimerStore:
    return TimerStore(Files(), root, **{"log_file_bytes": SMALL, **more})


def opened(root: Path, **more: int) -> tuple[TimerStore, TimerRecovered]:
    store = make(root, **more)
    return store, store.open(NOW_MS)


def enter(store: TimerStore, messages: list[Entering], now_ms: int = NOW_MS) -> None:
    messages = list(messages)
    while messages:
        if not store.log.room:
            store.log.roll()
        del messages[: store.enter(messages, now_ms)]


def flush(store: TimerStore, read_ms: int = NOW_MS) -> None:
    store.checkpoint.read_ms, store.checkpoint.log_flushed = read_ms, store.log.end
    store.flush(store.wheel.take_changes(), store.checkpoint.encode())


def message(number: int, seconds: int = 10, *, deletes: bool = False) -> Entering:
    return Entering(1000 + number * 200, 200, NOW_MS + seconds * 1000, 0x1234, deletes)


def physicals(store: TimerStore, seconds: int) -> list[int]:
    """Where the messages of a moment lie, oldest first."""
    slot = store.wheel.get(store.moment(NOW_MS + seconds * 1000))
    if slot is None:
        return []
    return [unit.physical for unit in reversed(store.log.units(store.log.chain(slot.last).places))]


def test_units_of_a_killed_process_outlast_a_failed_flush(tmp_path: Path) -> None:
    """The failed flush may have dropped them from memory: they are written again, without a restart."""
    disk = FaultyFiles()
    killed = TimerStore(disk, tmp_path, log_file_bytes=SMALL)
    killed.open(NOW_MS)
    flush(killed)
    enter(killed, [message(number) for number in range(12)])
    again = TimerStore(disk, tmp_path, log_file_bytes=SMALL)
    again.open(NOW_MS)
    disk.fail_syncs(1)
    with pytest.raises(FsyncFailed):
        flush(again)
    flush(again)
    disk.power_loss()
    recovered = TimerStore(disk, tmp_path, log_file_bytes=SMALL)
    recovered.open(NOW_MS)
    assert physicals(recovered, 10) == [1000 + number * 200 for number in range(12)]
    recovered.close()


# --- bytes -------------------------------------------------------------------------------------------


def test_units_and_blanks_are_rocketmqs(tmp_path: Path) -> None:
    store, _ = opened(tmp_path)
    enter(store, [message(0), message(1, deletes=True), message(2, 259_200)])
    path = tmp_path / "timerlog" / ("0" * 20)
    data = path.read_bytes()
    assert len(data) == SMALL
    assert data[:156] == bytes.fromhex(
        "00000034 ffffffffffffffff 00000001 0000018bcfe56800 00002710 00000000000003e8 000000c8 00001234"
        "0000000000000000"
        "00000034 0000000000000000 00000005 0000018bcfe56800 00002710 00000000000004b0 000000c8 00001234"
        "0000000000000000"
        "00000034 ffffffffffffffff 00000003 0000018bcfe56800 0a4cb800 0000000000000578 000000c8 00001234"
        "0000000000000000"
    )
    enter(store, [message(number) for number in range(3, 12)])
    assert path.read_bytes()[-16:] == bytes.fromhex("00000010 0000000000000000 cbd43194")
    assert encode_blank(16) == path.read_bytes()[-16:]
    second = (tmp_path / "timerlog" / f"{SMALL:020d}").read_bytes()
    unit = decode_unit(second[UNIT_BYTES : 2 * UNIT_BYTES])
    assert unit is not None
    assert unit.previous == SMALL
    store.close()


def test_a_file_of_the_usual_size_ends_with_the_blank() -> None:
    assert (104_857_600 - 16) // 52 == 2_016_492
    assert (104_857_600 - 16) % 52 == 0


def test_checkpoint_bytes(tmp_path: Path) -> None:
    checkpoint = TimerCheckpoint(Files(), tmp_path / "config" / "timercheck")
    assert checkpoint.load() is False
    checkpoint.read_ms, checkpoint.log_flushed = NOW_MS, 520
    checkpoint.queue_offset, checkpoint.leader_queue_offset = 7, 9
    checkpoint.version = checkpoint.version.next(NOW_MS + 1)
    checkpoint.save(checkpoint.encode())
    checkpoint.close()
    data = (tmp_path / "config" / "timercheck").read_bytes()
    assert len(data) == 4096
    assert data[:56] == bytes.fromhex(
        "0000018bcfe56800 0000000000000208 0000000000000007 0000000000000009"
        "0000000000000000 0000018bcfe56801 0000000000000001"
    )
    again = TimerCheckpoint(Files(), tmp_path / "config" / "timercheck")
    assert again.load() is True
    assert again.encode() == data[:56]
    assert decode_leader(data[:56])[:2] == decode_leader(data[:32])[:2] == (NOW_MS, 9)
    assert decode_leader(data[:32])[2] is None


@given(st.binary(max_size=80))
def test_a_leaders_checkpoint_may_be_any_bytes(data: bytes) -> None:
    try:
        read_ms, offset, _ = decode_leader(data)
    except ProtocolError:
        return
    assert min(read_ms, offset) >= 0


@given(st.binary(min_size=UNIT_BYTES, max_size=UNIT_BYTES))
def test_a_unit_may_be_any_bytes(data: bytes) -> None:
    unit = decode_unit(data)
    assert unit is None or encode_unit(unit)[:44] == data[:44]


# --- placing -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ahead_s", "slot_s", "magic"),
    [
        (10, 10, PLAIN),
        (172_799, 172_799, PLAIN),
        (172_800, 86_400, PLAIN | ROLL),  # half a window: the rest is not just a moment
        (172_800 + 57_599, 86_400, PLAIN | ROLL),
        (172_800 + 57_600, 172_800, PLAIN | ROLL),
        (259_199, 172_800, PLAIN | ROLL),
    ],
)
def test_what_is_far_ahead_is_rolled(tmp_path: Path, ahead_s: int, slot_s: int, magic: int) -> None:
    store = make(tmp_path)
    moment, found = store.place(NOW_MS + ahead_s * 1000, NOW_MS)
    assert (moment - NOW_MS // 1000, found) == (slot_s, magic)


@pytest.mark.parametrize("slots", [0, 1, -5, 604_741])
def test_a_window_that_cannot_be_is_the_longest(tmp_path: Path, slots: int) -> None:
    assert make(tmp_path, roll_slots=slots).roll_slots == 604_740


def test_chains_and_counts(tmp_path: Path) -> None:
    store, _ = opened(tmp_path)
    enter(store, [message(number, 10 + number % 3) for number in range(31)])
    enter(store, [message(99, 10, deletes=True)])
    assert physicals(store, 10) == [1000 + number * 200 for number in range(0, 31, 3)]
    slot = store.wheel.get(store.moment(NOW_MS + 10_000))
    assert slot is not None
    assert slot.waiting == 11 - 1
    chain = store.log.chain(slot.last)
    assert list(chain.deletes) == [slot.last]
    assert store.wheel.waiting == 30
    assert len(store.log.chain(slot.last, behind=chain.places[3]).places) == 3
    store.close()


# --- starts ------------------------------------------------------------------------------------------


def test_a_clean_start_reads_no_units(tmp_path: Path) -> None:
    store, _ = opened(tmp_path)
    enter(store, [message(number, number) for number in range(1, 35)])
    flush(store, NOW_MS + 5_000)
    store.close()
    again, found = opened(tmp_path)
    assert (found.scanned, found.read_ms, again.wheel.waiting) == (0, NOW_MS + 5_000, 30)
    assert found.last is not None
    assert found.last.physical == 1000 + 34 * 200
    assert again.log.end == store.log.end
    assert [physicals(again, second) for second in (5, 34)] == [[2000], [7800]]
    again.close()


@pytest.mark.parametrize("noted", [0, 3, 10, 17])
def test_after_a_kill_the_rest_of_the_log_is_entered(tmp_path: Path, noted: int) -> None:
    store, _ = opened(tmp_path)
    enter(store, [message(number, 10 + number % 2) for number in range(noted)])
    flush(store)
    enter(store, [message(number, 10 + number % 2) for number in range(noted, 25)])
    store.close()
    again, found = opened(tmp_path)
    assert found.scanned == 25 - noted
    assert found.seen == {1000 + number * 200 for number in range(noted, 25)}
    assert physicals(again, 10) == [1000 + number * 200 for number in range(0, 25, 2)]
    assert physicals(again, 11) == [1000 + number * 200 for number in range(1, 25, 2)]
    assert again.wheel.waiting == 25
    enter(again, [message(25)])
    assert physicals(again, 10)[-1] == 1000 + 25 * 200
    again.close()


def test_a_lost_wheel_is_made_again(tmp_path: Path) -> None:
    store, _ = opened(tmp_path)
    enter(store, [message(number, 10 + number % 2) for number in range(25)])
    enter(store, [message(3, 11, deletes=True)])
    flush(store)
    store.close()
    (tmp_path / "timerwheel").unlink()
    again, _ = opened(tmp_path)
    assert again.wheel.waiting == 24
    assert len(physicals(again, 10)) == 13
    again.close()


def test_a_wheel_ahead_of_its_log_goes_back(tmp_path: Path) -> None:
    store, _ = opened(tmp_path)
    enter(store, [message(number, 10 + number % 2) for number in range(9)])
    enter(store, [message(9, 30)])
    flush(store)
    store.close()
    # The last four units were lost: a damaged file.
    path = tmp_path / "timerlog" / ("0" * 20)
    data = path.read_bytes()
    path.write_bytes(data[: 6 * UNIT_BYTES] + bytes(SMALL - 6 * UNIT_BYTES))
    again, found = opened(tmp_path)
    assert again.log.end == 6 * UNIT_BYTES
    assert found.last is not None
    assert found.last.physical == 2000
    assert (physicals(again, 10), physicals(again, 11)) == ([1000, 1400, 1800], [1200, 1600, 2000])
    assert physicals(again, 30) == []
    assert again.wheel.waiting == 6
    again.close()


def test_a_torn_unit_ends_the_log(tmp_path: Path) -> None:
    rng = random.Random(5)
    for cut in range(1, UNIT_BYTES, 7):
        root = tmp_path / str(cut)
        store, _ = opened(root)
        enter(store, [message(number) for number in range(3)])
        flush(store)
        enter(store, [message(3), message(4)])
        store.close()
        path = root / "timerlog" / ("0" * 20)
        data = bytearray(path.read_bytes())
        at = 3 * UNIT_BYTES
        data[at + cut : at + UNIT_BYTES] = bytes(UNIT_BYTES - cut)
        data[at + UNIT_BYTES : at + 2 * UNIT_BYTES] = rng.randbytes(UNIT_BYTES)
        path.write_bytes(bytes(data))
        again, _ = opened(root)
        found = physicals(again, 10)
        assert found[:3] == [1000, 1200, 1400]
        assert again.log.end in (at, at + UNIT_BYTES)
        assert set(path.read_bytes()[again.log.end :]) <= {0}
        again.close()


def test_a_start_without_checkpoint_keeps_what_waits(tmp_path: Path) -> None:
    store, _ = opened(tmp_path)
    enter(store, [message(number) for number in range(12)])
    flush(store)
    store.close()
    (tmp_path / "config" / "timercheck").unlink()
    again, found = opened(tmp_path)
    assert found.read_ms == NOW_MS - (604_800 - 60) * 1000
    assert len(physicals(again, 10)) == 12
    again.close()


def test_a_log_file_of_another_size_is_refused(tmp_path: Path) -> None:
    store, _ = opened(tmp_path)
    enter(store, [message(1)])
    flush(store)
    store.close()
    with pytest.raises(WrongFileSize):
        make(tmp_path, log_file_bytes=SMALL * 2).open(NOW_MS)


def test_old_files_go_with_their_messages(tmp_path: Path) -> None:
    store, _ = opened(tmp_path)
    enter(store, [message(number) for number in range(35)])
    assert store.log.delete_before(1000 + 200 * 9) == 0  # the last of the first file is just there
    assert store.log.delete_before(1000 + 200 * 10) == 1
    assert store.log.delete_before(1 << 40) == 2
    assert len(store.log.segments.all) == 1
    assert physicals(store, 10) == [1000 + 200 * number for number in range(30, 35)]
    store.close()


def test_a_moment_half_delivered_is_cut(tmp_path: Path) -> None:
    store, _ = opened(tmp_path)
    enter(store, [message(number) for number in range(20)])
    slot = store.wheel.get(store.moment(NOW_MS + 10_000))
    assert slot is not None
    places = store.log.chain(slot.last).places
    store.log.cut(places[4])
    assert physicals(store, 10) == [1000 + 200 * number for number in range(15, 20)]
    store.close()


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 60), st.integers(0, 60))
@example(40, 40, 37)  # a place before the log's beginning
def test_whatever_was_flushed_survives_any_tail(
    tmp_path_factory: pytest.TempPathFactory, seed: int, flushed: int, more: int
) -> None:
    """After the flush come units that reached the disk wholly, partly, or as nonsense."""
    rng = random.Random(seed)
    root = tmp_path_factory.mktemp("timer")
    store, _ = opened(root)
    enter(store, [message(number, rng.randrange(1, 20)) for number in range(flushed)])
    flush(store)
    end = store.log.end
    before = {second: physicals(store, second) for second in range(1, 20)}
    enter(store, [message(number, rng.randrange(1, 20)) for number in range(flushed, flushed + more)])
    last = store.log.end
    store.close()
    for segment in store.log.segments.all:
        path = Path(segment.path)
        data = bytearray(path.read_bytes())
        for at in range(max(end, segment.start), min(last, segment.end)):
            if rng.random() < 0.02:
                data[at - segment.start] = rng.randrange(256)
        path.write_bytes(bytes(data))
    again, _ = opened(root)
    for second, expected in before.items():
        assert physicals(again, second)[: len(expected)] == expected
    enter(again, [message(777, 5)])
    assert physicals(again, 5)[-1] == 1000 + 777 * 200
    again.close()


def test_names_of_bits() -> None:
    assert (PLAIN, ROLL, DELETE) == (1, 2, 4)
    assert TimerUnit(-1, 1, NOW_MS, 5, 0, 1, 0).due_ms == NOW_MS + 5
