"""Everything a schedule happens in: a loop, a network, hosts with clocks and disks; and the patches that
let the product's own code run there, unchanged.

What it takes from the system is replaced where it takes it: listeners, pools of threads, the thread that
flushes. All else is there by seams of its own: the event loop, clocks, files.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import itertools
import logging
import random
import shutil
import sys
import tempfile
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from .loop import FlushSteps, HostClock, Process, SimulatedLoop, Steps, current
from .network import Network, Sockets

MEMORY = Path("/dev/shm")
PATCHED = {
    "kerolox.net.listener": {"socket": Sockets},
    "kerolox.store.log.flush": {"FlushThread": FlushSteps},
    "kerolox.store.message_store": {"boot_identity": lambda: current().boot},
}
# Kept in sets that are gone through: in the order they were made, not by where they lie in memory.
ORDERED = (
    ("kerolox.net.peer", "Peer"),
    ("kerolox.replication.follower_connection", "FollowerConnection"),
    ("kerolox.replication.epoch_connection", "EpochConnection"),
)


class Host:
    """A machine: an address, a clock, a directory. One process of the cluster runs on it at a time."""

    def __init__(self, world: World, name: str, ip: str) -> None:
        self.world = world
        self.name = name
        self.ip = ip
        chance = world.chance
        rate = 1.0 + chance.uniform(-1, 1) * world.drift
        self.clock = HostClock(world.loop, rate=rate, began_s=chance.uniform(10, 100_000))
        self.clock.set_wall(chance.uniform(-2000, 2000))
        self.directory = world.directory / name
        self.directory.mkdir(parents=True)
        self.process: Process | None = None
        self.lives = 0
        self.boots = 0
        self.slow_s = 0.0  # what its threads do takes so much longer

    @property
    def is_up(self) -> bool:
        return self.process is not None and not self.process.is_dead

    def begin(self) -> Process:
        """A new process on it."""
        assert not self.is_up
        self.lives += 1
        self.process = Process(f"{self.name}.{self.lives}", self.ip)
        self.process.slow_s = self.slow_s
        self.process.boot = f"{self.name}, boot {self.boots}"
        self.world.processes.append(self.process)
        return self.process

    def end(self) -> None:
        """Kill it; the machine lives on."""
        if self.process is not None and self.is_up:
            self.world.loop.kill(self.process)
            self.world.network.process_died(self.process)

    def power_off(self) -> None:
        if self.process is not None and self.is_up:
            self.world.loop.kill(self.process)
        self.world.network.power_off(self.ip)

    def power_on(self) -> None:
        self.world.network.power_on(self.ip)


class World:
    """One schedule's."""

    def __init__(self, seed: int, directory: Path, *, drift: float = 0.0, trace: bool = False) -> None:
        self.seed = seed
        self.directory = directory
        self.drift = drift
        self.chance = random.Random(f"world-{seed}")
        self.loop = SimulatedLoop(seed)
        self.network = Network(self.loop, seed)
        self.hosts: dict[str, Host] = {}
        self.processes: list[Process] = []
        self.traces = trace
        self.story: list[str] = []  # told by the schedule
        self.network.trace = self.tell

    def host(self, name: str, ip: str) -> Host:
        self.hosts[name] = host = Host(self, name, ip)
        return host

    def tell(self, text: str) -> None:
        self.story.append(f"{self.loop.time():9.4f} {current().name:14} {text}")

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(work)


class _Told(logging.Handler):
    """Puts what the product logs into the story."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        name = record.name.removeprefix("kerolox.")
        self._world.tell(f"{record.levelname[:1]} {name} {record.getMessage()}")
        if record.exc_info and record.exc_info[1] is not None:
            self._world.tell(f"  {record.exc_info[1]!r}")


@contextmanager
def world(seed: int, *, drift: float = 0.0, trace: bool = False) -> Iterator[World]:
    """A new one, which goes away; all that is random in it comes from the seed."""
    where = MEMORY if MEMORY.is_dir() else None
    directory = Path(tempfile.mkdtemp(prefix=f"kerolox-simulate-{seed}-", dir=where))
    log = logging.getLogger("kerolox")
    before = (log.level, log.propagate, logging.root.manager.disable)
    made = None
    collects = gc.isenabled()
    gc.disable()  # it would take apart what dead processes left, at moments of its own
    random.seed(seed)
    with patched():
        try:
            made = World(seed, directory, drift=drift, trace=trace)
            if trace:
                told = _Told(made)
                log.addHandler(told)
                log.setLevel(logging.DEBUG)
                log.propagate = False
            else:
                logging.disable(logging.CRITICAL)
            yield made
        finally:
            if made is not None:
                _end(made)
            if trace:
                log.removeHandler(told)
            log.setLevel(before[0])
            log.propagate = before[1]
            logging.disable(before[2])
            shutil.rmtree(directory, ignore_errors=True)
            if collects:
                gc.enable()


def _end(made: World) -> None:
    """Take it apart. What was interrupted somewhere says so to nobody."""
    for task in asyncio.all_tasks(made.loop):
        task._log_destroy_pending = False  # type: ignore[attr-defined]
    asyncio.set_event_loop(None)
    logging.disable(logging.CRITICAL)
    with mock.patch.object(sys, "unraisablehook", _say_nothing):
        made.loop.close()
        for process in made.processes:
            for task in process.tasks:
                try:
                    task.get_coro().close()
                except BaseException:
                    pass
        gc.collect()


def _say_nothing(told: object) -> None:
    return


@contextmanager
def patched() -> Iterator[None]:
    undo: list[Callable[[], None]] = []
    numbers = itertools.count(1)

    def replace(owner: Any, name: str, value: Any) -> None:
        patch = mock.patch.object(owner, name, value)
        patch.start()
        undo.append(patch.stop)

    def numbered(self: Any) -> int:
        number = self.__dict__.get("_simulated_number")
        if number is None:
            number = self.__dict__["_simulated_number"] = next(numbers)
        return int(number)

    try:
        for module, names in PATCHED.items():
            for name, value in names.items():
                replace(importlib.import_module(module), name, value)
        for module in list(sys.modules):
            if module.startswith("kerolox.") and hasattr(sys.modules[module], "ThreadPoolExecutor"):
                replace(sys.modules[module], "ThreadPoolExecutor", Steps)
        for module, name in ORDERED:
            try:
                owner = getattr(importlib.import_module(module), name)
            except (ImportError, AttributeError):
                continue
            replace(owner, "__hash__", numbered)
        yield
    finally:
        for step in reversed(undo):
            step()
