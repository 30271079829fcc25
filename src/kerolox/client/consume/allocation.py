"""Allocation of a topic's queues to the members of a group.

There is no coordinator: every member computes its share from two lists, so all members must use one strategy
and see equal lists. RocketMQ's strategies give equal results here, so a group may mix Python and Java
members.
"""

from __future__ import annotations

import bisect
import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from kerolox.client.messages import Queue


class Strategy(Protocol):
    """``queues`` and ``members`` are sorted; ``me`` is one of the members."""

    def __call__(self, me: str, queues: Sequence[Queue], members: Sequence[str]) -> list[Queue]: ...


def average(me: str, queues: Sequence[Queue], members: Sequence[str]) -> list[Queue]:
    """Neighbouring queues, as many for each as can be; the first members have one more. The default."""
    index, count = members.index(me), len(members)
    size, more = divmod(len(queues), count)
    start = index * size + min(index, more)
    return list(queues[start : start + size + (index < more)])


def circle(me: str, queues: Sequence[Queue], members: Sequence[str]) -> list[Queue]:
    """One queue for each in turn."""
    return list(queues[members.index(me) :: len(members)])


def consistent_hash(me: str, queues: Sequence[Queue], members: Sequence[str]) -> list[Queue]:
    """By a hash ring: few queues move when members come and go, but shares differ in size."""
    ring = sorted((_ring_hash(f"{member}-{turn}"), member) for member in members for turn in range(10))
    places = [place for place, _ in ring]

    def owner(queue: Queue) -> str:
        text = f"MessageQueue [topic={queue.topic}, brokerName={queue.broker}, queueId={queue.queue_id}]"
        return ring[bisect.bisect_left(places, _ring_hash(text)) % len(ring)][1]

    return [queue for queue in queues if owner(queue) == me]


def sticky(me: str, queues: Sequence[Queue], members: Sequence[str]) -> list[Queue]:
    """Even shares of which few queues move when members come and go. All members must use it: RocketMQ
    has no such strategy."""
    pairs = ((place, queue, member) for place, queue in enumerate(queues) for member in members)
    weights = sorted(
        ((_ring_hash(f"{member}|{queue}"), place, member) for place, queue, member in pairs), reverse=True
    )
    share, more = divmod(len(queues), len(members))
    owner: dict[int, str] = {}
    held = dict.fromkeys(members, 0)
    # First an even share for each member, then the rest, one for each.
    for limit in (share, share + 1) if more else (share,):
        for _, place, member in weights:
            if place not in owner and held[member] < limit:
                owner[place] = member
                held[member] += 1
    return [queue for place, queue in enumerate(queues) if owner.get(place) == me]


def fixed(mine: Iterable[Queue]) -> Strategy:
    """Return a strategy that always gives these queues, independently of other members."""
    chosen = list(mine)
    return lambda me, queues, members: list(chosen)


def machine_room(rooms: Iterable[str]) -> Strategy:
    """Queues of brokers named ``room@name`` in one of these rooms, shared evenly."""
    wanted = frozenset(rooms)

    def allocate(me: str, queues: Sequence[Queue], members: Sequence[str]) -> list[Queue]:
        near = [
            queue
            for queue in queues
            if (parts := queue.broker.rstrip("@").split("@"))[0] in wanted and len(parts) == 2
        ]
        index, count = members.index(me), len(members)
        share, more = divmod(len(near), count)
        mine = near[share * index : share * (index + 1)]
        if more > index:
            mine.append(near[share * count + index])
        return mine

    return allocate


def nearby(
    room_of_broker: Callable[[Queue], str], room_of_member: Callable[[str], str], inner: Strategy = average
) -> Strategy:
    """Queues of a room go to members in that room; those of a room without members to all of them."""

    def allocate(me: str, queues: Sequence[Queue], members: Sequence[str]) -> list[Queue]:
        by_room: dict[str, list[Queue]] = {}
        for queue in queues:
            by_room.setdefault(room_of_broker(queue), []).append(queue)
        members_in: dict[str, list[str]] = {}
        for member in members:
            members_in.setdefault(room_of_member(member), []).append(member)
        here = room_of_member(me)
        own = by_room.pop(here, [])
        mine = list(inner(me, own, members_in[here])) if own else []
        for room in sorted(by_room):
            if room not in members_in:
                mine += inner(me, by_room[room], members)
        return mine

    return allocate


STRATEGIES: dict[str, Strategy] = {
    "average": average,
    "circle": circle,
    "consistent_hash": consistent_hash,
    "sticky": sticky,
}


def _ring_hash(text: str) -> int:
    return int.from_bytes(hashlib.md5(text.encode(), usedforsecurity=False).digest()[:4], "big")
