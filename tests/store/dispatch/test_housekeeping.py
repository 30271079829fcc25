from __future__ import annotations

import asyncio
import errno
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.store.dispatch.kit import LOG_FILE, Rig, bodies, log_files, props, rig_at, until

from kerolox.store.disk.files import DiskUsage
from kerolox.store.disk.progress_notes import UNKNOWN
from kerolox.store.errors import Operation
from kerolox.store.failures import Kind
from kerolox.store.message_store import MessageStore
from kerolox.store.queue.reading import ReadStatus
from kerolox.store.state import NotWritable, Obstacle

HOUR_S = 3600
MIB = 1 << 20


def usage(percent: int) -> DiskUsage:
    return DiskUsage(100 * MIB, (100 - percent) * MIB, (100 - percent) * MIB)


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    hour = time.localtime().tm_hour
    hours = f"{(hour + 12) % 24};{(hour + 13) % 24}"  # two, as the test may run into the next
    async with rig_at(tmp_path, delete_hours=hours, index_entries=20) as rig:
        rig.clock.step_wall(int(time.time() * 1000) - rig.clock.wall_ms())  # files have real times
        rig.disk.usage = usage(50)
        yield rig


async def fill(store: MessageStore, count: int = 60) -> None:
    for i in range(count):
        await store.put("T", 0, (b"%d" % i).ljust(400, b"."), props(KEYS=f"k{i}"))
    await store.flusher.flush_all()
    await store.housekeeper.flush()


def age(rig: Rig, hours: float, files: int) -> None:
    """Make the oldest files of the log that old."""
    for start in log_files(rig.path)[:files]:
        path = rig.path / "commitlog" / f"{start:020d}"
        modified_s = rig.clock.wall_ms() / 1000 - hours * HOUR_S
        os.utime(path, (modified_s, modified_s))


async def passing(rig: Rig, work: asyncio.Task[object]) -> object:
    """Let the clock run while something works."""
    while not work.done():
        await rig.clock.advance(0.05)
        await asyncio.sleep(0.001)
    return await work


async def test_old_files_go_gently_and_everything_follows(rig: Rig) -> None:
    store = await rig.open()
    await fill(store)
    assert len(os.listdir(rig.path / "index")) == 4
    files = log_files(rig.path)
    age(rig, 73, 5)
    store.expiry.order()
    began_s = rig.clock.monotonic_s()
    verdict = await passing(rig, asyncio.ensure_future(store.expiry.check()))
    assert verdict.reason == "a deletion was ordered"  # type: ignore[attr-defined]
    assert round(rig.clock.monotonic_s() - began_s, 6) >= 0.5  # a tenth of a second after each
    assert log_files(rig.path)[0] == store.log.min_offset == files[5]
    low = store.queues.min_offset("T", 0)
    assert low == 5 * 8
    read = await store.queues.read("T", 0, 3)
    assert (read.status, read.next_offset, read.min_offset) == (ReadStatus.OFFSET_TOO_SMALL, low, low)
    assert [int(body.strip(b".")) for body in await bodies(store)] == list(range(low, 60))
    assert await store.find_by_key("T", "k3") == []
    assert len(await store.find_by_key("T", f"k{low}")) == 1
    assert len(os.listdir(rig.path / "index")) == 2
    assert store.notes.progress.load().index_files == 2
    # And it stays so over a restart, also after a kill.
    await rig.kill(store)
    store = await rig.open()
    assert (store.queues.min_offset("T", 0), store.queues.max_offset("T", 0)) == (low, 60)


async def test_queue_files_follow_the_log(tmp_path: Path) -> None:
    async with rig_at(tmp_path, queue_file_bytes=20 * 10, delete_pause_ms=0) as rig:
        store = await rig.open()
        await fill(store)
        assert len(os.listdir(tmp_path / "consumequeue" / "T" / "0")) == 6
        await store.expiry.delete_before(3 * LOG_FILE)
        assert store.queues.min_offset("T", 0) == 24
        assert sorted(map(int, os.listdir(tmp_path / "consumequeue" / "T" / "0")))[0] == 400


async def test_by_the_clock(rig: Rig) -> None:
    store = await rig.open()
    await fill(store)
    files = log_files(rig.path)
    age(rig, 100, 2)
    await rig.clock.advance(59)
    assert log_files(rig.path) == files  # the first look comes after a minute
    rig.clock.step_wall(12 * HOUR_S * 1000)  # the hour set for deletion
    await rig.clock.advance(2)
    await passing(rig, asyncio.ensure_future(until(lambda: log_files(rig.path)[0] == files[2])))
    assert not store.state.obstacles


async def test_the_last_file_never_goes(rig: Rig) -> None:
    store = await rig.open(delete_pause_ms=0, delete_batch_max=1000)
    await fill(store, 20)
    await store.put("T", 0, b"newest")
    rig.disk.usage = usage(86)
    await store.expiry.check()
    last = store.segments.last
    assert last is not None
    assert [segment.start for segment in store.segments.all] == [last.start]
    assert (await bodies(store))[-1] == b"newest"


async def test_a_full_disk_refuses_and_recovers_by_itself(rig: Rig) -> None:
    store = await rig.open(delete_pause_ms=0, force_clean=False)
    await fill(store, 10)
    rig.disk.usage = usage(91)
    await store.expiry.check()
    with pytest.raises(
        NotWritable, match="disk full: the disk is 91% full, but no file may be deleted yet; free space"
    ):
        await store.put("T", 0, b"refused")
    assert len(await bodies(store)) == 10  # reading goes on
    rig.disk.usage = usage(88)
    await store.expiry.check()
    assert Obstacle.DISK_FULL in store.state.obstacles  # not yet: it would be full again at once
    rig.disk.usage = usage(85)
    await store.expiry.check()
    assert (await store.put("T", 0, b"taken"))[1] == 10


async def test_enough_free_bytes_beat_the_share(rig: Rig) -> None:
    store = await rig.open(delete_pause_ms=0, disk_free_enough=9 * MIB)
    await fill(store)
    rig.disk.usage = usage(91)  # nine megabytes are left
    verdict = await store.expiry.check()
    assert not verdict.disk_full
    assert verdict.delete_before is None
    rig.disk.usage = usage(92)
    verdict = await store.expiry.check()
    assert verdict.disk_full
    assert verdict.delete_before is not None
    assert "the disk is 92% full" in verdict.reason


async def test_a_full_disk_at_the_end_of_a_log_file_recovers_by_itself(tmp_path: Path) -> None:
    async with rig_at(tmp_path) as rig:
        store = await rig.open()
        await until(lambda: store.segments.next_ready)
        rig.disk.fill(0)
        stored = 0
        while store.state.writable:
            try:
                await store.put("T", 0, b"x" * 400)
            except NotWritable:
                break
            stored += 1
        with pytest.raises(NotWritable, match="disk full"):
            await store.put("T", 0, b"x" * 400)
        assert stored == 16  # two files
        await rig.clock.advance(120)
        await asyncio.sleep(0.01)
        rig.disk.make_room()
        await rig.clock.advance(120)
        await until(lambda: store.state.writable)
        assert (await store.put("T", 0, b"taken"))[1] == stored
        assert not store.state.fenced


async def test_a_full_disk_under_the_queues_recovers_by_itself(tmp_path: Path) -> None:
    """Entries wait in memory; no message is lost, and the store is not fenced for good."""
    async with rig_at(tmp_path, commit_log_file_bytes=1 << 20) as rig:
        store = await rig.open()
        await until(lambda: store.segments.next_ready)
        rig.disk.fill(0)
        await store.put("T", 0, b"1", props(KEYS="k1"))
        await store.housekeeper.flush()
        with pytest.raises(NotWritable, match="disk full: consume queues cannot be written"):
            await store.put("T", 0, b"2")
        assert not store.state.fenced
        assert await bodies(store) == [b"1"]
        rig.disk.make_room()
        await store.housekeeper.flush()
        assert (await store.put("T", 0, b"2"))[1] == 1
        assert store.state.writable
        await store.close()
        assert not (tmp_path / "abort").exists()


async def test_a_disk_that_is_full_just_after_the_start_is_looked_at_again_soon(tmp_path: Path) -> None:
    async with rig_at(tmp_path, commit_log_file_bytes=1 << 20, clean_interval_ms=2000) as rig:
        store = await rig.open()
        await until(lambda: store.segments.next_ready)
        rig.disk.fill(0)
        await store.put("T", 0, b"1", props(KEYS="k1"))
        await store.housekeeper.flush()
        assert not store.state.writable
        rig.disk.make_room()
        await rig.clock.advance(2.5)
        await until(lambda: store.state.writable)


async def test_queues_that_cannot_be_flushed_are_written_again(tmp_path: Path) -> None:
    async with rig_at(tmp_path, commit_log_file_bytes=1 << 20) as rig:
        store = await rig.open()
        await store.put("T", 0, b"1")
        rig.disk.fail_syncs(1, path_contains="/consumequeue/")
        await store.housekeeper.flush()
        assert store.failing.is_failing(Kind.QUEUE, "flush")
        assert store.notes.progress.load().dispatched == 0  # not noted as safe
        assert (await store.put("T", 0, b"2"))[1] == 1
        await store.housekeeper.flush()
        assert not store.failing.current
        assert store.state.writable
        await store.flusher.flush_all()
        await store.housekeeper.flush()
        assert store.notes.progress.load().dispatched == store.progress.appended
        # The kernel drops what it could not write, whatever a later flush answers.
        await rig.lose_power(store)
        store = await rig.open()
        assert await bodies(store) == [b"1", b"2"]


async def test_marks_follow_what_is_safe(tmp_path: Path) -> None:
    async with rig_at(tmp_path) as rig:
        store = await rig.open()
        _, _, size = await store.put("T", 0, b"1", props(KEYS="k"))
        await store.housekeeper.flush()
        marks = store.notes.progress.load()
        assert (marks.dispatched, marks.flushed) == (0, 0)  # the log is not flushed yet
        assert (marks.queues, marks.index_files, marks.log_end) == (1, 1, UNKNOWN)
        await store.flusher.flush_all()
        await rig.clock.advance(1)
        await until(lambda: store.notes.progress.load().dispatched == size)
        assert (
            store.notes.checkpoint.commit_log_ms
            == store.notes.checkpoint.queues_ms
            == store.log.last_store_timestamp
        )
        assert store.notes.checkpoint.index_ms == 0
        await store.close()
        marks = store.notes.progress.load()
        assert (marks.log_end, marks.queue_files) == (size, 1)


async def test_full_directories_get_no_new_files(tmp_path: Path) -> None:
    paths = f"{tmp_path}/a,{tmp_path}/b"
    async with rig_at(tmp_path / "store", commit_log_paths=paths) as rig:
        store = await rig.open(delete_pause_ms=0)
        await fill(store, 30)
        assert os.listdir(tmp_path / "a")
        assert os.listdir(tmp_path / "b")
        ratios = {"a": 0.86, "b": 0.2, "store": 0.2}
        rig.disk.used_ratio = lambda path, enough=0: ratios[os.path.basename(path)]  # type: ignore[method-assign,type-var]
        verdict = await store.expiry.check()
        assert (verdict.disk_full, verdict.delete_before) == (False, None)  # there is still room in the other
        assert store.segments.full_directories == {f"{tmp_path}/a"}
        ratios["a"] = 0.2
        await store.expiry.check()
        assert store.segments.full_directories == set()


async def test_closing_does_not_wait_for_gentle_deletion(rig: Rig) -> None:
    store = await rig.open(delete_pause_ms=60_000)
    await fill(store)
    age(rig, 100, 5)
    store.expiry.order()
    store.housekeeper.spawn(store.expiry.check())
    await until(lambda: store.log.min_offset > 0)
    await asyncio.wait_for(store.close(), 10)
    assert not (rig.path / "abort").exists()
    assert log_files(rig.path)[0] == LOG_FILE


async def test_what_goes_wrong_is_logged_and_goes_on(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    store = await rig.open()
    await fill(store, 20)
    (rig.path / "commitlog" / f"{0:020d}").unlink()
    await rig.clock.advance(61)
    await until(lambda: "old files of the log cannot be deleted" in caplog.text)
    assert (await store.put("T", 0, b"taken"))[1] == 20


async def test_old_files_that_cannot_be_removed_are_removed_later(rig: Rig) -> None:
    store = await rig.open()
    await fill(store)
    age(rig, 100, 5)
    store.expiry.order()
    rig.disk.fail(errno.EIO, Operation.REMOVE, path_contains="/commitlog/")
    await rig.clock.advance(61)
    await until(lambda: store.failing.is_failing(Kind.LOG, "clean"))
    assert store.state.writable
    assert store.log.min_offset == 0
    assert len(await bodies(store)) == 60
    rig.disk.mend()
    await passing(rig, asyncio.ensure_future(store.expiry.run()))
    assert not store.failing.current
    assert store.log.min_offset > 0
