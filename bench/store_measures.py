"""The measurements of the store: appends, synchronous flushes, reads, loop lag, and the raw limits.

Every one takes a running loop, because a store lives on one; rounds of what is compared take turns.
"""

from __future__ import annotations

import asyncio
import gc
import mmap
import os
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from bench.rounds import percentile, take_turns
from bench.store_load import BATCH, BORN_HOST, BORN_MS, QUEUES, SHAPES, TOPIC, Load, fill, forget_pages
from kerolox.store.log.safe import Safe
from kerolox.store.message_store import MessageStore
from kerolox.store.queue.reading import QueueRead

Runner = asyncio.Runner
BEAT_S = 0.005


@dataclass(frozen=True)
class Cost:
    """CPU µs per message: of the loop's thread, and of the process with all that follows in threads."""

    loop_us: float
    all_us: float
    wall_us: float


# --- appends --------------------------------------------------------------------------------------


def appends(
    runner: Runner, stores: dict[str, MessageStore], loads: dict[str, Load], rounds: int, messages: int
) -> dict[str, list[Cost]]:
    """``"1 message a write, 128 B, with index"`` → a cost for each round."""

    def variant(step: Callable[[], object], store: MessageStore) -> Callable[[], Cost]:
        return lambda: runner.run(_append_round(step, store, messages // BATCH))

    variants = {}
    for load_name, load in loads.items():
        for shape, make in SHAPES.items():
            for store_name, store in stores.items():
                variants[f"{shape}, {load_name}, {store_name}"] = variant(make(store, load), store)
    return take_turns(variants, rounds)


async def _append_round(step: Callable[[], object], store: MessageStore, steps: int) -> Cost:
    gc.collect()
    wall = time.perf_counter_ns()
    everything, loop = time.process_time_ns(), time.thread_time_ns()
    for _ in range(steps):
        step()
    store.key_filler.put_pending()
    loop = time.thread_time_ns() - loop
    wall = time.perf_counter_ns() - wall
    # A flush serves many more messages than one round has, so this is the upper bound.
    await store.flusher.flush_all()
    await store.housekeeper.flush()
    everything = time.process_time_ns() - everything
    count = steps * BATCH * 1000
    return Cost(loop / count, everything / count, wall / count)


# --- synchronous flush ----------------------------------------------------------------------------


@dataclass(frozen=True)
class SyncRound:
    messages: int
    flushes: int
    seconds: float
    cpu_us: float  # of the process, per message
    latency_ms: float  # median


def sync_passes(runner: Runner, store: MessageStore, load: Load, waiters: int, seconds: float) -> SyncRound:
    """Producers that each send when their last message is safe. Those that are ready share a write."""

    async def run() -> SyncRound:
        loop = asyncio.get_running_loop()
        log, flusher = store.log, store.flusher
        cursors = [log.cursor(TOPIC, number % QUEUES) for number in range(waiters)]
        properties = load.properties
        ready = list(range(waiters))
        sent_s = [0.0] * waiters
        latencies: list[float] = []
        finished = loop.create_future()
        stop_s = loop.time() + seconds
        in_flight = 0

        def one_pass() -> None:
            nonlocal ready, in_flight
            if loop.time() >= stop_s:
                if not in_flight and not finished.done():
                    finished.set_result(None)
                return
            group, ready = ready, []
            now_s = time.perf_counter()
            ends = []
            for number in group:
                start, _, size = log.append(
                    cursors[number],
                    load.body,
                    next(properties),
                    born_timestamp=BORN_MS,
                    born_host=BORN_HOST,
                )
                ends.append(start + size)
                sent_s[number] = now_s
            log.write()
            in_flight += len(group)
            for number, end in zip(group, ends, strict=True):
                flusher.wait_safe(end, lambda how, number=number: safe(how, number))

        def safe(how: Safe, number: int) -> None:
            nonlocal in_flight
            if how is not Safe.YES:
                raise RuntimeError(f"a flush ended with {how}")
            latencies.append(time.perf_counter() - sent_s[number])
            in_flight -= 1
            if not ready:
                loop.call_soon(one_pass)
            ready.append(number)

        flushes, cpu, began = flusher.flushes, time.process_time_ns(), time.perf_counter()
        one_pass()
        await finished
        took = time.perf_counter() - began
        cpu = time.process_time_ns() - cpu
        count = len(latencies)
        return SyncRound(
            count,
            flusher.flushes - flushes,
            took,
            cpu / 1000 / count,
            percentile(latencies, 0.5) * 1000,
        )

    return runner.run(run())


def sync_tasks(runner: Runner, store: MessageStore, load: Load, waiters: int, seconds: float) -> SyncRound:
    """As :func:`sync_passes`, with a task for each producer and a write for every message."""

    async def run() -> SyncRound:
        properties = load.properties
        latencies: list[float] = []
        stop_s = time.perf_counter() + seconds

        async def producer(number: int) -> None:
            while (sent_s := time.perf_counter()) < stop_s:
                await store.put(TOPIC, number % QUEUES, load.body, next(properties), born_timestamp=BORN_MS)
                latencies.append(time.perf_counter() - sent_s)

        flushes, cpu, began = store.flusher.flushes, time.process_time_ns(), time.perf_counter()
        await asyncio.gather(*map(producer, range(waiters)))
        took = time.perf_counter() - began
        cpu = time.process_time_ns() - cpu
        return SyncRound(
            len(latencies),
            store.flusher.flushes - flushes,
            took,
            cpu / 1000 / len(latencies),
            percentile(latencies, 0.5) * 1000,
        )

    return runner.run(run())


# --- reads ----------------------------------------------------------------------------------------


def hot_reads(
    runner: Runner, stores: dict[str, MessageStore], loads: dict[str, Load], rounds: int, messages: int
) -> dict[str, list[Cost]]:
    """32 messages a read, right behind the writer; ``stores`` say how many queues interleave."""

    def variant(store: MessageStore, load: Load, queues: int) -> Callable[[], Cost]:
        return lambda: runner.run(_hot_round(store, load, queues, messages))

    return take_turns(
        {
            f"{name}, {load_name}": variant(store, load, int(name.split()[0]))
            for name, store in stores.items()
            for load_name, load in loads.items()
        },
        rounds,
    )


async def _hot_round(store: MessageStore, load: Load, queues: int, messages: int) -> Cost:
    offsets = [store.queues.max_offset(TOPIC, number) for number in range(queues)]
    record = len(load.body) + load.properties_bytes + 110
    fill(store, load, messages * record, queues)
    read = store.queues.read_hot
    count = 0
    gc.collect()
    wall = time.perf_counter_ns()
    everything, loop = time.process_time_ns(), time.thread_time_ns()
    for _ in range(messages // queues // BATCH):
        for number in range(queues):
            got: QueueRead = read(TOPIC, number, offsets[number], BATCH)
            offsets[number] = got.next_offset
            count += got.count
    loop = time.thread_time_ns() - loop
    everything = time.process_time_ns() - everything
    wall = time.perf_counter_ns() - wall
    if count != messages // queues // BATCH * queues * BATCH:
        raise RuntimeError(f"{count} of {messages} messages were read")
    await store.flusher.flush_all()
    return Cost(loop / count / 1000, everything / count / 1000, wall / count / 1000)


@dataclass(frozen=True)
class ColdRound:
    messages: int
    bytes: int
    seconds: float
    cpu_us: float
    loop_us: float


def cold_reads(runner: Runner, store: MessageStore, queues: int, readers: int) -> ColdRound:
    """Everything from the beginning, the files out of the page cache, by so many tasks at once."""

    async def run() -> ColdRound:
        forget_pages(store)
        count = size = 0

        async def reader(first: int) -> None:
            nonlocal count, size
            for number in range(first, queues, readers):
                offset, end = 0, store.queues.max_offset(TOPIC, number)
                while offset < end:
                    got = await store.queues.read(TOPIC, number, offset)
                    offset = got.next_offset
                    count += got.count
                    size += got.size_bytes

        wall, cpu, loop = time.perf_counter(), time.process_time_ns(), time.thread_time_ns()
        await asyncio.gather(*map(reader, range(readers)))
        took = time.perf_counter() - wall
        return ColdRound(
            count,
            size,
            took,
            (time.process_time_ns() - cpu) / 1000 / count,
            (time.thread_time_ns() - loop) / 1000 / count,
        )

    return runner.run(run())


# --- loop lag -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Lag:
    """Milliseconds a five-millisecond heartbeat came late, and how long appends and hot reads took."""

    beats: int
    p50: float
    p99: float
    most: float
    own_p99: float  # without the time the thread was ready and had no core
    own_most: float
    append_p99: float
    append_most: float
    read_p99: float
    read_most: float
    cold_mib_s: float


Reading = Callable[[MessageStore, asyncio.Event], Awaitable[int]]


async def no_reader(store: MessageStore, stop: asyncio.Event) -> int:
    await stop.wait()
    return 0


async def store_reader(store: MessageStore, stop: asyncio.Event) -> int:
    """Cold data as the broker reads it: two consumers far behind."""
    size = 0

    async def consumer(number: int) -> None:
        nonlocal size
        offset = 0
        while not stop.is_set() and offset < store.queues.max_offset(TOPIC, number):
            got = await store.queues.read(TOPIC, number, offset)
            offset = got.next_offset
            size += got.size_bytes
            await asyncio.sleep(0)  # an answer of the broker goes out in another pass

    await asyncio.gather(consumer(0), consumer(1))
    return size


async def mapped_reader(store: MessageStore, stop: asyncio.Event) -> int:
    """The yardstick: slices of a memory map on the loop, as large as the reads above."""
    size = 0
    segment = store.segments.all[0]
    descriptor = os.open(segment.path, os.O_RDONLY)
    try:
        with mmap.mmap(descriptor, segment.size, prot=mmap.PROT_READ) as mapped:
            for at in range(0, store.log.max_offset, 128 << 10):
                if stop.is_set():
                    break
                size += len(mapped[at : at + (128 << 10)])
                await asyncio.sleep(0)
    finally:
        os.close(descriptor)
    return size


def loop_lag(runner: Runner, store: MessageStore, load: Load, reading: Reading, seconds: float) -> Lag:
    """Beats while 8,000 messages a second are appended to a queue of its own and read behind the writer."""

    async def run() -> Lag:
        await store.flusher.flush_all()
        await store.housekeeper.flush()
        forget_pages(store)
        loop = asyncio.get_running_loop()
        stop = asyncio.Event()
        late: list[float] = []
        own: list[float] = []
        appended: list[float] = []
        read: list[float] = []

        async def heart() -> None:
            while not stop.is_set():
                due_s = loop.time() + BEAT_S
                waited_s = _without_core_s()
                # Not asyncio.sleep: its timer has the milliseconds of the loop, as this one, but a task more.
                woken = loop.create_future()
                loop.call_at(due_s, woken.set_result, None)
                await woken
                late.append(max(0.0, time.monotonic() - due_s))
                own.append(max(0.0, late[-1] - (_without_core_s() - waited_s)))

        async def traffic() -> None:
            cursor = store.log.cursor("bench-live", 0)
            properties = load.properties
            offset = cursor.next_offset
            while not stop.is_set():
                began = time.perf_counter()
                for _ in range(BATCH):
                    store.log.append(
                        cursor, load.body, next(properties), born_timestamp=BORN_MS, born_host=BORN_HOST
                    )
                store.log.write()
                middle = time.perf_counter()
                got = await store.queues.read("bench-live", 0, offset)
                offset = got.next_offset
                appended.append(middle - began)
                read.append(time.perf_counter() - middle)
                await asyncio.sleep(0.004)

        tasks = [asyncio.ensure_future(heart()), asyncio.ensure_future(traffic())]
        began = time.perf_counter()
        loop.call_later(seconds, stop.set)
        size = await reading(store, stop)
        took = time.perf_counter() - began
        stop.set()
        await asyncio.gather(*tasks)
        return Lag(
            len(late),
            percentile(late, 0.5) * 1000,
            percentile(late, 0.99) * 1000,
            max(late) * 1000,
            percentile(own, 0.99) * 1000,
            max(own) * 1000,
            percentile(appended, 0.99) * 1000,
            max(appended) * 1000,
            percentile(read, 0.99) * 1000,
            max(read) * 1000,
            size / took / (1 << 20),
        )

    return runner.run(run())


def _without_core_s() -> float:
    """How long this thread has been ready to run, and waited for a core."""
    return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9


# --- the raw limits -------------------------------------------------------------------------------


def raw(folder: Path, loads: dict[str, Load], rounds: int, messages: int) -> dict[str, list[float]]:
    """CPU µs per message of nothing but copying and writing the bytes that appends write."""
    path = folder / "raw"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    size = 1 << 30
    os.posix_fallocate(descriptor, 0, size)
    at = 0

    def timed(work: Callable[[], object], per_call: int) -> Callable[[], float]:
        def one_round() -> float:
            gc.collect()
            began = time.thread_time_ns()
            for _ in range(messages // per_call):
                work()
            return (time.thread_time_ns() - began) / 1000 / (messages // per_call * per_call)

        return one_round

    def writing(data: bytes) -> Callable[[], object]:
        def work() -> None:
            nonlocal at
            if at + len(data) > size:
                at = 0
            os.pwrite(descriptor, data, at)
            at += len(data)

        return work

    variants = {}
    for name, load in loads.items():
        record = bytes(len(load.body) + load.properties_bytes + 107)
        parts = [bytearray(record) for _ in range(BATCH)]
        variants[f"memcpy (join of 32), {name}"] = timed(lambda parts=parts: b"".join(parts), BATCH)
        variants[f"pwrite of 1, {name}"] = timed(writing(record), 1)
        variants[f"pwrite of 32, {name}"] = timed(writing(record * BATCH), BATCH)
    try:
        return take_turns(variants, rounds)
    finally:
        os.close(descriptor)
        path.unlink()


def raw_syncs(folder: Path, seconds: float) -> list[float]:
    """Milliseconds of each fdatasync with 4 KiB dirty, in an allocated file of 1 GiB, going forward."""
    path = folder / "raw"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        os.posix_fallocate(descriptor, 0, 1 << 30)
        os.fsync(descriptor)
        page = os.urandom(4096)
        took: list[float] = []
        stop = time.perf_counter() + seconds
        at = 0
        while time.perf_counter() < stop:
            os.pwrite(descriptor, page, at)
            at += len(page)
            began = time.perf_counter()
            os.fdatasync(descriptor)
            took.append((time.perf_counter() - began) * 1000)
        return took
    finally:
        os.close(descriptor)
        path.unlink()
