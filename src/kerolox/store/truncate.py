"""Truncation of the log of a running follower whose log differs from its leader's from an offset on.

The new leader never had the data after that offset, so it is removed with everything derived from it. A
follower that led before may have dispatched, indexed and delivered it. The steps:

1. Writes, flushes, dispatch and housekeeping stop; those under way are awaited.
2. In a thread: check that a record begins or ends at the offset, and find the records after it and the ends
   of the queues. Up to here nothing was changed, and errors reject the cut. Then the note ``kerolox.cut`` is
   written and flushed: if there is no room for it, nothing was changed either, and the same cut succeeds
   once there is room.
3. On the loop, in one step: the log, its progress, the queues and cursors end at the offset. Producers that
   wait for the flush of a later message are told that it is gone. New reads see only the rest; a read that
   is under way in a thread is repeated.
4. In a thread: the files. The log (files after the end are removed, the rest of the last one is zeroed), the
   queues and their extensions, the index, the epochs, the timer's files, the notes. Then sums and progress
   notes of the rest.
5. The listeners in ``MessageStore.on_truncated``, in the order of the list.
6. The note is removed, and all work resumes. If the listeners are not registered yet, the note stays for the
   start that has them.

Once the note is written, every failure fences the store, and the next start finishes the cut.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

import msgspec

from kerolox.protocol import properties as names
from kerolox.protocol import reserved
from kerolox.protocol.record import decode_record
from kerolox.protocol.record_scan import (
    CHECK_NONE,
    PHYSICAL_OFFSET,
    PROPERTIES,
    SIZE,
    STORE_TIMESTAMP,
    TOPIC,
    Entry,
    Stop,
)
from kerolox.store.disk.cut_note import Cut, QueueEnd
from kerolox.store.disk.segments import Segments
from kerolox.store.errors import StoreError
from kerolox.store.housekeeping import Housekeeper
from kerolox.store.log.framing import position_of
from kerolox.store.log.readable_log import ReadableLog
from kerolox.store.notes import Notes
from kerolox.store.parts import Derived, StoreDirectory, Writes
from kerolox.store.queue.consume_queue import QueueCut
from kerolox.store.queue.consume_queues import ConsumeQueues
from kerolox.store.queue.queues import Queues
from kerolox.store.recovery import record_starts, records_from
from kerolox.store.state import NotWritable, Obstacle
from kerolox.store.timer.cut import begin_anew_behind

log = logging.getLogger(__name__)

_AT_REAL_TOPIC = names.marker(names.REAL_TOPIC)
_AT_TIMER_OUT = names.marker(names.TIMER_OUT_MS)
_TIMER = reserved.TIMER_TOPIC.encode()
_OPS = reserved.HALF_DONE_TOPIC.encode()
_ALLOWED = {Obstacle.FOLLOWER, Obstacle.DISK_FULL}


class CannotTruncate(StoreError):
    """Cut that is impossible at this offset, or at the moment. Nothing was changed."""


class Truncation:
    """One cut of one store. The event loop owns it."""

    def __init__(
        self,
        offset: int,
        directory: StoreDirectory,
        writes: Writes,
        derived: Derived,
        notes: Notes,
        reads: Queues,
        housekeeper: Housekeeper,
    ) -> None:
        self._offset = offset
        self._directory = directory
        self._log, self._flusher, self._acks = writes.log, writes.flusher, writes.acks
        self._state = writes.failing.state
        self._derived = derived
        self._notes = notes
        self._reads = reads
        self._housekeeper = housekeeper
        self._queues: list[QueueCut] = []

    async def run(self, tell: Callable[[Cut], Awaitable[None]] | None) -> Cut | None:
        """Truncate the log and return what was removed; None if it already ends there. ``tell`` notifies the
        listeners; None: they are not registered yet, and the next start notifies them."""
        async with self._housekeeper.alone():
            self._check_state()
            end = self._log.max_offset
            if self._offset == end:
                return None
            self._check_range(end)
            self._state.set(Obstacle.CUTTING, f"the log is being cut back to {self._offset}")
            self._derived.dispatcher.hold()
            try:
                await self._flusher.hold(self._offset)
                self._derived.key_filler.put_pending()
                cut = await self._housekeeper.in_keeper(self._plan)
                await self._carry_out(cut, tell)
            finally:
                self._state.clear(Obstacle.CUTTING)
                self._flusher.release()
                if not self._state.fenced:  # else the queues and the index may be half cut
                    self._derived.dispatcher.release()
        log.warning(
            "log_truncated offset=%d before=%d bytes=%d records=%d stored_ms=%d..%d queues=%d "
            "reason='the leader does not have the rest'",
            cut.end, end, end - cut.end, cut.records, cut.first_ms, cut.last_ms, len(cut.queues),
        )  # fmt: skip
        return cut

    async def _carry_out(self, cut: Cut, tell: Callable[[Cut], Awaitable[None]] | None) -> None:
        is_noted = False
        try:
            await self._housekeeper.in_keeper(lambda: self._notes.cut.save(cut))
            is_noted = True
            self._lower(cut)
            await self._housekeeper.in_keeper(lambda: self._clear(cut))
            self._log.begin()
            await self._housekeeper.make_safe(sums=True)
            self._flusher.release()  # the listeners may wait for a flush
            if tell is None:
                await self._housekeeper.in_keeper(lambda: self._notes.cut.save_untold(cut))
            else:
                await tell(cut)
                await self._housekeeper.in_keeper(self._notes.cut.remove)
            # Last, because the listeners need the space that the cut has freed.
            self._log.prepare_next()
        except BaseException as error:
            # Without a note nothing has changed. The next start would carry out a note that exists.
            if is_noted or not await self._housekeeper.in_keeper(self._take_note_back):
                self._state.set(
                    Obstacle.FENCED,
                    f"the log could not be truncated to {cut.end}: {error}; the next start finishes it",
                )
            raise
        finally:
            self._reads.repeat_reads()  # reads of the index made meanwhile may have seen half of it

    def _take_note_back(self) -> bool:
        """Remove a note that was not written safely; return False if that is not certain. Runs in a
        thread."""
        note = self._notes.cut
        try:
            note.remove()
        except StoreError as error:
            log.error("cut_note_not_removed path=%s error=%r", note.path, str(error))
            return False
        return True

    # --- checks ----------------------------------------------------------------------------------------

    def _check_state(self) -> None:
        hindered = {one: why for one, why in self._state.obstacles.items() if one not in _ALLOWED}
        if hindered:
            raise NotWritable(hindered)
        if Obstacle.FOLLOWER not in self._state.obstacles:
            raise CannotTruncate(
                f"cannot truncate the log to {self._offset}: this store leads, and followers copy its log. "
                "Only a follower's log can be truncated: make this broker a follower first."
            )
        if self._log.unwritten:
            raise CannotTruncate(
                f"cannot truncate the log to {self._offset}: {self._log.unwritten} messages are appended and "
                "not yet written. Retry when they are written.",
            )

    def _check_range(self, end: int) -> None:
        """Raise unless the offset is inside the log, as far as that is known without reading."""
        offset, first, size = self._offset, self._log.min_offset, self._log.segments.size
        if not 0 <= offset < end:
            raise CannotTruncate(
                f"cannot truncate the log to {offset}: it holds {first} to {end}. A follower copies missing "
                "records from its leader.",
                offset=offset,
            )
        if offset < first and offset % size:
            below = offset - offset % size
            raise CannotTruncate(
                f"cannot truncate the log to {offset}: it begins at {first}, so nothing would be left, and "
                f"a log begins with a file. Truncate it to {below}, and copy from there on.",
                offset=offset,
            )

    def _plan(self) -> Cut:
        """Find out what the cut removes. Raise with nothing changed. Runs in a thread."""
        offset = self._offset
        if self._log.segments.transient:
            self._log.segments.commit()
        stored_ms = 0
        if offset > self._log.min_offset:
            stored_ms = self._check_place()
        self._queues = self._derived.queues.plan_cut(offset)
        taken = what_is_taken(self._log, max(offset, self._log.min_offset), self._log.whole_end)
        ends = [QueueEnd(cut.queue.topic, cut.queue.queue_id, cut.end) for cut in self._queues]
        return msgspec.structs.replace(taken, end=offset, stored_ms=stored_ms, queues=ends)

    def _check_place(self) -> int:
        """Return the store time of the message before the offset. Raise unless a record begins or ends
        there."""
        offset = self._offset
        before, behind, stored_ms = boundaries(self._log.segments, self._derived.queues, offset)
        if before == offset or behind == offset:
            return stored_ms
        raise CannotTruncate(
            f"cannot truncate the log to {offset}: that is inside the record from {before} to {behind}. The "
            "two logs differ in more than their ends: empty this broker's store, so that it copies anew.",
            offset=offset,
        )

    # --- carrying it out -------------------------------------------------------------------------------

    def _lower(self, cut: Cut) -> None:
        """Lower all ends in one step of the loop, without the disk: from here on no reader sees the removed
        data."""
        offset = cut.end
        self._reads.cut(offset)
        self._log.segments.lower_to(offset)
        self._log.cut(offset, cut.stored_ms)
        self._log.progress.cut(offset)
        self._derived.dispatcher.cut(offset, cut.stored_ms)
        self._derived.queues.lower_to(self._queues)
        for queue_cut in self._queues:
            if queue_cut.leaves_nothing:
                self._derived.queue_filler.forget(queue_cut.queue.topic)
        self._log.renew_cursors()
        self._notes.lower_to(cut)
        self._acks.cut(offset, cut.stored_ms)

    def _clear(self, cut: Cut) -> None:
        """Cut the files. Runs in a thread; the loop touches none of them meanwhile."""
        self._notes.clear_behind(cut)
        clear_log(self._log.segments, cut)
        self._derived.queues.clear_behind(self._queues)
        self._derived.index.truncate_to(cut.end)
        clear_timer(self._directory, cut)


def clear_log(segments: Segments, cut: Cut) -> None:
    """End the log's files at the cut; begin anew there if nothing is left. Runs in a thread."""
    segments.clear_behind()
    if segments.last is None and cut.end % segments.size == 0:
        segments.start_at(cut.end)


def clear_timer(directory: StoreDirectory, cut: Cut) -> None:
    if cut.timer:
        begin_anew_behind(directory.files, directory.root, cut, directory.clock.wall_ms())


def boundaries(segments: Segments, queues: ConsumeQueues, offset: int) -> tuple[int, int, int]:
    """Return the begin and end of the last record that begins before an offset, and the store time of the
    last record that ends at or before it. The unwritten end of the log or of a file counts as a record. Runs
    in a thread."""
    first = segments.segment_at(offset - 1)
    assert first is not None
    known = position_of(segments, queues.place_before(offset - 1))
    # All files begin with a record, except one in which the log was begun anew.
    start = max(known, first.start if record_starts(segments, first.start) else segments.min_offset)
    before, stored_ms = start, 0
    for position, entries, stop, _ in records_from(segments, start, CHECK_NONE):
        before = position
        for entry in entries:
            end = entry[PHYSICAL_OFFSET] + entry[SIZE]
            if end > offset:
                return before, end, stored_ms
            before, stored_ms = end, entry[STORE_TIMESTAMP]
        if stop is Stop.BLANK:
            segment = segments.segment_at(before)
            assert segment is not None
            if offset <= segment.end:
                return before, segment.end, stored_ms
            before = segment.end
    return before, max(before, segments.wrote), stored_ms


def what_is_taken(readable: ReadableLog, begin: int, end: int) -> Cut:
    """Return what a cut between two offsets removes, as far as others have noted it. Runs in a thread."""
    delayed: dict[int, int] = {}
    timer = False
    due: list[int] = []
    half_ended: list[int] = []
    records = first_ms = last_ms = 0
    for entries, _ in readable.entries_from(begin, end):
        if entries:
            records += len(entries)
            first_ms = first_ms or entries[0][STORE_TIMESTAMP]
            last_ms = entries[-1][STORE_TIMESTAMP]
        for entry in entries:
            topic, properties = entry[TOPIC], entry[PROPERTIES]
            level = names.find(properties, names.AT_DELAY)
            # A delivered message names its destination topic; a waiting one is stored under another topic.
            if level is not None and level.isdigit() and names.find(properties, _AT_REAL_TOPIC) == topic:
                delayed[int(level)] = delayed.get(int(level), 0) + 1
            due_ms = names.find(properties, _AT_TIMER_OUT)
            timer = timer or topic == _TIMER or due_ms is not None
            if due_ms is not None and due_ms.isdigit() and topic != _TIMER:
                due.append(int(due_ms))
            if topic == _OPS:
                half_ended += _offsets_noted(readable, entry)
    return Cut(
        end,
        records=records,
        first_ms=first_ms,
        last_ms=last_ms,
        delayed=delayed,
        timer=timer,
        due_ms=min(due, default=None),
        half_ended=min(half_ended, default=None),
    )


def _offsets_noted(readable: ReadableLog, entry: Entry) -> list[int]:
    """Return the offsets of the half messages whose end an op message notes, separated by commas."""
    body = decode_record(readable.read(entry[PHYSICAL_OFFSET], entry[SIZE])).body
    return [int(word) for word in body.split(b",") if word.isdigit() and len(word) < 20]
