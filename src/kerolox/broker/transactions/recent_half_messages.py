"""Cache of recent half messages. Most transactions end soon after their half message, so it need not be read
back from the log."""

from __future__ import annotations

from collections import Counter, OrderedDict

from kerolox.broker.transactions.counts import Counts
from kerolox.broker.transactions.half_messages import Open
from kerolox.broker.write.intake import Intake
from kerolox.errors import KeroloxError
from kerolox.store.disk.cut_note import Cut

COUNT_MAX = 20_000
BYTES_MAX = 32 << 20  # bytes of bodies and properties
ENTRY_BYTES = 1000  # approximate bytes of the objects of each


class RecentHalfMessages:
    """Recent half messages by their offset in the log. Only written messages are included."""

    def __init__(self, intake: Intake, counts: Counts) -> None:
        self._intake = intake
        self._counts = counts
        # Ordered, because finding the first key of a dict is slow after many deletions.
        self._known: OrderedDict[int, tuple[Open, int]] = OrderedDict()
        self._size_bytes = 0
        self._in_write: list[tuple[str, Open | None, int]] = []

    def add(self, topic: str, half: Open | None, size_bytes: int) -> None:
        """Add a half message that was appended for a topic. None: it is only counted."""
        if not self._in_write:
            self._intake.soon(self._written)
        self._in_write.append((topic, half, size_bytes))

    def clear(self) -> None:
        """Forget all of them, because the log may have changed."""
        self._known.clear()
        self._size_bytes = 0

    def find(self, place: int) -> Open | None:
        found = self._known.get(place)
        return None if found is None else found[0]

    def forget(self, place: int) -> None:
        found = self._known.pop(place, None)
        if found is not None:
            self._size_bytes -= found[1]

    async def truncated(self, cut: Cut) -> None:
        """Forget half messages beyond the truncated end of the log: other messages will lie there."""
        for place in [place for place in self._known if place >= cut.end]:
            self.forget(place)

    def _written(self, failed: KeroloxError | None) -> None:
        added, self._in_write = self._in_write, []
        if failed is not None:
            return
        topics: Counter[str] = Counter()
        known = self._known
        for topic, half, size_bytes in added:
            topics[topic] += 1
            if half is not None:
                size_bytes += ENTRY_BYTES
                known[half.physical_offset] = half, size_bytes
                self._size_bytes += size_bytes
        for topic, count in topics.items():
            self._counts.prepared(topic, count)
        while len(known) > COUNT_MAX or self._size_bytes > BYTES_MAX:
            self._size_bytes -= known.popitem(last=False)[1][1]
