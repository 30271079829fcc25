"""Where the CPU time of an append, or of a hot read, goes.

A sampler on a CPU-time signal, not cProfile, whose cost for every call makes small functions look large.
Samples count for the function that runs ("own") and for all that called it ("with callees"). CPython looks
at signals only where a function begins or a loop turns, so a call into C counts for what follows it; for
that reason the parts of an append are also measured one by one, on the same messages.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType

from bench.rounds import cpu_us, take_turns, typical_cost
from bench.store_load import BATCH, BORN_HOST, BORN_MS, QUEUES, SHAPES, TOPIC, Load, fill, options
from kerolox.protocol import properties as names
from kerolox.protocol.record import encode_record
from kerolox.protocol.record_scan import Entry
from kerolox.store.index.key_index import KeyHasher
from kerolox.store.message_store import MessageStore
from kerolox.store.state import Obstacle

INTERVAL_S = 0.0005
SECONDS = 2.0


class Sampler:
    def __init__(self) -> None:
        self.own: Counter[CodeType] = Counter()
        self.lines: Counter[tuple[CodeType, int]] = Counter()
        self.with_callees: Counter[CodeType] = Counter()
        self.samples = 0

    def __enter__(self) -> Sampler:
        signal.signal(signal.SIGPROF, self._take)
        signal.setitimer(signal.ITIMER_PROF, INTERVAL_S, INTERVAL_S)
        return self

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, signal.SIG_DFL)

    def _take(self, _signal: int, frame: FrameType | None) -> None:
        if frame is None:
            return
        self.samples += 1
        self.own[frame.f_code] += 1
        self.lines[frame.f_code, frame.f_lineno] += 1
        seen: set[CodeType] = set()
        while frame is not None and frame.f_code not in seen:
            seen.add(frame.f_code)
            self.with_callees[frame.f_code] += 1
            frame = frame.f_back

    def show(self, title: str, us_a_message: float) -> None:
        print(f"\n{title}: {us_a_message:.2f} CPU µs a message, {self.samples} samples")
        print("   own µs  with callees  function")
        for code, count in self.own.most_common(16):
            print(
                f"{count / self.samples * us_a_message:9.3f}  "
                f"{self.with_callees[code] / self.samples * us_a_message:12.3f}  {_name(code)}"
            )
        print("   own µs  line")
        for (code, line), count in self.lines.most_common(16):
            print(f"{count / self.samples * us_a_message:9.3f}  {_name(code)}:{line}")


def show(runner: asyncio.Runner, folder: Path) -> None:
    """The parts of an append, every shape of one, then reads of one queue and of eight."""
    runner.run(_parts(folder / "parts"))
    for shape, make in SHAPES.items():
        for index in (True, False):
            runner.run(_appends(folder / f"{shape}-{index}".replace(" ", "-"), shape, make, index))
    for queues in (1, 8):
        runner.run(_reads(folder / f"reads-{queues}", queues))


async def _appends(
    root: Path, shape: str, make: Callable[[MessageStore, Load], Callable[[], object]], index: bool
) -> None:
    store = MessageStore(options(root, index=index))
    await store.open()
    step = make(store, Load(128))
    sampler, steps = Sampler(), 0
    step()
    with sampler:
        began = time.thread_time()
        while time.thread_time() - began < SECONDS:
            for _ in range(32):
                step()
            steps += 32
        took = time.thread_time() - began
    sampler.show(f"{shape}, 128 B, {'with' if index else 'without'} index", took * 1e6 / steps / BATCH)
    await store.close()


async def _parts(root: Path) -> None:
    """What each part of an append costs alone, 32 messages at a time over eight queues."""
    store = MessageStore(options(root))
    await store.open()
    store.key_filler.on_loop = False
    load = Load(128)
    log, topic = store.log, TOPIC.encode()
    cursors = [log.cursor(TOPIC, number % QUEUES) for number in range(BATCH)]
    properties = load.properties
    packed = [next(properties) for _ in range(BATCH)]
    places: dict[str, list[int]] = {}
    records = bytes(BATCH * (len(load.body) + len(packed[0]) + 107))

    def entries(follower: str) -> list[Entry]:
        """As the log would hand them over: each follower has its own count of them."""
        at = places.setdefault(follower, [0])
        first = at[0]
        at[0] += BATCH
        return [
            (400, 0, n % QUEUES, (first + n) // QUEUES, (first + n) * 400, 0, BORN_MS, topic, packed[n])
            for n in range(BATCH)
        ]

    def encode() -> None:
        for cursor in cursors:
            encode_record(
                1,
                0,
                5,
                5,
                0,
                BORN_MS,
                BORN_HOST,
                BORN_MS,
                BORN_HOST,
                0,
                0,
                load.body,
                cursor.field,
                packed[0],
            )

    def append() -> None:
        for cursor in cursors:
            log.append(cursor, load.body, next(properties), born_timestamp=BORN_MS, born_host=BORN_HOST)
        log.take_back()

    def find(mark: bytes) -> Callable[[], object]:
        return lambda: [names.find(one, mark) for one in packed]

    hasher = KeyHasher()
    unique = [names.find(one, names.AT_UNIQUE_KEY) or b"" for one in packed]
    parts: dict[str, Callable[[], object]] = {
        "append, with the record made": append,
        "  the record alone (encode_record)": encode,
        "write of 32 (Segments.append)": lambda: _write_over(store, records),
        "(making up entries for the next two)": lambda: entries("none"),
        "queues (QueueFiller.fill)": lambda: store.queue_filler.fill(entries("queues")),
        "keys (KeyFiller.fill)": lambda: store.key_filler.fill(entries("keys")),
        "  find the tag": find(names.AT_TAGS),
        "  find the unique key": find(names.AT_UNIQUE_KEY),
        "  find keys, none there": find(names.AT_KEYS),
        "  hash the unique key": lambda: [hasher.unique_key(topic, one) for one in unique],
    }
    print("\nparts of an append, 128 B, 32 a write, CPU µs a message")
    for name, costs in take_turns({n: cpu_us(w, per_call=BATCH) for n, w in parts.items()}, 9).items():
        print(f"{typical_cost(costs):9.3f}  {name}")
    # What was made up here is in no log: nothing of it is to be kept.
    store.state.set(Obstacle.FENCED, "only measured")
    await store.close()


def _write_over(store: MessageStore, records: bytes) -> None:
    """Write where the last write went: this is not about a full file."""
    at = store.segments.wrote
    store.segments.append(records)
    store.segments.wrote = store.segments.committed = at


async def _reads(root: Path, queues: int) -> None:
    store = MessageStore(options(root, index=False))
    await store.open()
    load = Load(128)
    sampler = Sampler()
    took, count, offsets = 0.0, 0, [0] * queues
    read = store.queues.read_hot
    while took < SECONDS:
        fill(store, load, 1 << 20, queues)
        with sampler:
            began = time.thread_time()
            for number in range(queues):
                end = store.queues.max_offset(TOPIC, number)
                while offsets[number] < end:
                    got = read(TOPIC, number, offsets[number], BATCH)
                    offsets[number] = got.next_offset
                    count += got.count
            took += time.thread_time() - began
        await asyncio.sleep(0)
    sampler.show(f"hot reads of 32 out of {queues} queues, 128 B", took * 1e6 / count)
    await store.close()


def _name(code: CodeType) -> str:
    path = Path(code.co_filename)
    name = getattr(code, "co_qualname", code.co_name)
    return f"{path.parent.name}/{path.name} {name}"


def main() -> None:
    from bench import store

    store.main(["--profile", *sys.argv[1:]])


if __name__ == "__main__":
    main()
