"""Record of finished half messages: stored in the log, in RocketMQ's form, and kept in memory.

A half message is finished when its transaction was committed or rolled back, when it was put back as a copy,
or when it was abandoned. Its offset in the half queue is then stored in an *op* message under
``RMQ_SYS_TRANS_OP_HALF_TOPIC``, which lists the offsets of one write of the log, joined by commas. The op
message is in the same write as the committed message or the copy. So after a crash the log has both, or, if
the write was torn, only the message; the next start finds that at the end of the log and in open half
messages, and repairs it.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from kerolox.broker.options import BrokerOptions
from kerolox.broker.transactions import half_messages
from kerolox.broker.transactions.half_messages import QUEUE
from kerolox.broker.write.intake import Intake
from kerolox.broker.write.pending_message import PendingMessage
from kerolox.clock import Clock, TimerHandle
from kerolox.errors import KeroloxError
from kerolox.protocol import properties as packed
from kerolox.protocol import reserved
from kerolox.protocol.flags import TRANSACTION_COMMIT, TRANSACTION_MASK
from kerolox.protocol.message import StoredMessage
from kerolox.protocol.record import decode_record, decode_records
from kerolox.protocol.record_scan import PHYSICAL_OFFSET, SYS_FLAG
from kerolox.store.errors import Unreadable
from kerolox.store.log.commit_log import Place
from kerolox.store.message_store import MessageStore
from kerolox.store.tables.offsets import ConsumerOffsets

log = logging.getLogger(__name__)

OP_TAG = "d"
OP_PROPERTIES = packed.pack({packed.TAGS: OP_TAG, packed.WAIT: "true"})
TAIL_BYTES_MAX = 256 << 20  # bytes of the log read after a start
READ_COUNT = 256
LATELY_COUNT_MAX = 100_000
RETRY_S = 1.0  # after the log accepted no op message
SAY_EVERY = 60  # consecutive failures between two log lines
PENDING_COUNT_MAX = 100_000  # half messages checked after a start


# Identity of a message and its copies: unique key, birth time, birth host, body.
Sameness = tuple[str, int, bytes, bytes]


class Note(NamedTuple):
    """A half message that is done with, whose op message is not in the log yet."""

    by_producer: bool  # its producer ended it
    end: int  # of the committed message or the copy in the log; 0: there is none


class HalfTransaction:
    """A half message that was put back at least once: it has several offsets in the half queue."""

    __slots__ = ("ended", "offsets")

    def __init__(self, first: int) -> None:
        self.offsets = [first]  # the last one is still to be processed
        self.ended = False


class FinishedHalfMessages:
    """Record of finished half messages, and answers about them."""

    def __init__(
        self,
        store: MessageStore,
        intake: Intake,
        offsets: ConsumerOffsets,
        options: BrokerOptions,
        clock: Clock,
    ) -> None:
        self._store = store
        self._intake = intake
        self._offsets = offsets
        self._options = options
        self._clock = clock
        self._retry_timer: TimerHandle | None = None
        self._failures = 0  # consecutive failures
        self._forget()
        intake.before.append(self._append_ops)

    def _forget(self) -> None:
        self.progress = 0  # half messages before this offset are finished
        self._done: set[int] = set()  # finished offsets that the rounds have not passed yet
        # Offsets ended by their producer lately. The producer may end them again, when it answers several
        # questions, long after the rounds have passed them.
        self._lately: set[int] = set()
        self._in_order: deque[int] = deque()  # the same offsets, the oldest first
        self._put_back: dict[int, HalfTransaction] = {}
        self._ops: deque[tuple[int, int]] = deque()  # offset of the op message, highest offset in it
        self._op_progress = 0
        self._noted: dict[int, Note] = {}  # not yet in the log
        self._in_write: dict[int, Note] = {}
        self._ops_in_write: list[tuple[int, int]] = []
        self._is_asked = False

    # --- questions -----------------------------------------------------------------------------------

    def is_done(self, offset: int) -> bool:
        """True if the log records this half message as finished. Records that are not written yet do not
        count."""
        return offset in self._done

    def is_ending(self, offset: int) -> bool:
        return offset in self._noted or offset in self._in_write

    def to_end(self, offset: int) -> int | None:
        """Return the offset of the half message that replaces this one now: itself, or its newest copy. None:
        it has ended.

        Only ends since the start count here, because a finished one in the log may have been put back.
        """
        transaction = self._put_back.get(offset)
        if transaction is not None:
            return None if transaction.ended else transaction.offsets[-1]
        if self.is_ending(offset) or offset in self._lately:
            return None
        return offset

    @property
    def pending(self) -> int:
        """Half messages not processed yet."""
        return max(0, self._store.queues.max_offset(reserved.HALF_TOPIC, QUEUE) - self.progress)

    # --- notes ---------------------------------------------------------------------------------------

    def end(self, offset: int, end: int = 0) -> None:
        """Note that its producer has ended a half message; ``end`` is that of the committed message in the
        log. Counts with the next write, together with what was appended for it."""
        transaction = self._put_back.get(offset)
        if transaction is not None:
            transaction.ended = True
            offset = transaction.offsets[-1]
        self._note(offset, Note(True, end))

    def put_back(self, half: StoredMessage, first: int | None, place: Place) -> None:
        """Note that a half message was put back as a copy at this place; ``first`` is its first offset, when
        the half message names one."""
        at, copy, size = place
        transaction = self._put_back.get(half.queue_offset)
        if transaction is None:
            transaction = self._put_back[half.queue_offset] = HalfTransaction(half.queue_offset)
            if first is not None and first not in self._put_back:
                transaction.offsets.insert(0, first)
                self._put_back[first] = transaction
        transaction.offsets.append(copy)
        self._put_back[copy] = transaction
        self._note(half.queue_offset, Note(False, at + size))

    def not_put_back(self, offset: int) -> None:
        """Take the note back after a failed write, unless the copy is in the log."""
        if self.is_ending(offset):
            return
        transaction = self._put_back[offset]
        del self._put_back[transaction.offsets.pop()]

    def give_up(self, half: StoredMessage, place: Place) -> None:
        self._note(half.queue_offset, Note(False, place[0] + place[2]))

    def moved(self, offset: int) -> None:
        """Record that another broker has the half message now. Nothing is written to the log; only the
        progress shows it."""
        self._done.add(offset)

    def _note(self, offset: int, note: Note) -> None:
        self._noted[offset] = note
        if not self._is_asked:
            self._is_asked = True
            self._intake.soon(self._written)

    def _append_ops(self) -> None:
        """Append the op messages of this write. Called before each write of the log."""
        if not self._noted or self._retry_timer is not None:
            return
        host = self._store.log.store_host
        try:
            for body, highest in op_bodies(self._noted, self._options.op_bytes_max):
                pending = PendingMessage(
                    reserved.HALF_DONE_TOPIC, QUEUE, body, OP_PROPERTIES, self._clock.wall_ms(), host
                )
                self._ops_in_write.append((self._intake.append_as_is(pending)[1], highest))
        except KeroloxError as error:
            self._wait_for_room(error)
            return
        self._failures = 0
        if not self._is_asked:  # left from a write without room for them
            self._is_asked = True
            self._intake.soon(self._written)
        self._in_write, self._noted = self._noted, {}

    def _wait_for_room(self, error: KeroloxError) -> None:
        """Try again in a second. Earlier the log would reject them again, in every turn of the loop."""
        if self._failures % SAY_EVERY == 0:
            log.warning(
                "transactions_not_noted count=%d times=%d error=%r next='retried every second; "
                "after a crash before that they are checked again'",
                len(self._noted), self._failures + 1, str(error),
            )  # fmt: skip
        self._failures += 1
        self._retry_timer = self._clock.call_later(RETRY_S, self._retry)

    def close(self) -> None:
        if self._retry_timer is not None:
            self._retry_timer.cancel()
            self._retry_timer = None

    def _retry(self) -> None:
        self._retry_timer = None
        if self._noted and not self._is_asked:
            self._is_asked = True
            self._intake.soon(self._written)

    def _written(self, failed: KeroloxError | None) -> None:
        self._is_asked = False
        ended, self._in_write = self._in_write, {}
        ops, self._ops_in_write = self._ops_in_write, []
        if failed is not None:
            self._take_back(ended | self._noted)
            return
        # The log had no room for these, but it has what they are about.
        self._noted = {offset: note._replace(end=max(1, note.end)) for offset, note in self._noted.items()}
        self._ops.extend(ops)
        self._done.update(offset for offset in ended if offset >= self.progress)
        for offset, note in ended.items():
            if note.by_producer:
                self._remember(offset)

    def _take_back(self, notes: dict[int, Note]) -> None:
        """Forget the notes of a failed write, but for those whose message is in the log: an earlier write
        stored it, or this one did before it had to go on in a new file."""
        written = self._store.log.progress.appended
        self._noted = {offset: note for offset, note in notes.items() if 0 < note.end <= written}
        for offset in notes.keys() - self._noted.keys():
            if (transaction := self._put_back.get(offset)) is not None:
                transaction.ended = False
        if self._noted and self._retry_timer is None:
            self._retry_timer = self._clock.call_later(RETRY_S, self._retry)

    def _remember(self, offset: int) -> None:
        transaction = self._put_back.get(offset)
        for each in [offset] if transaction is None else transaction.offsets:
            if each not in self._lately:
                self._lately.add(each)
                self._in_order.append(each)
        # Not a dict, because finding its first key is slow after many deletions.
        while len(self._in_order) > LATELY_COUNT_MAX:
            self._lately.discard(self._in_order.popleft())

    # --- progress ------------------------------------------------------------------------------------

    def advance(self, offset: int) -> None:
        """Record that a round has passed everything before this offset."""
        for passed in range(self.progress, offset):
            self._done.discard(passed)
            transaction = self._put_back.get(passed)
            if transaction is not None and transaction.offsets[-1] == passed:
                for each in transaction.offsets:
                    self._put_back.pop(each, None)
        self.progress = offset
        while self._ops and self._ops[0][1] < offset:
            self._op_progress = self._ops.popleft()[0] + 1

    async def save(self, *, keep: bool = False) -> None:
        """Save the progress, after the committed messages and copies it depends on are safe.

        Otherwise a loss of power could remove those but not the progress, and so lose the messages. ``keep``:
        do not let older progress of a leader overwrite it.
        """
        reached = (reserved.HALF_TOPIC, self.progress), (reserved.HALF_DONE_TOPIC, self._op_progress)
        moved = [
            each
            for each in reached
            if max(0, self._offsets.offset(each[0], reserved.HALF_GROUP, QUEUE)) != each[1]
        ]
        if not moved:
            return
        await self._store.flusher.flush_all()
        for topic, offset in moved:
            self._offsets.commit(topic, reserved.HALF_GROUP, QUEUE, offset)
            if keep:
                self._offsets.keep(topic, reserved.HALF_GROUP, QUEUE)

    async def load(self, *, may_write: bool = True) -> None:
        """Read the record from the log, before any transaction ends."""
        self._forget()
        self.progress = self._noted_progress(reserved.HALF_TOPIC)
        self._op_progress = offset = self._noted_progress(reserved.HALF_DONE_TOPIC)
        end = self._store.queues.max_offset(reserved.HALF_DONE_TOPIC, QUEUE)
        last_op_end = 0
        while offset < end:
            read = await self._store.queues.read(reserved.HALF_DONE_TOPIC, QUEUE, offset, READ_COUNT)
            for op in decode_records(b"".join(read.parts)):
                last_op_end = op.physical_offset + op.size
                ended = read_op(op)
                self._done.update(each for each in ended if each >= self.progress)
                self._ops.append((op.queue_offset, max(ended, default=-1)))
            if read.next_offset <= offset:
                break
            offset = read.next_offset
        if self.pending:
            await self._repair(last_op_end, may_write=may_write)
        log.info(
            "transactions_loaded progress=%d op_progress=%d ended=%d pending=%d",
            self.progress, self._op_progress, len(self._done), self.pending - len(self._done),
        )  # fmt: skip

    async def _repair(self, last_op_end: int, *, may_write: bool) -> None:
        """Complete the record after a crash; otherwise messages would be committed twice.

        The op message of a committed message at the end of the log may have been lost by a crash, or not yet
        written by a broker of RocketMQ. The same holds for a half message that has a later copy.
        """
        unnoted, copies = await self._store.readers.read(
            lambda: self._unnoted(self._committed_behind(last_op_end))
        )
        for first, offset in copies:
            transaction = self._put_back.setdefault(first, HalfTransaction(first))
            transaction.offsets.append(offset)
            self._put_back[offset] = transaction
        if not unnoted:
            return
        if not may_write:
            self._done.update(unnoted)
            return
        log.warning(
            "transactions_noted_late count=%d next='nothing: the record is complete now'", len(unnoted)
        )
        for offset in unnoted:
            self._note(offset, Note(False, 1))
        try:
            await self._intake.written()
        except KeroloxError as error:  # a full disk: known already; checked again at the next start
            log.warning("transactions_not_noted count=%d error=%r", len(unnoted), str(error))
            self._done.update(unnoted)

    def _unnoted(self, committed: set[Sameness]) -> tuple[list[int], list[tuple[int, int]]]:
        """Return the offsets of open half messages that were committed, or have a newer copy; and of each
        copy the offset of its first message and its own. Runs in a thread."""
        queue = self._store.queues.find(reserved.HALF_TOPIC, QUEUE)
        found: list[int] = []
        copies: list[tuple[int, int]] = []
        if queue is None:
            return found, copies
        newest: dict[Sameness, int] = {}
        wanted = [each for each in range(self.progress, queue.max_offset) if each not in self._done]
        for offset in wanted[:PENDING_COUNT_MAX]:
            entry = queue.entry(offset)
            try:
                half = decode_record(self._store.log.record_at(entry[0])) if entry is not None else None
            except Unreadable:
                raise  # otherwise a committed one would be committed twice
            except KeroloxError:
                continue
            if half is None or not half.unique_key:
                continue
            same = _sameness(half)
            if same in committed:
                found.append(offset)
                continue
            # A producer that repeats a send after a timeout stores two messages of one key: neither is a
            # copy.
            first = half_messages.first_offset(half)
            if same in newest and (first is not None or half_messages.checks(half) > 0):
                found.append(newest[same])
            newest[same] = offset
            if first is not None:
                copies.append((first, offset))
        return found, copies

    def _committed_behind(self, last_op_end: int) -> set[Sameness]:
        """Return the transactions whose committed message lies beyond a place in the log. Runs in a
        thread."""
        readable, queue = self._store.log, self._store.queues.find(reserved.HALF_TOPIC, QUEUE)
        end = readable.max_offset
        begin = last_op_end
        if queue is not None:
            # A committed message lies behind its half message.
            low, high = self.progress, queue.max_offset
            entry = queue.entry(low)
            begin = max(begin, readable.position_of(entry[0]) if entry is not None else 0)
            if end - begin > TAIL_BYTES_MAX:
                while low < high:
                    middle = (low + high) // 2
                    entry = queue.entry(middle)
                    if entry is not None and entry[0] < end - TAIL_BYTES_MAX:
                        low = middle + 1
                    else:
                        high = middle
                entry = queue.entry(low)
                begin = readable.position_of(entry[0]) if entry is not None else end
        found: set[Sameness] = set()
        for entries, _ in readable.entries_from(max(begin, readable.min_offset), end):
            for each in entries:
                if each[SYS_FLAG] & TRANSACTION_MASK == TRANSACTION_COMMIT:
                    found.add(_sameness(decode_record(readable.record_at(each[PHYSICAL_OFFSET]))))
        return found

    def _noted_progress(self, topic: str) -> int:
        low, high = self._store.queues.min_offset(topic, QUEUE), self._store.queues.max_offset(topic, QUEUE)
        return min(max(self._offsets.offset(topic, reserved.HALF_GROUP, QUEUE), low), high)


def _sameness(message: StoredMessage) -> Sameness:
    return message.unique_key, message.born_timestamp, message.born_host, message.body


# --- encoding of op messages -----------------------------------------------------------------------------


def op_bodies(offsets: Iterable[int], bytes_max: int) -> list[tuple[bytes, int]]:
    """Return op bodies with these offsets, each within ``bytes_max``, and the highest offset in each."""
    bodies: list[tuple[bytes, int]] = []
    words: list[bytes] = []
    size = 0
    highest = -1
    for offset in offsets:
        word = b"%d," % offset
        if words and size + len(word) > bytes_max:
            bodies.append((b"".join(words), highest))
            words, size, highest = [], 0, -1
        words.append(word)
        size += len(word)
        highest = max(highest, offset)
    if words:
        bodies.append((b"".join(words), highest))
    return bodies


def read_op(op: StoredMessage) -> list[int]:
    """Return the offsets in an op message, one (4.x) or many (5.x). Unreadable parts are ignored."""
    if op.tag != OP_TAG:
        return []
    words = op.body.split(b",")
    return [int(word) for word in words if word.isdigit() and len(word) < 20]
