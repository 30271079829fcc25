"""An event loop whose time is virtual, for many processes that are none.

When nothing is ready, time jumps to the next timer: a minute of a cluster takes a moment. Whatever runs
belongs to a :class:`Process`, by the context it was scheduled in. One that is killed never runs again, at
whatever await it was; one that is paused runs on, later, as after SIGSTOP and SIGCONT. There are no
threads: what is given to one becomes a step of its process, a little later.
"""

from __future__ import annotations

import asyncio
import heapq
import random
import socket
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor, Future
from contextvars import Context, ContextVar
from typing import TYPE_CHECKING, Any

from kerolox.clock import Clock, TimerHandle

if TYPE_CHECKING:
    from .network import Network

STEPS_MAX = 2_000_000  # of a schedule; one that needs more runs in circles
WALL_MS = 1_790_000_000_000  # where wall clocks begin


class Stuck(AssertionError):
    """Nothing is left to happen, or something happens over and over."""


class Process:
    """What runs under one name and can be killed."""

    def __init__(self, name: str, ip: str = "") -> None:
        self.name = name
        self.ip = ip
        self.boot = ""  # names this run of its host
        self.is_dead = False
        self.is_paused = False
        self.slow_s = 0.0  # what threads do takes so much longer
        self.waiting: list[asyncio.Handle] = []  # while it is paused
        self.tasks: list[asyncio.Task[Any]] = []
        self.on_death: list[Callable[[], None]] = []
        self.context = Context()
        self.context.run(_process.set, self)

    def __repr__(self) -> str:
        return f"<process {self.name}>"


_process: ContextVar[Process] = ContextVar("process")
OUTSIDE = Process("outside")


def current() -> Process:
    """The process that runs now: outside of all of them the one that makes the schedule."""
    return _process.get(OUTSIDE)


class SimulatedTask(asyncio.Task[Any]):
    """Ordered by when it was made: sets of tasks are gone through in the same order in each run."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], number: int, **how: Any) -> None:
        self._number = number
        super().__init__(coroutine, **how)

    def __hash__(self) -> int:
        return self._number


class SimulatedLoop(asyncio.BaseEventLoop):
    """Runs everything there is, one step after the other."""

    network: Network

    def __init__(self, seed: object) -> None:
        super().__init__()
        self.chance = random.Random(f"loop-{seed}")
        self.steps = 0
        self.errors: list[str] = []  # exceptions nobody took
        self._now_s = 0.0
        self._made = 0
        self._timers = 0
        self._heap: list[tuple[float, int, asyncio.TimerHandle]] = []
        self.set_exception_handler(self._note)
        self.set_debug(False)

    # --- time ---------------------------------------------------------------------------------------------

    def time(self) -> float:
        return self._now_s

    def call_at(
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        # Timers of one moment come in the order they were set.
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        self._timers += 1
        heapq.heappush(self._heap, (when, self._timers, timer))
        return timer

    def _run_once(self) -> None:
        heap, ready = self._heap, self._ready  # type: ignore[attr-defined]
        if not ready and not self._stopping:  # type: ignore[attr-defined]
            while heap and heap[0][2]._cancelled:
                heapq.heappop(heap)
            if not heap:
                raise Stuck("nothing is left to happen")
            self._now_s = max(self._now_s, heap[0][0])
        while heap and heap[0][0] <= self._now_s:
            timer = heapq.heappop(heap)[2]
            if not timer._cancelled:
                ready.append(timer)
        todo = len(ready)
        self.steps += todo
        if self.steps > STEPS_MAX:
            raise Stuck(f"more than {STEPS_MAX} steps in {self._now_s:.3f} s of virtual time")
        for _ in range(todo):
            handle = ready.popleft()
            if handle._cancelled:
                continue
            process = handle._context.get(_process)
            if process is not None:
                if process.is_dead:
                    continue
                if process.is_paused:
                    process.waiting.append(handle)
                    continue
            handle._run()

    def call_soon_threadsafe(
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        return

    def _write_to_self(self) -> None:
        return

    # --- processes ----------------------------------------------------------------------------------------

    def start(self, process: Process, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run it as part of a process."""
        task = self.create_task(work, context=process.context)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and task.exception() is not None:
            self.errors.append(f"{task.get_name()} ended with {task.exception()!r}")

    def create_task(self, coro: Any, *, name: str | None = None, context: Context | None = None) -> Any:
        self._made += 1
        process = current() if context is None else context.get(_process, OUTSIDE)
        task = SimulatedTask(coro, self._made, loop=self, name=name or f"task {self._made}", context=context)
        if process is not OUTSIDE:
            # Of a dead process nothing is taken apart before the end: that would run its finally blocks.
            process.tasks.append(task)
            if len(process.tasks) > 1000:
                process.tasks = [task for task in process.tasks if not task.done()]
        return task

    def kill(self, process: Process) -> None:
        process.is_dead = True
        process.waiting.clear()
        for told in process.on_death:
            told()
        for task in process.tasks:
            task._log_destroy_pending = False

    def pause(self, process: Process) -> None:
        process.is_paused = True

    def resume(self, process: Process) -> None:
        process.is_paused = False
        waiting, process.waiting = process.waiting, []
        for handle in waiting:
            if not handle._cancelled:
                self._ready.append(handle)  # type: ignore[attr-defined]

    def _note(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self.errors.append(f"{context.get('message')}: {error!r}")

    # --- threads ------------------------------------------------------------------------------------------

    def in_a_while(self, work: Callable[[], object]) -> asyncio.TimerHandle:
        """As a thread would: not now, but soon."""
        return self.call_later(self.chance.random() * 0.002 + current().slow_s, work)

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:
        done = self.create_future()

        def run() -> None:
            if done.done():
                return
            try:
                result = func(*args)
            except BaseException as error:
                if not done.done():
                    done.set_exception(error)
            else:
                if not done.done():
                    done.set_result(result)

        self.in_a_while(run)
        return done

    # --- sockets ------------------------------------------------------------------------------------------

    async def getaddrinfo(self, host: Any, port: Any, **how: Any) -> Any:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, port or 0))]

    async def create_connection(self, factory: Any, host: Any = None, port: Any = None, **how: Any) -> Any:
        return await self.network.connect(factory, host, port)

    async def create_server(self, factory: Any, host: Any = None, port: Any = None, **how: Any) -> Any:
        listener = how["sock"]
        listener.serve(lambda sock: self.network.adopt(sock, factory()))
        return listener

    async def connect_accepted_socket(self, factory: Any, sock: Any, **how: Any) -> Any:
        protocol = factory()
        return self.network.adopt(sock, protocol), protocol

    def add_reader(self, fd: Any, callback: Any, *args: Any) -> None:
        self.network.watch(fd, callback, args)

    def remove_reader(self, fd: Any) -> bool:
        return self.network.unwatch(fd)

    def close(self) -> None:
        self._ready.clear()  # type: ignore[attr-defined]
        self._heap.clear()
        super().close()


class Steps(Executor):
    """In place of a pool of threads: what is given to it becomes a step of the process that gave it."""

    def __init__(self, *args: Any, **how: Any) -> None:
        return

    def submit(self, fn: Any, /, *args: Any, **how: Any) -> Future[Any]:
        future: Future[Any] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(fn(*args, **how))
            except BaseException as error:
                future.set_exception(error)

        _running_loop().in_a_while(run)
        return future

    def map(self, fn: Any, *many: Any, **how: Any) -> Any:
        return map(fn, *many)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        return


class FlushSteps:
    """In place of the thread that flushes a log."""

    def __init__(self, work: Callable[[], bool]) -> None:
        self._work = work
        self._stopping = False

    def ask(self) -> None:
        _running_loop().in_a_while(self._run)

    def shutdown(self) -> None:
        self._stopping = True

    def _run(self) -> None:
        if not self._stopping and self._work():
            self.ask()


def _running_loop() -> SimulatedLoop:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimulatedLoop)
    return loop


class HostClock(Clock):
    """The clock of one host: it may run fast or slow, and be set."""

    def __init__(self, loop: SimulatedLoop, *, rate: float = 1.0, began_s: float = 1000.0) -> None:
        self._loop = loop
        self._rate = rate
        self._began_s = began_s
        self._ahead_ms = 0.0

    def wall_ms(self) -> int:
        return int(WALL_MS + self._loop.time() * 1000 * self._rate + self._ahead_ms)

    def monotonic_s(self) -> float:
        return self._began_s + self._loop.time() * self._rate

    def cpu_s(self) -> float:
        return 0.0  # work takes no time here

    def call_later(self, delay_s: float, callback: Callable[[], object]) -> TimerHandle:
        return self._loop.call_later(max(0.0, delay_s) / self._rate, callback)

    async def sleep(self, delay_s: float) -> None:
        await asyncio.sleep(delay_s / self._rate)

    def set_wall(self, delta_ms: float) -> None:
        """As an administrator does, or a clock that is set over the network."""
        self._ahead_ms += delta_ms


__all__ = ["OUTSIDE", "FlushSteps", "HostClock", "Process", "SimulatedLoop", "Steps", "Stuck", "current"]
