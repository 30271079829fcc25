"""Who gets a vote, who has won, and what a heartbeat says: the tables, row by row."""

from __future__ import annotations

import pytest

from kerolox.protocol.bodies.dledger import BeatRequest, LedgerStatus, VoteRequest, VoteResult
from kerolox.replication.dledger.votes import (
    Beat,
    Cast,
    Outcome,
    Pulse,
    Voter,
    decide_beat,
    decide_vote,
    is_decided,
    judge_beats,
    judge_round,
)

R = VoteResult
PEERS = ("n0", "n1", "n2")


def voter(**changed: object) -> Voter:
    own = Voter("n1", PEERS, term=5, voted_for=None, leader=None, end_index=9, end_term=4)
    return own._replace(**changed)  # type: ignore[arg-type]


def asked(leader: str = "n0", term: int = 5, end_index: int = 9, end_term: int = 4) -> VoteRequest:
    return VoteRequest(leader_id=leader, term=term, ledger_end_index=end_index, ledger_end_term=end_term)


@pytest.mark.parametrize(
    ("own", "request_", "result"),
    [
        (voter(), asked("n7"), R.REJECT_UNKNOWN_LEADER),
        (voter(), asked("n1"), R.REJECT_UNEXPECTED_LEADER),
        (voter(), asked(end_term=3, end_index=100), R.REJECT_EXPIRED_LEDGER_TERM),
        (voter(), asked(end_index=8), R.REJECT_SMALL_LEDGER_END_INDEX),
        (voter(), asked(end_index=8, term=99), R.REJECT_SMALL_LEDGER_END_INDEX),  # cannot raise the term
        (voter(), asked(end_term=5, end_index=0), R.ACCEPT),
        (voter(), asked(term=4), R.REJECT_EXPIRED_VOTE_TERM),
        (voter(voted_for="n2"), asked(), R.REJECT_ALREADY_VOTED),
        (voter(voted_for="n2", leader="n2"), asked(), R.REJECT_ALREADY_HAS_LEADER),
        (voter(voted_for="n0"), asked(), R.ACCEPT),  # its answer was lost
        (voter(), asked(term=6), R.REJECT_TERM_NOT_READY),
        (voter(end_term=6, term=5), asked(end_term=6), R.REJECT_TERM_SMALL_THAN_LEDGER),
        (voter(takes_over=True), asked(), R.REJECT_TAKING_LEADERSHIP),
        (voter(takes_over=True), asked(end_index=10), R.ACCEPT),
        (voter(), asked(), R.ACCEPT),
    ],
)
def test_votes(own: Voter, request_: VoteRequest, result: VoteResult) -> None:
    assert decide_vote(own, request_) is result


def test_a_member_votes_for_itself() -> None:
    assert decide_vote(voter(), asked("n1"), from_self=True) is R.ACCEPT
    assert decide_vote(voter(takes_over=True), asked("n1"), from_self=True) is R.ACCEPT
    assert decide_vote(voter(voted_for="n0"), asked("n1"), from_self=True) is R.REJECT_ALREADY_VOTED


@pytest.mark.parametrize(
    ("cast", "outcome"),
    [
        ([R.ACCEPT, R.ACCEPT, R.REJECT_ALREADY_VOTED], Outcome.WON),
        ([R.ACCEPT, R.UNKNOWN, R.UNKNOWN], Outcome.TOO_FEW),
        ([R.ACCEPT, R.ACCEPT, R.REJECT_ALREADY_HAS_LEADER], Outcome.HAS_LEADER),
        ([R.ACCEPT, R.REJECT_SMALL_LEDGER_END_INDEX, R.UNKNOWN], Outcome.BEHIND),
        ([R.ACCEPT, R.REJECT_EXPIRED_LEDGER_TERM, R.ACCEPT], Outcome.WON),
        ([R.ACCEPT, R.REJECT_TERM_NOT_READY, R.UNKNOWN], Outcome.AGAIN),
        ([R.ACCEPT, R.REJECT_ALREADY_VOTED, R.REJECT_ALREADY_VOTED], Outcome.LOST),
        ([R.ACCEPT, R.REJECT_TAKING_LEADERSHIP, R.REJECT_ALREADY_VOTED], Outcome.LOST),
    ],
)
def test_rounds(cast: list[VoteResult], outcome: Outcome) -> None:
    assert judge_round(5, 2, [Cast(result, 5) for result in cast]) is outcome


def test_a_higher_term_comes_before_everything() -> None:
    cast = [Cast(R.ACCEPT, 5), Cast(R.ACCEPT, 5), Cast(R.REJECT_EXPIRED_VOTE_TERM, 7)]
    assert judge_round(5, 2, cast) is Outcome.HIGHER_TERM
    cast = [Cast(R.ACCEPT, 5), Cast(R.REJECT_ALREADY_VOTED, 7), Cast(R.UNKNOWN, 9)]
    assert judge_round(5, 2, cast) is Outcome.LOST  # those rules say nothing of terms


def test_a_round_is_over_when_it_is_decided() -> None:
    def decided(*results: VoteResult) -> bool:
        return is_decided(2, 3, [Cast(result, 5) for result in results])

    assert not decided(R.ACCEPT)
    assert not decided(R.ACCEPT, R.UNKNOWN)
    assert decided(R.ACCEPT, R.ACCEPT)
    assert decided(R.ACCEPT, R.REJECT_TERM_NOT_READY)
    assert decided(R.REJECT_ALREADY_HAS_LEADER)
    assert decided(R.ACCEPT, R.UNKNOWN, R.UNKNOWN)


@pytest.mark.parametrize(
    ("own", "leader", "term", "beat"),
    [
        (voter(), "n7", 5, Beat(LedgerStatus.UNKNOWN_MEMBER)),
        (voter(), "n1", 5, Beat(LedgerStatus.UNEXPECTED_MEMBER)),
        (voter(), "n0", 4, Beat(LedgerStatus.EXPIRED_TERM)),
        (voter(leader="n0"), "n0", 5, Beat(LedgerStatus.SUCCESS, follow=True)),
        (voter(), "n0", 5, Beat(LedgerStatus.SUCCESS, follow=True)),
        (voter(leader="n2"), "n0", 5, Beat(LedgerStatus.INCONSISTENT_LEADER)),
        (voter(leader="n1"), "n0", 5, Beat(LedgerStatus.INCONSISTENT_LEADER)),
        (voter(), "n0", 6, Beat(LedgerStatus.TERM_NOT_READY, raise_term=True)),
    ],
)
def test_heartbeats(own: Voter, leader: str, term: int, beat: Beat) -> None:
    assert decide_beat(own, BeatRequest(leader_id=leader, term=term)) == beat


@pytest.mark.parametrize(
    ("answers", "pulse"),
    [
        ([(200, -1), (0, -1)], Pulse.FINE),
        ([(200, -1), (403, 6)], Pulse.HIGHER_TERM),
        ([(416, -1), (0, -1)], Pulse.AGAIN),
        ([(409, -1), (0, -1)], Pulse.TWO_LEADERS),
        ([(0, -1), (0, -1)], Pulse.TOO_FEW),
        ([], Pulse.TOO_FEW),
    ],
)
def test_pulses(answers: list[tuple[int, int]], pulse: Pulse) -> None:
    assert judge_beats(5, 2, answers) is pulse


def test_a_leader_alone_is_its_own_majority() -> None:
    assert judge_beats(5, 1, []) is Pulse.FINE
