"""Choice of a group's master. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kerolox.controller.requests import Elect, LastSign
from kerolox.controller.state import ReplicaGroup


def choose(
    group: ReplicaGroup, alive: Mapping[int, LastSign], asked: Elect, lacking: Mapping[int, int]
) -> int | None:
    """Return the replica to be master, which may be the current one; None if no replica can be elected.

    Only a replica that is in sync and lacks no confirmed byte can be elected without loss. Any other replica
    is elected only if unclean elections are allowed and no such replica lives; or if an operator has accepted
    the loss of as many bytes as it lacks.
    """
    wanted = asked.id if asked.is_wanted else None
    if asked.accepted_loss is not None:
        is_heard = asked.id in alive and alive[asked.id].max_offset >= 0
        return asked.id if is_heard and lacking.get(asked.id, 0) <= asked.accepted_loss else None
    whole = [id for id in group.in_sync if not lacking.get(id)]
    chosen = best_of(whole, group.master, alive, wanted)
    if chosen is None and asked.allow_unclean:
        chosen = best_of(group.replicas, group.master, alive, wanted)
    return chosen


def best_of(
    candidates: Iterable[int], master: int | None, alive: Mapping[int, LastSign], wanted: int | None
) -> int | None:
    """Return the best living candidate: the wanted one if one is named; else the current master; else the one
    with the longest log."""
    living = [id for id in candidates if id in alive]
    if wanted is not None:
        return wanted if wanted in living else None
    if master in living:
        return master
    return min(living, key=lambda id: _rank(alive[id], id), default=None)


def _rank(sign: LastSign, id: int) -> tuple[int, int, int, int]:
    # Compared as unlimited integers: RocketMQ 5.5.0 compares 32-bit differences of offsets and may elect the
    # shorter of two logs that differ by two gigabytes.
    return -sign.epoch, -sign.max_offset, sign.priority, id
