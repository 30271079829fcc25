from __future__ import annotations

import random

from kerolox import Queue, Received
from kerolox.client.consume.held_queue import HeldQueue
from kerolox.protocol.subscription import subscription

QUEUE = Queue("orders", "broker-a", 0)


def held(next_offset: int = 100) -> HeldQueue:
    return HeldQueue(QUEUE, subscription("orders", "*", 0), next_offset)


def messages(*offsets: int) -> list[Received]:
    return [Received("orders", b"12345", 0, offset, 0) for offset in offsets]


def test_progress_stops_at_the_first_that_is_not_done() -> None:
    queue = held()
    first, second, third = messages(100, 101, 102)
    queue.take([first, second, third], 103)
    assert (queue.commit_offset, queue.count, queue.size_bytes, queue.span) == (100, 3, 15, 2)
    queue.done([second, third])
    assert queue.commit_offset == 100
    queue.done([first])
    assert (queue.commit_offset, queue.count, queue.size_bytes, queue.span) == (103, 0, 0, 0)


def test_filtered_messages_are_passed() -> None:
    queue = held()
    queue.take([], 140)
    assert queue.commit_offset == 140


def test_progress_never_passes_what_is_open_whatever_the_order() -> None:
    rng = random.Random(7)
    queue = held(0)
    open_: dict[int, Received] = {}
    for _ in range(200):
        if rng.random() < 0.5:
            offsets = sorted(rng.sample(range(queue.next_offset, queue.next_offset + 50), 5))
            came = messages(*offsets)
            queue.take(came, offsets[-1] + 1)
            open_.update(zip(offsets, came, strict=True))
        elif open_:
            chosen = rng.sample(sorted(open_), min(3, len(open_)))
            queue.done([open_.pop(offset) for offset in chosen])
        assert queue.commit_offset == min(open_, default=queue.next_offset)
        assert queue.size_bytes == 5 * len(open_)


def test_done_twice_counts_once() -> None:
    queue = held()
    came = messages(100, 101)
    queue.take(came, 102)
    queue.done(came[:1])
    queue.done(came[:1])
    assert (queue.count, queue.size_bytes) == (1, 5)


def test_going_elsewhere_forgets_what_was_open() -> None:
    queue = held()
    queue.take(messages(100, 101), 102)
    queue.clear(5)
    assert (queue.commit_offset, queue.count, list(queue.waiting)) == (5, 0, [])
