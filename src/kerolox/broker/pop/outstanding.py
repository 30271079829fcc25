"""Popped messages that are out: by queue and group, in memory.

Pure state: no I/O, no clock. Every message of a queue is available, out with a due time, or acknowledged. A
checkpoint begins in memory. One that stays long gets a record in the log; it remains here, and the record
serves the next process. So the offset of a group passes a read only when its checkpoints are finished, or
their records are flushed.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from kerolox.broker.pop.checkpoint import Checkpoint, QueueKey, Step, Stored

LEFT_BEHIND_MAX = 1024  # due times of finished checkpoints, beyond the number of those that are out


class PopQueue:
    """One queue as one group pops it."""

    __slots__ = ("checkpoints", "first_offset", "is_read", "key", "next_offset", "out", "steps", "used_s")

    def __init__(self, key: QueueKey, first_offset: int, now_s: float) -> None:
        self.key = key
        self.first_offset = first_offset  # lower messages were popped before this process, if at all
        self.next_offset = first_offset  # of the next pop
        self.steps: deque[Step] = deque()  # reads that the offset of the group has not passed
        self.checkpoints: dict[tuple[int, int], Checkpoint] = {}  # by start offset and pop time
        self.out = 0  # messages
        self.is_read = False  # a pop of this queue waits for the disk
        self.used_s = now_s

    def find(self, start_offset: int, pop_ms: int) -> Checkpoint | None:
        return self.checkpoints.get((start_offset, pop_ms))

    @property
    def is_idle(self) -> bool:
        return not self.steps and not self.checkpoints and not self.is_read


class Outstanding:
    """All queues with their checkpoints, ordered by due time and by age."""

    def __init__(self) -> None:
        self.queues: dict[QueueKey, PopQueue] = {}
        self.count = 0  # checkpoints
        self._due: list[tuple[float, int, Checkpoint]] = []
        self._young: deque[Checkpoint] = deque()  # not stored yet, the oldest first
        self._stored: deque[Checkpoint] = deque()  # candidates to be handed over
        self._numbers = itertools.count()

    # --- queues ------------------------------------------------------------------------------------------

    def queue(self, key: QueueKey, offset: int, now_s: float) -> PopQueue:
        """Return the state of a queue; create it with the offset at which the group is."""
        queue = self.queues.get(key)
        if queue is None:
            queue = self.queues[key] = PopQueue(key, offset, now_s)
        queue.used_s = now_s
        return queue

    def progress(self, topic: str, group: str, queue_id: int) -> tuple[int, int] | None:
        """Return the offset of a group less its messages that are out, and the offset of its next pop. None
        if nothing is out: then the committed offset applies."""
        queue = self.queues.get(QueueKey(topic, group, queue_id))
        if queue is None or not (queue.out or queue.steps):
            return None
        return max(0, queue.next_offset - queue.out), queue.next_offset

    def forget_idle(self, before_s: float) -> None:
        """Forget queues without outstanding messages that were not used since then."""
        for key in [key for key, queue in self.queues.items() if queue.used_s < before_s and queue.is_idle]:
            del self.queues[key]

    def forget(self, is_gone: Callable[[QueueKey], bool]) -> None:
        """Forget queues whose topic or group is gone, with their checkpoints."""
        for key in [key for key in self.queues if is_gone(key)]:
            queue = self.queues.pop(key)
            for checkpoint in queue.checkpoints.values():
                checkpoint.out = checkpoint.in_hand = 0
                self.count -= 1

    def clear(self) -> None:
        self.forget(lambda key: True)
        self._due.clear()
        self._young.clear()
        self._stored.clear()

    def reset(self, queue: PopQueue, offset: int) -> None:
        """Continue at another offset. Messages that are out stay out."""
        queue.steps.clear()
        queue.next_offset = offset
        queue.first_offset = min(queue.first_offset, offset)

    # --- pops --------------------------------------------------------------------------------------------

    def pop(
        self,
        queue: PopQueue,
        start_offset: int,
        offsets: Sequence[int],
        next_offset: int,
        pop_ms: int,
        invisible_ms: int,
        revive_queue: int,
        now_s: float,
    ) -> Checkpoint | None:
        """Take messages out of a queue. None, with nothing changed, if another pop has the same start and
        time."""
        if (start_offset, pop_ms) in queue.checkpoints:
            return None
        step = Step(next_offset)
        queue.steps.append(step)
        queue.next_offset = next_offset
        made = Checkpoint(queue.key, start_offset, offsets, pop_ms, invisible_ms, revive_queue, now_s, step)
        self._add(queue, made)
        return made

    def skip(self, queue: PopQueue, next_offset: int) -> None:
        """Pass messages that nobody gets: filtered or deleted ones."""
        if next_offset > queue.next_offset:
            queue.steps.append(Step(next_offset))
            queue.next_offset = next_offset

    def _add(self, queue: PopQueue, checkpoint: Checkpoint) -> None:
        queue.checkpoints[checkpoint.start_offset, checkpoint.pop_ms] = checkpoint
        queue.out += len(checkpoint.offsets)
        if checkpoint.step is not None:
            checkpoint.step.open += 1
        self.count += 1
        self._young.append(checkpoint)
        self._schedule(checkpoint)

    def _schedule(self, checkpoint: Checkpoint) -> None:
        if len(self._due) > 2 * self.count + LEFT_BEHIND_MAX:
            self._due = [one for one in self._due if one[0] == one[2].due_s and not one[2].is_finished]
            heapq.heapify(self._due)
        heapq.heappush(self._due, (checkpoint.due_s, next(self._numbers), checkpoint))

    # --- acknowledgements and changes --------------------------------------------------------------------

    def ack(self, checkpoint: Checkpoint, offset: int) -> bool:
        """Finish a message. Return False if it is not out."""
        bit = checkpoint.bit(offset)
        if not checkpoint.out & bit:
            return False
        checkpoint.out &= ~bit
        self._left(checkpoint, 1)
        return True

    def change(
        self, checkpoint: Checkpoint, offset: int, pop_ms: int, invisible_ms: int, now_s: float
    ) -> Checkpoint:
        """Move a message that is out to a checkpoint of its own, with another due time.

        If the first one has a record, so must the new one before this counts: write both, then call
        :meth:`settle`.
        """
        queue = self.queues[checkpoint.key]
        self.take(checkpoint, offset)
        while (offset, pop_ms) in queue.checkpoints:
            pop_ms += 1
        made = Checkpoint(
            checkpoint.key, offset, (offset,), pop_ms, invisible_ms, checkpoint.revive_queue, now_s,
            checkpoint.step if checkpoint.stored is Stored.NO else None,
        )  # fmt: skip
        self._add(queue, made)
        if checkpoint.stored is Stored.NO:
            self.settle(checkpoint, offset, 0)
        return made

    def adopt(
        self, queue: PopQueue, offset: int, pop_ms: int, invisible_ms: int, revive_queue: int, now_s: float
    ) -> Checkpoint:
        """Take over a message whose checkpoint only the log knows."""
        while (offset, pop_ms) in queue.checkpoints:
            pop_ms += 1
        made = Checkpoint(queue.key, offset, (offset,), pop_ms, invisible_ms, revive_queue, now_s, None)
        self._add(queue, made)
        return made

    def undo_change(self, checkpoint: Checkpoint, offset: int, made: Checkpoint) -> None:
        """Take back a change whose records were not written."""
        self.put_back(checkpoint, offset)
        if made.out:
            made.out = 0
            self._left(made, 1)

    def take(self, checkpoint: Checkpoint, offset: int) -> None:
        """Take a message that is out in hand: it is being replaced by a record."""
        bit = checkpoint.bit(offset)
        checkpoint.out &= ~bit
        checkpoint.in_hand |= bit

    def put_back(self, checkpoint: Checkpoint, offset: int) -> None:
        """Put a message out again: its replacement was not written."""
        bit = checkpoint.bit(offset)
        if checkpoint.in_hand & bit:
            checkpoint.in_hand &= ~bit
            checkpoint.out |= bit

    def settle(self, checkpoint: Checkpoint, offset: int, end: int) -> None:
        """Finish a message in hand, whose replacement ends here in the log."""
        bit = checkpoint.bit(offset)
        if checkpoint.in_hand & bit:
            checkpoint.in_hand &= ~bit
            if checkpoint.step is not None:
                checkpoint.step.end = max(checkpoint.step.end, end)
            self._left(checkpoint, 1)

    def _left(self, checkpoint: Checkpoint, messages: int) -> None:
        queue = self.queues.get(checkpoint.key)
        if queue is None:
            return
        queue.out -= messages
        if checkpoint.is_finished:
            self._remove(queue, checkpoint)
            if checkpoint.stored is not Stored.YES:
                self._close(checkpoint)

    def _remove(self, queue: PopQueue, checkpoint: Checkpoint) -> None:
        del queue.checkpoints[checkpoint.start_offset, checkpoint.pop_ms]
        self.count -= 1

    def _close(self, checkpoint: Checkpoint) -> None:
        if checkpoint.step is not None:
            checkpoint.step.open -= 1
            checkpoint.step = None

    # --- due times ---------------------------------------------------------------------------------------

    @property
    def next_due_s(self) -> float | None:
        due = self._due
        while due and (due[0][2].is_finished or due[0][0] != due[0][2].due_s):
            heapq.heappop(due)
        return due[0][0] if due else None

    def take_due(self, now_s: float, count_max: int) -> list[Checkpoint]:
        """Return checkpoints whose messages are to be given out anew. Each is returned once, until it is
        deferred."""
        found: list[Checkpoint] = []
        while len(found) < count_max and (due_s := self.next_due_s) is not None and due_s <= now_s:
            found.append(heapq.heappop(self._due)[2])
        return found

    def defer(self, checkpoint: Checkpoint, due_s: float) -> None:
        """Try again later to give out messages anew."""
        checkpoint.due_s = due_s
        if not checkpoint.is_finished:
            self._schedule(checkpoint)

    # --- records -----------------------------------------------------------------------------------------

    @property
    def next_young_s(self) -> float | None:
        """Return when the oldest checkpoint without a record was popped."""
        young = self._young
        while young and (young[0].is_finished or young[0].stored is not Stored.NO):
            young.popleft()
        return young[0].popped_s if young else None

    def take_old(self, popped_s: float, count_max: int) -> list[Checkpoint]:
        """Return checkpoints popped until then that have no record. Each is returned once, until its record
        was not written."""
        found: list[Checkpoint] = []
        while len(found) < count_max and (since_s := self.next_young_s) is not None and since_s <= popped_s:
            found.append(self._young.popleft())
        return found

    def storing(self, checkpoint: Checkpoint) -> None:
        """The record of a checkpoint is appended."""
        checkpoint.stored = Stored.WRITING

    def stored(self, checkpoint: Checkpoint, end: int) -> None:
        """The record is written, and ends here in the log."""
        if checkpoint.stored is not Stored.WRITING:
            return
        checkpoint.stored = Stored.YES
        if checkpoint.step is not None:
            checkpoint.step.end = max(checkpoint.step.end, end)
        self._close(checkpoint)
        if not checkpoint.is_finished:
            self._stored.append(checkpoint)
            if len(self._stored) > 2 * self.count + LEFT_BEHIND_MAX:
                self._stored = deque(one for one in self._stored if not one.is_finished)

    def not_stored(self, checkpoint: Checkpoint) -> None:
        """The record was not written. It is tried again."""
        if checkpoint.stored is Stored.WRITING:
            checkpoint.stored = Stored.NO
        if checkpoint.stored is Stored.NO and not checkpoint.is_finished:
            self._young.appendleft(checkpoint)

    def hand_over(self, count_max: int) -> int:
        """Forget the oldest stored checkpoints until at most so many are left: their records remain. Return
        the latest pop time of those forgotten, 0 without any."""
        latest = 0
        while self.count > count_max and self._stored:
            checkpoint = self._stored.popleft()
            queue = self.queues.get(checkpoint.key)
            if queue is None or checkpoint.is_finished:
                continue
            if checkpoint.in_hand:
                self._stored.append(checkpoint)
                break
            checkpoint.handed_over = True
            queue.out -= checkpoint.out.bit_count()
            checkpoint.out = 0
            self._remove(queue, checkpoint)
            latest = max(latest, checkpoint.pop_ms)
        return latest

    def unstored(self) -> Iterator[Checkpoint]:
        """Return all checkpoints that exist only in memory."""
        for queue in self.queues.values():
            for checkpoint in queue.checkpoints.values():
                if checkpoint.stored is Stored.NO:
                    yield checkpoint

    # --- the offset of the group -------------------------------------------------------------------------

    def committable(self, queue: PopQueue, safe: int) -> int | None:
        """Return the offset that the group may commit now that the log is safe up to ``safe``; None if it
        stays where it is."""
        offset = None
        steps = queue.steps
        while steps and not steps[0].open and steps[0].end <= safe:
            offset = steps.popleft().next_offset
        return offset
