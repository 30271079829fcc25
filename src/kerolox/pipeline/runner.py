"""Runners of jobs that are lists of tasks: on Spark, or in processes of this machine.

Tasks share nothing but files, so a job is the same on both. Spark is the default of every command: it
spreads the tasks over a cluster and repeats failed ones. Processes start in half a second, for small stores
and tests.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Protocol, Self, TypeVar

from kerolox.errors import KeroloxError
from kerolox.spark.session import local_cores
from kerolox.spark.shipping import cause_of, check_driver
from kerolox.spark.worker_memory import put_aside

if TYPE_CHECKING:
    from pyspark import SparkContext

Item = TypeVar("Item")
Done = TypeVar("Done")

_WATCH_S = 0.5


class TaskFailed(KeroloxError):
    """A task of a job failed, or its process ended."""

    def __init__(self, cause: str) -> None:
        self.cause = cause
        super().__init__(f"a task failed: {cause}")


class Runner(Protocol):
    """Place where the tasks of a job run."""

    @property
    def name(self) -> str:
        """Name for people: ``Spark local[*]``, ``4 processes of this machine``."""

    @property
    def cores(self) -> int:
        """Number of tasks that run at the same time."""

    @property
    def is_here(self) -> bool:
        """True if all tasks run on this machine."""

    def run(self, work: Callable[[Item], Done], items: Sequence[Item]) -> list[Done]:
        """Run one task per item and return the results in order. Raises TaskFailed."""

    def check_driver(self, address: str, module: str, extra: str) -> None:
        """Check that tasks can import the driver of an address."""


def run_watched(
    runner: Runner,
    work: Callable[[Item], Done],
    items: Sequence[Item],
    watch: Callable[[], None] | None = None,
) -> list[Done]:
    """Run the tasks, and call ``watch`` twice a second meanwhile and once after them."""
    if watch is None or not items:
        return runner.run(work, items)
    over = threading.Event()

    def look() -> None:
        while not over.wait(_WATCH_S):
            watch()

    watcher = threading.Thread(target=look, daemon=True)
    watcher.start()
    try:
        return runner.run(work, items)
    finally:
        over.set()
        watcher.join()
        watch()


class OnSpark:
    """Runner on the executors of a Spark session. Spark's SQL engine, which takes seconds, is not started."""

    def __init__(self, context: SparkContext) -> None:
        self._context = context
        master = str(context.master)
        self.name = f"Spark {master}"
        self.cores: int = context.defaultParallelism
        self.is_here = local_cores(master) is not None

    def run(self, work: Callable[[Item], Done], items: Sequence[Item]) -> list[Done]:
        from py4j.protocol import Py4JError

        if not items:
            return []
        try:
            return list(self._context.parallelize(items, len(items)).map(partial(_run_one, work)).collect())
        except Py4JError as error:
            raise TaskFailed(cause_of(error)) from error

    def check_driver(self, address: str, module: str, extra: str) -> None:
        check_driver(self._context, address, module, extra)


def _run_one(work: Callable[[Item], Done], item: Item) -> Done:
    try:
        return work(item)
    finally:
        put_aside()


class InProcesses:
    """Runner in processes of this machine, which start with the first tasks. A context manager.

    A failed task is not repeated. Work and items must be picklable: functions of modules.
    """

    is_here = True

    def __init__(self, count: int | None = None) -> None:
        self.cores = count or local_cores("local[*]") or 1
        self.name = f"{self.cores} process{'es' if self.cores > 1 else ''} of this machine"
        self._processes: list[_TaskProcess] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the processes, and the tasks in them."""
        for process in self._processes:
            process.close()
        self._processes.clear()

    def run(self, work: Callable[[Item], Done], items: Sequence[Item]) -> list[Done]:
        if not items:
            return []
        while len(self._processes) < min(self.cores, len(items)):
            self._processes.append(_TaskProcess())
        idle: SimpleQueue[_TaskProcess] = SimpleQueue()
        for process in self._processes:
            idle.put(process)

        def call(item: Item) -> Done:
            process = idle.get()
            try:
                done: Done = process.call(work, item)
                return done
            finally:
                idle.put(process)

        with ThreadPoolExecutor(len(self._processes)) as threads:
            try:
                return list(threads.map(call, items))
            except BaseException:
                self.close()  # ends the other tasks, for which the threads wait
                raise

    def check_driver(self, address: str, module: str, extra: str) -> None:
        """Nothing to check: this process has imported it."""


class _TaskProcess:
    """Process that runs tasks, one at a time (:mod:`kerolox.pipeline.task_process`)."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "kerolox.pipeline.task_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            start_new_session=True,  # Ctrl-C reaches only this process, which then ends the others
        )

    def call(self, work: Callable[[Item], Done], item: Item) -> Done:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        request = pickle.dumps((work, item))
        try:
            stdin.write(request)
            stdin.flush()
            done, failure = pickle.load(stdout)
        except (OSError, ValueError, EOFError, pickle.UnpicklingError) as error:
            raise TaskFailed(f"its process ended with code {self._process.wait()}") from error
        if failure:
            raise TaskFailed(failure)
        result: Done = done
        return result

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()
