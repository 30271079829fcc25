"""Starts writers by forking a process that has imported everything: a start takes milliseconds.

One socket. Each request is a plan with the writing end of a pipe; the answers are the writer's process
id and, once it has ended, how. It stays a zombie, and so keeps its process id, until that is confirmed:
whoever kills by id kills no one else.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


class Child:
    """A running writer. ``pipe`` is the reading end of what it tells."""

    def __init__(self, nursery: Nursery, pid: int, pipe: int) -> None:
        self.pid = pid
        self.pipe = pipe
        self._nursery = nursery
        self.status: int | None = None

    def kill(self) -> None:
        if self.status is None:
            os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> int:
        """How it ended: negative the signal, else the exit code."""
        if self.status is None:
            self.status = self._nursery.receive()
            self._nursery.confirm()
            os.close(self.pipe)
        return self.status

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self.wait()


class Nursery:
    """The process that forks writers, one at a time."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.crash.nursery", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            cwd=ROOT,
        )
        theirs.close()

    def start(self, plan: dict[str, Any]) -> Child:
        reading, writing = os.pipe()
        socket.send_fds(self._socket, [json.dumps(plan).encode()], [writing])
        os.close(writing)
        return Child(self, self.receive(), reading)

    def receive(self) -> int:
        data = self._socket.recv(64)
        if not data:
            raise RuntimeError(f"the nursery ended: {self._process.wait(10)}")
        return int(data)

    def confirm(self) -> None:
        self._socket.send(b"seen")

    def close(self) -> None:
        self._socket.close()
        self._process.wait(30)

    def __enter__(self) -> Nursery:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def serve(connection: socket.socket) -> None:
    from . import delays, timers, transactions, writer

    lives = {"delays": delays.Life, "timers": timers.Life, "transactions": transactions.Life}

    while True:
        data, fds, _, _ = socket.recv_fds(connection, 65536, 1)
        if not data:
            return
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                connection.close()
                plan = json.loads(data)
                if "around" in plan:
                    asyncio.run(lives[plan["around"]](plan, fds[0]).run())
                else:
                    writer.run(plan, fds[0])
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        os.close(fds[0])
        connection.send(b"%d" % pid)
        ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        assert ended is not None
        code = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
        connection.send(b"%d" % code)
        connection.recv(64)
        os.waitpid(pid, 0)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
