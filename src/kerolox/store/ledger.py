"""Log of a DLedger group member: its entries and the commit index.

The member (replication/dledger) decides who may append and what a majority has. This module keeps the
entries; dispatch, readers and producers follow the committed ones. In a group of one member an entry is
committed as soon as it is as safe as the flush mode promises.

The commit index is saved in ``checkpoint``, as Apache's members do, as a lower bound for the next start.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from kerolox.observers import Observers
from kerolox.protocol.bodies.properties_text import read_properties
from kerolox.protocol.ledger_entry import ENTRY_HEAD_BYTES, NO_INDEX, LedgerEntry
from kerolox.protocol.ledger_scan import Mark, Unit, decode_head
from kerolox.protocol.reserved import SELF_TEST_TOPIC
from kerolox.store.disk.segments import NOWHERE
from kerolox.store.errors import CorruptRecord, OutOfLedger
from kerolox.store.log.ledger_log import LedgerLog
from kerolox.store.log.majority_waits import MajorityWaits
from kerolox.store.state import Obstacle

if TYPE_CHECKING:
    from kerolox.store.message_store import MessageStore

log = logging.getLogger(__name__)

CHECKPOINT = "checkpoint"
BARRIER_BODY = b"a new leader"
_SAVE_EVERY_S = 3.0


class StoredLedger:
    """Entries of one store. One event loop owns it; methods that may wait for the disk say so."""

    def __init__(self, store: MessageStore, log: LedgerLog, directory: str, *, alone: bool) -> None:
        self._store = store
        self._log = log
        self.directory = directory  # directory of this member, with data, index, checkpoint and currterm
        self.alone = alone
        # called when the broker has appended as leader
        self.on_appended: Observers[[]] = Observers("entries appended")
        # called when ``safe_index`` has grown
        self.on_safe: Observers[[]] = Observers("entries flushed")
        self.waits = MajorityWaits(store.progress, store.clock)
        self._committed = NO_INDEX
        self._safe = NO_INDEX
        # End offset and index of entries not yet on the medium
        self._unflushed: deque[tuple[int, int]] = deque()
        self._uncommitted: deque[int] = deque()  # end offsets of the entries after the committed one
        self._seen = NO_INDEX  # last index that was added to those two
        self._saved: tuple[int, int] | None = None
        self._saved_s = 0.0
        log.on_written.append(self._written)
        store.flusher.on_flushed.append(self._flushed)

    # --- what there is -----------------------------------------------------------------------------------

    @property
    def begin_index(self) -> int:
        return NO_INDEX if self._log.first is None else self._log.first.index

    @property
    def begin_pos(self) -> int:
        return self._log.max_offset if self._log.first is None else self._log.first.pos

    @property
    def end_index(self) -> int:
        return self._log.last.index

    @property
    def end_term(self) -> int:
        return self._log.last.term

    @property
    def safe_index(self) -> int:
        return self._safe if self._store.progress.wait_for_flush else self._log.last.index

    @property
    def committed_index(self) -> int:
        return self.safe_index if self.alone else self._committed

    def uncommitted(self) -> int:
        """Return the number of entries that no majority has yet, as far as this member knows."""
        return self.end_index - self.committed_index

    @property
    def takes_appends(self) -> str | None:
        reasons = {
            one: why for one, why in self._store.state.obstacles.items() if one is not Obstacle.FOLLOWER
        }
        return "; ".join(f"{one.value}: {why}" for one, why in reasons.items()) or None

    async def read(self, first: int, count_max: int, bytes_max: int) -> list[LedgerEntry]:
        """Return entries from an index on: at least one, at most ``count_max``, and about ``bytes_max``
        bytes."""
        if not self.begin_index <= first <= self.end_index or first < 0:
            raise OutOfLedger(
                f"entry {first} does not exist: the log holds {self.begin_index} to {self.end_index}"
            )
        found = self._read(first, count_max, bytes_max, may_wait=False)
        if found is None:
            found = await self._store.readers.read(
                lambda: self._read(first, count_max, bytes_max, may_wait=True)
            )
        assert found is not None
        return found

    def _read(
        self, first: int, count_max: int, bytes_max: int, *, may_wait: bool
    ) -> list[LedgerEntry] | None:
        units = self._log.index.units(first, min(count_max, self.end_index - first + 1), may_wait=may_wait)
        if units is None:
            return None
        size = units[0].size
        count = 1
        while count < len(units) and units[count].pos == units[count - 1].end and size < bytes_max:
            size += units[count].size
            count += 1
        if count > 1 and size > bytes_max:
            count -= 1
            size -= units[count].size
        start = units[0].pos
        segments = self._log.segments
        data = segments.read(start, size) if may_wait else segments.read_hot(start, size)
        if data is None:
            return None
        found: list[LedgerEntry] = []
        for unit in units[:count]:
            at = unit.pos - start
            if decode_head(data, at) != unit:
                raise CorruptRecord(
                    f"entry {unit.index} is not at offset {unit.pos}, which the index names: the log is "
                    f"damaged. Stop the broker and run: kerolox store verify {self._store.root}",
                    offset=unit.pos,
                )
            body = data[at + ENTRY_HEAD_BYTES : at + unit.size]
            found.append(LedgerEntry(unit.index, unit.term, unit.pos, body))
        return found

    # --- the member says ---------------------------------------------------------------------------------

    @property
    def leads(self) -> bool:
        """Return True if the broker may append entries of its term."""
        return self._log.term >= 0

    def lead(self, term: int) -> None:
        """Let the broker append entries of this term."""
        if term < self.end_term:
            raise OutOfLedger(f"cannot lead in term {term}: the last entry is of term {self.end_term}")
        self._log.term = term

    def follow(self) -> None:
        """Stop appending as leader. Waiting producers get the status "outcome unknown"."""
        self._log.term = -1
        self.waits.give_up()

    def pause(self, why: str | None) -> None:
        """Reject appends for the given reason; with None accept them again."""
        if why is None:
            self._store.state.clear(Obstacle.HANDED_OVER)
        else:
            self._store.state.set(Obstacle.HANDED_OVER, why)

    def append_barrier(self) -> None:
        """Append one message without meaning, to a topic that each broker keeps for itself."""
        cursor = self._log.cursor(SELF_TEST_TOPIC, 0)
        # Earlier leaders appended to it, and this broker did not count those messages
        self._log.renew_cursors()
        self._log.append_own(cursor, BARRIER_BODY, self._log.store_time.now_ms())

    def append_leader(self, body: bytes, on_decided: Callable[[bool], None]) -> LedgerEntry:
        """Reject bodies sent to the group's port: only the broker's own port assigns queue offsets."""
        raise OutOfLedger(
            f"cannot append {len(body)} bytes: the log of a broker holds only messages. Send them to the "
            "broker's own port."
        )

    def append_follower(self, entries: Sequence[LedgerEntry]) -> None:
        """Append the leader's entries. Raise OutOfLedger, without a write, unless they continue the log."""
        self._refuse_leader()
        self._log.append_entries(entries)

    async def truncate(self, entry: LedgerEntry) -> None:
        """Make this entry the last one. It is durable when the call returns."""
        self._refuse_leader()
        await self._make_last(entry)
        await self._store.flusher.flush_all()
        self._flushed_all()

    async def _make_last(self, entry: LedgerEntry) -> None:
        begin = self.begin_index
        if 0 <= begin <= entry.index <= self.end_index:
            (own,) = await self.read(entry.index, 1, 1)
            if own == entry:
                if entry.index < self.end_index:
                    await self._cut(entry.end, Mark(entry.index, entry.term))
                return
            if own.pos == entry.pos:
                before = Mark(NO_INDEX, -1)
                if entry.index > begin:
                    (last,) = await self.read(entry.index - 1, 1, 1)
                    before = Mark(last.index, last.term)
                await self._cut(entry.pos, before)
                self._log.append_entries([entry], begins=before.index == NO_INDEX)
                return
        elif entry.index == self.end_index + 1 and entry.pos == self._log.next_position(entry.size):
            self._log.append_entries([entry])
            return
        await self._begin_anew(entry)

    def commit(self, index: int) -> None:
        """Commit the entries up to this index: a majority has them, and so has this log. Never decreases."""
        if self.alone or index <= self._committed:
            return
        if index > self.end_index:
            raise OutOfLedger(f"cannot commit entry {index}: the log ends with entry {self.end_index}")
        end = 0
        for _ in range(index - self._committed):
            end = self._uncommitted.popleft()
        self._committed = index
        self._store.progress.replicated = end
        self._store.progress.advance()

    async def files_deleted(self) -> None:
        """Update the index after old data files were deleted."""

        def look() -> Unit | None:
            first = self._first_entry()
            if first is not None:
                self._log.index.delete_before(first.index)
            return first

        self._log.first = await asyncio.get_running_loop().run_in_executor(self._store.keeper, look)

    # --- what comes of it --------------------------------------------------------------------------------

    def _written(self) -> None:
        last = self._log.last.index
        if last == self._seen:
            return
        if not self.alone:
            self._uncommitted.extend(self._log.new_ends)
        self._log.new_ends.clear()
        if self._store.progress.wait_for_flush:
            self._unflushed.append((self._log.max_offset, last))
        self._seen = last
        if self.leads:
            self.on_appended()

    def _flushed(self, flushed: int) -> None:
        before = self._safe
        while self._unflushed and self._unflushed[0][0] <= flushed:
            self._safe = self._unflushed.popleft()[1]
        if self._safe != before:
            self.on_safe()

    def _flushed_all(self) -> None:
        """Mark all entries as flushed, because the cut removed the waits that would have reported it."""
        if self._store.progress.flushed < self._store.progress.appended:
            return
        self._unflushed.clear()
        if self._safe != self.end_index:
            self._safe = self.end_index
            self.on_safe()

    def _refuse_cut(self, last: int, position: int) -> None:
        """Raise if committed entries after this one would be removed."""
        if last < self._committed:
            raise OutOfLedger(
                f"cannot truncate the log to entry {last}: entries up to {self._committed} are committed, "
                "and were acknowledged and read. The leader has lost them. Nothing was changed. Find out "
                "which members still have them before this member copies the log anew.",
                offset=position,
            )

    def _refuse_leader(self) -> None:
        if self.leads:
            raise OutOfLedger(
                f"this member leads in term {self._log.term}: it accepts no entries from others"
            )

    async def _cut(self, position: int, last: Mark) -> None:
        """Truncate the log so that it ends with this entry."""
        self._refuse_cut(last.index, position)
        await self._store.truncate(position)
        keeper = self._store.keeper
        await asyncio.get_running_loop().run_in_executor(keeper, self._log.index.cut, last.index + 1)
        self._settle(last)

    def _settle(self, last: Mark) -> None:
        """Take this entry as the last one, after the log was truncated."""
        self._log.last = last
        self._seen = last.index
        if last.index == NO_INDEX:
            self._log.first = None
        self._committed = min(self._committed, last.index)
        while len(self._uncommitted) > last.index - self._committed:
            self._uncommitted.pop()
        self._unflushed.clear()
        self._safe = min(self._safe, last.index)

    async def _begin_anew(self, entry: LedgerEntry) -> None:
        """Begin the log anew with this entry: no entry of it adjoins the leader's log."""
        store, segments = self._store, self._log.segments
        self._refuse_cut(entry.index - 1, entry.pos)
        if segments.min_offset < segments.entries_from and segments.all:
            raise OutOfLedger(
                f"cannot begin the log anew with entry {entry.index} at {entry.pos}: the plain log before "
                f"{segments.entries_from} would be lost. Nothing was changed. Stop this broker, move "
                f"{store.root} away, and start it with a copy of another member's plain log.",
                offset=entry.pos,
            )
        if entry.pos % segments.size:
            raise OutOfLedger(
                f"cannot begin the log with entry {entry.index} at {entry.pos}: no file begins there, "
                f"because files have {segments.size} bytes (mappedFileSizeCommitLog)",
                offset=entry.pos,
            )
        log.warning(
            "ledger_begins_anew entry=%d position=%d before=%d..%d reason='the leader no longer has any of "
            "these entries'",
            entry.index, entry.pos, self.begin_index, self.end_index,
        )  # fmt: skip
        if store.log.max_offset > store.log.min_offset:
            await store.truncate(max(0, segments.min_offset))
        self._settle(Mark(NO_INDEX, -1))
        self._committed = NO_INDEX
        await asyncio.get_running_loop().run_in_executor(store.keeper, self._log.index.segments.delete_all)
        await store.begin_at(entry.pos)
        segments.entries_from = entry.pos
        self._committed = entry.index - 1
        self._log.append_entries([entry], begins=True)
        await store.flusher.flush_all()

    # --- start and stop, in threads ------------------------------------------------------------------------

    def place(self) -> None:
        """Find the offset at which entries begin: after the files were found, before they are read.

        A plain log is recovered as one; then :meth:`begin` continues it with entries.
        """
        segments = self._log.segments
        own = [one.start for one in segments.all if os.path.dirname(one.path) in segments.directories]
        if own:
            segments.entries_from = own[0]
        elif segments.all:
            for segment in segments.all:
                segment.read_only = False  # its end may be torn; it is closed later
        else:
            segments.entries_from = 0
        self._log.index.segments.load()

    def begin(self, end: int) -> int:
        """Continue a plain log with entries; return the new end of the log."""
        segments = self._log.segments
        if segments.entries_from != NOWHERE:
            return end
        self._log.begin_entries()
        segments.flush()
        for segment in segments.all[:-1]:
            segment.read_only = True
        log.warning(
            "ledger_begins position=%d next='make sure that the plain log before it is the same on all "
            "members: it stays unchanged and is not replicated'",
            segments.entries_from,
        )  # fmt: skip
        return segments.wrote

    def recover(self, start: int, end: int, dispatched: int) -> int:
        """Repair the index from the recovered entries. Return the offset up to which readers may see the log:
        the noted commit index, and anything dispatched before."""
        store, segments = self._store, self._log.segments
        if segments.entries_from == NOWHERE:
            return end
        found = self._log.index.fit(segments, start, end)
        if found is None:
            return end
        first, last = found
        self._log.first, self._log.last = first, Mark(last.index, last.term)
        self._seen = self._safe = last.index
        noted = self._load()
        if self.alone:
            return end
        committed = min(max(noted, first.index - 1), last.index)
        ends = deque(self._ends(committed, last.index))
        if committed >= first.index:
            units = self._log.index.units(committed, 1, may_wait=True)
            assert units is not None
            position = units[0].end
        else:
            position = min(first.pos, segments.entries_from)
        while ends and ends[0] <= dispatched:  # dispatched before, so it had been committed
            position = ends.popleft()
            committed += 1
        self._committed, self._uncommitted = committed, ends
        store.progress.replicated = position
        return position

    def _ends(self, after: int, last: int) -> Iterator[int]:
        """Yield the end offsets of the entries after ``after``, up to the last one."""
        while after < last:
            units = self._log.index.units(after + 1, min(last - after, 65536), may_wait=True)
            assert units is not None
            yield from (unit.end for unit in units)
            after = units[-1].index

    def _first_entry(self) -> Unit | None:
        """Return the first entry of the oldest data file. Wait for the disk."""
        segments = self._log.segments
        for segment in segments.all:
            if segment.start >= segments.entries_from and segment.start < segments.committed:
                return decode_head(segments.read(segment.start, ENTRY_HEAD_BYTES))
        return None

    def flush(self) -> None:
        """Flush the index. Wait for the disk."""
        self._log.index.segments.flush()

    def save(self, *, now: bool = False) -> None:
        """Save the commit index, at most every few seconds. Wait for the disk."""
        noted = (self.committed_index, self.end_index)
        at_s = self._store.clock.monotonic_s()
        if noted == self._saved or not (now or at_s - self._saved_s >= _SAVE_EVERY_S):
            return
        self._store.files.write_atomic(
            os.path.join(self.directory, CHECKPOINT), b"committedIndex=%d\nendIndex=%d\n" % noted
        )
        self._saved, self._saved_s = noted, at_s

    def _load(self) -> int:
        path = os.path.join(self.directory, CHECKPOINT)
        data = self._store.files.read_if_exists(path)
        if data is None:
            return NO_INDEX
        try:
            return int(read_properties(data.decode("utf-8", "replace")).get("committedIndex", NO_INDEX))
        except ValueError:
            log.warning("ledger_checkpoint_ignored path=%s  reason='unreadable'", path)
            return NO_INDEX

    def close(self) -> None:
        """Flush the index and save the commit index. Wait for the disk."""
        self.flush()
        self.save(now=True)
        self._log.index.segments.close()
