"""Shop of ``kerolox demo``: sends orders, bills them, and measures both."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from kerolox.clock import SYSTEM_CLOCK
from kerolox.errors import KeroloxError

if TYPE_CHECKING:
    from kerolox import Message, Producer, PushConsumer, Received
    from kerolox.demo.broker import DemoBroker

TOPIC, QUEUES = "demo-orders", 8
ALERTS, ALERT_FROM = "demo-alerts", 990
REGIONS = ("east", "north", "north", "north", "north", "south", "south", "south", "west", "west")
IN_FLIGHT = 64
BATCH = 100
BODY_BYTES = 200
RETRY_EVERY = 500  # one of this many orders is rejected at the first attempt
PHASE_S_MAX = 6.0  # a slow machine sends fewer messages, not longer
ARRIVE_S_MAX = 20.0
STEP_MS = 500  # interval of figures over time

STEADY_RATE = 1500  # orders per second placed by customers
STEADY_TICK_S = 0.02
LATE_S_MAX = 1.0  # backlog that a slow machine catches up, at most
AWAY_S_MAX = 30.0
UNDER_WAY_MAX = 20_000
KILL_AFTER = 0.4  # of the time of steady load
TRY_AGAIN_S = 0.05

Tick = Callable[[int], object]


class Shop:
    """Producer and consumer of orders. Each order has a unique number, by which it is tracked."""

    def __init__(self, producer: Producer, consumer: PushConsumer, broker: DemoBroker) -> None:
        self.on_consumed: Callable[[], object] = lambda: None
        self.seen: Counter[int] = Counter()  # order → how often it was consumed
        self.sent: set[int] = set()  # acknowledged by the broker
        self._known: set[int] = set()  # orders that were consumed or rejected
        self.large = 0  # orders that alerts are sent for
        self.timeline = Timeline()
        self.killed_ms = self.ready_ms = self.back_ms = 0  # since the start of the timeline
        self._producer = producer
        self._broker = broker
        self._number = 0
        self._full_from = 1 << 62  # orders behind this one are sent at full speed
        self._steady = self._singles = self._batched = 0
        self._steady_s = self._singles_s = self._batched_s = 0.0
        self._send_ms: list[float] = []
        self._batch_ms: list[float] = []
        self._arrive_ms: list[float] = []
        self._first_s = self._last_s = 0.0
        self._refused = 0
        self._again = asyncio.Semaphore(IN_FLIGHT)
        self._tried_again = 0
        consumer.subscribe(TOPIC, self.bill, batch=32)

    # --- consuming ----------------------------------------------------------------------------

    async def bill(self, messages: list[Received]) -> None:
        from kerolox import Retry

        now_ms, now_s = SYSTEM_CLOCK.wall_ms(), SYSTEM_CLOCK.monotonic_s()
        refused: list[Received] = []
        for message in messages:
            number = number_of(message.body)
            if message.reconsume_times == 0:
                self._arrive_ms.append(now_ms - message.born_timestamp)
                if number not in self._known:
                    self._known.add(number)
                    self.timeline.count("consumed")
                if number > self._full_from:  # only full speed; the wait for retries does not count
                    self._first_s, self._last_s = self._first_s or now_s, now_s
                if number % RETRY_EVERY == 0:
                    refused.append(message)
                    continue
            self.seen[number] += 1
        self.on_consumed()
        if refused:
            self._refused += len(refused)
            raise Retry("the bank is closed", level=1, messages=refused)

    async def wait_arrived(self) -> None:
        """Wait until all sent orders were consumed, including rejected ones, for ARRIVE_S_MAX at most."""
        await self.wait_for(lambda: self.sent <= self.seen.keys())

    async def end_steady(self) -> None:
        """Wait until all orders of the steady load have arrived, and end the timeline."""
        await self.wait_arrived()
        self.timeline.end()

    async def wait_for(self, condition: Callable[[], bool]) -> None:
        end_s = SYSTEM_CLOCK.monotonic_s() + ARRIVE_S_MAX
        while not condition() and SYSTEM_CLOCK.monotonic_s() < end_s:
            await SYSTEM_CLOCK.sleep(0.05)

    # --- sending ------------------------------------------------------------------------------

    async def send_steadily(self, seconds: float, tick: Tick) -> None:
        """Send orders at a fixed rate, also while no broker runs; kill and restart the broker meanwhile."""
        self.timeline.begin()
        began_s = SYSTEM_CLOCK.monotonic_s()
        under_way: set[asyncio.Task[None]] = set()
        kill = asyncio.ensure_future(self._kill_after(seconds * KILL_AFTER))
        try:
            placed = 0.0
            while (now_s := SYSTEM_CLOCK.monotonic_s() - began_s) < self._enough_s(seconds):
                wanted = now_s * STEADY_RATE
                placed = max(placed, wanted - LATE_S_MAX * STEADY_RATE)
                for _ in range(min(int(wanted - placed), UNDER_WAY_MAX - len(under_way))):
                    task = asyncio.ensure_future(self._send_until_taken(self._next()))
                    under_way.add(task)
                    task.add_done_callback(under_way.discard)
                    placed += 1
                self.timeline.note("memory", self._broker.memory_bytes)
                tick(len(self.sent))
                await SYSTEM_CLOCK.sleep(STEADY_TICK_S)
            await kill
            while under_way:
                await asyncio.wait(under_way)
        finally:
            kill.cancel()
            for task in under_way:
                task.cancel()
        self._steady, self._steady_s = len(self.sent), SYSTEM_CLOCK.monotonic_s() - began_s
        tick(self._steady)

    def _enough_s(self, seconds: float) -> float:
        """Return the duration of the load; it continues for some time after the broker is back."""
        if not self.back_ms:
            return max(seconds, self.killed_ms / 1000 + AWAY_S_MAX)
        return max(seconds, self.back_ms / 1000 + seconds * (1 - KILL_AFTER) / 2)

    async def _kill_after(self, seconds: float) -> None:
        await SYSTEM_CLOCK.sleep(seconds)
        self.killed_ms = self.timeline.now_ms
        await self._broker.kill()
        await self._broker.start()
        self.ready_ms = self.timeline.now_ms

    async def _send_until_taken(self, number: int) -> None:
        """Send an order, and retry until the broker acknowledges it."""
        from kerolox import Message

        at_s = SYSTEM_CLOCK.monotonic_s()
        self.timeline.count("placed")
        message = Message(TOPIC, _body(number), keys=f"o-{number}")
        try:
            await self._producer.send(message)
        except KeroloxError:
            async with self._again:  # bounds the number of concurrent retries
                await self._send_again(message)
        self._taken(number)
        self.timeline.count("sent")
        self.timeline.add("send_ms", (SYSTEM_CLOCK.monotonic_s() - at_s) * 1000)
        if self.ready_ms and not self.back_ms:
            self.back_ms = self.timeline.now_ms

    async def _send_again(self, message: Message) -> None:
        while True:
            self._tried_again += 1
            try:
                await self._producer.send(message)
                return
            except KeroloxError:
                await SYSTEM_CLOCK.sleep(TRY_AGAIN_S)

    async def send_singly(self, count: int, tick: Tick) -> None:
        from kerolox import Message

        began_s = SYSTEM_CLOCK.monotonic_s()
        numbers = iter(range(count))
        before = len(self.sent)
        self._full_from = self._number

        async def work() -> None:
            for _ in numbers:
                at_s = SYSTEM_CLOCK.monotonic_s()
                if at_s - began_s > PHASE_S_MAX:
                    return
                number = self._next()
                await self._producer.send(Message(TOPIC, _body(number), keys=f"o-{number}"))
                self._send_ms.append((SYSTEM_CLOCK.monotonic_s() - at_s) * 1000)
                self._taken(number)
                if number % 100 == 0:
                    tick(len(self.sent) - before)

        await asyncio.gather(*(work() for _ in range(IN_FLIGHT)))
        self._singles = len(self.sent) - before
        self._singles_s = SYSTEM_CLOCK.monotonic_s() - began_s
        tick(self._singles)

    async def send_batches(self, count: int, tick: Tick) -> None:
        from kerolox import Message

        began_s = SYSTEM_CLOCK.monotonic_s()
        for first in range(0, count, BATCH):
            at_s = SYSTEM_CLOCK.monotonic_s()
            if at_s - began_s > PHASE_S_MAX:
                break
            numbers = [self._next() for _ in range(min(BATCH, count - first))]
            await self._producer.send_batch([Message(TOPIC, _body(number)) for number in numbers])
            self._batch_ms.append((SYSTEM_CLOCK.monotonic_s() - at_s) * 1000)
            for number in numbers:
                self._taken(number)
            self._batched += len(numbers)
            tick(self._batched)
        self._batched_s = SYSTEM_CLOCK.monotonic_s() - began_s

    def _next(self) -> int:
        self._number += 1
        return self._number

    def _taken(self, number: int) -> None:
        self.sent.add(number)
        self.large += amount(number) >= ALERT_FROM

    # --- results ------------------------------------------------------------------------------

    def figures(self) -> dict[str, Any]:
        at_full_speed = len(self.seen) - self._steady
        return {
            "steady": {
                **_line(self._steady, self._steady_s, self.timeline.all("send_ms")),
                "seconds": round(self._steady_s, 1),
                "brokerKilledAtS": round(self.killed_ms / 1000, 2) if self._steady else None,
                "brokerAwayMs": self.back_ms - self.killed_ms if self._steady else None,
                "sentAgain": self._tried_again,
            },
            "sent": _line(self._singles, self._singles_s, self._send_ms),
            "sentInBatches": _line(self._batched, self._batched_s, self._batch_ms),
            "consumed": {
                **_line(len(self.seen), 0, self._arrive_ms),
                "perSecond": _rate(at_full_speed, self._last_s - self._first_s),
            },
            "acknowledged": len(self.sent),
            "refusedOnce": self._refused,
            "missing": len(self.sent - self.seen.keys()),
            "twice": sum(times > 1 for times in self.seen.values()),
            "brokerMemoryBytes": max(self.timeline.all("memory"), default=None),
        }


class Timeline:
    """Figures for each time step since the start."""

    def __init__(self) -> None:
        self.began_ms = 0  # since 1970
        self.steps = 0  # set at the end
        self._began_s = 0.0
        self._counts: dict[str, Counter[int]] = defaultdict(Counter)
        self._values: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))

    def begin(self) -> None:
        self.began_ms, self._began_s = SYSTEM_CLOCK.wall_ms(), SYSTEM_CLOCK.monotonic_s()

    def end(self) -> None:
        self.steps = 1 + max((step for counts in self._counts.values() for step in counts), default=0)

    @property
    def now_ms(self) -> int:
        return int((SYSTEM_CLOCK.monotonic_s() - self._began_s) * 1000)

    def count(self, what: str) -> None:
        if self.began_ms and not self.steps:
            self._counts[what][self.now_ms // STEP_MS] += 1

    def add(self, what: str, value: float) -> None:
        self._values[what][self.now_ms // STEP_MS].append(value)

    def note(self, what: str, value: float | None) -> None:
        """Add a value unless it is None."""
        if value is not None:
            self.add(what, value)

    def all(self, what: str) -> list[float]:
        return [value for step in sorted(self._values[what]) for value in self._values[what][step]]

    def rates(self, what: str, steps: int) -> list[float]:
        """Return the events per second of each step."""
        return [self._counts[what][step] * 1000 / STEP_MS for step in range(steps)]

    def totals(self, what: str, steps: int) -> list[int]:
        """Return the running totals at each step."""
        return list(accumulate(self._counts[what][step] for step in range(steps)))

    def shares(self, what: str, share: float, steps: int) -> list[float | None]:
        """Return the quantile ``share`` of the values of each step; None for steps without values."""
        found = self._values[what]
        return [percentile(sorted(found[step]), share) if step in found else None for step in range(steps)]


def _body(number: int) -> bytes:
    """Return an order as JSON; all orders have the same length."""
    region = REGIONS[number % len(REGIONS)]
    order = f'{{"order":{number:8},"region":"{region}","amount":{amount(number):.2f},"note":"'
    return f'{order:.<{BODY_BYTES - 2}}"}}'.encode()


def number_of(body: bytes) -> int:
    return int(body[9:17])


def amount(number: int) -> float:
    return number * 7919 % 100_000 / 100


def _rate(count: int, seconds: float) -> int:
    return round(count / seconds) if seconds > 0 else count


def _line(count: int, seconds: float, times_ms: Sequence[float]) -> dict[str, Any]:
    ordered = sorted(times_ms)
    return {
        "messages": count,
        "perSecond": _rate(count, seconds),
        "p50Ms": percentile(ordered, 0.50),
        "p99Ms": percentile(ordered, 0.99),
    }


def percentile(ordered: Sequence[float], part: float) -> float:
    return round(float(ordered[min(len(ordered) - 1, int(len(ordered) * part))]), 1) if ordered else 0.0
