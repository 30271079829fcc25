"""Starts processes by forking one that has imported everything: it takes a tenth of the work, and hundreds
of faults start hundreds.

One socket. A request names a function and what it is given, with descriptors; the answer is the process id of
a fork that calls it. A process that ended stays a zombie, and so keeps its id, until it was asked for:
whoever kills by id kills no one else. All of them end when the nursery does.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from .netns import enter

PR_SET_PDEATHSIG = 1
ROOT = Path(__file__).parents[2]
REQUEST_BYTES = 1 << 16
FDS_MAX = 3


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
            self.returncode = self._nursery.ended(self.pid, timeout_s)
        return self.returncode


class Nursery:
    """The process that forks others. ``imports``: what it has ready for them."""

    def __init__(self, imports: Iterable[str]) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.rig.nursery", str(theirs.fileno()), *imports],
            pass_fds=[theirs.fileno()],
            cwd=ROOT,
        )
        theirs.close()

    def start(self, function: str, given: Any, home: Path, network: int) -> Child:
        """A process in a network, with its own folder and output: ``function`` is ``package.module:name``."""
        reading, writing = os.pipe()
        with open(home / "stderr.log", "ab") as errors:
            fds = [network, writing, errors.fileno()]
            pid = self.fork(__name__ + ":in_network", [function, given, str(home)], fds)
        os.close(writing)
        return Child(self, pid, reading)

    def fork(self, function: str, given: Any, fds: Sequence[int]) -> int:
        """The id of a process that calls ``function(given, fds)``."""
        pid = self._ask({"call": function, "given": given}, fds)
        assert pid is not None
        return pid

    def ended(self, pid: int, for_s: float) -> int | None:
        """How it ended, negative the signal, else the exit code; None if it still runs then."""
        return self._ask({"wait": pid, "for_s": for_s})

    def _ask(self, request: dict[str, Any], fds: Sequence[int] = ()) -> int | None:
        socket.send_fds(self._socket, [json.dumps(request).encode()], list(fds))
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
    while True:
        data, fds, _, _ = socket.recv_fds(connection, REQUEST_BYTES, FDS_MAX)
        if not data:
            return
        request = json.loads(data)
        if "wait" in request:
            answer = _wait(request["wait"], request["for_s"])
        else:
            answer = _fork(connection, request["call"], request["given"], fds)
        for fd in fds:
            os.close(fd)
        connection.send(json.dumps(answer).encode())


def _wait(pid: int, for_s: float) -> int | None:
    fd = os.pidfd_open(pid)
    try:
        if not select.select([fd], [], [], for_s)[0]:
            return None
    finally:
        os.close(fd)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _fork(connection: socket.socket, function: str, given: Any, fds: list[int]) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # frozen or not, it ends with the nursery
        connection.close()
        try:
            _named(function)(given, fds)
            code = 0
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else 0 if ended.code is None else 1
        sys.stdout.flush()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def in_network(given: list[Any], fds: list[int]) -> None:
    """Call a function inside a network, with standard files of its own."""
    function, its, home = given
    network, output, errors = fds
    enter(network)
    os.setsid()
    for fd, standard in ((os.open(os.devnull, os.O_RDONLY), 0), (output, 1), (errors, 2)):
        os.dup2(fd, standard)
        os.close(fd)
    os.close(network)
    os.chdir(home)
    os.environ.pop("NAMESRV_ADDR", None)
    _named(function)(its)


def command(words: list[str]) -> None:
    """``kerolox`` with these words."""
    from kerolox.cli.main import app

    app(words, prog_name="kerolox")


def shifted_command(words: list[str]) -> None:
    """The same, with a wall clock that is so many milliseconds off: the first word."""
    from kerolox.clock import Clock

    off_ms, true_ms = int(words[0]), Clock.wall_ms
    Clock.wall_ms = lambda self: true_ms(self) + off_ms  # type: ignore[method-assign]
    command(words[1:])


def _named(function: str) -> Any:
    module, _, name = function.partition(":")
    return getattr(importlib.import_module(module), name)


if __name__ == "__main__":
    for one in sys.argv[2:]:
        importlib.import_module(one)
    serve(socket.socket(fileno=int(sys.argv[1])))
