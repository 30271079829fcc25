"""What brokers under controllers promise beside what every group of brokers does. Pure, as all of them are:
each function returns what is wrong, a sentence each."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from tests.rig.checker import few, named
from tests.rig.history import CLOCK_S, Send
from tests.rig.loads import JavaLoad
from tests.rig.logs import Record

from .history import Commit, Read

JAVA = JavaLoad.client


class Epoch(NamedTuple):
    """From where on a log was written under one leader."""

    number: int
    start: int


class Election(NamedTuple):
    """What a controller said: whom it chose."""

    group: str
    epoch: int
    id: int
    by: str


def twice_in_log(sends: Iterable[Send], records: Iterable[Record], topic: str) -> list[str]:
    """What was sent once is in the log once, or not at all. Java's client tries again by itself."""
    once = {send.body for send in sends if send.client != JAVA}
    seen: dict[bytes, Record] = {}
    return few(
        f"{record.body[:40]!r} is at {first.place} and at {record.place}"
        for record in records
        if record.topic == topic
        and record.body in once
        and (first := seen.setdefault(record.body, record)) is not record
    )


def out_of_order(sends: Iterable[Send]) -> list[str]:
    """What was sent after another one was acknowledged lies behind it in its queue."""
    wrong = []
    ok = [send for send in sends if send.ok]
    for queue in {send.queue for send in ok}:
        own = [send for send in ok if send.queue == queue]
        ended = sorted(own, key=lambda one: one.ended_s)
        highest: Send | None = None
        next_ended = 0
        for send in sorted(own, key=lambda one: one.began_s):
            while ended[next_ended].ended_s < send.began_s - CLOCK_S:
                before = ended[next_ended]
                highest = before if highest is None or before.offset > highest.offset else highest
                next_ended += 1
            if highest is not None and highest.offset >= send.offset:
                wrong.append(f"{named(send)} was sent after {named(highest)} was acknowledged")
    return few(wrong)


def two_leaders(epochs: Sequence[Epoch], records: Iterable[Record], sends: Iterable[Send]) -> list[str]:
    """In one epoch one broker writes, and only that one acknowledges."""
    wrong = []
    if [one.number for one in epochs] != sorted({one.number for one in epochs}):
        wrong.append(f"the epochs do not go up: {epochs}")
    starts = [one.start for one in epochs]
    leaders: dict[int, str] = {}

    def of(place: int) -> int:
        return epochs[at - 1].number if (at := bisect_right(starts, place)) else 0

    for record in records:
        leader = leaders.setdefault(of(record.place), record.host)
        if record.host != leader:
            wrong.append(
                f"epoch {of(record.place)} has messages of {leader} and, at {record.place}, of {record.host}"
            )
    wrong += [
        f"{named(send)} was acknowledged by {send.host} in epoch {epoch} of {leaders[epoch]}"
        for send in sends
        if send.ok and send.host != leaders.get(epoch := of(send.place), send.host)
    ]
    return few(wrong)


def elected_twice(elections: Iterable[Election]) -> list[str]:
    """Of each epoch all controllers say the same."""
    seen: dict[tuple[str, int], Election] = {}
    return few(
        f"epoch {one.epoch} of {one.group} is {first.id}'s, says {first.by}, and {one.id}'s, says {one.by}"
        for one in elections
        if (first := seen.setdefault((one.group, one.epoch), one)).id != one.id
    )


def read_what_is_not_there(reads: Iterable[Read], records: Iterable[Record], topic: str) -> list[str]:
    """Nobody gets to see what may yet be cut off: what was read is in the log at the end, at its place."""
    found = {(record.queue, record.offset): record.body for record in records if record.topic == topic}
    return few(
        f"queue {read.queue} offset {read.offset} was read as {read.body[:40]!r}, and is {is_now!r}"
        for read in reads
        if (is_now := found.get((read.queue, read.offset))) != read.body
    )


def skipped(reads: Iterable[Read]) -> list[str]:
    """A reader may get messages again, but none is left out."""
    following: dict[int, int] = {}
    wrong = []
    for read in reads:
        expected = following.setdefault(read.queue, 0)
        if read.offset > expected:
            wrong.append(f"queue {read.queue} was read on from {read.offset} after {expected - 1}")
        following[read.queue] = max(expected, read.offset + 1)
    return few(wrong)


def unread(reads: Iterable[Read], records: Iterable[Record], topic: str) -> list[str]:
    """At the end everything was read."""
    read = {(one.queue, one.offset) for one in reads}
    return few(
        f"nobody was given {record.body[:40]!r}, queue {record.queue} offset {record.offset}"
        for record in records
        if record.topic == topic and (record.queue, record.offset) not in read
    )


def committed_beyond(commits: Iterable[Commit], ends: Mapping[int, int]) -> list[str]:
    """No progress that a broker has saved lies behind the end of its queue."""
    return few(
        f"progress {one.offset} was saved for queue {one.queue}, which ends at {ends.get(one.queue, 0)}"
        for one in commits
        if one.offset > ends.get(one.queue, 0)
    )


def offsets_beyond(whose: str, offsets: Mapping[int, int], ends: Mapping[int, int]) -> list[str]:
    """Neither does any that a broker has."""
    return few(
        f"{whose} has progress {offset} for queue {queue}, which ends at {ends.get(queue, 0)}"
        for queue, offset in offsets.items()
        if offset > ends.get(queue, 0)
    )


def queue_ends(records: Iterable[Record], topic: str) -> dict[int, int]:
    """Where each queue of a log goes on."""
    ends: dict[int, int] = {}
    for record in records:
        if record.topic == topic:
            ends[record.queue] = max(ends.get(record.queue, 0), record.offset + 1)
    return ends


def epochs_differ(by_broker: Mapping[str, Sequence[Epoch]]) -> list[str]:
    """Logs that are equal have been written under the same leaders: as far as two know of an epoch, it began
    at the same place."""
    seen: dict[int, tuple[int, str]] = {}
    return few(
        f"epoch {epoch.number} begins at {epoch.start} at {name}, and at {first[0]} at {first[1]}"
        for name, epochs in by_broker.items()
        for epoch in epochs
        if (first := seen.setdefault(epoch.number, (epoch.start, name)))[0] != epoch.start
    )
