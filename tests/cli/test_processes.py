"""``kerolox`` as a real process: how it starts, says so, and stops."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.peers import wire

KEROLOX = [sys.executable, "-m", "kerolox"]


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "namesrv.conf"
    file.write_text(
        f"bindAddress=127.0.0.1\nlistenPort=0\nkvConfigPath={tmp_path}/kv.json\nserverWorkerThreads=8\n"
    )
    return file


@pytest.fixture
def server(config: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [*KEROLOX, "nameserver", "-c", str(config)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    yield process
    if process.poll() is None:
        process.kill()
    process.communicate()


def kerolox(*args: str) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if key != "NAMESRV_ADDR"}
    return subprocess.run([*KEROLOX, *args], capture_output=True, text=True, timeout=60, env=environment)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_one_line_when_ready_and_a_clean_stop(server: subprocess.Popen[str], number: int) -> None:
    assert server.stdout is not None
    line = server.stdout.readline()
    assert line.startswith("kerolox nameserver ready on 127.0.0.1:")
    address = line.split()[-1]

    done = kerolox("kv", "put", "n", "k", "v", "-n", address)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(kerolox("kv", "list", "n", "--json", "-n", address).stdout) == {"k": "v"}

    with socket.create_connection(
        ("127.0.0.1", int(address.rpartition(":")[2]))
    ):  # idle clients do not hold it
        server.send_signal(number)
        out, log = server.communicate(timeout=30)
    assert server.returncode == 0
    assert out == ""
    assert "nameserver_started" in log
    assert "nameserver_stopped" in log
    assert "option_without_effect key='serverWorkerThreads'" in log
    assert "Traceback" not in log


def test_a_taken_port_is_one_line_and_exit_code_1(config: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = kerolox(
            "nameserver", "-c", str(config), "--listen", f"127.0.0.1:{port}", "--log-level", "error"
        )
    assert done.returncode == 1
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert f"cannot listen on 127.0.0.1:{port}" in line


@pytest.mark.parametrize("command", ["broker", "nameserver", "controller"])
def test_a_missing_config_file_is_one_line_and_says_what_to_do(command: str, tmp_path: Path) -> None:
    done = kerolox(command, "-c", str(tmp_path / "missing.conf"))
    assert done.returncode == 1
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert "Errno" not in line
    assert f"option --config-file = '{tmp_path}/missing.conf'" in line
    assert "No such file or directory" in line
    assert "omit the option" in line


def test_a_broken_kv_file_is_one_line_and_exit_code_1(config: Path, tmp_path: Path) -> None:
    (tmp_path / "kv.json").write_text("{broken")
    done = kerolox("nameserver", "-c", str(config), "--log-level", "error")
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert "kv.json cannot be read" in line
    assert (tmp_path / "kv.json").read_text() == "{broken"


def test_starting_a_command_imports_no_server() -> None:
    code = "import sys, kerolox.cli.main; print([m for m in sys.modules if m.startswith('kerolox.')])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    for heavy in (
        "kerolox.net",
        "kerolox.nameserver",
        "kerolox.controller",
        "kerolox.store",
        "kerolox.protocol.codes",
        "kerolox.broker",
    ):
        assert f"'{heavy}" not in done.stdout


CONTROLLER = """\
bindAddress=127.0.0.1
controllerListenPort=0
controllerStorePath={folder}/controller
controllerDLegerGroup=group7
"""


def controller_of(address: str) -> dict[str, str]:
    """What the controller there says of itself."""
    answer = wire.request(address, 1005)
    assert answer.code == 0
    return answer.ext_fields


def running(*words: str) -> subprocess.Popen[str]:
    return subprocess.Popen([*KEROLOX, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_a_controller_starts_and_stops(tmp_path: Path) -> None:
    file = tmp_path / "controller.conf"
    file.write_text(CONTROLLER.format(folder=tmp_path) + "controllerThreadPoolNums=16\n")
    process = running("controller", "-c", str(file))
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("kerolox controller ready on 127.0.0.1:")
        told = controller_of(line.split()[-1])
        assert (told["group"], told["controllerLeaderAddress"]) == ("group7", line.split()[-1])
        second = kerolox("controller", "-c", str(file), "--log-level", "error")
        assert second.returncode == 1
        (error,) = second.stderr.splitlines()
        assert "is locked: another controller uses this directory" in error
        process.send_signal(signal.SIGTERM)
        out, log = process.communicate(timeout=30)
    finally:
        process.kill()
        process.communicate()
    assert (process.returncode, out) == (0, "")
    assert "controller_leads" in log
    assert "controller_stopped" in log
    assert "option_without_effect key='controllerThreadPoolNums'" in log
    assert "Traceback" not in log


def test_a_name_server_with_a_controller_in_it(config: Path, tmp_path: Path) -> None:
    with config.open("a") as file:
        file.write(CONTROLLER.format(folder=tmp_path) + "enableControllerInNamesrv=true\n")
    process = running("nameserver", "-c", str(config))
    try:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().startswith("kerolox nameserver ready on 127.0.0.1:")
        log = ""
        while "controller_started" not in log:
            log += process.stderr.readline()
        told = controller_of(log.rpartition("address=")[2].split()[0])
        assert told["group"] == "group7"
        process.send_signal(signal.SIGTERM)
        _, rest = process.communicate(timeout=30)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 0
    assert "controller_stopped" in rest
    assert "nameserver_stopped" in rest
    assert "option_without_effect key='controllerStorePath'" not in log + rest
    assert "option_without_effect key='serverWorkerThreads'" in log + rest
