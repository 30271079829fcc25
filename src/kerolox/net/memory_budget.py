"""What all connections of a server together may hold in memory for frames that are not whole yet.

A frame may have 16 MiB, and a peer may take its time to send it: each connection has a bound, but a hundred
of them would take the memory of everybody. So there is one budget for all. Whoever goes over it pushes out
the connection whose unfinished frame is the oldest: honest frames are whole within moments, so that is
somebody who began a frame and does not finish it. The same holds for answers that peers do not read.
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
    """A bound on the bytes of one kind that all connections hold together."""

    __slots__ = ("_held", "bytes_max", "used", "what")

    def __init__(self, what: str, bytes_max: int) -> None:
        self.what = what  # the kind of bytes, such as "frames that are not whole"
        self.bytes_max = bytes_max
        self.used = 0
        self._held: dict[Holder, int] = {}  # connection → bytes; the connection that began first comes first

    def hold(self, holder: Holder, size_bytes: int) -> None:
        """Note how many bytes a connection holds now."""
        before = self._held.get(holder, 0)
        self._held[holder] = size_bytes
        self.used += size_bytes - before
        while self.used > self.bytes_max and self._held:
            oldest = next(iter(self._held))
            held = self._held[oldest]
            self.release(oldest)
            reason = (
                f"{held} bytes of {self.what}, and all connections hold more than {self.bytes_max}: "
                "this one has held them the longest"
            )
            log.warning("memory_budget_spent peer=%s reason=%r", oldest.address, reason)
            oldest.close(reason, at_once=True)

    def release(self, holder: Holder) -> None:
        """Note that a connection holds nothing any more."""
        self.used -= self._held.pop(holder, 0)
