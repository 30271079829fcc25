"""Writers, as processes a nursery starts, one at a time."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

from tests.rig import nursery

LIVES = {name: f"tests.crash.{name}" for name in ("delays", "timers", "transactions")}
LIFE_S = 60.0  # to end, once it is killed or done


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
            self.status = self._nursery.ended(self.pid, LIFE_S)
            if self.status is None:
                raise AssertionError(f"writer {self.pid} goes on for ever")
            os.close(self.pipe)
        return self.status

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self.wait()


class Nursery(nursery.Nursery):
    """The process that forks writers."""

    def __init__(self) -> None:
        super().__init__(["tests.crash.writer", *LIVES.values()])

    def write(self, plan: dict[str, Any]) -> Child:
        reading, writing = os.pipe()
        pid = self.fork(f"{__name__}:written", plan, [writing])
        os.close(writing)
        return Child(self, pid, reading)


def written(plan: dict[str, Any], fds: list[int]) -> None:
    """In the writer's process: live as planned."""
    import importlib

    from . import writer

    if "around" in plan:
        asyncio.run(importlib.import_module(LIVES[plan["around"]]).Life(plan, fds[0]).run())
    else:
        writer.run(plan, fds[0])
