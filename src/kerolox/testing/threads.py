"""Brokers in a thread: for tests without await, and for tests with any kind of event loop.

::

    with broker_in_thread() as broker:
        with kerolox.blocking.Producer(broker.nameserver_address, group="shop") as producer: ...

    with broker_in_thread(brokers=2, followers=1) as brokers:
        brokers.kill("broker-a")            # its follower keeps running
        brokers.start_again("broker-a")
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
from kerolox.testing.clock import ManualClock
from kerolox.testing.cluster import CAUGHT_UP_S, FollowerLink, RunningCluster, running_cluster

T = TypeVar("T")

START_S = 60.0


class BrokerThread:
    """Name server and one or more brokers that run in a separate thread. All methods wait."""

    def __init__(self, cluster: RunningCluster, loop: asyncio.AbstractEventLoop, clock: Clock) -> None:
        self.cluster = cluster
        self.clock = clock
        self._loop = loop

    @property
    def nameserver_address(self) -> str:
        """Return the address for clients."""
        return self.cluster.nameserver_address

    @property
    def address(self) -> str:
        """Return the address of the broker; with several, of the first."""
        return self.cluster.brokers[0].address

    def create_topic(self, topic: str, *, queues: int = 4, attributes: str = "") -> None:
        """Create a topic, so that consumers find it before the first send."""
        self.run(lambda: self.cluster.create_topic(topic, queues=queues, attributes=attributes))

    def stop(self, number: int = 0) -> None:
        """Stop one broker: clients lose their connections, and its address no longer answers."""
        self.run(self.cluster.brokers[number].stop)

    def start(self, number: int = 0) -> None:
        """Start a broker again, with the same address and messages."""
        self.run(self.cluster.brokers[number].start)

    def kill(self, name: str = "broker-a", broker_id: int = 0) -> None:
        """Kill a leader, or the follower with this id, as SIGKILL does."""
        self.run(lambda: self.cluster.kill(name, broker_id))

    def start_again(self, name: str = "broker-a", broker_id: int = 0) -> None:
        """Start a broker that was stopped or killed, with the same addresses and files."""
        self.run(lambda: self.cluster.start_again(name, broker_id))

    def caught_up(self, timeout_s: float = CAUGHT_UP_S) -> None:
        """Wait until every follower has what its leader has now. Raise NotCaughtUp."""
        self.run(lambda: self.cluster.caught_up(timeout_s))

    def link(self, name: str, follower_id: int) -> LinkTwin:
        """Return the link between a leader and the follower with this id."""
        return LinkTwin(self, self.cluster.link(name, follower_id))

    def advance(self, seconds: float) -> None:
        """Let time pass for the servers, if they were started with ``clock="manual"``.

        Clients use the machine's clock: after 120 s at once a broker takes connected clients for dead.
        """
        clock = self.clock
        if not isinstance(clock, ManualClock):
            raise KeroloxError("these servers use the machine's clock: start them with clock='manual'")
        self.run(lambda: clock.advance(seconds))

    def run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine on the servers' event loop, and wait for it."""
        return asyncio.run_coroutine_threadsafe(work(), self._loop).result()


class LinkTwin:
    """Link of a follower, for use from another thread. See :class:`kerolox.testing.FollowerLink`."""

    def __init__(self, thread: BrokerThread, link: FollowerLink) -> None:
        self._thread = thread
        self._link = link

    def cut(self, *, one_way: str = "") -> None:
        self._do(lambda: self._link.cut(one_way=one_way))

    def slow(self, *, delay_s: float = 0.0, bytes_per_s: int = 0) -> None:
        self._do(lambda: self._link.slow(delay_s=delay_s, bytes_per_s=bytes_per_s))

    def heal(self) -> None:
        self._do(self._link.heal)

    def _do(self, work: Callable[[], None]) -> None:
        async def do() -> None:
            work()

        self._thread.run(do)


@contextmanager
def broker_in_thread(
    brokers: int = 1, *, directory: Path | None = None, clock: Clock | str = SYSTEM_CLOCK, **options: Any
) -> Iterator[BrokerThread]:
    """Run a name server and brokers until the block ends. ``clock="manual"``: time stands still until
    :meth:`BrokerThread.advance`. ``options`` are those of :func:`running_cluster`: followers, sync, and those
    of BrokerOptions, by kerolox's names or RocketMQ's keys."""
    if clock == "manual":
        clock = ManualClock(SYSTEM_CLOCK.wall_ms())
    if not isinstance(clock, Clock):
        raise OptionError("clock", clock, 'a Clock, or "manual" for one that stands still until it is moved')
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
