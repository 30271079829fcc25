"""A pipeline with bad rows and an archive of one topic: killed while messages come, and the topic is deleted
and made anew while nothing runs.

What the broker holds is the truth. Every message from where the source began is in the table or among the bad
rows, once, and the archive has all of them. A topic that was made anew is noticed by the next run: it fails,
and what it reads after somebody has said so is the new topic from its beginning.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds

from kerolox.blocking import Message, Producer
from kerolox.client.messages import Queue
from kerolox.client.options import ProducerOptions
from kerolox.client.sockets.socket_cluster import SocketCluster
from kerolox.errors import KeroloxError
from tests.peers.ours import OurCluster

from .story import ROOT, Violation

TOPIC = "orders"
QUEUES = 2
BATCH = 10
RUN_S = 300.0
ANEW = "deleted and made anew"
FILE = """\
name: chaos
storage: ${DIR}/state
nameserver: ${NS}
sources:
  orders:
    topic: orders
    columns: [queue_id, queue_offset]
    body: {format: json, schema: "number BIGINT NOT NULL"}
    options: {failOnDataLoss: "${LOSS}"}
sinks:
  good: {from: orders, format: parquet, path: "${DIR}/good"}
bad_rows: {format: parquet, path: "${DIR}/bad"}
archives:
  all: {topics: [orders], path: "${DIR}/archive", every: 200ms, options: {failOnDataLoss: "${LOSS}"}}
trigger: 200ms
keep_going: true
retry: {tries: 2, wait: 100ms}
spark: {conf: {spark.driver.extraJavaOptions: -XX:TieredStopAtLevel=1 -XX:+UseSerialGC}}
"""


@dataclass
class FlowTally:
    kills: Counter[str] = field(default_factory=Counter)
    runs: int = 0
    topics_made_anew: int = 0
    noticed: int = 0
    messages: int = 0
    bad_rows: int = 0

    def dump(self) -> dict[str, Any]:
        return {
            "kills": dict(sorted(self.kills.items())),
            "runs": self.runs,
            "topics_made_anew": self.topics_made_anew,
            "noticed_by_the_query_and_the_archive": self.noticed,
            "messages": self.messages,
            "bad_rows": self.bad_rows,
            "missing_or_twice": 0,  # the first one ends the run with an error
        }


class NumberSender:
    """Sends numbers, every third of them no JSON, until it is told to stop."""

    def __init__(self, nameserver: str) -> None:
        self._nameserver = nameserver
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._next = 0

    def start(self) -> None:
        self._ended.clear()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join(60)

    def batch(self) -> list[Message]:
        numbers = range(self._next, self._next + BATCH)
        self._next += BATCH
        return [Message(TOPIC, f"no json {n}" if n % 3 == 0 else f'{{"number": {n}}}') for n in numbers]

    def _run(self) -> None:
        with Producer(self._nameserver, group="chaos", options=ProducerOptions(timeout_s=3.0)) as producer:
            while not self._ended.wait(0.02):
                with suppress(KeroloxError):  # one that was just deleted: the truth is what is stored
                    producer.send_many(self.batch())


class FlowStory:
    """A broker, a sender, a pipeline, and a seed."""

    def __init__(self, root: Path, seed: int, tally: FlowTally) -> None:
        self._root = root
        self._chance = random.Random(f"flows-{seed}")
        self._tally = tally
        self._expected: Counter[bytes] = Counter()  # of the tables
        self._archived: Counter[bytes] = Counter()
        self._runs: list[subprocess.Popen[str]] = []

    def run(self, kills: int, topics: int) -> None:
        """``topics``: how often the topic is made, ``kills`` in the life of each."""
        self._root.mkdir(parents=True)
        (self._root / "chaos.yaml").write_text(FILE, encoding="utf-8")
        cluster = OurCluster(self._root / "cluster", settings=["brokerName=broker-a"])
        cluster.start()
        self._nameserver = cluster.nameserver
        self._sender = NumberSender(self._nameserver)
        try:
            with SocketCluster(self._nameserver) as self._sockets:
                for number in range(topics):
                    self._topic("create", "--queues", str(QUEUES))
                    if number:
                        self._made_anew()
                    self._live(kills)
                    self._keep_truth(first=number == 0)
                    self._judge()
                    self._topic("delete", "--yes")
        finally:
            self._sender.stop()
            for run in self._runs:
                with suppress(ProcessLookupError):
                    os.killpg(run.pid, signal.SIGKILL)
                run.wait(30)
            cluster.kill()

    def _topic(self, word: str, *more: str) -> None:
        command = [sys.executable, "-m", "kerolox", "topic", word, TOPIC, *more, "-n", self._nameserver]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise Violation(f"topic {word}: {done.stdout}{done.stderr}")

    # --- runs -------------------------------------------------------------------------------------------

    def _start(self, *more: str, loss: str = "true") -> subprocess.Popen[str]:
        self._tally.runs += 1
        given = {"DIR": str(self._root), "NS": self._nameserver, "LOSS": loss}
        words = [word for name, value in given.items() for word in ("--set", f"{name}={value}")]
        command = ["pipeline", "run", str(self._root / "chaos.yaml"), *words, "--master", "local[2]", *more]
        with open(self._root / "run.log", "a", encoding="utf-8") as log:
            run = subprocess.Popen(
                [sys.executable, "-m", "kerolox", *command], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                text=True, cwd=ROOT, start_new_session=True,
            )  # fmt: skip
        self._runs.append(run)
        return run

    def _ended(self, run: subprocess.Popen[str], code: int) -> str:
        """Wait for the end of a run, which has to have this code. Returns its output."""
        try:
            found = run.wait(RUN_S)
        except subprocess.TimeoutExpired:
            os.killpg(run.pid, signal.SIGKILL)
            raise Violation(f"a run does not end\n{self._tail()}") from None
        if found != code:
            raise Violation(f"a run ended with {found}, not {code}\n{self._tail()}")
        return self._tail()

    def _tail(self) -> str:
        return (self._root / "run.log").read_text(encoding="utf-8", errors="replace")[-6000:]

    def _live(self, kills: int) -> None:
        """Messages come, and the run that reads them is killed; then it reads what is left."""
        self._sender.start()
        for _ in range(kills):
            run = self._start()
            deadline_s, before = time.monotonic() + RUN_S, self._batches()
            while self._batches() <= before:
                if run.poll() is not None or time.monotonic() > deadline_s:
                    raise Violation(f"the run does not go on ({run.poll()})\n{self._tail()}")
                time.sleep(0.05)
            time.sleep(self._chance.uniform(0.0, 1.0))
            all_of_it = self._chance.random() < 0.5
            self._tally.kills["run with all its processes" if all_of_it else "run"] += 1
            (os.killpg if all_of_it else os.kill)(run.pid, signal.SIGKILL)
            run.wait(30)
            with suppress(ProcessLookupError):  # what a driver has left would write to its tables
                os.killpg(run.pid, signal.SIGKILL)
        self._sender.stop()
        self._ended(self._start("--once"), 0)

    def _batches(self) -> int:
        commits = self._root.glob("state/checkpoints/*/commits/*")
        return sum(1 for each in commits if each.name.isdigit())

    def _made_anew(self) -> None:
        """The new topic has more messages than were read of the former one."""
        self._tally.topics_made_anew += 1
        with Producer(self._nameserver, group="chaos") as producer:
            while any(self._sockets.max_offset(each) <= self._ends[each] for each in self._places()):
                producer.send_many(self._sender.batch())
        (self._root / "run.log").rename(self._root / f"run-{self._tally.topics_made_anew}.log")
        said = self._ended(self._start("--once"), 3)
        for flow in ("good", "bad_rows_of_orders", "all"):
            if not notices(said, flow):
                raise Violation(f"{flow} does not notice the new topic\n{said}")
            self._tally.noticed += 1
        self._judge()  # nothing of it is in any table
        self._ended(self._start("--once", loss="false"), 0)

    # --- the verdict ------------------------------------------------------------------------------------

    def _places(self) -> list[Queue]:
        return [Queue(TOPIC, "broker-a", number) for number in range(QUEUES)]

    def _keep_truth(self, *, first: bool) -> None:
        """Read all messages of the topic, before it is deleted. The first run tells where it began."""
        begun: dict[str, int] = {}
        if first:
            path = self._root / "state/checkpoints/_begins/orders.json"
            begun = json.loads(path.read_text())["offsets"][TOPIC]["broker-a"]
        self._ends = {place: self._sockets.max_offset(place) for place in self._places()}
        for place, end in self._ends.items():
            for message in self._sockets.read(place, 0, end, group="judge"):
                self._archived[message.body] += 1
                if message.queue_offset >= begun.get(str(place.queue_id), 0):
                    self._expected[message.body] += 1

    def _judge(self) -> None:
        good = [b'{"number": %d}' % number for number in self._column("good", "number")]
        bad = self._column("bad", "body")
        compare("the tables", Counter(good) + Counter(bad), self._expected)
        compare("the archive", Counter(self._column("archive", "body")), self._archived)
        self._tally.messages, self._tally.bad_rows = self._archived.total(), len(bad)

    def _column(self, folder: str, name: str) -> list[Any]:
        table = ds.dataset(self._root / folder, partitioning="hive").to_table([name])
        found: list[Any] = table[name].to_pylist()
        return found


def notices(said: str, flow: str) -> bool:
    """True if a run says of this very flow that the topic is another one."""
    return re.search(rf"^kerolox: flow {flow} failed: .*{ANEW}", said, re.MULTILINE) is not None


def compare(where: str, found: Counter[bytes], expected: Counter[bytes]) -> None:
    if found != expected:
        missing, extra = expected - found, found - expected
        raise Violation(
            f"{where}: of {expected.total()} messages {missing.total()} are missing and {extra.total()} too "
            f"many: {sorted(missing)[:5]}, {sorted(extra)[:5]}"
        )
