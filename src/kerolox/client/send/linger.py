"""Micro-batching: sends that come close together become batch requests: one, or of a burst one per queue.

Off by default: it trades a little delay for far fewer requests. What cannot be part of a batch (delayed,
compressed, transactional) goes its own way, and so may overtake what lingers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Any

from kerolox.client.calls.outgoing import Outgoing, Target
from kerolox.client.errors import SendFailed
from kerolox.client.send.batches import batch_of, receipts_of
from kerolox.errors import KeroloxError

if TYPE_CHECKING:
    from kerolox.client.calls.sends import Publishing
    from kerolox.client.messages import Receipt
    from kerolox.client.send.sending import Sender
    from kerolox.clock import TimerHandle

# A burst is spread over the queues of its topic, in parts of at least so many messages: in one queue it would
# be read by one consumer, and smaller requests cost more than that is worth.
PART_MIN = 24

# topic, the queue it is tied to, whether the answer waits for the disk
_Key = tuple[str, Target | None, bool]
_Pair = tuple[Outgoing, "asyncio.Future[Receipt]"]


class _Waiting:
    """Messages collected for one request."""

    __slots__ = ("deadline_s", "futures", "items", "size_bytes", "timer")

    def __init__(self, deadline_s: float) -> None:
        self.items: list[Outgoing] = []
        self.futures: list[asyncio.Future[Receipt]] = []
        self.size_bytes = 0
        self.deadline_s = deadline_s
        self.timer: TimerHandle | None = None


class Linger:
    """Collects the sends of one producer."""

    def __init__(self, sender: Sender, linger_s: float) -> None:
        self._sender = sender
        self._linger_s = linger_s
        self._bytes_max = min(sender.options.linger_bytes_max, sender.options.message_bytes_max)
        self._count_max = sender.options.linger_count_max
        self._waiting: dict[_Key, _Waiting] = {}
        self._sending: set[asyncio.Task[None]] = set()

    def takes(self, outgoing: Outgoing) -> bool:
        """Return True if a message can be part of a batch."""
        message = outgoing.message
        return (
            not outgoing.sys_flag
            and outgoing.item_bytes < self._bytes_max
            and (message is None or not message.is_delayed)
            and not outgoing.topic.startswith("%")
        )

    def add(self, outgoing: Outgoing, pinned: Target | None, timeout_s: float) -> asyncio.Future[Receipt]:
        """Send it soon, with others."""
        sender = self._sender
        deadline_s = sender.client.clock.monotonic_s() + timeout_s
        wait = outgoing.message.wait_stored if outgoing.message is not None else True
        key = (outgoing.topic, pinned, wait)
        size_bytes = outgoing.item_bytes
        loop = sender.loop
        waiting = self._waiting.get(key)
        if waiting is not None and waiting.size_bytes + size_bytes > self._bytes_max:
            self._flush(key)
            waiting = None
        if waiting is None:
            waiting = self._waiting[key] = _Waiting(deadline_s)
            if self._linger_s:
                waiting.timer = sender.client.clock.call_later(self._linger_s, lambda: self._flush(key))
            else:  # whatever is sent in the same turn of the loop
                loop.call_soon(self._flush, key)
        future: asyncio.Future[Receipt] = loop.create_future()
        waiting.items.append(outgoing)
        waiting.futures.append(future)
        waiting.size_bytes += size_bytes
        if deadline_s < waiting.deadline_s:
            waiting.deadline_s = deadline_s
        if len(waiting.items) >= self._count_max:
            self._flush(key)
        return future

    async def close(self) -> None:
        """Send what still waits."""
        for key in list(self._waiting):
            self._flush(key)
        while self._sending:
            await asyncio.wait(self._sending)

    def _flush(self, key: _Key) -> None:
        waiting = self._waiting.pop(key, None)
        if waiting is None:
            return
        if waiting.timer is not None:
            waiting.timer.cancel()
        pairs = list(zip(waiting.items, waiting.futures, strict=True))
        topic, pinned, _ = key
        if pinned is not None or len(pairs) < 2 * PART_MIN:
            self._send(pairs, len(pairs), waiting.deadline_s, pinned)
        elif (publishing := self._sender.known(topic)) is not None:
            self._send(pairs, _part_size(len(pairs), publishing), waiting.deadline_s)
        else:
            self._start(pairs, self._find_and_send(topic, pairs, waiting.deadline_s))

    async def _find_and_send(self, topic: str, pairs: Sequence[_Pair], deadline_s: float) -> None:
        try:
            publishing = await self._sender.publishing(topic, self._left_s(deadline_s))
        except KeroloxError as error:
            _fail(pairs, error)
        else:
            self._send(pairs, _part_size(len(pairs), publishing), deadline_s)

    def _send(
        self, pairs: Sequence[_Pair], size: int, deadline_s: float, pinned: Target | None = None
    ) -> None:
        for start in range(0, len(pairs), size):
            part = pairs[start : start + size]
            self._start(part, self._send_part(part, deadline_s, pinned))

    def _start(self, pairs: Sequence[_Pair], work: Coroutine[Any, Any, None]) -> None:
        def ended(task: asyncio.Task[None]) -> None:
            self._sending.discard(task)
            if task.cancelled():  # perhaps before it began
                for item, future in pairs:
                    if not future.done():
                        future.set_exception(SendFailed(item.topic, [], 0.0, "the client was closed"))

        task = self._sender.client.spawn(work)
        self._sending.add(task)
        task.add_done_callback(ended)

    async def _send_part(self, pairs: Sequence[_Pair], deadline_s: float, pinned: Target | None) -> None:
        # Sends that were cancelled while they lingered are dropped.
        pairs = [pair for pair in pairs if not pair[1].done()]
        if not pairs:
            return
        items = [item for item, _ in pairs]
        timeout_s = self._left_s(deadline_s)
        receipts: Sequence[Receipt]
        try:
            if len(items) == 1:
                receipts = [await self._sender.deliver(items[0], timeout_s, pinned=pinned)]
            else:
                batch = batch_of(items, self._sender.next_key())
                receipts = receipts_of(await self._sender.deliver(batch, timeout_s, pinned=pinned), batch)
        except KeroloxError as error:
            _fail(pairs, error)
            return
        for (_, future), receipt in zip(pairs, receipts, strict=True):
            if not future.done():
                future.set_result(receipt)

    def _left_s(self, deadline_s: float) -> float:
        return max(0.0, deadline_s - self._sender.client.clock.monotonic_s())


def _part_size(count: int, publishing: Publishing) -> int:
    """So many that every queue has a part, but none is too small to be worth a request."""
    return -(-count // min(len(publishing.targets), count // PART_MIN))


def _fail(pairs: Sequence[_Pair], error: KeroloxError) -> None:
    for _, future in pairs:
        if not future.done():
            future.set_exception(error)
