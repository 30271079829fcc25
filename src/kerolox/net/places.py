"""Connection places of a port: their limit, and the connection that is closed when it is reached.

Each source address may use only a part of the places. When the port or the address has no free place, the
connection that has been silent longest is closed for the new one: first connections without a complete
request, then those with one, then known ones (after a signed request or a registration). A connection that
sends now and then is never closed for another one: clients send every 30 s.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import nsmallest
from typing import Final, Protocol

IDLE_S: Final = 60.0  # connections with a complete request may be silent this long
LOOK_AGAIN_S: Final = 25e-6  # per connection: minimum time between two scans of a full port
FEW: Final = 64  # connections that are scanned without a pause
CANDIDATES_MAX: Final = 256  # candidates found per scan
STRANGER, SPOKE, KNOWN = range(3)  # ranks


class PlaceHolder(Protocol):
    """A connection."""

    @property
    def source(self) -> str:
        """Source address, as :func:`kerolox.net.address.source_of` returns it."""

    @property
    def rank(self) -> int:
        """STRANGER, SPOKE or KNOWN."""

    @property
    def silent_since_s(self) -> float:
        """Time of the last complete request, or else of the accept."""

    def close(self, reason: str, /, *, at_once: bool = False) -> None: ...


_Candidate = tuple[int, float, PlaceHolder]  # rank, silent since, and the connection


class Places:
    """The connections of one port, by source address."""

    def __init__(self, places_max: Callable[[], int], for_each: int = 0) -> None:
        self._places_max = places_max
        self._for_each = for_each  # places per source address; 0: three quarters of all
        self._by_source: dict[str, dict[PlaceHolder, None]] = {}
        self._sources: dict[PlaceHolder, str] = {}
        # Candidates for one address, or for all (None): time of the next scan, and the connections left.
        self._candidates: dict[str | None, tuple[float, list[_Candidate]]] = {}
        self.closed = 0  # connections closed to make room, so far
        self.refused = 0

    def __len__(self) -> int:
        return len(self._sources)

    @property
    def places_max(self) -> int:
        return self._places_max()

    @property
    def for_each_max(self) -> int:
        places_max = self.places_max
        return self._for_each or places_max - places_max // 4

    def take(self, holder: PlaceHolder, now_s: float, *, crowded: bool = False) -> bool:
        """Give a new connection a place, if one is free or can be freed. Return whether it has one.
        ``crowded``: none is free, because the process is short of descriptors."""
        of_address = len(self._by_source.get(holder.source, ()))
        if of_address >= self.for_each_max:
            has_room = self._make_room(holder.source, now_s)
        else:
            is_full = crowded or len(self) >= self.places_max
            has_room = not is_full or self._make_room(None, now_s)
        if not has_room:
            self.refused += 1
            return False
        self.add(holder)
        return True

    def add(self, holder: PlaceHolder) -> None:
        """Record an accepted connection."""
        source = self._sources[holder] = holder.source
        self._by_source.setdefault(source, {})[holder] = None

    def leave(self, holder: PlaceHolder) -> None:
        """Record that a connection is gone."""
        source = self._sources.pop(holder, None)
        if source is None:
            return
        of_address = self._by_source[source]
        del of_address[holder]
        if not of_address:
            del self._by_source[source]

    def make_room(self, now_s: float) -> bool:
        """Close one idle connection: the process has no descriptor left for a new one."""
        return self._make_room(None, now_s)

    def _make_room(self, source: str | None, now_s: float) -> bool:
        again_s, candidates = self._candidates.get(source, (0.0, []))
        if not candidates and now_s >= again_s:
            candidates = self._find(source, now_s)
            if len(self._candidates) >= CANDIDATES_MAX:
                self._candidates.clear()
            count = len(self if source is None else self._by_source.get(source, ()))
            self._candidates[source] = (now_s + max(0, count - FEW) * LOOK_AGAIN_S, candidates)
        while candidates:
            rank, since_s, holder = candidates.pop()
            if holder in self._sources and (holder.rank, holder.silent_since_s) == (rank, since_s):
                self.leave(holder)
                self.closed += 1
                whose = "this port" if source is None else "this address"
                holder.close(
                    f"silent for {now_s - since_s:.1f} s, and {whose} has no other place for a new one",
                    at_once=True,
                )
                return True
        return False

    def _find(self, source: str | None, now_s: float) -> list[_Candidate]:
        """Return the connections that may be closed, with the first to close at the end."""
        holders = self._sources if source is None else self._by_source.get(source, {})
        found = (
            (holder.rank, holder.silent_since_s, holder)
            for holder in holders
            if holder.rank == STRANGER or now_s - holder.silent_since_s > IDLE_S
        )
        return nsmallest(CANDIDATES_MAX, found, key=lambda one: one[:2])[::-1]
