"""The store: appends, synchronous flushes, reads, recovery, and what a cold reader does to the others.

``--profile`` prints instead where the CPU time of an append and of a read goes.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import shutil
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench import machine, profile_store, store_recovery
from bench import store_measures as measures
from bench.results import Result, Table, number
from bench.rounds import percentile, typical_cost
from bench.store_load import QUEUES, SHAPES, Load, fill, new_loop, options
from bench.store_measures import ColdRound, Cost, Lag, SyncRound
from kerolox.store.message_store import MessageStore

BODIES = {"128 B": 128, "1 KiB": 1024}
WAITERS = (1, 16, 64)
GIB = 1 << 30
QUOTED = [
    ["C, everything", "1.0", "1.6", "0.38"],
    ["the hot core as a C extension", "1.1", "1.6", "0.43"],
    ["tuned Python, the design this store follows", "6.3", "6 to 8", "3.9"],
    ["naive Python", "64", "", ""],
]


def main(argv: list[str] | None = None) -> Result | None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7, help="of each append and hot read")
    parser.add_argument("--messages", type=int, default=8192, help="of each such round")
    parser.add_argument("--seconds", type=float, default=0.5, help="of each round of synchronous flushes")
    parser.add_argument("--recovery-mib", type=int, default=160, help="size of the log that is recovered")
    parser.add_argument("--cold-mib", type=int, default=384, help="size of the log that is read cold")
    parser.add_argument(
        "--directory", type=Path, help="where to put the stores; a temporary one if not given"
    )
    parser.add_argument("--profile", action="store_true", help="where the time goes, instead of all that")
    arguments = parser.parse_args(argv)
    logging.disable(logging.WARNING)
    folder = Path(tempfile.mkdtemp(prefix="kerolox-bench-", dir=arguments.directory))
    try:
        with asyncio.Runner(loop_factory=new_loop) as runner:
            if arguments.profile:
                profile_store.show(runner, folder)
                return None
            result = _measure(runner, folder, arguments)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    result.show()
    result.save()
    return result


def _measure(runner: asyncio.Runner, folder: Path, arguments: argparse.Namespace) -> Result:
    facts = machine.describe()
    loads = {name: Load(size) for name, size in BODIES.items()}
    record = loads["128 B"].properties_bytes
    flags = {
        "rounds": f"{arguments.rounds} of {arguments.messages:,} messages each, taking turns",
        "messages": f"{QUEUES} queues, {record} bytes of properties with a unique key and a tag",
        "files": "1 GiB of commit log each, allocated ahead; everything else as by default",
    }
    machine.show(facts | flags)
    tables: list[Table] = []
    kept: dict[str, object] = {}

    raw = measures.raw(folder, loads, arguments.rounds, arguments.messages)
    with _Stores(runner, folder) as stores:
        both = {"with index": stores.open("indexed"), "without index": stores.open("plain", index=False)}
        appended = measures.appends(runner, both, loads, arguments.rounds, arguments.messages)
        _say("appends")
    tables += [_appends_table(appended), _raw_table(raw)]
    kept["appends"] = {name: [asdict(cost) for cost in costs] for name, costs in appended.items()}
    kept["raw"] = raw

    syncs_ms = measures.raw_syncs(folder, arguments.seconds)
    with _Stores(runner, folder) as stores:
        store = stores.open("sync", sync=True)
        synced = _synced(runner, store, loads["128 B"], arguments.seconds)
        _say("synchronous flush")
    syncs_ms += measures.raw_syncs(folder, arguments.seconds)
    tables.append(_sync_table(synced, syncs_ms))
    kept["sync"] = {name: [asdict(one) for one in several] for name, several in synced.items()}
    kept["fdatasync alone, ms"] = [round(value, 4) for value in syncs_ms]

    with _Stores(runner, folder) as stores:
        by_queues = {"1 queue": stores.open("one"), f"{QUEUES} queues interleaved": stores.open("eight")}
        hot = measures.hot_reads(runner, by_queues, loads, arguments.rounds, arguments.messages)
        _say("hot reads")
    tables.append(_hot_table(hot))
    kept["hot reads"] = {name: [asdict(cost) for cost in costs] for name, costs in hot.items()}

    with _Stores(runner, folder) as stores:
        cold = _cold(runner, stores, loads["1 KiB"], arguments.cold_mib << 18)
        _say("cold reads")
        store = stores.open("lag", index=False)
        runner.run(_filled(store, Load(4096), arguments.cold_mib << 20, queues=2))
        lags = _lags(runner, store, loads["128 B"])
        _say("loop lag")
    tables += [_cold_table(cold), _lag_table(lags, arguments.cold_mib)]
    kept["cold reads"] = {name: asdict(one) for name, one in cold.items()}
    kept["loop lag"] = {name: [asdict(one) for one in several] for name, several in lags.items()}

    starts = {
        name: store_recovery.measure(folder, size, arguments.recovery_mib) for name, size in BODIES.items()
    }
    _say("recovery")
    tables.append(_recovery_table(starts, arguments.recovery_mib))
    kept["recovery"] = starts
    tables.append(_quoted_table())
    return Result(
        "store",
        "Store",
        [
            "The message store on its own, without network and protocol: commit log, consume queues, key "
            "index, flushes. CPU time of the loop's thread is the main measure, because that thread "
            "is what a broker has one of; time of the kernel for its calls is in it. A figure is the 20th "
            "percentile of its rounds, counted from the best.",
        ],
        facts,
        flags,
        tables,
        kept,
    )


class _Stores:
    """Open stores under one folder, closed and removed at the end."""

    def __init__(self, runner: asyncio.Runner, folder: Path) -> None:
        self._runner = runner
        self._folder = folder
        self._open: list[MessageStore] = []

    def open(self, name: str, *, sync: bool = False, index: bool = True) -> MessageStore:
        async def run() -> MessageStore:
            store = MessageStore(options(self._folder / name, sync=sync, index=index))
            await store.open()
            return store

        store = self._runner.run(run())
        self._open.append(store)
        return store

    def __enter__(self) -> _Stores:
        return self

    def __exit__(self, *_: object) -> None:
        for store in self._open:
            self._runner.run(store.close())
            shutil.rmtree(store.root)


def _say(what: str) -> None:
    print(f"{what} done", flush=True)


async def _filled(store: MessageStore, load: Load, size_bytes: int, queues: int) -> int:
    count = fill(store, load, size_bytes, queues)
    await store.flusher.flush_all()
    await store.housekeeper.flush()
    return count


def _synced(
    runner: asyncio.Runner, store: MessageStore, load: Load, seconds: float
) -> dict[str, list[SyncRound]]:
    found: dict[str, list[SyncRound]] = {}
    for _ in range(3):
        for waiters in WAITERS:
            for how, run in (("one pass", measures.sync_passes), ("tasks", measures.sync_tasks)):
                if waiters == 1 and how == "tasks":
                    continue
                name = f"{waiters} in flight, {how}"
                found.setdefault(name, []).append(run(runner, store, load, waiters, seconds))
    return found


def _cold(runner: asyncio.Runner, stores: _Stores, load: Load, size_bytes: int) -> dict[str, ColdRound]:
    found = {}
    for queues in (1, QUEUES):
        store = stores.open(f"cold-{queues}", index=False)
        runner.run(_filled(store, load, size_bytes, queues))
        name = "1 queue" if queues == 1 else f"{queues} queues interleaved"
        found[f"{name}, 1 reader"] = measures.cold_reads(runner, store, queues, 1)
        if queues > 1:
            found[f"{name}, 4 readers"] = measures.cold_reads(runner, store, queues, 4)
    return found


def _lags(runner: asyncio.Runner, store: MessageStore, load: Load) -> dict[str, list[Lag]]:
    readings = {
        "no cold reader": measures.no_reader,
        "two cold readers, MessageStore.read": measures.store_reader,
        "one cold reader, memory map on the loop": measures.mapped_reader,
    }
    found: dict[str, list[Lag]] = {name: [] for name in readings}
    for _ in range(2):
        for name, reading in readings.items():
            found[name].append(measures.loop_lag(runner, store, load, reading, 2.5))
    return found


# --- tables ---------------------------------------------------------------------------------------


def _appends_table(found: dict[str, list[Cost]]) -> Table:
    rows = []
    for body in BODIES:
        for shape in SHAPES:
            costs = {index: found[f"{shape}, {body}, {index}"] for index in ("with index", "without index")}
            loop = {
                index: typical_cost([cost.loop_us for cost in several]) for index, several in costs.items()
            }
            everything = typical_cost([cost.all_us for cost in costs["with index"]])
            wall = typical_cost([cost.wall_us for cost in costs["with index"]])
            rows.append(
                [
                    f"{body}, {shape}",
                    number(loop["with index"]),
                    number(loop["without index"]),
                    number(1e6 / loop["with index"]),
                    number(1e6 / wall),
                    number(everything),
                ]
            )
    return Table(
        "Appends, queues filled",
        [
            "body, shape",
            "CPU µs a message, with key index",
            "without key index",
            "messages per CPU second, with key index",
            "per second",
            "CPU µs, all threads, with all flushes",
        ],
        rows,
        [
            "From the call of append to the entry in queue and index. The last column adds the other threads "
            "and a whole flush of log, queues and index every round, far more than at work."
        ],
    )


def _raw_table(found: dict[str, list[float]]) -> Table:
    kinds = dict.fromkeys(name.rpartition(", ")[0] for name in found)
    rows = [[kind, *(number(typical_cost(found[f"{kind}, {body}"])) for body in BODIES)] for kind in kinds]
    return Table(
        "Raw limits: the bytes of the same records",
        ["CPU µs a message", *BODIES],
        rows,
        ["pwrite goes to an allocated file in the page cache, from Python, without anything around it."],
    )


def _sync_table(found: dict[str, list[SyncRound]], alone_ms: list[float]) -> Table:
    rows = []
    for name, several in found.items():
        best = sorted(several, key=lambda one: one.messages / one.seconds)[-1]
        rows.append(
            [
                name,
                number(best.messages / best.seconds),
                number(best.flushes / best.seconds),
                number(best.messages / max(1, best.flushes)),
                number(best.latency_ms),
                number(typical_cost([one.cpu_us for one in several])),
            ]
        )
    return Table(
        "Synchronous flush, 128 B",
        [
            "messages waiting at once",
            "messages per second",
            "fdatasyncs per second",
            "messages per fdatasync",
            "wait, median ms",
            "CPU µs a message, all threads",
        ],
        rows,
        [
            "One pass: whoever is answered sends again, all of them with one write. Tasks: MessageStore.put, "
            f"a write for every message. The best of three rounds. fdatasync alone, with 4 KiB dirty in a "
            f"file of the same size: {number(1000 / percentile(alone_ms, 0.5))} per second by the median "
            f"({number(percentile(alone_ms, 0.5))} ms; p99 {number(percentile(alone_ms, 0.99))} ms)."
        ],
    )


def _hot_table(found: dict[str, list[Cost]]) -> Table:
    rows = []
    for name, costs in found.items():
        loop = typical_cost([cost.loop_us for cost in costs])
        wall = typical_cost([cost.wall_us for cost in costs])
        rows.append([name, number(loop), number(1e6 / loop), number(1e6 / wall)])
    return Table(
        "Hot reads, 32 messages a read",
        ["queues, body", "CPU µs a message", "messages per CPU second", "per second"],
        rows,
        ["From the queue entries to the bytes of the records, right behind the writer."],
    )


def _cold_table(found: dict[str, ColdRound]) -> Table:
    rows = [
        [
            name,
            number(one.messages / one.seconds),
            number(one.bytes / one.seconds / (1 << 20)),
            number(one.cpu_us),
            number(one.loop_us),
        ]
        for name, one in found.items()
    ]
    return Table(
        "Cold reads, 32 messages of 1 KiB a read",
        ["queues", "messages per second", "MiB per second", "CPU µs a message, all threads", "of the loop"],
        rows,
        [
            "The log's files were put out of the page cache before. The disk, and what caches it may have of "
            "its own, is in these figures."
        ],
    )


def _lag_table(found: dict[str, list[Lag]], mib: int) -> Table:
    rows = []
    for name, several in found.items():
        best = min(several, key=lambda one: one.own_p99)
        rows.append(
            [
                name,
                number(best.p50),
                number(best.p99),
                number(best.most),
                f"{number(best.own_p99)} / {number(best.own_most)}",
                f"{number(best.append_p99)} / {number(best.append_most)}",
                f"{number(best.read_p99)} / {number(best.read_most)}",
                number(best.cold_mib_s),
            ]
        )
    return Table(
        "Loop lag, in milliseconds",
        [
            "beside 8,000 appends a second, each read at once",
            "heartbeat late, p50",
            "p99",
            "max",
            "of that not for want of a core, p99 / max",
            "32 appends, p99 / max",
            "hot read, p99 / max",
            "cold MiB per second",
        ],
        rows,
        [
            f"A heartbeat every 5 ms on the loop while {mib} MiB of cold log are read. The better of two "
            "rounds of 2.5 s at most. On a busy machine a beat is late because the core was taken: the "
            "kernel says how long the thread was ready and did not run, and without that time what remains "
            "is our own making."
        ],
    )


def _recovery_table(found: dict[str, dict[str, dict[str, Any]]], mib: int) -> Table:
    rows = []
    for body, kinds in found.items():
        for kind, said in kinds.items():
            if "failed" in said:
                rows.append([f"{body}, {kind}", "", "failed", "", "", "", ""])
                print(f"{body}, {kind}: {said['failed']}")
                continue
            share = GIB / said["bytes"] if said["bytes"] else 0.0
            whole = kind != "with marks"
            rows.append(
                [
                    f"{body}, {kind}",
                    number(said["bytes"] / (1 << 20)),
                    number(said["seconds"]),
                    number(said["cpu_s"]),
                    number(said["cpu_s"] * 1e6 / max(1.0, said["records"])),
                    number(said["seconds"] * share) if whole else "",
                    number(said["rss_mib"]),
                ]
            )
    return Table(
        f"Start after a crash, {mib} MiB of log",
        [
            "body, what there is",
            "MiB read",
            "seconds",
            "CPU seconds",
            "CPU µs a record",
            "seconds per GiB",
            "memory, RSS MiB",
        ],
        rows,
        [
            f"With marks only what came behind the last ones is read ({store_recovery.TAIL_MIB} MiB here), "
            "however long the log. Per GiB is extrapolated from what was read. The log was in the page cache."
        ],
    )


def _quoted_table() -> Table:
    return Table(
        "For comparison, quoted and not measured here",
        ["whole send path with network, CPU µs a message", "128 B", "1 KiB", "batch of 32, 128 B"],
        QUOTED,
        [
            "Prototypes of a broker's send path on CPython 3.11 and a machine of the same kind: frame, "
            "header, record, queue entry, key index and answer, 16 connections, pipelined. Their pull of "
            "32 messages: 1.15 (128 B) and 1.4 (1 KiB) in tuned Python, 0.4 and 0.6 in C."
        ],
    )


if __name__ == "__main__":
    main()
