"""Messages that come later, conditionally or filtered: our broker and Apache's, taking turns.

Delayed messages are sent over one raw connection, paced or as fast as it goes; what is looked at afterwards
are the records themselves: how long after its due time each was stored for its consumers. Transactions come
from Apache's own benchmark program. Filtered pulls are frames built beforehand, many in flight.
"""

from __future__ import annotations

import argparse
import itertools
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import TypeVar

from tests.peers.jars import Jars, PeersUnavailable, get_jars
from tests.peers.java import find_java

from bench import machine
from bench.broker_peers import APACHE, BROKER_FLAGS, OURS, QUEUES, BenchBroker, set_cores
from bench.generator import Disturbed, Generator
from bench.line import BODY, Line, pull_frame, send_frame
from bench.results import Result, Table, number, ratio
from bench.rounds import percentile, take_turns, typical_cost, typical_rate
from kerolox.protocol import properties as packed
from kerolox.protocol.batch import encode_batch
from kerolox.protocol.message import StoredMessage

DELAY_LEVELS = "1s 2s 5s"
LEVEL_MS = 2000  # of level 2, which is used
TIMER_MS = 4000
T = TypeVar("T")
PARKED = "SCHEDULE_TOPIC_XXXX"
SERVER_CORE, LOAD_CORE = machine.cores()  # before this process takes one of them
FILTERED = 100_000  # messages that filters look at
EXPRESSION = "price > 50 AND region IN ('north', 'west')"


# --- delayed messages -----------------------------------------------------------------------------


@dataclass
class Delayed:
    """What a run of delayed messages came to."""

    messages: int
    first_to_last_s: float  # of their deliveries
    broker_cpu_s: float
    late_ms: list[float]  # 50th, 99th and 100th percentile
    busy: int = 0  # sends that were refused for load, and sent again

    @property
    def rate(self) -> float:
        return self.messages / self.first_to_last_s

    @property
    def cpu_us(self) -> float:
        """For storing it twice and everything between."""
        return self.broker_cpu_s * 1e6 / self.messages


def delayed(
    broker: BenchBroker, numbers: itertools.count[int], *, timer: bool, count: int, rate: int | None
) -> Delayed:
    """Send messages with a delay, wait until the last is delivered, and look at all of them."""
    topic = f"later-{next(numbers)}"
    broker.create_topic(topic)
    set_cores(broker.pid, {SERVER_CORE})
    line = Line(broker.port)
    parked_before = broker.stored(PARKED)
    cpu_s = machine.cpu_s(broker.pid)
    began_s = time.monotonic()
    busy = 0
    chunk = 50 if rate is None else max(1, rate // 100)
    for start in range(0, count, chunk):
        if rate is not None:
            time.sleep(max(0.0, began_s + start / rate - time.monotonic()))
        due_ms = int(time.time() * 1000) + TIMER_MS
        how = {packed.TIMER_DELIVER_MS: str(due_ms)} if timer else {packed.DELAY: "2"}
        numbered = range(start, min(count, start + chunk))
        keyed = ((each, {packed.UNIQUE_KEY: f"{topic}-{each}", **how}) for each in numbered)
        busy += line.deliver(
            {each: send_frame(topic, each % QUEUES, own, opaque=each) for each, own in keyed}
        )
    deadline_s = time.monotonic() + 60.0
    while broker.stored(topic) < count:
        if time.monotonic() > deadline_s:
            raise RuntimeError(f"{broker.kind} delivered {broker.stored(topic)} of {count}")
        time.sleep(0.1)
    cpu_s = machine.cpu_s(broker.pid) - cpu_s
    found = [each for queue_id in range(QUEUES) for each in line.records(topic, queue_id)]
    due: dict[bytes, int] = {}
    if timer:
        # A multiple of the precision fires one step after it, in both brokers.
        late = [each.store_timestamp - int(_value(each, packed.TIMER_DELIVER_MS)) for each in found]
    else:
        for parked in line.records(PARKED, 1, parked_before):
            due[_value(parked, packed.UNIQUE_KEY)] = parked.store_timestamp + LEVEL_MS
        late = [each.store_timestamp - due[_value(each, packed.UNIQUE_KEY)] for each in found]
    line.close()
    stored = [each.store_timestamp for each in found]
    if len({_value(each, packed.UNIQUE_KEY) for each in found}) != count:
        raise RuntimeError(f"{broker.kind}: {len(found)} deliveries are not {count} messages")
    return Delayed(
        count,
        max(1, max(stored) - min(stored)) / 1000,
        cpu_s,
        [percentile(late, 0.5), percentile(late, 0.99), max(late)],
        busy,
    )


def _value(message: StoredMessage, name: str) -> bytes:
    return packed.find(message.packed_properties, packed.marker(name)) or b""


# --- transactions ---------------------------------------------------------------------------------


@dataclass
class Flow:
    messages: int
    wall_s: float
    broker_cpu_s: float

    @property
    def rate(self) -> float:
        return self.messages / self.wall_s

    @property
    def cpu_us(self) -> float:
        return self.broker_cpu_s * 1e6 / self.messages


def transactions(
    broker: BenchBroker,
    numbers: itertools.count[int],
    jars: Jars,
    threads: int,
    seconds: float,
    settle: float,
) -> Flow:
    """Messages that were prepared and committed; counted when they reached their own topic."""
    topic = f"transactions-{next(numbers)}"
    broker.create_topic(topic)
    set_cores(broker.pid, {SERVER_CORE})
    client = broker.client(jars, "TransactionProducer", ["-t", topic, "-w", str(threads), "-s", "128"])
    try:
        set_cores(client.pid, {LOAD_CORE})
        deadline_s = time.monotonic() + 40.0
        while not broker.stored(topic):
            if time.monotonic() > deadline_s:
                raise RuntimeError(f"no transaction at {broker.kind}: {client.output.read_text()[-500:]}")
            time.sleep(0.1)
        time.sleep(settle)
        before, cpu_s, began_s = broker.stored(topic), machine.cpu_s(broker.pid), time.monotonic()
        time.sleep(seconds)
        return Flow(
            broker.stored(topic) - before, time.monotonic() - began_s, machine.cpu_s(broker.pid) - cpu_s
        )
    finally:
        client.close()


# --- filters --------------------------------------------------------------------------------------


def fill_filtered(broker: BenchBroker) -> str:
    """A topic for filters: prices from 0 to 99 and four regions, so that a quarter passes."""
    topic = "filtered"
    if broker.stored(topic) >= FILTERED:
        return topic
    broker.create_topic(topic)
    line = Line(broker.port)
    regions = ("north", "south", "east", "west")
    for start in range(0, FILTERED, 100):
        items = [
            (0, BODY, packed.pack({"price": str(each * 7 % 100), "region": regions[each % 4]}))
            for each in range(start, start + 100)
        ]
        line.send(send_frame(topic, start // 100 % QUEUES, {}, encode_batch(items), batch=True))
        line.expect(1)
    line.close()
    return topic


def filtered(
    broker: BenchBroker,
    load: Generator,
    *,
    kind: str,
    expression: str,
    depth: int,
    seconds: float,
    settle: float,
) -> Flow:
    """Pulls of 32 messages that pass, over and over."""
    topic = fill_filtered(broker)
    set_cores(broker.pid, {SERVER_CORE})
    last = FILTERED // QUEUES - 400
    frames = b"".join(
        pull_frame(topic, queue_id, offset, expression, kind)
        for offset in range(0, last, last // 40)
        for queue_id in range(QUEUES)
    )
    while True:
        try:
            run = load.run(frames, broker.port, broker.pid, 1, depth, seconds, settle)
        except Disturbed:
            continue
        return Flow(run.answers, run.wall_s, run.server_cpu_s)


# --- all rows -------------------------------------------------------------------------------------


def main(argv: list[str] | None = None) -> Result | None:
    parser = argparse.ArgumentParser(prog="python -m bench later", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one short round")
    parser.add_argument("--rounds", type=int, help="of each row on each broker")
    parser.add_argument("--only", default="", help="rows with this text in their name")
    parser.add_argument("--no-apache", action="store_true")
    parser.add_argument("--no-save", action="store_true", help="print the results only")
    arguments = parser.parse_args(argv)
    rounds = arguments.rounds or (1 if arguments.quick else 3)
    seconds, settle = (3.0, 2.0) if arguments.quick else (8.0, 5.0)
    count = 10_000 if arguments.quick else 40_000
    try:
        java, jars = find_java(), get_jars()
    except PeersUnavailable as missing:
        print(f"no comparison without Apache's programs: {missing}")
        return None
    kinds = [OURS] if arguments.no_apache else [OURS, APACHE]
    facts = machine.describe(java.path)
    options = {"enablePropertyFilter": "true", "messageDelayLevel": DELAY_LEVELS}
    flags = {
        "pinned": f"broker to core {SERVER_CORE}, load to core {LOAD_CORE}",
        "rounds": f"{rounds} for each row and broker, taking turns",
        "broker options": ", ".join(f"{key}={value}" for key, value in options.items()),
        "Apache RocketMQ": jars.version,
        "JVM flags of the broker": " ".join(BROKER_FLAGS),
    }
    machine.show(facts | flags)
    machine.pin(os.getpid(), LOAD_CORE)
    numbers = itertools.count()
    brokers: dict[str, BenchBroker] = {}
    late: dict[str, dict[str, list[Delayed]]] = {}
    flows: dict[str, dict[str, list[Flow]]] = {}
    with Generator(LOAD_CORE) as load:
        try:
            for kind in kinds:
                brokers[kind] = BenchBroker(kind, jars, options)
            for broker in brokers.values():  # a JVM compiles what runs often
                delayed(broker, numbers, timer=False, count=count // 2, rate=None)
                delayed(broker, numbers, timer=True, count=count // 2, rate=None)
            delays = {
                f"level, {rate or 'as many as possible'}{'/s' if rate else ''}": partial(
                    delayed,
                    numbers=numbers,
                    timer=False,
                    count=count if rate is None else rate * 5,
                    rate=rate,
                )
                for rate in (1000, 5000, None)
            } | {
                f"any time, {rate or 'as many as possible'}{'/s' if rate else ''}": partial(
                    delayed, numbers=numbers, timer=True, count=count if rate is None else rate * 5, rate=rate
                )
                for rate in (1000, None)
            }
            for name, run in delays.items():
                if arguments.only in name:
                    late[name] = _both(run, brokers, rounds)
                    _progress(name, late[name])
            rows: dict[str, partial[Flow]] = {
                f"transactions, {threads} threads": partial(
                    transactions, numbers=numbers, jars=jars, threads=threads, seconds=seconds, settle=settle
                )
                for threads in (1, 16, 64)
            } | {
                f"pulls of 32 by {kind} {expression!r}, {depth} in flight": partial(
                    filtered,
                    load=load,
                    kind=kind,
                    expression=expression,
                    depth=depth,
                    seconds=seconds,
                    settle=settle,
                )
                for kind, expression in (("SQL92", EXPRESSION), ("TAG", "*"))
                for depth in (1, 16)
            }
            for name, flow in rows.items():
                if arguments.only in name:
                    flows[name] = _both(flow, brokers, rounds)
                    _progress(name, flows[name])
        finally:
            for broker in brokers.values():
                broker.close()
    result = Result(
        "later",
        "Delays, transactions, filters",
        [
            "Lateness is what the records say: the time a message was stored for its consumers, less its due "
            f"time. Delay levels: {DELAY_LEVELS}, of which the second is used. A message for any time is due "
            "within a second of what was asked (timerPrecisionMs=1000), in both brokers.",
        ],
        facts,
        flags,
        [_delay_table(late, kinds), _flow_table(flows, kinds)],
        {
            "delays": {
                name: {k: [asdict(r) for r in rs] for k, rs in by.items()} for name, by in late.items()
            },
            "flows": {
                name: {k: [asdict(r) for r in rs] for k, rs in by.items()} for name, by in flows.items()
            },
        },
    )
    result.show()
    if not arguments.no_save:
        result.save()
    return result


def _both(
    run: Callable[[BenchBroker], T], brokers: dict[str, BenchBroker], rounds: int
) -> dict[str, list[T]]:
    return take_turns({kind: partial(_alone, run, kind, brokers) for kind in brokers}, rounds)


def _alone(run: Callable[[BenchBroker], T], kind: str, brokers: dict[str, BenchBroker]) -> T:
    with machine.held_still(broker.pid for name, broker in brokers.items() if name != kind):
        return run(brokers[kind])


def _progress(name: str, found: dict[str, list[Delayed]] | dict[str, list[Flow]]) -> None:
    for kind, runs in found.items():
        shown = "; ".join(
            f"{run.rate:,.0f}/s, {run.cpu_us:.1f} CPU µs"
            + (
                f", late {'/'.join(f'{ms:.0f}' for ms in run.late_ms)} ms, {run.busy} busy"
                if isinstance(run, Delayed)
                else ""
            )
            for run in runs
        )
        print(f"{name}: {kind}: {shown}", flush=True)


def _delay_table(found: dict[str, dict[str, list[Delayed]]], kinds: list[str]) -> Table:
    both = len(kinds) == 2
    rows = []
    for name, runs in found.items():
        rates = [typical_rate([run.rate for run in runs[kind]]) for kind in kinds]
        per_cpu_s = [1e6 / typical_cost([run.cpu_us for run in runs[kind]]) for kind in kinds]
        row = [name, *map(number, rates), *([ratio(rates[0] / rates[1])] if both else [])]
        row += [*map(number, per_cpu_s), *([ratio(per_cpu_s[0] / per_cpu_s[1])] if both else [])]
        for place in (0, 1, 2):
            row += [number(typical_cost([run.late_ms[place] for run in runs[kind]])) for kind in kinds]
        rows.append(row)
    return Table(
        "Delayed messages",
        [
            "delay and load",
            *(f"{kind}, delivered/s" for kind in kinds),
            *(["ratio"] if both else []),
            *(f"{kind}, per CPU second" for kind in kinds),
            *(["ratio"] if both else []),
            *(f"{kind}, late by {which} ms" for which in ("p50", "p99", "max") for kind in kinds),
        ],
        rows,
    )


def _flow_table(found: dict[str, dict[str, list[Flow]]], kinds: list[str]) -> Table:
    both = len(kinds) == 2
    rows = []
    for name, runs in found.items():
        rates = [typical_rate([run.rate for run in runs[kind]]) for kind in kinds]
        per_cpu_s = [1e6 / typical_cost([run.cpu_us for run in runs[kind]]) for kind in kinds]
        row = [name, *map(number, rates), *([ratio(rates[0] / rates[1])] if both else [])]
        rows.append([*row, *map(number, per_cpu_s), *([ratio(per_cpu_s[0] / per_cpu_s[1])] if both else [])])
    return Table(
        "Transactions and filtered pulls",
        [
            "load",
            *(f"{kind}, /s" for kind in kinds),
            *(["ratio"] if both else []),
            *(f"{kind}, per CPU second" for kind in kinds),
            *(["ratio"] if both else []),
        ],
        rows,
        ["A transaction is a half message, its commit, and the message itself; a pull brings 32 messages."],
    )


if __name__ == "__main__":
    main()
