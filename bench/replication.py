"""Replication: a leader and a follower of ours, and Apache's pair with the same settings, taking turns.

Sends are frames built beforehand, so many in flight on one connection, as the threads of one producer do it.
A follower that was away comes back to a backlog. What a follower costs its leader is seen on one leader
process, with the follower and without.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import TypeVar

from tests.peers.jars import Jars, PeersUnavailable, get_jars
from tests.peers.java import find_java

from bench import copy_limits, machine
from bench.broker_peers import APACHE, BROKER_FLAGS, OURS, QUEUES, BenchBroker, set_cores
from bench.generator import Disturbed, Generator, Run
from bench.line import send_frame
from bench.replica_pair import LOOK_S, SILENCE, Pair
from bench.results import Result, Table, number, ratio
from bench.rounds import median, take_turns, typical_cost, typical_rate
from kerolox.protocol import properties as packed
from kerolox.protocol.batch import encode_batch

BATCH = 32
FRAMES = 512
BACKLOG_BODY = 1024
CATCH_UP_TIMEOUT_S = 300.0
REFUSALS_MAX = 100  # of a window; they are told of in the table
T = TypeVar("T")
SYNC = {"brokerRole": "SYNC_MASTER", "inSyncReplicas": 2}
ASYNC = {"brokerRole": "ASYNC_MASTER"}
LEADER_CORE, OTHER_CORE = machine.cores()  # before this process takes one of them


@dataclass(frozen=True)
class Row:
    """So many requests in flight, each with one message or a batch."""

    threads: int
    batch: bool = False

    @property
    def name(self) -> str:
        threads = f"{self.threads} thread{'s' if self.threads > 1 else ''}"
        return f"batches of {BATCH}, {threads}" if self.batch else threads

    @property
    def messages(self) -> int:
        """In one request."""
        return BATCH if self.batch else 1


ROWS = (Row(1), Row(16), Row(64), Row(1, True), Row(16, True))
ONE, MANY = ROWS[0], ROWS[2]


def send_frames(topic: str, row: Row, body: int = 128) -> bytes:
    """As a client sends them: each message with a key of its own, to one queue after the other."""
    keys = (f"7F0000010A2B18B4AAC2{number_of:012X}" for number_of in itertools.count())
    content = b"x" * body

    def properties() -> dict[str, str]:
        return {packed.UNIQUE_KEY: next(keys), "WAIT": "true"}

    found = []
    for place in range(FRAMES // 8 if row.batch else FRAMES):
        if row.batch:
            items = [(0, content, packed.pack(properties())) for _ in range(BATCH)]
            found.append(send_frame(topic, place % QUEUES, {}, encode_batch(items), batch=True))
        else:
            found.append(send_frame(topic, place % QUEUES, properties(), content))
    return b"".join(found)


@dataclass(frozen=True)
class CatchUp:
    """A follower that came back: bytes it lacked, and what they took."""

    size: int
    copy_s: float  # from the first byte it said it had
    readable_s: float  # until the last message lies in its queue
    whole_s: float  # from the start of its process
    leader_cpu_s: float
    follower_cpu_s: float

    @property
    def mb_s(self) -> float:
        return self.size / self.copy_s / 1e6

    @property
    def readable_mb_s(self) -> float:
        return self.size / self.readable_s / 1e6


@dataclass(frozen=True)
class Round:
    """One leader without its follower, the follower's return, and the leader with it."""

    without: Run
    catch_up: CatchUp
    beside: Run


class Bench:
    def __init__(self, load: Generator, arguments: argparse.Namespace) -> None:
        self.load = load
        self.arguments = arguments
        self._numbers = itertools.count()

    def new_topic(self, broker: BenchBroker) -> str:
        topic = f"replicated-{next(self._numbers)}"
        broker.create_topic(topic)
        return topic

    # --- sends ----------------------------------------------------------------------------------------

    def send(
        self,
        row: Row,
        leader: BenchBroker,
        follower: BenchBroker | None,
        *,
        topic: str | None = None,
        seconds: float | None = None,
    ) -> Run:
        """One window of sends. An answer that does not say that the message is where it was promised to be
        counts as a refusal."""
        set_cores(leader.pid, {LEADER_CORE})
        if follower is not None:
            set_cores(follower.pid, {OTHER_CORE})
        frames = send_frames(topic or self.new_topic(leader), row)
        while True:
            try:
                return self.load.run(
                    frames, leader.port, leader.pid, 1, row.threads, seconds or self.arguments.seconds,
                    self.arguments.settle, None if follower is None else follower.pid, REFUSALS_MAX,
                )  # fmt: skip
            except Disturbed as disturbed:
                print(f"again: {disturbed}", flush=True)

    def send_to(self, row: Row, pair: Pair) -> Run:
        pair.wait_in_step()
        return self.send(row, pair.leader, pair.follower)

    # --- a follower that was away ---------------------------------------------------------------------

    def fill(self, pair: Pair) -> None:
        """The backlog, while the follower is away."""
        leader, wanted = pair.leader, self.arguments.backlog << 20
        topic = self.new_topic(leader)
        set_cores(leader.pid, {LEADER_CORE})
        frames = send_frames(topic, Row(16, True), BACKLOG_BODY)
        begin, seconds = pair.ends()[0], 0.5
        done = 0
        while done < wanted:
            with contextlib.suppress(Disturbed):
                self.load.run(frames, leader.port, leader.pid, 1, 16, seconds, 0.0)
            now = pair.ends()[0] - begin
            # Of what is lacking: so long that there is little too much.
            seconds = min(5.0, max(0.1, (wanted - now) / (now - done) * seconds))
            done = now

    def catch_up(self, pair: Pair, last_topic: str) -> CatchUp:
        """Start the follower, and wait until it has all, and has the last messages in their queues."""
        end, _ = pair.ends()
        wanted = pair.queue_ends(pair.leader, last_topic)
        set_cores(pair.leader.pid, {LEADER_CORE})
        began_s, leader_s = time.monotonic(), machine.cpu_s(pair.leader.pid)
        pair.follower.launch()
        pinned = False
        first: tuple[float, int, float] | None = None  # when it had more, how much, its CPU time until then
        while True:
            _, acked = pair.ends()
            now_s = time.monotonic()
            if acked is not None and not pinned:
                # Not before: a JVM that starts on one core makes itself small for good.
                set_cores(pair.follower.pid, {OTHER_CORE})
                pinned = True
            if first is None and acked is not None and acked >= pair.kept_end:
                first = now_s, acked, machine.cpu_s(pair.follower.pid)
            if first is not None and acked == end:
                break
            if now_s - began_s > CATCH_UP_TIMEOUT_S or pair.follower.process.poll() is not None:
                raise RuntimeError(f"{pair.kind}'s follower has {acked} of {end}:\n{pair.follower.tail()}")
            time.sleep(LOOK_S)
        while pair.queue_ends(pair.follower, last_topic) != wanted:
            time.sleep(LOOK_S)
        readable_s = time.monotonic()
        return CatchUp(
            end - first[1],
            now_s - first[0],
            readable_s - first[0],
            readable_s - began_s,
            machine.cpu_s(pair.leader.pid) - leader_s,
            machine.cpu_s(pair.follower.pid) - first[2],
        )

    def away_and_back(self, pair: Pair) -> Round:
        pair.set_follower_back()
        topic = self.new_topic(pair.leader)
        without = self.send(MANY, pair.leader, None, topic=topic)
        catch_up = self.catch_up(pair, topic)
        beside = self.send_to(MANY, pair)
        pair.follower.stop()
        return Round(without, catch_up, beside)

    # --- taking turns ---------------------------------------------------------------------------------

    def in_turns(
        self, variants: Mapping[str, Callable[[], T]], parties: Mapping[str, Pair | BenchBroker]
    ) -> dict[str, list[T]]:
        """Each in its turn, while the processes of all others hold still."""

        def alone(name: str) -> T:
            with machine.held_still(
                pid for other, party in parties.items() if other != name for pid in party.pids
            ):
                return variants[name]()

        return take_turns({name: partial(alone, name) for name in variants}, self.arguments.rounds)


# --- all rows -------------------------------------------------------------------------------------------


@dataclass
class Found:
    """By row or kind, then by kind, each with its rounds."""

    sends: dict[Row, dict[str, list[Run]]]
    alone: dict[str, list[Run]]  # one thread, a leader that nobody follows
    rounds: dict[str, list[Round]]
    disk: list[tuple[float, float]]  # MB/s: into the page cache, and until flushed
    loopback: list[float]  # MB/s


def measure(bench: Bench, kinds: list[str], jars: Jars) -> Found:
    found = Found({}, {}, {}, [], [])
    if bench.arguments.only in "sends":
        measure_sends(bench, kinds, jars, found)
    if bench.arguments.only in "catch-up":
        measure_returns(bench, kinds, jars, found)
    return found


def measure_sends(bench: Bench, kinds: list[str], jars: Jars, found: Found) -> None:
    parties: dict[str, Pair | BenchBroker] = {}
    warm_s = bench.arguments.warm_up
    try:
        for kind in kinds:
            pair = parties[kind] = Pair(kind, jars, SYNC)
            broker = parties[f"{kind} alone"] = BenchBroker(kind, jars, ASYNC)
            pair.wait_in_step()
            for each, follower in ((pair.leader, pair.follower), (broker, None)):
                bench.send(MANY, each, follower, seconds=warm_s if kind == APACHE else warm_s / 4)
        for row in ROWS:
            turns: dict[str, Callable[[], Run]] = {}
            for name, party in parties.items():
                if isinstance(party, Pair):
                    turns[name] = partial(bench.send_to, row, party)
                elif row == ONE:
                    turns[name] = partial(bench.send, row, party, None)
            runs = bench.in_turns(turns, parties)
            found.sends[row] = {kind: runs[kind] for kind in kinds}
            if row == ONE:
                found.alone = {kind: runs[f"{kind} alone"] for kind in kinds}
            for name, each in runs.items():
                shown = "; ".join(
                    f"{run.rate * row.messages:,.0f}/s, leader {_cpu_us(run.server_cpu_s, run, row):.1f} and "
                    f"follower {_cpu_us(run.other_cpu_s, run, row):.1f} CPU µs, p50 {run.p50_us:.0f} "
                    f"p99 {run.p99_us:.0f} µs, load {run.load_busy:.0%} busy"
                    for run in each
                )
                print(f"{row.name}: {name}: {shown}", flush=True)
    finally:
        for party in parties.values():
            party.close()


def measure_returns(bench: Bench, kinds: list[str], jars: Jars, found: Found) -> None:
    size = bench.arguments.backlog << 20
    pairs: dict[str, Pair] = {}
    try:
        for kind in kinds:
            pair = pairs[kind] = Pair(kind, jars, ASYNC)
            pair.keep_follower()
            bench.fill(pair)
        for _ in range(2):
            with machine.held_still(pid for pair in pairs.values() for pid in pair.pids):
                found.disk.append(copy_limits.disk_mb_s(pairs[kinds[0]].leader.home, size))
                found.loopback.append(copy_limits.loopback_mb_s(size, (LEADER_CORE, OTHER_CORE)))
        turns = {kind: partial(bench.away_and_back, pair) for kind, pair in pairs.items()}
        found.rounds = bench.in_turns(turns, pairs)
        for kind, rounds in found.rounds.items():
            for each in rounds:
                print(
                    f"catch-up: {kind}: {each.catch_up.mb_s:.0f} MB/s, readable "
                    f"{each.catch_up.readable_mb_s:.0f} MB/s, whole {each.catch_up.whole_s:.1f} s; leader "
                    f"without {each.without.server_us:.2f}, with {each.beside.server_us:.2f} CPU µs",
                    flush=True,
                )
    finally:
        for pair in pairs.values():
            pair.close()


def _leader_s(run: Run) -> float:
    return run.server_cpu_s


def _follower_s(run: Run) -> float:
    return run.other_cpu_s


def _both_s(run: Run) -> float:
    return run.server_cpu_s + run.other_cpu_s


def _cpu_us(cpu_s: float, run: Run, row: Row) -> float:
    return cpu_s * 1e6 / (run.answers * row.messages)


# --- tables ---------------------------------------------------------------------------------------------


def tables(found: Found, kinds: list[str]) -> list[Table]:
    result = []
    if found.sends:
        result += [_sends(found, kinds), _latency(found, kinds)]
    if found.rounds:
        result += [_catch_up(found, kinds), _cost(found, kinds)]
    return result


def _compared(values: list[float], *, less_is_better: bool = False) -> list[str]:
    """The figures of both kinds, and how ours stands."""
    shown = list(map(number, values))
    if len(values) == 2:
        ours, theirs = values
        tells = min(values) > 0  # a difference that came out negative does not
        shown.append(ratio(theirs / ours if less_is_better else ours / theirs) if tells else "-")
    return shown


def _headings(kinds: list[str], *names: str) -> list[str]:
    last = ["ratio"] if len(kinds) == 2 else []
    return [heading for name in names for heading in [*(f"{kind}, {name}" for kind in kinds), *last]]


def _sides(kinds: list[str]) -> list[str]:
    return [*kinds, "ratio"] if len(kinds) == 2 else kinds


def _sends(found: Found, kinds: list[str]) -> Table:
    rows = []
    for row, runs in found.sends.items():
        compared = [
            _compared([typical_rate([run.rate * row.messages for run in runs[kind]]) for kind in kinds])
        ]
        for cpu_s in (_leader_s, _follower_s, _both_s):
            costs = [typical_cost([_cpu_us(cpu_s(run), run, row) for run in runs[kind]]) for kind in kinds]
            compared.append(_compared([1e6 / cost for cost in costs]))
        refused = [str(sum(run.refusals for run in runs[kind])) for kind in kinds]
        rows.append([row.name, *itertools.chain(*compared), *refused])
    return Table(
        "Every message on leader and follower (SYNC_MASTER, inSyncReplicas=2), 128 B",
        [
            "load",
            *_headings(
                kinds, "messages/s", "per CPU second of the leader", "... of the follower", "... of both"
            ),
            *(f"{kind}, refused" for kind in kinds),
        ],
        rows,
        [
            "Threads are requests in flight on one connection. Each answer said that two replicas have the "
            "message, but for those that are counted as refused."
        ],
    )


def _latency(found: Found, kinds: list[str]) -> Table:
    rows = []
    for share in ("p50", "p99"):
        before, after = (
            [typical_cost([getattr(run, f"{share}_us") for run in runs[kind]]) for kind in kinds]
            for runs in (found.alone, found.sends[ONE])
        )
        added = [with_one - without for with_one, without in zip(after, before, strict=True)]
        rows += [
            [f"{share}, nobody follows (ASYNC_MASTER), µs", *_compared(before, less_is_better=True)],
            [f"{share}, on two replicas, µs", *_compared(after, less_is_better=True)],
            [f"{share}, added by the replica, µs", *_compared(added, less_is_better=True)],
        ]
    return Table("Latency of one send at a time", ["", *_sides(kinds)], rows)


def _catch_up(found: Found, kinds: list[str]) -> Table:
    def typical(figure: Callable[[CatchUp], float], choose: Callable[[list[float]], float]) -> list[float]:
        return [choose([figure(each.catch_up) for each in found.rounds[kind]]) for kind in kinds]

    cached = typical_rate([cached for cached, _ in found.disk])
    flushed = typical_rate([flushed for _, flushed in found.disk])
    loopback = typical_rate(found.loopback)
    copied = typical(lambda each: each.mb_s, typical_rate)
    readable = typical(lambda each: each.readable_mb_s, typical_rate)
    gib = 1 << 30
    rows = [
        ["bytes, GiB", *(number(each) for each in typical(lambda each: each.size / gib, median))],
        ["copied, MB/s", *_compared(copied)],
        ["copied and in its queues, MB/s", *_compared(readable)],
        ["copied, share of what the disk takes", *(f"{each / flushed:.0%}" for each in copied)],
        ["copied, share of what loopback carries", *(f"{each / loopback:.0%}" for each in copied)],
        [
            "CPU seconds per GiB, leader",
            *_compared(
                typical(lambda each: each.leader_cpu_s / each.size * gib, typical_cost), less_is_better=True
            ),
        ],
        [
            "CPU seconds per GiB, follower",
            *_compared(
                typical(lambda each: each.follower_cpu_s / each.size * gib, typical_cost), less_is_better=True
            ),
        ],
        [
            "from the start of its process until it has all, s",
            *_compared(typical(lambda each: each.whole_s, typical_cost), less_is_better=True),
        ],
    ]
    width = 1 + len(_sides(kinds))
    return Table(
        f"A follower that was away: a backlog of {BACKLOG_BODY} B messages",
        ["", *_sides(kinds)],
        [row + [""] * (width - len(row)) for row in rows],
        [
            f"In the same run: one file written from end to end, {number(cached)} MB/s into the page cache "
            f"and {number(flushed)} MB/s until flushed; one TCP connection over loopback, "
            f"{number(loopback)} MB/s. "
            "Neither kind flushes before it says that it has something (ASYNC_FLUSH)."
        ],
    )


def _cost(found: Found, kinds: list[str]) -> Table:
    rows = []
    for kind in kinds:
        rounds = found.rounds[kind]
        without = typical_cost([each.without.server_us for each in rounds])
        beside = typical_cost([each.beside.server_us for each in rounds])
        rates = [typical_rate([run.rate for run in runs]) for runs in _both_runs(rounds)]
        rows.append(
            [
                kind,
                number(without),
                number(beside),
                f"{beside / without - 1:+.0%}",
                *map(number, rates),
                f"{rates[1] / rates[0] - 1:+.0%}",
            ]
        )
    return Table(
        f"What a follower costs its leader (ASYNC_MASTER), {MANY.threads} threads, 128 B",
        [
            "",
            "CPU µs of the leader per message, nobody follows",
            "with a follower",
            "more",
            "messages/s, nobody follows",
            "with a follower",
            "more",
        ],
        rows,
    )


def _both_runs(rounds: list[Round]) -> tuple[list[Run], list[Run]]:
    return [each.without for each in rounds], [each.beside for each in rounds]


def main(argv: list[str] | None = None) -> Result | None:
    parser = argparse.ArgumentParser(prog="python -m bench replication", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one short round, with a backlog of 256 MiB")
    parser.add_argument("--only", default="", help="sends or catch-up")
    parser.add_argument("--rounds", type=int, help="of each row on each pair")
    parser.add_argument("--seconds", type=float, help="of each window")
    parser.add_argument("--settle", type=float, help="load before each window that is not counted")
    parser.add_argument("--warm-up", type=float, help="load on Apache's brokers before their first row, s")
    parser.add_argument("--backlog", type=int, help="MiB a follower has to catch up with")
    parser.add_argument("--no-apache", action="store_true")
    parser.add_argument("--no-save", action="store_true", help="print the results only")
    arguments = parser.parse_args(argv)
    quick, full = (1, 3.0, 1.0, 8.0, 256), (3, 5.0, 2.0, 15.0, 2048)
    for name, value in zip(
        ("rounds", "seconds", "settle", "warm_up", "backlog"), quick if arguments.quick else full, strict=True
    ):
        if getattr(arguments, name) is None:
            setattr(arguments, name, value)
    try:
        java, jars = find_java(), get_jars()
    except PeersUnavailable as missing:
        print(f"no comparison without Apache's programs: {missing}")
        return None
    kinds = [OURS] if arguments.no_apache else [OURS, APACHE]
    with Generator(OTHER_CORE) as load:
        facts = machine.describe(java.path)
        flags = {
            "processes": "leader, follower, load generator and this program, with a name server that has "
            "nothing to do; the other pair is stopped meanwhile",
            "pinned": f"leader to core {LEADER_CORE}; follower, load and this program to core {OTHER_CORE}",
            "load": f"{load.name}, JSON headers, each message with a unique key",
            "windows": f"{arguments.rounds} of {arguments.seconds:g} s for each row and pair, taking turns, "
            f"after {arguments.settle:g} s of the same load",
            "topics": f"a new one for each window, {QUEUES} queues",
            "leaders": "; ".join(
                ", ".join(f"{key}={value}" for key, value in each.items()) for each in (SYNC, ASYNC)
            ),
            "brokers": ", ".join(f"{key}={value}" for key, value in SILENCE.items())
            + ", everything else by default: ASYNC_FLUSH, files of 1 GiB",
            "Apache RocketMQ": jars.version,
            "JVM flags of the brokers": " ".join(BROKER_FLAGS),
            "warm-up": f"{arguments.warm_up:g} s of sends for Apache's, a quarter of it for ours",
        }
        machine.show(facts | flags)
        machine.pin(os.getpid(), OTHER_CORE)
        found = measure(Bench(load, arguments), kinds, jars)
    result = Result(
        "replication",
        "Replication",
        [
            "A pair of this project's brokers and a pair of Apache's, with the same settings and under the "
            "same load, in turns. A figure is the 20th percentile of its windows, counted from the best.",
        ],
        facts,
        flags,
        tables(found, kinds),
        {
            "sends": {
                row.name: {kind: [asdict(run) for run in runs] for kind, runs in by_kind.items()}
                for row, by_kind in found.sends.items()
            },
            "alone": {kind: [asdict(run) for run in runs] for kind, runs in found.alone.items()},
            "returns": {kind: [asdict(each) for each in rounds] for kind, rounds in found.rounds.items()},
            "disk MB/s": found.disk,
            "loopback MB/s": found.loopback,
        },
    )
    result.show()
    if not arguments.no_save:
        result.save()
    return result


if __name__ == "__main__":
    main()
