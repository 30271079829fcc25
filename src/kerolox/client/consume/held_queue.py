"""Queue held by a consumer: next pull offset, waiting messages, and progress.

Messages are pulled in order and may be completed in any order. The offset to commit is the first one that is
not done: messages before it are not delivered again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence

from kerolox.client.calls.readers import Reader, Replica
from kerolox.client.messages import Queue, Received
from kerolox.protocol.bodies.heartbeat import SubscriptionData


class HeldQueue:
    """Queue of a consumer, from its assignment to its release."""

    def __init__(self, queue: Queue, wanted: SubscriptionData, next_offset: int) -> None:
        self.queue = queue
        self.wanted = wanted
        self.next_offset = next_offset  # start of the next pull
        self.waiting: deque[Received] = deque()  # pulled, not yet delivered
        self.size_bytes = 0  # of messages that are not done
        self.dropped = False
        self.paused = False
        self.reader = Reader(spread=queue.queue_id)  # chooses the replica to pull from
        self.replica: Replica | None = None  # of the last pull
        self.saved_offset: int | None = None  # last offset saved at the broker
        self.saved_by: object = None  # connection over which it was saved
        self.failures = 0  # pulls in a row that failed
        self.pulled_at_s = 0.0
        self.consumed_at_ms = 0
        self.locked_until_s = 0.0  # of ordered consumption
        self.locked_at_ms = 0
        self.has_progress = False  # False until the first response, and while another offset is set
        self.was_sent_away = False  # True if the last response was GO_AWAY
        self.pull: asyncio.Task[None] | None = None
        self.work: asyncio.Task[None] | None = None  # of ordered consumption
        self.room = asyncio.Event()  # set when a pull that waits for room may check again
        self.arrived = asyncio.Event()  # set when messages arrived
        self._open: dict[int, int] = {}  # offset → size of messages that are not done, in order
        self._last_offset = -1

    # --- size -----------------------------------------------------------------------------------------

    @property
    def count(self) -> int:
        """Number of messages that are not done."""
        return len(self._open)

    @property
    def span(self) -> int:
        """Distance between the first and the last offset that is not done."""
        return self._last_offset - next(iter(self._open)) if self._open else 0

    @property
    def first_open(self) -> int:
        return next(iter(self._open), 0)

    @property
    def last_open(self) -> int:
        return self._last_offset if self._open else 0

    @property
    def commit_offset(self) -> int:
        """First offset that is not done."""
        return next(iter(self._open), self.next_offset)

    # --- changes --------------------------------------------------------------------------------------

    def take(self, messages: Sequence[Received], next_offset: int) -> None:
        """Add the messages of a response. Duplicates of messages that are not done are dropped."""
        self.next_offset = next_offset
        if not messages:
            return
        open_ = self._open
        is_back = messages[0].queue_offset <= self._last_offset
        if is_back:  # the broker moved the group back
            messages = [message for message in messages if message.queue_offset not in open_]
            if not messages:
                return
        sizes = [len(message.body) for message in messages]
        open_.update(zip([message.queue_offset for message in messages], sizes, strict=True))
        self.size_bytes += sum(sizes)
        if is_back:
            self._open = dict(sorted(open_.items()))  # the progress is the lowest offset
        self._last_offset = max(self._last_offset, messages[-1].queue_offset)
        self.waiting.extend(messages)
        self.arrived.set()

    def done(self, messages: Iterable[Received]) -> None:
        """Mark messages as done, so that they are not delivered again."""
        close = self._open.pop
        self.size_bytes -= sum([close(message.queue_offset, 0) for message in messages])
        self.room.set()

    def clear(self, next_offset: int) -> None:
        """Discard waiting and running messages, and continue at another offset."""
        self.waiting.clear()
        self._open.clear()
        self.size_bytes = 0
        self.next_offset = next_offset
        self._last_offset = -1
        self.saved_offset = None
        self.room.set()

    def drop(self) -> None:
        """Release the queue: no further message is delivered."""
        self.dropped = True
        self.waiting.clear()
        self.room.set()
        self.arrived.set()

    async def wait_for_room(self, timeout_s: float) -> None:
        """Wait until messages are done or the queue is resumed, or until the timeout."""
        self.room.clear()
        try:
            async with asyncio.timeout(timeout_s):
                await self.room.wait()
        except TimeoutError:
            pass

    def is_gone(self) -> bool:
        """Return ``dropped``. A method, so that type checkers do not assume it unchanged after an await."""
        return self.dropped

    def __repr__(self) -> str:
        state = "dropped" if self.dropped else "paused" if self.paused else "held"
        name = "/".join(map(str, self.queue))
        return f"<{state} {name} next={self.next_offset} open={self.count}>"
