"""Which half messages are done with: noted in the log, in RocketMQ's form, and known here.

A half message is done with when its transaction was committed or rolled back, when it was put back as a copy,
or when it was given up. Each of these is noted by its offset in the half queue, in an *op* message under
``RMQ_SYS_TRANS_OP_HALF_TOPIC``: the offsets that one write of the log brings, joined by commas. The note is
in the same write as what it is about (the committed message, the copy), so after a crash either both are in
the log or, if the write was torn, the message alone: a look at the end of the log and at open half messages,
at the next start, finds that and makes it good.
"""

from __future__ import annotations

import asyncio
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
TAIL_BYTES_MAX = 256 << 20  # bytes of the log that are read after a start
READ_COUNT = 256
LATELY_COUNT_MAX = 100_000
RETRY_S = 1.0  # after the log took no notes
SAY_EVERY = 60  # failures in a row
PENDING_COUNT_MAX = 100_000  # half messages looked at after a start


# By what a message and its copies are known: unique key, time and place of birth, body.
Sameness = tuple[str, int, bytes, bytes]


class Note(NamedTuple):
    """A half message that is done with, whose op message is not in the log yet."""

    by_producer: bool  # its producer ended it
    end: int  # of the committed message or the copy in the log; 0: there is none


class HalfTransaction:
    """A half message that was put back at least once: it has several offsets in the half queue."""

    __slots__ = ("ended", "offsets")

    def __init__(self, first: int) -> None:
        self.offsets = [first]  # the last one is what is still to be gone through
        self.ended = False


class FinishedHalfMessages:
    """Notes half messages that are done with, and tells which are."""

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
        self._failures = 0  # in a row
        self._forget()
        intake.before.append(self._append_ops)

    def _forget(self) -> None:
        self.progress = 0  # half messages before this offset are done with
        self._done: set[int] = set()  # offsets that the rounds have not yet passed
        # What its producer ended lately: it may tell once more, answering several questions, when we have
        # gone through it long ago.
        self._lately: set[int] = set()
        self._in_order: deque[int] = deque()  # the same offsets, the oldest first
        self._put_back: dict[int, HalfTransaction] = {}
        self._ops: deque[tuple[int, int]] = deque()  # offset of the op message, highest offset it notes
        self._op_progress = 0
        self._noted: dict[int, Note] = {}  # not yet in the log
        self._in_write: dict[int, Note] = {}
        self._ops_in_write: list[tuple[int, int]] = []
        self._is_asked = False

    # --- questions -----------------------------------------------------------------------------------

    def is_done(self, offset: int) -> bool:
        """Whether the log notes this half message as done; notes that are not yet written do not count."""
        return offset in self._done

    def is_ending(self, offset: int) -> bool:
        return offset in self._noted or offset in self._in_write

    def to_end(self, offset: int) -> int | None:
        """The half message that stands for this one now: itself, or its newest copy. None: it has ended.

        Only what ended since the start is known here to have: what the log notes may have been put back.
        """
        transaction = self._put_back.get(offset)
        if transaction is not None:
            return None if transaction.ended else transaction.offsets[-1]
        if self.is_ending(offset) or offset in self._lately:
            return None
        return offset

    @property
    def pending(self) -> int:
        """Half messages not yet gone through."""
        return max(0, self._store.max_offset(reserved.HALF_TOPIC, QUEUE) - self.progress)

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
        """Another broker has the half message now: nothing is written about it here, progress alone tells."""
        self._done.add(offset)

    def _note(self, offset: int, note: Note) -> None:
        self._noted[offset] = note
        if not self._is_asked:
            self._is_asked = True
            self._intake.soon(self._written)

    def _append_ops(self) -> None:
        """The log is about to be written: with what it gets, it gets the notes."""
        if not self._noted or self._retry_timer is not None:
            return
        host = self._store.log.store_host
        try:
            for body, highest in op_bodies(self._noted, self._options.op_bytes_max):
                pending = PendingMessage(
                    reserved.HALF_DONE_TOPIC, QUEUE, body, OP_PROPERTIES, self._clock.wall_ms(), host
                )
                self._ops_in_write.append((self._intake.store(pending)[1], highest))
        except KeroloxError as error:
            self._wait_for_room(error)
            return
        self._failures = 0
        if not self._is_asked:  # left from a write that had no room for them
            self._is_asked = True
            self._intake.soon(self._written)
        self._in_write, self._noted = self._noted, {}

    def _wait_for_room(self, error: KeroloxError) -> None:
        """Try again in a second: sooner the log takes nothing, and every turn of the loop would try."""
        if self._failures % SAY_EVERY == 0:
            log.warning(
                "transactions_not_noted count=%d times=%d error=%r next='it is tried again every second; "
                "until it succeeds a crash lets them be checked again'",
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
        # Not a dict, whose first key is far to seek behind all those deleted.
        while len(self._in_order) > LATELY_COUNT_MAX:
            self._lately.discard(self._in_order.popleft())

    # --- progress ------------------------------------------------------------------------------------

    def advance(self, offset: int) -> None:
        """Note that a round has passed everything before this offset."""
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
        """Let the progress be saved: when what it rests on, committed messages and copies, is safe.

        Otherwise a loss of power could take those and leave the progress, and so lose the messages. ``keep``
        it from being overwritten by what a leader had before.
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
        """Read what the log notes: before anybody ends anything."""
        self._forget()
        self.progress = self._noted_progress(reserved.HALF_TOPIC)
        self._op_progress = offset = self._noted_progress(reserved.HALF_DONE_TOPIC)
        end = self._store.max_offset(reserved.HALF_DONE_TOPIC, QUEUE)
        last_op_end = 0
        while offset < end:
            read = await self._store.read(reserved.HALF_DONE_TOPIC, QUEUE, offset, READ_COUNT)
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
        """Note what was not noted when the broker stopped, or it would be committed twice.

        A committed message behind the last note is one whose note was cut off by a crash, or that a broker
        of Apache's had not yet noted. A half message with a copy behind it was put back, likewise.
        """
        unnoted = await asyncio.get_running_loop().run_in_executor(
            None, lambda: self._unnoted(self._committed_behind(last_op_end))
        )
        if not unnoted:
            return
        if not may_write:
            self._done.update(unnoted)
            return
        log.warning("transactions_noted_late count=%d next='nothing: it was made good'", len(unnoted))
        for offset in unnoted:
            self._note(offset, Note(False, 1))
        try:
            await self._intake.written()
        except KeroloxError as error:  # a full disk: it is known, and looked for again at the next start
            log.warning("transactions_not_noted count=%d error=%r", len(unnoted), str(error))
            self._done.update(unnoted)

    def _unnoted(self, committed: set[Sameness]) -> list[int]:
        """Open half messages that were committed, or have a newer copy. In a thread."""
        queue = self._store.queues.find(reserved.HALF_TOPIC, QUEUE)
        if queue is None:
            return []
        found: list[int] = []
        newest: dict[Sameness, int] = {}
        wanted = [each for each in range(self.progress, queue.max_offset) if each not in self._done]
        for offset in wanted[:PENDING_COUNT_MAX]:
            entry = queue.entry(offset)
            try:
                half = decode_record(self._store.log.record_at(entry[0])) if entry is not None else None
            except Unreadable:
                raise  # one that was committed would be committed twice
            except KeroloxError:
                continue
            if half is None or not half.unique_key:
                continue
            same = _sameness(half)
            if same in committed:
                found.append(offset)
                continue
            # A producer that sends again after a timeout makes two messages of one key: neither is a copy.
            first = half_messages.first_offset(half)
            if same in newest and (first is not None or half_messages.checks(half) > 0):
                found.append(newest[same])
            newest[same] = offset
            if first is not None:
                transaction = self._put_back.setdefault(first, HalfTransaction(first))
                transaction.offsets.append(offset)
                self._put_back[offset] = transaction
        return found

    def _committed_behind(self, last_op_end: int) -> set[Sameness]:
        """Transactions whose committed message lies behind a place in the log. In a thread."""
        readable, queue = self._store.log, self._store.queues.find(reserved.HALF_TOPIC, QUEUE)
        end = readable.max_offset
        begin = last_op_end
        if queue is not None:
            # A message is committed behind its half message.
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
        low, high = self._store.min_offset(topic, QUEUE), self._store.max_offset(topic, QUEUE)
        return min(max(self._offsets.offset(topic, reserved.HALF_GROUP, QUEUE), low), high)


def _sameness(message: StoredMessage) -> Sameness:
    return message.unique_key, message.born_timestamp, message.born_host, message.body


# --- the form of op messages -----------------------------------------------------------------------------


def op_bodies(offsets: Iterable[int], bytes_max: int) -> list[tuple[bytes, int]]:
    """Bodies that hold these offsets, each at most so long, and the highest offset in each."""
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
    """The offsets an op message notes, one (4.x) or many (5.x). What does not read is passed over."""
    if op.tag != OP_TAG:
        return []
    words = op.body.split(b",")
    return [int(word) for word in words if word.isdigit() and len(word) < 20]
