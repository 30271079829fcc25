"""Connection from each task of a replay to the driver.

A task reports its progress over the connection. The connection is closed when the driver dies, or when
another attempt of the same task starts; then the task must stop sending. Otherwise tasks of a killed driver
would continue to send for a moment, in parallel with the tasks of the next run.
"""

from __future__ import annotations

import hmac
import json
import secrets
import select
import socket
import threading
from collections.abc import Callable
from typing import Self

from kerolox.errors import KeroloxError

CONNECT_S = 10.0


class NoLongerWanted(KeroloxError):
    """The connection to the driver is closed: this task must stop."""


class DriverEnd:
    """The driver's end: accepts the connections of tasks, and adds up their progress."""

    def __init__(self, host: str, on_progress: Callable[[int], object] = lambda done: None) -> None:
        self.host = host
        self.token = secrets.token_hex(16)
        self._on_progress = on_progress
        self._lock = threading.Lock()
        self._done: dict[int, int] = {}  # messages sent, by task
        self._lines: dict[int, socket.socket] = {}
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.socket(family)
        try:
            self._listener.bind((host, 0))
        except OSError:  # the host name is not a local address
            self._listener.bind(("", 0))
        self._listener.listen()
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, name="replay-lifeline", daemon=True).start()

    @property
    def done(self) -> int:
        with self._lock:
            return sum(self._done.values())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        _close(self._listener)
        with self._lock:
            for line in self._lines.values():
                _close(line)
            self._lines.clear()

    def _accept(self) -> None:
        while True:
            try:
                line, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._listen, args=(line,), daemon=True).start()

    def _listen(self, line: socket.socket) -> None:
        task = -1
        try:
            with line.makefile("r", encoding="utf-8") as texts:
                hello = json.loads(texts.readline(1000))
                if not hmac.compare_digest(str(hello["token"]), self.token):
                    return
                task = int(hello["task"])
                with self._lock:
                    older = self._lines.pop(task, None)
                    self._lines[task] = line
                if older is not None:
                    _close(older)
                line.sendall(b"\n")
                for text in texts:
                    with self._lock:
                        self._done[task] = int(text)
                    self._on_progress(self.done)
        except (OSError, ValueError, KeyError, TypeError):
            pass
        finally:
            with self._lock:
                if self._lines.get(task) is line:
                    del self._lines[task]
            _close(line)


class TaskEnd:
    """The task's end of its connection to the driver."""

    def __init__(self, host: str, port: int, token: str, task: int) -> None:
        try:
            self._line = socket.create_connection((host, port), CONNECT_S)
        except OSError as error:
            raise _unanswered(host, port, error) from error
        try:
            self._line.sendall(json.dumps({"token": token, "task": task}).encode() + b"\n")
            welcome = self._line.recv(1)
        except OSError as error:
            self._line.close()
            raise _unanswered(host, port, error) from error
        if not welcome:
            self._line.close()
            raise NoLongerWanted(f"the process at {host}:{port} is not the driver of this replay")

    def check(self) -> None:
        """Raise NoLongerWanted if the connection is closed."""
        # The driver sends nothing here, so a readable socket means that it was closed.
        if select.select([self._line], [], [], 0)[0]:
            raise NoLongerWanted("the driver of the replay has ended, or has started this task again")

    def tell(self, done: int) -> None:
        try:
            self._line.sendall(b"%d\n" % done)
        except OSError as error:
            raise NoLongerWanted(f"the driver of the replay has ended: {error}") from error

    def close(self) -> None:
        self._line.close()


def _unanswered(host: str, port: int, error: OSError) -> NoLongerWanted:
    return NoLongerWanted(f"the driver of the replay does not answer at {host}:{port}: {error}")


def _close(line: socket.socket) -> None:
    try:
        line.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
    line.close()
