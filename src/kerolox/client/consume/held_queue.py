"""A queue that a consumer has: where the next pull begins, what waits, and how far it is consumed.

Messages are pulled in order and may be done in any order. What may be told to the broker is the first offset
that is not done: what lies before it will not come again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence

from kerolox.client.calls.readers import Reader, Replica
from kerolox.client.messages import Queue, Received
from kerolox.protocol.bodies.heartbeat import SubscriptionData


class HeldQueue:
    """One queue, from the moment it was taken until it is let go."""

    def __init__(self, queue: Queue, wanted: SubscriptionData, next_offset: int) -> None:
        self.queue = queue
        self.wanted = wanted
        self.next_offset = next_offset  # where the next pull begins
        self.waiting: deque[Received] = deque()  # pulled, not yet given to anybody
        self.size_bytes = 0  # of what is not done
        self.dropped = False
        self.paused = False
        self.reader = Reader(spread=queue.queue_id)  # says which broker of the name to pull from
        self.asked: Replica | None = None  # the one that was asked last
        self.saved_offset: int | None = None  # what the broker was told last
        self.saved_by: object = None  # who was told so
        self.failures = 0  # pulls in a row that failed
        self.pulled_at_s = 0.0
        self.consumed_at_ms = 0
        self.locked_until_s = 0.0  # of ordered consumption
        self.locked_at_ms = 0
        self.heard = False  # whether an answer came: before that there is no progress to tell
        self.sent_away = False  # the last pull was answered with GO_AWAY
        self.pull: asyncio.Task[None] | None = None
        self.work: asyncio.Task[None] | None = None  # of ordered consumption
        self.room = asyncio.Event()  # set when a pull that waits for room may look again
        self.arrived = asyncio.Event()  # set when messages came
        self._open: dict[int, int] = {}  # offset → size of what is not done, in order
        self._last_offset = -1

    # --- how much -------------------------------------------------------------------------------------

    @property
    def count(self) -> int:
        """Messages that are not done."""
        return len(self._open)

    @property
    def span(self) -> int:
        """How far what is not done reaches."""
        return self._last_offset - next(iter(self._open)) if self._open else 0

    @property
    def first_open(self) -> int:
        return next(iter(self._open), 0)

    @property
    def last_open(self) -> int:
        return self._last_offset if self._open else 0

    @property
    def commit_offset(self) -> int:
        """Everything before it is done."""
        return next(iter(self._open), self.next_offset)

    # --- coming and going -----------------------------------------------------------------------------

    def take(self, messages: Sequence[Received], next_offset: int) -> None:
        """Messages of an answer. Those with an offset that is open already came again, and are dropped."""
        self.next_offset = next_offset
        if not messages:
            return
        open_ = self._open
        is_back = messages[0].queue_offset <= self._last_offset
        if is_back:  # the broker sent us back
            messages = [message for message in messages if message.queue_offset not in open_]
            if not messages:
                return
        sizes = [len(message.body) for message in messages]
        open_.update(zip([message.queue_offset for message in messages], sizes, strict=True))
        self.size_bytes += sum(sizes)
        if is_back:
            self._open = dict(sorted(open_.items()))  # progress ends at the lowest
        self._last_offset = max(self._last_offset, messages[-1].queue_offset)
        self.waiting.extend(messages)
        self.arrived.set()

    def done(self, messages: Iterable[Received]) -> None:
        """Note that these messages are done: they need not come again."""
        close = self._open.pop
        self.size_bytes -= sum([close(message.queue_offset, 0) for message in messages])
        self.room.set()

    def clear(self, next_offset: int) -> None:
        """Forget what waits and what is under way, and go on elsewhere."""
        self.waiting.clear()
        self._open.clear()
        self.size_bytes = 0
        self.next_offset = next_offset
        self._last_offset = -1
        self.saved_offset = None
        self.room.set()

    def drop(self) -> None:
        """Let go of the queue: nothing new is begun."""
        self.dropped = True
        self.waiting.clear()
        self.room.set()
        self.arrived.set()

    def is_gone(self) -> bool:
        """The same as ``dropped``, to be asked again after waiting."""
        return self.dropped

    def __repr__(self) -> str:
        state = "dropped" if self.dropped else "paused" if self.paused else "held"
        name = "/".join(map(str, self.queue))
        return f"<{state} {name} next={self.next_offset} open={self.count}>"
