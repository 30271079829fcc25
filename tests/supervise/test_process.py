"""Servers as child processes: started, killed, started again, and stopped with their parent."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from kerolox.supervise.process import NotStarted, ServerProcess, kerolox_command

NAMESERVER = ("nameserver", "--listen", "127.0.0.1:0")


async def test_a_server_is_started_killed_and_started_again(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "nameserver.log"
    server = ServerProcess("nameserver", NAMESERVER, log, private=True)
    assert (server.pid, server.is_running, server.memory_bytes) == (None, False, None)
    await server.start()
    try:
        assert server.address.startswith("127.0.0.1:")
        assert server.is_running
        assert log.stat().st_mode & 0o777 == 0o600
        assert (server.memory_bytes or 1 << 20) >= 1 << 20
        first = server.pid
        await server.kill()
        assert (await server.ended(), server.is_running) == (-9, False)
        await server.start()
        assert server.pid != first
    finally:
        await server.stop()
    assert await server.ended() == 0
    await server.stop()  # nothing to do


async def test_a_server_that_does_not_start_says_why(tmp_path: Path) -> None:
    log = tmp_path / "nameserver.log"
    with pytest.raises(NotStarted, match=r"names did not start: .*999999.* See its log: .*nameserver\.log"):
        await ServerProcess("names", ("nameserver", "--listen", "127.0.0.1:999999"), log).start()
    silent = ServerProcess("names", ("nameserver", "--listen", "127.0.0.1:999999"))
    with pytest.raises(NotStarted, match="See its output above"):
        await silent.start()
    assert not silent.is_running


def test_a_server_stops_when_its_parent_is_killed() -> None:
    program = (
        "import subprocess, sys, os\n"
        f"server = subprocess.Popen({kerolox_command(*NAMESERVER)!r} + ['--parent', str(os.getpid())])\n"
        "print(server.pid, flush=True)\n"
        "server.wait()\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        lines = [parent.stdout.readline() for _ in range(2)]
        parent.kill()
    pid = next(int(line) for line in lines if line.strip().isdigit())
    assert any(" ready on " in line for line in lines)
    until_s = time.monotonic() + 30
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < until_s, "the server still runs"
        time.sleep(0.05)
