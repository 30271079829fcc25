"""Decisions about votes, rounds and heartbeats, as in Apache's DLedger 0.3.2.

The order of the rules matters: the first match decides. A partitioned member keeps its term, because a round
with too few answers never raises it; so its return does not disturb the group.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from enum import Enum
from typing import NamedTuple

from kerolox.protocol.bodies.dledger import BeatRequest, LedgerStatus, VoteRequest, VoteResult


class Voter(NamedTuple):
    """The state of a member that a vote depends on."""

    self_id: str
    peers: Collection[str]
    term: int
    voted_for: str | None
    leader: str | None
    end_index: int
    end_term: int
    takes_over: bool = False  # the leader asked it to


def decide_vote(own: Voter, asked: VoteRequest, *, from_self: bool = False) -> VoteResult:
    """The answer to a candidate. ACCEPT must be on the disk before it is said."""
    candidate = asked.leader_id
    if candidate not in own.peers:
        return VoteResult.REJECT_UNKNOWN_LEADER
    if candidate == own.self_id and not from_self:
        return VoteResult.REJECT_UNEXPECTED_LEADER
    # Before any look at the term: a candidate that lacks entries cannot raise it.
    if asked.ledger_end_term < own.end_term:
        return VoteResult.REJECT_EXPIRED_LEDGER_TERM
    if asked.ledger_end_term == own.end_term and asked.ledger_end_index < own.end_index:
        return VoteResult.REJECT_SMALL_LEDGER_END_INDEX
    if asked.term < own.term:
        return VoteResult.REJECT_EXPIRED_VOTE_TERM
    if asked.term == own.term:
        if own.voted_for not in (None, candidate):
            has_leader = own.leader is not None
            return VoteResult.REJECT_ALREADY_HAS_LEADER if has_leader else VoteResult.REJECT_ALREADY_VOTED
    else:
        return VoteResult.REJECT_TERM_NOT_READY  # it gets the vote when it asks again
    if asked.term < own.end_term:
        return VoteResult.REJECT_TERM_SMALL_THAN_LEDGER
    if (
        own.takes_over
        and not from_self
        and asked.ledger_end_term == own.end_term
        and own.end_index >= asked.ledger_end_index
    ):
        return VoteResult.REJECT_TAKING_LEADERSHIP
    return VoteResult.ACCEPT


class Cast(NamedTuple):
    """One member's answer in a round, and the term it their_term."""

    result: VoteResult
    term: int


class Outcome(Enum):
    """A candidate's next step after a round."""

    HIGHER_TERM = "one has a higher term: on to that one"
    HAS_LEADER = "one has a leader: wait for it"
    TOO_FEW = "too few answered: the same term again"
    BEHIND = "too many have more entries: let them ask"
    WON = "it leads"
    AGAIN = "some were not ready: ask at once again"
    LOST = "the next term"


_BIGGER = (VoteResult.REJECT_EXPIRED_LEDGER_TERM, VoteResult.REJECT_SMALL_LEDGER_END_INDEX)
_HIGHER = (VoteResult.REJECT_EXPIRED_VOTE_TERM, VoteResult.REJECT_TERM_SMALL_THAN_LEDGER)


def judge_round(term: int, quorum: int, cast: Collection[Cast]) -> Outcome:
    """The outcome of a round in this term."""
    results = [one.result for one in cast]
    valid = len(results) - results.count(VoteResult.UNKNOWN)
    accepted = results.count(VoteResult.ACCEPT)
    if highest_term(cast) > term:
        return Outcome.HIGHER_TERM
    if VoteResult.REJECT_ALREADY_HAS_LEADER in results:
        return Outcome.HAS_LEADER
    if valid < quorum:
        return Outcome.TOO_FEW
    if valid - sum(result in _BIGGER for result in results) < quorum:
        return Outcome.BEHIND
    if accepted >= quorum:
        return Outcome.WON
    if accepted + results.count(VoteResult.REJECT_TERM_NOT_READY) >= quorum:
        return Outcome.AGAIN
    return Outcome.LOST


def highest_term(cast: Iterable[Cast]) -> int:
    """Of those members that refused because theirs is higher; -1 when none did."""
    return max((one.term for one in cast if one.result in _HIGHER), default=-1)


def is_decided(quorum: int, members: int, cast: Collection[Cast]) -> bool:
    """Return whether further answers cannot improve the outcome."""
    results = [one.result for one in cast]
    accepted = results.count(VoteResult.ACCEPT)
    ready = accepted + results.count(VoteResult.REJECT_TERM_NOT_READY)
    return (
        len(results) >= members
        or VoteResult.REJECT_ALREADY_HAS_LEADER in results
        or accepted >= quorum
        or ready >= quorum
    )


class Beat(NamedTuple):
    """The answer to a heartbeat, and its consequences for the member."""

    status: LedgerStatus
    follow: bool = False  # the sender leads this term
    raise_term: bool = False  # to the sender's


def decide_beat(own: Voter, asked: BeatRequest) -> Beat:
    if asked.leader_id not in own.peers:
        return Beat(LedgerStatus.UNKNOWN_MEMBER)
    if asked.leader_id == own.self_id:
        return Beat(LedgerStatus.UNEXPECTED_MEMBER)
    if asked.term < own.term:
        return Beat(LedgerStatus.EXPIRED_TERM)
    if asked.term > own.term:
        return Beat(LedgerStatus.TERM_NOT_READY, raise_term=True)
    if own.leader is None or own.leader == asked.leader_id:
        return Beat(LedgerStatus.SUCCESS, follow=True)
    return Beat(LedgerStatus.INCONSISTENT_LEADER)


class Pulse(Enum):
    """A leader's next step after a round of heartbeats."""

    FINE = "a majority follows"
    HIGHER_TERM = "one has a higher term"
    AGAIN = "a majority follows as soon as it is ready: ask at once again"
    TWO_LEADERS = "one follows another leader of this term"
    TOO_FEW = "too few answered"


def judge_beats(term: int, quorum: int, answers: Collection[tuple[int, int]]) -> Pulse:
    """Of (status, term) of the others; the leader itself counts."""
    statuses = [status for status, _ in answers]
    if any(status == LedgerStatus.EXPIRED_TERM and their_term > term for status, their_term in answers):
        return Pulse.HIGHER_TERM
    fine = 1 + statuses.count(LedgerStatus.SUCCESS)
    if fine >= quorum:
        return Pulse.FINE
    if fine + statuses.count(LedgerStatus.TERM_NOT_READY) >= quorum:
        return Pulse.AGAIN
    if LedgerStatus.INCONSISTENT_LEADER in statuses:
        return Pulse.TWO_LEADERS
    return Pulse.TOO_FEW
