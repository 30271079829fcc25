from __future__ import annotations

import os
import shutil
import struct
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.store.dispatch.kit import (
    LOG_FILE,
    SYNC,
    Rig,
    bodies,
    flip,
    log_files,
    overwrite,
    props,
    read_all,
    rig_at,
    tree,
)

from kerolox.protocol.record import decode_record, encode_blank
from kerolox.store import housekeeping, opening, recovery, saving
from kerolox.store.disk.files import Files
from kerolox.store.disk.progress_notes import NAME as MARKS
from kerolox.store.disk.progress_notes import ProgressNotes, ProgressNotesFile
from kerolox.store.disk.sums import NAME as SUMS
from kerolox.store.errors import (
    DiskFull,
    ReadOnlyDisk,
    StoreError,
    StoreLocked,
    StrayFile,
    WrongFileSize,
)
from kerolox.store.log.commit_log import Place
from kerolox.store.message_store import MessageStore
from kerolox.store.recovery import CorruptLog, LogEndsEarly, LogGone, Recovered

COUNT = 30
FIELDS = {  # of a record with IPv4 hosts
    "size": (0, 4), "magic": (4, 4), "crc": (8, 4), "queue_id": (12, 4), "flag": (16, 4),
    "queue_offset": (20, 8), "physical": (28, 8), "sys_flag": (36, 4), "born": (40, 8),
    "born_host": (48, 8), "stored": (56, 8), "store_host": (64, 8), "reconsume": (72, 4),
    "prepared": (76, 8), "body_length": (84, 4),
}  # fmt: skip
SEEN = (
    "size",
    "magic",
    "crc",
    "physical",
    "sys_flag",
    "body_length",
)  # damage there is noticed without a record CRC


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with rig_at(tmp_path / "store") as rig:
        yield rig


def body_of(number: int) -> bytes:
    return b"<%d>" % number * 25


async def fill(store: MessageStore, count: int = COUNT, first: int = 0) -> list[Place]:
    """Messages in two queues of T, each with a key."""
    return [
        await store.put("T", i % 2, body_of(i), props(KEYS=f"k{i}", TAGS="tag"))
        for i in range(first, first + count)
    ]


async def check(store: MessageStore, count: int = COUNT) -> None:
    """Queues, index and log agree, and hold exactly the first ``count`` messages."""
    for queue_id in (0, 1):
        expected = [body_of(i) for i in range(queue_id, count, 2)]
        assert await bodies(store, "T", queue_id) == expected
    for i in range(count):
        found = await store.find_by_key("T", f"k{i}")
        assert [decode_record(record).body for record in found] == [body_of(i)], f"key k{i}"
    assert await store.find_by_key("T", f"k{count}") == []


async def recovered(rig: Rig, count: int = COUNT, **changes: object) -> Recovered:
    """Open, look, put one more, close."""
    store = await rig.open(**changes)
    assert store.recovered is not None
    await check(store, count)
    assert (await store.put("T", count % 2, body_of(count), props(KEYS=f"k{count}")))[1] == count // 2
    await check(store, count + 1)
    await store.close()
    assert not (rig.path / "abort").exists()
    return store.recovered


async def crashed_with(rig: Rig, count: int = COUNT, *, marked: int | None = None) -> list[Place]:
    """A store whose process died. With ``marked`` what came before that message was noted as safe."""
    store = await rig.open()
    places = await fill(store, count if marked is None else marked)
    if marked is not None:
        await store.flusher.flush_all()
        await store.housekeeper.flush()
        places += await fill(store, count - marked, marked)
    await rig.kill(store)
    return places


def log_path(rig: Rig, physical: int) -> tuple[Path, int]:
    start = physical - physical % LOG_FILE
    return rig.path / "commitlog" / f"{start:020d}", physical - start


def forget_marks(rig: Rig) -> None:
    (rig.path / MARKS).unlink()
    (rig.path / SUMS).unlink(missing_ok=True)


# --- without damage -------------------------------------------------------------------------------------


async def test_an_empty_directory(rig: Rig) -> None:
    store = await rig.open()
    assert store.recovered == Recovered(crashed=False, start=0, end=0, stop="a new log")
    assert log_files(rig.path)[0] == 0
    assert (rig.path / "abort").read_text() == str(os.getpid())
    await store.close()
    assert log_files(rig.path) == [0]
    assert not (rig.path / "abort").exists()
    store = await rig.open()
    assert store.recovered.bytes_read == 0  # type: ignore[union-attr]


async def test_after_a_clean_stop_the_last_of_the_log_is_checked(rig: Rig) -> None:
    store = await rig.open()
    places = await fill(store)
    end = places[-1][0] + places[-1][2]
    await store.close()
    found = await recovered(rig)
    assert (found.crashed, found.start, found.end, found.records) == (False, 0, end, COUNT)
    assert found.dispatched_from == end


async def test_after_a_clean_stop_no_more_than_a_step_is_read(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saving, "CHECKED_BYTES", 1000)
    places = await stopped(rig)
    end = places[-1][0] + places[-1][2]
    found = await recovered(rig)
    assert found.dispatched_from == end
    assert 1000 <= end - found.start < 1500


async def test_after_a_clean_stop_behind_a_blank_record(rig: Rig) -> None:
    """Rolled to the next file, and nothing came there."""
    store = await rig.open()
    await fill(store, 10)
    store.log._next_file(100)
    await store.close()
    assert not (rig.path / "abort").exists()
    found = await recovered(rig, 10)
    assert (found.end % LOG_FILE, found.dispatched_from) == (0, found.end)


async def test_a_kill_loses_nothing(rig: Rig) -> None:
    places = await crashed_with(rig)
    found = await recovered(rig)
    assert (found.crashed, found.start, found.records) == (True, 0, COUNT)
    assert found.bytes_read == sum(place[2] for place in places)


async def test_a_crash_costs_what_came_after_the_last_sums(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(housekeeping, "STEP_BYTES", 1)
    places = await crashed_with(rig, marked=15)
    found = await recovered(rig)
    assert found.dispatched_from == places[15][0]


async def test_more_records_than_are_kept_are_read_again(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    await crashed_with(rig)
    monkeypatch.setattr(recovery, "KEPT_MAX", 7)
    assert (await recovered(rig)).records == COUNT


@pytest.mark.parametrize("piece", [9, 100, 333, 1000])
async def test_pieces_smaller_than_a_record(rig: Rig, monkeypatch: pytest.MonkeyPatch, piece: int) -> None:
    await crashed_with(rig)
    monkeypatch.setattr(recovery, "PIECE_BYTES", piece)
    assert (await recovered(rig)).records == COUNT


async def test_the_progress_is_told(rig: Rig) -> None:
    places = await crashed_with(rig)
    store = rig.make()
    told: list[int] = []
    await store.open(told.append)
    assert told == sorted(told)
    assert told[-1] == places[-1][0] + places[-1][2]


async def test_store_times_never_fall_over_a_restart(rig: Rig) -> None:
    for die in (rig.kill, None):
        store = await rig.open()
        physical, _, _ = await store.put("T", 0, b"before")
        before_ms = store.log.store_timestamp_at(physical)
        await (store.close() if die is None else die(store))
        rig.clock.step_wall(-60_000)
        store = await rig.open()
        physical, _, _ = await store.put("T", 0, b"after")
        assert store.log.store_timestamp_at(physical) == before_ms
        await store.close()
        rig.clock.step_wall(60_000)


# --- the torn end ---------------------------------------------------------------------------------------


async def test_a_torn_end_is_cut_at_every_byte(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with rig_at(tmp_path / "store") as rig:
        places = await crashed_with(rig, 3, marked=1)
        physical, _, size = places[2]
        image = tmp_path / "image"
        shutil.copytree(rig.path, image)
        path, at = log_path(rig, physical)
        for kept in range(size):
            shutil.rmtree(rig.path)
            shutil.copytree(image, rig.path)
            overwrite(path, at + kept, bytes(size - kept))
            is_torn = path.read_bytes()[at:].strip(b"\0") != b""
            caplog.clear()
            store = await rig.open()
            assert store.recovered is not None
            assert (store.recovered.end, store.recovered.records) == (physical, 2), kept
            # Bytes of a message go: that is said. Zeros behind the end are the rest of a file.
            assert (f"torn_record_cut offset={physical}" in caplog.text) == is_torn, kept
            await check(store, 2)
            data = path.read_bytes()
            assert data[at:] == bytes(len(data) - at), kept  # no piece of it is left
            await rig.kill(store)


async def test_a_write_torn_by_a_kill(tmp_path: Path) -> None:
    for kept in (0, 1, 50, 150, 221, 222, 500, 667):
        async with rig_at(tmp_path / str(kept)) as rig:
            store = await rig.open()
            places = await fill(store, 4)
            for i in range(4, 7):
                cursor = store.log.cursor("T", i % 2)
                places.append(
                    store.log.append(
                        cursor,
                        body_of(i),
                        props(KEYS=f"k{i}", TAGS="tag"),
                        born_timestamp=1,
                        born_host=bytes(8),
                    )
                )
            rig.disk.tear_next_write(kept)
            with pytest.raises(StoreError):
                store.log.write()
            await rig.kill(store)
            whole = sum(place[0] + place[2] <= places[4][0] + kept for place in places)
            await recovered(rig, whole)


@pytest.mark.parametrize("field", FIELDS)
async def test_damage_in_the_last_record(rig: Rig, field: str) -> None:
    """Noticed, it is taken for the torn end of a write. Unnoticed, it does no harm to the others."""
    places = await crashed_with(rig, 10, marked=5)
    path, at = log_path(rig, places[9][0])
    flip(path, at + FIELDS[field][0] + FIELDS[field][1] - 1)
    store = await rig.open()
    assert store.recovered is not None
    if field in SEEN:
        assert store.recovered.end == places[9][0]
        await check(store, 9)
    else:
        assert store.recovered.end == places[9][0] + places[9][2]
        assert len(await read_all(store, "T", 0)) == 5


# --- damage in the middle ---------------------------------------------------------------------------------


async def refused(rig: Rig, **changes: object) -> CorruptLog:
    before = tree(rig.path)
    store = rig.make(**changes)
    with pytest.raises(CorruptLog) as error:
        await store.open()
    assert tree(rig.path) == before, "a damaged store was changed"
    assert [handle.path for handle in rig.disk._handles] == [], "descriptors are left open"
    return error.value


@pytest.mark.parametrize(
    "field",
    [*FIELDS, "transaction", "body", "topic_length", "topic", "properties_length", "properties"],
)
@pytest.mark.parametrize("record_crc", [False, True])
async def test_damage_in_the_middle(tmp_path: Path, field: str, record_crc: bool) -> None:
    async with rig_at(tmp_path / "store", record_crc=record_crc) as rig:
        places = await crashed_with(rig, 12, marked=4)
        physical, _, size = places[7]
        path, at = log_path(rig, physical)
        body = len(body_of(7))
        position = {
            **{name: start + length - 1 for name, (start, length) in FIELDS.items()},
            "transaction": FIELDS["sys_flag"][0] + 3,
            "body": 88 + body // 2,
            "topic_length": 88 + body,
            "topic": 89 + body,
            "properties_length": 91 + body,
            "properties": 93 + body,
        }[field]
        flip(path, at + position, 0x04 if field == "transaction" else 0xFF)
        noticed = field in (*SEEN, "body", "topic_length", "properties_length") or record_crc
        if noticed:
            error = await refused(rig)
            assert (error.path, error.offset) == (str(path), physical)
            assert error.valid_from == places[8][0] == physical + size
            assert f"damaged at byte {at} (log offset {physical})" in str(error)
            assert f"store repair {rig.path} --skip {physical}" in str(error)
            assert "Nothing was changed" in str(error)
            await refused(rig)  # and so it is the next time
        else:
            # No CRC covers it. The others are there, whatever became of this one.
            store = await rig.open()
            assert store.recovered is not None
            assert store.recovered.records in (8, 12)  # 12 when the queues had to be made again
            found = {m.body for q in (0, 1) for m in await read_all(store, "T", q)}
            assert found >= {body_of(i) for i in range(12)} - {body_of(7)}


@pytest.mark.parametrize("clean", [True, False])
async def test_damage_in_what_was_dispatched_is_noticed(rig: Rig, clean: bool) -> None:
    places = await (stopped(rig, 12) if clean else crashed_with(rig, 12, marked=8))
    path, at = log_path(rig, places[3][0])
    flip(path, at + 100)
    with pytest.raises(CorruptLog, match=f"--skip {places[3][0]} "):
        await rig.open()


@pytest.mark.parametrize("clean", [True, False])
async def test_an_end_before_what_was_flushed_is_damage(rig: Rig, clean: bool) -> None:
    places = await (stopped(rig, 12) if clean else crashed_with(rig, 12, marked=12))
    path, at = log_path(rig, places[10][0])
    overwrite(path, at, bytes(LOG_FILE - at))
    before = tree(rig.path)
    with pytest.raises(LogEndsEarly, match=f"--cut {places[10][0]} "):
        await rig.open()
    assert tree(rig.path) == before


async def test_without_crc_checks_a_damaged_body_stays(rig: Rig) -> None:
    places = await crashed_with(rig, 12)
    path, at = log_path(rig, places[7][0])
    flip(path, at + 100)
    assert (await rig.open(check_crc=False)).recovered.records == 12  # type: ignore[union-attr]


async def test_zeros_in_the_middle_after_a_kill(rig: Rig) -> None:
    """The page cache outlives the process: a hole there is no torn write."""
    places = await crashed_with(rig, 12, marked=4)
    physical, _, size = places[7]
    path, at = log_path(rig, physical)
    overwrite(path, at, bytes(size))
    error = await refused(rig)
    assert (error.offset, error.valid_from, error.what) == (
        physical,
        places[8][0],
        "zeros instead of a record",
    )


async def test_zeros_in_the_middle_after_power_loss(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    """Never flushed: the disk wrote later pages first. Cut, and said aloud."""
    places = await crashed_with(rig, 12, marked=4)
    physical, _, size = places[7]
    path, at = log_path(rig, physical)
    overwrite(path, at, bytes(size))
    rig.boot = "another"
    found = await recovered(rig, 7)
    assert (found.end, found.cut_bytes) == (physical, size)
    assert f"unflushed_records_cut offset={physical} next_valid={places[8][0]}" in caplog.text


async def test_zeros_in_what_was_flushed_are_damage_also_after_power_loss(rig: Rig) -> None:
    """All written in one millisecond: the offset noted as flushed tells, not the time."""
    places = await crashed_with(rig, 12, marked=9)
    forget = ProgressNotesFile(Files(), rig.path)
    marks = forget.load()
    assert marks.flushed == places[9][0]
    forget.save(ProgressNotes(boot=marks.boot, dispatched=0, flushed=marks.flushed))
    forget.close()
    physical, _, size = places[7]
    path, at = log_path(rig, physical)
    overwrite(path, at, bytes(size))
    rig.boot = "another"
    assert (await refused(rig)).offset == physical


async def test_times_decide_without_our_marks(rig: Rig) -> None:
    store = await rig.open()
    places = await fill(store, 3)
    rig.clock.step_wall(10)
    places += await fill(store, 2, 3)
    await store.flusher.flush_all()
    await store.housekeeper.flush()  # the checkpoint says: flushed up to this time
    rig.clock.step_wall(1000)
    places += await fill(store, 5, 5)
    rig.clock.step_wall(1000)
    places += await fill(store, 5, 10)
    await rig.kill(store)
    forget_marks(rig)
    for number, is_cut in ((7, True), (3, True), (1, False)):
        image = rig.path.parent / f"image{number}"
        shutil.copytree(rig.path, image)
        path, at = log_path(rig, places[number][0])
        overwrite(path, at, bytes(places[number][2]))
        if is_cut:
            store = await rig.open()
            await check(store, number)
            await rig.kill(store)
        else:
            assert (await refused(rig)).offset == places[number][0]
        shutil.rmtree(rig.path)
        shutil.copytree(image, rig.path)


async def test_a_missing_file_in_the_middle(rig: Rig) -> None:
    places = await crashed_with(rig, 50)
    assert len(log_files(rig.path)) >= 3
    missing = rig.path / "commitlog" / f"{LOG_FILE:020d}"
    missing.unlink()
    error = await refused(rig)
    assert (error.path, error.offset) == (str(missing), LOG_FILE)
    assert error.what == "the file that begins here is missing"
    assert error.valid_from == 2 * LOG_FILE <= places[-1][0]


async def test_a_record_larger_than_its_file_claims_to_be_is_not_read(rig: Rig) -> None:
    places = await crashed_with(rig, 4, marked=2)
    path, at = log_path(rig, places[3][0])
    overwrite(path, at, struct.pack(">i", 0x7FFF_FFFF))
    await recovered(rig, 3)


# --- queues, index, checkpoint, marks -----------------------------------------------------------------------


def zero_queue_tail(rig: Rig, queue_id: int, kept: int) -> None:
    path = rig.path / "consumequeue" / "T" / str(queue_id) / f"{0:020d}"
    overwrite(path, kept * 20, bytes(path.stat().st_size - kept * 20))


async def stopped(rig: Rig, count: int = COUNT, **changes: object) -> list[Place]:
    store = await rig.open(**changes)
    places = await fill(store, count)
    await store.close()
    return places


async def test_one_queue_directory_deleted(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    """RocketMQ loses it: it looks at the newest entry of all queues only."""
    await stopped(rig)
    shutil.rmtree(rig.path / "consumequeue" / "T" / "0")
    found = await recovered(rig)
    assert (found.start, found.records) == (0, COUNT)
    assert "queue_missing topic='T' queue=0" in caplog.text
    found = await recovered(rig, COUNT + 1)
    assert found.dispatched_from == found.end


async def test_one_queue_directory_deleted_after_a_crash(rig: Rig) -> None:
    await crashed_with(rig, marked=COUNT)
    shutil.rmtree(rig.path / "consumequeue" / "T" / "1")
    assert (await recovered(rig)).records == COUNT


@pytest.mark.parametrize("number", [0, 1, 2])
async def test_one_queue_file_deleted(rig: Rig, number: int) -> None:
    await stopped(rig, 250, queue_file_bytes=20 * 50, index_entries=1000)
    rig.options.index_entries = 1000
    (rig.path / "consumequeue" / "T" / "0" / f"{number * 1000:020d}").unlink()
    assert (await recovered(rig, 250)).records == 250


async def test_all_queues_deleted(rig: Rig) -> None:
    for clean in (True, False):
        shutil.rmtree(rig.path, ignore_errors=True)
        await (stopped(rig) if clean else crashed_with(rig, marked=20))
        shutil.rmtree(rig.path / "consumequeue")
        assert (await recovered(rig)).records == COUNT


async def test_queues_rebuilt_behind_deleted_files_keep_their_offsets(rig: Rig) -> None:
    store = await rig.open(delete_pause_ms=0)
    await fill(store, 60)
    await store.expiry.delete_before(2 * LOG_FILE)
    bounds = [(store.queues.min_offset("T", q), store.queues.max_offset("T", q)) for q in (0, 1)]
    assert bounds[0][0] > 0
    await store.close()
    shutil.rmtree(rig.path / "consumequeue" / "T" / "0")
    store = await rig.open()
    assert [(store.queues.min_offset("T", q), store.queues.max_offset("T", q)) for q in (0, 1)] == bounds
    assert await bodies(store, "T", 0) == [body_of(i * 2) for i in range(bounds[0][0], 30)]


async def test_a_queue_without_messages_goes_on_counting_through_a_rebuild(rig: Rig) -> None:
    store = await rig.open(delete_pause_ms=0)
    for i in range(5):
        await store.put("Old", 0, b"%d" % i)
    await fill(store, 60)
    await store.expiry.delete_before(2 * LOG_FILE)
    assert (store.queues.min_offset("Old", 0), store.queues.max_offset("Old", 0)) == (5, 5)
    await store.close()
    shutil.rmtree(rig.path / "consumequeue" / "T" / "0")
    store = await rig.open()
    assert (store.queues.min_offset("Old", 0), store.queues.max_offset("Old", 0)) == (5, 5)
    assert (await store.put("Old", 0, b"next"))[1] == 5


async def test_a_rebuild_broken_off_is_begun_again(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    await stopped(rig)
    shutil.rmtree(rig.path / "consumequeue" / "T" / "0")
    store = rig.make()
    given = store.dispatcher.give

    def give_half(entries: list) -> None:  # type: ignore[type-arg]
        given(entries[: len(entries) // 2])
        store.consume_queues.write()
        raise StoreError("the process dies here")

    monkeypatch.setattr(store.dispatcher, "give", give_half)
    with pytest.raises(StoreError, match="dies here"):
        await store.open()
    rig.disk.kill()
    assert (await recovered(rig)).records == COUNT


async def test_the_index_deleted(rig: Rig) -> None:
    await stopped(rig)
    shutil.rmtree(rig.path / "index")
    assert (await recovered(rig)).records == COUNT


async def test_the_index_deleted_after_a_crash(rig: Rig) -> None:
    await crashed_with(rig, marked=COUNT)
    shutil.rmtree(rig.path / "index")
    assert (await recovered(rig)).records == COUNT


async def test_one_of_many_index_files_deleted(rig: Rig) -> None:
    rig.options.index_entries = 11
    await stopped(rig)
    names = sorted(os.listdir(rig.path / "index"))
    assert len(names) == 3
    (rig.path / "index" / names[1]).unlink()
    assert (await recovered(rig)).records == COUNT


async def test_without_an_index_none_is_missed(rig: Rig) -> None:
    store = await rig.open(index_enabled=False)
    await store.put("T", 0, b"", props(KEYS="k"))
    await store.close()
    assert not (rig.path / "index").exists()
    store = await rig.open(index_enabled=False)
    assert store.recovered.dispatched_from == store.recovered.end  # type: ignore[union-attr]
    assert await store.find_by_key("T", "k") == []


async def test_messages_without_keys_need_no_index(rig: Rig) -> None:
    store = await rig.open()
    await store.put("T", 0, b"")
    await store.close()
    found = (await rig.open()).recovered
    assert found is not None
    assert found.dispatched_from == found.end


@pytest.mark.parametrize("clean", [True, False])
async def test_queues_that_lag_without_marks(rig: Rig, clean: bool) -> None:
    """As another broker leaves them. RocketMQ's clean start loses the first message of these."""
    await (stopped(rig) if clean else crashed_with(rig, marked=COUNT))
    forget_marks(rig)
    zero_queue_tail(rig, 0, 14)
    zero_queue_tail(rig, 1, 14)
    found = await recovered(rig)
    assert found.records > 0


async def test_a_queue_that_lost_its_tail_is_rebuilt(
    rig: Rig, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not in the marks, but a gap in front of the next message shows it."""
    await crashed_with(rig, marked=20)
    (rig.path / SUMS).unlink()
    zero_queue_tail(rig, 0, 3)
    monkeypatch.setattr(opening, "COMPARED_BYTES_MAX", 0)
    found = await recovered(rig)
    assert (found.start, found.records) == (0, COUNT)
    assert "3 are missing" not in caplog.text
    assert "ends at offset 3, but the next entry is for offset 10: 7 entries are missing" in caplog.text


@pytest.mark.parametrize("times", [(0, 0), (1, 1), (1 << 62, 1 << 62), (-1, -1)])
async def test_a_checkpoint_that_is_wrong(rig: Rig, times: tuple[int, int]) -> None:
    await crashed_with(rig, marked=20)
    forget_marks(rig)
    overwrite(rig.path / "checkpoint", 0, struct.pack(">qqq", *times, 0))
    assert (await recovered(rig)).start == 0


async def test_a_checkpoint_tells_where_to_begin(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "COMPARED_BYTES_MAX", 0)
    monkeypatch.setattr(opening, "CHECKED_BYTES", 0)  # as if the log were long
    store = await rig.open()
    await fill(store, 25)
    rig.clock.step_wall(60_000)
    await fill(store, 5, 25)
    await store.flusher.flush_all()
    await store.housekeeper.flush()
    await rig.kill(store)
    forget_marks(rig)
    found = await recovered(rig)
    assert found.start > 0
    assert found.start % LOG_FILE == 0


@pytest.mark.parametrize("missing", ["checkpoint", MARKS])
@pytest.mark.parametrize("clean", [True, False])
async def test_without_checkpoint_or_marks(rig: Rig, missing: str, clean: bool) -> None:
    await (stopped(rig) if clean else crashed_with(rig, marked=20))
    (rig.path / missing).unlink()
    await recovered(rig)


@pytest.mark.parametrize("content", [b"", b"garbage", b"\0" * 512, b"{}\n0000000000\n"])
async def test_garbage_for_marks(rig: Rig, content: bytes) -> None:
    await crashed_with(rig, marked=20)
    (rig.path / MARKS).write_bytes(content)
    await recovered(rig)


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("shift", [1, 40, 95, -1])
async def test_marks_at_no_beginning_of_a_record(rig: Rig, clean: bool, shift: int) -> None:
    places = await (stopped(rig) if clean else crashed_with(rig, marked=20))
    file = ProgressNotesFile(Files(), rig.path)
    marks = file.load()
    marks.dispatched = places[15][0] + shift
    file.save(marks)
    file.close()
    await recovered(rig)


async def test_marks_in_a_body_of_zeros(rig: Rig) -> None:
    """Zeros also mean "not written yet": taken for the end, the message would be cut."""
    store = await rig.open()
    physical, _, _ = await store.put("T", 0, bytes(1000))
    await store.put("T", 0, b"last")
    await rig.kill(store)
    file = ProgressNotesFile(Files(), rig.path)
    marks = file.load()
    marks.dispatched = physical + 500
    file.save(marks)
    file.close()
    assert await bodies(await rig.open()) == [bytes(1000), b"last"]


async def test_marks_that_are_behind_the_log(rig: Rig) -> None:
    store = await rig.open(delete_pause_ms=0)
    await fill(store, 60)
    marks = store._saver.note()
    await store.expiry.delete_before(2 * LOG_FILE)
    await rig.kill(store)
    file = ProgressNotesFile(Files(), rig.path)
    file.save(ProgressNotes(boot=marks.boot, dispatched=0))
    file.close()
    store = await rig.open()
    assert store.recovered.start == 2 * LOG_FILE  # type: ignore[union-attr]
    assert store.queues.max_offset("T", 0) == 30


# --- files that are not as they should be ------------------------------------------------------------------


async def refuse(rig: Rig, kind: type[StoreError], match: str) -> None:
    before = tree(rig.path)
    with pytest.raises(kind, match=match):
        await rig.make().open()
    assert tree(rig.path) == before
    assert not rig.disk._handles


@pytest.mark.parametrize("size", [1, LOG_FILE - 1, LOG_FILE + 1])
async def test_a_log_file_of_another_size(rig: Rig, size: int) -> None:
    await stopped(rig)
    os.truncate(rig.path / "commitlog" / f"{LOG_FILE:020d}", size)
    await refuse(rig, WrongFileSize, f"is {size} bytes long, expected {LOG_FILE}")


async def test_a_store_opened_with_another_size(rig: Rig) -> None:
    await stopped(rig)
    rig.options.commit_log_file_bytes *= 2
    await refuse(rig, WrongFileSize, f"is {LOG_FILE} bytes long, expected {2 * LOG_FILE}")


@pytest.mark.parametrize("name", [f"{0:020d}.bak", ".DS_Store", "notes.txt"])
async def test_stray_files_in_the_log(rig: Rig, name: str) -> None:
    await stopped(rig)
    (rig.path / "commitlog" / name).write_bytes(b"x" * LOG_FILE)
    await refuse(rig, StrayFile, "does not belong here")


async def test_stray_files_elsewhere_do_no_harm(rig: Rig) -> None:
    await stopped(rig)
    for name in ("topics.json.bak", "consumequeue/notes", "consumequeue/T/notes", "index/notes.bak"):
        (rig.path / name).write_bytes(b"x")
    found = await recovered(rig)
    assert found.dispatched_from == found.end


async def test_a_queue_file_of_another_size(rig: Rig) -> None:
    await stopped(rig)
    os.truncate(rig.path / "consumequeue" / "T" / "0" / f"{0:020d}", 999)
    await refuse(rig, WrongFileSize, "is 999 bytes long, expected 1000")


async def test_the_file_made_ahead_is_left_over(rig: Rig) -> None:
    await crashed_with(rig)
    last = log_files(rig.path)[-1]
    for start in (last + LOG_FILE, last + 2 * LOG_FILE):
        (rig.path / "commitlog" / f"{start:020d}").write_bytes(bytes(LOG_FILE))
    found = await recovered(rig)
    assert found.stop == "zeros instead of a record"
    assert log_files(rig.path)[-1] <= last + LOG_FILE


async def test_a_file_without_length_is_left_over(rig: Rig) -> None:
    await crashed_with(rig)
    last = log_files(rig.path)[-1]
    (rig.path / "commitlog" / f"{last + LOG_FILE:020d}").write_bytes(b"")
    await recovered(rig)


async def test_a_log_that_ends_with_a_blank_record(rig: Rig) -> None:
    places = await crashed_with(rig, 10)
    end = places[9][0] + places[9][2]
    path, at = log_path(rig, end)
    overwrite(path, at, encode_blank(LOG_FILE - at))
    for start in log_files(rig.path):
        if start > end:
            (rig.path / "commitlog" / f"{start:020d}").unlink()
    found = await recovered(rig, 10)
    assert (found.end, found.stop) == (end - end % LOG_FILE + LOG_FILE, "the end of the files")


@pytest.mark.parametrize("clean", [True, False])
async def test_a_log_file_is_gone(rig: Rig, clean: bool) -> None:
    """The newest, the one before it, the second, or all but two: each is refused, and nothing is changed."""
    await (stopped(rig, 200) if clean else crashed_with(rig, 200, marked=200))
    names = [f"{start:020d}" for start in log_files(rig.path)]
    if not clean:
        names.pop()  # made ahead
    assert len(names) > 4
    for gone in (names[-1:], names[-2:-1], names[1:2], names[1:-1]):
        kept = {name: (rig.path / "commitlog" / name).read_bytes() for name in gone}
        for name in gone:
            (rig.path / "commitlog" / name).unlink()
        before = tree(rig.path)
        with pytest.raises(StoreError, match=f"{gone[0]} is damaged at byte 0 .* is missing.*store repair"):
            await rig.open()
        assert tree(rig.path) == before
        for name, data in kept.items():
            (rig.path / "commitlog" / name).write_bytes(data)
    store = await rig.open()
    await check(store, 200)


@pytest.mark.parametrize("crashed", [False, True])
@pytest.mark.parametrize("noted", [False, True])
async def test_no_log_but_queues_and_index(rig: Rig, crashed: bool, noted: bool) -> None:
    """As when the disk of the log is not mounted: what is left must not be taken for all there was."""
    await stopped(rig)
    log = rig.path / "commitlog"
    log.rename(rig.path / "elsewhere")
    if crashed:
        (rig.path / "abort").touch()
    if not noted:
        (rig.path / "kerolox.marks").unlink()
    await refuse(rig, LogGone, "has no file of the commit log.* 2 consume queues.* Mount the disk")
    shutil.rmtree(log, ignore_errors=True)
    (rig.path / "elsewhere").rename(log)
    await recovered(rig)


async def test_a_read_only_disk(rig: Rig) -> None:
    await stopped(rig)
    rig.disk.read_only = True
    await refuse(rig, ReadOnlyDisk, "Read-only file system")
    rig.disk.read_only = False
    await recovered(rig)


@pytest.mark.parametrize("clean", [True, False])
async def test_a_full_disk(rig: Rig, clean: bool) -> None:
    await (stopped(rig) if clean else crashed_with(rig))
    (rig.path / "abort").unlink(missing_ok=True)
    if not clean:
        (rig.path / "abort").write_bytes(b"")
        (rig.path / "commitlog" / f"{log_files(rig.path)[-1]:020d}").unlink()  # removing it would make room
    rig.disk.fill(0)
    with pytest.raises(DiskFull, match="No space left"):
        await rig.make().open()
    rig.disk.make_room()
    await recovered(rig)


async def test_opened_twice(rig: Rig) -> None:
    store = await rig.open()
    await fill(store, 2)
    with pytest.raises(StoreLocked, match="this process"):
        await rig.make().open()
    await check(store, 2)
    await store.close()
    await recovered(rig, 2)


async def test_a_log_that_begins_far_out(rig: Rig) -> None:
    """As a replica's: it began with the last file of its master."""
    far = (5 << 40) // LOG_FILE * LOG_FILE
    (rig.path / "commitlog").mkdir(parents=True)
    (rig.path / "commitlog" / f"{far:020d}").write_bytes(bytes(LOG_FILE))
    store = await rig.open()
    assert (await store.put("T", 0, body_of(0), props(KEYS="k0")))[:2] == (far, 0)
    await rig.kill(store)
    found = await recovered(rig, 1)
    assert found.start == far


async def test_power_lost_is_known_by_the_run_of_the_system(rig: Rig) -> None:
    store = await rig.open(flush_mode=SYNC)
    await fill(store, 3)
    await rig.kill(store)
    for boot, lost in (("first", False), ("other", True), ("", True)):
        store = rig.make()
        store.notes.boot = boot
        marks = store.notes.progress.load()
        marks.boot = "first"
        assert store._opening().circumstances(marks, True).power_lost is lost


@pytest.mark.parametrize("back", [1, 10, 15, 19, 20])
async def test_a_record_that_lost_the_mark_of_its_own_crc(rig: Rig, back: int) -> None:
    """Without the mark it would count as one that never had a CRC, and its properties as they are."""
    store = await rig.open(record_crc=True)
    places = await fill(store, 12)
    await store.close()
    physical, _, size = places[7]
    path, at = log_path(rig, physical)
    flip(path, at + size - back)
    with pytest.raises(CorruptLog, match=f"--skip {physical} "):
        await rig.open(record_crc=True)
    overwrite(path, at + size - 40, bytes(40))  # and some of the properties with it
    with pytest.raises(CorruptLog, match=f"--skip {physical} "):
        await rig.open(record_crc=True)


async def test_records_with_and_without_a_crc_may_alternate_with_the_option(rig: Rig) -> None:
    done = 0
    for record_crc in (True, False, True):
        for count in (1, 0 if not record_crc else 3):
            store = await rig.open(record_crc=record_crc)
            await fill(store, count, done)
            done += count
            await store.close()
    store = await rig.open()
    await check(store, done)
