"""``kerolox up`` and ``kerolox broker`` as real processes: ready line, stop, kill, several brokers."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kerolox.cli.main import app
from kerolox.errors import KeroloxError
from kerolox.net.dialer import Dialer
from kerolox.protocol.bodies.routes import ClusterInfo, TopicRoute
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.command import Command
from kerolox.protocol.headers.pull import PullRequest
from kerolox.protocol.headers.route import RouteRequest
from kerolox.protocol.headers.send import SendRequestV2
from kerolox.protocol.record import decode_records

KEROLOX = [sys.executable, "-m", "kerolox"]
ENVIRONMENT = {key: value for key, value in os.environ.items() if key != "NAMESRV_ADDR"}
FREE = ["--nameserver-listen", "127.0.0.1:0", "--broker-listen", "127.0.0.1:0"]
READY = re.compile(r"^kerolox ready: nameserver (\S+), broker (.+)$")


class Up:
    """One ``kerolox up`` or ``kerolox broker``."""

    def __init__(self, *args: str) -> None:
        self.process = subprocess.Popen(
            [*KEROLOX, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT
        )
        assert self.process.stdout is not None
        self.line = self.process.stdout.readline().rstrip("\n")
        found = READY.match(self.line)
        self.nameserver = found.group(1) if found else ""
        self.brokers = found.group(2).split(", ") if found else []

    def stop(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        """Exit code, and what it logged."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        out, log = self.process.communicate(timeout=60)
        assert out == ""
        return self.process.returncode, log


@pytest.fixture
def start() -> Iterator[type[Up]]:
    made: list[Up] = []

    class Kept(Up):
        def __init__(self, *args: str) -> None:
            super().__init__(*args)
            made.append(self)

    yield Kept
    for up in made:
        if up.process.poll() is None:
            up.process.kill()
        up.process.communicate()


def test_print_config(tmp_path: Path) -> None:
    words = ["up", "--data", str(tmp_path), "--brokers", "2", "--set", "flushDiskType=SYNC_FLUSH"]
    done = CliRunner().invoke(app, [*words, "--print-config", "--json"])
    shown = json.loads(done.stdout)
    assert list(shown) == ["nameserver", "broker-a", "broker-b"]
    assert shown["nameserver"]["listenPort"] == {"value": "9876", "source": "kerolox up"}
    second = shown["broker-b"]
    assert second["listenPort"] == {"value": "10921", "source": "kerolox up"}
    assert second["storePathRootDir"]["value"] == str(tmp_path / "broker-b")
    assert second["mappedFileSizeCommitLog"] == {"value": str(64 << 20), "source": "kerolox up"}
    assert second["flushDiskType"] == {"value": "SYNC_FLUSH", "source": "flag"}
    assert list(tmp_path.iterdir()) == []  # nothing was started


def command(*args: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*KEROLOX, *args],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=ENVIRONMENT,
    )


async def send(dialer: Dialer, broker: str, topic: str, body: bytes) -> Command:
    header = SendRequestV2(
        producer_group="p", topic=topic, default_topic="TBW102", default_topic_queue_nums=4, queue_id=0,
        sys_flag=0, born_timestamp=1, flag=0,
    )  # fmt: skip
    return await dialer.call(broker, RequestCode.SEND_MESSAGE_V2, header, body, timeout_s=10)


async def bodies(dialer: Dialer, broker: str, topic: str) -> list[bytes]:
    header = PullRequest(
        consumer_group="g", topic=topic, queue_id=0, queue_offset=0, max_msg_nums=32, sys_flag=4,
        commit_offset=0, suspend_timeout_millis=0, sub_version=0, subscription="*", expression_type="TAG",
    )  # fmt: skip
    answer = await dialer.call(broker, RequestCode.PULL_MESSAGE, header, timeout_s=10)
    return [message.body for message in decode_records(answer.body)] if answer.code == 0 else []


async def brokers_of(dialer: Dialer, nameserver: str) -> dict[str, dict[int, str]]:
    answer = await dialer.call(nameserver, RequestCode.GET_BROKER_CLUSTER_INFO)
    table = ClusterInfo.decode(answer.body).broker_addr_table
    return {name: dict(data.broker_addrs) for name, data in table.items()}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_one_line_with_both_addresses_and_a_clean_stop(
    start: type[Up], tmp_path: Path, number: int
) -> None:
    up = start("up", "--data", str(tmp_path / "data"), *FREE)
    assert READY.match(up.line), up.line
    async with Dialer() as dialer:
        assert await brokers_of(dialer, up.nameserver) == {"broker-a": {0: up.brokers[0]}}
        assert (await send(dialer, up.brokers[0], "T", b"kept")).code == 0
        route = await dialer.call(
            up.nameserver, RequestCode.GET_ROUTEINFO_BY_TOPIC, RouteRequest(topic="TBW102")
        )
        assert TopicRoute.decode(route.body).queue_datas[0].perm == 7
    code, log = up.stop(number)
    assert (code, log) == (0, "")
    assert not (tmp_path / "data" / "broker-a" / "abort").exists()
    size = sum(file.stat().st_size for file in (tmp_path / "data").rglob("*") if file.is_file())
    assert size < 150 << 20  # small enough to embed

    up = start("up", "--data", str(tmp_path / "data"), *FREE)
    async with Dialer() as dialer:
        assert await bodies(dialer, up.brokers[0], "T") == [b"kept"]
    assert up.stop()[0] == 0


@pytest.mark.parametrize("brokers", ["1", "2"])
async def test_a_restart_never_says_that_a_topic_is_missing(
    start: type[Up], tmp_path: Path, unused_tcp_port: int, brokers: str
) -> None:
    arguments = ["up", "--data", str(tmp_path / "data"), "--brokers", brokers]
    arguments += ["--nameserver-listen", f"127.0.0.1:{unused_tcp_port}", "--broker-listen", "127.0.0.1:0"]
    up = start(*arguments)
    async with Dialer() as dialer:
        for broker in up.brokers:
            assert (await send(dialer, broker, "T", b"kept")).code == 0
    assert up.stop()[0] == 0
    starting = asyncio.create_task(asyncio.to_thread(start, *arguments))
    codes: set[int] = set()
    while not starting.done():  # all the time while it comes up
        async with Dialer() as dialer:
            try:
                while not starting.done():
                    answer = await dialer.call(
                        up.nameserver, RequestCode.GET_ROUTEINFO_BY_TOPIC, RouteRequest(topic="T")
                    )
                    codes.add(answer.code)
            except KeroloxError:
                await asyncio.sleep(0.002)
    assert ResponseCode.TOPIC_NOT_EXIST not in codes
    assert (await starting).stop()[0] == 0


async def test_what_was_acknowledged_survives_a_kill(start: type[Up], tmp_path: Path) -> None:
    acknowledged: list[bytes] = []
    for round_number in range(3):
        up = start("up", "--data", str(tmp_path / "data"), *FREE)
        async with Dialer() as dialer:
            assert await bodies(dialer, up.brokers[0], "T") == acknowledged
            for number in range(5):
                body = b"%d.%d" % (round_number, number)
                assert (await send(dialer, up.brokers[0], "T", body)).code == 0
                acknowledged.append(body)
            # A topic of its own each time, acknowledged as the last thing before the kill.
            assert (await send(dialer, up.brokers[0], f"new_{round_number}", b"last")).code == 0
            up.process.kill()
            up.process.wait()
    up = start("up", "--data", str(tmp_path / "data"), *FREE)
    async with Dialer() as dialer:
        assert await bodies(dialer, up.brokers[0], "T") == acknowledged
        for round_number in range(3):
            assert await bodies(dialer, up.brokers[0], f"new_{round_number}") == [b"last"]
    assert up.stop()[0] == 0


async def test_a_send_that_meets_a_kill_tells_what_it_did(start: type[Up], tmp_path: Path) -> None:
    up = start("up", "--data", str(tmp_path / "data"), *FREE)
    sending = command("send", "T", "--queue", "0", "--json", "-n", up.nameserver)
    assert sending.stdin is not None
    sending.stdin.write(b"".join(b"%d\n" % number for number in range(1, 101)))
    sending.stdin.flush()
    async with Dialer() as dialer:
        deadline = time.monotonic() + 30
        while len(await bodies(dialer, up.brokers[0], "T")) < 32:
            assert time.monotonic() < deadline, "nothing came"
    up.process.kill()
    out, errors = sending.communicate(b"".join(b"%d\n" % number for number in range(101, 1001)), timeout=60)
    assert sending.returncode == 1
    told = json.loads(out)
    following = told["notTriedFrom"]
    assert told["failed"] == len(told["failedNumbers"]) > 0
    assert told["sent"] + told["failed"] == following - 1
    assert f"Stopped: line {following} and later were not sent" in errors.decode()
    up = start("up", "--data", str(tmp_path / "data"), *FREE)
    finding = command("message", "find", "T", "--max", "2000", "--json", "-n", up.nameserver)
    found, _ = finding.communicate(timeout=60)
    stored = {int(message["body"]) for message in json.loads(found)["messages"]}
    acknowledged = set(range(1, following)) - set(told["failedNumbers"])
    assert acknowledged <= stored < set(range(1, following))
    assert up.stop()[0] == 0


def test_an_ephemeral_one_leaves_nothing(
    start: type[Up], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ENVIRONMENT, "TMPDIR", str(tmp_path))
    up = start("up", "--ephemeral", "--data", str(tmp_path / "unused"), *FREE)
    (directory,) = tmp_path.iterdir()
    assert (directory / "broker-a" / "commitlog").is_dir()
    assert up.stop()[0] == 0
    assert list(tmp_path.iterdir()) == []


async def test_several_brokers_are_processes_with_stores_of_their_own(
    start: type[Up], tmp_path: Path
) -> None:
    up = start("up", "--data", str(tmp_path), "--brokers", "2", *FREE)
    assert len(up.brokers) == 2
    async with Dialer() as dialer:
        assert await brokers_of(dialer, up.nameserver) == {
            "broker-a": {0: up.brokers[0]},
            "broker-b": {0: up.brokers[1]},
        }
        for broker in up.brokers:
            assert (await send(dialer, broker, "T", broker.encode())).code == 0
        for broker in up.brokers:
            assert await bodies(dialer, broker, "T") == [broker.encode()]
    assert up.stop()[0] == 0
    for name in ("broker-a", "broker-b"):
        assert (tmp_path / name / "commitlog").is_dir()
        assert not (tmp_path / name / "abort").exists()


def test_brokers_end_with_the_process_that_started_them(start: type[Up], tmp_path: Path) -> None:
    up = start("up", "--data", str(tmp_path), "--brokers", "2", *FREE)
    up.process.kill()
    up.process.wait()
    running = [tmp_path / name / "abort" for name in ("broker-a", "broker-b")]
    deadline_s = time.monotonic() + 30
    while any(mark.exists() for mark in running) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    assert not any(mark.exists() for mark in running)


def test_a_broker_reads_its_file_its_environment_and_its_flags(tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    file.write_text("brokerName=from-file\nlistenPort=1\nfileReservedTime=5\n")
    done = subprocess.run(
        [*KEROLOX, "broker", "-c", str(file), "--print-config", "--json", "--listen", "127.0.0.1:7",
         "--set", "fileReservedTime=9", "-n", "10.0.0.1:9876"],
        capture_output=True, text=True, timeout=60, check=True,
        env={**ENVIRONMENT, "KEROLOX_BROKER_NAME": "from-environment"},
    )  # fmt: skip
    shown = json.loads(done.stdout)
    assert shown["brokerName"] == {
        "value": "from-environment",
        "source": "environment KEROLOX_BROKER_NAME",
    }
    assert shown["listenPort"] == {"value": "7", "source": "flag"}
    assert shown["fileReservedTime"] == {"value": "9", "source": "flag"}
    assert shown["namesrvAddr"]["value"] == "10.0.0.1:9876"
    assert shown["brokerConfigPath"]["value"] == str(file)
    assert shown["flushDiskType"]["source"] == "default"


@pytest.mark.parametrize(
    ("setting", "key", "value"),
    [
        ("bindAddress=127.0.0.1", "bindAddress", "127.0.0.1"),
        ("listenPort=10999", "listenPort", "10999"),
        ("storePathRootDir=/tmp/kept", "storePathRootDir", "/tmp/kept"),
        ("brokerName=named", "brokerName", "named"),
        ("namesrvAddr=10.0.0.9:9876", "namesrvAddr", "10.0.0.9:9876"),
        ("brokerIP1=10.0.0.7", "brokerIP1", "10.0.0.7"),
    ],
)
def test_every_setting_of_a_broker_holds(setting: str, key: str, value: str) -> None:
    result = CliRunner().invoke(app, ["broker", "--set", setting, "--print-config", "--json"])
    assert json.loads(result.stdout)[key] == {"value": value, "source": "flag"}


@pytest.mark.parametrize("brokers", [1, 2])
def test_settings_changed_at_run_time_hold_after_a_restart(
    start: type[Up], tmp_path: Path, brokers: int
) -> None:
    words = ("up", *FREE, "--data", str(tmp_path), "--brokers", str(brokers))
    servers = start(*words)
    environment = {"NAMESRV_ADDR": servers.nameserver}
    change = ["broker", "settings", "--broker", "broker-a", "--set", "fileReservedTime=24"]
    change += ["--set", "enablePropertyFilter=false"]
    changed = CliRunner().invoke(app, change, env=environment)
    assert changed.exit_code == 0, changed.output
    servers.stop()
    servers = start(*words)
    shown = CliRunner().invoke(
        app,
        ["broker", "settings", "--broker", "broker-a", "--json"],
        env={"NAMESRV_ADDR": servers.nameserver},
    )
    found = json.loads(shown.stdout)["broker-a:0"]
    assert (found["fileReservedTime"], found["enablePropertyFilter"]) == ("24", "false")


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["broker", "--set", "nonsense"], "key=value"),
        (["broker", "--set", "noSuchKey=1"], "noSuchKey"),
        (["broker", "--set", "fileReservedTime=soon"], "fileReservedTime"),
        (["up", "--set", "noSuchKey=1"], "noSuchKey"),
        (["up", "--broker-listen", "nowhere"], "host:port"),
        (["up", "--broker-listen", "127.0.0.1:80000"], "--broker-listen = '127.0.0.1:80000'"),
        (["up", "--nameserver-listen", "127.0.0.1:80000"], "--nameserver-listen = '127.0.0.1:80000'"),
        (["up", "--set", "bindAddress=0.0.0.0"], "--broker-listen"),
        (["up", "--set", "storePathRootDir=/tmp/other"], "--data DIR"),
        (["up", "--brokers", "2", "--set", "brokerName=b"], "--brokers 1"),
        (["broker", "--listen", "127.0.0.1:0", "--set", "listenPort=7"], "one value; --listen"),
        (["broker", "--name", "a", "--set", "brokerName=b"], "one value; --name"),
        (["broker", "--set", "sendMessageThreadPoolNums=4"], "a setting of RocketMQ that does nothing here"),
        (
            ["broker", "--set", "SendMessageThreadPoolNums=4"],
            "Did you mean sendMessageThreadPoolNums, a setting of RocketMQ that does nothing here?",
        ),
        (["broker", "--set", "deleteWhen=25"], "hours from 00 to 23"),
        (["cluster", "up", "--like", "2m-noslave", "--set", "bindAddress=0.0.0.0"], "--nameserver-listen"),
    ],
)
def test_a_wrong_setting_is_one_line_and_exit_code_1(args: list[str], says: str, tmp_path: Path) -> None:
    done = subprocess.run([*KEROLOX, *args], capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert says in line
    assert list(tmp_path.iterdir()) == []


def test_a_store_in_use_is_one_line_and_exit_code_1(start: type[Up], tmp_path: Path) -> None:
    start("up", "--data", str(tmp_path), *FREE)
    done = subprocess.run(
        [*KEROLOX, "up", "--data", str(tmp_path), *FREE, "--log-level", "error"],
        capture_output=True, text=True, timeout=60, env=ENVIRONMENT,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (1, "")
    assert "lock" in done.stderr or "use" in done.stderr
    assert "Traceback" not in done.stderr
