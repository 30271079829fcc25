"""Waits of requests for messages: held pulls, and receives from several queues and topics.

A wait ends once: by a message of any of its queues, by its deadline, or with its caller. It then leaves every
table in one step. Ended waits continue in slices, so that a crowd does not stall the loop.

There is one timer, set to the earliest deadline. The deadlines of ended waits stay behind and are removed
when they are the majority.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
from collections import deque
from collections.abc import Callable, Hashable
from typing import Final, NamedTuple

from kerolox.clock import Clock, TimerHandle
from kerolox.protocol import properties as names
from kerolox.protocol.record_scan import Entry
from kerolox.store.disk.cut_note import Cut

log = logging.getLogger(__name__)

WAKE_SLICE: Final = 128  # waits continued in one turn of the loop
HELD_MAX: Final = 100_000
HELD_OF_ONE_MAX: Final = 10_000  # waits of one connection; no client has more queues
WAIT_MS_MAX: Final = 120_000  # the longest wait, even if the client asks for more
LEFT_BEHIND_MAX: Final = 1024  # deadlines of ended waits, beyond the number of waits
ANY_QUEUE: Final = -1

# Predicate: may an entry with these properties match? None matches everything.
PropertyFilter = Callable[[bytes], bool]
_News = list[tuple[int, bytes]]  # of one queue: offsets and properties of messages that have just arrived


class WaitPoint(NamedTuple):
    """WaitPoint at which messages are awaited: a queue from an offset on, or every queue of a topic."""

    topic: str
    queue_id: int  # or ANY_QUEUE; the topic need not exist
    offset: int = 0  # of the first message not seen yet


class Wait:
    """A request that waits for a message, and the callback that continues it.

    Waits with the same ``share`` take turns: a message ends the oldest of those at its queue and the oldest
    of those at its topic, where it would otherwise end all.
    """

    __slots__ = ("caller", "deadline_s", "ended", "filter", "points", "resume", "share")

    def __init__(
        self,
        points: tuple[WaitPoint, ...],
        deadline_s: float,
        resume: Callable[[], None],
        filter: PropertyFilter | None = None,
        caller: object = None,
        share: Hashable = None,
    ) -> None:
        self.points = points
        self.deadline_s = deadline_s
        self.resume = resume  # called once, unless the caller has gone
        self.filter = filter
        self.caller = caller
        self.share = share
        self.ended = False


class _Line:
    """Waits at one queue, or at one topic as a whole, with the offset each begins at, the oldest first."""

    __slots__ = ("each", "shared")

    def __init__(self) -> None:
        self.each: dict[Wait, int] = {}  # every message ends all of these
        self.shared: dict[Hashable, dict[Wait, int]] | None = None  # a message ends one of each share

    def add_shared(self, wait: Wait, offset: int) -> None:
        if self.shared is None:
            self.shared = {}
        self.shared.setdefault(wait.share, {})[wait] = offset

    def remove(self, wait: Wait) -> bool:
        """Remove a wait. Return True if none is left."""
        if wait.share is None:
            self.each.pop(wait, None)
        elif self.shared is not None and (waits := self.shared.get(wait.share)) is not None:
            waits.pop(wait, None)
            if not waits:
                del self.shared[wait.share]
        return not self.each and not self.shared

    def of(self, share: Hashable) -> dict[Wait, int]:
        return {} if self.shared is None else self.shared.get(share, {})

    def all(self) -> list[Wait]:
        return [*self.each, *itertools.chain.from_iterable((self.shared or {}).values())]

    def met(self, news: _News) -> list[Wait]:
        """Return the waits that these messages end."""
        last = news[-1][0]  # offsets of one queue ascend
        found: list[Wait] = []
        for wait, offset in self.each.items():
            if last >= offset and (wait.filter is None or _first(wait, offset, news) is not None):
                found.append(wait)
        if self.shared is None:
            return found
        for waits in self.shared.values():
            begin = 0
            for wait, offset in waits.items():
                at = _first(wait, offset, news, begin)
                if at is not None:
                    found.append(wait)
                    begin = at + 1
                    if begin == len(news):
                        break
        return found


def _first(wait: Wait, offset: int, news: _News, begin: int = 0) -> int | None:
    """Return the index of the first message, from ``begin`` on, that ends a wait; None if none does."""
    for at in range(begin, len(news)):
        arrived, properties = news[at]
        if arrived >= offset and (wait.filter is None or wait.filter(properties)):
            return at
    return None


class MessageWaits:
    """All waits of a broker for messages, by topic and queue, by caller and by deadline."""

    def __init__(
        self, clock: Clock, *, held_max: int = HELD_MAX, held_of_one_max: int = HELD_OF_ONE_MAX
    ) -> None:
        self._clock = clock
        self.held_max = held_max
        self.held_of_one_max = held_of_one_max
        self.held = 0
        self._lines: dict[bytes, dict[int, _Line]] = {}  # by topic and queue
        self._by_caller: dict[object, set[Wait]] = {}
        self._deadlines: list[tuple[float, int, Wait]] = []
        self._numbers = itertools.count()
        self._timer: TimerHandle | None = None
        self._timer_s = 0.0
        self._ready: deque[Wait] = deque()
        self._waking = False

    def add(self, wait: Wait) -> bool:
        """Register a wait at all its queues. Return False if too many wait already, in total or of its
        caller."""
        of_caller = self._by_caller.get(wait.caller)
        if of_caller is None:
            of_caller = self._by_caller[wait.caller] = set()
        if self.held >= self.held_max or len(of_caller) >= self.held_of_one_max:
            return False
        of_caller.add(wait)
        known = self._lines
        for topic, queue_id, offset in wait.points:
            key = topic.encode()
            lines = known.get(key)
            if lines is None:
                lines = known[key] = {}
            line = lines.get(queue_id)
            if line is None:
                line = lines[queue_id] = _Line()
            if wait.share is None:
                line.each[wait] = offset
            else:
                line.add_shared(wait, offset)
        self.held += 1
        self._set_deadline(wait)
        return True

    def _remove(self, wait: Wait) -> None:
        """Remove a wait from all its queues. Its deadline stays behind."""
        wait.ended = True
        self.held -= 1
        self._by_caller[wait.caller].discard(wait)
        for topic, queue_id, _ in wait.points:
            key = topic.encode()
            lines = self._lines.get(key)
            if lines is None or (line := lines.get(queue_id)) is None:
                continue  # a queue that was named twice
            if line.remove(wait):
                del lines[queue_id]
                if not lines:
                    del self._lines[key]

    def count(self, topic: str, queue_id: int, share: Hashable) -> int:
        """Return the number of waits of a share at a queue, or at any queue."""
        line = self._line(topic, queue_id)
        return 0 if line is None else len(line.of(share))

    def _line(self, topic: str, queue_id: int) -> _Line | None:
        return self._lines.get(topic.encode(), {}).get(queue_id)

    # --- messages --------------------------------------------------------------------------------------

    def arrived(self, entries: list[Entry]) -> None:
        """End waits for these messages. A listener of the dispatcher."""
        known = self._lines
        if not known:
            return
        news: dict[tuple[bytes, int], _News] = {}
        for _, _, queue_id, queue_offset, _, _, _, topic, properties in entries:
            if topic in known:
                news.setdefault((topic, queue_id), []).append((queue_offset, properties))
        if news:
            self._end_met(news)

    def arrived_light(self, entries: list[Entry]) -> None:
        """End waits for messages of the light queues that these messages name. A listener of the dispatcher,
        added only if light queues are filled."""
        known = self._lines
        if not known:
            return
        news: dict[tuple[bytes, int], _News] = {}
        for entry in entries:
            properties = entry[-1]
            if names.AT_INNER_MULTI_DISPATCH[1:] not in properties:
                continue
            wanted = (names.find(properties, names.AT_INNER_MULTI_DISPATCH) or b"").split(b",")
            offsets = (names.find(properties, names.AT_INNER_MULTI_QUEUE_OFFSET) or b"").split(b",")
            for topic, offset in zip(wanted, offsets, strict=False):
                if topic in known and offset.isdigit():
                    news.setdefault((topic, 0), []).append((int(offset), properties))
        self._end_met(news)

    def _end_met(self, news: dict[tuple[bytes, int], _News]) -> None:
        for (topic, queue_id), messages in news.items():
            lines = self._lines.get(topic)
            if lines is None:
                continue
            line, of_topic = lines.get(queue_id), lines.get(ANY_QUEUE)
            if line is not None:
                self._end(line.met(messages))
            if of_topic is not None:
                self._end(of_topic.met(messages))

    # --- other ends --------------------------------------------------------------------------------------

    def wake_next(self, topic: str, queue_id: int, share: Hashable) -> None:
        """End the oldest wait of a share at a queue, or at any queue: more messages are available to it."""
        line = self._line(topic, queue_id)
        if line is not None:
            self._end(list(itertools.islice(line.of(share), 1)))

    def wake_queue(self, topic: str, queue_id: int) -> None:
        """End all waits for a queue that was reset or deleted."""
        for at in (queue_id, ANY_QUEUE):
            line = self._line(topic, at)
            if line is not None:
                self._end(line.all())

    def wake_all(self) -> None:
        """End every wait: clients are sent away, or the role or rights have changed."""
        self._end(list(itertools.chain.from_iterable(self._by_caller.values())))

    def wake_shared(self) -> None:
        """End every wait with a share: the broker serves no more pops."""
        waits = itertools.chain.from_iterable(self._by_caller.values())
        self._end([wait for wait in waits if wait.share is not None])

    async def truncated(self, cut: Cut) -> None:
        """End every wait after a truncation of the log: reads beyond the end of their queue get its new
        end."""
        self.wake_all()

    def forget(self, caller: object) -> None:
        """Remove the waits of a closed connection."""
        for wait in tuple(self._by_caller.get(caller, ())):
            self._remove(wait)
        self._by_caller.pop(caller, None)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._lines.clear()
        self._by_caller.clear()
        self._deadlines.clear()
        self._ready.clear()
        self.held = 0

    def _end(self, waits: list[Wait]) -> None:
        """Remove waits, and continue their requests in the next turns of the loop."""
        for wait in waits:
            if wait.ended:
                continue
            self._remove(wait)
            self._ready.append(wait)
            if not self._waking:
                self._waking = True
                asyncio.get_running_loop().call_soon(self._wake_slice)

    def _wake_slice(self) -> None:
        ready = self._ready
        for _ in range(min(len(ready), WAKE_SLICE)):
            try:
                ready.popleft().resume()
            except Exception:
                log.exception("wait_not_continued next='nothing: the client repeats the request'")
        if ready:
            asyncio.get_running_loop().call_soon(self._wake_slice)
        else:
            self._waking = False

    # --- deadlines ---------------------------------------------------------------------------------------

    def _set_deadline(self, wait: Wait) -> None:
        if len(self._deadlines) > 2 * self.held + LEFT_BEHIND_MAX:
            self._deadlines = [deadline for deadline in self._deadlines if not deadline[2].ended]
            heapq.heapify(self._deadlines)
        heapq.heappush(self._deadlines, (wait.deadline_s, next(self._numbers), wait))
        self._set_timer()

    def _set_timer(self) -> None:
        deadline_s = self._deadlines[0][0]
        if self._timer is not None:
            if self._timer_s <= deadline_s:
                return
            self._timer.cancel()
        self._timer_s = deadline_s
        self._timer = self._clock.call_later(max(0.0, deadline_s - self._clock.monotonic_s()), self._expire)

    def _expire(self) -> None:
        self._timer = None
        now_s = self._clock.monotonic_s()
        deadlines = self._deadlines
        due: list[Wait] = []
        while deadlines and (deadlines[0][0] <= now_s or deadlines[0][2].ended):
            due.append(heapq.heappop(deadlines)[2])
        self._end(due)
        if deadlines:
            self._set_timer()
