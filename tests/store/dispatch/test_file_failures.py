"""Failures of files in a store at work: nothing lost, nothing fenced that can be made again, each ends."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.store.dispatch.kit import bodies, props, rig_at, until

from kerolox.store.errors import Operation, StoreError
from kerolox.store.failures import Kind
from kerolox.store.message_store import MessageStore
from kerolox.store.state import NotWritable, Obstacle

BIG = {"commit_log_file_bytes": 1 << 20, "index_entries": 2000}
MANY = 500  # entries on several pages, and in several files
QUEUES, INDEX, LOG = "/consumequeue/", "/index/", "/commitlog/"


def standing(caplog: pytest.LogCaptureFixture) -> list[str]:
    words = ("store_failing", "store_not_writable")
    return [record.getMessage() for record in caplog.records if record.getMessage().startswith(words)]


async def look_at_all(store: MessageStore, expected: list[bytes]) -> None:
    assert await bodies(store) == expected
    for number in range(len(expected)):
        assert len(await store.find_by_key("T", f"k{number}")) == 1


async def put(store: MessageStore, number: int) -> None:
    await store.put("T", 0, b"%d" % number, props(KEYS=f"k{number}"))


@pytest.mark.parametrize(
    ("kind", "fault"),
    [
        (Kind.QUEUE, lambda disk: disk.fail_syncs(1, path_contains=QUEUES)),
        (Kind.QUEUE, lambda disk: disk.fail(errno.EIO, Operation.WRITE, path_contains=QUEUES, count=1)),
        (Kind.QUEUE, lambda disk: disk.fail(errno.EIO, Operation.CREATE, path_contains=QUEUES, count=1)),
        (Kind.QUEUE, lambda disk: disk.fail(errno.EACCES, Operation.CREATE, path_contains=QUEUES, count=3)),
        (Kind.INDEX, lambda disk: disk.fail_syncs(1, path_contains=INDEX)),
        (Kind.INDEX, lambda disk: disk.fail_syncs(2, path_contains=INDEX)),
        (Kind.INDEX, lambda disk: disk.fail(errno.EIO, Operation.WRITE, path_contains=INDEX, count=1)),
        (Kind.INDEX, lambda disk: disk.fail(errno.EIO, Operation.CREATE, path_contains=INDEX, count=1)),
        (Kind.CHECKPOINT, lambda disk: disk.fail_syncs(1, path_contains="/checkpoint")),
        (Kind.CHECKPOINT, lambda disk: disk.fail(errno.EIO, Operation.WRITE, path_contains="/checkpoint")),
        (Kind.CHECKPOINT, lambda disk: disk.fail_syncs(1, path_contains="kerolox.marks")),
        (Kind.SUMS, lambda disk: disk.fail(errno.EIO, Operation.RENAME, path_contains="kerolox.sums")),
    ],
)
async def test_what_can_be_made_again_fences_nothing(
    tmp_path: Path, kind: Kind, fault: Callable[[object], None], caplog: pytest.LogCaptureFixture
) -> None:
    async with rig_at(tmp_path, **BIG) as rig:
        store = await rig.open()
        fault(rig.disk)
        for number in range(MANY):
            await put(store, number)
        await store.flusher.flush_all()
        await store.housekeeper.flush(sums=True)
        assert [of for of, _ in store.failing.current] == [kind]
        assert store.state.writable
        assert store.failing.reasons()
        assert len(standing(caplog)) == 1
        await put(store, MANY)  # on the last page: the others stay as the kernel left them
        for _ in range(3):
            await store.housekeeper.flush(sums=True)
        rig.disk.mend()
        await store.housekeeper.flush(sums=True)
        assert not store.failing.current
        assert len(standing(caplog)) == 1
        assert "store_works_again" in caplog.text
        await store.flusher.flush_all()
        await store.housekeeper.flush(sums=True)
        assert store.notes.progress.load().dispatched == store.progress.appended
        expected = [b"%d" % number for number in range(MANY + 1)]
        await look_at_all(store, expected)
        # The kernel has dropped what a failed flush covered, whatever a later flush answered.
        await rig.lose_power(store)
        caplog.clear()
        store = await rig.open()
        await look_at_all(store, expected)
        assert "replaced" not in caplog.text
        assert "damaged" not in caplog.text


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
async def test_a_lack_of_descriptors_under_the_queues_ends_by_itself(tmp_path: Path, number: int) -> None:
    async with rig_at(tmp_path, **BIG) as rig:
        store = await rig.open()
        await put(store, 0)
        rig.disk.fail(number, Operation.CREATE, path_contains=QUEUES)
        await store.housekeeper.flush()
        assert list(store.state.obstacles) == [Obstacle.NO_DESCRIPTOR]
        with pytest.raises(NotWritable, match=r"too many open files: .*consumequeue") as caught:
            await put(store, 1)
        assert caught.value.retriable
        rig.disk.mend()
        await rig.clock.advance(3)
        await until(lambda: store.state.writable)
        await put(store, 1)
        await look_at_all(store, [b"0", b"1"])


async def test_a_lack_of_descriptors_in_the_dispatcher_ends_by_itself(tmp_path: Path) -> None:
    """A queue whose tail is full writes while messages are dispatched."""
    async with rig_at(tmp_path, **BIG) as rig:
        store = await rig.open()
        await until(lambda: store.segments.next_ready)
        rig.disk.fail(errno.EMFILE, Operation.CREATE, path_contains=QUEUES)
        stored = 0
        while store.state.writable:
            await store.put("T", 0, b"")
            stored += 1
        assert list(store.state.obstacles) == [Obstacle.NO_DESCRIPTOR]
        assert stored > 3000
        rig.disk.mend()
        await store.housekeeper.flush()
        assert store.state.writable
        assert store.queues.max_offset("T", 0) == stored
        assert (await store.put("T", 0, b""))[1] == stored


async def test_an_unwritable_queue_stops_sends_when_memory_is_full(tmp_path: Path) -> None:
    async with rig_at(tmp_path, **BIG) as rig:
        store = await rig.open()
        rig.disk.fail(errno.EIO, Operation.WRITE, path_contains=QUEUES)
        stored = 0
        while store.state.writable:
            await store.put("T", 0, b"")
            stored += 1
        assert list(store.state.obstacles) == [Obstacle.BEHIND]
        rig.disk.mend()
        await store.housekeeper.flush()
        assert store.state.writable
        assert store.queues.max_offset("T", 0) == stored


async def test_a_lack_of_descriptors_in_the_flusher_ends_by_itself(tmp_path: Path) -> None:
    async with rig_at(tmp_path, **BIG) as rig:
        store = await rig.open()
        await put(store, 0)
        store.segments.close_idle()
        rig.disk.fail(errno.EMFILE, Operation.OPEN, path_contains=LOG)
        with pytest.raises(StoreError, match="Too many open files"):
            await store.flusher.flush_all()
        assert list(store.state.obstacles) == [Obstacle.NO_DESCRIPTOR]
        with pytest.raises(NotWritable):
            await put(store, 1)
        rig.disk.mend()
        await rig.clock.advance(1.5)
        await until(lambda: store.state.writable)
        assert store.progress.flushed == store.progress.appended
        await put(store, 1)
        await rig.lose_power(store)
        assert (await bodies(await rig.open()))[:1] == [b"0"]


async def test_a_lack_of_descriptors_for_an_append_ends_by_itself(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with rig_at(tmp_path, **BIG) as rig:
        store = await rig.open()
        await put(store, 0)
        store.segments.close_idle()
        rig.disk.fail(errno.EMFILE, Operation.OPEN, path_contains=LOG)
        with pytest.raises(StoreError, match="Too many open files"):
            await put(store, 1)
        with pytest.raises(NotWritable, match="too many open files"):
            await put(store, 1)
        for _ in range(5):  # tried again once a round, and said once
            await rig.clock.advance(1.1)
            with pytest.raises(StoreError, match="Too many open files"):
                await put(store, 1)
        assert len(standing(caplog)) == 1
        rig.disk.mend()
        await rig.clock.advance(2)
        await until(lambda: store.state.writable)
        await put(store, 1)
        await look_at_all(store, [b"0", b"1"])
        assert not store.failing.current


@pytest.mark.parametrize(
    ("number", "obstacle"),
    [
        (errno.EIO, Obstacle.NO_NEXT_FILE),
        (errno.EACCES, Obstacle.NO_NEXT_FILE),
        (errno.ENOSPC, Obstacle.DISK_FULL),
        (errno.EDQUOT, Obstacle.DISK_FULL),
        (errno.EMFILE, Obstacle.NO_DESCRIPTOR),
    ],
)
async def test_a_log_that_cannot_roll_says_so_once_and_goes_on(
    tmp_path: Path, number: int, obstacle: Obstacle, caplog: pytest.LogCaptureFixture
) -> None:
    async with rig_at(tmp_path) as rig:
        store = await rig.open()
        await until(lambda: store.segments.next_ready)
        rig.disk.fail(number, Operation.CREATE, path_contains=LOG)
        stored = refused = 0
        while refused < 200:
            try:
                await store.put("T", 0, b"x" * 400)
                stored += 1
            except NotWritable:
                refused += 1
            if refused % 50 == 49:
                await rig.clock.advance(1.1)
                await asyncio.sleep(0.001)
        assert stored == 16  # two files
        assert list(store.state.obstacles) == [obstacle]
        assert len(standing(caplog)) == 1
        assert not store.state.fenced
        with pytest.raises(NotWritable) as caught:
            store.state.check_writable()
        assert caught.value.retriable
        rig.disk.mend()
        for _ in range(4):
            await rig.clock.advance(1.1)
            await asyncio.sleep(0.01)
        await until(lambda: store.state.writable)
        assert (await store.put("T", 0, b"x" * 400))[1] == stored
        assert not store.failing.current


async def test_a_failed_unlink_of_a_deleted_topic_fences_nothing(tmp_path: Path) -> None:
    async with rig_at(tmp_path, **BIG) as rig:
        store = await rig.open()
        for number in range(120):  # three files
            await store.put("Gone", 0, b"%d" % number)
            await store.put("T", 0, b"%d" % number)
        await store.housekeeper.flush()
        rig.disk.fail(errno.EIO, Operation.REMOVE, path_contains="consumequeue")
        assert await store.delete_topic("Gone")
        assert list(store.failing.current) == [(Kind.QUEUE, "remove")]
        assert (await store.put("Gone", 0, b"anew"))[1] == 0
        await store.put("T", 0, b"other")
        await store.put("Other", 0, b"1")
        assert await store.delete_topic("Other")  # as for every topic
        await store.flusher.flush_all()
        await store.housekeeper.flush()
        assert store.notes.progress.load().dispatched == store.progress.appended
        assert store.state.writable
        await store.close()
        store = await rig.open()  # removing fails still
        assert (await bodies(store, "Gone"), store.queues.max_offset("T", 0)) == ([b"anew"], 121)
        rig.disk.mend()
        await store.delete_topic("Gone")
        await store.housekeeper.flush()
        assert not list((tmp_path / "consumequeue.gone").iterdir())
        assert not store.failing.current


async def test_a_topic_that_cannot_be_moved_aside_stays(tmp_path: Path) -> None:
    async with rig_at(tmp_path, **BIG) as rig:
        store = await rig.open()
        await store.put("T", 0, b"1")
        await store.housekeeper.flush()
        rig.disk.fail(errno.EIO, Operation.RENAME, path_contains=QUEUES)
        with pytest.raises(StoreError, match="rename"):
            await store.delete_topic("T")
        assert store.queues.max_offset("T", 0) == 1
        rig.disk.mend()
        assert await store.delete_topic("T")
        assert (await store.put("T", 0, b"2"))[1] == 0


async def test_a_queue_that_cannot_be_looked_for_is_dispatched_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A failure of the disk was once taken for a damaged record: the queue got none of its messages."""
    async with rig_at(tmp_path) as rig:
        store = await rig.open()
        rig.disk.fail_reads(path_contains="consumequeue_ext/T")
        await put(store, 0)
        assert store.failing.is_failing(Kind.QUEUE, "dispatch")
        assert store.queues.find("T", 0) is None
        assert len(standing(caplog)) == 1
        assert "record_without_queue" not in caplog.text
        rig.disk.fail_reads(None, path_contains="consumequeue_ext/T")
        await rig.clock.advance(2)
        await until(lambda: store.state.writable)
        await put(store, 1)
        assert await bodies(store) == [b"0", b"1"]
