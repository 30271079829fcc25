"""Decides from what clients were told, what controllers committed, and the files of all brokers whether a
promise was broken. Every function is pure and returns what is wrong, a sentence each: nothing, if all is
well.

What is said of one log and its history is decided by :mod:`tests.rig.checker`; here is what needs
several brokers, epochs, and controllers.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from kerolox.controller.state import ReplicaGroup
from kerolox.protocol.ha_epochs import Epoch
from tests.rig.checker import few, first_difference
from tests.rig.logs import Log, Record

from .clients import Seen, Sent


def twice(records: Iterable[Record], topic: str) -> list[str]:
    """No message is at two places: each was sent once."""
    first: dict[bytes, Record] = {}
    return few(
        f"{record.body[:20]!r} lies at {found.place} and at {record.place}"
        for record in records
        if record.topic == topic and (found := first.setdefault(record.body, record)) is not record
    )


def unread(seen: Iterable[Seen], records: Iterable[Record], topic: str) -> list[str]:
    """What was shown to readers stays: this body at this offset of its queue."""
    found = {(record.queue, record.offset): record.body for record in records if record.topic == topic}
    return few(
        f"{one.body[:20]!r} was read from {one.by} at {one.at_s:.3f} s, offset {one.offset} of queue "
        f"{one.queue}; now there is {(found.get((one.queue, one.offset)) or b'nothing')[:20]!r}"
        for one in seen
        if found.get((one.queue, one.offset)) != one.body
    )


def logs_differ(logs: Mapping[str, Log]) -> list[str]:
    """All end at the same place, and have the same bytes."""
    wrong = []
    names = sorted(logs)
    for name in names[1:]:
        one, other = logs[names[0]], logs[name]
        if one.end != other.end:
            wrong.append(f"the log of {names[0]} ends at {one.end}, that of {name} at {other.end}")
        if (place := first_difference(one, other)) is not None:
            wrong.append(f"the logs of {names[0]} and {name} differ at {place}")
    return wrong


def epochs_differ(epochs: Mapping[str, Sequence[Epoch]], logs: Mapping[str, Log]) -> list[str]:
    """All have the same epochs, as far as their logs reach back."""
    wrong = []
    names = sorted(epochs)
    for name in names[1:]:
        low = max(logs[names[0]].begin, logs[name].begin)
        one, other = (_from(epochs[which], low) for which in (names[0], name))
        if one != other:
            wrong.append(f"epochs of {names[0]}: {one}; of {name}: {other}")
    return wrong


def _from(epochs: Sequence[Epoch], low: int) -> list[tuple[int, int]]:
    """The epochs of what lies behind a place; the one it is in begins there."""
    kept = [(epoch.number, max(low, epoch.start)) for epoch in epochs]
    return [one for one, after in zip(kept, [*kept[1:], (0, low + 1)], strict=True) if after[1] > low]


def masters_of(history: Iterable[ReplicaGroup | None]) -> dict[int, int]:
    """Who was elected for which epoch."""
    return {group.master_epoch: group.master for group in history if group is not None and group.master}


def wrong_leader(
    sends: Iterable[Sent], epochs: Sequence[Epoch], masters: Mapping[int, int], ids: Mapping[str, set[int]]
) -> list[str]:
    """What was acknowledged lies in an epoch for which the one was elected who acknowledged it. ``ids``:
    which each address has had."""
    starts = [epoch.start for epoch in epochs]
    wrong = []
    for send in sends:
        if not send.ok:
            continue
        at = bisect_right(starts, send.place) - 1
        number = epochs[at].number if at >= 0 else 0
        if masters.get(number) not in ids.get(send.by, ()):
            wrong.append(
                f"{send.body[:20]!r} at {send.place} was acknowledged by {send.by}, and lies in epoch "
                f"{number} of {masters.get(number)}"
            )
    return few(wrong)


def two_leaders(sends: Iterable[Sent], epochs: Sequence[Epoch]) -> list[str]:
    """Nobody acknowledges a message that was sent after one of a later epoch was acknowledged."""
    starts = [epoch.start for epoch in epochs]
    told = [(send, bisect_right(starts, send.place)) for send in sends if send.ok]
    first: dict[int, float] = {}  # place of an epoch in the list → when the first of it was acknowledged
    for send, at in told:
        first[at] = min(send.ended_s, first.get(at, send.ended_s))
    wrong = []
    for send, at in told:
        later = [number for number, ended_s in first.items() if number > at and ended_s < send.began_s]
        if later:
            wrong.append(
                f"{send.body[:20]!r} was sent at {send.began_s:.3f} s and acknowledged by {send.by} in epoch "
                f"{epochs[at - 1].number if at else 0}: {epochs[later[0] - 1].number} had begun"
            )
    return few(wrong)


def epochs_unknown(epochs: Sequence[Epoch], masters: Mapping[int, int]) -> list[str]:
    """Each epoch of a log is one for which somebody was elected; they are in order."""
    wrong = [f"epoch {epoch.number} was nobody's" for epoch in epochs if epoch.number not in masters]
    for one, after in pairwise(epochs):
        if one.number >= after.number or one.start >= after.start:
            wrong.append(f"epoch {after.number} at {after.start} comes after {one.number} at {one.start}")
    return wrong


def offsets_beyond(offsets: Mapping[int, int], ends: Mapping[int, int], whose: str) -> list[str]:
    """No group is beyond the end of a queue."""
    return [
        f"readers are at {offset} of queue {queue} at {whose}, which ends at {ends.get(queue, 0)}"
        for queue, offset in sorted(offsets.items())
        if offset > ends.get(queue, 0)
    ]
