"""Sends and pulls: our broker and Apache's under Apache's own benchmark programs, taking turns.

Both brokers stay up through all rows of one flush mode. A row is one run of the benchmark program against
each: what is counted are the ends of the queues (or the progress of the group) and the CPU time of the
broker process over the same window, after the client has settled. The latency is what the program prints,
over its last ten seconds.
"""

from __future__ import annotations

import argparse
import itertools
import shutil
import tempfile
import time
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

from tests.peers.jars import Jars, PeersUnavailable, get_jars
from tests.peers.java import find_java

from bench import broker_profile, machine
from bench.broker_peers import (
    APACHE,
    ASYNC_IN_FLIGHT,
    BROKER_FLAGS,
    CLIENT_FLAGS,
    OURS,
    QUEUES,
    BenchBroker,
    anonymous_mib,
    set_cores,
)
from bench.results import Result, Table, number, ratio
from bench.rounds import take_turns, typical_cost, typical_rate

BATCH = 32
FIGURES_WAIT_S = 14.0  # the programs print nothing before their tenth second
POLL_S = 0.2
ASYNC_FLUSH, SYNC_FLUSH = "ASYNC_FLUSH", "SYNC_FLUSH"


@dataclass(frozen=True)
class Row:
    """One load."""

    kind: str  # sync, async, batch, consume
    size: int
    threads: int
    flush: str = ASYNC_FLUSH
    pinned: bool = True

    @property
    def name(self) -> str:
        size = f"{self.size} B" if self.size < 1024 else f"{self.size // 1024} KiB"
        threads = f", {self.threads} thread{'s' if self.threads > 1 else ''}"
        kind = f"batches of {BATCH}" if self.kind == "batch" else self.kind
        return f"{kind}, {size}{'' if self.kind == 'async' else threads}"

    def program(self, topic: str, group: str) -> tuple[str, list[str]]:
        """The benchmark program, and its flags."""
        if self.kind == "consume":
            return "Consumer", ["-t", topic, "-g", group, "-w", str(self.threads)]
        words = ["-t", topic, "-s", str(self.size), "-w", str(self.threads)]
        if self.kind == "batch":
            return "BatchProducer", [*words, "-b", str(BATCH)]
        return "Producer", [*words, "-y", str(self.kind == "async").lower()]


QUICK = (
    Row("sync", 128, 1),
    Row("sync", 128, 64),
    Row("sync", 1024, 64),
    Row("async", 128, 1),
    Row("batch", 128, 16),
    Row("consume", 128, 20),
    Row("sync", 128, 64, pinned=False),
    Row("sync", 128, 64, SYNC_FLUSH),
)
# A program prints nothing before its tenth second, so a window costs some fourteen: these rows, twice on each
# broker, take about 25 minutes.
FULL = (
    *(Row("sync", 128, threads) for threads in (1, 16, 64)),
    *(Row("sync", 1024, threads) for threads in (1, 64)),
    Row("async", 128, 1),
    *(Row("batch", 128, threads) for threads in (1, 16)),
    Row("batch", 1024, 16),
    *(Row("consume", size, 20) for size in (128, 1024)),
    *(Row("sync", 128, threads, pinned=False) for threads in (1, 64)),
    Row("async", 128, 1, pinned=False),
    Row("batch", 128, 16, pinned=False),
    Row("consume", 128, 20, pinned=False),
    *(Row("sync", 128, threads, SYNC_FLUSH) for threads in (1, 16, 64)),
    Row("sync", 1024, 64, SYNC_FLUSH),
    Row("batch", 128, 16, SYNC_FLUSH),
    Row("sync", 128, 64, SYNC_FLUSH, pinned=False),
)


@dataclass
class Run:
    """What one window saw."""

    messages: int
    wall_s: float
    broker_cpu_s: float
    client_cpu_s: float
    figures: dict[str, float] = field(default_factory=dict)

    @property
    def rate(self) -> float:
        return self.messages / self.wall_s

    @property
    def cpu_us(self) -> float:
        """CPU microseconds of the broker per message."""
        return self.broker_cpu_s * 1e6 / self.messages

    @property
    def average_ms(self) -> float | None:
        return self.figures.get("Average RT(ms)")

    @property
    def max_ms(self) -> float | None:
        return self.figures.get("Max RT(ms)")

    @property
    def failed(self) -> int:
        return int(self.figures.get("Send Failed", 0) + self.figures.get("Response Failed", 0))


class Nothing(Exception):
    """A program did not get a message through."""


class Bench:
    """Both brokers of one flush mode."""

    def __init__(self, jars: Jars, arguments: argparse.Namespace) -> None:
        self.jars = jars
        self.arguments = arguments
        self._numbers = itertools.count()

    def run(self, row: Row, broker: BenchBroker) -> Run:
        """One row on one broker."""
        number_of = next(self._numbers)
        topic, group = f"bench-{number_of}", f"bench-group-{number_of}"
        if row.kind == "consume":
            topic = self.backlog(row.size, broker)
        else:
            broker.create_topic(topic)
        set_cores(broker.pid, {machine.cores()[0]} if row.pinned else set(machine.cores()))
        return self._window(row, broker, topic, group)

    def _window(self, row: Row, broker: BenchBroker, topic: str, group: str) -> Run:
        def count() -> int:
            return broker.consumed(topic, group) if row.kind == "consume" else broker.stored(topic)

        client = broker.client(self.jars, *row.program(topic, group))
        try:
            if row.pinned:
                set_cores(client.pid, {machine.cores()[1]})
            first = _wait_until(lambda: count() > 0, 40.0, f"no message of {row.name} at {broker.kind}")
            time.sleep(self.arguments.settle)
            end = broker.stored(topic) if row.kind == "consume" else None
            before, cpu_s, client_s, began_s = count(), broker_cpu(broker), machine.cpu_s(client.pid), _now()
            while _now() - began_s < self.arguments.seconds:
                time.sleep(POLL_S)
                # A backlog that runs out ends the window: what follows is waiting, not consuming.
                if end is not None and end - count() < 20_000:
                    break
            after, wall_s = count(), _now() - began_s
            run = Run(
                after - before, wall_s, broker_cpu(broker) - cpu_s, machine.cpu_s(client.pid) - client_s
            )
            while row.kind != "consume" and not client.figures() and _now() - first < FIGURES_WAIT_S:
                time.sleep(POLL_S)
            run.figures = client.figures()
        finally:
            client.close()
        if run.messages <= 0:
            raise Nothing(f"{row.name} at {broker.kind}: no message in {wall_s:.1f} s")
        return run

    def backlog(self, size: int, broker: BenchBroker) -> str:
        """A topic with messages to consume; made once for each size and broker."""
        topic = f"backlog-{size}"
        wanted = self.arguments.backlog
        if broker.stored(topic) < wanted:
            set_cores(broker.pid, set(machine.cores()))
            broker.create_topic(topic)
            client = broker.client(self.jars, *Row("batch", size, 16).program(topic, ""))
            try:
                _wait_until(lambda: broker.stored(topic) >= wanted, 120.0, f"no backlog at {broker.kind}")
            finally:
                client.close()
        return topic

    def warm_up(self, broker: BenchBroker, seconds: float) -> None:
        """Sends and pulls of every kind on all cores: a JVM compiles what runs often."""
        set_cores(broker.pid, set(machine.cores()))
        topic = self.backlog(128, broker)
        loads = (Row("sync", 128, 64), Row("consume", 128, 20))
        clients = [
            broker.client(self.jars, *row.program(topic if row.kind == "consume" else "warm-up", "warm-up"))
            for row in loads
        ]
        time.sleep(seconds)
        for client in clients:
            client.close()


def broker_cpu(broker: BenchBroker) -> float:
    return machine.cpu_s(broker.pid)


def _now() -> float:
    return time.monotonic()


def _wait_until(ready: object, timeout_s: float, what: str) -> float:
    assert callable(ready)
    deadline_s = _now() + timeout_s
    while not ready():
        if _now() > deadline_s:
            raise Nothing(f"{what} after {timeout_s:g} s")
        time.sleep(0.05)
    return _now()


# --- all rows -------------------------------------------------------------------------------------


@dataclass
class Footprint:
    """What a broker needed, in MiB and seconds."""

    start_s: float
    start_cpu_s: float
    rss_start: float
    anonymous_start: float
    rss_loaded: float = 0.0
    anonymous_loaded: float = 0.0


def measure(
    kinds: list[str], rows: tuple[Row, ...], jars: Jars, arguments: argparse.Namespace
) -> tuple[dict[Row, dict[str, list[Run]]], dict[str, list[Footprint]]]:
    found: dict[Row, dict[str, list[Run]]] = {}
    footprints: dict[str, list[Footprint]] = {kind: [] for kind in kinds}
    for flush in (ASYNC_FLUSH, SYNC_FLUSH):
        wanted = [row for row in rows if row.flush == flush]
        if not wanted:
            continue
        bench = Bench(jars, arguments)
        brokers: dict[str, BenchBroker] = {}
        try:
            for kind in kinds:
                broker = brokers[kind] = BenchBroker(kind, jars, {"flushDiskType": flush})
                footprints[kind].append(
                    Footprint(
                        broker.start_s, broker.start_cpu_s, broker.rss_at_start, broker.anonymous_at_start
                    )
                )
            for kind, broker in brokers.items():
                bench.warm_up(broker, arguments.warm_up if kind == APACHE else arguments.warm_up / 4)
            for row in wanted:
                turns = {kind: partial(bench.run, row, broker) for kind, broker in brokers.items()}
                try:
                    found[row] = take_turns(turns, arguments.rounds)
                except Nothing as nothing:
                    print(f"left out: {nothing}", flush=True)
                    continue
                show_progress(row, found[row])
            for kind, broker in brokers.items():
                footprints[kind][-1].rss_loaded = machine.memory(broker.pid).rss
                footprints[kind][-1].anonymous_loaded = anonymous_mib(broker.pid)
        finally:
            for broker in brokers.values():
                broker.close()
    return found, footprints


def show_progress(row: Row, found: dict[str, list[Run]]) -> None:
    for kind, runs in found.items():
        shown = "; ".join(
            f"{run.rate:,.0f}/s, {run.cpu_us:.1f} CPU µs, client {run.client_cpu_s / run.wall_s:.0%} busy"
            + (f", {run.failed} failed" if run.failed else "")
            for run in runs
        )
        where = "pinned" if row.pinned else "unpinned"
        print(f"{row.name}, {row.flush}, {where}: {kind}: {shown}", flush=True)


# --- tables ---------------------------------------------------------------------------------------


def tables(
    found: dict[Row, dict[str, list[Run]]], footprints: dict[str, list[Footprint]], kinds: list[str]
) -> list[Table]:
    result = []
    for flush, pinned in itertools.product((ASYNC_FLUSH, SYNC_FLUSH), (True, False)):
        rows = [row for row in found if (row.flush, row.pinned) == (flush, pinned)]
        if rows:
            result.append(_rows(rows, found, kinds, flush, pinned))
    return [*result, _footprints(footprints, kinds)]


def _rows(
    rows: list[Row], found: dict[Row, dict[str, list[Run]]], kinds: list[str], flush: str, pinned: bool
) -> Table:
    both = len(kinds) == 2
    shown = []
    for row in rows:
        runs = found[row]
        per_cpu_s = [1e6 / typical_cost([run.cpu_us for run in runs[kind]]) for kind in kinds]
        rates = [typical_rate([run.rate for run in runs[kind]]) for kind in kinds]
        # Where most requests failed in the client, nothing is said about brokers.
        tells = all(run.failed < run.messages for kind in kinds for run in runs[kind])
        cells = [row.name, *map(number, per_cpu_s)]
        cells += [ratio(per_cpu_s[0] / per_cpu_s[1]) if tells else "-"] if both else []
        cells += list(map(number, rates))
        cells += [ratio(rates[0] / rates[1]) if tells else "-"] if both else []
        cells += [_latency([run.average_ms for run in runs[kind]]) for kind in kinds]
        cells += [_latency([run.max_ms for run in runs[kind]]) for kind in kinds]
        cells += [str(sum(run.failed for run in runs[kind])) for kind in kinds]
        shown.append(cells)
    return Table(
        f"{flush}, {'broker and load on a core each' if pinned else 'broker and load on both cores'}",
        [
            "load",
            *(f"{kind}, messages per CPU second" for kind in kinds),
            *(["ratio"] if both else []),
            *(f"{kind}, messages/s" for kind in kinds),
            *(["ratio of rates"] if both else []),
            *(f"{kind}, average ms" for kind in kinds),
            *(f"{kind}, max ms" for kind in kinds),
            *(f"{kind}, failed" for kind in kinds),
        ],
        shown,
        [
            "Average, maximum and failures as the program prints them; the last two from its start, when "
            "it is not yet warm."
        ],
    )


def _latency(values: list[float | None]) -> str:
    known = [value for value in values if value is not None and value == value]  # NaN: none came back
    return number(typical_cost(known)) if known else ""


def _footprints(footprints: dict[str, list[Footprint]], kinds: list[str]) -> Table:
    names = {
        "start to first message stored, s": "start_s",
        "CPU time of that, s": "start_cpu_s",
        "memory after that, RSS MiB": "rss_start",
        "of it anonymous, MiB": "anonymous_start",
        "memory after all load, RSS MiB": "rss_loaded",
        "of it anonymous, MiB ": "anonymous_loaded",
    }
    rows = []
    for name, attribute in names.items():
        values = [typical_cost([getattr(each, attribute) for each in footprints[kind]]) for kind in kinds]
        row = [name.strip(), *map(number, values)]
        rows.append(row + ([ratio(values[1] / values[0])] if len(kinds) == 2 else []))
    return Table(
        "Memory and start of the broker",
        ["", *kinds, *(["ratio (Apache / kerolox)"] if len(kinds) == 2 else [])],
        rows,
        [
            "RSS counts pages of mapped files, which are the page cache's; anonymous memory is the process's "
            "own. Apache's script gives the heap 8 GiB and touches it all at the start; here it has 2 GiB."
        ],
    )


def summary(found: dict[Row, dict[str, list[Run]]]) -> str:
    lines = ["kerolox / Apache: messages per CPU second, messages per second"]
    for row, runs in found.items():
        ours, theirs = runs[OURS], runs[APACHE]
        cpu = typical_cost([r.cpu_us for r in theirs]) / typical_cost([r.cpu_us for r in ours])
        rate = typical_rate([r.rate for r in ours]) / typical_rate([r.rate for r in theirs])
        where = "pinned" if row.pinned else "unpinned"
        lines.append(f"  {row.name}, {row.flush}, {where}: {cpu:.2f}, {rate:.2f}")
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> Result | None:
    parser = argparse.ArgumentParser(prog="python -m bench broker", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few rows, once, in five minutes")
    parser.add_argument(
        "--rows",
        help="only rows whose name, flush mode or 'unpinned' has one of these texts, joined by semicolons",
    )
    parser.add_argument("--seconds", type=float, help="of each window")
    parser.add_argument("--settle", type=float, help="load before each window that is not counted")
    parser.add_argument("--rounds", type=int, help="of each row on each broker")
    parser.add_argument("--warm-up", type=float, help="load on Apache's broker before its first row, seconds")
    parser.add_argument("--backlog", type=int, help="messages to consume")
    parser.add_argument("--no-apache", action="store_true")
    parser.add_argument("--no-save", action="store_true", help="print the results only")
    parser.add_argument("--profile", action="store_true", help="where the time of ours goes; no comparison")
    arguments = parser.parse_args(argv)
    quick, full = (6.0, 4.0, 1, 10.0, 500_000), (6.0, 4.0, 2, 20.0, 1_000_000)
    for name, value in zip(
        ("seconds", "settle", "rounds", "warm_up", "backlog"), quick if arguments.quick else full, strict=True
    ):
        if getattr(arguments, name) is None:
            setattr(arguments, name, value)
    try:
        java, jars = find_java(), get_jars()
    except PeersUnavailable as missing:
        print(f"no broker benchmark without Apache's clients: {missing}")
        return None
    rows = _chosen(QUICK if arguments.quick else FULL, arguments.rows)
    if arguments.profile:
        folder = Path(tempfile.mkdtemp(prefix="kerolox-profile-"))
        try:
            broker_profile.show(rows, Bench(jars, arguments), folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return None
    kinds = [OURS] if arguments.no_apache else [OURS, APACHE]
    server_core, load_core = machine.cores()
    facts = machine.describe(java.path)
    flags = {
        "load": "Apache's own benchmark programs: Producer, BatchProducer, Consumer; binary headers",
        "pinned": f"broker to core {server_core}, load to core {load_core}",
        "windows": f"{arguments.rounds} of {arguments.seconds:g} s for each row and broker, taking turns, "
        f"after {arguments.settle:g} s of the same load",
        "asynchronous": f"at most {ASYNC_IN_FLIGHT:,} requests in flight",
        "topics": f"a new one for each window, {QUEUES} queues",
        "Apache RocketMQ": jars.version,
        "JVM flags of the broker": " ".join(BROKER_FLAGS),
        "JVM flags of the clients": " ".join(CLIENT_FLAGS),
        "warm-up": f"{arguments.backlog:,} messages in batches, then {arguments.warm_up:g} s of sends and "
        f"pulls for Apache's, a quarter of it for ours",
        "broker options": "defaults of both, but for the flush mode",
    }
    machine.show(facts | flags)
    found, footprints = measure(kinds, rows, jars, arguments)
    if len(kinds) == 2:
        print(summary(found))
    result = Result(
        "broker",
        "Broker",
        [
            "This project's broker and Apache's under Apache's own benchmark programs, in turns. A figure is "
            "the 20th percentile of its windows, counted from the best. CPU time is that of the broker "
            "process, all threads.",
        ],
        facts,
        flags,
        tables(found, footprints, kinds),
        {
            "rows": [
                asdict(row) | {kind: [asdict(run) for run in runs] for kind, runs in by_kind.items()}
                for row, by_kind in found.items()
            ],
            "footprints": {kind: [asdict(each) for each in all_] for kind, all_ in footprints.items()},
        },
    )
    result.show()
    if not arguments.no_save:
        result.save()
    return result


def _chosen(rows: tuple[Row, ...], words: str | None) -> tuple[Row, ...]:
    if words is None:
        return rows

    def text(row: Row) -> str:
        return f"{row.name} {row.flush} {'pinned' if row.pinned else 'unpinned'}".lower()

    return tuple(row for row in rows if any(word in text(row) for word in words.lower().split(";")))


if __name__ == "__main__":
    main()
