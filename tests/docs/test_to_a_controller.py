"""A master and its slave move under a controller and back, by the steps of docs/OPERATIONS.md: its commands
in their order, and its lines of configuration. Stores stay where they are, nothing acknowledged is lost."""

from __future__ import annotations

import json
import os
import re
import shlex
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from kerolox.cli.main import app
from kerolox.protocol.codes import RequestCode
from tests.peers.ours import OurNameServer, OurServer
from tests.peers.wire import request
from tests.rig.logs import read_log, records_of
from tests.rig.ports import free_ports

ROOT = Path(__file__).parents[2]
TITLE = "### From master and slave to a controller, and back"
SECTION = (ROOT / "docs" / "OPERATIONS.md").read_text().partition(TITLE)[2].partition("\n### ")[0]
COMMANDS = re.findall(r"^\s*\$ kerolox (.*)$", SECTION, re.MULTILINE)
LINES = [
    line.strip()
    for block in re.findall(r"```properties\n(.*?)```", SECTION, re.DOTALL)
    for line in block.strip().splitlines()
]
TOPIC = "orders"
WAIT_S = 60.0


def until(ready: Callable[[], bool], what: Callable[[], object]) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not ready():
        assert time.monotonic() < deadline_s, what()
        time.sleep(0.05)


class BrokerFiles:
    """A broker by its configuration file: it is started with that, and its store stays."""

    def __init__(self, home: Path, nameserver: str, role: dict[str, object]) -> None:
        home.mkdir()
        self.conf = home / "broker.conf"
        self.store = home / "store"
        self.port = free_ports(1, offsets=(0, -2, 1))[0]
        self.address = f"127.0.0.1:{self.port}"
        self._common: dict[str, object] = {
            "brokerName": "broker-a", "brokerIP1": "127.0.0.1", "bindAddress": "127.0.0.1",
            "listenPort": self.port, "namesrvAddr": nameserver, "storePathRootDir": self.store,
            "mappedFileSizeCommitLog": 4 << 20, "mappedFileSizeConsumeQueue": 60_000, "maxIndexNum": 40_000,
            "maxHashSlotNum": 10_000, "diskSpaceFreeEnough": 64 << 20,
        }  # fmt: skip
        self.write(role)
        self.server: OurServer | None = None

    def write(self, role: dict[str, object], lines: tuple[str, ...] = ()) -> None:
        rows = [f"{key}={value}" for key, value in {**self._common, **role}.items()]
        self.conf.write_text("\n".join([*rows, *lines]) + "\n")

    def start(self, command: str) -> None:
        words = [*shlex.split(command), "--parent", str(os.getpid())]
        self.server = OurServer(self.conf.parent, words, rf"ready on 127\.0\.0\.1:{self.port}\b")
        self.server.start()

    def stop(self) -> None:
        assert self.server is not None
        assert self.server.stop() == 0

    def kill(self) -> None:
        if self.server is not None:
            self.server.kill()

    def send(self, body: bytes) -> int:
        fields = {
            "producerGroup": "shop", "topic": TOPIC, "defaultTopic": "TBW102", "defaultTopicQueueNums": "1",
            "queueId": "0", "sysFlag": "0", "bornTimestamp": "0", "flag": "0", "properties": "",
            "reconsumeTimes": "0", "unitMode": "false", "batch": "false",
        }  # fmt: skip
        return request(self.address, RequestCode.SEND_MESSAGE, fields, body, timeout=10.0).code

    def log_file(self) -> tuple[int, str]:
        """Of the log: the first file's inode and name."""
        first = min((self.store / "commitlog").glob("[0-9]*"))
        return first.stat().st_ino, first.name


class Move:
    """The brokers, and who is given the page's commands."""

    def __init__(self, home: Path) -> None:
        self.nameserver = OurNameServer(home / "nameserver")
        self.nameserver.start()
        self.one = BrokerFiles(home / "one", self.nameserver.address, MASTER)
        self.two = BrokerFiles(home / "two", self.nameserver.address, SLAVE)
        self.controller = f"127.0.0.1:{free_ports(1)[0]}"
        self.places = {
            "/etc/kerolox/broker-a-s.conf": str(self.two.conf),
            "/etc/kerolox/broker-a.conf": str(self.one.conf),
            "/var/lib/kerolox-controller": str(home / "controller"),
            "10.0.0.9:9878": self.controller,
            "10.0.0.9:9876": self.nameserver.address,
        }
        self.sent: list[bytes] = []
        self._home = home
        self._server: OurServer | None = None

    def here(self, text: str) -> str:
        for of_the_page, place in self.places.items():
            text = text.replace(of_the_page, place)
        return text

    def serve_controller(self, command: str) -> None:
        words = [*shlex.split(self.here(command)), "--parent", str(os.getpid())]
        self._server = OurServer(self._home / "controller", words, rf"ready on {self.controller}")
        self._server.start()

    def ask(self, command: str) -> Any:
        """Return the output of a command, or its error."""
        done = CliRunner().invoke(app, [*shlex.split(self.here(command)), "--json"])
        return json.loads(done.stdout) if done.exit_code == 0 else done.stderr

    def send(self, broker: BrokerFiles, count: int) -> None:
        """All of them are acknowledged: by both brokers, where both are there."""
        for _ in range(count):
            body = b"message %d" % len(self.sent)
            until(lambda now=body: broker.send(now) == 0, lambda: self.tails())
            self.sent.append(body)

    def wait_slave(self, command: str) -> None:
        def in_sync() -> bool:
            told = self.ask(command)
            if isinstance(told, str):
                return False
            rows = told["followers"]
            return len(rows) == 1 and rows[0]["inSync"] and not rows[0]["behindBytes"]

        until(in_sync, self.tails)

    def wait_status(self, command: str, master: BrokerFiles, in_sync: int) -> None:
        def shown() -> bool:
            told = self.ask(command)
            if isinstance(told, str):
                return False
            row = told["brokers"]["broker-a"]
            counted = sum(each["inSync"] for each in row["replicas"])
            return row["address"] == master.address and counted == in_sync

        until(shown, lambda: (self.ask(command), self.tails()))

    def tails(self) -> str:
        return "\n".join(each.server.tail() for each in (self.one, self.two) if each.server is not None)

    def finish(self) -> None:
        for broker in (self.one, self.two):
            broker.kill()
        if self._server is not None:
            self._server.kill()
        self.nameserver.kill()


MASTER: dict[str, object] = {"brokerRole": "SYNC_MASTER", "brokerId": 0}
SLAVE: dict[str, object] = {"brokerRole": "SLAVE", "brokerId": 1}


@pytest.fixture
def move(tmp_path: Path) -> Iterator[Move]:
    made = Move(tmp_path)
    yield made
    made.finish()


def test_a_pair_moves_under_a_controller_and_back(move: Move) -> None:
    one, two = move.one, move.two
    (serve_controller, followers, start_one, status_one, start_two, status_two, clean) = COMMANDS
    assert start_one.startswith("broker -c")
    one.start(move.here(start_one))
    two.start(move.here(start_two))
    move.wait_slave(followers)
    move.send(one, 100)
    files = [broker.log_file() for broker in (one, two)]

    # To the controller.
    move.serve_controller(serve_controller)
    move.wait_slave(followers)
    two.stop()
    one.stop()
    assert LINES == ["enableControllerMode=true", "controllerAddr=10.0.0.9:9878"]
    for broker, role in ((one, MASTER), (two, SLAVE)):
        broker.write(role, tuple(map(move.here, LINES)))
    one.start(move.here(start_one))
    move.wait_status(status_one, one, in_sync=1)
    move.send(one, 50)
    two.start(move.here(start_two))
    move.wait_status(status_two, one, in_sync=2)
    move.send(one, 50)
    one.kill()  # which is what all this is for
    move.wait_status(status_two, two, in_sync=1)
    move.send(two, 50)
    one.start(move.here(start_one))
    move.wait_status(status_two, two, in_sync=2)
    move.send(two, 10)

    # And back, with the other one as the master.
    one.stop()
    two.stop()
    two.write(MASTER)
    one.write(SLAVE)
    for broker in (one, two):
        for path in (broker.store / "brokerIdentity", *broker.store.glob("epochFileCheckpoint*")):
            path.unlink()
    assert not isinstance(said := move.ask(clean), str), said
    two.start(move.here(start_two))
    one.start(move.here(start_one))
    move.wait_slave(followers)
    move.send(two, 50)

    assert [broker.log_file() for broker in (one, two)] == files, "nothing was copied to other files"
    end = log_end(two)
    for broker in (one, two):
        broker.stop()
    logs = [read_log(broker.store, end) for broker in (one, two)]
    assert logs[0] == logs[1]
    bodies = [record.body for record in records_of(logs[0]) if record.topic == TOPIC]
    assert list(dict.fromkeys(bodies)) == move.sent


def log_end(broker: BrokerFiles) -> int:
    table = json.loads(request(broker.address, RequestCode.GET_BROKER_RUNTIME_INFO).body)["table"]
    return int(table["commitLogMaxOffset"])
