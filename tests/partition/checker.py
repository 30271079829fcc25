"""What a pair promises beside what every group of brokers does. Pure, as all of them are."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from tests.rig.checker import few, first_difference, missing, named
from tests.rig.history import CLOCK_S, Send
from tests.rig.logs import Log, Record

from .history import Alone, PairHistory


class Relation(Enum):
    """How a follower's log stands to its leader's."""

    PART = "the leader's log goes on where the follower's ends"
    AHEAD = "the follower has all the leader has, and more"
    DIFFERS = "the logs differ"


def relation(leader: Log, follower: Log) -> Relation:
    if first_difference(leader, follower) is not None:
        return Relation.DIFFERS
    return Relation.AHEAD if follower.end > leader.end else Relation.PART


def lost(history: PairHistory, records: Iterable[Record], topic: str) -> list[str]:
    """What was acknowledged is in the log. So is what was stored without being acknowledged, unless another
    broker leads since."""
    kept = (send for send in history.sends if send.ok or (send.stored and send.ended_s > history.swapped_s))
    return missing(kept, records, topic)


def acknowledged_alone(history: PairHistory) -> list[str]:
    """Nothing is acknowledged while no follower could confirm it."""
    return few(
        f"{named(send)} was acknowledged while {alone.why}"
        for alone in history.alone
        for send in history.sends
        if send.ok and _within(send, alone)
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
    return few(f"the follower refused its leader's log as {state}" for state in states)


def _within(send: Send, alone: Alone) -> bool:
    return send.began_s > alone.began_s + CLOCK_S and send.ended_s < alone.ended_s - CLOCK_S
