"""Consumer lag: messages not consumed yet, and the time since the oldest of them was stored."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from kerolox.broker.tables.topics import Topics
from kerolox.store.errors import StoreError
from kerolox.store.log.cursors import LIGHT_PREFIX
from kerolox.store.message_store import MessageStore
from kerolox.store.tables.offsets import ConsumerOffsets


class QueueLag(NamedTuple):
    """The lag of a group in one queue."""

    group: str
    topic: str
    queue_id: int
    consumed: int  # next offset to consume
    pulled: int  # next offset to pull
    max_offset: int

    @property
    def messages(self) -> int:
        return max(0, self.max_offset - self.consumed)

    @property
    def in_flight(self) -> int:
        """Number of messages pulled and not consumed yet."""
        return max(0, self.pulled - self.consumed)

    @property
    def ready(self) -> int:
        """Number of messages not pulled yet."""
        return max(0, self.max_offset - max(self.pulled, self.consumed))


# Topic, group, queue → next offset to consume, and to pop; None without popped messages that are out.
Popped = Callable[[str, str, int], "tuple[int, int] | None"]


def queue_lags(
    store: MessageStore, topics: Topics, offsets: ConsumerOffsets, popped: Popped
) -> list[QueueLag]:
    """Return the lag of every group in every queue of its topics. Uses memory only; the disk is not read."""
    found: list[QueueLag] = []
    for key, queues in offsets.offsets.items():
        topic, _, group = key.partition("@")
        config = topics.find(topic)
        if config is None or not group or group.startswith(LIGHT_PREFIX):
            continue  # groups of light queues are too many to be listed
        for queue_id in range(config.read_queue_nums):
            out = popped(topic, group, queue_id)
            consumed = max(0, queues.get(queue_id, 0))
            pulled = max(consumed, offsets.pull_offset(topic, group, queue_id))
            if out is not None:
                consumed, pulled = out
            found.append(
                QueueLag(group, topic, queue_id, consumed, pulled, store.queues.max_offset(topic, queue_id))
            )
    return found


def waiting_since_ms(store: MessageStore, lags: Iterable[QueueLag]) -> dict[tuple[str, str], tuple[int, int]]:
    """Return, by topic and group, the store times of the oldest message not consumed and the oldest not
    pulled; 0 if there is none. Call it in a thread."""
    times: dict[tuple[str, str], tuple[int, int]] = {}
    for lag in lags:
        not_consumed, not_pulled = times.get((lag.topic, lag.group), (0, 0))
        if lag.messages:
            not_consumed = _earlier(not_consumed, _known_time_ms(store, lag, lag.consumed))
        if lag.ready:
            not_pulled = _earlier(not_pulled, _known_time_ms(store, lag, lag.pulled))
        times[lag.topic, lag.group] = not_consumed, not_pulled
    return times


def _known_time_ms(store: MessageStore, lag: QueueLag, offset: int) -> int:
    try:
        return store.queues.store_time_at(lag.topic, lag.queue_id, _first(store, lag, offset))
    except StoreError:
        return -1  # it cannot be read now; other metrics report that


def _first(store: MessageStore, lag: QueueLag, offset: int) -> int:
    # A message that was deleted before it was consumed no longer counts.
    return max(offset, store.queues.min_offset(lag.topic, lag.queue_id))


def _earlier(known_ms: int, found_ms: int) -> int:
    if found_ms <= 0:
        return known_ms
    return found_ms if known_ms == 0 else min(known_ms, found_ms)
