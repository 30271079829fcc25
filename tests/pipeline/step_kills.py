"""Processes that are killed at their n-th step.

Every file that is opened to write, renamed, made or removed is one, and every call that is named as one.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from inspect import getattr_static
from pathlib import Path
from typing import Any

EVENTS = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.link")


class Steps:
    """The steps of this process; it ends by SIGKILL before the one with the number ``kill_at``."""

    def __init__(self, kill_at: int = 0) -> None:
        self.done: list[str] = []
        self._kill_at = kill_at

    def step(self, what: str) -> None:
        self.done.append(what)
        if len(self.done) == self._kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    def of_files(self, below: Path) -> None:
        """What changes files below a folder. Python tells it before it is done."""
        folder = f"{below}/"

        def heard(event: str, args: tuple[Any, ...]) -> None:
            if event == "open":
                path, _, flags = args
                writes = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
                if not writes:
                    return
            elif event in EVENTS:
                path = args[0]
            else:
                return
            if isinstance(path, str | os.PathLike) and os.fspath(path).startswith(folder):
                self.step(f"{event} {os.fspath(path).removeprefix(folder)}")

        sys.addaudithook(heard)

    def of_calls(self, owner: Any, *names: str) -> None:
        """Every call of these methods, before it."""
        for name in names:
            call = self._counted(getattr(owner, name), f"{owner.__name__}.{name}")
            is_static = isinstance(getattr_static(owner, name), staticmethod)
            setattr(owner, name, staticmethod(call) if is_static else call)

    def _counted(self, work: Any, what: str) -> Any:
        def call(*args: Any, **more: Any) -> Any:
            self.step(what)
            return work(*args, **more)

        return call


def killed_at(numbers: Iterable[int], work: Callable[[int, Steps], None]) -> None:
    """Do the work in a process of its own for each number, and see it killed there."""
    for number in numbers:
        child = os.fork()
        if child == 0:
            try:
                work(number, Steps(number))
            finally:
                os._exit(7)  # it was to be killed
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status), f"the run was not killed at step {number}"
        assert os.WTERMSIG(status) == signal.SIGKILL


def first_of(steps: Sequence[str], word: str) -> int:
    """The number of the first step that has a word in it."""
    return next(number for number, step in enumerate(steps, 1) if word in step)
