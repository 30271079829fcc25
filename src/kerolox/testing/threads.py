"""Brokers in a thread: for tests without await, and for tests with an event loop of any kind.

::

    with broker_in_thread() as broker:
        with kerolox.blocking.Producer(broker.nameserver_address, group="shop") as producer: ...
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from kerolox.clock import SYSTEM_CLOCK, Clock
from kerolox.errors import KeroloxError, OptionError
from kerolox.testing.broker import RunningCluster, running_cluster
from kerolox.testing.clock import ManualClock

T = TypeVar("T")

START_S = 60.0


class BrokerThread:
    """A name server and one or more brokers that run in a thread of their own. All methods wait."""

    def __init__(self, cluster: RunningCluster, loop: asyncio.AbstractEventLoop, clock: Clock) -> None:
        self.cluster = cluster
        self.clock = clock
        self._loop = loop

    @property
    def nameserver_address(self) -> str:
        """What a client is given."""
        return self.cluster.nameserver_address

    @property
    def address(self) -> str:
        """The address of the broker; with several, of the first."""
        return self.cluster.brokers[0].address

    def create_topic(self, topic: str, *, queues: int = 4, attributes: str = "") -> None:
        """Make a topic, so that consumers find it before anybody sends."""
        self.run(lambda: self.cluster.create_topic(topic, queues=queues, attributes=attributes))

    def stop(self, number: int = 0) -> None:
        """Stop one broker: clients lose their connections, and nobody answers at its address."""
        self.run(self.cluster.brokers[number].stop)

    def start(self, number: int = 0) -> None:
        """Start it again: the same address, the same messages."""
        self.run(self.cluster.brokers[number].start)

    def advance(self, seconds: float) -> None:
        """Let time pass for the servers, if they were started with ``clock="manual"``.

        Clients go by the machine's clock: after 120 s at once a broker takes those connected for dead.
        """
        clock = self.clock
        if not isinstance(clock, ManualClock):
            raise KeroloxError("these servers run by the machine's clock: start them with clock='manual'")
        self.run(lambda: clock.advance(seconds))

    def run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run something where the servers run, and wait for it."""
        return asyncio.run_coroutine_threadsafe(work(), self._loop).result()


@contextmanager
def broker_in_thread(
    brokers: int = 1, *, directory: Path | None = None, clock: Clock | str = SYSTEM_CLOCK, **options: Any
) -> Iterator[BrokerThread]:
    """A name server and brokers, until the block ends. ``clock="manual"``: time stands still until
    :meth:`BrokerThread.advance`. ``options`` are those of BrokerOptions, by our names or RocketMQ's keys."""
    if clock == "manual":
        clock = ManualClock(SYSTEM_CLOCK.wall_ms())
    if not isinstance(clock, Clock):
        raise OptionError("clock", clock, 'a Clock, or "manual" for one that stands still until it is moved')
    if isinstance(brokers, bool) or not isinstance(brokers, int) or brokers < 1:
        raise OptionError("brokers", brokers, "how many, 1 or more")
    chosen: Clock = clock
    started = threading.Event()
    found: list[tuple[BrokerThread, asyncio.Event]] = []
    failed: list[BaseException] = []

    async def serve() -> None:
        stop = asyncio.Event()
        async with running_cluster(brokers, directory=directory, clock=chosen, **options) as cluster:
            found.append((BrokerThread(cluster, asyncio.get_running_loop(), chosen), stop))
            started.set()
            await stop.wait()

    def run() -> None:
        try:
            asyncio.run(serve())
        except BaseException as error:
            failed.append(error)
        finally:
            started.set()

    thread = threading.Thread(target=run, name="kerolox-broker", daemon=True)
    thread.start()
    started.wait(START_S)
    if not found:
        raise failed[0] if failed else KeroloxError(f"the broker did not start within {START_S:g} s")
    broker, stop = found[0]
    try:
        yield broker
    finally:
        broker._loop.call_soon_threadsafe(stop.set)
        thread.join()
    if failed:
        raise failed[0]
