"""The product, broken on purpose: each is a fault that the simulator has to find, or it could not be
believed when it finds none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import msgspec

from kerolox.controller import decide, election, masters, term
from kerolox.replication import follower
from kerolox.replication.epoch_agreement import Agreement
from kerolox.replication.epoch_history import EpochHistory
from kerolox.replication.in_sync_set import InSyncSet
from kerolox.store.log.acks import Acks
from kerolox.store.log.set_copies import ALL, SetCopies
from kerolox.store.opening import Opening

Patch = tuple[Any, str, Any]


def _anybody_is_elected() -> list[Patch]:
    """The controller elects who lives, in sync or not."""

    def choose(group: Any, alive: Any, asked: Any, lacking: Any) -> Any:
        return election.best_of(group.replicas, group.master, alive, asked.id if asked.is_wanted else None)

    return [(masters, "choose", choose)]


def _sets_are_not_fenced() -> list[Patch]:
    """The controller takes the set of a master that was replaced."""
    check = decide._why_not_in_sync

    def why_not(group: Any, live: Any, asked: Any) -> Any:
        if group is not None:
            asked = msgspec.structs.replace(
                asked, master=group.master, master_epoch=group.master_epoch, in_sync_epoch=group.in_sync_epoch
            )
        return check(group, live, asked)

    return [(decide, "_why_not_in_sync", why_not)]


def _told_before_it_is_committed() -> list[Patch]:
    """The controller answers what it could not keep."""

    async def change(self: Any, request: Any) -> Any:
        try:
            return await kept(self, request)
        except term.Deposed:
            raise
        except Exception:
            return self.look(request)

    kept = term.Term.change
    return [(term.Term, "change", change)]


def _out_of_the_set_before_it_is_agreed() -> list[Patch]:
    """A leader counts the set it has asked for, not the one the controller has."""

    def union(self: Any) -> Any:
        return self.members if self._asked is None else self._asked

    return [(InSyncSet, "_union", property(union))]


def _nobody_is_waited_for() -> list[Patch]:
    """A leader acknowledges what it has written."""
    return [
        (SetCopies, "having", lambda self, offset: ALL),
        (SetCopies, "reached", lambda self, count: self._progress.committed),
    ]


def _followers_do_not_flush() -> list[Patch]:
    """A follower says that it has what is not on its disk yet."""
    return [(Acks, "own_end", lambda self, progress: progress.committed)]


def _epochs_do_not_begin() -> list[Patch]:
    """Who is elected writes on in the epoch that is the last in its log."""

    async def begin(self: Any, number: int, start: int) -> None:
        if not self.entries:
            await began(self, number, start)

    began = EpochHistory.begin
    return [(EpochHistory, "begin", begin)]


def _nothing_is_cut() -> list[Patch]:
    """A follower keeps what its leader does not have."""

    def agreement(store: Any, own: Any, leader: Any) -> Any:
        found = agreed(store, own, leader)
        return found if found.takes_epochs else Agreement(store.log.max_offset)

    agreed = follower.agreement
    return [(follower, "agreement", agreement)]


def _all_is_confirmed_at_the_start() -> list[Patch]:
    """A broker that starts shows all that is in its log."""
    return [(Opening, "_confirmed", lambda self, known, found: found.end)]


MUTANTS: dict[str, Callable[[], list[Patch]]] = {
    "anybody_is_elected": _anybody_is_elected,
    "sets_are_not_fenced": _sets_are_not_fenced,
    "told_before_it_is_committed": _told_before_it_is_committed,
    "out_of_the_set_before_it_is_agreed": _out_of_the_set_before_it_is_agreed,
    "nobody_is_waited_for": _nobody_is_waited_for,
    "followers_do_not_flush": _followers_do_not_flush,
    "epochs_do_not_begin": _epochs_do_not_begin,
    "nothing_is_cut": _nothing_is_cut,
    "all_is_confirmed_at_the_start": _all_is_confirmed_at_the_start,
}


# What a schedule needs to have for a fault to show, by the kinds of its faults; any other one by any.
NEEDS = {"followers_do_not_flush": "blackout"}


@contextmanager
def planted(name: str | None) -> Iterator[None]:
    """Break it so, for a while."""
    patches = [] if name is None else [mock.patch.object(*patch) for patch in MUTANTS[name]()]
    for patch in patches:
        patch.start()
    try:
        yield
    finally:
        for patch in reversed(patches):
            patch.stop()
