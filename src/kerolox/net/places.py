"""Places of a port: how many connections it takes, and which one makes room when it is full.

Each source address has a part of the places only. When the port, or the address, has no place left, the
connection that has been silent for the longest time is closed for the new one: first those that have never
sent a whole request, then those that have, then those that are known (a signed request, a registration). A
connection that sends now and then is never closed for another one: clients send every 30 s.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import nsmallest
from typing import Final, Protocol

IDLE_S: Final = 60.0  # a connection that has sent a whole request may be silent for so long
LOOK_AGAIN_S: Final = 25e-6  # for each connection: a full port is not looked through for each new one
FEW: Final = 64  # so many are
CANDIDATES_MAX: Final = 256  # found at once
STRANGER, SPOKE, KNOWN = range(3)  # ranks


class PlaceHolder(Protocol):
    """A connection."""

    @property
    def source(self) -> str:
        """The source address, as :func:`kerolox.net.address.source_of` has it."""

    @property
    def rank(self) -> int:
        """STRANGER, SPOKE or KNOWN."""

    @property
    def silent_since_s(self) -> float:
        """When its last whole request came, or when it was accepted."""

    def close(self, reason: str, /, *, at_once: bool = False) -> None: ...


_Candidate = tuple[int, float, PlaceHolder]  # rank, silent since, and the connection


class Places:
    """The connections of one port, by source address."""

    def __init__(self, places_max: Callable[[], int], for_each: int = 0) -> None:
        self._places_max = places_max
        self._for_each = for_each  # places of one address; 0: three quarters of all
        self._by_source: dict[str, dict[PlaceHolder, None]] = {}
        self._sources: dict[PlaceHolder, str] = {}
        # Found for one address, or for all: when to look again, and the connections left.
        self._candidates: dict[str | None, tuple[float, list[_Candidate]]] = {}
        self.closed = 0  # to make room, so far
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
        """Give a new connection a place, if there is one or one can be made. ``crowded``: none is free, for
        the process has too few descriptors left."""
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
        """Note a connection that was accepted."""
        source = self._sources[holder] = holder.source
        self._by_source.setdefault(source, {})[holder] = None

    def leave(self, holder: PlaceHolder) -> None:
        """Note that a connection is gone."""
        source = self._sources.pop(holder, None)
        if source is None:
            return
        of_address = self._by_source[source]
        del of_address[holder]
        if not of_address:
            del self._by_source[source]

    def make_room(self, now_s: float) -> bool:
        """Close one connection that may be closed: the process has no descriptor left for a new one."""
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
        """The connections that may be closed, the first of them last."""
        holders = self._sources if source is None else self._by_source.get(source, {})
        found = (
            (holder.rank, holder.silent_since_s, holder)
            for holder in holders
            if holder.rank == STRANGER or now_s - holder.silent_since_s > IDLE_S
        )
        return nsmallest(CANDIDATES_MAX, found, key=lambda one: one[:2])[::-1]
