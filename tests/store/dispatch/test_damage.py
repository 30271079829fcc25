"""Damaged consume queues and key indexes: found at the start, said, and made again from the log."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kerolox.protocol.reserved import SCHEDULE_TOPIC
from kerolox.store import opening, saving
from kerolox.store.disk.sums import NAME as SUMS
from kerolox.store.message_store import MessageStore
from kerolox.store.queue.entry import SIMPLE
from kerolox.store.queue.read_check import DamagedMessage

from .kit import LOG_FILE, Rig, bodies, flip, messages, overwrite, props, rig_at

COUNT = 240  # of two topics, two queues each: more than a file holds


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with rig_at(tmp_path / "store", index_entries=4000, delete_pause_ms=0) as rig:
        yield rig


async def fill(store: MessageStore, first: int = 0, count: int = COUNT) -> None:
    for number in range(first, first + count):
        topic, queue_id = "AB"[number % 2], number // 2 % 2
        await store.put(topic, queue_id, b"<%d>" % number, props(KEYS=f"k{number}", TAGS=f"t{number % 3}"))


async def check(store: MessageStore, count: int = COUNT) -> None:
    """Every message is where it was, is found by its key, and by its tag alone."""
    for which, topic in enumerate("AB"):
        for queue_id in (0, 1):
            numbers = range(which + 2 * queue_id, count, 4)
            assert await bodies(store, topic, queue_id) == [b"<%d>" % number for number in numbers]
            assert store.queues.max_offset(topic, queue_id) == len(numbers)
            queue = store.queues.find(topic, queue_id)
            assert queue is not None
    for number in range(count):
        found = await store.find_by_key("AB"[number % 2], f"k{number}")
        assert len(found) == 1, number
        assert b"<%d>" % number in found[0]


async def entries(store: MessageStore) -> dict[tuple[str, int], bytes]:
    return {(queue.topic, queue.queue_id): queue.read(0, queue.next_offset) for queue in store.consume_queues}


async def left(rig: Rig, how: str) -> dict[tuple[str, int], bytes]:
    """A store that was stopped or killed, or that another broker left: without any note of ours."""
    store = await rig.open()
    await fill(store)
    before = await entries(store)
    if how == "killed":
        await store.flusher.flush_all()
        await store.housekeeper.flush()
        await rig.kill(store)
    else:
        await store.close()
    if how == "foreign":
        for name in (SUMS, "kerolox.marks"):
            (rig.path / name).unlink()
    return before


@pytest.mark.parametrize("how", ["stopped", "killed", "foreign"])
async def test_any_byte_of_a_queue(
    rig: Rig, tmp_path: Path, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The first, middle and last entries of a file, each of their bytes: once all behind it was dropped."""
    before = await left(rig, how)
    image = tmp_path / "image"
    shutil.copytree(rig.path, image)
    path = rig.path / "consumequeue" / "A" / "0" / f"{0:020d}"
    for entry in (0, 10, 49):
        for byte in range(SIMPLE.size):
            shutil.rmtree(rig.path)
            shutil.copytree(image, rig.path)
            flip(path, entry * SIMPLE.size + byte)
            caplog.clear()
            store = await rig.open()
            assert await entries(store) == before, (entry, byte)
            if how != "killed":
                assert "queue_damaged topic='A' queue=0" in caplog.text, (entry, byte)
            assert (await store.put("A", 0, b""))[1] == COUNT // 4
            await rig.kill(store)


@pytest.mark.parametrize("how", ["stopped", "killed", "foreign"])
async def test_zeroed_entries(rig: Rig, how: str, caplog: pytest.LogCaptureFixture) -> None:
    """In the middle of a file, at its end, and all of the last file, which looks like the queue's end."""
    before = await left(rig, how)
    for topic, first, count, file in (("A", 20, 3, 0), ("B", 45, 5, 0), ("B", 0, 10, 1)):
        path = rig.path / "consumequeue" / topic / "1" / f"{file * 50 * SIMPLE.size:020d}"
        overwrite(path, first * SIMPLE.size, bytes(count * SIMPLE.size))
    store = await rig.open()
    assert await entries(store) == before
    if how == "stopped":
        assert "queue_damaged topic='A' queue=1" in caplog.text
        assert "queue_damaged topic='B' queue=1" in caplog.text
    await check(store)
    await store.close()
    caplog.clear()
    store = await rig.open()
    assert not caplog.records
    await check(store)


async def test_damage_in_what_older_files_hold_is_found_without_reading_the_log(rig: Rig) -> None:
    """Sums are of all files, not of the last three."""
    store = await rig.open()
    await fill(store, 0, 4 * 300)
    before = await entries(store)
    await store.close()
    flip(rig.path / "consumequeue" / "A" / "0" / f"{0:020d}", 15)  # a tag: nothing else looks wrong
    store = await rig.open()
    assert await entries(store) == before


@pytest.mark.parametrize("how", ["stopped", "foreign"])
@pytest.mark.parametrize("at", [0, 20, 36, 45, 100, 460, 461, 470, 478])
async def test_any_part_of_the_index(rig: Rig, how: str, at: int, caplog: pytest.LogCaptureFixture) -> None:
    await left(rig, how)
    (path,) = (rig.path / "index").iterdir()
    flip(path, at)
    store = await rig.open()
    assert "index" in caplog.text or how == "foreign"
    await check(store)


async def test_a_deleted_topic_stays_deleted(rig: Rig) -> None:
    """Though its messages are in what is read again, for another queue."""
    store = await rig.open()
    await fill(store)
    await store.delete_topic("B")
    await store.put("B", 0, b"anew")
    before = await entries(store)
    await store.close()
    flip(rig.path / "consumequeue" / "A" / "0" / f"{0:020d}", 15)
    flip(rig.path / "consumequeue" / "B" / "0" / f"{0:020d}", 15)
    store = await rig.open()
    assert await entries(store) == before


async def test_a_queue_whose_messages_left_the_log_goes_on_counting(rig: Rig) -> None:
    store = await rig.open()
    for number in range(70):
        await store.put("old", 0, b"%d" % number)
    await fill(store)
    await store.expiry.delete_before(store.segments.all[-2].start)
    assert store.queues.find("old", 0) is not None
    await store.close()
    files = sorted((rig.path / "consumequeue" / "old" / "0").iterdir())
    flip(files[-1], 3)
    store = await rig.open()
    assert store.queues.max_offset("old", 0) == 70
    assert (await store.put("old", 0, b"x"))[1] == 70
    assert await bodies(store, "old") == [b"x"]


@pytest.mark.parametrize("how", ["stopped", "foreign"])
async def test_the_time_a_delayed_message_is_due(rig: Rig, how: str) -> None:
    store = await rig.open()
    for number in range(5):
        await store.put(SCHEDULE_TOPIC, 2, b"%d" % number, props(DELAY="3", REAL_TOPIC="A", REAL_QID="0"))
    before = await entries(store)
    await store.close()
    if how == "foreign":
        for name in (SUMS, "kerolox.marks"):
            (rig.path / name).unlink()
    flip(rig.path / "consumequeue" / SCHEDULE_TOPIC / "2" / f"{0:020d}", 3 * SIMPLE.size + 14)
    store = await rig.open()
    assert await entries(store) == before


@pytest.mark.parametrize("content", [b"", b"garbage", b"{}\n0000000000\n", None])
async def test_sums_that_do_not_read(
    rig: Rig, content: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    before = await left(rig, "stopped")
    if content is None:
        flip(rig.path / SUMS, 40)
    else:
        (rig.path / SUMS).write_bytes(content)
    flip(rig.path / "consumequeue" / "A" / "0" / f"{0:020d}", 15)
    store = await rig.open()
    assert "sums_ignored" in caplog.text
    assert "queue_damaged topic='A' queue=0" in caplog.text
    assert await entries(store) == before


async def test_a_large_log_is_not_compared(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    await left(rig, "foreign")
    monkeypatch.setattr(opening, "COMPARED_BYTES_MAX", 0)
    monkeypatch.setattr(opening, "CHECKED_BYTES", 300)  # as if the log were long
    store = await rig.open()
    assert store.recovered is not None
    assert store.recovered.start > 0
    await check(store)


@pytest.mark.parametrize("at", [0, 4, 9, 14, 22, 30, 90])
async def test_damage_that_no_start_reads_is_found_by_who_reads_it(
    rig: Rig, at: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the log far before its end: the read fails and says where, it neither skips nor invents."""
    store = await rig.open()
    places = [await store.put("A", 0, b"<%d>" % number * 9) for number in range(COUNT)]
    monkeypatch.setattr(saving, "CHECKED_BYTES", 300)  # as if the log were long
    await store.close()
    physical, offset, _ = places[20]
    flip(rig.path / "commitlog" / f"{physical // LOG_FILE * LOG_FILE:020d}", physical % LOG_FILE + at)
    store = await rig.open()
    assert store.recovered is not None
    assert store.recovered.start > physical
    with pytest.raises(DamagedMessage, match=f"message {offset} of .*--skip {physical} "):
        await store.queues.read("A", 0, 18)
    assert "message_damaged" in caplog.text
    read = await store.queues.read("A", 0, offset + 1)
    assert messages(read)[0].queue_offset == offset + 1
    read = await store.queues.read("A", 0, offset - 3, 2)
    assert [message.queue_offset for message in messages(read)] == [offset - 3, offset - 2]


async def test_an_entry_that_became_another_while_running(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue that points at another message than it did, in a part no start has read."""
    store = await rig.open()
    for number in range(COUNT):
        await store.put("A", 0, b"<%d>" % (number % 10))
    monkeypatch.setattr(saving, "CHECKED_BYTES", 0)
    await store.close()
    store = await rig.open()
    path = rig.path / "consumequeue" / "A" / "0" / f"{0:020d}"
    overwrite(path, 7 * SIMPLE.size, path.read_bytes()[3 * SIMPLE.size : 4 * SIMPLE.size])
    with pytest.raises(DamagedMessage, match=r"offset 3 in queue 0 of 'A'.*--queues"):
        await store.queues.read("A", 0, 5)
