"""One story: servers, a sender, a query, and a killer; at the end every order is counted once.

What the source topic holds is the truth: a sender that sends again because it got no answer may store an
order twice, and then it is to be counted twice.
"""

from __future__ import annotations

import json
import queue
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from kerolox.blocking import Message, Producer
from kerolox.client.errors import BrokerNotRegistered
from kerolox.client.messages import Queue
from kerolox.client.options import ProducerOptions
from kerolox.client.sockets.socket_cluster import SocketCluster
from kerolox.errors import KeroloxError
from tests.peers.controlled import OURS, ControlledSet
from tests.peers.controllers import make_controllers
from tests.peers.ours import OurBroker, OurNameServer

from .query import WINDOW_MS

ROOT = Path(__file__).parents[2]
ORDERS, TOTALS = "orders", "totals"
GROUP = "chaos"
WORKER = "daemon pyspark."  # in the command lines of Spark's Python workers, and of who started them
QUEUES = 4
BATCH = 5
PAUSE_S = 0.05  # between batches: as much as the query can take on two cores
FAR = 10**9  # the number of the last order: every window before it is complete
START_S = 180.0
REGISTERED_S = 60.0
END_S = 240.0

Totals = dict[int, tuple[int, int]]


class Violation(AssertionError):
    """Something was counted twice, or not at all."""


@dataclass
class Tally:
    kills: Counter[str] = field(default_factory=Counter)
    restarts: Counter[str] = field(default_factory=Counter)  # of the query, by what was killed before
    orders: int = 0
    windows: int = 0
    totals_twice: int = 0

    def dump(self) -> dict[str, Any]:
        return {
            "kills": dict(sorted(self.kills.items())),
            "queries_started_again_after": dict(sorted(self.restarts.items())),
            "orders": self.orders,
            "windows": self.windows,
            "counted_twice_or_not_at_all": 0,  # the first one ends the run with an error
            "windows_twice_in_the_topic": self.totals_twice,
        }


class Query:
    """The driver's process, started again whenever it is gone."""

    def __init__(self, plan: Path, log: Path) -> None:
        self._plan = plan
        self._log = log
        self._process: subprocess.Popen[str] | None = None
        self._lines: queue.Queue[str | None] = queue.Queue()
        self.result: Totals | None = None

    def start(self) -> None:
        self._lines = queue.Queue()
        with open(self._log, "a", encoding="utf-8") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.chaos.query", str(self._plan)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=ROOT,
            )  # fmt: skip
        threading.Thread(target=self._read, args=(self._process, self._lines), daemon=True).start()

    @staticmethod
    def _read(process: subprocess.Popen[str], lines: queue.Queue[str | None]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                lines.put(line)
        lines.put(None)
        with suppress(OSError):  # the process has ended
            process.stdin.close()

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def wait_for(self, word: str, timeout_s: float) -> str | None:
        """The next line that begins so; None when it ended without."""
        deadline_s = time.monotonic() + timeout_s
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, deadline_s - time.monotonic()))
            except queue.Empty:
                raise Violation(f"no {word!r} within {timeout_s:.0f} s\n{self.tail()}") from None
            if line is None or line.startswith(word):
                return line

    def finish(self) -> Totals | None:
        """What Parquet holds when everything was read; None when the driver ended before."""
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            self._process.stdin.write("finish\n")
            self._process.stdin.flush()
        except OSError:
            return None
        line = self.wait_for("result ", END_S)
        if line is None:
            return None
        found: Totals = {}
        for start, orders, total in json.loads(line.removeprefix("result ")):
            if start in found:
                raise Violation(f"window {start} is twice in Parquet\n{self.tail()}")
            found[start] = (orders, total)
        return found

    def processes(self, part: str) -> list[psutil.Process]:
        """Of a kind: ``driver`` (Python and its JVM), ``executor`` (JVMs), ``task`` (Python workers)."""
        if self._process is None:
            return []
        try:
            driver = psutil.Process(self._process.pid)
            below = driver.children(recursive=True)
        except psutil.NoSuchProcess:
            return []
        kinds: dict[str, list[psutil.Process]] = {"driver": [driver], "executor": [], "task": []}
        for process in below:
            try:
                words = " ".join(process.cmdline())
                parent = " ".join(psutil.Process(process.ppid()).cmdline())
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
            if "CoarseGrainedExecutorBackend" in words:
                kinds["executor"].append(process)
            elif WORKER in words and WORKER in parent:
                kinds["task"].append(process)
            elif "SparkSubmit" in words:
                kinds["driver"].append(process)
        return kinds[part]

    def kill(self) -> None:
        """All of it, at once."""
        for part in ("driver", "executor", "task"):
            for process in self.processes(part):
                _kill(process)
        if self._process is not None:
            self._process.kill()
            self._process.wait(30)
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    with suppress(OSError):
                        pipe.close()

    def tail(self) -> str:
        return self._log.read_text(encoding="utf-8")[-4000:] if self._log.exists() else ""


class Sender:
    """Sends orders for as long as it is told, whatever happens to the broker."""

    def __init__(self, nameserver: str) -> None:
        self._nameserver = nameserver
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.sent = 0

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        self._thread.join(60)

    def _run(self) -> None:
        options = ProducerOptions(timeout_s=3.0)
        with Producer(self._nameserver, group=GROUP, options=options) as producer:
            while not self._ended.is_set():
                first = self.sent
                waiting = [Message(ORDERS, b"%d" % number) for number in range(first, first + BATCH)]
                while waiting:
                    try:
                        producer.send_many(waiting)
                        break
                    except KeroloxError:
                        time.sleep(0.1)  # all of them again: some may be there twice
                self.sent = first + BATCH
                self._ended.wait(PAUSE_S)


class OneBroker:
    """It is killed, and comes back after a while."""

    name = "broker-a"

    def __init__(self, root: Path, nameserver: str) -> None:
        self._broker = OurBroker(root / "broker", nameserver, name=self.name)

    def start(self) -> None:
        self._broker.start()

    def strike(self, away_s: float) -> None:
        self._broker.kill()
        time.sleep(away_s)
        self._broker.start()

    def kill(self) -> None:
        self._broker.kill()


class ElectedLeader:
    """Two brokers under a controller: the one that leads is killed, the other one leads, and the killed one
    comes back as its follower."""

    name = "broker-a"

    def __init__(self, root: Path, nameserver: str) -> None:
        self._controllers = make_controllers(None, OURS, root)
        self._group = ControlledSet(self._controllers, nameserver, self.name, root, None, [OURS, OURS])

    def start(self) -> None:
        self._controllers.start()
        self._group.start()

    def strike(self, away_s: float) -> None:
        self._group.wait_in_sync()
        killed = self._group.master
        killed.kill()
        self._group.wait_master(other_than=killed)
        time.sleep(away_s)
        killed.start()

    def kill(self) -> None:
        self._group.finish()
        self._controllers.finish()


class Story:
    """A folder, a seed, and what is killed in it. With ``elected`` the broker is the leader of two."""

    def __init__(
        self, root: Path, seed: int, *, master: str, guarantee: str, tally: Tally, elected: bool = False
    ) -> None:
        self.root = root
        self.tally = tally
        self.guarantee = guarantee
        self._chance = random.Random(f"chaos-{seed}")
        self._master = master
        self._elected = elected
        self._nameserver = OurNameServer(root / "nameserver")
        self._broker: OneBroker | ElectedLeader
        self._query = Query(root / "plan.json", root / "driver.log")

    @contextmanager
    def running(self) -> Iterator[None]:
        self.root.mkdir(parents=True)
        self._nameserver.start()
        made = ElectedLeader if self._elected else OneBroker
        self._broker = made(self.root, self._nameserver.address)
        try:
            self._broker.start()
            self._create(ORDERS)
            self._create(TOTALS)
            plan = {
                "root": str(self.root),
                "master": self._master,
                "nameserver": self._nameserver.address,
                "orders": ORDERS,
                "totals": TOTALS,
                "guarantee": self.guarantee,
            }
            (self.root / "plan.json").write_text(json.dumps(plan), encoding="utf-8")
            self._sender = Sender(self._nameserver.address)
            self._sender.start()
            yield
            self._sender.stop()
        finally:
            self._query.kill()
            self._broker.kill()
            self._nameserver.kill()

    def run(self, victims: list[str]) -> None:
        """Kill these one after the other while the query runs, then look."""
        with self.running():
            self._start_query()
            for victim in victims:
                self._let_it_work()
                self._strike(victim)
                self._see_it_runs(victim)
            self._sender.stop()
            self._judge()

    # --- kills -------------------------------------------------------------------------------------------

    def _start_query(self) -> None:
        """Start the driver, again if need be, until it says that its queries run."""
        for _ in range(5):
            self._query.start()
            if self._query.wait_for("started", START_S) is not None:
                return
        raise Violation(f"the query does not start\n{self._query.tail()}")

    def _let_it_work(self) -> None:
        """A batch or two, and then some moment within one."""
        for _ in range(self._chance.randint(1, 3)):
            if self._query.wait_for("batches", START_S) is None:
                return
        time.sleep(self._chance.uniform(0, 1.0))

    def _strike(self, victim: str) -> None:
        named = "leader of two brokers" if victim == "broker" and self._elected else victim
        self.tally.kills[named] += 1
        if victim == "broker":
            self._broker.strike(self._chance.uniform(0.1, 2.0))
            return
        if victim == "nameserver":
            self._nameserver.kill()
            time.sleep(self._chance.uniform(0.1, 2.0))
            self._nameserver.start()
            return
        found = self._query.processes(victim)
        deadline_s = time.monotonic() + 30
        while not found and self._query.running and time.monotonic() < deadline_s:  # between two tasks, say
            time.sleep(0.02)
            found = self._query.processes(victim)
        if found:
            _kill(self._chance.choice(found))
        elif self._query.running:
            raise Violation(f"there is no {victim} to kill")

    def _see_it_runs(self, victim: str) -> None:
        """A driver that ended, of the kill or of an error after it, is started again from its checkpoint."""
        deadline_s = time.monotonic() + 3.0
        while self._query.running and time.monotonic() < deadline_s:
            if victim not in ("driver", "task"):
                break
            time.sleep(0.05)
        if not self._query.running:
            self.tally.restarts[victim] += 1
            self._query.kill()
            self._start_query()

    # --- the verdict -------------------------------------------------------------------------------------

    def _judge(self) -> None:
        self._send_last()
        counted = self._query.finish()
        while counted is None:  # it died after the last kill: of that, or of what a broker's end left behind
            self.tally.restarts["the last one"] += 1
            if self.tally.restarts["the last one"] > 3:
                raise Violation(f"the query does not come to an end\n{self._query.tail()}")
            self._query.kill()
            self._start_query()
            counted = self._query.finish()
        expected = self._expected()
        _compare("Parquet", counted, expected, self._query.tail())
        twice = self._in_topic(expected)
        self.tally.orders += sum(orders for orders, _ in expected.values())
        self.tally.windows += len(expected)
        self.tally.totals_twice += twice

    def _send_last(self) -> None:
        """What closes all windows. A broker registers again some seconds after a name server came back."""
        deadline_s = time.monotonic() + REGISTERED_S
        with Producer(self._nameserver.address, group=GROUP) as producer:
            while True:
                try:
                    producer.send(Message(ORDERS, b"%d" % FAR))
                    return
                except BrokerNotRegistered:
                    if time.monotonic() > deadline_s:
                        raise
                    time.sleep(0.2)

    def _expected(self) -> Totals:
        found: dict[int, list[int]] = {}
        for body in self._bodies(ORDERS):
            number = int(body)
            if number != FAR:
                pair = found.setdefault(number // WINDOW_MS * WINDOW_MS, [0, 0])
                pair[0] += 1
                pair[1] += number
        return {start: (orders, total) for start, (orders, total) in found.items()}

    def _in_topic(self, expected: Totals) -> int:
        """How many windows the topic has more than once."""
        found: Totals = {}
        twice = 0
        for body in self._bodies(TOTALS):
            row = json.loads(body)
            start, pair = row["start"], (row["orders"], row["total"])
            if start in found:
                twice += 1
                if self.guarantee == "effectively-once" or found[start] != pair:
                    raise Violation(f"window {start} is twice in the topic: {found[start]}, {pair}")
            found[start] = pair
        _compare("the topic", found, expected, self._query.tail())
        return twice

    def _bodies(self, topic: str) -> Iterator[bytes]:
        with SocketCluster(self._nameserver.address) as cluster:
            for queue_id in range(QUEUES):
                place = Queue(topic, self._broker.name, queue_id)
                end = cluster.max_offset(place)
                for message in cluster.read(place, cluster.min_offset(place), end, group=GROUP):
                    yield message.body

    def _create(self, topic: str) -> None:
        command = ["topic", "create", topic, "--queues", str(QUEUES), "-n", self._nameserver.address]
        subprocess.run([sys.executable, "-m", "kerolox", *command], check=True, capture_output=True)


def _compare(where: str, found: Totals, expected: Totals, tail: str) -> None:
    if found != expected:
        missing = sorted(expected.keys() - found.keys())
        extra = sorted(found.keys() - expected.keys())
        wrong = sorted(start for start in found.keys() & expected.keys() if found[start] != expected[start])
        examples = [(start, found[start], expected[start]) for start in wrong[:5]]
        raise Violation(
            f"{where}: {len(missing)} of {len(expected)} windows missing {missing[:5]}, "
            f"{len(extra)} too many {extra[:5]}, {len(wrong)} wrong {examples}\n{tail}"
        )


def _kill(process: psutil.Process) -> None:
    try:
        process.kill()
    except psutil.NoSuchProcess:
        pass
