"""Commit log of a DLedger group member: each record is in an entry. See framing.py.

Appended messages collect as in a plain log; their heads, and their units of the index, are built when they
are written, all at once. A leader appends messages in its term. A follower appends the leader's entries
unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor

from kerolox.clock import Clock
from kerolox.protocol.ledger_entry import ENTRY_BYTES_MAX, ENTRY_HEAD_BYTES, NO_INDEX, LedgerEntry
from kerolox.protocol.ledger_scan import Mark, Unit, encode_head, encode_unit, frame
from kerolox.protocol.record import BLANK_BYTES, encode_record, record_size
from kerolox.protocol.record_scan import PHYSICAL_OFFSET, SIZE, STORE_TIMESTAMP, Entry, scan
from kerolox.store.disk.segments import Segments
from kerolox.store.errors import OutOfLedger, StoreError
from kerolox.store.failures import Kind
from kerolox.store.log.commit_log import CommitLog
from kerolox.store.log.cursors import AppendRefused, QueueCursor
from kerolox.store.log.framing import ENTRIES
from kerolox.store.log.ledger_index import LedgerIndex
from kerolox.store.log.progress import Progress
from kerolox.store.options import StoreOptions
from kerolox.store.standing_failures import StandingFailures
from kerolox.store.state import Obstacle

_EMPTY = Mark(NO_INDEX, -1)


class LedgerLog(CommitLog):
    """Log of entries. ``last`` is the last one: index and term, -1 without any."""

    def __init__(
        self,
        segments: Segments,
        options: StoreOptions,
        progress: Progress,
        failing: StandingFailures,
        *,
        index: LedgerIndex,
        clock: Clock,
        store_host: bytes,
        executor: Executor,
        next_offset_of: Callable[[str, int], int],
    ) -> None:
        super().__init__(
            segments,
            options,
            progress,
            failing,
            clock=clock,
            store_host=store_host,
            executor=executor,
            next_offset_of=next_offset_of,
            framing=ENTRIES,
        )
        self.index = index
        self.last = _EMPTY
        self.first: Unit | None = None  # the first existing entry
        self.new_ends: list[int] = []  # end offsets of the entries of this write
        self.term = -1  # term in which messages are appended; -1: this member does not lead

    # --- appending, as leader ------------------------------------------------------------------------

    def append_raw(self, data: bytes) -> None:
        raise StoreError("a DLedger log is not replicated as bytes: its members push entries to each other")

    def append_own(self, cursor: QueueCursor, body: bytes, now_ms: int) -> None:
        """Append and write a message of the broker itself, as leader, before clients may send."""
        self._state.check_writable(besides=Obstacle.FOLLOWER)
        size = ENTRY_HEAD_BYTES + record_size(len(body), cursor.field, 0, 2 * len(self.store_host))
        self.write()
        self._roll_for(size)
        at = self.segments.wrote + ENTRY_HEAD_BYTES
        record = encode_record(
            cursor.queue_id, 0, cursor.next_offset, at, 0, now_ms, self.store_host, now_ms, self.store_host,
            0, 0, body, cursor.field, b"",
        )  # fmt: skip
        found = scan(record, count_max=1).entries
        self._hand_over([record], found)
        cursor.next_offset += 1
        self.whole_end = self.segments.wrote
        self.undispatched.extend(found)
        self.last_store_timestamp = now_ms
        self._tell_written()

    def _hand_over(self, parts: list[bytes], entries: list[Entry]) -> None:
        """Write the records of this pass, in entries of the term."""
        if self.term < 0:
            raise OutOfLedger("no messages are accepted: this member does not lead its group")
        first = self.last.index + 1
        pos = entries[0][PHYSICAL_OFFSET] - ENTRY_HEAD_BYTES
        pieces, units = frame(parts, first, self.term, pos)
        self._put(first, b"".join(pieces), units)
        self.last = Mark(self.last.index + len(parts), self.term)
        if self.first is None:
            self.first = Unit(first, self.term, pos, ENTRY_HEAD_BYTES + len(parts[0]))
        self.new_ends += [entry[PHYSICAL_OFFSET] + entry[SIZE] for entry in entries]

    def _put(self, first: int, data: bytes, units: bytes) -> None:
        """Write units and entries. The units come first: after the end of the log they mean nothing, and an
        entry never lacks its unit."""
        try:
            self.index.append(first, units)
        except StoreError as error:
            self._failing.failed(Kind.LEDGER_INDEX, error, work="append", full=True)
            raise
        try:
            self._append(data)
        except BaseException:
            self.index.take_back()
            raise
        if self._failing.current:
            self._failing.passed(Kind.LEDGER_INDEX, "append")

    # --- appending, as follower ------------------------------------------------------------------------

    def append_entries(self, entries: Sequence[LedgerEntry], *, begins: bool = False) -> None:
        """Append entries unchanged. Raise OutOfLedger, with nothing written, unless they continue the log;
        or, with ``begins``, the log is empty and the leader's begins with these."""
        self._state.check_writable(besides=Obstacle.FOLLOWER)
        if self._parts:
            raise OutOfLedger(f"this broker has {len(self._parts)} unwritten messages")
        records = self._check_entries(entries, begins)
        at = 0
        try:
            while at < len(entries):
                self._roll_for(entries[at].size)
                upto = at + 1
                while upto < len(entries) and entries[upto].pos == entries[upto - 1].end:
                    upto += 1
                self._put_entries(entries[at:upto])
                self.undispatched.extend(records[at:upto])
                self.last_store_timestamp = max(self.last_store_timestamp, records[upto - 1][STORE_TIMESTAMP])
                self.store_time.not_before(self.last_store_timestamp)
                at = upto
        finally:
            if at:
                self._tell_written()

    def _check_entries(self, entries: Sequence[LedgerEntry], begins: bool) -> list[Entry]:
        """Return the records in entries that continue the log. Raise OutOfLedger."""
        records: list[Entry] = []
        end, file_end, last = self.segments.wrote, self._file_end, self.last
        for entry in entries:
            size = entry.size
            if size > ENTRY_BYTES_MAX or size + BLANK_BYTES > self.segments.size:
                raise OutOfLedger(
                    f"entry {entry.index} of {size} bytes does not fit into a file", offset=entry.pos
                )
            if end + size + BLANK_BYTES > file_end:
                end, file_end = file_end, file_end + self.segments.size
            continues = entry.index == last.index + 1 or (begins and last.index == NO_INDEX)
            if not continues or entry.term < last.term or entry.pos != end:
                raise OutOfLedger(
                    f"entry {entry.index} of term {entry.term} at {entry.pos} does not continue the log: it "
                    f"ends with entry {last.index} of term {last.term}, and the next one must be at {end}",
                    offset=entry.pos,
                )
            found = scan(entry.body, count_max=1, lies_at=entry.pos + ENTRY_HEAD_BYTES)
            if not found.entries or found.entries[0][SIZE] != len(entry.body):
                raise OutOfLedger(
                    f"entry {entry.index} at {entry.pos} holds no message: "
                    f"{found.what or 'bytes follow its record'}",
                    offset=entry.pos,
                )
            records.append(found.entries[0])
            last, end = Mark(entry.index, entry.term), entry.end
        return records

    def _put_entries(self, entries: Sequence[LedgerEntry]) -> None:
        """Write consecutive entries, all in the current file."""
        pieces: list[bytes] = []
        units: list[bytes] = []
        for entry in entries:
            pieces += (encode_head(entry.index, entry.term, entry.pos, len(entry.body)), entry.body)
            units.append(encode_unit(Unit(entry.index, entry.term, entry.pos, entry.size)))
        self._put(entries[0].index, b"".join(pieces), b"".join(units))
        self.whole_end = self.segments.wrote
        self.last = Mark(entries[-1].index, entries[-1].term)
        if self.first is None:
            self.first = Unit(entries[0].index, entries[0].term, entries[0].pos, entries[0].size)
        self.new_ends += [entry.end for entry in entries]

    # --- files -------------------------------------------------------------------------------------------

    def begin_entries(self) -> None:
        """Continue a plain log with entries, from the next file on. Wait for the disk."""
        self.begin()
        if self.segments.wrote < self._file_end or self.segments.last is None:
            self._roll()
        else:
            self.segments.roll()
        self.segments.entries_from = self.segments.wrote
        self.begin()

    def next_position(self, size: int) -> int:
        """Return the position that an entry of this size would get."""
        end = self.segments.wrote
        return self._file_end if end + size > self._limit else end

    def _roll_for(self, size: int) -> None:
        if self.segments.wrote + size > self._limit:
            self._roll()

    def _check_fits(self, properties: int, size: int) -> None:
        if ENTRY_HEAD_BYTES + size > ENTRY_BYTES_MAX:
            raise AppendRefused(
                f"the entry has {ENTRY_HEAD_BYTES + size} bytes with its head of {ENTRY_HEAD_BYTES}; the "
                f"limit in a DLedger group (enableDLegerCommitLog) is {ENTRY_BYTES_MAX}, whatever "
                "maxMessageSize is. Send a smaller message, or compress it."
            )
        super()._check_fits(properties, size)
