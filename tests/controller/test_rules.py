"""Long random histories: what must always hold, and RocketMQ's own rules beside ours, step by step.

A history is made from a number, so that one that fails is the same again.
"""

from __future__ import annotations

import random
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from kerolox.controller.apply import apply
from kerolox.controller.decide import decide
from kerolox.controller.requests import (
    NOBODY,
    ChangeInSync,
    ControllerRequest,
    Elect,
    Forget,
    LastSign,
    LiveBrokers,
    NextId,
    Register,
    TakeId,
)
from kerolox.controller.state import ControllerState, MasterChosen, ReplicaGroup

from .apache_rules import OK, Alive, ApacheController

GROUP, CLUSTER = "broker-a", "c"
IDS = range(1, 6)
STEPS = 300


class History:
    """One group under our rules, with whatever may happen to it."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.state = ControllerState()
        self.alive: Alive = {}
        self.settled = True
        self.masters: dict[int, int | None] = {}  # master epoch → who it was
        self.given: set[int] = set()  # ids that somebody has or had
        self.codes: Counter[tuple[str, int]] = Counter()

    @property
    def group(self) -> ReplicaGroup | None:
        return self.state.groups.get(GROUP)

    def ask(self, request: ControllerRequest) -> int:
        signs = {id: LastSign(epoch, end, 0, rank) for id, (epoch, end, rank) in self.alive.items()}
        before = self.group
        answer, events = decide(self.state, LiveBrokers({GROUP: signs}, self.settled), request)
        self.codes[type(request).__name__, int(answer.code)] += 1
        assert not events or answer.code in (OK, 2004), "what is refused changes nothing"
        for event in events:
            self.state = apply(self.state, event)
            if isinstance(event, MasterChosen):
                assert isinstance(request, Elect | Register)
                self.chosen(before, event.id, isinstance(request, Elect) and request.allow_unclean)
        self.check(before)
        return int(answer.code)

    def chosen(self, before: ReplicaGroup | None, id: int | None, allow_unclean: bool) -> None:
        assert before is not None
        assert self.group is not None
        assert self.group.master == id
        assert self.group.master_epoch not in self.masters, "two masters in one epoch"
        self.masters[self.group.master_epoch] = id
        if id is not None:
            assert id in self.alive
            is_clean = id in before.in_sync or before.master_epoch == 0
            assert is_clean or allow_unclean, "unclean without leave"

    def check(self, before: ReplicaGroup | None) -> None:
        after = self.group
        if after is None:
            self.masters.clear()
            self.given.clear()
            return
        assert after.replicas
        assert after.in_sync <= after.replicas.keys()
        assert after.master is None or after.master in after.in_sync
        assert after.master is None or after.master_epoch > 0
        assert all(id < after.next_id for id in after.replicas)
        new = after.replicas.keys() - (before.replicas.keys() if before else set())
        assert not new & self.given, "an id was given twice"
        self.given |= new
        if before is None:
            return
        assert after.master_epoch >= before.master_epoch
        assert after.in_sync_epoch >= before.in_sync_epoch
        assert after.next_id >= before.next_id
        if after.master != before.master and after.master is not None:
            assert after.master_epoch > before.master_epoch
        if after.in_sync != before.in_sync:
            assert after.in_sync_epoch > before.in_sync_epoch

    # --- what may happen ----------------------------------------------------------------------

    def lives_or_dies(self) -> None:
        id = self.chance.choice(IDS)
        if self.chance.random() < 0.3:
            self.alive.pop(id, None)
        else:
            end = self.chance.choice([0, 100, 3 << 30])
            self.alive[id] = (self.chance.randrange(4), end, self.chance.randrange(3))

    def takes(self) -> TakeId:
        header = decide(self.state, LiveBrokers(), NextId(CLUSTER, GROUP)).answer.header
        id = header.next_broker_id if self.chance.random() < 0.5 else self.chance.choice(IDS)  # type: ignore[union-attr]
        return TakeId(CLUSTER, GROUP, id, f"10.0.0.{id}:10911;{self.chance.randrange(2)}")

    def registers(self) -> Register:
        return Register(CLUSTER, GROUP, self.chance.choice(IDS), f"10.0.1.{self.chance.randrange(3)}:10911")

    def elects(self) -> Elect:
        id = self.chance.choice([NOBODY, *IDS])
        wanted = id != NOBODY and self.chance.random() < 0.4
        return Elect(group=GROUP, id=id, is_wanted=wanted, allow_unclean=self.chance.random() < 0.3)

    def changes_the_set(self) -> ChangeInSync:
        """A master's wish, often with something wrong in it."""
        group = self.group or ReplicaGroup(cluster=CLUSTER, name=GROUP)
        master, epoch, set_epoch = group.master or 0, group.master_epoch, group.in_sync_epoch
        in_sync = frozenset(self.chance.sample(list(IDS), self.chance.randrange(5)))
        if self.chance.random() < 0.8:
            in_sync = frozenset(id for id in in_sync if id in group.replicas) | {master}
        if self.chance.random() < 0.1:
            master = self.chance.choice(IDS)
        if self.chance.random() < 0.1:
            epoch += self.chance.choice([-1, 1])
        if self.chance.random() < 0.1:
            set_epoch += self.chance.choice([-1, 1])
        return ChangeInSync(
            group=GROUP, master=master, master_epoch=epoch, in_sync=in_sync, in_sync_epoch=set_epoch
        )

    def forgets(self) -> Forget:
        even_living = self.chance.random() < 0.05
        some = ";".join(map(str, self.chance.sample(list(IDS), self.chance.randrange(3)))) or None
        return Forget(group=GROUP, ids=some, even_living=even_living)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 1 << 32))
def test_what_always_holds(seed: int) -> None:
    """Whatever is asked, in any order."""
    history = History(seed)
    kinds = [history.takes, history.registers, history.elects, history.changes_the_set, history.forgets]
    for _ in range(STEPS):
        history.settled = history.chance.random() < 0.8
        history.lives_or_dies()
        ask = history.chance.choices(kinds, [3, 1, 4, 6, 1])[0]
        history.ask(ask())


ELECTIONS = {("Elect", code) for code in (0, 2004, 2010, 2011, 2012)}
SETS = {("ChangeInSync", code) for code in (0, 2000, 2001, 2002, 2003, 2006, 2013)}
REST = {("TakeId", 0), ("TakeId", 2014), ("Register", 0), ("Register", 2010), ("Forget", 0), ("Forget", 2009)}
_seen: Counter[tuple[str, int]] = Counter()


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 1 << 32))
def _beside_rocketmq(seed: int) -> None:
    history, apache = History(seed), ApacheController()
    chance = history.chance
    for _ in range(STEPS):
        history.lives_or_dies()
        alive, group = history.alive, history.group
        known = set(group.replicas) if group else set()
        kind = chance.choices(["id", "register", "elect", "set", "forget"], [3, 1, 4, 6, 1])[0]
        if kind == "id":
            taken = history.takes()
            # A free id that is not the next one: RocketMQ gives it, and may so bar the group to newcomers.
            if taken.id in known or taken.id == apache.next_id() or not known:
                assert history.ask(taken) == apache.take_id(taken.id, taken.check_code)
        elif kind == "register":
            registered = history.registers()
            if group is not None and registered.id == group.master:
                # RocketMQ lets a master that starts anew go on in its epoch. Here there is an election.
                continue
            assert history.ask(registered) == apache.register(registered.id, registered.address)
        elif kind == "elect":
            asked = history.elects()
            if group is not None and asked.id == NOBODY:
                # RocketMQ counts up an epoch for every failed attempt. We do for the first.
                if group.master is None:
                    continue
            elif group is not None and (
                asked.id not in known  # RocketMQ does not ask whether it is one of them,
                or (group.master_epoch == 0 and asked.id not in alive)  # nor whether the first master lives
            ):
                continue
            told = apache.elect(asked.id, asked.is_wanted, alive, asked.allow_unclean)
            assert history.ask(asked) == told
        elif kind == "set":
            wish = history.changes_the_set()
            told = apache.alter(wish.master, wish.master_epoch, set(wish.in_sync), wish.in_sync_epoch, alive)
            assert history.ask(wish) == told
        else:
            forgotten = history.forgets()
            ids = set(map(int, forgotten.ids.split(";"))) if forgotten.ids else None
            # RocketMQ does not count the change of the in-sync set, so that the master does not hear of it;
            # keeps a master that it has forgotten; begins its epochs anew when nobody is in sync; forgets
            # those that live when there is no master; and says yes to ids it does not know.
            is_same = ids is not None and ids & known and group and group.in_sync and not ids & group.in_sync
            if group is not None and not forgotten.even_living and not is_same:
                continue
            told = apache.clean(ids, forgotten.even_living, alive)
            assert history.ask(forgotten) == told
        agree(history.group, apache)
    _seen.update(history.codes)


def test_the_same_as_rocketmq_but_where_it_is_told() -> None:
    _seen.clear()
    _beside_rocketmq()
    missing = (ELECTIONS | SETS | REST) - _seen.keys()
    assert not missing, f"the histories never came to {missing}"


def agree(group: ReplicaGroup | None, apache: ApacheController) -> None:
    """Ours is one table, RocketMQ's are two."""
    if group is None:
        assert apache.replicas is None
        return
    replicas, sync = apache.replicas, apache.sync
    assert replicas is not None
    assert sync is not None
    assert {id: one.address for id, one in group.replicas.items()} == replicas.addresses
    assert group.next_id == replicas.next_id
    assert (group.master, group.master_epoch) == (sync.master, sync.master_epoch)
    assert (set(group.in_sync), group.in_sync_epoch) == (sync.in_sync, sync.set_epoch)
