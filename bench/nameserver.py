"""Route queries: our name server and Apache's, the same load, taking turns.

Start-up runs on all cores, because a JVM compiles beside its own work; then every thread of the server
is pinned to one core and the load to another. Both servers stay up through all rounds.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

from tests.peers.jars import Jars, PeersUnavailable, get_jars
from tests.peers.java import find_java
from tests.rig.ports import free_ports

from bench import apache, machine
from bench.generator import Disturbed, Generator, Run
from bench.pretend_broker import PretendBroker, route_question, topic_names
from bench.results import Result, Table, number, ratio
from bench.rounds import median, take_turns, typical_cost, typical_rate

OURS, APACHE, APACHE_TLS = "kerolox", "Apache", "Apache, TLS as by default"
OPAQUE_FIRST = 1_000_000
REPEATS_MAX = 5  # of a round in which the machine did something else
# (connections, requests in flight on each)
LOADS = ((1, 1), (1, 16), (64, 1), (64, 16))
WARM_UP_S = {OURS: 1.0, APACHE: 8.0}  # before the first round, with each load; a JVM compiles what runs often


@dataclass
class Started:
    """A server that answered its first route query."""

    process: subprocess.Popen[bytes]
    port: int
    broker: PretendBroker
    took_s: float
    cpu_s: float
    folder: tempfile.TemporaryDirectory[str] = field(repr=False)

    def stop(self) -> None:
        self.broker.close()
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.folder.cleanup()


def start(kind: str, topics: list[str], jars: Jars | None) -> Started:
    """Start one and register topics as soon as that is possible; measured up to the first route."""
    folder = tempfile.TemporaryDirectory(prefix="kerolox-bench-", ignore_cleanup_errors=True)
    home = Path(folder.name)
    port = free_ports(1)[0]
    config = home / "namesrv.conf"
    config.write_text(f"listenPort={port}\nkvConfigPath={home / 'kvConfig.json'}\n", encoding="utf-8")
    environment = None
    if kind == OURS:
        command = [str(Path(sys.executable).parent / "kerolox"), "nameserver", "-c", str(config)]
    else:
        assert jars is not None
        command = apache.nameserver_command(jars, home, config, tls=kind == APACHE_TLS)
        environment = apache.environment(home)
    with (home / "output.txt").open("wb") as output:
        began_s = time.monotonic()
        process = subprocess.Popen(command, stdout=output, stderr=output, cwd=home, env=environment)
    broker = PretendBroker(machine.connect_when_open(port, process), topics)
    broker.register()
    broker.route(topics[0])
    return Started(process, port, broker, time.monotonic() - began_s, machine.cpu_s(process.pid), folder)


def measure_start(kind: str, topics: list[str], jars: Jars | None) -> tuple[float, float]:
    """Wall and CPU seconds from the process's start to the first route."""
    server = start(kind, topics, jars)
    server.stop()
    return server.took_s, server.cpu_s


@dataclass
class Measured:
    """Everything found out about one server."""

    runs: dict[tuple[int, int], list[Run]] = field(default_factory=dict)
    memory_idle: machine.Memory | None = None
    memory_loaded: machine.Memory | None = None
    starts: list[tuple[float, float]] = field(default_factory=list)
    repeats: int = 0


def measure(
    kinds: list[str], jars: Jars | None, generator: Generator, arguments: argparse.Namespace
) -> dict[str, Measured]:
    topics = topic_names(arguments.topics)
    frames = b"".join(route_question(topic, OPAQUE_FIRST) for topic in topics)
    server_core, _ = machine.cores()
    found = {kind: Measured() for kind in kinds}
    servers = {kind: start(kind, topics, jars) for kind in kinds}
    try:
        routes = {kind: json.loads(server.broker.route(topics[-1])) for kind, server in servers.items()}
        if any(route != routes[OURS] for route in routes.values()):
            raise RuntimeError(f"the servers give different routes: {routes}")
        for kind, server in servers.items():
            machine.pin(server.process.pid, server_core)
            found[kind].memory_idle = machine.memory(server.process.pid)

        def run(kind: str, load: tuple[int, int], seconds: float) -> Run:
            server = servers[kind]
            for _ in range(REPEATS_MAX):
                server.broker.register()
                try:
                    return generator.run(
                        frames,
                        server.port,
                        server.process.pid,
                        *load,
                        seconds=seconds,
                        warm_s=arguments.settle,
                    )
                except Disturbed as disturbed:
                    print(f"repeated: {disturbed}", flush=True)
                    found[kind].repeats += 1
            raise RuntimeError("the machine is too busy to measure anything")

        for kind in kinds:
            for load in reversed(LOADS):
                run(kind, load, WARM_UP_S[kind])
        for load in LOADS:
            variants: dict[str, Callable[[], Run]] = {
                kind: partial(run, kind, load, arguments.seconds) for kind in kinds
            }
            for kind, runs in take_turns(variants, arguments.rounds).items():
                found[kind].runs[load] = runs
            show_progress(load, found)
        for kind, server in servers.items():
            found[kind].memory_loaded = machine.memory(server.process.pid)
    finally:
        for server in servers.values():
            server.stop()
    return found


def show_progress(load: tuple[int, int], found: dict[str, Measured]) -> None:
    for kind, measured in found.items():
        costs = " ".join(f"{run.server_us:.1f}" for run in measured.runs[load])
        busy = max(run.load_busy for run in measured.runs[load])
        print(
            f"{load[0]:3d} x {load[1]:2d} {kind:8s} CPU µs each: {costs}; load at most {busy:.0%} busy",
            flush=True,
        )


# --- tables ---------------------------------------------------------------------------------------


def load_name(load: tuple[int, int]) -> str:
    connections, depth = load
    return f"{connections} connection{'s' if connections > 1 else ''}, {depth} in flight each"


def tables(found: dict[str, Measured]) -> list[Table]:
    kinds = [kind for kind in (OURS, APACHE) if kind in found]
    both = len(kinds) == 2

    def costs(kind: str, load: tuple[int, int]) -> list[float]:
        return [run.server_us for run in found[kind].runs[load]]

    efficiency, speed = [], []
    for load in LOADS:
        per_cpu_s = [1e6 / typical_cost(costs(kind, load)) for kind in kinds]
        row = [load_name(load), *(number(value) for value in per_cpu_s)]
        row += [number(1e6 / value) for value in per_cpu_s]
        efficiency.append(row + ([ratio(per_cpu_s[0] / per_cpu_s[1])] if both else []))
        rates = [typical_rate([run.rate for run in found[kind].runs[load]]) for kind in kinds]
        p50s = [typical_cost([run.p50_us for run in found[kind].runs[load]]) for kind in kinds]
        p99s = [typical_cost([run.p99_us for run in found[kind].runs[load]]) for kind in kinds]
        row = [load_name(load), *map(number, rates), *map(number, p50s), *map(number, p99s)]
        speed.append(row + ([ratio(rates[0] / rates[1])] if both else []))
    heads = [f"{kind}, per CPU second" for kind in kinds] + [f"{kind}, CPU µs" for kind in kinds]
    result = [
        Table(
            "Route queries per second of the server's CPU time",
            ["load", *heads, *(["ratio"] if both else [])],
            efficiency,
        ),
        Table(
            "Route queries per second, and latency in µs",
            [
                "load",
                *(f"{kind}, per s" for kind in kinds),
                *(f"{kind}, p50" for kind in kinds),
                *(f"{kind}, p99" for kind in kinds),
                *(["ratio of rates"] if both else []),
            ],
            speed,
            [
                "The server has one core. Wall time: other processes of the machine are in these figures. "
                "A round in which the load generator itself was kept from running is repeated."
            ],
        ),
    ]
    return [*result, resources(found)]


def resources(found: dict[str, Measured]) -> Table:
    columns = ["", *found]
    both = OURS in found and APACHE in found
    rows: list[list[str]] = []

    def add(name: str, values: dict[str, float | None]) -> None:
        row = [name, *("" if values[kind] is None else number(values[kind] or 0) for kind in found)]
        if both:
            row.append(ratio((values[APACHE] or 0) / (values[OURS] or 1)))
        rows.append(row)

    def of(memory: machine.Memory | None, name: str) -> float | None:
        return None if memory is None else float(getattr(memory, name))

    add("memory after registration, RSS MiB", {k: of(m.memory_idle, "rss") for k, m in found.items()})
    add("memory after all load, RSS MiB", {k: of(m.memory_loaded, "rss") for k, m in found.items()})
    add("memory after all load, PSS MiB", {k: of(m.memory_loaded, "pss") for k, m in found.items()})
    add("start to first route, s", {k: typical_cost([s for s, _ in m.starts]) for k, m in found.items()})
    add("CPU time of that, s", {k: typical_cost([c for _, c in m.starts]) for k, m in found.items()})
    return Table(
        "Memory and start",
        columns + (["ratio (Apache / kerolox)"] if both else []),
        rows,
        [
            "A start begins with the process and ends with the first route given, on all cores. Apache's own "
            "script gives the heap 4 GiB; here it has 512 MiB at most, and no TLS but in the last column, "
            "where it makes certificates at its start as it does by default."
        ],
    )


def summary(found: dict[str, Measured]) -> str:
    if APACHE not in found:
        return ""
    parts = []
    for load in LOADS:
        ours, theirs = ([r.server_us for r in found[kind].runs[load]] for kind in (OURS, APACHE))
        parts.append(
            f"{load[0]}x{load[1]} {typical_cost(theirs) / typical_cost(ours):.2f} "
            f"(median {median(theirs) / median(ours):.2f})"
        )
    return "answers per CPU second, kerolox / Apache: " + ", ".join(parts)


def main(argv: list[str] | None = None) -> Result:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7, help="of each load on each server")
    parser.add_argument("--seconds", type=float, default=1.0, help="of each round")
    parser.add_argument(
        "--settle", type=float, default=0.2, help="load before each round that is not counted"
    )
    parser.add_argument("--topics", type=int, default=100)
    parser.add_argument("--starts", type=int, default=5, help="of each server")
    parser.add_argument("--python-load", action="store_true", help="even where there is a C compiler")
    parser.add_argument("--no-apache", action="store_true")
    arguments = parser.parse_args(argv)
    jars, java = None, None
    kinds = [OURS]
    if not arguments.no_apache:
        try:
            java, jars = find_java(), get_jars()
            kinds.append(APACHE)
        except PeersUnavailable as missing:
            print(f"without Apache's name server: {missing}")
    facts = machine.describe(java.path if java else None)
    server_core, load_core = machine.cores()
    with Generator(load_core, python=arguments.python_load) as generator:
        flags = {
            "load generator": generator.name,
            "pinned": f"server to core {server_core}, load to core {load_core}",
            "rounds": f"{arguments.rounds} of {arguments.seconds:g} s each, taking turns",
            "topics": f"{arguments.topics}, of 8 queues on one broker; the queries go over all of them",
        }
        if jars is not None:
            flags["Apache RocketMQ"] = jars.version
            flags["JVM flags"] = " ".join(apache.NAMESRV_FLAGS)
            flags["warm-up"] = (
                f"{WARM_UP_S[APACHE]:g} s of each load for Apache's, {WARM_UP_S[OURS]:g} s for ours"
            )
        machine.show(facts | flags)
        found = measure(kinds, jars, generator, arguments)
    starts: dict[str, Callable[[], tuple[float, float]]] = {
        kind: partial(measure_start, kind, topic_names(arguments.topics), jars)
        for kind in (*kinds, *([APACHE_TLS] if APACHE in kinds else []))
    }
    flags["rounds repeated"] = str(sum(measured.repeats for measured in found.values()))
    for kind, times in take_turns(starts, arguments.starts).items():
        found.setdefault(kind, Measured()).starts = times
    print(summary(found))
    result = Result(
        "nameserver",
        "Name server",
        [
            "Route queries (request code 105, JSON header) to this project's name server and to Apache's, "
            "from the same load generator, in turns. A figure is the 20th percentile of its rounds, "
            "counted from the best.",
        ],
        facts,
        flags,
        tables(found),
        {
            kind: {
                "loads": {
                    f"{c}x{d}": [asdict(run) for run in runs] for (c, d), runs in measured.runs.items()
                },
                "starts": measured.starts,
            }
            for kind, measured in found.items()
        },
    )
    result.show()
    result.save()
    return result


if __name__ == "__main__":
    main()
