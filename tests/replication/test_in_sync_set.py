"""Who counts as a copy, and what is confirmed because of it."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from kerolox.replication import in_sync_set as module
from kerolox.replication.in_sync_set import InSyncSet
from kerolox.store.log.progress import Progress
from kerolox.store.log.set_copies import SetCopies
from kerolox.testing.clock import ManualClock
from tests.store.ends import Ends

from .epoch_kit import EpochSettings

OWN = 1


@dataclass
class Store:
    """What of a store the set knows."""

    ends: Ends = field(default_factory=Ends)

    def __post_init__(self) -> None:
        self.progress = Progress(self.ends, wait_for_flush=False)
        self.copies = SetCopies(self.progress)

    def write(self, size: int) -> None:
        self.ends.append(size)
        self.progress.advance()


class Rig:
    def __init__(self, *members: int) -> None:
        self.store = Store()
        self.clock = ManualClock()
        self.set = InSyncSet(self.store, EpochSettings(), self.clock)  # type: ignore[arg-type]
        self.looks = 0
        self.set.on_wanted.append(self._look)
        self.set.lead(OWN, {OWN, *members}, 10, 3)

    def _look(self) -> None:
        self.looks += 1

    def advance(self, seconds: float) -> None:
        moving = self.clock.advance(seconds)
        try:
            while True:
                moving.send(None)  # it waits for nothing but its turn
        except StopIteration:
            pass

    @property
    def end(self) -> int:
        return self.store.progress.committed

    @property
    def confirmed(self) -> int:
        assert self.set.confirmed_end() == self.store.progress.confirmed
        return self.store.progress.confirmed

    def join(self, id: int, acked: int, *, is_learner: bool = False) -> None:
        self.set.joined(id, is_learner=is_learner)
        self.set.acked(id, acked)

    def answer(self) -> frozenset[int] | None:
        """The controller agrees to what is wanted."""
        wanted = self.set.wanted()
        if wanted is not None:
            self.set.asked(wanted)
            assert self.set.adopt(wanted, self.set.set_epoch + 1)
        return wanted


def test_alone_all_is_confirmed() -> None:
    rig = Rig()
    rig.store.write(100)
    assert rig.confirmed == 100
    assert rig.store.copies.alone
    assert rig.set.wanted() is None


def test_who_has_all_is_taken_in_and_counts_from_the_question_on() -> None:
    rig = Rig()
    rig.store.write(100)
    rig.join(2, 60)
    assert rig.set.wanted() is None
    rig.set.acked(2, 100)
    assert rig.looks == 2  # by lead(), and now
    assert rig.set.wanted() == {1, 2}
    rig.store.write(50)
    assert rig.confirmed == 100, "it is counted already"
    rig.set.asked({1, 2})
    assert rig.set.wanted() is None, "one question at a time"
    rig.set.acked(2, 130)
    assert rig.confirmed == 130
    rig.set.refused()
    assert rig.confirmed == 150
    assert rig.set.wanted() is None
    rig.set.acked(2, 150)
    assert rig.set.wanted() is None, "not again at once"
    rig.advance(module.JOIN_AGAIN_S)
    rig.set.acked(2, 150)
    assert rig.answer() == {1, 2}
    rig.store.write(1)
    assert rig.confirmed == 150
    assert rig.store.copies.size == 2


def test_under_load_it_is_waited_for_and_not_for_ever() -> None:
    rig = Rig()
    rig.store.write(100)
    rig.join(2, 100)
    rig.set.left(2)
    rig.join(2, 40)
    rig.set.caught_up(2, rig.clock.monotonic_s())  # has what was there a moment ago
    for _ in range(5):
        rig.store.write(100)
        rig.set.acked(2, rig.end - 100)  # never all
    assert rig.confirmed < rig.end
    assert rig.set.wanted() == {1, 2}
    rig.set.left(2)
    assert rig.confirmed == rig.end
    rig.join(2, rig.end - 10)
    rig.set.caught_up(2, rig.clock.monotonic_s())
    rig.set.acked(2, rig.end - 10)
    rig.store.write(10)
    assert rig.confirmed == rig.end - 10
    assert rig.set.wanted() is None
    rig.advance(module.JOIN_S)
    assert rig.confirmed == rig.end, "it did not come"
    rig.set.acked(2, rig.end - 5)
    rig.store.write(5)
    assert rig.confirmed == rig.end


def test_a_learner_and_who_lacks_the_epoch_stay_out() -> None:
    rig = Rig()
    rig.store.write(100)
    rig.set.lead(OWN, {OWN}, 11, 4)
    rig.join(2, 99)
    rig.set.caught_up(2, rig.clock.monotonic_s())
    rig.set.acked(2, 99)
    assert rig.confirmed == rig.end
    rig.join(3, 100, is_learner=True)
    assert rig.set.wanted() is None
    rig.store.write(1)
    assert rig.confirmed == 101
    assert [(one.id, one.in_set, one.is_learner, one.acked) for one in rig.set.status()] == [
        (1, True, False, 101), (2, False, False, 99), (3, False, True, 100),
    ]  # fmt: skip


def test_who_is_lost_stays_until_the_controller_said_so() -> None:
    rig = Rig(2, 3)
    assert rig.set.wanted() == {1}, "never seen"
    rig.join(2, 0)
    rig.join(3, 0)
    assert rig.set.wanted() is None
    rig.store.write(100)
    rig.set.acked(2, 100)
    rig.set.acked(3, 70)
    assert rig.confirmed == 70
    looks = rig.looks
    rig.set.left(3)
    assert rig.looks == looks + 1
    rig.store.write(10)
    rig.set.acked(2, 110)
    assert rig.confirmed == 70
    assert rig.set.wanted() == {1, 2}
    rig.set.asked({1, 2})
    assert rig.confirmed == 70, "the controller may not have heard of it"
    rig.set.left(2)  # and another one, meanwhile
    assert rig.set.wanted() is None
    assert not rig.set.adopt({1, 2}, 10), "of before the question: it may still be carried out"
    assert rig.confirmed == 70
    assert rig.set.adopt({1, 2}, 11)
    assert rig.confirmed == 70, "nobody knows what 2 has"
    assert rig.answer() == {1}
    assert rig.confirmed == rig.end


def test_who_is_slow_goes() -> None:
    rig = Rig(2)
    rig.join(2, 0)
    limit_s = EpochSettings().ha_catch_up_ms / 1000
    rig.advance(limit_s + 100)
    assert rig.set.wanted() is None, "there was nothing to have"
    rig.set.acked(2, 0)
    rig.store.write(10)
    rig.advance(limit_s - 1)
    rig.set.caught_up(2, rig.clock.monotonic_s() - limit_s)
    assert rig.set.wanted() is None
    rig.advance(2)
    assert rig.set.wanted() == {1}
    rig.set.caught_up(2, rig.clock.monotonic_s() - limit_s)
    assert rig.set.wanted() is None


def test_it_is_followed_when_all_others_of_the_set_say_so() -> None:
    rig = Rig(2)
    rig.store.write(10)
    rig.join(2, 10)
    began_s = rig.clock.monotonic_s()
    assert rig.set.is_followed_since(began_s)
    rig.advance(1)
    since_s = rig.clock.monotonic_s()
    assert not rig.set.is_followed_since(since_s), "not a word since then"
    rig.set.acked(2, 9)
    assert not rig.set.is_followed_since(since_s), "it lacks something"
    rig.set.acked(2, 10)
    assert rig.set.is_followed_since(since_s)
    rig.set.asked({1, 2, 3})
    assert not rig.set.is_followed_since(since_s), "the controller may have taken in another one"
    rig.set.refused()
    assert rig.set.is_followed_since(since_s)
    rig.set.left(2)
    assert not rig.set.is_followed_since(since_s)
    rig.set.adopt({1}, 20)
    assert rig.set.is_followed_since(since_s), "nobody else can be elected"
    rig.set.rest()
    assert not rig.set.is_followed_since(since_s)


def test_at_rest_nothing_more_is_confirmed() -> None:
    rig = Rig()
    rig.store.write(10)
    rig.set.rest()
    rig.store.write(10)
    assert rig.confirmed == 10
    assert rig.set.wanted() is None
    assert not rig.set.adopt({1}, 99)
    rig.set.lead(OWN, {OWN}, 12, 4)
    assert rig.confirmed == 20


def test_a_set_that_is_too_large_is_refused() -> None:
    rig = Rig()
    with pytest.raises(ValueError, match="an in-sync set of 66 members, the limit is 65"):
        rig.set.adopt(range(1, 67), 99)


# --- any order of everything -----------------------------------------------------------------------------


class Model:
    """A leader, followers that really have what they report, and a controller that answers, late or never."""

    def __init__(self) -> None:
        self.rig = Rig()
        self.has: dict[int, int] = {2: 0, 3: 0, 4: 0}
        self.connected: set[int] = set()
        self.controller = frozenset({OWN})  # what it would elect from
        self.number = 10
        self.question: frozenset[int] | None = None  # asked and not yet carried out
        self.answer: Callable[[], object] | None = None  # given and not yet heard
        self.highest = 0

    def write(self, size: int) -> None:
        self.rig.store.write(size)

    def copy(self, id: int, size: int) -> None:
        if id in self.connected:
            self.has[id] = min(self.rig.end, self.has[id] + size * 3)
            self.rig.set.acked(id, self.has[id])

    def connect(self, id: int, size: int) -> None:
        self.connected.add(id)
        self.rig.join(id, self.has[id])
        if size % 2:
            self.rig.set.caught_up(id, self.rig.clock.monotonic_s())
            self.rig.set.acked(id, self.has[id])

    def leave(self, id: int) -> None:
        if id in self.connected:
            self.connected.discard(id)
            self.rig.set.left(id)

    def ask(self) -> None:
        wanted = self.rig.set.wanted()
        if wanted is not None and self.question is None and self.answer is None:
            self.rig.set.asked(wanted)
            self.question = wanted

    def carry_out(self, agrees: bool) -> None:
        """The controller does it, or does not; the leader has not heard of either yet."""
        question, self.question = self.question, None
        if question is None:
            return
        if agrees:
            self.controller, self.number = question, self.number + 1
            number = self.number
            self.answer = lambda: self.rig.set.adopt(question, number)
        else:
            self.answer = self.rig.set.refused

    def hear(self) -> None:
        answer, self.answer = self.answer, None
        if answer is not None:
            answer()

    def poll(self) -> None:
        if self.rig.set.adopt(self.controller, self.number):
            self.answer = None

    def check(self) -> None:
        confirmed = self.rig.confirmed
        assert confirmed >= self.highest, "it never falls"
        self.highest = confirmed
        for id in self.controller - {OWN}:
            assert confirmed <= self.has[id], f"{id} may be elected, and lacks what was acknowledged"
        if self.question is not None:
            for id in self.question - {OWN}:
                assert confirmed <= self.has[id], f"{id} may be elected as soon as the controller has agreed"
        assert OWN in self.rig.set.members


def any_step(model: Model, chance: random.Random) -> None:
    id, size = chance.choice([2, 3, 4]), chance.randint(1, 50)
    chance.choice(
        [
            lambda: model.write(size),
            lambda: model.copy(id, size),
            lambda: model.copy(id, size),
            lambda: model.copy(id, 1000),
            lambda: model.connect(id, size),
            lambda: model.leave(id),
            model.ask,
            model.ask,
            lambda: model.carry_out(size > 10),
            model.hear,
            model.poll,
            lambda: model.rig.advance(size / 20),
        ]
    )()


@pytest.mark.parametrize("seed", range(20))
def test_whoever_is_elected_has_all_that_was_confirmed(seed: int) -> None:
    chance = random.Random(seed)
    model = Model()
    sets = set()
    for _ in range(1000):
        any_step(model, chance)
        model.check()
        sets.add(model.controller)
    assert len(sets) > 3, "the set hardly changed"
    # In the end all that is left is in the set, and all is confirmed: nothing is stuck.
    for _ in range(4):
        model.rig.advance(module.JOIN_S + module.JOIN_AGAIN_MAX_S)
        for id in model.connected:
            model.copy(id, 1 << 20)
        model.ask()
        model.carry_out(True)
        model.hear()
        model.check()
    assert model.rig.confirmed == model.rig.end
    assert model.controller == {OWN, *model.connected}
