"""Decides from what clients were told and from the files of stores whether a promise was broken.

Every function is pure and returns what is wrong, a sentence each: nothing, if all is well.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from .history import Send
from .logs import Entry, Log, Record

TOLD_MAX = 5  # of one kind; the rest is counted

Place = tuple[int, int]  # queue and offset in it


def first_difference(one: Log, other: Log) -> int | None:
    """The first place where two logs have other bytes, of those both have."""
    begin, end = max(one.begin, other.begin), min(one.end, other.end)
    ours, theirs = (log.data[begin - log.begin : max(begin, end) - log.begin] for log in (one, other))
    if ours == theirs:
        return None
    return begin + next(at for at, (a, b) in enumerate(zip(ours, theirs, strict=True)) if a != b)


def not_equal(one: Log, other: Log) -> list[str]:
    """Both end at the same place, and are the same from where the later one begins."""
    wrong = []
    if one.end != other.end:
        wrong.append(f"one log ends at {one.end} and the other at {other.end}")
    if (place := first_difference(one, other)) is not None:
        wrong.append(f"the logs differ at {place}, silently")
    return wrong


def missing(sends: Iterable[Send], records: Iterable[Record], topic: str) -> list[str]:
    """These are in the log: this body, at the place that was told."""
    found = _by_place(records, topic)
    wrong = []
    for send in sends:
        record = found.get((send.queue, send.offset))
        if record is None:
            wrong.append(f"{named(send)} is missing")
        elif record.body != send.body:
            wrong.append(f"{named(send)} is another message: {record.body[:40]!r}")
        elif record.place != send.place:
            wrong.append(f"{named(send)} lies at {record.place}, and {send.place} was told")
    return few(wrong)


def acknowledged_twice(sends: Iterable[Send]) -> list[str]:
    """No two acknowledged messages have one place."""
    seen: dict[Place, Send] = {}
    return few(
        f"{named(send)} has the place of {named(first)}"
        for send in sends
        if send.ok and (first := seen.setdefault((send.queue, send.offset), send)) is not send
    )


def invented(sends: Iterable[Send], records: Iterable[Record], topic: str) -> list[str]:
    """Every message in the log was sent by somebody."""
    sent = {send.body for send in sends}
    return few(
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
    return few(wrong)


def queues_not_equal(
    records: Iterable[Record], topic: str, queues: Mapping[int, Mapping[int, Entry]], whose: str
) -> list[str]:
    """Each queue has an entry for each of its messages, and it leads there."""
    return few(
        f"offset {record.offset} of queue {record.queue} at the {whose} leads to {entry}, not {record.place}"
        for record in records
        if record.topic == topic
        and (entry := queues.get(record.queue, {}).get(record.offset)) != (record.place, record.size)
    )


def _by_place(records: Iterable[Record], topic: str) -> dict[Place, Record]:
    return {(record.queue, record.offset): record for record in records if record.topic == topic}


def named(send: Send) -> str:
    return f"{send.status} of {send.client} {send.body[:40]!r}, queue {send.queue} offset {send.offset},"


def few(wrong: Iterable[str]) -> list[str]:
    wrong = list(wrong)
    more = [f"and {len(wrong) - TOLD_MAX} more like it"] if len(wrong) > TOLD_MAX else []
    return wrong[:TOLD_MAX] + more
