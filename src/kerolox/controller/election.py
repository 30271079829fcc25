"""Who becomes master of a group. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kerolox.controller.requests import Elect, LastSign
from kerolox.controller.state import ReplicaGroup


def choose(
    group: ReplicaGroup, alive: Mapping[int, LastSign], asked: Elect, lacking: Mapping[int, int]
) -> int | None:
    """The replica to be master, which may be the one that is; None when there is none.

    Only who is in sync, and lacks no byte that was confirmed, can be elected without loss. Another one is
    taken only if that is allowed, and only if there is nobody else; or if an operator has given up as many
    bytes as it lacks.
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
    """Of those that live: the one that is wanted; the one that is master; the one that has most of it."""
    living = [id for id in candidates if id in alive]
    if wanted is not None:
        return wanted if wanted in living else None
    if master in living:
        return master
    return min(living, key=lambda id: _rank(alive[id], id), default=None)


def _rank(sign: LastSign, id: int) -> tuple[int, int, int, int]:
    # Whole numbers, compared as they are: RocketMQ 5.5.0 compares offsets by a difference of 32 bits, and may
    # elect the shorter of two logs that are two gigabytes apart.
    return -sign.epoch, -sign.max_offset, sign.priority, id
