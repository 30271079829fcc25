from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.store.dispatch.kit import LOG_FILE, SYNC, Rig, bodies, messages, props, rig_at

from kerolox.compiled import load
from kerolox.protocol.java import java_hash
from kerolox.protocol.record import decode_record
from kerolox.store.disk.files import Files
from kerolox.store.errors import CorruptRecord
from kerolox.store.message_store import MessageStore
from kerolox.store.queue import reading
from kerolox.store.queue.entry import HOLE_TAGS, SIMPLE
from kerolox.store.queue.reading import PULL_BYTES_MAX, QueueRead, ReadStatus


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with rig_at(tmp_path) as rig:
        yield rig


async def fill(store: MessageStore, count: int, *, queues: int = 1, size: int = 10, tag: str = "") -> None:
    for i in range(count):
        properties = props(TAGS=tag) if tag else b""
        cursor = store.log.cursor("T", i % queues)
        store.log.append(
            cursor, (b"%d" % i).ljust(size, b"."), properties, born_timestamp=1, born_host=bytes(8)
        )
    store.log.write()
    await asyncio.sleep(0)


def brief(read: QueueRead) -> tuple[ReadStatus, int, int, int, int]:
    return read.status, read.next_offset, read.min_offset, read.max_offset, read.count


# --- what is told ----------------------------------------------------------------------------------


async def test_every_status(rig: Rig) -> None:
    store = await rig.open(delete_pause_ms=0)
    assert brief(await store.queues.read("T", 0, 5)) == (ReadStatus.NO_MATCHED_LOGIC_QUEUE, 0, 0, 0, 0)
    store.consume_queues.queue("T", 0)
    assert brief(await store.queues.read("T", 0, 5)) == (ReadStatus.NO_MESSAGE_IN_QUEUE, 0, 0, 0, 0)
    await fill(store, 100, size=400)
    assert brief(await store.queues.read("T", 0, 100)) == (ReadStatus.OFFSET_OVERFLOW_ONE, 100, 0, 100, 0)
    assert brief(await store.queues.read("T", 0, 101)) == (ReadStatus.OFFSET_OVERFLOW_BADLY, 100, 0, 100, 0)
    assert brief(await store.queues.read("T", 0, -1)) == (ReadStatus.OFFSET_TOO_SMALL, 0, 0, 100, 0)
    assert brief(await store.queues.read("T", 0, 97)) == (ReadStatus.FOUND, 100, 0, 100, 3)
    nothing = await store.queues.read("T", 0, 97, queue_filter=lambda code: False)
    assert brief(nothing) == (ReadStatus.NO_MATCHED_MESSAGE, 100, 0, 100, 0)
    # The oldest files leave the log; the queue has not heard of it yet.
    store.segments.delete_before(5 * LOG_FILE)
    assert brief(await store.queues.read("T", 0, 0, 10)) == (ReadStatus.MESSAGE_WAS_REMOVING, 10, 0, 100, 0)
    store.consume_queues.delete_before(store.log.min_offset)
    low = store.queues.min_offset("T", 0)
    assert low == 5 * 8  # eight of them in a file
    assert brief(await store.queues.read("T", 0, 0)) == (ReadStatus.OFFSET_TOO_SMALL, low, low, 100, 0)
    assert brief(await store.queues.read("T", 0, low)) == (ReadStatus.FOUND, low + 32, low, 100, 32)


async def test_a_queue_whose_messages_are_all_gone(rig: Rig) -> None:
    store = await rig.open()
    await fill(store, 5, size=900)
    store.log.append(store.log.cursor("Other", 0), b"x" * 3900, born_timestamp=1, born_host=bytes(8))
    store.log.write()
    store.segments.delete_before(2 * LOG_FILE)
    store.consume_queues.delete_before(store.log.min_offset)
    assert brief(await store.queues.read("T", 0, 0)) == (ReadStatus.OFFSET_TOO_SMALL, 5, 5, 5, 0)
    assert brief(await store.queues.read("T", 0, 5)) == (ReadStatus.OFFSET_OVERFLOW_ONE, 5, 5, 5, 0)
    assert await store.queues.earliest_time("T", 0) == -1
    await store.put("T", 0, b"goes on")
    assert await bodies(store) == [b"goes on"]
    assert store.queues.min_offset("T", 0) == 5


async def test_a_missing_queue_file_is_passed_over(rig: Rig) -> None:
    store = await rig.open()
    await fill(store, 180)
    await store.housekeeper.flush()
    queue = store.queues.find("T", 0)
    assert queue is not None
    queue._tail = None
    segments = queue._segments
    segments._segments = [segments._segments[0], *segments._segments[2:]]
    assert brief(await store.queues.read("T", 0, 60)) == (ReadStatus.OFFSET_FOUND_NULL, 100, 0, 180, 0)
    assert brief(await store.queues.read("T", 0, 49)) == (ReadStatus.FOUND, 50, 0, 180, 1)
    assert brief(await store.queues.read("T", 0, 100))[0] is ReadStatus.FOUND


async def test_blank_entries_never_hide_messages(tmp_path: Path) -> None:
    """A queue that begins at 30: RocketMQ skips real messages of the first log file behind these."""
    async with rig_at(tmp_path) as rig:
        store = await rig.open()
        store.log.cursor("T", 0).next_offset = 30
        await fill(store, 10)
        await store.close()
        path = tmp_path / "consumequeue" / "T" / "0" / f"{0:020d}"
        assert path.read_bytes()[:600] == SIMPLE.blank * 30
        store = await rig.open()
        assert (store.queues.min_offset("T", 0), store.queues.max_offset("T", 0)) == (30, 40)
        assert brief(await store.queues.read("T", 0, 0)) == (ReadStatus.OFFSET_TOO_SMALL, 30, 30, 40, 0)
        queue = store.queues.find("T", 0)
        assert queue is not None
        queue.min_offset = 0  # as RocketMQ has it after a restart
        assert brief(await store.queues.read("T", 0, 0)) == (ReadStatus.FOUND, 32, 0, 40, 2)
        assert brief(await store.queues.read("T", 0, 0, 8)) == (ReadStatus.MESSAGE_WAS_REMOVING, 8, 0, 40, 0)


async def test_an_unreadable_message_is_passed_over(rig: Rig) -> None:
    """A log file that is missing in the middle, or deleted between the look at the queue and the read."""
    store = await rig.open()
    await fill(store, 30, size=400)
    await store.flusher.flush_all()
    segments = store.segments
    segments._segments = [segments._segments[0], *segments._segments[2:]]
    read = await store.queues.read("T", 0, 5)
    assert brief(read) == (ReadStatus.FOUND, 30, 0, 30, 22 - 5)
    assert [m.queue_offset for m in messages(read)] == [5, 6, 7, *range(16, 30)]
    assert brief(await store.queues.read("T", 0, 8, 4)) == (ReadStatus.MESSAGE_WAS_REMOVING, 12, 0, 30, 0)
    found = await store.queues.read("T", 0, 8, record_filter=lambda data, at, size: True)
    assert [m.queue_offset for m in messages(found)] == [*range(16, 30)]


# --- how much ---------------------------------------------------------------------------------------


async def test_limits_of_a_batch_in_memory(tmp_path: Path) -> None:
    async with rig_at(tmp_path, commit_log_file_bytes=1 << 22) as rig:
        store = await rig.open()
        await fill(store, 100, size=100)
        assert (await store.queues.read("T", 0, 0, 5)).count == 5
        assert (await store.queues.read("T", 0, 0, 0)).count == 1  # the first is always given
        assert (await store.queues.read("T", 0, 0, -3)).count == 1
        assert (await store.queues.read("T", 0, 0, 1000)).count == 32
        size = 92 + 100
        assert (await store.queues.read("T", 0, 0, 1000, bytes_max=5 * size)).count == 5
        assert (await store.queues.read("T", 0, 0, 1000, bytes_max=5 * size - 1)).count == 4
        assert (await store.queues.read("T", 0, 0, 1000, bytes_max=1)).count == 1
        read = await store.queues.read("T", 0, 90, 1000)
        assert (read.count, read.size_bytes, read.slow) == (10, 10 * size, False)
        await fill(store, 20, size=60_000)
        assert (await store.queues.read("T", 0, 100, 32)).count == 262_144 // 60_092
        assert (await store.queues.read("T", 0, 100, 32, bytes_max=PULL_BYTES_MAX * 2)).count == 4


async def test_limits_of_a_batch_on_disk(tmp_path: Path) -> None:
    async with rig_at(tmp_path, commit_log_file_bytes=1 << 22) as rig:
        store = await rig.open()
        await fill(store, 100, size=100)
        store.reader._memory_bytes = 192 * 10 * 100 // 40
        # The newest ten are in memory, the others are not; each entry is judged by where it lies.
        read = await store.queues.read("T", 0, 0, 32)
        assert (read.count, read.slow, read.behind_bytes) == (8, True, 192 * (100 - 7))
        assert (await store.queues.read("T", 0, 85, 32)).count == 15
        assert (await store.queues.read("T", 0, 80, 32)).count == 8
        read = await store.queues.read("T", 0, 90, 32)
        assert (read.count, read.slow, read.behind_bytes) == (10, False, 192)
        await fill(store, 20, size=20_000)
        assert (await store.queues.read("T", 0, 100, 32)).count == 65_536 // 20_092
        store.reader._memory_bytes = 0
        assert (await store.queues.read("T", 0, 119, 32)).count == 1


async def test_tags_are_told_by_their_hash(rig: Rig) -> None:
    store = await rig.open(commit_log_file_bytes=1 << 20)
    for i in range(30):
        await store.put("T", 0, b"%d" % i, props(TAGS="AB"[i % 2]) if i % 3 else b"")
    wanted = java_hash("A")
    read = await store.queues.read("T", 0, 0, queue_filter=lambda code: code == wanted)
    assert [m.body for m in messages(read)] == [b"%d" % i for i in range(0, 30, 2) if i % 3]
    assert brief(read)[:2] == (ReadStatus.FOUND, 30)
    untagged = await store.queues.read("T", 0, 0, queue_filter=lambda code: code == 0)
    assert [m.body for m in messages(untagged)] == [b"%d" % i for i in range(0, 30, 3)]
    limited = await store.queues.read("T", 0, 1, 3, queue_filter=lambda code: code == wanted)
    assert [m.body for m in messages(limited)] == [b"2", b"4", b"8"]
    assert limited.next_offset == 9  # full: what follows was not looked at


async def test_filters_that_look_into_records(rig: Rig) -> None:
    def second(data: bytes, at: int, size: int) -> bool:
        return decode_record(data[at : at + size]).body[0] == ord("2")

    store = await rig.open(commit_log_file_bytes=1 << 20)
    await fill(store, 30)
    read = await store.queues.read("T", 0, 0, 4, record_filter=second)
    assert [m.body.strip(b".") for m in messages(read)] == [b"2", b"20", b"21", b"22"]
    assert (read.next_offset, read.filtered) == (23, 19)
    none = await store.queues.read("T", 0, 0, 4, record_filter=lambda data, at, size: False)
    assert brief(none) == (ReadStatus.NO_MATCHED_MESSAGE, 30, 0, 30, 0)
    assert none.filtered == 30


@pytest.mark.parametrize(("count_max", "looked_at"), [(32, 800), (800, 800), (900, 900), (1 << 31, 4096)])
async def test_one_pull_looks_at_eight_hundred_entries(rig: Rig, count_max: int, looked_at: int) -> None:
    store = await rig.open(commit_log_file_bytes=1 << 20)
    count = 1000 if looked_at < 1000 else 4200
    await fill(store, count)
    seen: list[int] = []
    read = await store.queues.read(
        "T",
        0,
        7,
        count_max,
        queue_filter=lambda code: bool(seen.append(code)),  # type: ignore[func-returns-value]
    )
    assert brief(read) == (ReadStatus.NO_MATCHED_MESSAGE, 7 + looked_at, 0, count, 0)
    assert len(seen) == looked_at


# --- from where -------------------------------------------------------------------------------------


async def test_cold_reads_run_in_a_thread(rig: Rig) -> None:
    store = await rig.open()
    await fill(store, 200, size=100)
    await store.housekeeper.flush()
    loop_thread = threading.get_ident()
    for cold_part in ("commitlog", "consumequeue", ""):
        for queue in store.consume_queues:
            queue.cool()
        rig.disk.reads.clear()
        rig.disk.cold = lambda path, offset, size, part=cold_part: part in path  # type: ignore[misc]
        read = await store.queues.read("T", 0, 20)
        assert (read.status, read.count) == (ReadStatus.FOUND, 32)
        assert [m.queue_offset for m in messages(read)] == list(range(20, 52))
        assert rig.disk.reading_threads
        assert loop_thread not in rig.disk.reading_threads
    rig.disk.cold = None
    rig.disk.reads.clear()
    assert (await store.queues.read("T", 0, 20)).count == 32
    assert not rig.disk.reading_threads  # all in memory: no thread at all


async def test_the_loop_goes_on_during_a_cold_read(rig: Rig) -> None:
    store = await rig.open()
    await fill(store, 10)
    gate = threading.Event()
    rig.disk.cold = lambda path, offset, size: "commitlog" in path
    original = store.log.read
    store.log.read = lambda offset, size: (gate.wait(10), original(offset, size))[1]  # type: ignore[method-assign]
    cold = asyncio.ensure_future(store.queues.read("T", 0, 0))
    await asyncio.sleep(0.01)
    assert not cold.done()
    assert await store.put("T", 0, b"meanwhile")
    gate.set()
    assert (await cold).count == 10


async def test_scattered_records_need_few_reads(tmp_path: Path) -> None:
    async with rig_at(tmp_path, commit_log_file_bytes=1 << 22) as rig:
        store = await rig.open()
        await fill(store, 320, queues=10, size=100)
        rig.disk.reads.clear()
        read = await store.queues.read("T", 3, 0)
        assert [m.queue_offset for m in messages(read)] == list(range(32))
        assert len([path for path, *_ in rig.disk.reads if "commitlog" in path]) == 1
        # Far apart they are fetched one by one.
        for i in range(5):
            await store.put("Far", 0, b"%d" % i)
            await store.put("Other", 0, b"x" * 40_000)
        rig.disk.reads.clear()
        assert [m.body for m in messages(await store.queues.read("Far", 0, 0))] == [
            b"%d" % i for i in range(5)
        ]
        assert len([path for path, *_ in rig.disk.reads if "commitlog" in path]) == 5


async def test_messages_of_many_files(rig: Rig) -> None:
    store = await rig.open()
    await fill(store, 100, queues=3, size=300)
    for queue_id in range(3):
        expected = [(b"%d" % i).ljust(300, b".") for i in range(queue_id, 100, 3)]
        assert await bodies(store, "T", queue_id) == expected


# --- other look-ups ----------------------------------------------------------------------------------


async def test_offsets_by_time(rig: Rig) -> None:
    store = await rig.open()
    assert await store.queues.offset_by_time("T", 0, 5) == 0
    start_ms = rig.clock.wall_ms()
    for i in range(10):
        await store.put("T", 0, b"%d" % i)
        rig.clock.step_wall(10 * (i % 2))  # two of each time
    times = [start_ms + 10 * (i // 2) for i in range(10)]
    for time_ms in range(start_ms - 5, start_ms + 60):
        lower = next((i for i, t in enumerate(times) if t >= time_ms), 10)
        upper = max((i for i, t in enumerate(times) if t <= time_ms), default=0)
        assert await store.queues.offset_by_time("T", 0, time_ms) == lower
        assert await store.queues.offset_by_time("T", 0, time_ms, upper=True) == upper


async def test_a_damaged_record_is_no_answer_to_a_search_by_time(rig: Rig) -> None:
    """It was the beginning of the queue, so a reset by time delivered everything again."""
    store = await rig.open()
    for number in range(9):
        await store.put("T", 0, b"%d" % number)
        rig.clock.step_wall(10)
    entry = store.consume_queues.queue("T", 0).entry(4)
    assert entry is not None
    segment = store.segments.segment_at(entry[0])
    assert segment is not None
    file = Files().open(segment.path)
    file.pwrite(bytes(8), entry[0] - segment.start)
    file.close()
    with pytest.raises(
        CorruptRecord, match=f"no record starts at log offset {entry[0]}, .*kerolox store verify"
    ):
        await store.queues.offset_by_time("T", 0, rig.clock.wall_ms() - 15)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=60), st.integers(0, 40))
@settings(max_examples=25, deadline=None, derandomize=True)
def test_offsets_by_time_are_those_of_a_plain_search(
    tmp_path_factory: pytest.TempPathFactory, steps: list[int], deleted_files: int
) -> None:
    async def run() -> None:
        async with rig_at(tmp_path_factory.mktemp("time")) as rig:
            store = await rig.open()
            times = []
            for step in steps:
                rig.clock.step_wall(step)
                times.append(rig.clock.wall_ms())
                store.log.append(store.log.cursor("T", 0), b"x" * 400, born_timestamp=1, born_host=bytes(8))
                store.log.write()
            store.segments.delete_before(deleted_files * LOG_FILE)
            store.consume_queues.delete_before(store.log.min_offset)
            low, high = store.queues.min_offset("T", 0), store.queues.max_offset("T", 0)
            for time_ms in range(times[0] - 1, times[-1] + 2):
                lower = next((i for i in range(low, high) if times[i] >= time_ms), high)
                upper = max((i for i in range(low, high) if times[i] <= time_ms), default=low)
                assert await store.queues.offset_by_time("T", 0, time_ms) == lower
                assert await store.queues.offset_by_time("T", 0, time_ms, upper=True) == upper

    asyncio.run(run())


async def test_earliest_time_and_bounds(rig: Rig) -> None:
    store = await rig.open()
    assert (store.queues.min_offset("T", 0), store.queues.max_offset("T", 0)) == (0, 0)
    assert await store.queues.earliest_time("T", 0) == -1
    first_ms = rig.clock.wall_ms()
    await store.put("T", 0, b"1")
    rig.clock.step_wall(1000)
    await store.put("T", 0, b"2")
    assert await store.queues.earliest_time("T", 0) == first_ms
    assert (store.queues.min_offset("T", 0), store.queues.max_offset("T", 0)) == (0, 2)


async def test_by_place(rig: Rig) -> None:
    store = await rig.open()
    physical, _, size = await store.put("T", 0, b"body")
    record = await store.message_at(physical)
    assert (len(record), decode_record(record).body) == (size, b"body")
    for offset in (physical + 1, size, -1, 1 << 50):
        with pytest.raises(CorruptRecord, match="no record"):
            await store.message_at(offset)


async def test_by_key(rig: Rig) -> None:
    store = await rig.open()
    start_ms = rig.clock.wall_ms()
    unique = [f"7F0000010000000000000000{i:08X}" for i in range(40)]
    for i in range(40):
        await store.put("T", i % 2, b"%d" % i, props(KEYS=f"k{i % 4} all", UNIQ_KEY=unique[i]))
        rig.clock.step_wall(1000)

    async def found(key: str, **limits: int) -> list[int]:
        return [int(decode_record(record).body) for record in await store.find_by_key("T", key, **limits)]

    assert await found(unique[17]) == [17]
    assert await found("k1") == list(range(1, 40, 4))
    assert await found("k1", count_max=3) == [29, 33, 37]  # the newest, told oldest first
    assert await found("all", count_max=1000) == list(range(40))
    assert await found("nothing") == []
    assert await found("k") == []
    assert await found("all", begin_ms=start_ms + 10_000, end_ms=start_ms + 12_000) == [10, 11, 12]
    assert await store.find_by_key("U", "all") == []
    # What has left the log is not found.
    store.segments.delete_before(2 * LOG_FILE)
    assert (await found("all", count_max=64))[0] > 0


async def test_no_more_than_the_limit_by_key(rig: Rig) -> None:
    store = await rig.open(query_count_max=5)
    for _ in range(10):
        await store.put("T", 0, b"", props(KEYS="k"))
    assert len(await store.find_by_key("T", "k", 100)) == 5


async def test_unconfirmed_messages_are_in_no_queue(rig: Rig) -> None:
    store = await rig.open(flush_mode=SYNC)
    await fill(store, 3)
    assert store.queues.max_offset("T", 0) == 0
    await store.flusher.flush_all()
    assert store.queues.max_offset("T", 0) == 3


# --- entries that lie one behind the other --------------------------------------------------------------


CORE = load()
RUNS: list[Any] = [pytest.param(reading._entry_run, id="python")]
if CORE is not None:
    RUNS.append(pytest.param(CORE.entry_run, id="compiled"))


@pytest.mark.parametrize("run", RUNS)
def test_what_entries_have_in_common(run: Any) -> None:
    def entries(*items: tuple[int, int, int]) -> bytes:
        return b"".join(SIMPLE.pack(*item) for item in items)

    def at(*items: tuple[int, int, int], count: int = 9, size: int = 99, file: int = 1 << 40) -> Any:
        return run(entries(*items), count, size, file)

    assert at() is None
    assert at((7, 5, 0)) == (1, 5, 7, 7, 12, 0)
    assert at((7, 5, 1), (12, 3, 2), (40, 2, -1)) == (3, 10, 7, 40, 42, 28)
    # As far as they go.
    one = (1, 5, 7, 7, 12, 0)
    assert at((7, 5, 0), (12, 3, HOLE_TAGS)) == one
    assert at((7, 5, 0), (6, 3, 0)) == at((7, 5, 0), (7, 5, 0)) == at((7, 5, 0), (-1, 5, 0)) == one
    assert at((12, 3, HOLE_TAGS), (15, 5, 0)) is None
    assert at((-1, 5, 0)) is at((7, -5, 0)) is None
    assert at((2**63 - 2, 100, 0)) == (1, 100, 2**63 - 2, 2**63 - 2, 2**63 - 1, 0)
    # Within the limits, but for the first.
    three = (7, 5, 0), (12, 3, 0), (15, 4, 0)
    assert at(*three, count=2) == at(*three, size=8) == at(*three, size=11) == (2, 8, 7, 12, 15, 5)
    assert at(*three, count=0) == at(*three, size=1) == at(*three, file=12) == one
    assert at(*three, file=15) == at(*three, file=18) == (2, 8, 7, 12, 15, 5)
    assert at(*three, file=19) == (3, 12, 7, 15, 19, 5)


@pytest.mark.skipif(CORE is None, reason="nothing was compiled")
@given(
    st.lists(
        st.tuples(st.integers(0, 50), st.integers(-1, 9), st.sampled_from([0, -1, HOLE_TAGS])), max_size=6
    ),
    st.integers(0, 5),
    st.integers(0, 30),
    st.integers(1, 60),
)
def test_compiled_or_not(
    items: list[tuple[int, int, int]], count_max: int, bytes_max: int, file_bytes: int
) -> None:
    assert CORE is not None
    asked = b"".join(SIMPLE.pack(*item) for item in items), count_max, bytes_max, file_bytes
    assert CORE.entry_run(*asked) == reading._entry_run(*asked)
