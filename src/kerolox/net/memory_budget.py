"""Limit of the memory that all connections of a server together hold for incomplete frames.

A frame may have 16 MiB, and a peer may send it slowly: each connection has a limit, but a hundred connections
could still use up the memory. So all share one budget. When it is exceeded, the connection with the oldest
unfinished frame is closed: honest peers complete a frame within moments. The same applies to answers that
peers do not read.
"""

from __future__ import annotations

import logging
from typing import Final, Protocol

log = logging.getLogger(__name__)

UNFINISHED_BYTES_MAX: Final = 256 << 20
UNREAD_BYTES_MAX: Final = 512 << 20


class Holder(Protocol):
    """A connection."""

    address: str

    def close(self, reason: str, *, at_once: bool = False) -> None: ...


class MemoryBudget:
    """Limit of the bytes of one kind that all connections hold together."""

    __slots__ = ("_held", "bytes_max", "used", "what")

    def __init__(self, what: str, bytes_max: int) -> None:
        self.what = what  # the kind of bytes, such as "frames that are not whole"
        self.bytes_max = bytes_max
        self.used = 0
        self._held: dict[Holder, int] = {}  # connection → bytes; the connection that began first comes first

    def hold(self, holder: Holder, size_bytes: int) -> None:
        """Set the number of bytes that a connection holds."""
        before = self._held.get(holder, 0)
        self._held[holder] = size_bytes
        self.used += size_bytes - before
        while self.used > self.bytes_max and self._held:
            oldest = next(iter(self._held))
            held = self._held[oldest]
            self.release(oldest)
            reason = (
                f"{held} bytes of {self.what}, and all connections hold more than {self.bytes_max}: "
                "this connection has held its bytes the longest"
            )
            log.warning("memory_budget_spent peer=%s reason=%r", oldest.address, reason)
            oldest.close(reason, at_once=True)

    def release(self, holder: Holder) -> None:
        """Record that a connection holds no more bytes."""
        self.used -= self._held.pop(holder, 0)
