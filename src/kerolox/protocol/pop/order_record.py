"""Messages that a group has of a queue it pops in order, as ``consumerOrderInfo.json`` has them."""

from __future__ import annotations

from kerolox.protocol.bodies.body import Body
from kerolox.protocol.header import wire

MESSAGES_MAX = 64  # the record has a bit for each


class OrderRecord(
    Body,
    frozen=True,
    kw_only=True,
    rename=wire(
        attempt="a", acked="cm", invisible_ms="i", saved_ms="l", distances="o", counts="oc", visible_ms="ot"
    ),
):
    """Messages of one ordered pop, and their state."""

    pop_time: int = 0
    invisible_ms: int | None = None
    distances: tuple[int, ...] = ()  # the first offset, then distances from it
    acked: int = 0  # bit k: message k is acknowledged
    counts: dict[int, int] | None = None  # offset → earlier deliveries, where there were any
    visible_ms: dict[int, int] | None = None  # offset → end of its changed invisible time
    attempt: str | None = None
    saved_ms: int = 0

    @property
    def offsets(self) -> list[int]:
        if not self.distances:
            return []
        first = self.distances[0]
        return [first, *(first + distance for distance in self.distances[1:])]

    def is_blocked(self, now_ms: int, attempt: str | None, invisible_ms: int) -> bool:
        """True if the group may not have more yet. A repeated attempt gets the same messages again."""
        if attempt is not None and attempt == self.attempt:
            return False
        return any(at > now_ms for at in self._open_until(invisible_ms))

    def free_ms(self) -> int:
        """Return when the last message that is not acknowledged is over; 0 if all are acknowledged."""
        return max(self._open_until(0), default=0)

    def _open_until(self, invisible_ms: int) -> list[int]:
        own = self.invisible_ms if self.invisible_ms and self.invisible_ms > 0 else invisible_ms
        changed = self.visible_ms or {}
        return [
            changed.get(offset, self.pop_time + own)
            for place, offset in enumerate(self.offsets)
            if not self.acked >> place & 1
        ]


class OrderTable(Body, frozen=True, kw_only=True):
    """The whole file: ``topic@group`` → queue → the messages of the last pop."""

    table: dict[str, dict[int, OrderRecord]] = {}
