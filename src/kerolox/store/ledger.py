"""The log of a member of a DLedger group: what its entries are to the group, and how far they are committed.

The member (replication/dledger) says who may append, and what a majority has; this keeps the entries and lets
dispatch, readers and senders follow what is committed. A group of one has nobody to wait for: there an entry
is committed as soon as it is as safe as the flush mode promises.

What is committed is noted in ``checkpoint`` as Apache's members do, as a floor for the next start.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

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
    """The entries of one store. One event loop owns it; what may wait for the disk says so."""

    def __init__(self, store: MessageStore, log: LedgerLog, directory: str, *, alone: bool) -> None:
        self._store = store
        self._log = log
        self.directory = directory  # of this member: data, index, checkpoint and currterm lie there
        self.alone = alone
        self.on_appended: list[Callable[[], None]] = []  # hear that the broker appended as leader
        self.on_safe: list[Callable[[], None]] = []  # hear that ``safe_index`` grew
        self.waits = MajorityWaits(store.progress, store.clock)
        self._committed = NO_INDEX
        self._safe = NO_INDEX
        self._unflushed: deque[tuple[int, int]] = deque()  # end and index of what is not yet on the medium
        self._uncommitted: deque[int] = deque()  # where the entries behind the committed one end
        self._seen = NO_INDEX  # entries up to this index are in those two
        self._saved: tuple[int, int] | None = None
        self._saved_s = 0.0
        if not alone:
            store.progress.replicated = 0
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
        """How many entries no majority has yet, as far as this member knows."""
        return self.end_index - self.committed_index

    @property
    def takes_appends(self) -> str | None:
        reasons = {
            one: why for one, why in self._store.state.obstacles.items() if one is not Obstacle.FOLLOWER
        }
        return "; ".join(f"{one.value}: {why}" for one, why in reasons.items()) or None

    async def read(self, first: int, count_max: int, bytes_max: int) -> list[LedgerEntry]:
        """Entries from an index on: one at least, then no more than so many and so many bytes."""
        if not self.begin_index <= first <= self.end_index or first < 0:
            raise OutOfLedger(
                f"there is no entry {first}: the log holds {self.begin_index} to {self.end_index}"
            )
        found = self._read(first, count_max, bytes_max, may_wait=False)
        if found is None:
            found = await self._store.in_reader(
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
                    f"entry {unit.index} is not at {unit.pos}, where the index says: the log is damaged. "
                    f"Stop the broker and look: kerolox store verify {self._store.root}",
                    offset=unit.pos,
                )
            body = data[at + ENTRY_HEAD_BYTES : at + unit.size]
            found.append(LedgerEntry(unit.index, unit.term, unit.pos, body))
        return found

    # --- the member says ---------------------------------------------------------------------------------

    def lead(self, term: int) -> None:
        """The broker may append from now on; its entries are of this term."""
        if term < self.end_term:
            raise OutOfLedger(f"term {term} is over: the last entry is of term {self.end_term}")
        self._log.term = term

    def follow(self) -> None:
        """It may not any more. Who waits for an entry hears that nobody knows what becomes of it."""
        self._log.term = -1
        self.waits.give_up()

    def pause(self, why: str | None) -> None:
        """Nothing is appended for now; with None it is again."""
        if why is None:
            self._store.state.clear(Obstacle.HANDED_OVER)
        else:
            self._store.state.set(Obstacle.HANDED_OVER, why)

    def append_barrier(self) -> None:
        """Append one message that means nothing, into a topic that every broker has for itself."""
        cursor = self._log.cursor(SELF_TEST_TOPIC, 0)
        self._log.renew_cursors()  # earlier leaders wrote there, too, and nobody counted meanwhile
        self._log.append_own(cursor, BARRIER_BODY, self._log.store_time.now_ms())

    def append_leader(self, body: bytes, told: Callable[[bool], None]) -> LedgerEntry:
        """Refused: messages come to the port of the broker, where their places in queues are given out."""
        raise OutOfLedger(
            f"{len(body)} bytes are not appended: the log of a broker holds messages alone. Send them to the "
            "broker's own port."
        )

    def append_follower(self, entries: Sequence[LedgerEntry]) -> None:
        """Keep what the leader sent. Raises OutOfLedger, with nothing written, unless that continues the
        log."""
        self._refuse_leader()
        self._log.append_entries(entries)

    async def truncate(self, entry: LedgerEntry) -> None:
        """Let this entry be the last one. Durable when it returns."""
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
        """Entries up to this index, which are here, are on a majority. Never falls."""
        if self.alone or index <= self._committed:
            return
        if index > self.end_index:
            raise OutOfLedger(f"entry {index} cannot be committed: the log ends with {self.end_index}")
        end = 0
        for _ in range(index - self._committed):
            end = self._uncommitted.popleft()
        self._committed = index
        self._store.progress.replicated = end
        self._store.progress.advance()

    async def files_deleted(self) -> None:
        """Old data files were deleted: the index follows."""

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
        if self._log.term >= 0:
            for told in self.on_appended:
                told()

    def _flushed(self, flushed: int) -> None:
        before = self._safe
        while self._unflushed and self._unflushed[0][0] <= flushed:
            self._safe = self._unflushed.popleft()[1]
        if self._safe != before:
            for told in self.on_safe:
                told()

    def _flushed_all(self) -> None:
        """Nothing waits for the disk. What was cut took with it who was to tell so."""
        if self._store.progress.flushed < self._store.progress.appended:
            return
        self._unflushed.clear()
        if self._safe != self.end_index:
            self._safe = self.end_index
            for told in self.on_safe:
                told()

    def _refuse_cut(self, last: int, position: int) -> None:
        """Raise when entries behind this one would go that are committed."""
        if last < self._committed:
            raise OutOfLedger(
                f"the log is not cut back to entry {last}: up to {self._committed} they are committed, and "
                "were acknowledged and read. The member that leads lost them. Nothing was changed: find out "
                "which members still have them before this one copies anew.",
                offset=position,
            )

    def _refuse_leader(self) -> None:
        if self._log.term >= 0:
            raise OutOfLedger(f"this member leads in term {self._log.term}: it takes entries from nobody")

    async def _cut(self, position: int, last: Mark) -> None:
        """Cut the log; what is left ends with this entry."""
        self._refuse_cut(last.index, position)
        await self._store.truncate(position)
        keeper = self._store.keeper
        await asyncio.get_running_loop().run_in_executor(keeper, self._log.index.cut, last.index + 1)
        self._settle(last)

    def _settle(self, last: Mark) -> None:
        """The log was cut, and this is its last entry now."""
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
        """Nothing that is here touches the leader's log: it begins with this entry."""
        store, segments = self._store, self._log.segments
        self._refuse_cut(entry.index - 1, entry.pos)
        if segments.min_offset < segments.entries_from and segments.all:
            raise OutOfLedger(
                f"the log would begin anew with entry {entry.index} at {entry.pos}, and the plain log before "
                f"{segments.entries_from} would be lost. Nothing was changed. Stop this broker, move "
                f"{store.root} away, and start it with a copy of another member's plain log.",
                offset=entry.pos,
            )
        if entry.pos % segments.size:
            raise OutOfLedger(
                f"the log cannot begin with entry {entry.index} at {entry.pos}: no file begins there, with "
                f"files of {segments.size} bytes (mappedFileSizeCommitLog)",
                offset=entry.pos,
            )
        log.warning(
            "ledger_begins_anew entry=%d position=%d before=%d..%d reason='the leader has nothing of what is "
            "here any more'",
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
        """Find out from where on the log is entries: after its files were found, before they are read.

        A log that was plain until now is recovered as one; then :meth:`begin` goes on with entries.
        """
        segments = self._log.segments
        own = [one.start for one in segments.all if os.path.dirname(one.path) in segments.directories]
        if own:
            segments.entries_from = own[0]
        elif segments.all:
            for segment in segments.all:
                segment.read_only = False  # its end may be torn, and is closed
        else:
            segments.entries_from = 0
        self._log.index.segments.load()

    def begin(self, end: int) -> int:
        """Go on with entries where the log was a plain one until now; where it ends then."""
        segments = self._log.segments
        if segments.entries_from != NOWHERE:
            return end
        self._log.begin_entries()
        segments.flush()
        for segment in segments.all[:-1]:
            segment.read_only = True
        log.warning(
            "ledger_begins position=%d next='the plain log before it stays as it is and is not copied: it "
            "has to be the same on all members of the group'",
            segments.entries_from,
        )  # fmt: skip
        return segments.wrote

    def recover(self, start: int, end: int, dispatched: int) -> int:
        """Bring the index in step with the entries, which were found to be good; up to where the log may be
        seen: what the note says is committed, and what was dispatched before."""
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
        while ends and ends[0] <= dispatched:  # that had been committed
            position = ends.popleft()
            committed += 1
        self._committed, self._uncommitted = committed, ends
        store.progress.replicated = position
        return position

    def _ends(self, after: int, last: int) -> Iterator[int]:
        """Where the entries behind one end, up to the last one."""
        while after < last:
            units = self._log.index.units(after + 1, min(last - after, 65536), may_wait=True)
            assert units is not None
            yield from (unit.end for unit in units)
            after = units[-1].index

    def _first_entry(self) -> Unit | None:
        """The first entry of the oldest data file. Waits for the disk."""
        segments = self._log.segments
        for segment in segments.all:
            if segment.start >= segments.entries_from and segment.start < segments.committed:
                return decode_head(segments.read(segment.start, ENTRY_HEAD_BYTES))
        return None

    def flush(self) -> None:
        """Flush the index. Waits for the disk."""
        self._log.index.segments.flush()

    def save(self, *, now: bool = False) -> None:
        """Note what is committed, every few seconds. Waits for the disk."""
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
            log.warning("ledger_checkpoint_ignored path=%s reason='does not read'", path)
            return NO_INDEX

    def close(self) -> None:
        """Flush and note everything. Waits for the disk."""
        self.flush()
        self.save(now=True)
        self._log.index.segments.close()
