"""Choice of a message's queue, which belongs to the server: all clients and proxies must agree on it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

from kerolox.protocol.java import java_hash

_MASK = (1 << 64) - 1
_FACTOR = 2862933555777941757


def jump_hash(key: int, buckets: int) -> int:
    """Return the bucket of a key by Lamping and Veach's consistent hash, as Guava computes it."""
    state = key & _MASK
    candidate = 0
    while True:
        state = (_FACTOR * state + 1) & _MASK
        step = ((state >> 33) + 1) / (1 << 31)
        following = int((candidate + 1) / step)
        if not 0 <= following < buckets:
            return candidate
        candidate = following


class QueueChoice:
    """Queue of the next message of each kind."""

    def __init__(self) -> None:
        self._turn = count()

    def choose(self, queues: Sequence[int], message_group: str, priority: int | None) -> int:
        """Return one of the writable queues, which are in ascending order."""
        if message_group:
            return queues[jump_hash(java_hash(message_group), len(queues))]
        if priority is not None:
            return queues[min(priority, len(queues) - 1)]
        return queues[next(self._turn) % len(queues)]
