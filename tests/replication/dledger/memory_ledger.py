"""A ledger in memory, that asserts what a member must never ask of it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from kerolox.clock import Clock
from kerolox.observers import Observers
from kerolox.protocol.ledger_entry import LedgerEntry
from kerolox.replication.dledger.ledger import ACK_TIMEOUT_MS, ACKS_MAX, OutOfLedger

BARRIER = b"barrier"


class MemoryLedger:
    """Entries in a list. Survives its member: what a restarted one finds is what was written."""

    def __init__(self, clock: Clock, first_pos: int = 0) -> None:
        self.on_appended: Observers[[]] = Observers("entries appended")
        self.on_safe: Observers[[]] = Observers("entries flushed")
        self.on_committed: Callable[[int, int], None] = lambda before, index: None
        self.entries: list[LedgerEntry] = []
        self.committed_index = -1
        self.certain_index = -1  # no entry up to here may be cut
        self.term: int | None = None  # while it leads
        self.paused: str | None = None
        self.truncations = 0
        self._clock = clock
        self._first_pos = first_pos
        self._first = 0  # index of the first entry
        self._waiting: deque[tuple[int, float, Callable[[bool], None]]] = deque()

    @property
    def begin_index(self) -> int:
        return self._first if self.entries else -1

    @property
    def begin_pos(self) -> int:
        return self.entries[0].pos if self.entries else self._first_pos

    @property
    def end_index(self) -> int:
        return self._first + len(self.entries) - 1 if self.entries else -1

    @property
    def end_term(self) -> int:
        return self.entries[-1].term if self.entries else -1

    @property
    def end_pos(self) -> int:
        return self.entries[-1].end if self.entries else self._first_pos

    @property
    def safe_index(self) -> int:
        return self.end_index

    @property
    def takes_appends(self) -> str | None:
        return None if self.term is not None and self.paused is None else self.paused or "follows"

    def restart(self) -> None:
        """The member is gone, and what it was told with it."""
        self.on_appended, self.on_safe = Observers("entries appended"), Observers("entries flushed")
        self.term = self.paused = None
        self._waiting.clear()

    def drop_before(self, index: int) -> None:
        """As retention does."""
        del self.entries[: index - self._first]
        self._first = index

    async def read(self, first: int, count_max: int, bytes_max: int) -> list[LedgerEntry]:
        if not self.entries or not self.begin_index <= first <= self.end_index:
            raise OutOfLedger(f"no entry {first}: {self.begin_index} to {self.end_index} are here")
        found: list[LedgerEntry] = []
        for entry in self.entries[first - self._first : first - self._first + count_max]:
            if found and bytes_max < entry.size:
                break
            bytes_max -= entry.size
            found.append(entry)
        return found

    @property
    def leads(self) -> bool:
        return self.term is not None

    def lead(self, term: int) -> None:
        assert term >= self.end_term
        self.term = term

    def follow(self) -> None:
        self.term = None
        waiting, self._waiting = self._waiting, deque()
        for _, _, told in waiting:
            told(False)

    def append_barrier(self) -> None:
        self._append(BARRIER)

    def pause(self, why: str | None) -> None:
        self.paused = why

    def append_leader(self, body: bytes, told: Callable[[bool], None]) -> LedgerEntry:
        if self.takes_appends is not None:
            raise OutOfLedger(self.takes_appends)
        if len(self._waiting) >= ACKS_MAX:
            raise OutOfLedger(f"{ACKS_MAX} entries wait already")
        # Waits before it is told of: alone, a member commits at once.
        self._waiting.append((self.end_index + 1, self._clock.monotonic_s() + ACK_TIMEOUT_MS / 1000, told))
        self._clock.call_later(ACK_TIMEOUT_MS / 1000, self._give_up)
        return self._append(body)

    def _append(self, body: bytes) -> LedgerEntry:
        assert self.term is not None
        entry = LedgerEntry(self.end_index + 1, self.term, self.end_pos, body)
        self.entries.append(entry)
        self.on_appended()
        return entry

    def _give_up(self) -> None:
        now_s = self._clock.monotonic_s()
        while self._waiting and self._waiting[0][1] <= now_s:
            self._waiting.popleft()[2](False)

    def append_follower(self, entries: Sequence[LedgerEntry]) -> None:
        assert self.term is None, "a leader's log takes nothing from others"
        at, pos, term = self.end_index + 1, self.end_pos, self.end_term
        for entry in entries:
            if entry.index != at or entry.pos != pos or entry.term < term:
                raise OutOfLedger(f"entry {entry.index} at {entry.pos}, expected {at} at {pos}")
            at, pos, term = at + 1, entry.end, entry.term
        self.entries += entries

    async def truncate(self, entry: LedgerEntry) -> None:
        assert self.term is None, "a leader's log is not cut"
        await self._clock.sleep(0.01)
        self.truncations += 1
        place = entry.index - self._first
        if self.entries and 0 <= place < len(self.entries):
            same = self.entries[place] == entry
            assert entry.index >= self.certain_index - (not same), "what is committed is not cut"
            del self.entries[place:]
        elif self.entries and place == len(self.entries) and entry.pos == self.end_pos:
            pass
        else:
            self.entries.clear()
            self._first = entry.index
        self.entries.append(entry)
        self.committed_index = min(self.committed_index, self.end_index)

    def commit(self, index: int) -> None:
        assert index <= self.end_index, "only what is here"
        before, self.committed_index = self.committed_index, max(index, self.committed_index)
        self.on_committed(before, self.committed_index)
        done = []
        while self._waiting and self._waiting[0][0] <= index:
            done.append(self._waiting.popleft())
        for _, _, told in done:
            told(True)
