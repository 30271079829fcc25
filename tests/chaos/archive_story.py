"""A topic is archived while it is written to, and the command that does it is killed, again and again.

What the broker holds at the end is the truth: the archive has each of its messages once, by queue and offset,
with its body. Nothing that killed runs wrote is left behind.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import psutil

from kerolox.client.messages import Queue
from kerolox.client.sockets.socket_cluster import SocketCluster
from kerolox.pipeline.archive.files import Format
from kerolox.pipeline.archive.iceberg import IcebergArchive
from kerolox.pipeline.archive.log import ParquetArchive
from kerolox.pipeline.lake.iceberg_catalog import CatalogPlace
from kerolox.pipeline.lake.remote_store import RemoteStore
from kerolox.pipeline.lake.staging import OWN_FOLDER
from tests.peers.ours import OurCluster
from tests.rig.iceberg_rest import rest_catalog
from tests.rig.s3_server import S3Server, s3_server

from .story import GROUP, ORDERS, QUEUES, ROOT, WORKER, Sender, Violation

TABLE = "lake.orders"
START_S = 240.0
Row = tuple[int, int, bytes]  # queue, offset, body


@dataclass
class ArchiveTally:
    kills: Counter[str] = field(default_factory=Counter)
    runs: int = 0
    ended_by_themselves: int = 0  # of an error that the kill of another process caused
    messages: int = 0
    seconds: float = 0.0

    def dump(self) -> dict[str, Any]:
        return {
            "kills": dict(sorted(self.kills.items())),
            "runs": self.runs,
            "runs_ended_by_an_error": self.ended_by_themselves,
            "messages": self.messages,
            "missing_or_twice": 0,  # the first one ends the run with an error
            "files_left_behind": 0,  # the same
            "seconds": round(self.seconds),
        }


class Target(Protocol):
    """Where the messages go: how the command is told, what a reader finds, and what nobody ought to find."""

    @property
    def words(self) -> Sequence[str]: ...
    def rows(self) -> Counter[Row]: ...
    def strays(self) -> list[str]: ...


class OnS3:
    """Parquet files in an S3 server."""

    def __init__(self, server: S3Server) -> None:
        self._storage: RemoteStore = server.storage("archive")

    @property
    def words(self) -> Sequence[str]:
        return ["--to", self._storage.address]

    def rows(self) -> Counter[Row]:
        import pyarrow.dataset as ds

        filesystem, path = self._storage.arrow()
        read = ds.dataset(path, partitioning="hive", filesystem=filesystem)
        return _rows(read.to_table(columns=["queue_id", "queue_offset", "body"]))

    def strays(self) -> list[str]:
        known = set(ParquetArchive(self._storage).files())
        there = [file.path for file in self._storage.files()]
        staged = [path for path in there if path.startswith(f"{OWN_FOLDER}/staging")]
        return staged + [p for p in there if not p.startswith(OWN_FOLDER) and p not in known]


class InIceberg:
    """An Iceberg table whose warehouse is an S3 server."""

    def __init__(self, place: CatalogPlace) -> None:
        self._place = place

    @property
    def words(self) -> Sequence[str]:
        options = [
            word
            for name, value in self._place.options.items()
            for word in ("--catalog-option", f"{name}={value}")
        ]
        warehouse = ["--warehouse", self._place.warehouse] if self._place.warehouse else []
        return ["--iceberg", TABLE, "--catalog-uri", self._place.uri, *options, *warehouse]

    def rows(self) -> Counter[Row]:
        fields = ("queue_id", "queue_offset", "body")
        return _rows(self._place.open().load_table(TABLE).scan(selected_fields=fields).to_arrow())

    def strays(self) -> list[str]:
        made = IcebergArchive(TABLE, self._place)
        made.open(Format())
        there = [file.path for file in made.storage.files() if not file.path.startswith(OWN_FOLDER)]
        named = made.named()
        made.close()
        return [path for path in there if path not in named]


def _rows(table: Any) -> Counter[Row]:
    columns = (table[name].to_pylist() for name in ("queue_id", "queue_offset", "body"))
    return Counter(zip(*columns, strict=True))


@contextmanager
def target(kind: str, root: Path, server: S3Server) -> Iterator[Target]:
    """``parquet on s3``, ``iceberg by sql`` or ``iceberg by rest``, both with their files on S3."""
    if kind == "parquet on s3":
        yield OnS3(server)
        return
    told = {"s3.endpoint": server.endpoint, "s3.region": "us-east-1"}
    warehouse = f"{server.bucket()}/warehouse"
    if kind == "iceberg by sql":
        yield InIceberg(CatalogPlace(f"sqlite:///{root}/catalog.db", warehouse=warehouse, options=told))
        return
    own = {
        "io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
        "s3.path-style-access": "true",
        "client.region": "us-east-1",
    }
    with rest_catalog(root / "rest", warehouse, {**told, **own}) as address:
        yield InIceberg(CatalogPlace(address, options=told))


class Command:
    """``kerolox pipeline archive --follow``, with its JVM and its workers."""

    def __init__(self, words: Sequence[str], log: Path) -> None:
        self._words = [sys.executable, "-m", "kerolox", "pipeline", "archive", *words]
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None
        self._before: list[subprocess.Popen[bytes]] = []

    def start(self, *more: str) -> None:
        with open(self._log, "ab") as log:
            self._process = subprocess.Popen(
                [*self._words, *more], stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=ROOT,
                start_new_session=True,
            )  # fmt: skip
        self._before.append(self._process)

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def ends(self) -> int:
        assert self._process is not None
        return self._process.wait(START_S)

    def processes(self, part: str) -> list[psutil.Process]:
        """``jvm``, or ``worker``: the Python processes that carry out tasks."""
        assert self._process is not None
        found = []
        with suppress(psutil.NoSuchProcess):
            for each in psutil.Process(self._process.pid).children(recursive=True):
                with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                    words = " ".join(each.cmdline())
                    parent = " ".join(psutil.Process(each.ppid()).cmdline())
                    if part == "jvm" and "SparkSubmit" in words:
                        found.append(each)
                    if part == "worker" and WORKER in words and WORKER in parent:
                        found.append(each)
        return found

    def kill(self, *, all_of_it: bool) -> None:
        """The driver alone, whose tasks may go on for a moment, or all its processes at once."""
        assert self._process is not None
        if all_of_it:
            os.killpg(self._process.pid, signal.SIGKILL)
        else:
            os.kill(self._process.pid, signal.SIGKILL)
        self._process.wait(30)

    def clear(self) -> None:
        """Nothing of any run is left."""
        for process in self._before:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(30)

    def tail(self) -> str:
        return self._log.read_text(encoding="utf-8", errors="replace")[-4000:]


class ArchiveStory:
    """A broker, a sender, an archive, and a seed."""

    def __init__(self, root: Path, kind: str, seed: int, tally: ArchiveTally) -> None:
        self._root = root
        self._kind = kind
        self._chance = random.Random(f"archive-{kind}-{seed}")
        self._tally = tally

    def run(self, victims: Sequence[str]) -> None:
        began_s = time.monotonic()
        self._root.mkdir(parents=True)
        with ExitStack() as stack:
            server = stack.enter_context(s3_server())
            os.environ.update(server.environment)
            self._target = stack.enter_context(target(self._kind, self._root, server))
            cluster = OurCluster(self._root / "cluster", settings=["brokerName=broker-a"])
            stack.callback(cluster.kill)
            cluster.start()
            self._nameserver = cluster.nameserver
            create = ["topic", "create", ORDERS, "--queues", str(QUEUES), "-n", self._nameserver]
            subprocess.run([sys.executable, "-m", "kerolox", *create], check=True, capture_output=True)
            self._sockets = stack.enter_context(SocketCluster(self._nameserver))
            words = ["--topic", ORDERS, "-n", self._nameserver, "--group", GROUP, "--master", "local[2]"]
            self._command = Command([*words, *self._target.words], self._root / "archive.log")
            stack.callback(self._command.clear)
            sender = Sender(self._nameserver)
            sender.start()
            stack.callback(sender.stop)
            for victim in victims:
                self._see_it_works()
                self._strike(victim)
            sender.stop()
            self._judge()
        self._tally.seconds += time.monotonic() - began_s

    # --- kills ----------------------------------------------------------------------------------------

    def _start(self) -> None:
        self._tally.runs += 1
        self._command.start("--follow", "--interval", "0.1s")

    def _see_it_works(self) -> None:
        """It runs, has committed something since, and is then somewhere within a round."""
        before, deadline_s = self._done(), time.monotonic() + START_S
        if not self._command.running:
            self._start()
        while self._done() <= before:
            if not self._command.running:
                self._tally.ended_by_themselves += 1
                self._start()
            if time.monotonic() > deadline_s:
                raise Violation(f"the archive does not go on\n{self._command.tail()}")
            time.sleep(0.05)
        time.sleep(self._chance.uniform(0.0, 0.8))

    def _strike(self, victim: str) -> None:
        self._tally.kills[victim] += 1
        if victim in ("command", "command with all its processes"):
            self._command.kill(all_of_it=victim != "command")
            return
        deadline_s = time.monotonic() + 30
        while not (found := self._command.processes(victim)):
            if time.monotonic() > deadline_s or not self._command.running:
                raise Violation(f"there is no {victim} to kill\n{self._command.tail()}")
            time.sleep(0.01)
        with suppress(psutil.NoSuchProcess):
            self._chance.choice(found).kill()
        if victim == "jvm":
            self._command.ends()
            self._tally.ended_by_themselves += 1

    def _done(self) -> int:
        """How many messages the archive has told the broker of."""
        return sum(
            at or 0 for at in self._sockets.all_committed(self._places(), GROUP).values() if (at or 0) > 0
        )

    def _places(self) -> list[Queue]:
        return [Queue(ORDERS, "broker-a", number) for number in range(QUEUES)]

    # --- the verdict ----------------------------------------------------------------------------------

    def _judge(self) -> None:
        self._command.clear()
        self._tally.runs += 1
        self._command.start("--once")
        if self._command.ends():
            raise Violation(f"the last run failed\n{self._command.tail()}")
        expected = self._expected()
        found = self._target.rows()
        if found != expected:
            missing, extra = expected - found, found - expected
            raise Violation(
                f"{self._kind}: of {expected.total()} messages {missing.total()} are missing and "
                f"{extra.total()} too many: {list(missing)[:5]}, {list(extra)[:5]}\n{self._command.tail()}"
            )
        if strays := self._target.strays():
            raise Violation(f"{self._kind}: killed runs left {len(strays)} files: {strays[:5]}")
        self._tally.messages += expected.total()

    def _expected(self) -> Counter[Row]:
        found: Counter[Row] = Counter()
        for place in self._places():
            start, end = self._sockets.min_offset(place), self._sockets.max_offset(place)
            for message in self._sockets.read(place, start, end, group="judge"):
                found[place.queue_id, message.queue_offset, message.body] += 1
        return found
