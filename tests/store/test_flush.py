from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.store.dispatch.kit import SYNC, Rig, bodies, rig_at, until

from kerolox.store.errors import OffsetOutOfRange
from kerolox.store.log.acks import NotSafe
from kerolox.store.log.safe import Safe
from kerolox.store.message_store import MessageStore
from kerolox.store.queue.reading import ReadStatus
from kerolox.store.state import NotWritable, Obstacle

LOG = "/commitlog/"


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with rig_at(tmp_path, commit_log_file_bytes=1 << 20) as rig:
        yield rig


def log_syncs(rig: Rig) -> int:
    """Flushes of the log file being written."""
    return rig.disk.synced_paths[str(rig.path / "commitlog" / f"{0:020d}")]


def append(store: MessageStore, body: bytes, topic: str = "T") -> int:
    """Append without waiting; where the record ends."""
    cursor = store.log.cursor(topic, 0)
    physical, _, size = store.log.append(cursor, body, born_timestamp=1, born_host=bytes(8))
    return physical + size


# --- synchronous ------------------------------------------------------------------------------------


async def test_one_flush_serves_all_who_wait(rig: Rig) -> None:
    store = await rig.open(flush_mode=SYNC)
    await until(lambda: store.segments.next_ready)  # making it flushes the first file once
    before = log_syncs(rig)
    ends = [append(store, b"%d" % i) for i in range(100)]
    store.log.write()
    await asyncio.gather(*(store.acks.safe(end) for end in ends))
    assert log_syncs(rig) - before == 1
    assert await bodies(store) == [b"%d" % i for i in range(100)]


async def test_who_comes_during_a_flush_waits_for_the_next_one(rig: Rig) -> None:
    store = await rig.open(flush_mode=SYNC)
    await until(lambda: store.segments.next_ready)  # making it flushes the first file once
    before = log_syncs(rig)
    rig.disk.stall_syncs()
    first = asyncio.ensure_future(store.put("T", 0, b"first"))
    await asyncio.sleep(0)
    assert await asyncio.to_thread(rig.disk.wait_for_stalled_sync)
    later = [asyncio.ensure_future(store.put("T", 0, b"%d" % i)) for i in range(50)]
    await asyncio.sleep(0)
    assert not first.done()
    rig.disk.release_syncs()
    await first
    await asyncio.gather(*later)
    assert log_syncs(rig) - before == 2
    assert store.flusher.flushes == 2


async def test_put_returns_when_it_is_flushed_and_not_before(rig: Rig) -> None:
    store = await rig.open(flush_mode=SYNC)
    rig.disk.stall_syncs()
    put = asyncio.ensure_future(store.put("T", 0, b"body"))
    await asyncio.sleep(0)
    assert await asyncio.to_thread(rig.disk.wait_for_stalled_sync)
    # Neither acknowledged nor seen: dispatch follows what is flushed.
    assert not put.done()
    assert (await store.queues.read("T", 0, 0)).status is ReadStatus.NO_MATCHED_LOGIC_QUEUE
    assert (store.progress.appended, store.progress.confirmed) == (96, 0)
    assert len(store.log.undispatched) == 1
    rig.disk.release_syncs()
    assert await put == (0, 0, 96)
    assert await bodies(store) == [b"body"]
    assert store.progress.flushed == store.progress.confirmed == store.dispatcher.dispatched == 96


async def test_a_flush_that_takes_too_long(rig: Rig) -> None:
    store = await rig.open(flush_mode=SYNC)
    rig.disk.stall_syncs()
    first = asyncio.ensure_future(store.put("T", 0, b"first"))
    await asyncio.sleep(0)
    assert await asyncio.to_thread(rig.disk.wait_for_stalled_sync)
    await rig.clock.advance(3)
    second = asyncio.ensure_future(store.put("T", 0, b"second"))
    await rig.clock.advance(1.75)
    assert not first.done()
    await rig.clock.advance(0.25)
    with pytest.raises(NotSafe, match="stored, but not flushed within 5000 ms") as late:
        await first
    assert late.value.code == 10
    assert not second.done()  # it came three seconds later
    assert store.state.writable
    # The loop goes on meanwhile.
    assert (await store.queues.read("T", 0, 0)).status is ReadStatus.NO_MATCHED_LOGIC_QUEUE
    rig.disk.release_syncs()
    assert (await second)[1] == 1
    assert await bodies(store) == [b"first", b"second"]


async def test_a_message_may_not_wait(rig: Rig) -> None:
    store = await rig.open(flush_mode=SYNC)
    answers: list[Safe] = []
    store.flusher.wait_safe(0, answers.append)
    assert answers == [Safe.YES]


async def test_a_failed_flush_fences_for_good(rig: Rig) -> None:
    store = await rig.open(flush_mode=SYNC)
    await store.put("T", 0, b"kept")
    rig.disk.fail_syncs(1, path_contains=LOG)  # the next would succeed: it must not be asked
    puts = [asyncio.ensure_future(store.put("T", 0, b"lost %d" % i)) for i in range(3)]
    failed = await asyncio.gather(*puts, return_exceptions=True)
    assert all(isinstance(error, NotWritable) for error in failed)
    assert "fenced: a flush failed: flush of" in str(failed[0])
    syncs = log_syncs(rig)
    with pytest.raises(NotWritable, match="fenced: a flush failed"):
        await store.put("T", 0, b"refused")
    answers: list[Safe] = []
    store.flusher.wait_safe(1 << 40, answers.append)
    assert answers == [Safe.FAILED]
    for _ in range(3):
        await rig.clock.advance(10)
    await asyncio.sleep(0.01)
    assert log_syncs(rig) == syncs
    assert await bodies(store) == [b"kept"]
    await store.close()
    assert (rig.path / "abort").exists()


async def test_who_waits_hears_of_a_fence_from_elsewhere(rig: Rig) -> None:
    store = await rig.open(flush_mode=SYNC)
    rig.disk.stall_syncs()
    first = asyncio.ensure_future(store.put("T", 0, b"first"))
    await asyncio.sleep(0)
    assert await asyncio.to_thread(rig.disk.wait_for_stalled_sync)
    second = asyncio.ensure_future(store.put("T", 0, b"second"))
    await asyncio.sleep(0)
    store.state.set(Obstacle.FENCED, "a test")
    for put in (first, second):
        with pytest.raises(NotWritable, match="fenced: a test"):
            await put
    rig.disk.release_syncs()


async def test_the_fence_is_raised_by_flush_all(rig: Rig) -> None:
    store = await rig.open()
    append(store, b"1")
    store.log.write()
    rig.disk.fail_syncs(1, path_contains=LOG)
    with pytest.raises(NotWritable, match="a flush failed"):
        await store.flusher.flush_all()
    with pytest.raises(NotWritable):
        await store.flusher.flush_all()


async def test_after_a_fence_marks_claim_no_more_than_was_flushed(rig: Rig) -> None:
    """The kernel drops what it could not write: the next start must read it again, not trust it."""
    store = await rig.open()
    await store.put("T", 0, b"flushed")
    await store.flusher.flush_all()
    flushed = store.progress.flushed
    await store.put("T", 0, b"not flushed")
    rig.disk.fail_syncs(1, path_contains=LOG)
    with pytest.raises(NotWritable):
        await store.flusher.flush_all()
    await store.close()
    marks = store.notes.progress.load()
    assert (marks.dispatched, marks.log_end) == (min(marks.dispatched, flushed), -1)
    assert (rig.path / "abort").exists()
    store = await rig.open()
    assert store.recovered is not None
    assert store.recovered.crashed
    assert store.recovered.start <= flushed


async def test_closed(rig: Rig) -> None:
    store = await rig.open(flush_mode=SYNC)
    await store.put("T", 0, b"1")
    await store.close()
    with pytest.raises(NotWritable, match="closed: the store was closed"):
        await store.put("T", 0, b"2")
    answers: list[Safe] = []
    store.flusher.wait_safe(1 << 40, answers.append)
    assert answers == [Safe.FAILED]
    await store.close()


# --- by interval ------------------------------------------------------------------------------------


async def test_intervals_and_least_pages(rig: Rig) -> None:
    store = await rig.open()
    append(store, b"x" * 100)
    store.log.write()
    for _ in range(19):  # half a second each: not enough pages yet
        await rig.clock.advance(0.5)
    assert store.flusher.flushes == 0
    await rig.clock.advance(0.5)  # ten seconds: whatever there is
    await until(lambda: store.flusher.flushes == 1)
    assert store.progress.flushed == store.progress.appended
    append(store, b"x" * (4 * 4096))
    store.log.write()
    await rig.clock.advance(0.25)
    assert store.flusher.flushes == 1
    await rig.clock.advance(0.25)
    await until(lambda: store.flusher.flushes == 2)
    await rig.clock.advance(20)  # nothing new
    assert store.flusher.flushes == 2


async def test_what_a_flush_covers_is_noted_by_time(rig: Rig) -> None:
    store = await rig.open()
    rig.clock.step_wall(1000)
    append(store, b"1")
    store.log.write()
    first_ms = store.log.last_store_timestamp
    rig.disk.stall_syncs()
    store.flusher.flush_soon()
    assert await asyncio.to_thread(rig.disk.wait_for_stalled_sync)
    rig.clock.step_wall(1000)
    append(store, b"2")
    store.log.write()
    rig.disk.release_syncs()
    await until(lambda: store.flusher.flushes == 1)
    assert store.flusher.flushed_store_timestamp == first_ms
    await store.flusher.flush_all()
    assert store.flusher.flushed_store_timestamp == first_ms + 1000


async def test_flushes_never_run_on_the_loop(rig: Rig) -> None:
    store = await rig.open(flush_mode=SYNC)
    threads: set[int] = set()
    flush = store.segments.flush
    store.segments.flush = lambda: (threads.add(threading.get_ident()), flush())[1]  # type: ignore[method-assign]
    for i in range(5):
        await store.put("T", 0, b"%d" % i)
    assert len(threads) == 1
    assert threading.get_ident() not in threads


# --- the transient buffer -----------------------------------------------------------------------------


async def test_transient_messages_are_seen_when_committed(rig: Rig) -> None:
    store = await rig.open(transient=True)
    physical, _, size = await store.put("T", 0, b"body")
    assert (store.progress.appended, store.progress.committed, store.progress.confirmed) == (size, 0, 0)
    assert (await store.queues.read("T", 0, 0)).status is ReadStatus.NO_MATCHED_LOGIC_QUEUE
    with pytest.raises(OffsetOutOfRange):
        store.log.read_hot(physical, size)
    await rig.clock.advance(0.19)
    assert store.progress.confirmed == 0
    await rig.clock.advance(0.02)
    assert store.progress.committed == store.progress.confirmed == size
    assert await bodies(store) == [b"body"]
    assert store.progress.flushed == 0


async def test_transient_and_synchronous(rig: Rig) -> None:
    store = await rig.open(transient=True, flush_mode=SYNC)
    assert await store.put("T", 0, b"body") == (0, 0, 96)
    assert store.progress.flushed == 96
    assert await bodies(store) == [b"body"]
    await rig.lose_power(store)
    assert await bodies(await rig.open()) == [b"body"]


async def test_a_killed_process_loses_what_was_not_committed(rig: Rig) -> None:
    store = await rig.open(transient=True)
    await store.put("T", 0, b"committed")
    await rig.clock.advance(0.2)
    await store.put("T", 0, b"in memory only")
    await rig.kill(store)
    store = await rig.open(transient=True)
    assert await bodies(store) == [b"committed"]
    assert (await store.put("T", 0, b"next"))[1] == 1


async def test_a_commit_that_fails_fences(rig: Rig) -> None:
    store = await rig.open(transient=True)
    await store.put("T", 0, b"body")
    rig.disk.read_only = True
    await rig.clock.advance(0.2)
    assert store.state.fenced
    with pytest.raises(NotWritable, match="a flush failed: cannot write"):
        await store.put("T", 0, b"body")
    rig.disk.read_only = False


async def test_a_transient_log_rolls(tmp_path: Path) -> None:
    async with rig_at(tmp_path, transient=True) as rig:
        store = await rig.open()
        for i in range(40):
            await store.put("T", 0, b"%d" % i * 100)
        await store.close()
        assert not (tmp_path / "abort").exists()
        store = await rig.open()
        assert await bodies(store) == [b"%d" % i * 100 for i in range(40)]
