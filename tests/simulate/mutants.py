"""The product, broken on purpose: each is a fault that the simulator has to find, or it could not be
believed when it finds none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import msgspec

from kerolox.controller import decide, election, term

Patch = tuple[Any, str, Any]


def _anybody_is_elected() -> list[Patch]:
    """The controller elects who lives, in sync or not."""

    def choose(group: Any, alive: Any, asked: Any) -> Any:
        return election.best_of(group.replicas, group.master, alive, asked.id if asked.is_wanted else None)

    return [(decide, "choose", choose)]


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


MUTANTS: dict[str, Callable[[], list[Patch]]] = {
    "anybody_is_elected": _anybody_is_elected,
    "sets_are_not_fenced": _sets_are_not_fenced,
    "told_before_it_is_committed": _told_before_it_is_committed,
}


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
