"""A leader and a follower, each of them ours or Apache's: whoever follows whom, it has everything afterwards.

The same story is told to every pair, with a leader that waits for nobody and with one that waits for its
follower. An empty follower catches up; it is killed and misses something, also a file's end; it is back,
catches up and follows live. Then both logs have the same bytes, and the follower the same queues, topics,
groups and progress. Apache's own pairs are the measure: where they do otherwise, the tables below say it.

Most of the time everybody waits for somebody, so all stories are told at the same time.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import NamedTuple

import pytest

from kerolox.protocol.codes import RequestCode

from .conftest import Factory
from .driver import JavaDriver
from .jars import Jars
from .ours import OurBroker, OurNameServer
from .processes import JavaBroker, JavaNameServer
from .replicas import DELAY_TOPIC, Replica, assert_same_logs, differences, eventually
from .store_writer import BROKER_SIZES, LOG_FILE_BYTES

pytestmark = pytest.mark.timeout(600)

KINDS = ("ours", "apache")
MODES = ("async", "sync")
SLAVE_NOT_AVAILABLE = 11
FLUSH_SLAVE_TIMEOUT = 12

# Which file of its leader's log is the first an empty follower gets. One of ours asks for all, and a leader
# of ours sends all to who has nothing. Between Apache's it is the last file: what was before stays behind.
FIRST_COPIED = {
    ("ours", "ours"): 0,
    ("ours", "apache"): 0,
    ("apache", "ours"): 0,
    ("apache", "apache"): -1,
}
# The answer to a send that is stored, while a leader that waits for its follower has none. RocketMQ 5 waits
# for one until slaveTimeout is over; ours says so at once, as RocketMQ 4 does.
ALONE = {"ours": SLAVE_NOT_AVAILABLE, "5": FLUSH_SLAVE_TIMEOUT, "4": SLAVE_NOT_AVAILABLE}
# Topics and groups of the broker itself. Ours has those of RocketMQ 5, also where RocketMQ 4 leads.
OWN_OF_OURS = re.compile(r"topic (rmq_sys_|RMQ_SYS_TRANS_)|group CID_RMQ_SYS_TRANS$")

BODY = bytes(range(200)) * 100
FILLS_A_FILE = LOG_FILE_BYTES // len(BODY) + 1  # messages of that size
NO_WAIT = {"WAIT": "false"}
# How long a leader waits for its follower. While both are there, nothing is to time out on a busy machine.
PATIENT_MS = 60_000
IMPATIENT_MS = 300
STARTS_AT_ONCE = 2  # of Java processes: each wants a core for seconds
SETTINGS: dict[str, object] = {
    **BROKER_SIZES,
    "brokerIP2": "127.0.0.1",
    "slaveTimeout": PATIENT_MS,
    # Apache's follower says how far it is when this is over, not when it has connected.
    "haSendHeartbeatInterval": 1000,
    # Each time, Apache's broker looks through megabytes.
    "timerFlushIntervalMs": 5000,
}
ROLES = {
    "async": {"brokerRole": "ASYNC_MASTER"},
    "sync": {"brokerRole": "SYNC_MASTER", "inSyncReplicas": 2},
    "follower": {"brokerRole": "SLAVE", "brokerId": 1, "slaveReadEnable": True},
}


class Row(NamedTuple):
    leader: str
    follower: str
    mode: str

    def __str__(self) -> str:
        return f"{self.leader}-leads-{self.follower}-{self.mode}"


ROWS = [Row(*each) for each in product(KINDS, KINDS, MODES)]


class Pair:
    """The two brokers of a row, and what is told to them."""

    def __init__(
        self,
        row: Row,
        java: Factory,
        driver: JavaDriver,
        home: Path,
        nameserver: str,
        starting: threading.Semaphore,
    ) -> None:
        self.row = row
        self._driver = driver
        self._starting = starting
        self._java = java
        self._home = home
        self._nameserver = nameserver
        self._attributes = "" if java.jars.is_4x else "+message.type=NORMAL"  # RocketMQ 4 knows none
        self.leader = self._replica(row.leader, row.mode)
        self.follower = self._replica(row.follower, "follower")
        self.alone = 0  # what sends are answered while no follower is there
        if row.mode == "sync":
            self.alone = ALONE["ours" if row.leader == "ours" else java.jars.version[0]]

    def _replica(self, kind: str, role: str) -> Replica:
        settings = {**SETTINGS, **ROLES[role]}
        if kind == "ours":
            return Replica(
                OurBroker(self._home / role, self._nameserver, name=str(self.row), properties=settings)
            )
        # A follower of RocketMQ 5 asks for tables a minute after its start.
        soon = {"peers.tables.soon": "true"} if role == "follower" and not self._java.jars.is_4x else {}
        made = self._java.broker(
            self._nameserver, start=False, name=str(self.row), properties=settings, system=soon
        )
        made.heap = (48, 192)
        return Replica(made)

    def start(self, which: Replica) -> None:
        if isinstance(which.process, JavaBroker):
            with self._starting:
                which.process.start()
        else:
            which.process.start()

    def finish(self) -> None:
        for each in (self.leader, self.follower):
            each.process.finish()

    # --- the story ------------------------------------------------------------------------------------

    def tell(self) -> None:
        leader, follower = self.leader, self.follower
        if self.row.mode == "sync":
            self.write_history()
        self.start(leader)
        self.leader_waits(IMPATIENT_MS)
        self.write_before()

        self.start(follower)
        self.caught_up()
        begin = self.check_begin()
        self.leader_waits(PATIENT_MS)
        self.send_small()

        self.leader_waits(IMPATIENT_MS)
        follower.process.kill()
        self.write_while_away()

        self.start(follower)
        self.caught_up()
        assert follower.begin == begin
        self.leader_waits(PATIENT_MS)
        for _ in range(10):
            self.send_small()
            self.caught_up()
        self.has_tables()
        self.shown()

        end = leader.end
        assert follower.end == end
        # All that Apache's brokers wrote is in their files already, and their stops take long.
        for each in (follower, leader):
            if isinstance(each.process, JavaBroker):
                each.process.kill()
            else:
                assert each.process.stop() == 0
        assert_same_logs(leader, follower, begin, end)
        written = leader.entries(begin)
        assert {topic for topic, _ in written} >= {"first", "second", "later", DELAY_TOPIC}
        assert follower.entries(begin) == written

    def write_history(self) -> None:
        """The leader will have a log whose first file is there no more."""
        settings = {**BROKER_SIZES, "storePathRootDir": self.leader.store}
        name = f"before-{self.row}"
        before = OurBroker(self._home / "before", self._nameserver, name=name, properties=settings)
        before.start()
        for _ in range(FILLS_A_FILE * 3 // 2):
            assert Replica(before).send("history", BODY) == 0
        first = min((self.leader.store / "commitlog").iterdir())
        os.utime(first, (0, 0))  # it is older than fileReservedTime
        Replica(before).done(RequestCode.DELETE_EXPIRED_COMMITLOG)
        eventually(lambda: not first.exists(), before.tail)
        assert before.stop() == 0

    def write_before(self) -> None:
        """Topics, groups and progress, and more than two files of messages."""
        leader = self.leader
        for topic in ("first", "second", "gone"):
            leader.create_topic(topic, self._attributes)
        leader.create_group("group", retries=3)
        self.write_files("first", files=2)
        assert leader.send("first", b"nobody has it yet") == self.alone
        self.delayed("second", 3)
        leader.commit("group", "first", 0, 2)
        leader.commit("group", "second", 1, 1)

    def write_while_away(self) -> None:
        """The same again, over the end of a file, and tables change."""
        leader = self.leader
        # Who waits already when the connection breaks may be told otherwise than who comes then.
        eventually(lambda: self.send_alone() == self.alone, leader.process.tail)
        file = leader.end // LOG_FILE_BYTES
        self.write_files("second", files=1)
        assert leader.end // LOG_FILE_BYTES > file
        leader.create_topic("later", self._attributes)
        leader.delete_topic("gone")
        leader.create_group("group", retries=5)
        leader.create_group("another", retries=1)
        assert leader.send("later", b"x", 2, **NO_WAIT) == 0
        self.delayed("first", 2)
        leader.commit("group", "first", 0, 5)
        leader.commit("another", "later", 2, 1)

    def leader_waits(self, time_ms: int) -> None:
        """Ours does not: what it answers does not depend on it."""
        if self.row.leader == "apache":
            self.leader.set(f"slaveTimeout={time_ms}")

    def send_alone(self) -> int:
        code = self.leader.send("first", b"alone")
        assert bool(code) == bool(self.alone), code
        return code

    def send_small(self) -> None:
        """With both there, each gets what its sender wants."""
        for number in range(5):
            assert self.leader.send("second", b"small %d" % number, number % 3, TAGS="small") == 0

    def write_files(self, topic: str, files: int) -> None:
        for number in range(files * FILLS_A_FILE):
            properties = {"KEYS": f"key{number}", "TAGS": "AB"[number % 2], **NO_WAIT}
            assert self.leader.send(topic, BODY[: -number or None], number % 3, **properties) == 0

    def delayed(self, topic: str, count: int) -> None:
        """Messages that come after a second; wait until they have come, and are counted."""
        leader = self.leader
        queue = leader.max_offset(topic, 1)
        waiting = leader.max_offset(DELAY_TOPIC, 0)
        for number in range(count):
            assert leader.send(topic, b"delayed %d" % number, 1, DELAY=1, **NO_WAIT) == 0
        eventually(lambda: leader.max_offset(topic, 1) == queue + count, leader.process.tail)
        eventually(lambda: leader.delays().get(1) == waiting + count, leader.delays)

    def caught_up(self) -> None:
        leader, follower = self.leader, self.follower

        def same() -> bool:
            figures = follower.figures()
            return figures["commitLogMaxOffset"] == str(leader.end) and figures["dispatchBehindBytes"] == "0"

        eventually(same, lambda: (leader.end, follower.figures(), follower.process.tail()))

    def check_begin(self) -> int:
        """Where the follower's log begins, and that it is the file it should."""
        leader, row = self.leader, self.row
        begin = leader.begin
        assert begin == (LOG_FILE_BYTES if row.mode == "sync" else 0)
        last = leader.end - leader.end % LOG_FILE_BYTES
        assert last > begin + LOG_FILE_BYTES
        expected = (begin, last)[FIRST_COPIED[row.leader, row.follower]]
        assert self.follower.begin == expected
        return expected

    def has_tables(self) -> None:
        leader, follower = self.leader, self.follower
        tables = leader.tables()
        assert tables.keys() >= {"topic first", "topic second", "topic later", "group another"}
        assert "topic gone" not in tables
        assert tables["group group"].retry_max_times == 5
        assert tables["progress first@group"] == {0: 5}
        assert tables["progress later@another"] == {2: 1}
        eventually(lambda: not self.other_tables(), self.other_tables)
        delays = leader.delays()
        assert delays[1] == 5
        eventually(lambda: follower.saved_delays() == delays, lambda: (follower.saved_delays(), delays))

    def other_tables(self) -> list[tuple[str, object, object]]:
        """What the follower does not have as the leader has it."""
        found = differences(self.leader.tables(), self.follower.tables())
        of_its_own = self._java.jars.is_4x and (self.row.leader, self.row.follower) == ("apache", "ours")
        return [each for each in found if not (of_its_own and OWN_OF_OURS.match(each[0]))]

    def shown(self) -> None:
        """What Apache's tool prints of both, and ours."""
        if self._java.jars.is_4x:
            return  # that has no such command
        leader, follower = self.leader, self.follower
        end = leader.end
        text = self._driver.mqadmin("haStatus", "-n", self._nameserver, "-b", leader.address)
        for line in (f"#MasterCommitLogMaxOffset\t{end}", "#SlaveNum\t1", "#InSyncSlaveNum\t1"):
            assert line in text.splitlines(), text
        assert re.search(rf"^127\.0\.0\.1:\d+ +{end} +0 +[\d.]+ +OK +{end}\s*$", text, re.MULTILINE), text
        text = self._driver.mqadmin("haStatus", "-n", self._nameserver, "-b", follower.address)
        copied_from = f"127.0.0.1:{leader.process.port + 1}"
        for line in (f"#MasterAddr\t{copied_from}", f"#CommitLogMaxOffset\t{end}"):
            assert line in text.splitlines(), text
        assert re.search(r"^#LastReadTime\t20\d\d-", text, re.MULTILINE), text
        # A process, for the stories are threads of this one, and share its standard output.
        words = [sys.executable, "-m", "kerolox", "broker", "followers", "-b", leader.address, "--json"]
        done = subprocess.run(words, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        (row,) = json.loads(done.stdout)["followers"]
        assert (row["acked"], row["behindBytes"], row["inSync"]) == (end, 0, True)


@pytest.fixture(scope="module")
def our_nameserver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OurNameServer]:
    made = OurNameServer(tmp_path_factory.mktemp("nameserver"))
    made.start()
    yield made
    made.finish()


@pytest.fixture(scope="module")
def stories(
    request: pytest.FixtureRequest,
    peers: Jars,
    java_driver: JavaDriver,
    java_nameserver: JavaNameServer,
    our_nameserver: OurNameServer,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[dict[Row, Future[None]]]:
    """The stories of this run, all begun. A follower joins a cluster of its leader's kind."""
    wanted = {item.callspec.params.get("row") for item in request.session.items if hasattr(item, "callspec")}
    home = tmp_path_factory.mktemp("pairs")
    java = Factory(peers, home)
    starting = threading.Semaphore(STARTS_AT_ONCE)
    nameservers = {"ours": our_nameserver.address, "apache": java_nameserver.address}
    pairs = [
        Pair(row, java, java_driver, home / str(row), nameservers[row.leader], starting)
        for row in ROWS
        if row in wanted
    ]
    with ThreadPoolExecutor(max_workers=len(pairs)) as threads:
        yield {pair.row: threads.submit(pair.tell) for pair in pairs}
        for pair in pairs:
            pair.finish()
    for pair in pairs:
        pair.finish()  # what a story had begun to start when the run ended


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_a_follower_has_all_of_its_leader(row: Row, stories: dict[Row, Future[None]]) -> None:
    stories[row].result()
