"""A store that cuts its own log: afterwards it is a store that never had the rest."""

from __future__ import annotations

import asyncio
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.store.dispatch.kit import (
    ASYNC,
    LOG_FILE,
    SYNC,
    Rig,
    bodies,
    log_files,
    messages,
    props,
    read_all,
    rig_at,
    until,
)

from kerolox.protocol.ha_epochs import Epoch
from kerolox.protocol.record import decode_record
from kerolox.store.disk.checkpoint import Checkpoint
from kerolox.store.disk.cut_note import NAME as CUT_NOTE
from kerolox.store.disk.cut_note import Cut
from kerolox.store.disk.epoch_file import EpochFile
from kerolox.store.disk.files import Files
from kerolox.store.disk.segment import segment_name
from kerolox.store.errors import DiskFull, OffsetOutOfRange, StoreError
from kerolox.store.log.acks import CutOff
from kerolox.store.message_store import MessageStore
from kerolox.store.offline.layout import find_layout
from kerolox.store.offline.verify import verify
from kerolox.store.queue.extended_queue import ExtendedQueue
from kerolox.store.queue.reading import ReadStatus
from kerolox.store.state import NotWritable, Obstacle
from kerolox.store.truncate import CannotTruncate
from kerolox.testing.faults import FaultyFiles, PowerLost

TOPICS = ("A", "B%x", "%RETRY%g")
SMALL = {"queue_file_bytes": 20 * 5, "index_entries": 30, "delete_pause_ms": 0}


class History:
    """Messages by number, the same for every store: of several topics and queues, some of them in batches."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.keys: list[tuple[str, str]] = []  # topic and key

    def put(self, store: MessageStore, number: int) -> None:
        """One write of the log."""
        chance = random.Random(f"{self.seed}-{number}")
        log = store.log
        topic, queue_id = chance.choice(TOPICS), chance.randrange(2)
        count = chance.choice([1, 1, 1, 3])
        items = []
        for part in range(count):
            key = f"k{self.seed}-{number}-{part}"
            self.keys.append((topic, key))
            body = f"{self.seed}:{number}:{part}:".encode().ljust(chance.choice([0, 50, 300, 900]), b".")
            items.append((0, body, props(KEYS=f"{key} all", TAGS=key)))
        log.append_batch(log.cursor(topic, queue_id), items, born_timestamp=1, born_host=bytes(8))
        log.write()


def follow(store: MessageStore) -> None:
    store.state.set(Obstacle.FOLLOWER, "a test")


def lead(store: MessageStore) -> None:
    store.state.clear(Obstacle.FOLLOWER)
    store.log.renew_cursors()


async def filled(rig: Rig, history: History, numbers: range) -> tuple[MessageStore, list[int]]:
    """A store with these messages, and where the log ended before each of them and behind the last."""
    store = await rig.open()
    return store, await fill(rig, store, history, numbers)


async def fill(rig: Rig, store: MessageStore, history: History, numbers: range) -> list[int]:
    ends = [store.log.max_offset]
    for number in numbers:
        history.put(store, number)
        ends.append(store.log.max_offset)
        if number % 7 == 3:
            await store.flusher.flush_all()
            await store.housekeeper.flush()
        await rig.clock.advance(0.005)
    return ends


def raw(store: MessageStore, start: int, end: int) -> bytes:
    return b"".join(
        store.segments.read(max(start, segment.start), min(end, segment.end) - max(start, segment.start))
        for segment in store.segments.all
        if segment.end > start and segment.start < end
    )


def rest_is_zeros(rig: Rig, end: int) -> None:
    """No file behind the end holds anything, on the disk itself: nothing is found there by a later start."""
    for start in log_files(rig.path):
        data = (rig.path / "commitlog" / f"{start:020d}").read_bytes()
        assert not data[max(0, end - start) :].strip(b"\0"), f"bytes behind {end} in the file {start}"


async def same(store: MessageStore, other: MessageStore, keys: list[tuple[str, str]]) -> None:
    """Both hold the same, as far as anybody can ask."""
    for each in (store, other):
        await each.flusher.flush_all()
        assert each.dispatcher.dispatched == each.log.max_offset
    end = other.log.max_offset
    assert store.log.max_offset == store.progress.appended == end
    assert raw(store, 0, end) == raw(other, 0, end)
    for queue in [*store.consume_queues, *other.consume_queues]:
        asked = queue.topic, queue.queue_id
        assert store.queues.max_offset(*asked) == other.queues.max_offset(*asked)
        assert store.log.cursor(*asked).next_offset == other.log.cursor(*asked).next_offset
        mine, its = store.queues.find(*asked), other.queues.find(*asked)
        entries = [b"" if one is None else one.read(0, 10_000) for one in (mine, its)]
        assert entries[0] == entries[1]
        assert [m.body for m in await read_all(store, *asked)] == [
            m.body for m in await read_all(other, *asked)
        ]
    for topic, key in keys:
        assert await store.find_by_key(topic, key) == await other.find_by_key(topic, key), (topic, key)


def is_whole(rig: Rig) -> None:
    report = verify(find_layout(str(rig.path), rig.options), clock=rig.clock)
    assert report.clean, report.findings


@pytest.mark.parametrize("mode", [SYNC, ASYNC])
@pytest.mark.parametrize("ending", ["close", "kill", "power"])
@pytest.mark.parametrize("kept", [0, 1, 9, 17, 26, 33, 39])
async def test_a_former_leader_becomes_what_its_leader_is(
    tmp_path: Path, kept: int, ending: str, mode: object
) -> None:
    """It drops what its leader never had, copies the rest, is stopped in some way, and leads."""
    own, others = History(kept), History(1000 + kept)
    async with (
        rig_at(tmp_path / "own", flush_mode=mode, **SMALL) as rig,
        rig_at(tmp_path / "leader", flush_mode=mode, **SMALL) as other,
    ):
        store, ends = await filled(rig, own, range(40))
        leader, _ = await filled(other, History(kept), range(kept))
        cursors = [store.log.cursor(queue.topic, queue.queue_id) for queue in store.consume_queues]
        follow(store)
        cut = await store.truncate(ends[kept])
        assert cut is not None
        assert cut.end == ends[kept] == leader.log.max_offset
        assert not (rig.path / CUT_NOTE).exists()
        rest_is_zeros(rig, ends[kept])
        await same(store, leader, own.keys)
        # Those who kept a cursor have the right one.
        assert all(store.log.cursor(cursor.topic, cursor.queue_id) is cursor for cursor in cursors)
        await fill(other, leader, others, range(kept, kept + 20))
        store.log.append_raw(raw(leader, ends[kept], leader.log.max_offset))
        lead(store)
        await same(store, leader, own.keys + others.keys)
        if ending == "close":
            await store.close()
            is_whole(rig)
        elif ending == "kill":
            await rig.kill(store)
        else:
            await store.flusher.flush_all()
            await rig.lose_power(store, kept, names=True)
        store = await rig.open()
        await same(store, leader, own.keys + others.keys)
        for each, its in ((store, rig), (leader, other)):
            await fill(its, each, History(7), range(5))
            await each.flusher.flush_all()
        for asked in {(queue.topic, queue.queue_id) for queue in store.consume_queues}:
            assert await bodies(store, *asked) == await bodies(leader, *asked)
        await store.close()
        is_whole(rig)


# --- where -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", range(6))
async def test_at_every_record(tmp_path: Path, share: int) -> None:
    """Before and behind each record, at the blank that ends a file, and at the beginning of the next."""
    async with rig_at(tmp_path / "whole", **SMALL) as rig:
        store, _ = await filled(rig, History(5), range(30))
        places = {0, *log_files(rig.path)[:-2]}
        places |= {
            entry[4] for entries, _ in store.log.entries_from(0, store.log.max_offset) for entry in entries
        }
        for segment in store.segments.all[:-1]:
            last = max(place for place in places if place < segment.end)
            places.add(last + len(store.log.record_at(last)))
        expected = {
            queue: await read_all(store, queue.topic, queue.queue_id) for queue in store.consume_queues
        }
    for place in sorted(places)[share::6]:
        async with rig_at(tmp_path / str(place), **SMALL) as rig:
            history = History(5)
            store, _ = await filled(rig, history, range(30))
            follow(store)
            assert await store.truncate(place) is not None
            rest_is_zeros(rig, place)
            for queue, messages in expected.items():
                left = [message for message in messages if message.physical_offset < place]
                got = await read_all(store, queue.topic, queue.queue_id)
                assert [m.physical_offset for m in got] == [m.physical_offset for m in left]
                assert store.queues.max_offset(queue.topic, queue.queue_id) == len(left)
            for topic, key in history.keys:
                for record in await store.find_by_key(topic, key):
                    assert decode_record(record).physical_offset < place
            lead(store)
            for queue, messages in expected.items():
                left = [message for message in messages if message.physical_offset < place]
                assert (await store.put(queue.topic, queue.queue_id, b"next"))[1] == len(left)
            await store.close()
            is_whole(rig)


async def test_what_cannot_be_cut(tmp_path: Path) -> None:
    async with rig_at(tmp_path, **SMALL) as rig:
        store, ends = await filled(rig, History(1), range(20))
        end = store.log.max_offset
        with pytest.raises(CannotTruncate, match="this store leads"):
            await store.truncate(ends[5])
        store.log.append(store.log.cursor("A", 0), b"x", born_timestamp=1, born_host=bytes(8))
        follow(store)
        with pytest.raises(CannotTruncate, match="1 messages are appended and not yet written"):
            await store.truncate(ends[5])
        store.log.take_back()
        for offset in (end + 1, -1):
            with pytest.raises(CannotTruncate, match=f"truncate the log to {offset}: it holds 0 to {end}"):
                await store.truncate(offset)
        first = next(entries[0] for entries, _ in store.log.entries_from(0, end))
        with pytest.raises(CannotTruncate, match=f"inside the record from 0 to {first[0]}"):
            await store.truncate(first[0] - 1)
        blank = store.segments.all[0].end - 1
        with pytest.raises(CannotTruncate, match=f"inside the record from [0-9]+ to {LOG_FILE}"):
            await store.truncate(blank)
        assert await store.truncate(end) is None
        # All of them left it as it was.
        lead(store)
        assert store.log.max_offset == end
        await store.put("A", 0, b"goes on")
        store.state.set(Obstacle.FENCED, "a test")
        follow(store)
        with pytest.raises(NotWritable, match="fenced: a test"):
            await store.truncate(ends[5])


async def test_before_the_first_file(tmp_path: Path) -> None:
    """What is common has left the log for its age: all goes, and the log begins anew with a file there."""
    async with rig_at(tmp_path / "own", **SMALL) as rig, rig_at(tmp_path / "leader", **SMALL) as other:
        store, ends = await filled(rig, History(1), range(40))
        kept = next(number for number, end in enumerate(ends) if end > LOG_FILE) - 1
        await store.expiry.delete_before(3 * LOG_FILE)
        follow(store)
        with pytest.raises(CannotTruncate, match=f"Truncate it to {LOG_FILE}, and copy"):
            await store.truncate(LOG_FILE + 100)
        assert await store.truncate(LOG_FILE) is not None
        assert (store.log.min_offset, store.log.max_offset) == (LOG_FILE, LOG_FILE)
        assert log_files(rig.path)[0] == LOG_FILE
        leader, _ = await filled(other, History(1), range(kept))
        await leader.put("A", 0, bytes(3000))  # does not fit into the first file
        await fill(other, leader, History(2), range(30))
        await leader.expiry.delete_before(LOG_FILE)
        store.log.append_raw(raw(leader, LOG_FILE, leader.log.max_offset))
        for _ in range(2):
            for queue in leader.consume_queues:
                asked = queue.topic, queue.queue_id
                assert await bodies(store, *asked) == await bodies(leader, *asked)
                assert store.queues.max_offset(*asked) == leader.queues.max_offset(*asked)
            await rig.kill(store)
            store = await rig.open()
        await store.close()
        is_whole(rig)


# --- while others use it ---------------------------------------------------------------------------------


async def test_who_waits_for_the_flush_is_told(tmp_path: Path) -> None:
    async with rig_at(tmp_path, flush_mode=SYNC, **SMALL) as rig:
        store, _ = await filled(rig, History(1), range(10))
        await store.flusher.flush_all()
        rig.disk.stall_syncs()
        kept = asyncio.ensure_future(store.put("A", 0, b"kept"))
        await asyncio.sleep(0)
        place = store.log.max_offset
        gone = asyncio.ensure_future(store.put("A", 0, b"gone"))
        await asyncio.sleep(0)
        await until(lambda: rig.disk.wait_for_stalled_sync(0.01))
        follow(store)
        cutting = asyncio.ensure_future(store.truncate(place))
        saving = asyncio.ensure_future(store.flusher.flush_all())  # as those do who note progress
        await asyncio.sleep(0.02)
        assert not cutting.done()
        with pytest.raises(NotWritable, match="cutting: the log is being cut back"):
            store.log.append_raw(b"x")
        rig.disk.release_syncs()
        await cutting
        await kept
        with pytest.raises(CutOff, match="the log was cut back before this message"):
            await gone
        await saving
        assert store.progress.flushed == store.progress.confirmed == place
        assert (await bodies(store, "A", 0))[-1] == b"kept"


async def test_a_cut_that_is_refused_leaves_those_who_wait(tmp_path: Path) -> None:
    async with rig_at(tmp_path, flush_mode=SYNC, **SMALL) as rig:
        store, _ = await filled(rig, History(1), range(10))
        await store.flusher.flush_all()
        rig.disk.stall_syncs()
        waiting = asyncio.ensure_future(store.put("A", 0, b"kept"))
        await asyncio.sleep(0)
        await until(lambda: rig.disk.wait_for_stalled_sync(0.01))
        follow(store)
        cutting = asyncio.ensure_future(store.truncate(77))
        await asyncio.sleep(0.02)
        rig.disk.release_syncs()
        with pytest.raises(CannotTruncate):
            await cutting
        await waiting
        assert (await bodies(store, "A", 0))[-1] == b"kept"


class SlowReads(FaultyFiles):
    """Reads of the log that may wait do so, until they are let go."""

    def __init__(self) -> None:
        super().__init__()
        self.slow = False
        self.reading = threading.Event()
        self.go_on = threading.Event()

    def _count_read(self, path: str, offset: int, *, hot: bool) -> None:
        super()._count_read(path, offset, hot=hot)
        if (
            self.slow
            and not hot
            and "commitlog" in path
            and threading.current_thread().name.startswith("kerolox-read")
        ):
            self.reading.set()
            assert self.go_on.wait(10)


@pytest.mark.parametrize("regrown", [False, True])
async def test_a_read_under_way_does_not_see_half_a_cut(tmp_path: Path, regrown: bool) -> None:
    """Neither zeros, nor another message's bytes, nor an offset behind the new end."""
    rig = Rig(tmp_path, **SMALL)
    rig.disk = disk = SlowReads()
    store = await rig.open()
    places = [await store.put("A", 0, b"old %d" % number * 20) for number in range(30)]
    disk.cold = lambda path, offset, size: "commitlog" in path
    disk.slow = True
    pulling = asyncio.ensure_future(store.queues.read("A", 0, 12))
    asking = asyncio.ensure_future(store.message_at(places[12][0]))
    await until(disk.reading.is_set)
    follow(store)
    await store.truncate(places[10][0])
    if regrown:
        lead(store)
        for number in range(10, 30):
            await store.put("A", 0, b"new %d" % number * 20)
    disk.slow = False
    disk.go_on.set()
    found = await pulling
    if regrown:
        assert [m.body[:3] for m in messages(found)] == [b"new"] * found.count
        assert found.count > 0
        assert (await asking)[-200:].count(b"new") or b"new" in await store.message_at(places[12][0])
    else:
        assert (found.status, found.next_offset) == (ReadStatus.OFFSET_OVERFLOW_BADLY, 10)
        with pytest.raises(StoreError):
            await asking
    await rig.end()


async def test_bytes_read_from_a_thread_of_somebody_else(tmp_path: Path) -> None:
    rig = Rig(tmp_path, **SMALL)
    rig.disk = disk = SlowReads()
    store = await rig.open()
    places = [await store.put("A", 0, b"old" * 20) for _ in range(5)]
    disk.slow = True
    with ThreadPoolExecutor(1, thread_name_prefix="kerolox-read-other") as pool:
        reading = pool.submit(store.log.read, *places[3][::2])
        await until(disk.reading.is_set)
        follow(store)
        await store.truncate(places[2][0])
        disk.go_on.set()
        with pytest.raises(OffsetOutOfRange):
            reading.result()
    await rig.end()


async def test_while_old_files_are_deleted(tmp_path: Path) -> None:
    async with rig_at(tmp_path, **{**SMALL, "delete_pause_ms": 1000}) as rig:
        store, ends = await filled(rig, History(3), range(60))
        files = log_files(rig.path)
        deleting = asyncio.ensure_future(store.expiry.delete_before(files[-3]))
        await until(lambda: store.log.min_offset > 0)
        follow(store)
        cutting = asyncio.ensure_future(store.truncate(ends[50]))
        while not (deleting.done() and cutting.done()):
            await rig.clock.advance(1.0)
            await asyncio.sleep(0.001)
        await deleting
        assert (await cutting) is not None
        assert store.log.min_offset < files[-3], "the deletion gave way"
        rest_is_zeros(rig, ends[50])
        await asyncio.gather(store.housekeeper.flush(), store.truncate(ends[45]), store.expiry.check())
        lead(store)
        await store.put("A", 0, b"goes on")
        await store.close()
        is_whole(rig)


async def test_two_at_once_and_a_caller_that_goes_away(tmp_path: Path) -> None:
    async with rig_at(tmp_path, **SMALL) as rig:
        store, ends = await filled(rig, History(3), range(30))
        follow(store)
        first = asyncio.ensure_future(store.truncate(ends[20]))
        second = asyncio.ensure_future(store.truncate(ends[10]))
        await asyncio.sleep(0)
        first.cancel()
        assert (await second) is not None
        assert store.log.max_offset == ends[10]
        third = asyncio.ensure_future(store.truncate(ends[5]))
        await asyncio.sleep(0)
        await store.close()  # waits for it
        assert (await third) is not None
        is_whole(rig)
        store = await rig.open()
        assert store.log.max_offset == ends[5]


async def test_a_flush_that_fails_in_between_fences(tmp_path: Path) -> None:
    async with rig_at(tmp_path, **SMALL) as rig:
        store, ends = await filled(rig, History(3), range(30))
        await store.flusher.flush_all()
        follow(store)
        # The file that is cut: one more file is made ready meanwhile, and flushes its folder.
        cut = segment_name(ends[12] - ends[12] % store.segments.size)
        rig.disk.fail_syncs(1, path_contains=f"/commitlog/{cut}")
        with pytest.raises(StoreError):
            await store.truncate(ends[12])
        assert "the next start finishes it" in store.state.obstacles[Obstacle.FENCED]
        await store.close()
        store = await rig.open()
        assert store.log.max_offset == ends[12]
        assert store.recovered is not None
        assert store.recovered.cut is not None


# --- a full disk -----------------------------------------------------------------------------------------


async def test_without_room_for_the_note_it_is_refused_and_succeeds_later(tmp_path: Path) -> None:
    """Nothing was changed yet: no restart is needed, as for anything else a full disk refuses."""
    async with rig_at(tmp_path / "own", **SMALL) as rig, rig_at(tmp_path / "other", **SMALL) as other:
        history = History(3)
        store, ends = await filled(rig, history, range(30))
        never, _ = await filled(other, History(3), range(12))
        await store.flusher.flush_all()
        before = {queue: await bodies(store, queue.topic, queue.queue_id) for queue in store.consume_queues}
        follow(store)
        rig.disk.fill()
        for _ in range(2):
            with pytest.raises(DiskFull, match="No space left on device"):
                await store.truncate(ends[12])
            assert store.state.obstacles.keys() == {Obstacle.FOLLOWER}
            assert not (rig.path / CUT_NOTE).exists()
            assert store.log.max_offset == ends[30]
            for queue, had in before.items():
                assert await bodies(store, queue.topic, queue.queue_id) == had
        rig.disk.make_room()
        lead(store)
        await store.put("A", 0, b"it takes messages")
        follow(store)
        assert await store.truncate(ends[12]) is not None
        lead(store)
        await same(store, never, history.keys)
        await store.close()
        is_whole(rig)


async def test_a_full_disk_at_any_moment(tmp_path: Path) -> None:
    """The cut is refused with nothing changed, or made; or the next start finishes it, if it was noted."""
    ended: set[str] = set()
    for number in range(25):
        rig = Rig(tmp_path / str(number), **SMALL)
        history = History(11)
        store, ends = await filled(rig, history, range(24))
        await store.flusher.flush_all()
        await store.housekeeper.flush(sums=True)
        epochs = (Epoch(1, 0), Epoch(2, ends[4]), Epoch(4, ends[23]))
        store.notes.epochs.take(epochs)
        if number % 2:
            store.segments.discard_next()  # then there is nothing that the cut frees

        async def save(cut: Cut, rig: Rig = rig) -> None:
            rig.disk.write_atomic(rig.path / "a table", bytes(3000))

        store.on_truncated.append(save)
        follow(store)
        rig.disk.fill(number * 200)
        try:
            await store.truncate(ends[23])
            ended.add("made")
        except DiskFull:
            rig.disk.make_room()
            if store.state.fenced:
                ended.add("fenced")
                assert (rig.path / CUT_NOTE).exists()
                await store.close()
                store = await rig.open()
                assert store.recovered is not None
                assert store.recovered.cut is not None
                await store.finish_cut()
            else:
                ended.add("refused")
                assert not (rig.path / CUT_NOTE).exists()
                assert (store.log.max_offset, store.notes.epochs.entries) == (ends[24], epochs)
                assert await store.truncate(ends[23]) is not None
        rig.disk.make_room()
        assert store.log.max_offset == ends[23]
        assert not (rig.path / CUT_NOTE).exists()
        kept = EpochFile(rig.disk, store.notes.epochs.path)
        kept.load()
        assert kept.entries == epochs[:2]
        rest_is_zeros(rig, ends[23])
        await store.close()
        is_whole(rig)
    assert ended == {"refused", "fenced", "made"}


async def test_the_room_that_a_cut_makes_is_for_what_it_has_to_write(tmp_path: Path) -> None:
    """Of a disk that is nearly full: the next file, which was ready, is made again when all is written."""
    async with rig_at(tmp_path, **SMALL) as rig:
        store, ends = await filled(rig, History(11), range(24))
        await store.flusher.flush_all()
        await store.housekeeper.flush(sums=True)
        await asyncio.get_running_loop().run_in_executor(store.ahead, int)
        assert store.segments.next_ready

        async def save(cut: Cut) -> None:
            await asyncio.get_running_loop().run_in_executor(store.ahead, int)
            rig.disk.write_atomic(rig.path / "a table", bytes(3000))

        store.on_truncated.append(save)
        follow(store)
        rig.disk.fill(500)  # for the note
        assert await store.truncate(ends[23]) is not None
        rig.disk.make_room()
        lead(store)
        await fill(rig, store, History(12), range(30))
        await store.close()
        is_whole(rig)


# --- a crash in between ----------------------------------------------------------------------------------


class DyingDisk(FaultyFiles):
    """The process dies, or power is lost, before a chosen change of the disk."""

    def __init__(self, seed: int | None) -> None:
        super().__init__()
        self.seed = seed  # None: the process dies
        self.left = -1

    def _change(self, path: str) -> None:
        with self._lock:
            if self.left < 0:
                return
            self.left -= 1
            if self.left < 0:
                if self.seed is None:
                    self.kill()
                else:
                    self.power_loss(self.seed, names=True)
                self.read_only = True
                raise PowerLost(f"died before {path}", path=path)

    def _refuse_writes(self, action: str, path: str, offset: int | None = None) -> None:
        super()._refuse_writes(action, path, offset)
        self._change(path)

    def _before_sync(self, path: str) -> None:
        super()._before_sync(path)
        self._change(path)


async def killed_before_anybody_was_told(rig: Rig, store: MessageStore) -> None:
    """The start that finished a cut dies: the next one still has it to tell of."""
    assert store.recovered is not None
    cut = store.recovered.cut
    assert cut is not None
    await rig.kill(store)
    again = await rig.open()
    assert again.recovered is not None
    assert again.recovered.cut is not None
    assert (again.recovered.cut.end, again.recovered.cut.queues) == (cut.end, cut.queues)
    await rig.kill(again)


@pytest.mark.parametrize("seed", [None, 1, 2])
async def test_a_crash_at_any_moment(tmp_path: Path, seed: int | None) -> None:
    """The store is what it was before, or what it is after; never in between, and nothing before is lost."""
    ended: set[str] = set()
    for number in range(0 if seed is None else seed, 1000, 2 if seed is None else 3):
        rig = Rig(tmp_path / str(number), **SMALL)
        rig.disk = disk = DyingDisk(seed)
        history = History(11)
        store, ends = await filled(rig, history, range(24))
        await store.flusher.flush_all()
        await store.housekeeper.flush(sums=True)
        follow(store)
        before = {queue: await bodies(store, queue.topic, queue.queue_id) for queue in store.consume_queues}
        epochs = (Epoch(1, 0), Epoch(2, ends[4]), Epoch(4, ends[9]), Epoch(7, ends[20]))
        store.notes.epochs.take(epochs)
        disk.left = number
        try:
            await store.truncate(ends[9])
        except StoreError:
            assert disk.left < 0
        if disk.left >= 0:
            assert number > 30, "the disk was hardly touched"
            await rig.kill(store)
            break
        await rig._bury(store)  # first: a thread that makes the next file may be the one that died
        disk.read_only = False
        is_whole(rig)
        if seed is not None:
            rig.boot = "another"
        store = await rig.open()
        end = store.log.max_offset
        assert end in (ends[9], ends[24])
        if (rig.path / CUT_NOTE).exists():
            await killed_before_anybody_was_told(rig, store)
            store = await rig.open()
            assert store.log.max_offset == ends[9]
        await store.finish_cut()
        assert not (rig.path / CUT_NOTE).exists()
        kept = EpochFile(disk, store.notes.epochs.path)
        kept.load()
        assert kept.entries == (epochs[:2] if end == ends[9] else epochs)
        ended.add("after" if end == ends[9] else "before")
        assert store.recovered is not None
        if end == ends[9]:
            rest_is_zeros(rig, end)
        for queue, old in before.items():
            got = await bodies(store, queue.topic, queue.queue_id)
            assert got == old[: len(got)]
            places = [m.physical_offset for m in await read_all(store, queue.topic, queue.queue_id)]
            assert all(place < end for place in places)
        total = sum([len(await bodies(store, q.topic, q.queue_id)) for q in store.consume_queues])
        assert total == sum([len(entries) for entries, _ in store.log.entries_from(0, end)])
        await fill(rig, store, History(12), range(6))
        await store.close()
        is_whole(rig)
    else:
        pytest.fail("it never ends")
    assert ended == {"before", "after"}


async def test_a_note_that_does_not_read_is_not_guessed_at(tmp_path: Path) -> None:
    async with rig_at(tmp_path, **SMALL) as rig:
        store, ends = await filled(rig, History(3), range(10))
        await rig.kill(store)
        store.notes.cut.save(Cut(ends[5]))
        path = rig.path / CUT_NOTE
        path.write_bytes(path.read_bytes().replace(b'"end":', b'"end":1'))
        with pytest.raises(StoreError, match="is damaged: its CRC does not match"):
            await rig.open()
        path.unlink()
        store = await rig.open()
        assert store.log.max_offset == ends[-1]


async def test_a_note_from_before_another_broker_counts_no_more(tmp_path: Path) -> None:
    async with rig_at(tmp_path, **SMALL) as rig:
        store, ends = await filled(rig, History(3), range(10))
        await store.close()
        store.notes.cut.save(Cut(ends[5]))
        store = await rig.open()
        assert store.log.max_offset == ends[-1]
        assert not (rig.path / CUT_NOTE).exists()


async def test_a_cut_nobody_was_told_of_counts_until_something_was_appended(tmp_path: Path) -> None:
    async with rig_at(tmp_path, **SMALL) as rig:
        store, ends = await filled(rig, History(3), range(10))
        follow(store)
        cut = await store.truncate(ends[5], untold=True)
        assert cut is not None
        await store.close()
        store = await rig.open()
        assert store.recovered is not None
        assert store.recovered.cut is not None
        assert store.recovered.cut.queues == cut.queues
        await fill(rig, store, History(12), range(3))  # by somebody who does not finish it
        await store.close()
        store = await rig.open()
        assert store.recovered is not None
        assert store.recovered.cut is None
        assert not (rig.path / CUT_NOTE).exists()


# --- those who are told ----------------------------------------------------------------------------------


async def test_listeners_are_told_in_order_and_what_was_taken(tmp_path: Path) -> None:
    async with rig_at(tmp_path, **SMALL) as rig:
        store = await rig.open()
        for _ in range(3):
            await store.put("A", 0, b"kept")
        place = store.log.max_offset
        await store.put("A", 0, b"gone")
        await store.put("B", 1, b"of a delay", props(DELAY="3", REAL_TOPIC="B", REAL_QID="1"))
        await store.put("SCHEDULE_TOPIC_XXXX", 2, b"waits", props(DELAY="3", REAL_TOPIC="B", REAL_QID="1"))
        await store.put("B", 1, b"of the timer", props(TIMER_OUT_MS="12345", REAL_TOPIC="B", REAL_QID="1"))
        await store.put("RMQ_SYS_TRANS_OP_HALF_TOPIC", 0, b"9,5,7,", props(TAGS="d"))
        told: list[tuple[int, Cut]] = []

        def listener(number: int):  # type: ignore[no-untyped-def]
            async def hear(cut: Cut) -> None:
                assert store.log.max_offset == cut.end
                assert (rig.path / CUT_NOTE).exists(), "a crash now must tell them again"
                assert not store.state.writable
                told.append((number, cut))

            return hear

        store.on_truncated += [listener(1), listener(2)]
        follow(store)
        cut = await store.truncate(place)
        assert cut is not None
        assert told == [(1, cut), (2, cut)]
        assert (cut.delayed, cut.timer, cut.due_ms, cut.half_ended) == ({3: 1}, True, 12345, 5)
        assert [tuple(queue) for queue in cut.queues] == [
            ("A", 0, 3), ("B", 1, 0), ("SCHEDULE_TOPIC_XXXX", 2, 0), ("RMQ_SYS_TRANS_OP_HALF_TOPIC", 0, 0),
        ]  # fmt: skip


# --- other shapes of a store -----------------------------------------------------------------------------


@pytest.mark.parametrize("kept", [0, 13, 27])
async def test_queues_with_an_extension(tmp_path: Path, kept: int) -> None:
    shape = {**SMALL, "queue_extension": True, "queue_extension_file_bytes": 400}
    async with rig_at(tmp_path / "own", **shape) as rig, rig_at(tmp_path / "other", **shape) as other:
        store, ends = await filled(rig, History(4), range(40))
        never, _ = await filled(other, History(4), range(kept))
        follow(store)
        await store.truncate(ends[kept])
        lead(store)
        for _ in range(2):
            await same(store, never, [])
            for queue in never.consume_queues:
                mine = store.queues.find(queue.topic, queue.queue_id)
                assert isinstance(mine, ExtendedQueue)
                assert isinstance(queue, ExtendedQueue)
                assert mine.extension.end == queue.extension.end
                codes = [code for _, _, code in queue.entries(0, 10_000, may_wait=True) or ()]
                units = queue.units(codes, may_wait=True)
                assert len(units) == queue.max_offset
                assert mine.units(codes, may_wait=True) == units
            for each, its in ((store, rig), (never, other)):
                its.clock.step_wall(1_800_000_000_000 - its.clock.wall_ms())
                await fill(its, each, History(9), range(50, 60))
        await store.close()
        is_whole(rig)
        store = await rig.open()
        for asked in {(queue.topic, queue.queue_id) for queue in never.consume_queues}:
            assert await bodies(store, *asked) == await bodies(never, *asked)


async def test_a_log_that_collects_in_memory(tmp_path: Path) -> None:
    async with rig_at(tmp_path, transient=True, **SMALL) as rig:
        store, ends = await filled(rig, History(4), range(30))
        assert store.segments.committed < store.segments.wrote, "not all is in the files"
        follow(store)
        await store.truncate(ends[20])
        rest_is_zeros(rig, ends[20])
        lead(store)
        place = await store.put("A", 0, b"next")
        assert place[0] == ends[20]
        await store.close()
        is_whole(rig)


async def test_cursors_count_what_is_not_dispatched_yet(tmp_path: Path) -> None:
    """What replicas do not have yet is in no queue; light queues and batches kept whole count, too."""
    async with rig_at(tmp_path, light_queues=True, fill_light_queues=True, **SMALL) as rig:
        store = await rig.open()
        await store.put("A", 0, b"seen")
        store.progress.replicated = store.progress.appended
        log = store.log

        def append(body: bytes, properties: bytes = b"", count: int = 1) -> None:
            flag = 0x80 if count > 1 else 0
            log.append(
                log.cursor("A", 0),
                body,
                properties,
                sys_flag=flag,
                born_timestamp=1,
                born_host=bytes(8),
                count=count,
            )
            log.write()

        append(b"of light queues", props(INNER_MULTI_DISPATCH="%LMQ%x,%LMQ%y"))
        append(b"three in one", props(INNER_NUM="3"), count=3)
        place = log.max_offset
        append(b"cut off", props(INNER_MULTI_DISPATCH="%LMQ%x"))
        cursors = [log.cursor("A", 0), log.cursor("%LMQ%x", 0), log.cursor("%LMQ%y", 0)]
        assert [cursor.next_offset for cursor in cursors] == [6, 2, 1]
        follow(store)
        await store.truncate(place)
        assert [cursor.next_offset for cursor in cursors] == [5, 1, 1]
        assert store.queues.max_offset("A", 0) == 1, "nobody sees what is not confirmed"
        store.progress.replicated = place
        store.progress.advance()
        assert [store.queues.max_offset("A", 0), store.queues.max_offset("%LMQ%x", 0)] == [5, 1]


@pytest.mark.parametrize("ending", ["close", "kill", "power"])
async def test_a_queue_whose_messages_are_all_gone_goes_on_counting(tmp_path: Path, ending: str) -> None:
    """It was cut where one of its files begins; the files before left the store with their messages."""
    async with rig_at(tmp_path, **SMALL) as rig:
        store = await rig.open()
        places = [await store.put("A", 0, b"%d" % number) for number in range(8)]
        await store.housekeeper.flush()
        follow(store)
        await store.truncate(places[5][0])
        lead(store)
        for _ in range(10):
            await store.put("B", 0, bytes(500))
        await store.expiry.delete_before(LOG_FILE)
        assert (store.queues.min_offset("A", 0), store.queues.max_offset("A", 0)) == (5, 5)
        await store.flusher.flush_all()
        if ending == "close":
            await store.close()
            is_whole(rig)
        elif ending == "kill":
            await rig.kill(store)
        else:
            await rig.lose_power(store)
        store = await rig.open()
        assert (store.queues.min_offset("A", 0), store.queues.max_offset("A", 0)) == (5, 5)
        assert (await store.put("A", 0, b"next"))[1] == 5


async def test_a_replica_in_the_middle_of_a_record(tmp_path: Path) -> None:
    async with rig_at(tmp_path / "own", **SMALL) as rig, rig_at(tmp_path / "leader", **SMALL) as other:
        leader, ends = await filled(other, History(4), range(20))
        store = await rig.open()
        follow(store)
        store.log.append_raw(raw(leader, 0, ends[10] + 50))
        assert await store.truncate(ends[10]) is not None
        assert store.log.max_offset == store.log.whole_end == ends[10]
        store.log.append_raw(raw(leader, ends[10], ends[20]))
        lead(store)
        await same(store, leader, [])


async def test_a_replica_in_the_middle_of_a_blank_record(tmp_path: Path) -> None:
    """It leads from there on, and its messages are found after a crash."""
    async with rig_at(tmp_path / "own", **SMALL) as rig, rig_at(tmp_path / "leader", **SMALL) as other:
        leader, ends = await filled(other, History(4), range(20))
        blank = max(end for end in ends if end <= LOG_FILE)
        assert blank + 12 < LOG_FILE < ends[-1]
        store = await rig.open()
        follow(store)
        store.log.append_raw(raw(leader, 0, blank + 12))
        await store.truncate(store.log.whole_end)  # as a follower that begins to lead
        store.log.renew_cursors()
        lead(store)
        assert (await store.put("Own", 0, b"own"))[0] == blank
        await rig.kill(store)
        store = await rig.open()
        assert await bodies(store, "Own") == [b"own"]


async def test_a_deleted_topic_and_the_checkpoint(tmp_path: Path) -> None:
    """Neither says anything of what is gone."""
    async with rig_at(tmp_path, **SMALL) as rig:
        store = await rig.open()
        await store.put("Gone", 0, b"old")
        place = store.log.max_offset
        stored_ms = rig.clock.wall_ms()
        await rig.clock.advance(5)
        await store.put("Gone", 0, b"cut off")
        await store.delete_topic("Gone")
        await store.flusher.flush_all()
        await store.housekeeper.flush()
        assert store.notes.checkpoint.commit_log_ms > stored_ms
        follow(store)
        await store.truncate(place)
        assert store.notes.deleted.before == {"Gone": place}
        saved = Checkpoint(Files(), rig.path / "checkpoint")
        saved.load()
        assert (saved.commit_log_ms, saved.queues_ms) == (stored_ms, stored_ms)
        marks = store.notes.progress.load()
        assert (marks.dispatched, marks.flushed) == (place, place)
        sums = store.notes.sums.load()
        assert sums is not None
        assert sums.end == place
        lead(store)
        assert (await store.put("Gone", 0, b"new"))[0] == place
        await rig.kill(store)
        store = await rig.open()
        assert await bodies(store, "Gone", 0) == [b"new"]
