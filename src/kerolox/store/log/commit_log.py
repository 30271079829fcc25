"""Commit log: all messages of all topics, one after the other. See FORMAT.md.

One event loop owns it. :meth:`CommitLog.append` assigns a message its offsets and keeps its record;
:meth:`CommitLog.write` writes all records kept since in one system call. A read pass of the broker appends
many messages and writes once. Unwritten messages do not exist: if the write fails, their offsets are taken
back and no client has seen them.

The end of the written log is kept by its files (``Segments.wrote``). The log itself only counts on from there
while messages wait for the write.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, Future

from kerolox.clock import Clock, StoreTime
from kerolox.observers import Observers
from kerolox.protocol import properties as names
from kerolox.protocol.batch import Item
from kerolox.protocol.frame import Frame
from kerolox.protocol.limits import PROPERTIES_BYTES_MAX
from kerolox.protocol.plain_sends import Park, SendTarget, Taken, take_sends
from kerolox.protocol.record import BLANK_BYTES, encode_record, record_size, seal_properties, seal_record
from kerolox.protocol.record_scan import PHYSICAL_OFFSET, STORE_TIMESTAMP, Entry
from kerolox.protocol.send_rules import SendRules
from kerolox.protocol.signature import Signer
from kerolox.store.disk.segment import Segment
from kerolox.store.disk.segments import Segments
from kerolox.store.errors import StoreError
from kerolox.store.failures import Kind, Operation
from kerolox.store.log.cursors import (
    AppendRefused,
    PropertiesTooLong,
    QueueCursor,
    check_queue,
    next_offsets,
)
from kerolox.store.log.framing import PLAIN, Framing, blank_at
from kerolox.store.log.progress import Progress
from kerolox.store.log.readable_log import ReadableLog
from kerolox.store.log.record_stream import RecordStream
from kerolox.store.options import StoreOptions
from kerolox.store.standing_failures import StandingFailures
from kerolox.store.state import NotWritable, Obstacle

log = logging.getLogger(__name__)

__all__ = [
    "AppendRefused",
    "CommitLog",
    "Place",
    "PropertiesTooLong",
    "QueueCursor",
]

LIGHT_QUEUE_PREFIX = b"%LMQ%"
TRANSACTION_BITS = 0xC
TRANSACTION_COMMIT = 0x8

# Place of a stored message: physical offset, queue offset, size of its record.
Place = tuple[int, int, int]


class CommitLog(ReadableLog):
    """Commit log: append and read messages by physical offset."""

    def __init__(
        self,
        segments: Segments,
        options: StoreOptions,
        progress: Progress,
        failing: StandingFailures,
        *,
        clock: Clock,
        store_host: bytes,
        executor: Executor,
        next_offset_of: Callable[[str, int], int],
        framing: Framing = PLAIN,
    ) -> None:
        super().__init__(segments)
        self._lead = framing.lead_bytes
        self._record_max = framing.record_bytes_max(segments.size)
        self.progress = progress
        self.store_time = StoreTime(clock)
        self.store_host = store_host
        self.last_store_timestamp = 0  # store time of the last written message
        self.undispatched: deque[Entry] = deque()  # entries that are written and wait to be confirmed
        self.whole_end = 0  # end of the last whole record; before the end of the log on a replica
        self.on_written: Observers[[]] = Observers("log written")
        self._next_offset_of = next_offset_of  # of a queue, after its entries
        self._options = options
        self._failing = failing
        self._state = failing.state
        self._executor = executor
        self._cursors: dict[tuple[str, int], QueueCursor] = {}
        # Next queue offsets after the entries that waited for dispatch when the cursors were renewed.
        self._waiting: dict[tuple[str, int], int] = {}
        self._next = 0  # offset of the next record, while messages wait for the write
        self._file_end = 0  # end of the file being appended to
        self._limit = 0  # offset at which the last record of that file must end, before its blank record
        self._now_ms = 0  # store time of messages in this pass
        self._parts: list[bytes] = []
        self._entries: list[Entry] = []
        # To take offsets back after a failed write: number of the part from 1, cursor, its previous offset.
        self._taken: list[tuple[int, QueueCursor, int]] = []
        # Error of messages that were appended before a roll and not written
        self._lost: BaseException | None = None
        self._raw = RecordStream(0)

    # --- files -----------------------------------------------------------------------------------

    def prepare_next(self) -> None:
        """Create the next file in a thread. A failure is raised by the roll."""
        self.segments.prepare_next(self._executor)

    def retry_next(self) -> Future[Segment] | None:
        """Create the next file again if that failed before; return None while it is being created."""
        return self.segments.retry_next(self._executor)

    # --- queues ----------------------------------------------------------------------------------

    def cursor(self, topic: str, queue_id: int) -> QueueCursor:
        """Return the cursor of a queue to append to. Callers on the hot path keep it."""
        cursor = self._cursors.get((topic, queue_id))
        if cursor is None:
            check_queue(topic, queue_id)
            waits = self._waiting.get((topic, queue_id), 0)
            cursor = QueueCursor(topic, queue_id, max(self._next_offset_of(topic, queue_id), waits))
            self._cursors[topic, queue_id] = cursor
        return cursor

    def forget_cursors(self, topic: str | None = None) -> None:
        """Forget cursors, so that new ones read the offsets again, as when the topic was deleted."""
        if topic is None:
            self._cursors.clear()
            self._waiting.clear()
            return
        for known in (self._cursors, self._waiting):
            for key in [key for key in known if key[0] == topic]:
                del known[key]

    def renew_cursors(self) -> None:
        """Set all cursors to the ends of the queues, after the entries that wait for dispatch: another
        broker's records were appended, or the log was cut. Cursors that callers keep stay valid."""
        waiting: dict[tuple[str, int], int] = {}
        for entry in self.undispatched:
            waiting.update(next_offsets(entry))
        self._waiting = waiting
        for key, cursor in self._cursors.items():
            cursor.next_offset = max(self._next_offset_of(*key), waiting.get(key, 0))

    @property
    def unwritten(self) -> int:
        """Return the number of appended messages that wait for the write."""
        return len(self._entries)

    @property
    def appended_end(self) -> int:
        """Return the end of everything that was appended, written or not."""
        return self._next - self._lead if self._parts else self.segments.wrote

    def cut(self, offset: int, stored_ms: int) -> None:
        """Continue at the end of the truncated log; ``stored_ms`` is the store time of the last message
        before it."""
        self.begin()
        self.last_store_timestamp = min(self.last_store_timestamp, stored_ms)
        while self.undispatched and self.undispatched[-1][PHYSICAL_OFFSET] >= offset:
            self.undispatched.pop()

    def recovered(self, last_ms: int, flushed_ms: int) -> None:
        """Note the store times of the last message, and of the last flushed one: later ones do not precede
        them."""
        self.last_store_timestamp = last_ms
        self.store_time.not_before(flushed_ms)

    def begin(self) -> None:
        """Continue at the end of the segments, after recovery."""
        self.whole_end = self.segments.wrote
        last = self.segments.last
        self._file_end = last.end if last is not None else 0
        self._limit = self._file_end - BLANK_BYTES
        self._raw = RecordStream(self.whole_end)

    def renew_time(self) -> None:
        """Set the store time of the next messages to now instead of the begin of the pass: delays count from
        it."""
        self._now_ms = self.store_time.now_ms()

    def check_writable(self) -> None:
        """Raise NotWritable, with the reasons, if the store accepts no messages."""
        self._state.check_writable()

    # --- appending -------------------------------------------------------------------------------

    def append(
        self,
        cursor: QueueCursor,
        body: bytes,
        properties: bytes = b"",
        *,
        flag: int = 0,
        sys_flag: int = 0,
        born_timestamp: int,
        born_host: bytes,
        reconsume_times: int = 0,
        prepared_offset: int = 0,
        count: int = 1,
        light_queues: bool = True,
        store_host: bytes | None = None,
    ) -> Place:
        """Assign a message its place. It is stored once :meth:`write` has returned.

        ``count`` is the number of queue offsets it takes: more than one for an inner batch. With
        ``light_queues`` false, the light queues it names do not get it. ``store_host`` is another broker's
        address if the message was stored there before, or here under another topic.
        """
        options = self._options
        # Half and rolled-back messages of old brokers are in no queue.
        queued = not sys_flag & TRANSACTION_BITS or sys_flag & TRANSACTION_BITS == TRANSACTION_COMMIT
        light: list[QueueCursor] | None = None
        if options.multi_dispatch and cursor.light and queued and light_queues:
            properties, light = self._number_light_queues(properties, cursor)
        if options.record_crc:
            properties = seal_properties(properties)
        field = cursor.field
        if store_host is None:
            store_host = self.store_host
        # record_size, inlined: the call and the limits are a tenth of an append.
        size = 74 + len(born_host) + len(store_host) + len(body) + len(field) + len(properties)
        if len(properties) > PROPERTIES_BYTES_MAX or size > self._record_max:
            self._check_fits(len(properties), size)
        parts = self._parts
        if not parts:
            self._begin_parts()
        at = self._next
        if at + size > self._limit:
            self._next_file(size)
            parts, at = self._parts, self._next
        now_ms = self._now_ms
        queue_id = cursor.queue_id
        queue_offset = cursor.next_offset if queued else 0
        record = encode_record(
            queue_id,
            flag,
            queue_offset,
            at,
            sys_flag,
            born_timestamp,
            born_host,
            now_ms,
            store_host,
            reconsume_times,
            prepared_offset,
            body,
            field,
            properties,
        )
        if options.record_crc:
            record = seal_record(record)
        parts.append(record)
        self._entries.append(
            (size, 0, queue_id, queue_offset, at, sys_flag, now_ms, cursor.topic_name, properties)
        )
        if queued:
            self._taken.append((len(parts), cursor, queue_offset))
            cursor.next_offset = queue_offset + count
        if light:
            for other in light:
                self._taken.append((len(parts), other, other.next_offset))
                other.next_offset += 1
        self._next = at + size + self._lead
        return at, queue_offset, size

    def append_batch(
        self,
        cursor: QueueCursor,
        items: Iterable[Item],
        batch_properties: bytes = b"",
        *,
        sys_flag: int = 0,
        born_timestamp: int,
        born_host: bytes,
        reconsume_times: int = 0,
    ) -> list[Place]:
        """Append the messages of one request: all in one file, with consecutive offsets, or none.

        They enter no light queues, as in RocketMQ.
        """
        items = list(items)
        options = self._options
        if batch_properties:
            append = names.append
            items = [
                (flag, body, own + batch_properties if own[-1:] == b"\x02" else append(own, batch_properties))
                for flag, body, own in items
            ]
        # Bytes of a record other than body and properties.
        beside = record_size(0, cursor.field, 0, len(born_host) + len(self.store_host))
        total = (self._lead + beside) * len(items) + sum([len(body) + len(own) for _, body, own in items])
        if options.record_crc or (
            total > PROPERTIES_BYTES_MAX and max([len(own) for _, _, own in items]) > PROPERTIES_BYTES_MAX
        ):
            total = 0
            for _, body, own in items:
                length = len(seal_properties(own)) if options.record_crc else len(own)
                self._check_fits(length, beside + len(body) + length)
                total += self._lead + beside + len(body) + length
        if not self._parts:
            self._begin_parts()
        if self._next - self._lead + total > self._limit:
            self._next_file(total)
        if total > self._record_max:
            self._check_fits(0, beside + max([len(body) + len(own) for _, body, own in items]))
        if not sys_flag & TRANSACTION_BITS and not options.record_crc:
            return self._append_items(cursor, items, sys_flag, born_timestamp, born_host, reconsume_times)
        before = len(self._parts), len(self._entries)
        try:
            return [
                self.append(
                    cursor,
                    body,
                    own,
                    flag=flag,
                    sys_flag=sys_flag,
                    born_timestamp=born_timestamp,
                    born_host=born_host,
                    reconsume_times=reconsume_times,
                    light_queues=False,
                )
                for flag, body, own in items
            ]
        except BaseException:
            self._take_back_from(*before)
            raise

    def _append_items(
        self,
        cursor: QueueCursor,
        items: list[Item],
        sys_flag: int,
        born_timestamp: int,
        born_host: bytes,
        reconsume_times: int,
    ) -> list[Place]:
        """Append the messages of a batch that fits, with nothing to seal."""
        now_ms = self._now_ms
        store_host = self.store_host
        lead = self._lead
        queue_id, field, topic = cursor.queue_id, cursor.field, cursor.topic_name
        first = queue_offset = cursor.next_offset
        at = self._next
        # Kept separate until all are built: a number that does not fit its field must leave nothing behind.
        records: list[bytes] = []
        entries: list[Entry] = []
        places: list[Place] = []
        for flag, body, properties in items:
            record = encode_record(
                queue_id,
                flag,
                queue_offset,
                at,
                sys_flag,
                born_timestamp,
                born_host,
                now_ms,
                store_host,
                reconsume_times,
                0,
                body,
                field,
                properties,
            )
            size = len(record)
            records.append(record)
            entries.append((size, 0, queue_id, queue_offset, at, sys_flag, now_ms, topic, properties))
            places.append((at, queue_offset, size))
            queue_offset += 1
            at += size + lead
        if records:
            self._taken.append((len(self._parts) + 1, cursor, first))
        self._parts += records
        self._entries += entries
        cursor.next_offset = queue_offset
        self._next = at
        return places

    def append_sends(
        self,
        frames: list[Frame],
        at: int,
        targets: dict[bytes, SendTarget],
        rules: SendRules,
        park: Park | None,
        born_host: bytes,
        signer: Signer | None,
    ) -> Taken | None:
        """Assign places to a run of plain sends; return None if the frame at ``at`` is not one. See
        plain_sends.

        Targets are cursors of this log. For a log whose records are not sealed.
        """
        if self._lead:
            return None  # the records of a run lie back to back
        if not self._parts:
            self._begin_parts()
        taken = take_sends(
            frames,
            at,
            targets,
            rules,
            park,
            born_host,
            self._next,
            self._file_end,
            self._now_ms,
            signer,
        )
        if taken is None:
            return None
        _, records, entries, _, queues, _ = taken
        self._parts.append(records)
        number = len(self._parts)
        self._taken += [(number, cursor, first) for cursor, first in queues]
        self._entries += entries
        self._next += len(records)
        return taken

    def _begin_parts(self) -> None:
        """Begin what is handed over together. After a failed roll nothing may: what was appended before is
        written, and a write() that fails at the end would report it as lost."""
        self._state.check_writable()
        self._now_ms = self.store_time.now_ms()
        self._next = self.segments.wrote + self._lead

    def write(self) -> None:
        """Write everything appended since the last write. If that fails, raise with all of it taken back.

        If a file became full in between and could not be written, that error is raised here too: the messages
        appended before were taken back as well.
        """
        lost, self._lost = self._lost, None
        if lost is not None:
            self.take_back()
            raise lost
        if not self._parts:
            return
        parts, entries = self._parts, self._entries
        try:
            self._state.check_writable()
            self._hand_over(parts, entries)
        except BaseException:
            self.take_back()
            raise
        self._parts = []
        self._entries = []
        self._taken = []
        self.undispatched.extend(entries)
        self.last_store_timestamp = self._now_ms
        self.whole_end = self.segments.wrote
        self._tell_written()

    def _hand_over(self, parts: list[bytes], entries: list[Entry]) -> None:
        """Write the records of this pass."""
        self._append(parts[0] if len(parts) == 1 else b"".join(parts))

    def append_raw(self, data: bytes) -> None:
        """Append bytes exactly as another broker wrote them, for replicas. Pieces may end anywhere.

        A record is dispatched when its last byte has arrived; bytes after the blank record of a file are
        skipped. Bytes that cannot be records are rejected before they are written.
        """
        self._state.check_writable(besides=Obstacle.FOLLOWER)
        self.write()
        segments = self.segments
        if self._raw.whole_end != self.whole_end:
            self._raw = RecordStream(self.whole_end)  # the broker has written its own messages in between
        at = 0
        try:
            while at < len(data):
                if segments.wrote >= self._file_end:
                    self._roll()
                piece = data[at : at + self._file_end - segments.wrote]
                entries = self._raw.check(piece, self._file_end)
                self._append(piece)
                self._raw.take()
                at += len(piece)
                self.whole_end = self._raw.whole_end
                self.undispatched.extend(entries)
                if entries:
                    self.last_store_timestamp = entries[-1][STORE_TIMESTAMP]
                    self.store_time.not_before(self.last_store_timestamp)
        finally:
            if at:
                self._tell_written()

    def _append(self, data: bytes | list[bytes]) -> None:
        """Append bytes to the files."""
        try:
            self.segments.append(data)
        except StoreError as error:
            self._failing.failed(Kind.LOG, error, work="append")
            raise
        if self._failing.current:
            self._failing.passed(Kind.LOG, "append")

    def _tell_written(self) -> None:
        self.on_written.tell()
        self.progress.advance()

    def _check_fits(self, properties: int, size: int) -> None:
        """Reject a record of ``size`` bytes that cannot be stored. Limits on sending are not checked here:
        accepted messages pass through the log again, and a limit that was lowered since must not lose
        them."""
        if properties > PROPERTIES_BYTES_MAX:
            raise PropertiesTooLong(
                f"the properties have {properties} bytes, the limit is {PROPERTIES_BYTES_MAX}"
            )
        if size > self._record_max:
            raise AppendRefused(
                f"the record of {size} bytes does not fit into a log file of {self.segments.size} bytes"
            )

    def _next_file(self, size: int) -> None:
        """Write what waits, close the current file with a blank record and continue in the next."""
        if size + BLANK_BYTES > self.segments.size:
            raise AppendRefused(
                f"the batch of {size} bytes does not fit into a log file of {self.segments.size} bytes"
            )
        self._state.check_writable()
        if self._lost is not None:
            raise self._lost
        had_parts = bool(self._parts)
        try:
            self.write()
        except BaseException as error:
            if had_parts:
                self._lost = error  # the callers that appended those get it from the write() at the end
            raise
        self._roll()
        self._begin_parts()

    def _roll(self) -> None:
        try:
            # First the new file, then the blank: a disk without room for it must leave the old one open, or
            # messages written after the blank would never be found again.
            try:
                self.segments.ensure_next()
            except StoreError:
                self.segments.ensure_next()  # the preparation failed, maybe long ago: a new try may succeed
        except StoreError as error:
            self._failing.failed(Kind.LOG, error, work="roll", operation=Operation.CREATE)
            raise NotWritable(self._state.obstacles) from error
        self._failing.passed(Kind.LOG, "roll")
        end = self.segments.wrote
        if end < self._file_end:
            self._append(blank_at(self.segments, end, self._file_end - end))
        self.segments.roll()
        self.prepare_next()
        self.begin()

    def take_back(self) -> None:
        """Discard the appended and unwritten messages, with their offsets."""
        self._take_back_from(0, 0)

    def _take_back_from(self, parts: int, entries: int) -> None:
        while self._taken and self._taken[-1][0] > parts:
            _, cursor, queue_offset = self._taken.pop()
            cursor.next_offset = queue_offset
        if len(self._entries) > entries:
            self._next = self._entries[entries][PHYSICAL_OFFSET]
            del self._parts[parts:]
            del self._entries[entries:]

    def _number_light_queues(self, properties: bytes, own: QueueCursor) -> tuple[bytes, list[QueueCursor]]:
        """Return the properties with the offset in each light queue the message names, and those queues."""
        wanted = names.find(properties, names.AT_INNER_MULTI_DISPATCH)
        if wanted is None:
            return properties, []
        offsets: list[str] = []
        cursors: dict[QueueCursor, None] = {}  # in their order
        for name in wanted.split(b","):
            if not name.startswith(LIGHT_QUEUE_PREFIX):
                offsets.append("")  # as in RocketMQ, only light queues are numbered here
                continue
            cursor = self.cursor(name.decode("utf-8", "replace"), 0)
            offsets.append(str(cursor.next_offset))
            # A queue gets a message once. RocketMQ counts it twice, and leaves a hole in the queue.
            if cursor is not own:
                cursors[cursor] = None
        properties = names.remove(properties, names.AT_WAIT)
        return names.replace(properties, names.INNER_MULTI_QUEUE_OFFSET, ",".join(offsets)), list(cursors)
