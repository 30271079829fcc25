"""Starts brokers by forking a process that has imported everything: it takes a tenth of the work, and 300
faults start hundreds. What runs is ``kerolox broker``, in a process of its own.

One socket. A request is the command, where it runs and where its output goes, with the descriptors of its
network, its output and its errors; the answer is its process id. A process that ended stays a zombie, and so
keeps its id, until it was asked for: whoever kills by id kills no one else.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import socket
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

PR_SET_PDEATHSIG = 1
ROOT = Path(__file__).parents[2]
REQUEST_BYTES = 1 << 16


class Child:
    """A process that was started, with the part of ``subprocess.Popen`` that its users need."""

    def __init__(self, nursery: Nursery, pid: int, stdout: int) -> None:
        self.pid = pid
        self.stdout = os.fdopen(stdout, encoding="utf-8")
        self.returncode: int | None = None
        self._nursery = nursery

    def poll(self) -> int | None:
        return self._ended(0)

    def wait(self, timeout: float) -> int:
        code = self._ended(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
        return code

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def _ended(self, timeout_s: float) -> int | None:
        if self.returncode is None:
            self.returncode = self._nursery.ask({"wait": self.pid, "for_s": timeout_s})
        return self.returncode


class Nursery:
    """The process that forks brokers; they end when it does."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.partition.nursery", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            cwd=ROOT,
        )
        theirs.close()

    def start(self, command: list[str], home: Path, network: int) -> Child:
        reading, writing = os.pipe()
        with open(home / "stderr.log", "ab") as errors:
            fds = [network, writing, errors.fileno()]
            pid = self.ask({"command": command, "home": str(home)}, fds)
        os.close(writing)
        assert pid is not None
        return Child(self, pid, reading)

    def ask(self, request: dict[str, Any], fds: list[int] | None = None) -> int | None:
        socket.send_fds(self._socket, [json.dumps(request).encode()], fds or [])
        data = self._socket.recv(64)
        if not data:
            raise RuntimeError(f"the nursery ended: {self._process.wait(10)}")
        answer: int | None = json.loads(data)
        return answer

    def close(self) -> None:
        self._socket.close()
        self._process.wait(30)

    def __enter__(self) -> Nursery:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


# --- inside the nursery -------------------------------------------------------------------------------------


def serve(connection: socket.socket) -> None:
    import kerolox.broker.broker
    import kerolox.cli.broker
    import kerolox.net.loop  # noqa: F401

    while True:
        data, fds, _, _ = socket.recv_fds(connection, REQUEST_BYTES, 3)
        if not data:
            return
        request = json.loads(data)
        if "wait" in request:
            answer = _wait(request["wait"], request["for_s"])
        else:
            answer = _start(connection, request, fds)
        for fd in fds:
            os.close(fd)
        connection.send(json.dumps(answer).encode())


def _wait(pid: int, for_s: float) -> int | None:
    """How it ended: negative the signal, else the exit code; None if it still runs."""
    fd = os.pidfd_open(pid)
    try:
        if not select.select([fd], [], [], for_s)[0]:
            return None
    finally:
        os.close(fd)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _start(connection: socket.socket, request: dict[str, Any], fds: list[int]) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        from kerolox.cli.main import app

        from .netns import enter

        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # frozen or not, it ends with the nursery
        connection.close()
        network, output, errors = fds
        enter(network)
        os.setsid()
        for fd, standard in ((os.open(os.devnull, os.O_RDONLY), 0), (output, 1), (errors, 2)):
            os.dup2(fd, standard)
            os.close(fd)
        os.close(network)
        os.chdir(request["home"])
        os.environ.pop("NAMESRV_ADDR", None)
        try:
            app(request["command"], prog_name="kerolox")
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else 0 if ended.code is None else 1
        sys.stdout.flush()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
