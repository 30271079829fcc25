"""Our client beside Apache's Java client and other Python clients, at our broker and at Apache's.

Each client is a process of its own on one core, the broker has the other. The Java client sends in a plain
loop (SendLoad.java, by threads or by callbacks); batches and consuming are Apache's own benchmark programs.
Rates are counted at the broker, by the ends of queues and the offsets of groups; CPU time is that of the
client's whole process.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from tests.peers.jars import Jars, PeersUnavailable, get_jars
from tests.peers.java import find_java

from bench import machine
from bench.broker_peers import (
    APACHE,
    BROKER_FLAGS,
    CLIENT_FLAGS,
    OURS,
    BenchBroker,
    BenchClient,
    java_command,
    set_cores,
    stop,
)
from bench.results import ROOT, Result, Table, number, ratio
from bench.rounds import take_turns, typical_cost, typical_rate

SERVER_CORE, LOAD_CORE = machine.cores()
JAVA, PYTHON, OTHER = "Java", "kerolox", "rocketmq 0.4.4"
JAVA_CALLBACKS = "Java, callbacks"
OTHER_PACKAGE = "rocketmq==0.4.4"
BATCH = 32
PULL_MANY = 1024
POLL_S = 0.1
LEFT_MIN = 20_000  # a backlog with less than this left ends the window
OPTIONS = {
    # So that a pull may bring more than 32 messages to those who ask for more.
    "maxTransferCountOnMessageInMemory": PULL_MANY,
    "maxTransferBytesOnMessageInMemory": 4 << 20,
    "maxTransferCountOnMessageInDisk": PULL_MANY,
    "maxTransferBytesOnMessageInDisk": 4 << 20,
}
NOT_COMPARED = (
    "Other Python clients on PyPI: `rocketmq` 0.4.4 (the C++ client by ctypes, its library in the wheel) "
    "installs, works at both brokers and is measured here. `rocketmq-client-python` 2.0.0 (the same for the "
    "later C++ client) installs but does not import without a librocketmq.so that is not in the package. "
    "`pyrocketmq` 0.3.4 drives Apache's Java client through JPype: it is the Java client, with a JVM in the "
    "process. `rocketmq-python-client` 5.1.2 and `rocketmq-client` 0.1.0 speak gRPC to the proxy of 5.x, not "
    "the protocol of brokers. `rocketmq-sdk` 0.1.3 speaks AMQP to another program of that name."
)


# --- loads ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """One load, and which clients take it."""

    kind: str  # send, turn, linger, batch, push, one, pull
    size: int
    many: int  # in flight, or messages of a pull
    clients: tuple[str, ...]

    @property
    def name(self) -> str:
        size = f"{self.size} B" if self.size < 1024 else f"{self.size // 1024} KiB"
        return {
            "send": f"send, {size}, {self.many} in flight",
            "batch": f"batches of {BATCH}, {size}, {self.many} in flight",
            "linger": f"send, linger of 1 ms, {size}, {self.many} in flight",
            "turn": f"send, linger of one turn of the loop, {size}, {self.many} in flight",
            "push": f"consume, {size}, handler of batches, pulls of {self.many}",
            "one": f"consume, {size}, handler of single messages, pulls of {self.many}",
            "pull": f"pull consumer, {size}, pulls of {self.many}",
        }[self.kind]

    @property
    def consumes(self) -> bool:
        return self.kind in ("push", "one", "pull")


ALL = (PYTHON, JAVA, JAVA_CALLBACKS, OTHER)
PLAIN = (PYTHON, JAVA, OTHER)
BOTH = (PYTHON, JAVA)
QUICK = (
    Row("send", 128, 64, ALL),
    Row("turn", 128, 64, (PYTHON,)),
    Row("batch", 128, 16, BOTH),
    Row("one", 128, 32, PLAIN),
    Row("push", 128, 32, (PYTHON,)),
)
FULL = (
    *(Row("send", size, many, PLAIN) for size in (128, 1024) for many in (1, 16)),
    *(Row("send", size, 64, ALL) for size in (128, 1024)),
    *(Row("turn", size, 64, (PYTHON,)) for size in (128, 1024)),
    *(Row("linger", 128, many, (PYTHON,)) for many in (64, 1000)),
    *(Row("batch", size, 16, BOTH) for size in (128, 1024)),
    Row("one", 128, 32, PLAIN),
    Row("one", 1024, 32, BOTH),
    *(Row("push", 128, many, (PYTHON,)) for many in (32, PULL_MANY)),
    Row("push", 1024, 32, (PYTHON,)),
    *(Row("pull", 128, many, (PYTHON,)) for many in (32, PULL_MANY)),
)


@dataclass
class Run:
    """What one window saw of a client."""

    messages: int
    wall_s: float
    client_cpu_s: float
    p50_ms: float | None = None
    p99_ms: float | None = None
    failed: int = 0

    @property
    def rate(self) -> float:
        return self.messages / self.wall_s

    @property
    def cpu_us(self) -> float:
        return self.client_cpu_s * 1e6 / self.messages


class Load:
    """A client's process."""

    def __init__(self, process: subprocess.Popen[bytes], output: Path) -> None:
        self.process = process
        self.output = output

    @property
    def pid(self) -> int:
        return self.process.pid

    def begin(self) -> None:
        """What was so far does not count."""

    def end(self) -> dict[str, float]:
        """Stop it; what it says."""
        self.process.kill()
        self.process.wait()
        return {}

    def tail(self) -> str:
        return self.output.read_text(errors="replace")[-800:]


class TellingLoad(Load):
    """One that says at its end how long sends took."""

    def end(self) -> dict[str, float]:
        stop(self.process)
        lines = [line for line in self.output.read_text(errors="replace").splitlines() if line[:1] == "{"]
        return json.loads(lines[-1]) if lines else {}


class PythonLoad(TellingLoad):
    def begin(self) -> None:
        self.process.send_signal(signal.SIGUSR1)


class Others:
    """An environment with the other client in it, for as long as the benchmark runs."""

    def __init__(self) -> None:
        self._home = Path(tempfile.mkdtemp(prefix="kerolox-bench-others-"))
        self.python = self._home / "bin" / "python"
        self.missing = ""
        try:
            for command in (
                [sys.executable, "-m", "venv", str(self._home)],
                [
                    str(self.python),
                    "-m",
                    "pip",
                    "install",
                    "-q",
                    "--disable-pip-version-check",
                    OTHER_PACKAGE,
                ],
                [str(self.python), "-c", "import rocketmq.client"],
            ):
                subprocess.run(command, check=True, capture_output=True, timeout=120, text=True)
        except (subprocess.SubprocessError, OSError) as error:
            said = getattr(error, "stderr", "") or str(error)
            self.missing = said.strip().splitlines()[-1] if said.strip() else type(error).__name__

    def close(self) -> None:
        shutil.rmtree(self._home, ignore_errors=True)


class Bench:
    """Both brokers and all clients."""

    def __init__(self, jars: Jars, others: Others | None, arguments: argparse.Namespace) -> None:
        self.jars = jars
        self.others = others
        self.arguments = arguments
        self._numbers = itertools.count()

    def run(self, row: Row, client: str, broker: BenchBroker) -> Run:
        number_of = next(self._numbers)
        topic, group = f"client-{number_of}", f"client-group-{number_of}"
        if row.consumes:
            topic = self.backlog(row.size, broker)
        else:
            broker.create_topic(topic)
        set_cores(broker.pid, {SERVER_CORE})
        load = self._start(row, client, broker, topic, group)
        try:
            return self._window(row, client, broker, load, topic, group)
        finally:
            if load.process.poll() is None:
                load.process.kill()
                load.process.wait()

    def _window(self, row: Row, client: str, broker: BenchBroker, load: Load, topic: str, group: str) -> Run:
        own_count = row.consumes and client == OTHER  # it tells brokers every five seconds only

        def count() -> int:
            return broker.consumed(topic, group) if row.consumes else broker.stored(topic)

        end = broker.stored(topic) if row.consumes else None
        deadline_s = time.monotonic() + 40.0
        while not own_count and not count():
            if time.monotonic() > deadline_s or load.process.poll() is not None:
                raise RuntimeError(f"{row.name}, {client}, {broker.kind}: no message: {load.tail()}")
            time.sleep(0.02)
        # A JVM compiles what runs often, quicker with both cores; the others are ready when they run.
        settle_s = self.arguments.settle if client in (JAVA, JAVA_CALLBACKS) else 2.0 if own_count else 0.4
        began_s = time.monotonic()
        while time.monotonic() - began_s < settle_s:
            if end is not None and not own_count and end - count() < end * 0.6:
                break
            time.sleep(POLL_S)
        set_cores(load.pid, {LOAD_CORE})
        load.begin()
        before, cpu_s, began_s = count(), machine.cpu_s(load.pid), time.monotonic()
        while time.monotonic() - began_s < self.arguments.seconds:
            time.sleep(POLL_S)
            if end is not None and end - count() < LEFT_MIN:
                break
        after, wall_s = count(), time.monotonic() - began_s
        cpu_s = machine.cpu_s(load.pid) - cpu_s
        said = load.end()
        run = Run(int(said["consumed"]) if own_count else after - before, wall_s, cpu_s)
        if run.messages <= 0:
            raise RuntimeError(
                f"{row.name}, {client}, {broker.kind}: nothing in {wall_s:.1f} s: {load.tail()}"
            )
        if said and not row.consumes:
            run.p50_ms, run.p99_ms = said["p50_ms"], said["p99_ms"]
            run.failed = int(said["failed"])
        return run

    def _start(self, row: Row, client: str, broker: BenchBroker, topic: str, group: str) -> Load:
        if client in (JAVA, JAVA_CALLBACKS) and row.kind == "send":
            return self._java_sends(row, client, broker, topic)
        if client == JAVA:
            started = broker.client(self.jars, *self._program(row, topic, group))
            return Load(started.process, started.output)
        what = group if row.consumes else str(row.size)
        words = [row.kind, broker.nameserver.address, topic, what, str(row.many)]
        if client == OTHER:
            assert self.others is not None
            command = [str(self.others.python), str(ROOT / "bench" / "client_load_other.py"), *words]
        else:
            command = [sys.executable, "-m", "bench.client_load", *words]
        output = broker.home / f"load-{next(self._numbers)}.txt"
        environment = {name: value for name, value in os.environ.items() if name != "NAMESRV_ADDR"}
        environment["HOME"] = str(broker.home)  # where the C++ client writes its log
        with output.open("wb") as to:
            process = subprocess.Popen(command, stdout=to, stderr=to, cwd=ROOT, env=environment)
        set_cores(process.pid, {LOAD_CORE})
        return PythonLoad(process, output)

    def _java_sends(self, row: Row, client: str, broker: BenchBroker, topic: str) -> Load:
        home = broker.home / f"client-java-{next(self._numbers)}"
        words = ["threads" if client == JAVA else "callbacks", broker.nameserver.address, topic]
        words += [str(row.size), str(row.many), str(self.arguments.seconds)]
        source = str(ROOT / "bench" / "SendLoad.java")
        started = BenchClient(java_command(self.jars, home, CLIENT_FLAGS, source, words), home)
        return TellingLoad(started.process, started.output)

    def _program(self, row: Row, topic: str, group: str) -> tuple[str, list[str]]:
        if row.consumes:
            return "Consumer", ["-t", topic, "-g", group, "-w", "20"]
        words = ["-t", topic, "-s", str(row.size), "-w", str(row.many)]
        if row.kind == "batch":
            return "BatchProducer", [*words, "-b", str(BATCH)]
        return "Producer", words

    def backlog(self, size: int, broker: BenchBroker) -> str:
        """A topic to consume; filled once for each size and broker, on all cores."""
        topic = f"backlog-{size}"
        wanted = self.arguments.backlog // (1 if size < 1024 else 3)
        if broker.stored(topic) < wanted:
            set_cores(broker.pid, {SERVER_CORE, LOAD_CORE})
            broker.create_topic(topic)
            started = broker.client(self.jars, *self._program(Row("batch", size, 16, BOTH), topic, ""))
            try:
                deadline_s = time.monotonic() + 120.0
                while broker.stored(topic) < wanted:
                    if time.monotonic() > deadline_s:
                        raise RuntimeError(f"{broker.kind} has {broker.stored(topic)} of {wanted} messages")
                    time.sleep(POLL_S)
            finally:
                started.close()
        return topic

    def warm_up(self, broker: BenchBroker, seconds: float) -> None:
        """Sends and pulls on all cores: Apache's broker is a JVM too."""
        topic = self.backlog(128, broker)
        set_cores(broker.pid, {SERVER_CORE, LOAD_CORE})
        broker.create_topic("warm-up")
        loads = [
            broker.client(self.jars, *self._program(Row("send", 128, 64, BOTH), "warm-up", "")),
            broker.client(self.jars, *self._program(Row("one", 128, 32, BOTH), topic, "warm-up")),
        ]
        time.sleep(seconds)
        for load in loads:
            load.close()


# --- all rows -------------------------------------------------------------------------------------

Found = dict[str, dict[Row, dict[str, list[Run]]]]  # by broker, load, client


def main(argv: list[str] | None = None) -> Result | None:
    parser = argparse.ArgumentParser(prog="python -m bench client", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer loads, short windows")
    parser.add_argument("--rounds", type=int, default=1, help="of each load, client and broker")
    parser.add_argument("--only", default="", help="loads with this text in their name")
    parser.add_argument("--clients", default=";".join(ALL), help="some, with ; between them")
    parser.add_argument("--no-apache", action="store_true", help="our broker only")
    parser.add_argument("--seconds", type=float, help="of one window")
    parser.add_argument("--settle", type=float, help="seconds a JVM gets before its window")
    parser.add_argument("--backlog", type=int, help="messages to consume, of 128 bytes")
    parser.add_argument("--no-save", action="store_true", help="print the results only")
    arguments = parser.parse_args(argv)
    quick = arguments.quick
    arguments.seconds = arguments.seconds or (2.0 if quick else 3.5)
    arguments.settle = arguments.settle or (2.5 if quick else 4.0)
    arguments.backlog = arguments.backlog or (400_000 if quick else 1_200_000)
    try:
        java, jars = find_java(), get_jars()
    except PeersUnavailable as missing:
        print(f"no comparison without Apache's programs: {missing}")
        return None
    clients = [client for client in ALL if client in arguments.clients.split(";")]
    kinds = [OURS] if arguments.no_apache else [OURS, APACHE]
    notes = [NOT_COMPARED]
    others = Others() if OTHER in clients else None
    if others is not None and others.missing:
        clients.remove(OTHER)
        notes.append(f"`{OTHER_PACKAGE}` could not be installed for this run: {others.missing}.")
    facts = machine.describe(java.path)
    flags = {
        "pinned": f"broker to core {SERVER_CORE}, client to core {LOAD_CORE}",
        "rounds": f"{arguments.rounds} for each load, client and broker, taking turns",
        "window": f"{arguments.seconds:g} s; a JVM runs for {arguments.settle:g} s before it",
        "broker options": ", ".join(f"{key}={value}" for key, value in OPTIONS.items()),
        "Apache RocketMQ": jars.version,
        "JVM flags of the broker": " ".join(BROKER_FLAGS),
        "JVM flags of the client": " ".join(CLIENT_FLAGS),
    }
    machine.show(facts | flags)
    bench = Bench(jars, others, arguments)
    found: Found = {}
    rows = [row for row in (QUICK if quick else FULL) if arguments.only in row.name]
    try:
        for kind in kinds:
            broker = BenchBroker(kind, jars, OPTIONS)
            try:
                if kind == APACHE:
                    bench.warm_up(broker, 8.0 if quick else 20.0)
                for row in rows:
                    runs = _take_turns(bench, row, broker, clients, arguments.rounds, notes)
                    if runs:
                        found.setdefault(kind, {})[row] = runs
            finally:
                broker.close()
    finally:
        if others is not None:
            others.close()
    result = Result(
        "client",
        "Client",
        [
            "Our client (asyncio, one process, one core) beside Apache's Java client, which takes one thread "
            "for each message in flight, or callbacks, and beside other Python clients. CPU is that of the "
            "client's process, a JVM's compilers included. The mean latency is what is in flight divided by "
            "the rate. What only one client can do (linger, handlers of batches, large pulls) is compared "
            "with the Java client's plain sends and its one way to consume.",
            *notes,
        ],
        facts,
        flags,
        [table(kind, by_row, clients) for kind, by_row in found.items()],
        {
            kind: {
                row.name: {client: [asdict(run) for run in runs] for client, runs in by_client.items()}
                for row, by_client in by_row.items()
            }
            for kind, by_row in found.items()
        },
    )
    result.show()
    if not arguments.no_save:
        result.save()
    return result


def _take_turns(
    bench: Bench, row: Row, broker: BenchBroker, clients: list[str], rounds: int, notes: list[str]
) -> dict[str, list[Run]]:
    """All clients of a load; one that fails at it is told of, and left out."""
    runs: dict[str, list[Run]] = {}

    def attempt(client: str) -> None:
        try:
            run = bench.run(row, client, broker)
        except RuntimeError as error:
            notes.append(f"{client} failed: {str(error).splitlines()[0]}")
            print(error, flush=True)
            return
        runs.setdefault(client, []).append(run)
        latency = "" if run.p50_ms is None else f", {run.p50_ms:.2f}/{run.p99_ms:.2f} ms"
        failed = f", {run.failed} failed" if run.failed else ""
        print(
            f"{broker.kind}'s broker: {row.name}: {client}: {run.rate:,.0f}/s, {run.cpu_us:.1f} CPU µs"
            f"{latency}{failed}",
            flush=True,
        )

    take_turns({each: partial(attempt, each) for each in row.clients if each in clients}, rounds)
    return runs


def table(kind: str, by_row: dict[Row, dict[str, list[Run]]], clients: list[str]) -> Table:
    rows = []
    for row, runs in by_row.items():
        # Where Java has no such thing: its plain sends, or its consumer.
        beside = runs.get(JAVA) or _java_way(row, by_row)
        for client in clients:
            if client not in runs:
                continue
            rate = typical_rate([run.rate for run in runs[client]])
            per_cpu_s = 1e6 / typical_cost([run.cpu_us for run in runs[client]])
            shown = [row.name, client, number(rate)]
            if beside and client != JAVA:
                java_rate = typical_rate([run.rate for run in beside])
                java_per_cpu_s = 1e6 / typical_cost([run.cpu_us for run in beside])
                shown += [ratio(rate / java_rate), number(per_cpu_s), ratio(per_cpu_s / java_per_cpu_s)]
            else:
                shown += ["", number(per_cpu_s), ""]
            mean_ms = (
                "" if row.consumes else number(1000 * row.many * (BATCH if row.kind == "batch" else 1) / rate)
            )
            shown.append(mean_ms)
            p50 = [run.p50_ms for run in runs[client] if run.p50_ms is not None]
            p99 = [run.p99_ms for run in runs[client] if run.p99_ms is not None]
            shown += [number(typical_cost(p50)), number(typical_cost(p99))] if p50 and p99 else ["", ""]
            rows.append(shown)
    whose = "Our broker" if kind == OURS else "Apache's broker"
    return Table(
        f"{whose}: clients",
        [
            "load",
            "client",
            "messages/s",
            "to Java's",
            "messages per CPU second of the client",
            "to Java's",
            "mean ms",
            "p50 ms",
            "p99 ms",
        ],
        rows,
    )


def _java_way(row: Row, by_row: dict[Row, dict[str, list[Run]]]) -> list[Run] | None:
    kind, many = ("one", 32) if row.consumes else ("send", 64)
    for other, runs in by_row.items():
        if (other.kind, other.size, other.many) == (kind, row.size, many):
            return runs.get(JAVA)
    return None


if __name__ == "__main__":
    main()
