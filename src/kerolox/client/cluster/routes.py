"""Routes of an asyncio client, refreshed periodically.

A route is fetched at its first use and then every 30 seconds. A restarted name server learns its brokers one
by one, so missing routes are fetched again until the caller's timeout. After the failure of a leader, another
broker of the name may be elected soon: the client looks for it, and wakes waiting senders and readers.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable

from kerolox.client.calls.retries import NAMESERVERS, RefreshGap, Retries
from kerolox.client.calls.routes import Route, RouteTable
from kerolox.client.calls.steps import Steps
from kerolox.client.errors import NameServerUnreachable, NoRoute, RoutesNotKnownYet, TopicNotFound
from kerolox.client.nameservers import NameServers
from kerolox.clock import SYSTEM_CLOCK, Clock
from kerolox.errors import KeroloxError, RequestTimeout

log = logging.getLogger(__name__)

LOOKS_MAX = 15  # lookups of another leader, in about ten seconds; a later failure starts again


class Routes:
    """Routes of all topics that a client uses."""

    def __init__(
        self, nameservers: NameServers, on_change: Callable[[Route], None], clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self.known = RouteTable(nameservers.order, self._changed)
        self._nameservers = nameservers
        self._on_change = on_change
        self._clock = clock
        self._asking: dict[tuple[object, ...], asyncio.Task[Route]] = {}
        self._looking: dict[tuple[str, str], asyncio.Task[None]] = {}  # by topic and broker name
        self._gap = RefreshGap(clock.monotonic_s)
        self._waiting: dict[str, set[asyncio.Future[None]]] = {}  # by topic: waiters for a changed route
        self._in_vain = 0  # consecutive refreshes without an answering name server

    async def find(self, topic: str) -> Route:
        """Return the route, fetched if unknown. Raises a subclass of NoRoute, or AccessDenied."""
        return self.known.get(topic) or await self.refresh(topic)

    async def refresh(self, topic: str) -> Route:
        """Fetch the route now."""
        return await self._shared(self.known.refresh, topic)

    async def find_for_sending(self, topic: str, template: str, queues_max: int) -> Route:
        """Return a route with writable queues; see :meth:`RouteTable.find_for_sending`."""
        return await self._shared(self.known.find_for_sending, topic, template, queues_max)

    async def find_soon(self, topic: str, timeout_s: float, *, afresh: bool = False) -> Route:
        """Return the route, with retries until the timeout; ``afresh``: fetch it even if it is known."""
        return await self.patiently(
            topic, lambda: self._nameservers.follow(self.known.find(topic, afresh=afresh)), timeout_s
        )

    async def patiently(self, topic: str, find: Callable[[], Awaitable[Route]], timeout_s: float) -> Route:
        """Find a route, and retry temporary errors until the timeout. Raises the error, or RequestTimeout."""
        now_s = self._clock.monotonic_s
        retries = Retries(NAMESERVERS, now_s, deadline_s=now_s() + timeout_s)
        missing: NoRoute | None = None
        try:
            async with asyncio.timeout(max(0.0, timeout_s)) as limit:
                while True:
                    try:
                        return await find()
                    except NoRoute as error:
                        missing = error
                    await self._clock.sleep(retries.pause_after(missing))
        except TimeoutError:
            if not limit.expired():
                raise
            if missing is not None:
                raise missing from None
            addresses = ", ".join(self._nameservers.addresses)
            raise RequestTimeout(addresses, f"the route of topic {topic!r}", timeout_s) from None

    async def refresh_all(self, topics: Iterable[str]) -> None:
        """Refresh all these routes. A topic whose refresh fails keeps its route."""
        for topic in topics:
            try:
                await self.refresh(topic)
                self._in_vain = 0
            except TopicNotFound:
                continue  # normal for a topic that is not created yet
            except (NameServerUnreachable, RoutesNotKnownYet) as error:
                count = self._in_vain = self._in_vain + 1
                if count & (count - 1) == 0:  # repeated failures are counted, not logged each time
                    log.warning("routes_not_refreshed times=%d error=%r", count, str(error))
                return  # each further topic would take the same time
            except KeroloxError as error:
                log.warning("route_not_refreshed topic=%s error=%r", topic, str(error))

    # --- another leader -------------------------------------------------------------------------------

    def look_for_leader(self, topic: str, broker: str, failed: str | None) -> None:
        """Refresh the route until a broker name has another leader than ``failed``."""
        key = (topic, broker)
        if key not in self._looking and self._gap.is_over(key):
            task = asyncio.get_running_loop().create_task(self._look_for_leader(topic, broker, failed))
            task.add_done_callback(lambda _: self._looking.pop(key, None))
            self._looking[key] = task

    async def _look_for_leader(self, topic: str, broker: str, failed: str | None) -> None:
        for times in range(1, LOOKS_MAX + 1):
            await self.refresh_all([topic])
            route = self.known.get(topic)
            if route is None or route.leader(broker) not in (None, failed):
                return
            await self._clock.sleep(NAMESERVERS.pause_s(times))

    async def pause(self, topic: str, pause_s: float) -> None:
        """Wait for this time, or until the route of the topic changes."""
        waiter = asyncio.get_running_loop().create_future()
        waiting = self._waiting.setdefault(topic, set())
        waiting.add(waiter)
        timer = self._clock.call_later(pause_s, lambda: _wake(waiter))
        try:
            await waiter
        finally:
            timer.cancel()
            waiting.discard(waiter)
            if not waiting and self._waiting.get(topic) is waiting:
                del self._waiting[topic]

    def _changed(self, route: Route) -> None:
        self._on_change(route)
        for waiter in self._waiting.pop(route.topic, ()):
            _wake(waiter)

    # --- inside ---------------------------------------------------------------------------------------

    async def close(self) -> None:
        asking = [*self._asking.values(), *self._looking.values()]
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)

    async def _shared(self, find: Callable[..., Steps[Route]], *asked: object) -> Route:
        """Run steps to a route. Concurrent calls with equal arguments share the result."""
        key = (find.__name__, *asked)
        asking = self._asking.get(key)
        if asking is None:
            asking = asyncio.get_running_loop().create_task(self._nameservers.follow(find(*asked)))
            asking.add_done_callback(lambda task: self._answered(key, task))
            self._asking[key] = asking
        return await asyncio.shield(asking)

    def _answered(self, key: tuple[object, ...], task: asyncio.Task[Route]) -> None:
        self._asking.pop(key, None)
        # Retrieve the error, in case all callers have stopped waiting.
        if not task.cancelled():
            task.exception()


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
