"""What follows the log: queues, light queues, delayed messages, transactions, keys."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.store.dispatch.kit import SYNC, Rig, bodies, messages, props, rig_at

from kerolox.protocol.java import java_hash
from kerolox.protocol.record_scan import PHYSICAL_OFFSET, Entry
from kerolox.store.errors import DiskFull, StoreError, disk_error
from kerolox.store.queue.entry import HOLE_TAGS, SIMPLE
from kerolox.store.queue.reading import ReadStatus
from kerolox.store.state import NotWritable, Obstacle

SENT = {"born_timestamp": 1, "born_host": bytes(8)}


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with rig_at(tmp_path) as rig:
        yield rig


# --- the dispatcher ----------------------------------------------------------------------------------


async def test_everyone_gets_every_record_once_and_in_order(rig: Rig) -> None:
    store = await rig.open()
    got: list[int] = []
    in_queue: list[bool] = []

    def follow(entries: list[Entry]) -> None:
        got.extend(entry[PHYSICAL_OFFSET] for entry in entries)
        in_queue.append(store.queues.max_offset("T", 0) == len(got))

    store.dispatcher.listeners.append(follow)
    places = [(await store.put("T", 0, b"x" * 300))[0] for _ in range(40)]
    assert got == places
    assert all(in_queue)  # the queue first: whoever is told can read
    assert store.dispatcher.dispatched == store.progress.appended


async def test_dispatch_follows_what_is_confirmed(rig: Rig) -> None:
    store = await rig.open()
    store.progress.replicated = 0
    ends = [sum((await store.put("T", 0, b"%d" % i))[::2]) for i in range(3)]
    assert store.queues.max_offset("T", 0) == 0
    store.progress.replicated = ends[1] + 5  # half of the third
    store.progress.advance()
    assert (store.queues.max_offset("T", 0), store.dispatcher.dispatched) == (2, ends[1])
    assert (await store.queues.read("T", 0, 2)).status is ReadStatus.OFFSET_OVERFLOW_ONE
    store.progress.replicated = ends[2]
    store.progress.advance()
    assert await bodies(store) == [b"0", b"1", b"2"]


async def test_what_is_not_dispatched_keeps_the_sign_of_a_crash(rig: Rig) -> None:
    store = await rig.open()
    store.progress.replicated = 0
    await store.put("T", 0, b"1")
    await store.close()
    assert (rig.path / "abort").exists()
    assert store.notes.progress.load().dispatched == 0
    assert await bodies(await rig.open()) == [b"1"]


@pytest.mark.parametrize(
    "error",
    [
        disk_error(OSError(errno.ENOSPC, "no space left"), "write", "q"),
        StoreError("broken"),
        KeyError("a defect"),
    ],
)
async def test_a_queue_that_is_not_filled_is_no_matter_of_the_sender(rig: Rig, error: Exception) -> None:
    store = await rig.open()
    fill = store.queue_filler.fill
    failing = [error]

    def fail(entries: list[Entry]) -> None:
        if failing:
            raise failing.pop()
        fill(entries)

    store.dispatcher.fillers[0] = fail
    assert (await store.put("T", 0, b"stored"))[1] == 0
    assert store.queues.max_offset("T", 0) == 0
    full = isinstance(error, DiskFull)
    assert list(store.state.obstacles) == [Obstacle.DISK_FULL if full else Obstacle.FENCED]
    with pytest.raises(NotWritable, match="messages cannot be dispatched"):
        await store.put("T", 0, b"refused")
    await store.housekeeper.flush()  # tries again
    assert await bodies(store) == [b"stored"]
    if full:
        await store.expiry.check()
        assert (await store.put("T", 0, b"taken"))[1] == 1


async def test_a_listener_that_fails_stops_neither_the_sender_nor_other_listeners(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    store = await rig.open()
    got: list[int] = []

    def fail(entries: list[Entry]) -> None:
        raise KeyError("a defect")

    store.dispatcher.listeners.append(fail)
    store.dispatcher.listeners.append(lambda entries: got.append(len(entries)))
    assert [(await store.put("T", 0, b"%d" % i))[1] for i in range(3)] == [0, 1, 2]
    assert got == [1, 1, 1]
    assert await bodies(store) == [b"0", b"1", b"2"]
    assert [record.message.split(" next=")[0] for record in caplog.records if record.exc_info] == [
        "observer_failed event='messages dispatched' times=1",
        "observer_failed event='messages dispatched' times=2",
    ]


async def test_replicated_bytes_are_dispatched(tmp_path: Path) -> None:
    async with rig_at(tmp_path / "a") as one, rig_at(tmp_path / "b") as other:
        master = await one.open()
        for i in range(40):
            await master.put("T", i % 2, b"%d" % i * 30, props(KEYS=f"k{i}"))
        data = b"".join(
            master.segments.read(s.start, min(s.size, master.segments.wrote - s.start))
            for s in master.segments.all
            if s.start < master.segments.wrote
        )
        replica = await other.open()
        replica.state.set(Obstacle.FOLLOWER, "another leads")
        for at in range(0, len(data) - 100, 777):
            replica.log.append_raw(data[at : min(at + 777, len(data) - 100)])
        assert (
            replica.queues.max_offset("T", 0) + replica.queues.max_offset("T", 1) == 39
        )  # the last is not all there
        with pytest.raises(NotWritable, match="follower: another leads"):
            await replica.put("T", 0, b"")
        # Stopped in the middle of a record: no clean stop, and the next start cuts it off.
        await replica.close()
        assert (tmp_path / "b" / "abort").exists()
        replica = await other.open()
        assert replica.recovered is not None
        end = replica.recovered.end
        replica.log.append_raw(data[end:])
        for queue_id in (0, 1):
            assert await bodies(replica, "T", queue_id) == await bodies(master, "T", queue_id)
        assert len(await replica.find_by_key("T", "k39")) == 1
        assert (await replica.put("T", 0, b"as master"))[1] == 20


# --- queues ------------------------------------------------------------------------------------------


def entries(rig: Rig, topic: str, queue_id: int) -> list[tuple[int, int, int]]:
    queue = rig.stores[-1].queues.find(topic, queue_id)
    assert queue is not None
    return list(SIMPLE.each(queue.read(0, 1000)))


async def test_tags_and_due_times(rig: Rig) -> None:
    store = await rig.open()
    tagged = await store.put("T", 0, b"", props(TAGS="TagA"))
    plain = await store.put("T", 0, b"")
    now_ms = rig.clock.wall_ms()
    await store.put("SCHEDULE_TOPIC_XXXX", 2, b"", props(DELAY="3", TAGS="TagA"))
    await store.put("SCHEDULE_TOPIC_XXXX", 2, b"", props(DELAY="99"))
    await store.put("SCHEDULE_TOPIC_XXXX", 2, b"", props(DELAY="x", TAGS="TagA"))
    await store.put("SCHEDULE_TOPIC_XXXX", 2, b"", props(DELAY="0", TAGS="TagA"))
    assert entries(rig, "T", 0) == [(tagged[0], tagged[2], 2598919), (plain[0], plain[2], 0)]
    codes = [code for _, _, code in entries(rig, "SCHEDULE_TOPIC_XXXX", 2)]
    assert codes == [now_ms + 10_000, now_ms + 7_200_000, 2598919, 2598919]
    assert java_hash("TagA") == 2598919


async def test_negative_and_many_tags(rig: Rig) -> None:
    store = await rig.open(commit_log_file_bytes=1 << 22, index_enabled=False)
    tags = ["polygenelubricants", *(f"tag {i}" for i in range(9000))]
    for tag in tags:
        store.log.append(store.log.cursor("T", 0), b"", props(TAGS=tag), **SENT)  # type: ignore[arg-type]
    store.log.write()
    queue = store.queues.find("T", 0)
    assert queue is not None
    codes = [code for _, _, code in SIMPLE.each(queue.read(0, 10_000))]
    assert codes == [java_hash(tag) for tag in tags]
    assert codes[0] == -(1 << 31)  # signed, as RocketMQ stores it


@pytest.mark.parametrize(("sys_flag", "queued"), [(0, True), (4, False), (8, True), (12, False)])
async def test_transactions(rig: Rig, sys_flag: int, queued: bool) -> None:
    store = await rig.open()
    await store.put("T", 0, b"typed", props(KEYS="k"), sys_flag=sys_flag)
    await store.put("T", 0, b"plain")
    assert await bodies(store) == ([b"typed", b"plain"] if queued else [b"plain"])
    assert len(await store.find_by_key("T", "k")) == (sys_flag != 12)
    await rig.kill(store)
    assert await bodies(await rig.open()) == ([b"typed", b"plain"] if queued else [b"plain"])


async def test_light_queues(rig: Rig) -> None:
    store = await rig.open(light_queues=True, fill_light_queues=True)
    for i in range(6):
        names = ["%LMQ%a"] + ["%LMQ%b", "%LMQ%b", "plain"] * (i % 2)
        await store.put("T", i % 3, b"%d" % i, props(INNER_MULTI_DISPATCH=",".join(names), TAGS="t"))
    waiting = props(INNER_MULTI_DISPATCH="%LMQ%a", INNER_MULTI_QUEUE_OFFSET="6")
    await store.put("%RETRY%g", 0, b"again", waiting)
    with pytest.raises(Exception, match="cannot be the name of a directory"):
        await store.put("T", 0, b"", props(INNER_MULTI_DISPATCH="%LMQ%a/b"))
    for _ in range(2):
        found = [m.body for m in messages(await store.queues.read("%LMQ%a", 0, 0))]
        assert found == [b"0", b"1", b"2", b"3", b"4", b"5"]
        assert [m.body for m in messages(await store.queues.read("%LMQ%b", 0, 0))] == [b"1", b"3", b"5"]
        assert {code for _, _, code in entries(rig, "%LMQ%a", 0)} == {java_hash("t")}
        assert store.queues.find("plain", 0) is None
        assert await bodies(store, "T", 1) == [b"1", b"4"]
        await rig.kill(store)
        store = await rig.open(light_queues=True, fill_light_queues=True)
    await store.put("T", 0, b"6", props(INNER_MULTI_DISPATCH="%LMQ%b"))
    assert store.queues.max_offset("%LMQ%b", 0) == 4


async def test_an_inner_batch_takes_its_offsets(rig: Rig) -> None:
    store = await rig.open()
    cursor = store.log.cursor("T", 0)
    for number in range(3):
        store.log.append(
            cursor,
            b"%d" % number,
            props(INNER_NUM="4"),
            sys_flag=0xC0,
            count=4,
            **SENT,  # type: ignore[arg-type]
        )
    store.log.write()
    await store.put("T", 0, b"single")
    assert store.queues.max_offset("T", 0) == 13
    assert [code for _, _, code in entries(rig, "T", 0)].count(HOLE_TAGS) == 9
    read = await store.queues.read("T", 0, 0)
    assert [m.body for m in messages(read)] == [b"0", b"1", b"2", b"single"]
    assert [m.queue_offset for m in messages(read)] == [0, 4, 8, 12]
    await rig.kill(store)
    store = await rig.open()
    assert (await store.put("T", 0, b"next"))[1] == 13


# --- keys -----------------------------------------------------------------------------------------------


async def test_keys_are_entered_a_moment_later_or_when_asked_for(rig: Rig) -> None:
    store = await rig.open()
    await store.put("T", 0, b"1", props(KEYS="k"))
    assert len(store.index) == 0
    await rig.clock.advance(0.025)
    assert len(store.index) == 1
    await store.put("T", 0, b"2", props(KEYS="k"))
    assert len(await store.find_by_key("T", "k")) == 2


async def test_keys_wait_when_the_index_cannot_be_written(rig: Rig) -> None:
    store = await rig.open()
    rig.disk.read_only = True
    store.log.undispatched.clear()
    entry: Entry = (100, 0, 0, 0, 0, 0, rig.clock.wall_ms(), b"T", props(KEYS="k"))
    store.key_filler.fill([entry])
    await rig.clock.advance(0.025)  # fails, and says so
    assert store.state.writable
    rig.disk.read_only = False
    await rig.clock.advance(0.025)
    store.key_filler.put_pending()
    assert store.index.query("T", "k", 5) == [0]


async def test_keys_of_an_index_file_that_filled_up_just_before_a_kill(rig: Rig) -> None:
    """All in one millisecond: by its time alone the second file looks as safe as the first."""
    store = await rig.open(index_entries=12)
    for i in range(1, 8):
        await store.put("T", 0, b"%d" % i, props(KEYS=f"k{i} all"))
    await store.flusher.flush_all()
    await store.housekeeper.flush()  # the first file is full and safe, the second has two messages
    for i in range(8, 12):
        await store.put("T", 0, b"%d" % i, props(KEYS=f"k{i} all"))
    await rig.clock.advance(0.025)
    assert len(store.index) == 3
    await rig.kill(store)
    store = await rig.open(index_entries=12)
    for i in range(1, 12):
        assert len(await store.find_by_key("T", f"k{i}")) == 1, i


# --- life ---------------------------------------------------------------------------------------------------


async def test_a_topic_is_deleted_and_begins_anew(rig: Rig) -> None:
    store = await rig.open()
    for i in range(10):
        await store.put("T", 0, b"old %d" % i)
        await store.put("Other", 0, b"%d" % i)
    assert await store.delete_topic("T")
    assert not await store.delete_topic("T")
    assert (await store.queues.read("T", 0, 0)).status is ReadStatus.NO_MATCHED_LOGIC_QUEUE
    assert not (rig.path / "consumequeue" / "T").exists()
    for i in range(3):
        assert (await store.put("T", 0, b"new %d" % i))[1] == i
    # Also after a crash: the old ones do not come back into the new queue.
    await rig.kill(store)
    store = await rig.open()
    assert await bodies(store) == [b"new 0", b"new 1", b"new 2"]
    assert len(await bodies(store, "Other")) == 10


async def test_a_topic_deleted_while_its_messages_are_being_flushed(rig: Rig) -> None:
    store = await rig.open(flush_mode=SYNC)
    rig.disk.stall_syncs()
    put = asyncio.ensure_future(store.put("T", 0, b"on its way"))
    await asyncio.sleep(0)
    assert await asyncio.to_thread(rig.disk.wait_for_stalled_sync)
    deletion = asyncio.ensure_future(store.delete_topic("T"))
    await asyncio.sleep(0.01)
    rig.disk.release_syncs()
    await put
    assert await deletion
    assert (await store.put("T", 0, b"new"))[1] == 0
    assert await bodies(store) == [b"new"]


async def test_used_as_a_context(tmp_path: Path) -> None:
    async with rig_at(tmp_path) as rig:
        async with rig.make() as store:
            await store.put("T", 0, b"1")
        assert not (tmp_path / "abort").exists()
        with pytest.raises(NotWritable, match="closed"):
            await store.put("T", 0, b"2")


async def test_a_close_that_fails_lets_go(tmp_path: Path) -> None:
    async with rig_at(tmp_path) as rig:
        store = await rig.open()
        await store.put("T", 0, b"1")
        rig.disk.read_only = True
        await store.close()
        rig.disk.read_only = False
        assert (tmp_path / "abort").exists()
        assert await bodies(await rig.open()) == [b"1"]
