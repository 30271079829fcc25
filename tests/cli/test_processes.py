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
    assert "option_unknown key='serverWorkerThreads'" in log
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


@pytest.mark.parametrize("command", ["broker", "nameserver"])
def test_a_missing_config_file_is_one_line_and_says_what_to_do(command: str, tmp_path: Path) -> None:
    done = kerolox(command, "-c", str(tmp_path / "missing.conf"))
    assert done.returncode == 1
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert "Errno" not in line
    assert f"option --config-file = '{tmp_path}/missing.conf'" in line
    assert "No such file or directory" in line
    assert "leave the option out" in line


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
        "kerolox.store",
        "kerolox.protocol.codes",
        "kerolox.broker",
    ):
        assert f"'{heavy}" not in done.stdout
