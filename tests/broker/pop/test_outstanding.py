"""Popped messages in memory: each is available, out with a due time, or acknowledged; a crash repeats
messages, and never loses one."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kerolox.broker.pop.checkpoint import Checkpoint, QueueKey, Stored
from kerolox.broker.pop.outstanding import Outstanding, PopQueue

KEY = QueueKey("orders", "billing", 0)


def popped(state: Outstanding, *offsets: int, pop_ms: int = 1000, invisible_ms: int = 60_000) -> Checkpoint:
    queue = state.queue(KEY, 0, 1.0)
    made = state.pop(queue, offsets[0], offsets, offsets[-1] + 1, pop_ms, invisible_ms, 0, 1.0)
    assert made is not None
    return made


def the_queue(state: Outstanding) -> PopQueue:
    return state.queues[KEY]


def store(state: Outstanding, checkpoint: Checkpoint, end: int) -> None:
    state.storing(checkpoint)
    state.stored(checkpoint, end)


def test_the_group_moves_on_when_all_messages_of_a_read_are_acknowledged() -> None:
    state = Outstanding()
    made = popped(state, 0, 1, 2)
    assert state.committable(the_queue(state), 0) is None
    for offset in (2, 0):
        assert state.ack(made, offset)
    assert state.committable(the_queue(state), 0) is None
    assert state.ack(made, 1)
    assert state.committable(the_queue(state), 0) == 3
    assert (state.count, the_queue(state).out) == (0, 0)


def test_a_message_is_acknowledged_once() -> None:
    state = Outstanding()
    made = popped(state, 0, 1)
    assert state.ack(made, 0)
    assert not state.ack(made, 0)
    assert not state.ack(made, 7)


def test_later_reads_wait_for_the_first() -> None:
    state = Outstanding()
    first, second = popped(state, 0, 1), popped(state, 2, pop_ms=1001)
    state.ack(second, 2)
    assert state.committable(the_queue(state), 0) is None
    state.ack(first, 0)
    state.ack(first, 1)
    assert state.committable(the_queue(state), 0) == 3


def test_a_record_counts_when_it_is_flushed() -> None:
    state = Outstanding()
    store(state, popped(state, 0, 1), end=500)
    assert state.committable(the_queue(state), 499) is None
    assert state.committable(the_queue(state), 500) == 2


def test_the_record_names_only_messages_that_are_out() -> None:
    state = Outstanding()
    made = popped(state, 4, 5, 9)
    state.ack(made, 5)
    assert made.record("b").offsets == [4, 9]


def test_two_pops_with_one_start_and_time_cannot_be() -> None:
    state = Outstanding()
    popped(state, 0, 1)
    queue = the_queue(state)
    assert state.pop(queue, 0, (2,), 3, 1000, 60_000, 0, 1.0) is None
    assert (queue.next_offset, queue.out, state.count) == (2, 2, 1)


def test_a_change_of_one_message_keeps_the_offset_of_the_group() -> None:
    state = Outstanding()
    made = popped(state, 0, 1)
    changed = state.change(made, 0, 2000, 5000, 2.0)
    state.ack(made, 1)
    assert state.committable(the_queue(state), 0) is None
    assert changed.due_s == 7.0
    assert state.ack(changed, 0)
    assert state.committable(the_queue(state), 0) == 2


def test_a_change_in_the_millisecond_of_the_pop_has_a_handle_of_its_own() -> None:
    state = Outstanding()
    made = popped(state, 0, 1)
    changed = state.change(made, 0, made.pop_ms, 5000, 1.0)
    assert changed.pop_ms == made.pop_ms + 1
    assert not state.ack(made, 0)


def test_a_change_whose_records_were_not_written_is_taken_back() -> None:
    state = Outstanding()
    made = popped(state, 0, 1)
    store(state, made, 100)
    changed = state.change(made, 0, 2000, 5000, 2.0)
    assert made.in_hand
    state.undo_change(made, 0, changed)
    assert made.has_out(0)
    assert not changed.out
    assert (the_queue(state).out, state.count) == (2, 1)


def test_checkpoints_are_due_in_order_and_once() -> None:
    state = Outstanding()
    late, soon = popped(state, 0, invisible_ms=9000), popped(state, 1, invisible_ms=3000)
    assert state.next_due_s == 4.0
    assert state.take_due(3.9, 10) == []
    assert state.take_due(10.0, 10) == [soon, late]
    assert state.take_due(10.0, 10) == []
    state.defer(soon, 12.0)
    assert state.next_due_s == 12.0
    state.ack(soon, 1)
    assert state.next_due_s is None


def test_due_times_of_finished_checkpoints_are_not_kept() -> None:
    state = Outstanding()
    for offset in range(5000):
        state.ack(popped(state, offset, pop_ms=offset, invisible_ms=43_200_000), offset)
    assert len(state._due) < 2000


def test_old_stored_checkpoints_are_handed_over_when_there_are_too_many() -> None:
    state = Outstanding()
    made = [popped(state, offset, pop_ms=offset) for offset in range(5)]
    for checkpoint in made[:3]:
        store(state, checkpoint, 100)
    assert state.hand_over(4) == 0
    assert [one.handed_over for one in made] == [True, False, False, False, False]
    assert state.hand_over(0) == 2
    assert (state.count, the_queue(state).out) == (2, 2)
    assert the_queue(state).find(0, 0) is None


def test_idle_queues_are_forgotten() -> None:
    state = Outstanding()
    made = popped(state, 0)
    state.forget_idle(99.0)
    assert KEY in state.queues
    state.ack(made, 0)
    assert state.committable(the_queue(state), 0) == 1
    state.forget_idle(0.5)
    assert KEY in state.queues
    state.forget_idle(99.0)
    assert not state.queues


def test_what_is_left_of_a_removed_topic_does_nothing() -> None:
    state = Outstanding()
    made = popped(state, 0, 1)
    state.take(made, 0)
    state.forget(lambda key: key.topic == "orders")
    state.settle(made, 0, 10)
    assert not state.ack(made, 1)
    assert (state.count, state.next_due_s, state.queues) == (0, None, {})


@dataclass
class Record:
    """A record of the log: a checkpoint, acknowledgements, or a retry copy."""

    kind: str
    pop: tuple[int, int]
    offsets: set[int]


@dataclass
class Journal:
    """The log: what follows ``flushed`` can be lost."""

    records: list[Record] = field(default_factory=list)
    flushed: int = 0

    def append(self, *records: Record) -> int:
        self.records += records
        return len(self.records)


class Pops(RuleBasedStateMachine):
    """One queue, one group, any order of events."""

    def __init__(self) -> None:
        super().__init__()
        self.state = Outstanding()
        self.queue = self.state.queue(KEY, 0, 0.0)
        self.log = Journal()
        self.sent = 0
        self.committed = 0
        self.now_s = 1.0
        self.acked: set[int] = set()
        self.retried: set[int] = set()
        self.filtered: set[int] = set()
        self.handles: list[tuple[Checkpoint, int]] = []

    def out(self) -> list[int]:
        return [o for one in self.queue.checkpoints.values() for o in one.offsets_out]

    @rule(count=st.integers(1, 5))
    def send(self, count: int) -> None:
        self.sent += count

    @rule(count=st.integers(1, 4), skip=st.integers(0, 2), invisible_ms=st.sampled_from([0, 4000, 60_000]))
    def pop(self, count: int, skip: int, invisible_ms: int) -> None:
        start = self.queue.next_offset
        seen = list(range(start, min(self.sent, start + skip + count)))
        self.filtered |= set(seen[:skip])
        offsets = seen[skip:]
        if not offsets:
            self.state.skip(self.queue, start + len(seen))
            return
        made = self.state.pop(
            self.queue, start, offsets, offsets[-1] + 1, int(self.now_s * 1000), invisible_ms, 0, self.now_s
        )
        if made is not None:
            self.handles += [(made, offset) for offset in offsets]
        else:
            self.filtered -= set(seen[:skip])

    @precondition(lambda self: self.handles)
    @rule(data=st.data())
    def ack(self, data: st.DataObject) -> None:
        made, offset = data.draw(st.sampled_from(self.handles))
        if self.state.ack(made, offset):
            self.acked.add(offset)
            if made.stored is not Stored.NO:
                self.log.append(Record("ack", (made.start_offset, made.pop_ms), {offset}))

    @precondition(lambda self: self.handles)
    @rule(data=st.data(), fails=st.booleans())
    def change(self, data: st.DataObject, fails: bool) -> None:
        made, offset = data.draw(st.sampled_from(self.handles))
        if not made.has_out(offset):
            return
        is_stored = made.stored is not Stored.NO
        changed = self.state.change(made, offset, int(self.now_s * 1000), 30_000, self.now_s)
        if is_stored:
            if fails:
                self.state.undo_change(made, offset, changed)
                return
            end = self.log.append(
                Record("ck", (changed.start_offset, changed.pop_ms), {offset}),
                Record("ack", (made.start_offset, made.pop_ms), {offset}),
            )
            self.state.storing(changed)
            self.state.stored(changed, end)
            self.state.settle(made, offset, end)
        self.handles.append((changed, offset))

    @rule(fails=st.booleans())
    def store_old(self, fails: bool) -> None:
        for made in self.state.take_old(self.now_s - 10, 3):
            self.state.storing(made)
            if fails:
                self.state.not_stored(made)
            else:
                record = Record("ck", (made.start_offset, made.pop_ms), set(made.offsets_out))
                self.state.stored(made, self.log.append(record))

    @rule(fails=st.booleans())
    def revive(self, fails: bool) -> None:
        for made in self.state.take_due(self.now_s, 3):
            for offset in made.offsets_out:
                self.state.take(made, offset)
                if fails:
                    self.state.put_back(made, offset)
                    continue
                end = self.log.append(
                    Record("retry", (0, 0), {offset}),
                    Record("ack", (made.start_offset, made.pop_ms), {offset}),
                )
                self.retried.add(offset)
                self.state.settle(made, offset, end)
            if fails:
                self.state.defer(made, self.now_s + 5)

    @rule(passed_s=st.sampled_from([0.001, 1.0, 5.0, 20.0]))
    def wait(self, passed_s: float) -> None:
        self.now_s += passed_s

    @rule()
    def flush(self) -> None:
        self.log.flushed = len(self.log.records)

    @rule()
    def commit(self) -> None:
        offset = self.state.committable(self.queue, self.log.flushed)
        if offset is not None:
            assert offset > self.committed
            self.committed = offset

    @rule(left=st.integers(0, 3))
    def hand_over(self, left: int) -> None:
        before = self.out()
        self.state.hand_over(left)
        self.handed = getattr(self, "handed", set()) | (set(before) - set(self.out()))

    @invariant()
    def every_message_is_in_one_place(self) -> None:
        out = self.out()
        assert len(out) == len(set(out)) == self.queue.out
        places = [set(out), self.acked, self.retried, self.filtered, getattr(self, "handed", set())]
        assert sum(map(len, places)) == self.queue.next_offset
        assert set().union(*places) == set(range(self.queue.next_offset))
        assert self.state.count == len(self.queue.checkpoints)

    @invariant()
    def a_crash_loses_nothing(self) -> None:
        """Wherever the log ends after the crash, behind what was flushed."""
        left: dict[tuple[int, int], set[int]] = {}
        retried: set[int] = set()
        for number in range(len(self.log.records) + 1):
            if number:
                record = self.log.records[number - 1]
                if record.kind == "ck":
                    left[record.pop] = set(record.offsets)
                elif record.kind == "ack":
                    left.get(record.pop, set()).difference_update(record.offsets)
                else:
                    retried |= record.offsets
            if number >= self.log.flushed:
                safe = set().union(*left.values()) | retried | self.acked | self.filtered
                assert set(range(self.committed)) <= safe

    @invariant()
    def a_message_that_is_out_has_a_due_time(self) -> None:
        due = {id(one[2]) for one in self.state._due if one[0] == one[2].due_s}
        assert all(id(one) in due for one in self.queue.checkpoints.values() if one.out)

    def teardown(self) -> None:
        """When the clients are gone and the disk works, every message comes back or was acknowledged."""
        self.now_s += 1e6
        while self.state.next_due_s is not None:
            self.revive(fails=False)
        self.flush()
        self.commit()
        assert self.committed == self.queue.next_offset
        assert not self.out()


Pops.TestCase.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)
TestPops = Pops.TestCase
