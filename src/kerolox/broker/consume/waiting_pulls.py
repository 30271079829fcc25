"""Pulls held until a message arrives or their time is over.

Pulls are held by queue. A dispatched batch wakes the pulls of its queues whose filter may match. Many pulls
are woken in slices, so that they do not stall the loop. Held pulls cost nothing while they wait: there is one
timer, set to the earliest deadline. Woken pulls leave their deadlines behind; when these are the majority,
they are removed.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
from collections import deque
from collections.abc import Callable, Iterable

from kerolox.clock import Clock, TimerHandle
from kerolox.protocol import properties as names
from kerolox.protocol.record_scan import Entry
from kerolox.store.disk.cut_note import Cut

log = logging.getLogger(__name__)

WAKE_SLICE = 128  # pulls answered in one turn of the loop
HELD_MAX = 100_000
HELD_OF_ONE_MAX = 10_000  # held pulls of one connection; no client has more queues
LEFT_BEHIND_MAX = 1024  # deadlines of finished pulls, beyond the number of held pulls

# Predicate: may an entry with these properties match? None matches everything.
PullFilter = Callable[[bytes], bool]


class HeldPull:
    """A held request: its queue, offset and filter, and the callback that continues it."""

    __slots__ = ("deadline_s", "gone", "offset", "owner", "queue", "resume", "wants")

    def __init__(
        self,
        queue: tuple[str, int],
        offset: int,
        deadline_s: float,
        resume: Callable[[], None],
        wants: PullFilter | None = None,
        owner: object = None,
    ) -> None:
        self.queue = queue
        self.offset = offset  # of the first message not seen yet
        self.deadline_s = deadline_s
        self.resume = resume  # called once, on arrival or at the deadline
        self.wants = wants
        self.owner = owner  # connection of the request
        self.gone = False


class WaitingPulls:
    """All held pulls of a broker."""

    def __init__(
        self, clock: Clock, *, held_max: int = HELD_MAX, held_of_one_max: int = HELD_OF_ONE_MAX
    ) -> None:
        self._clock = clock
        self.held_max = held_max
        self.held_of_one_max = held_of_one_max
        self._by_owner: dict[object, set[HeldPull]] = {}
        self._by_queue: dict[tuple[str, int], list[HeldPull]] = {}
        self._deadlines: list[tuple[float, int, HeldPull]] = []
        self._numbers = itertools.count()
        self._timer: TimerHandle | None = None
        self._timer_s = 0.0
        self._ready: deque[HeldPull] = deque()
        self._waking = False
        self.held = 0

    def hold(self, pull: HeldPull) -> bool:
        """Hold a pull. Return False if too many are held already, in total or for its owner."""
        owned = self._by_owner.get(pull.owner)
        if owned is None:
            owned = self._by_owner[pull.owner] = set()
        if self.held >= self.held_max or len(owned) >= self.held_of_one_max:
            return False
        owned.add(pull)
        self._by_queue.setdefault(pull.queue, []).append(pull)
        if len(self._deadlines) > 2 * self.held + LEFT_BEHIND_MAX:
            self._deadlines = [deadline for deadline in self._deadlines if not deadline[2].gone]
            heapq.heapify(self._deadlines)
        heapq.heappush(self._deadlines, (pull.deadline_s, next(self._numbers), pull))
        self.held += 1
        self._set_timer()
        return True

    def arrived(self, entries: list[Entry]) -> None:
        """Wake pulls of these queues. A listener of the dispatcher."""
        by_queue = self._by_queue
        if not by_queue:
            return
        touched: dict[tuple[str, int], list[tuple[int, bytes]]] = {}
        for _, _, queue_id, queue_offset, _, _, _, topic, properties in entries:
            queue = (topic.decode(), queue_id)
            if queue in by_queue:
                touched.setdefault(queue, []).append((queue_offset, properties))
        self._look(touched)

    def arrived_light(self, entries: list[Entry]) -> None:
        """Wake pulls of the light queues that these messages name. A listener of the dispatcher, added only
        if light queues are filled."""
        by_queue = self._by_queue
        if not by_queue:
            return
        touched: dict[tuple[str, int], list[tuple[int, bytes]]] = {}
        for entry in entries:
            properties = entry[-1]
            if names.AT_INNER_MULTI_DISPATCH[1:] not in properties:
                continue
            wanted = (names.find(properties, names.AT_INNER_MULTI_DISPATCH) or b"").split(b",")
            offsets = (names.find(properties, names.AT_INNER_MULTI_QUEUE_OFFSET) or b"").split(b",")
            for name, offset in zip(wanted, offsets, strict=False):
                queue = (name.decode("utf-8", "replace"), 0)
                if queue in by_queue and offset.isdigit():
                    touched.setdefault(queue, []).append((int(offset), properties))
        self._look(touched)

    def _look(self, touched: dict[tuple[str, int], list[tuple[int, bytes]]]) -> None:
        by_queue = self._by_queue
        for queue, news in touched.items():
            staying: list[HeldPull] = []
            for pull in by_queue[queue]:
                if pull.gone:
                    continue
                wants = pull.wants
                if any(offset >= pull.offset and (wants is None or wants(p)) for offset, p in news):
                    self._wake(pull)
                else:
                    staying.append(pull)
            if staying:
                by_queue[queue] = staying
            else:
                del by_queue[queue]

    def wake_queue(self, topic: str, queue_id: int) -> None:
        """Resume all pulls of a queue that was reset or deleted."""
        for pull in self._by_queue.pop((topic, queue_id), ()):
            if not pull.gone:
                self._wake(pull)

    def wake_all(self) -> None:
        """Resume every held pull: the broker stops, or its role changed."""
        for topic, queue_id in list(self._by_queue):
            self.wake_queue(topic, queue_id)

    async def truncated(self, cut: Cut) -> None:
        """Resume every held pull after a truncation of the log: pulls beyond the end of their queue get its
        new end."""
        self.wake_all()

    def forget(self, owner: object) -> None:
        """Forget the pulls of a closed connection."""
        owned = self._by_owner.pop(owner, None)
        if not owned:
            return
        for pull in owned:
            pull.gone = True
        self.held -= len(owned)
        self._drop_gone({pull.queue for pull in owned})

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._by_queue.clear()
        self._by_owner.clear()
        self._deadlines.clear()
        self._ready.clear()
        self.held = 0

    # --- waking --------------------------------------------------------------------------------------

    def _wake(self, pull: HeldPull) -> None:
        pull.gone = True
        self.held -= 1
        owned = self._by_owner.get(pull.owner)
        if owned is not None:
            owned.discard(pull)
        self._ready.append(pull)
        if not self._waking:
            self._waking = True
            asyncio.get_running_loop().call_soon(self._wake_slice)

    def _wake_slice(self) -> None:
        ready = self._ready
        for _ in range(min(len(ready), WAKE_SLICE)):
            try:
                ready.popleft().resume()
            except Exception:
                log.exception("pull_not_resumed next='nothing: the client repeats the pull'")
        if ready:
            asyncio.get_running_loop().call_soon(self._wake_slice)
        else:
            self._waking = False

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
        touched: set[tuple[str, int]] = set()
        while deadlines and (deadlines[0][0] <= now_s or deadlines[0][2].gone):
            _, _, pull = heapq.heappop(deadlines)
            if not pull.gone:
                touched.add(pull.queue)
                self._wake(pull)
        self._drop_gone(touched)
        if deadlines:
            self._set_timer()

    def _drop_gone(self, queues: Iterable[tuple[str, int]]) -> None:
        for queue in queues:
            staying = [pull for pull in self._by_queue.get(queue, ()) if not pull.gone]
            if staying:
                self._by_queue[queue] = staying
            else:
                self._by_queue.pop(queue, None)
