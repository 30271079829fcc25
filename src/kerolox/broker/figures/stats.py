"""Statistics: recent numbers of messages received by topic, and delivered by topic and group.

Counting a message takes a few additions to plain numbers. Everything else is done by one timer: rates are
computed from samples of those numbers, taken every second for the broker, and every ten seconds, ten minutes
and hour for each topic, group and queue, as in RocketMQ.
"""

from __future__ import annotations

import bisect
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final, TypeVar

from kerolox.broker.bounds import FLOWS_MAX
from kerolox.clock import Clock, TimerHandle
from kerolox.protocol.bodies.stats import BrokerStats, StatsItem
from kerolox.store.log.cursors import LIGHT_PREFIX

TICK_S: Final = 1.0
RATE_WINDOWS_S: Final = (10, 60, 600)
MINUTE, HOUR, DAY = range(3)
# Ticks between two samples, and samples kept. The value is the last sample minus the first.
_EVERY: Final = (10, 600, 3600)
_KEPT: Final = (7, 7, 25)
SILENT_S_MAX: Final = 2 * 24 * 3600  # a flow without traffic for this time is forgotten

# Upper bounds of the classes of put times, in ms, and RocketMQ's names for them.
_PUT_MS: Final = (0.5, 10, 50, 100, 200, 500, 1000, 2000, 3000, 4000, 5000, 10_000)
_PUT_CLASSES: Final = (
    "<=0ms", "0~10ms", "10~50ms", "50~100ms", "100~200ms", "200~500ms", "500ms~1s",
    "1~2s", "2~3s", "3~4s", "4~5s", "5~10s", "10s~",
)  # fmt: skip

StatKey = TypeVar("StatKey")
Sample = tuple[int, int, int, int]  # wall ms, messages, bytes, times


class Flow:
    """Messages of one kind, counted since the start: number, bytes, and requests."""

    __slots__ = ("behind_bytes", "is_system", "messages", "samples", "seen_s", "size_bytes", "times")

    def __init__(self, now_ms: int, now_s: float, is_system: bool = False) -> None:
        self.is_system = is_system  # a system topic, which the totals exclude
        self.messages = 0
        self.size_bytes = 0
        self.times = 0
        self.behind_bytes = 0  # of a group in a queue: bytes behind the end at its last read
        self.seen_s = now_s  # time of the last sample with traffic
        first = (now_ms, 0, 0, 0)
        self.samples = tuple(deque([first], kept) for kept in _KEPT)

    def sample(self, window: int, now_ms: int) -> None:
        self.samples[window].append((now_ms, self.messages, self.size_bytes, self.times))

    def over(self, window: int, number: int) -> StatsItem:
        """Return the sum over a window: of messages (1) or bytes (2)."""
        samples = self.samples[window]
        first, last = samples[0], samples[-1]
        total = last[number] - first[number]
        elapsed_ms = last[0] - first[0]
        times = last[3] - first[3]
        return StatsItem(
            sum=total,
            tps=total * 1000 / elapsed_ms if elapsed_ms > 0 else 0.0,
            avgpt=total / times if times > 0 else 0.0,
        )

    def rate(self) -> float:
        """Messages per second in the last minute."""
        return self.over(MINUTE, 1).tps


class Rates:
    """Totals of the broker, sampled every second: puts, gets with and without messages, delivered
    messages."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, tuple[int, ...]]] = deque(maxlen=max(RATE_WINDOWS_S) + 1)

    def sample(self, now_s: float, totals: tuple[int, ...]) -> None:
        self._samples.append((now_s, totals))

    def over(self, number: int) -> list[float]:
        """Return rates per second over the last 10, 60 and 600 seconds, or as long as there are samples."""
        samples = self._samples
        if len(samples) < 2:
            return [0.0 for _ in RATE_WINDOWS_S]
        last_s, last = samples[-1]
        rates = []
        for window_s in RATE_WINDOWS_S:
            first_s, first = samples[max(0, len(samples) - 1 - window_s)]
            rates.append((last[number] - first[number]) / (last_s - first_s) if last_s > first_s else 0.0)
        return rates


class Statistics:
    """Statistics of a broker. ``stored`` and ``served`` are callbacks for sends and pulls."""

    def __init__(
        self, cluster: str, clock: Clock, is_system: Callable[[str], bool] = lambda topic: False
    ) -> None:
        self._cluster = cluster
        self._clock = clock
        self._is_system = is_system  # returns whether a topic is a system topic
        self.puts: dict[str, Flow] = {}  # topic
        self.gets: dict[tuple[str, str], Flow] = {}  # topic, group
        self.queue_gets: dict[tuple[str, int, str], Flow] = {}  # topic, queue id, group
        self.send_backs: dict[tuple[str, str], Flow] = {}  # topic, group
        self.dead_letters: dict[tuple[str, str], Flow] = {}  # topic, group
        now_ms, now_s = clock.wall_ms(), clock.monotonic_s()
        self.all_puts = Flow(now_ms, now_s)
        self.all_gets = Flow(now_ms, now_s)
        self._others = Flow(now_ms, now_s)  # counts everything without a separate flow; not exported
        self._user_puts = 0  # messages, without those of system topics
        self._user_gets = 0
        self.started_ms = now_ms
        self.rates = Rates()
        self.put_times = [0] * len(_PUT_CLASSES)
        self.put_ms_max = 0.0
        self.get_ms_max = 0.0  # the longest read that waited for the disk; other reads take less than 1 ms
        # Puts and gets at the last two midnights.
        self.yesterday_morning = (0, 0)
        self.today_morning = (0, 0)
        self._misses: Callable[[], int] = lambda: 0
        self._ticks = 0
        self._ticked_s = now_s
        self._day = _day(now_ms)
        self._timer: TimerHandle | None = None

    # --- counting -----------------------------------------------------------------------------------

    def stored(self, topic: str, messages: int, size_bytes: int, times: int = 1) -> None:
        try:
            flow = self.puts[topic]
        except KeyError:
            flow = self._add(self.puts, topic)
        flow.messages += messages
        flow.size_bytes += size_bytes
        flow.times += times
        if not flow.is_system:
            self._user_puts += messages
        flow = self.all_puts
        flow.messages += messages
        flow.size_bytes += size_bytes
        flow.times += times

    def served(
        self, group: str, topic: str, queue_id: int, messages: int, size_bytes: int, behind_bytes: int
    ) -> None:
        queue = self.queue_gets.get((topic, queue_id, group))
        if queue is None:
            queue = self._add(self.queue_gets, (topic, queue_id, group))
        queue.behind_bytes = behind_bytes
        whole = self.gets.get((topic, group))
        if whole is None:
            whole = self._add(self.gets, (topic, group))
        if not whole.is_system:
            self._user_gets += messages
        for flow in (queue, whole, self.all_gets):
            flow.messages += messages
            flow.size_bytes += size_bytes
            flow.times += 1

    def served_light(
        self, group: str, topic: str, queue_id: int, messages: int, size_bytes: int, behind_bytes: int
    ) -> None:
        """Count messages pulled from light queues: all light queues and all their groups count as one."""
        group = LIGHT_PREFIX if group.startswith(LIGHT_PREFIX) else group
        topic = LIGHT_PREFIX if topic.startswith(LIGHT_PREFIX) else topic
        self.served(group, topic, queue_id, messages, size_bytes, behind_bytes)

    def delivered_later(
        self, group: str, level_topic: str, queue_id: int, topic: str, size: int, messages: int = 1
    ) -> None:
        """Count delayed messages that moved from the queue of their level to their own topic. They are not in
        the broker's total of delivered messages, because no consumer has them yet."""
        queue = self.queue_gets.get((level_topic, queue_id, group))
        if queue is None:
            queue = self._add(self.queue_gets, (level_topic, queue_id, group))
        whole = self.gets.get((level_topic, group))
        if whole is None:
            whole = self._add(self.gets, (level_topic, group))
        for flow in (queue, whole):
            flow.messages += messages
            flow.size_bytes += size
            flow.times += messages
        self.stored(topic, messages, size, messages)

    def caught_up(self, group: str, topic: str, queue_id: int) -> None:
        """Note that a group has reached the end of a queue."""
        flow = self.queue_gets.get((topic, queue_id, group))
        if flow is not None:
            flow.behind_bytes = 0

    def forget_behind(self, group: str) -> None:
        """Forget the lag of a group."""
        for (_, _, other), flow in self.queue_gets.items():
            if other == group:
                flow.behind_bytes = 0

    def sent_back(self, group: str, topic: str, *, dead: bool = False) -> None:
        """Count a message that a group sent back; ``dead``: it became a dead letter."""
        table = self.dead_letters if dead else self.send_backs
        flow = table.get((topic, group))
        if flow is None:
            flow = self._add(table, (topic, group))
        flow.messages += 1
        flow.times += 1

    def read_cold(self, elapsed_ms: float) -> None:
        self.get_ms_max = max(self.get_ms_max, elapsed_ms)

    def count_misses(self, misses: Callable[[], int]) -> None:
        """Set the function that returns the number of pulls without messages since the start."""
        self._misses = misses

    def timed(self, write: Callable[[], None]) -> Callable[[], None]:
        """Wrap a function that writes: its duration is recorded for all messages that it stored."""
        puts = self.all_puts
        noted = puts.messages
        monotonic_s = self._clock.monotonic_s

        def timed_write() -> None:
            nonlocal noted
            if puts.messages == noted:
                write()
                return
            started_s = monotonic_s()
            write()
            elapsed_ms = (monotonic_s() - started_s) * 1000
            self.put_times[bisect.bisect_left(_PUT_MS, elapsed_ms)] += puts.messages - noted
            noted = puts.messages
            self.put_ms_max = max(self.put_ms_max, elapsed_ms)

        return timed_write

    def forget_topic(self, topic: str) -> None:
        self.puts.pop(topic, None)
        for pairs in (self.gets, self.send_backs, self.dead_letters):
            for pair in [pair for pair in pairs if pair[0] == topic]:
                del pairs[pair]
        for key in [key for key in self.queue_gets if key[0] == topic]:
            del self.queue_gets[key]

    def forget_group(self, group: str) -> None:
        for pairs in (self.gets, self.send_backs, self.dead_letters):
            for pair in [pair for pair in pairs if pair[1] == group]:
                del pairs[pair]
        for key in [key for key in self.queue_gets if key[2] == group]:
            del self.queue_gets[key]

    # --- sampling -----------------------------------------------------------------------------------

    def start(self) -> None:
        self._ticked_s = self._clock.monotonic_s()
        self._sample_rates(self._ticked_s)
        self._timer = self._clock.beat(TICK_S, self._tick)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tick(self) -> None:
        self._timer = self._clock.beat(TICK_S, self._tick)
        now_ms, now_s = self._clock.wall_ms(), self._clock.monotonic_s()
        missed = max(0, round((now_s - self._ticked_s) / TICK_S) - 1)  # the loop was late, or time was moved
        self._ticked_s = now_s
        before, self._ticks = self._ticks, self._ticks + missed + 1
        self._sample_rates(now_s, missed)
        for window, every in enumerate(_EVERY):
            due = self._ticks // every - before // every
            for ago in reversed(range(min(due, _KEPT[window]))):
                for flow in self._flows():
                    flow.sample(window, now_ms - round(ago * every * TICK_S * 1000))
            if due and window == HOUR:
                self._forget_silent()
        if _day(now_ms) != self._day:
            self._day = _day(now_ms)
            self.yesterday_morning = self.today_morning
            self.today_morning = self.totals

    def _sample_rates(self, now_s: float, missed: int = 0) -> None:
        gets = self.all_gets
        totals = (self.all_puts.messages, gets.times, self._misses(), gets.messages)
        for ago in reversed(range(min(missed, max(RATE_WINDOWS_S)) + 1)):
            self.rates.sample(now_s - ago * TICK_S, totals)

    def _flows(self) -> Iterator[Flow]:
        yield self.all_puts
        yield self.all_gets
        for table in self._tables():
            yield from table.values()

    def _tables(self) -> tuple[dict[object, Flow], ...]:
        # Their keys differ, but are not used here.
        return (self.puts, self.gets, self.queue_gets, self.send_backs, self.dead_letters)  # type: ignore[return-value]

    def _forget_silent(self) -> None:
        now_s = self._clock.monotonic_s()
        for table in self._tables():
            for key, flow in list(table.items()):
                hour = flow.samples[HOUR]
                if hour[0][3] != hour[-1][3]:
                    flow.seen_s = now_s
                elif now_s - flow.seen_s > SILENT_S_MAX:
                    del table[key]

    def _add(self, table: dict[StatKey, Flow], key: StatKey) -> Flow:
        """Create a flow; return the shared one if there are too many."""
        if len(table) >= FLOWS_MAX:
            return self._others
        topic = str(key[0]) if isinstance(key, tuple) else str(key)
        flow = table[key] = Flow(self._clock.wall_ms(), self._clock.monotonic_s(), self._is_system(topic))
        return flow

    # --- queries ------------------------------------------------------------------------------------

    @property
    def totals(self) -> tuple[int, int]:
        """Messages received and delivered since the start, without those of system topics, as RocketMQ counts
        them."""
        return self._user_puts, self._user_gets

    def put_rate(self, topic: str) -> float:
        flow = self.puts.get(topic)
        return 0.0 if flow is None else flow.rate()

    def get_rate(self, group: str, topic: str) -> float:
        flow = self.gets.get((topic, group))
        return 0.0 if flow is None else flow.rate()

    def behind_by_group(self) -> dict[str, int]:
        """Return for each group the bytes it was behind at its last read, in its slowest queue."""
        behind: dict[str, int] = {}
        for (_, _, group), flow in self.queue_gets.items():
            behind[group] = max(behind.get(group, 0), flow.behind_bytes)
        return behind

    def put_distribution(self) -> str:
        """Return the number of messages by class of write time, as in RocketMQ's runtime information."""
        return " ".join(f"[{name}]:{count}" for name, count in zip(_PUT_CLASSES, self.put_times, strict=True))

    def put_ms_of(self, share: float) -> float:
        """Return the upper bound of the class below which this share of all puts lies."""
        wanted = sum(self.put_times) * share
        passed = 0
        for count, bound_ms in zip(self.put_times, _PUT_MS, strict=False):
            passed += count
            if passed and passed >= wanted:
                return bound_ms
        return self.put_ms_max

    def named(self, name: str, key: str) -> BrokerStats | None:
        """Return one figure by RocketMQ's name and key; None if it does not exist."""
        flow, number = self._find(name, key)
        if flow is None:
            return None
        return BrokerStats(
            stats_minute=flow.over(MINUTE, number),
            stats_hour=flow.over(HOUR, number),
            stats_day=flow.over(DAY, number),
        )

    def _find(self, name: str, key: str) -> tuple[Flow | None, int]:
        number = 2 if name.endswith("_SIZE") else 1
        if name in ("TOPIC_PUT_NUMS", "TOPIC_PUT_SIZE"):
            return self.puts.get(key), number
        topic, _, rest = key.partition("@")
        if name in ("GROUP_GET_NUMS", "GROUP_GET_SIZE"):
            return self.gets.get((topic, rest)), number
        if name == "SNDBCK_PUT_NUMS":
            return self.send_backs.get((topic, rest)), number
        if name == "DLQ_PUT_NUMS":
            return self.dead_letters.get((topic, rest)), number
        if name in ("QUEUE_GET_NUMS", "QUEUE_GET_SIZE"):
            queue_id, _, group = rest.partition("@")
            return self.queue_gets.get((topic, int(queue_id) if queue_id.isdigit() else -1, group)), number
        if key == self._cluster and name == "BROKER_PUT_NUMS":
            return self.all_puts, number
        if key == self._cluster and name == "BROKER_GET_NUMS":
            return self.all_gets, number
        return None, number


def _day(now_ms: int) -> int:
    """Return a number that changes at local midnight."""
    now = time.localtime(now_ms / 1000)
    return now.tm_year * 1000 + now.tm_yday
