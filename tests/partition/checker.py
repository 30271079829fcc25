"""Decides from what clients were told and from the files of both stores whether a promise was broken.

Every function is pure and returns what is wrong, a sentence each: nothing, if all is well.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum

from .history import Alone, History, Send
from .logs import Entry, Log, Record

TOLD_MAX = 5  # of one kind; the rest is counted
CLOCK_S = 0.01  # how exact the times of a history are

Place = tuple[int, int]  # queue and offset in it


class Relation(Enum):
    """How a follower's log stands to its leader's."""

    PART = "the leader's log goes on where the follower's ends"
    AHEAD = "the follower has all the leader has, and more"
    DIFFERS = "the logs differ"


def first_difference(one: Log, other: Log) -> int | None:
    """The first place where two logs have other bytes, of those both have."""
    begin, end = max(one.begin, other.begin), min(one.end, other.end)
    ours, theirs = (log.data[begin - log.begin : max(begin, end) - log.begin] for log in (one, other))
    if ours == theirs:
        return None
    return begin + next(at for at, (a, b) in enumerate(zip(ours, theirs, strict=True)) if a != b)


def relation(leader: Log, follower: Log) -> Relation:
    if first_difference(leader, follower) is not None:
        return Relation.DIFFERS
    return Relation.AHEAD if follower.end > leader.end else Relation.PART


def not_equal(one: Log, other: Log) -> list[str]:
    """Both end at the same place, and are the same from where the later one begins."""
    wrong = []
    if one.end != other.end:
        wrong.append(f"one log ends at {one.end} and the other at {other.end}")
    if (place := first_difference(one, other)) is not None:
        wrong.append(f"the logs differ at {place}, silently")
    return wrong


def lost(history: History, records: Iterable[Record], topic: str) -> list[str]:
    """What was acknowledged is in the log: this body, at the place that was told. So is what was stored
    without being acknowledged, unless another broker leads since."""
    found = _by_place(records, topic)
    wrong = []
    for send in history.sends:
        if not send.stored or (not send.ok and send.ended_s <= history.swapped_s):
            continue
        record = found.get((send.queue, send.offset))
        if record is None:
            wrong.append(f"{_named(send)} is missing")
        elif record.body != send.body:
            wrong.append(f"{_named(send)} is another message: {record.body[:40]!r}")
        elif record.place != send.place:
            wrong.append(f"{_named(send)} lies at {record.place}, and {send.place} was told")
    return _few(wrong)


def acknowledged_twice(history: History) -> list[str]:
    """No two acknowledged messages have one place."""
    seen: dict[Place, Send] = {}
    return _few(
        f"{_named(send)} has the place of {_named(first)}"
        for send in history.sends
        if send.ok and (first := seen.setdefault((send.queue, send.offset), send)) is not send
    )


def acknowledged_alone(history: History) -> list[str]:
    """Nothing is acknowledged while no follower could confirm it."""
    wrong = [
        f"{_named(send)} was acknowledged while {alone.why}"
        for alone in history.alone
        for send in history.sends
        if send.ok and _within(send, alone)
    ]
    return _few(wrong)


def invented(history: History, records: Iterable[Record], topic: str) -> list[str]:
    """Every message in the log was sent by somebody."""
    sent = {send.body for send in history.sends}
    return _few(
        f"nobody sent {record.body[:40]!r}, at {record.place}"
        for record in records
        if record.topic == topic and record.body not in sent
    )


def gaps(records: Iterable[Record], topic: str) -> list[str]:
    """Offsets of each queue go up by one."""
    following: dict[int, int] = {}
    wrong = []
    for record in records:
        if record.topic == topic:
            expected = following.setdefault(record.queue, 0)
            if record.offset != expected:
                wrong.append(f"queue {record.queue} goes on with {record.offset} after {expected - 1}")
            following[record.queue] = record.offset + 1
    return _few(wrong)


def queues_not_equal(
    records: Iterable[Record], topic: str, queues: Mapping[int, Mapping[int, Entry]], whose: str
) -> list[str]:
    """Each queue has an entry for each of its messages, and it leads there."""
    return _few(
        f"offset {record.offset} of queue {record.queue} at the {whose} leads to {entry}, not {record.place}"
        for record in records
        if record.topic == topic
        and (entry := queues.get(record.queue, {}).get(record.offset)) != (record.place, record.size)
    )


def misnamed(leader: Log, follower: Log, state: str) -> list[str]:
    """A follower calls by its name what its log is to its leader's, and copies only where they agree."""
    actual = relation(leader, follower)
    names = {"COPYING"} if actual is Relation.PART else {"LEADER_BEHIND"}
    if actual is Relation.DIFFERS:
        # Where it has more than the leader, too, it may call it either.
        names = {"DIVERGED"} | (names if follower.end > leader.end else set())
    if state in names:
        return []
    return [f"{actual.value}, and the follower says {state}, not {' or '.join(sorted(names))}"]


def refused_without_reason(states: Iterable[str]) -> list[str]:
    """Where both logs are one history, a follower refuses nothing."""
    return _few(f"the follower refused its leader's log as {state}" for state in states)


def _by_place(records: Iterable[Record], topic: str) -> dict[Place, Record]:
    return {(record.queue, record.offset): record for record in records if record.topic == topic}


def _within(send: Send, alone: Alone) -> bool:
    return send.began_s > alone.began_s + CLOCK_S and send.ended_s < alone.ended_s - CLOCK_S


def _named(send: Send) -> str:
    return f"{send.status} of {send.client} {send.body[:40]!r}, queue {send.queue} offset {send.offset},"


def _few(wrong: Iterable[str]) -> list[str]:
    wrong = list(wrong)
    more = [f"and {len(wrong) - TOLD_MAX} more like it"] if len(wrong) > TOLD_MAX else []
    return wrong[:TOLD_MAX] + more
