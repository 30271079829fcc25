"""The routes of a client with an event loop, kept fresh.

A route is asked for when it is first needed, and again every 30 seconds. A name server that was started again
learns of its brokers one by one: what it cannot know yet is asked for again, as long as the caller has time.
When a leader fails another broker of its name may lead a moment later: that is looked for, and who waits to
send or to read hears of it at once.
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

LOOKS_MAX = 15  # for another leader, in about ten seconds; who fails after that begins anew


class Routes:
    """The routes of all topics a client has to do with."""

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
        self._waiting: dict[str, set[asyncio.Future[None]]] = {}  # by topic: until its route changes
        self._in_vain = 0  # how often no name server answered, in a row

    async def find(self, topic: str) -> Route:
        """The route, asked for if it is not known. Raises a kind of NoRoute, or AccessDenied."""
        return self.known.get(topic) or await self.refresh(topic)

    async def refresh(self, topic: str) -> Route:
        """Ask for the route now."""
        return await self._shared(self.known.refresh, topic)

    async def find_for_sending(self, topic: str, template: str, queues_max: int) -> Route:
        """A route with queues to write: see :meth:`RouteTable.find_for_sending`."""
        return await self._shared(self.known.find_for_sending, topic, template, queues_max)

    async def find_soon(self, topic: str, timeout_s: float, *, afresh: bool = False) -> Route:
        """The route for whoever cannot go on without; ``afresh`` even if one is known."""
        return await self.patiently(
            topic, lambda: self._nameservers.follow(self.known.find(topic, afresh=afresh)), timeout_s
        )

    async def patiently(self, topic: str, find: Callable[[], Awaitable[Route]], timeout_s: float) -> Route:
        """Find a route, again and again while what is in the way may pass. Raises that, or RequestTimeout."""
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
        """Ask for all of them; a topic whose route cannot be had keeps what it has."""
        for topic in topics:
            try:
                await self.refresh(topic)
                self._in_vain = 0
            except TopicNotFound:
                continue  # normal for what is yet to be created
            except (NameServerUnreachable, RoutesNotKnownYet) as error:
                count = self._in_vain = self._in_vain + 1
                if count & (count - 1) == 0:  # one that stays away is counted, not repeated
                    log.warning("routes_not_refreshed times=%d error=%r", count, str(error))
                return  # the others would only take as long again
            except KeroloxError as error:
                log.warning("route_not_refreshed topic=%s error=%r", topic, str(error))

    # --- another leader -------------------------------------------------------------------------------

    def look_for_leader(self, topic: str, broker: str, failed: str | None) -> None:
        """Who leads a broker name failed, at this address, or nobody does: ask until another one leads."""
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
        """Wait so long, or until the route of the topic changes."""
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
        """Follow steps to a route. Who asks the same at the same time shares the answer."""
        key = (find.__name__, *asked)
        asking = self._asking.get(key)
        if asking is None:
            asking = asyncio.get_running_loop().create_task(self._nameservers.follow(find(*asked)))
            asking.add_done_callback(lambda task: self._answered(key, task))
            self._asking[key] = asking
        return await asyncio.shield(asking)

    def _answered(self, key: tuple[object, ...], task: asyncio.Task[Route]) -> None:
        self._asking.pop(key, None)
        # Every caller may have given up waiting; then nobody else would look at the error.
        if not task.cancelled():
            task.exception()


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
