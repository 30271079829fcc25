"""``kerolox cluster up`` with real processes: it starts, mends and ends a cluster, and tells programs."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from kerolox.blocking import Message, Producer, PullConsumer
from kerolox.cli.main import app
from kerolox.errors import KeroloxError
from kerolox.supervise.folder import ClusterFolder
from kerolox.supervise.layouts import LAYOUTS, layout
from tests.controller.etcd_kit import require_etcd

KEROLOX = [sys.executable, "-m", "kerolox"]
ENVIRONMENT = {key: value for key, value in os.environ.items() if key != "NAMESRV_ADDR"}


class UpProcess:
    """One ``kerolox cluster up --json``, on free ports."""

    def __init__(self, data: Path, *args: str) -> None:
        self.data = data
        self.process = subprocess.Popen(
            [*KEROLOX, "cluster", "up", "--data", str(data), "--json", *args],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT,
        )  # fmt: skip
        self.up = self.event()

    @property
    def nameserver(self) -> str:
        return str(self.up["nameserver"])

    def event(self) -> dict[str, Any]:
        """The next one."""
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        line = self.process.stdout.readline()
        assert line, self.process.stderr.read()
        found: dict[str, Any] = json.loads(line)
        return found

    def stop(self, number: int = signal.SIGTERM) -> int:
        if self.process.poll() is None:
            self.process.send_signal(number)
        self.process.communicate(timeout=90)
        return self.process.returncode


def servers(data: Path) -> dict[str, dict[str, Any]]:
    return {one["name"]: one for one in json.loads((data / "cluster.json").read_text())}


def lives(pid: int) -> bool:
    """Not so one that has ended and whose parent has not heard of it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def until(reached: Callable[[], bool], what: Callable[[], object] = lambda: "") -> None:
    end_s = time.monotonic() + 60
    while not reached():
        assert time.monotonic() < end_s, what()
        time.sleep(0.02)


def run(*args: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, args, env={"NAMESRV_ADDR": None})
    return result.exit_code, result.stdout + result.stderr


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., UpProcess]]:
    made: list[UpProcess] = []
    data = tmp_path / "cluster"

    def begin(*args: str) -> UpProcess:
        made.append(UpProcess(data, *args))
        return made[-1]

    yield begin
    for one in made:
        one.stop()
    if made:  # a test that is skipped has started none
        until(lambda: all(one["pid"] is None or not lives(one["pid"]) for one in servers(data).values()))


def read(nameserver: str, count: int) -> set[bytes]:
    found: set[bytes] = set()
    with PullConsumer(nameserver, group="readers") as consumer:
        consumer.assign(consumer.queues("T"))
        consumer.seek_all("begin")
        while len(found) < count:
            batch = consumer.poll(20)
            assert batch is not None, f"{len(found)} of {count} came"
            found |= {message.body for message in batch}
    return found


def test_a_lock_of_a_cluster_does_not_follow_a_link(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_bytes(b"precious")
    folder = ClusterFolder(tmp_path / "cluster")
    folder.path.mkdir()
    (folder.path / "cluster.lock").symlink_to(precious)
    with pytest.raises(KeroloxError, match="Remove it if it is a link"):
        folder.take()
    assert precious.read_bytes() == b"precious"


def test_a_leader_that_is_killed_is_started_again_with_its_messages(
    start: Callable[..., UpProcess],
) -> None:
    like = ("--like", "2m-2s-sync", "--nameserver-listen", "127.0.0.1:0")
    up = start(*like)
    assert up.up["event"] == "up"
    assert up.up["servers"] == list(servers(up.data).values())
    before = servers(up.data)
    assert [(one["name"], one["role"], one.get("broker_id")) for one in before.values()] == [
        ("nameserver", "nameserver", None),
        ("broker-a", "leader", 0),
        ("broker-b", "leader", 0),
        ("broker-a-s", "follower", 1),
        ("broker-b-s", "follower", 1),
    ]
    assert all(lives(one["pid"]) for one in before.values())
    sent: set[bytes] = set()
    with Producer(up.nameserver, group="p") as producer:
        for number in range(20):
            receipt = producer.send(Message("T", b"%d" % number))
            assert receipt.status == 0  # SEND_OK: the follower has it
            sent.add(b"%d" % number)
        os.kill(before["broker-a"]["pid"], signal.SIGKILL)
        ended = up.event()
        assert (ended["event"], ended["name"], ended["code"]) == ("ended", "broker-a", -signal.SIGKILL)
        assert ended["pid"] == before["broker-a"]["pid"]
        assert "broker_started" in ended["last_words"]
        again = up.event()
        assert (again["event"], again["name"], again["restarts"]) == ("started", "broker-a", 1)
        after = servers(up.data)["broker-a"]
        assert after["pid"] == again["pid"] != before["broker-a"]["pid"]
        assert lives(after["pid"])
        assert after | {"pid": 0, "restarts": 0} == before["broker-a"] | {"pid": 0, "restarts": 0}
        producer.send(Message("T", b"after"))
    assert read(up.nameserver, len(sent) + 1) == sent | {b"after"}

    code, said = run("cluster", "up", *like, "--data", str(up.data))
    assert code == 1
    assert f"process {up.process.pid} runs a cluster" in said
    shown = json.loads(run("cluster", "status", "--data", str(up.data), "--json")[1])
    assert shown["pid"] == up.process.pid
    assert [one["state"] for one in shown["servers"]] == ["up"] * 5

    assert up.stop() == 0
    assert all(one["pid"] is None and one["state"] == "stopped" for one in servers(up.data).values())
    assert not any(lives(one["pid"]) for one in before.values())
    order = [
        (path.stat().st_mtime_ns, path.stem)
        for path in (up.data / "logs").glob("*.log")
        if path.stat().st_size
    ]
    assert sorted(order)[-1][1] == "nameserver"
    # Ports, and all else, are as they were.
    second = start("--like", "2m-2s-sync")
    ports = {name: one["address"] for name, one in before.items()}
    assert {name: one["address"] for name, one in servers(up.data).items()} == ports
    assert read(second.nameserver, len(sent) + 1) == sent | {b"after"}
    code, said = run("cluster", "down", "--data", str(up.data))
    assert (code, second.process.wait(30)) == (0, 0)
    assert str(second.process.pid) in said


def test_killed_itself_it_leaves_nobody_behind(start: Callable[..., UpProcess]) -> None:
    like = ("--like", "2m-noslave", "--nameserver-listen", "127.0.0.1:0")
    up = start(*like)
    with Producer(up.nameserver, group="p") as producer:
        producer.send(Message("T", b"one"))
    before = servers(up.data)
    up.stop(signal.SIGKILL)
    # At once: it waits for those that are still there.
    second = start(*like)
    assert not any(lives(one["pid"]) for one in before.values())
    assert second.nameserver == up.nameserver
    assert read(second.nameserver, 1) == {b"one"}
    second.stop(signal.SIGKILL)
    until(lambda: not any(lives(one["pid"]) for one in servers(up.data).values()))
    shown = json.loads(run("cluster", "status", "--data", str(up.data), "--json")[1])
    assert shown["pid"] is None
    assert [(one["pid"], one["state"]) for one in shown["servers"]] == [(None, "stopped")] * 3


def test_who_ends_again_and_again_is_started_at_longer_and_longer_intervals(
    start: Callable[..., UpProcess],
) -> None:
    up = start(
        "--like", "2m-noslave", "--nameserver-listen", "127.0.0.1:0", "--set", "flushDiskType=SYNC_FLUSH"
    )
    broker = servers(up.data)["broker-b"]
    config = Path(broker["config"])
    assert "flushDiskType=SYNC_FLUSH" in config.read_text()
    with config.open("a") as file:
        file.write("brokerPermission=nonsense\n")
    os.kill(broker["pid"], signal.SIGKILL)
    ends = [up.event() for _ in range(3)]
    assert [one["event"] for one in ends] == ["ended"] * 3
    pauses = [one["again_in_s"] for one in ends]
    assert pauses == [pauses[0], pauses[0] * 2, pauses[0] * 4]
    for one in ends[1:]:
        assert one["code"] == 1
        assert "brokerPermission = 'nonsense'" in one["last_words"]
        assert one["state"] == "waiting"
    config.write_text(config.read_text().replace("brokerPermission=nonsense\n", ""))
    again = up.event()
    assert (again["event"], again["name"], again["restarts"]) == ("started", "broker-b", 3)


def test_a_server_that_ends_while_others_start_is_started_again(
    start: Callable[..., UpProcess], tmp_path: Path
) -> None:
    data = tmp_path / "cluster"

    def shown(name: str) -> dict[str, Any]:
        return servers(data).get(name, {}) if (data / "cluster.json").exists() else {}

    with ThreadPoolExecutor(1) as beside:
        starting = beside.submit(start, "--like", "2m-noslave", "--nameserver-listen", "127.0.0.1:0")
        until(lambda: bool(shown("broker-b").get("pid")))
        slow = shown("broker-b")
        os.kill(slow["pid"], signal.SIGSTOP)
        try:
            assert slow["state"] == "starting"
            until(lambda: shown("broker-a").get("state") == "up")
            os.kill(shown("broker-a")["pid"], signal.SIGKILL)
            # Its port may have been taken while it was free: then it takes more than one restart.
            until(lambda: shown("broker-a")["restarts"] >= 1 and shown("broker-a")["state"] == "up")
            assert shown("broker-b")["state"] == "starting"
        finally:
            os.kill(slow["pid"], signal.SIGCONT)
        up = starting.result(60)
    told = [up.up]
    while told[-1]["event"] != "up":
        told.append(up.event())
    named = [(one["event"], one.get("name")) for one in told]
    assert set(named[:-2]) == {("ended", "broker-a")}
    assert named[-2:] == [("started", "broker-a"), ("up", None)]


def test_what_it_cannot_do_it_says_before_anything_starts(tmp_path: Path) -> None:
    data = tmp_path / "cluster"
    code, said = run("cluster", "up", "--like", "2m-2s-sink", "--data", str(data))
    assert code == 1
    assert "one of 2m-2s-sync, 2m-2s-async, 2m-noslave" in said
    assert "Did you mean 2m-2s-sync" in said
    code, said = run("cluster", "up", "--like", "2m-noslave", "--data", str(data), "--set", "flushDiskTyp=x")
    assert code == 1
    assert "flushDiskType" in said
    code, said = run("cluster", "up", "--like", "2m-noslave", "--data", str(data), "--nameserver-listen", "x")
    assert code == 1
    assert not data.exists()
    for command in ("status", "down"):
        code, said = run("cluster", command, "--data", str(data))
        assert code == 1
        assert str(data) in said
    data.mkdir()
    (data / "cluster.json").write_text('[{"name": "broker-a", "like": "2m-noslave", "pid": null}]')
    code, said = run("cluster", "up", "--like", "2m-2s-sync", "--data", str(data))
    assert code == 1
    assert f"2m-noslave, the layout of the cluster in {data}" in said


def test_a_cluster_that_does_not_start_says_why_and_ends(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            *KEROLOX, "cluster", "up", "--like", "2m-noslave", "--data", str(tmp_path / "c"), "--json",
            "--nameserver-listen", "127.0.0.1:0", "--set", "storePathCommitLog=/proc/none",
        ],
        capture_output=True, text=True, timeout=120, env=ENVIRONMENT, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    error = json.loads(done.stderr.splitlines()[-1])
    assert error["kind"] == "NotStarted"
    assert "/proc/none" in error["error"]
    assert all(one["pid"] is None for one in servers(tmp_path / "c").values())


@pytest.mark.xdist_group("etcd")
def test_three_brokers_three_controllers_and_etcd(start: Callable[..., UpProcess]) -> None:
    require_etcd()
    up = start(
        "--like", "controller-3", "--controllers", "3", "--nameserver-listen", "127.0.0.1:0",
        "--set", "controllerHeartBeatTimeoutMills=3000",
    )  # fmt: skip
    before = servers(up.data)
    roles = [one["role"] for one in before.values()]
    assert roles == ["nameserver"] + ["etcd"] * 3 + ["controller"] * 3 + ["replica"] * 3
    controllers = ";".join(one["address"] for one in before.values() if one["role"] == "controller")

    def seen() -> dict[str, Any]:
        code, out = run("controller", "status", "-a", controllers, "--json")
        assert code == 0, out
        found: dict[str, Any] = json.loads(out)["brokers"]["broker-a"]
        return found

    def at(address: str) -> int:
        return int(next(one["pid"] for one in before.values() if one["address"] == address))

    broker = seen()
    assert all(one["inSync"] and one["alive"] for one in broker["replicas"])
    with Producer(up.nameserver, group="p") as producer:
        for number in range(10):
            assert producer.send(Message("T", b"%d" % number)).status == 0
        os.kill(before["etcd-0"]["pid"], signal.SIGKILL)
        os.kill(at(broker["address"]), signal.SIGKILL)

        def sends() -> bool:
            try:
                return producer.send(Message("T", b"after")).status == 0
            except KeroloxError:
                return False

        until(sends)
    assert {b"%d" % number for number in range(10)} <= read(up.nameserver, 11)
    until(lambda: run("controller", "status", "-a", controllers)[0] == 0)
    assert seen()["masterEpoch"] > broker["masterEpoch"]
    # Who was killed is there again: etcd's member went with the process that ran it, or its port were taken.
    until(lambda: all(one["state"] == "up" for one in servers(up.data).values()))
    until(lambda: all(one["inSync"] for one in seen()["replicas"]))
    # A member that has lost its disk comes back as a new one: then another one may fail.
    lost = servers(up.data)["etcd-1"]
    os.kill(lost["pid"], signal.SIGKILL)
    for path in Path(lost["data"]).iterdir():
        shutil.rmtree(path)
    until(lambda: servers(up.data)["etcd-1"]["restarts"] and servers(up.data)["etcd-1"]["state"] == "up")
    assert "it was removed from the cluster and joins as a new member" in Path(lost["log"]).read_text()
    os.kill(servers(up.data)["etcd-2"]["pid"], signal.SIGKILL)
    until(lambda: run("controller", "status", "-a", controllers)[0] == 0)
    code, said = run("cluster", "down", "--data", str(up.data))
    assert (code, up.process.wait(60)) == (0, 0), said


def test_controllers_are_asked_for_where_there_are_some(tmp_path: Path) -> None:
    data = tmp_path / "cluster"

    def refused(*words: str) -> str:
        code, said = run("cluster", "up", "--data", str(data), *words)
        assert code == 1
        return said

    assert "= '2m-noslave': expected controller-3" in refused("--like", "2m-noslave", "--controllers", "3")
    assert "expected 1 or 3" in refused("--like", "controller-3", "--controllers", "2")
    assert "etcdEndpoints" in refused("--like", "controller-3", "--etcd", "nonsense")
    assert not data.exists()
    folder = ClusterFolder(data)
    folder.take()
    folder.prepare("controller-3", layout("controller-3", 3), "127.0.0.1:0", {}, "http://10.0.0.1:2379")
    folder.release()
    settings = [folder.settings(f"controller-{number}") for number in range(3)]
    assert [one["controllerDLegerSelfId"] for one in settings] == ["n0", "n1", "n2"]
    assert {one["etcdEndpoints"] for one in settings} == {"http://10.0.0.1:2379"}
    (peers,) = {one["controllerDLegerPeers"] for one in settings}
    addresses = [entry.partition("-")[2] for entry in peers.split(";")]
    assert folder.settings("broker-a-1")["controllerAddr"].split(";") == addresses
    code, said = run("controller", "-c", str(folder.config("controller-1")), "--print-config", "--json")
    assert code == 0
    assert json.loads(said)["controllerCarrier"]["value"] == "etcd"
    for words in (("--controllers", "1"), ("--etcd", "http://10.0.0.2:2379")):
        assert "would lose the controllers' state" in refused("--like", "controller-3", *words)


def test_beside_a_name_server_at_its_usual_port_the_controller_is_where_commands_look_for_it(
    tmp_path: Path,
) -> None:
    host = "127.0.0.77"  # other tests do not listen there

    def controllers(name: str, nameserver: str, count: int = 1) -> list[int]:
        folder = ClusterFolder(tmp_path / name)
        folder.take()
        folder.prepare("controller-3", layout("controller-3", count), nameserver, {}, "http://10.0.0.1:2379")
        folder.release()
        return [
            int(folder.settings(f"controller-{number}")["controllerListenPort"]) for number in range(count)
        ]

    assert controllers("usual", f"{host}:9876") == [9878]
    first, *others = controllers("three", f"{host}:9876", 3)
    assert first == 9878
    assert min(others) >= 10911
    assert controllers("elsewhere", f"{host}:9875") != [9878]
    with socket.create_server((host, 9878)):
        assert controllers("taken", f"{host}:9876") != [9878]
    assert controllers("usual", f"{host}:9876") == [9878]


@pytest.mark.parametrize("like", LAYOUTS)
def test_the_files_are_rocketmqs_and_say_what_is_added(tmp_path: Path, like: str) -> None:
    folder = ClusterFolder(tmp_path)
    folder.take()
    try:
        new = folder.prepare(like, LAYOUTS[like], "127.0.0.1:0", {})
        assert [path.stem for path in new] == [one.name for one in LAYOUTS[like]]
        nameserver = folder.settings("nameserver")
        ports: list[int] = []
        brokers = [one for one in LAYOUTS[like] if one.server == "broker"]
        for one in brokers:
            code, said = run("broker", "-c", str(folder.config(one.name)), "--print-config", "--json")
            assert code == 0
            shown = {key: value["value"] for key, value in json.loads(said).items()}
            assert one.stock.items() <= shown.items()
            assert shown["namesrvAddr"] == f"127.0.0.1:{nameserver['listenPort']}"
            ports.append(int(shown["listenPort"]))
            if "2s" in like:
                assert shown["slaveReadEnable"] == "true"
        assert min(abs(a - b) for a in ports for b in ports if a != b) >= 4
        text = folder.config(brokers[0].name).read_text()
        assert f"# RocketMQ's {brokers[0].source or f'conf/{like}/broker-a.properties'}" in text
        assert "# added" in text
        if like == "2m-2s-sync":
            assert "inSyncReplicas=2" in text
        assert folder.prepare(like, LAYOUTS[like], None, {}) == []
        assert folder.config(brokers[0].name).read_text() == text
    finally:
        folder.release()
