"""The follower's side: order, gaps, repeats, cuts, bounds. Everything is answered, and says how far."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from kerolox.protocol.bodies.dledger import PushAnswer, PushedEntry, PushRequest, PushType
from kerolox.protocol.ledger_entry import LedgerEntry
from kerolox.replication.dledger import push as push_module
from kerolox.replication.dledger.member import Member
from kerolox.replication.dledger.push import Pushes
from kerolox.replication.dledger.settings import GroupSettings
from kerolox.replication.dledger.term_file import Promise
from kerolox.testing.clock import ManualClock

from .memory_ledger import MemoryLedger

SETTINGS = GroupSettings("g", "n1", {"n0": "a:1", "n1": "b:1", "n2": "c:1"})


def entry(index: int, term: int = 3, body: bytes = b"") -> LedgerEntry:
    return LedgerEntry(index, term, index * 50, body or b"%02d" % index)


class Follower:
    """A follower of n0 in term 3, and the leader's requests."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.ledger = MemoryLedger(self.clock)
        self.member = Member(SETTINGS, Promise(3, "n0"))
        self.pushes = Pushes(self.member, self.ledger, self.clock)
        self.member.follow("n0")

    def push(self, *entries: LedgerEntry, **changed: Any) -> list[PushAnswer]:
        """Send; the answer is in the list when there is one."""
        answers: list[PushAnswer] = []
        pushed = [PushedEntry.of(entry) for entry in entries]
        request = PushRequest(
            group="g", leader_id="n0", remote_id="n1", term=3, batch=len(pushed) > 1, batch_entry=pushed
        )
        self.pushes.take(msgspec.structs.replace(request, **changed), answers.append)
        return answers

    async def settle(self, ready: Callable[[], object] = lambda: True) -> None:
        await self.clock.advance(0.05)
        await self.pushes.settled()
        for _ in range(20):
            await asyncio.sleep(0)
        assert ready()

    async def ask(self, *entries: LedgerEntry, **changed: Any) -> PushAnswer:
        answers = self.push(*entries, **changed)
        await self.settle(lambda: answers)
        (answer,) = answers
        return answer


@pytest.fixture
async def follower() -> Follower:
    return Follower()


async def filled(follower: Follower, count: int = 5, term: int = 3) -> None:
    answer = await follower.ask(*[entry(index, term) for index in range(count)])
    assert (answer.code, answer.index, answer.count, answer.end_index) == (200, 0, count, count - 1)


async def test_entries_are_taken_in_order_and_once(follower: Follower) -> None:
    second, first = follower.push(entry(1)), follower.push(entry(0))
    again = follower.push(entry(1))
    assert [answer.code for answer in again] == [413]
    await follower.settle()
    assert [(answer.code, answer.index, answer.count) for answer in first + second] == [
        (200, 0, 1),
        (200, 1, 1),
    ]
    assert [one.index for one in follower.ledger.entries] == [0, 1]
    assert second[0].end_index == 1
    assert second[0].begin_index == 0


async def test_what_is_there_already_is_confirmed_if_it_is_the_same(follower: Follower) -> None:
    await filled(follower)
    assert (await follower.ask(entry(2))).code == 200
    assert (await follower.ask(entry(2), entry(3))).code == 200
    assert (await follower.ask(entry(2, body=b"xx"))).code == 406
    assert (await follower.ask(LedgerEntry(2, 3, 101, b"02"))).code == 406  # the same at another place
    assert follower.ledger.end_index == 4


async def test_a_gap_is_told_after_a_second(follower: Follower) -> None:
    await filled(follower)
    early, later = follower.push(entry(7)), follower.push(entry(8))
    await follower.settle()
    assert not early
    await follower.clock.advance(1.1)
    assert [(answer.code, answer.end_index) for answer in early] == [(406, 4)]
    await follower.clock.advance(1.1)
    assert [answer.code for answer in later] == [406]


async def test_commits_follow_the_leader_but_not_beyond_the_log(follower: Follower) -> None:
    await filled(follower)
    await follower.ask(entry(5), commit_index=3)
    assert follower.ledger.committed_index == 3
    answer = await follower.ask(type=PushType.COMMIT, commit_index=99)
    assert (answer.code, answer.index) == (200, msgspec.UNSET)
    assert follower.ledger.committed_index == 5
    await follower.ask(type=PushType.COMMIT, commit_index=2)
    assert follower.ledger.committed_index == 5


async def test_comparing(follower: Follower) -> None:
    assert (await follower.ask(entry(0), type=PushType.COMPARE)).code == 406  # there is none
    await filled(follower)
    assert (await follower.ask(entry(4), type=PushType.COMPARE)).code == 200
    answer = await follower.ask(entry(4, term=2), type=PushType.COMPARE)
    assert (answer.code, answer.begin_index, answer.end_index, answer.index) == (406, 0, 4, 4)
    assert (await follower.ask(entry(9), type=PushType.COMPARE)).code == 406


async def test_a_question_drops_what_is_parked(follower: Follower) -> None:
    await filled(follower)
    parked = follower.push(entry(7))
    await follower.settle()
    await follower.ask(entry(4), type=PushType.COMPARE)
    assert [answer.code for answer in parked] == [406]


async def test_truncating(follower: Follower) -> None:
    await filled(follower, term=2)
    answer = await follower.ask(entry(2, term=2), type=PushType.TRUNCATE)
    assert (answer.code, answer.end_index) == (200, 2)
    other = entry(2, term=3, body=b"other")
    assert (await follower.ask(other, type=PushType.TRUNCATE)).end_index == 2
    assert follower.ledger.entries[-1] == other
    far = LedgerEntry(40, 3, 4096, b"far")  # the leader has nothing older
    assert (await follower.ask(far, type=PushType.TRUNCATE)).code == 200
    assert (follower.ledger.begin_index, follower.ledger.end_index) == (40, 40)


async def test_what_is_committed_for_certain_is_not_cut(follower: Follower) -> None:
    await filled(follower)
    await follower.ask(type=PushType.COMMIT, commit_index=3)
    assert follower.ledger.committed_index == 3
    assert (await follower.ask(entry(3), type=PushType.TRUNCATE)).code == 200
    assert follower.ledger.end_index == 3
    assert (await follower.ask(entry(3, body=b"xx"), type=PushType.TRUNCATE)).code == 406
    assert (await follower.ask(entry(2), type=PushType.TRUNCATE)).code == 406
    assert follower.ledger.end_index == 3
    assert follower.pushes.cuts_refused == 2


async def test_a_commit_of_entries_of_earlier_terms_is_not_believed(follower: Follower) -> None:
    """An Apache leader counts them, and may be wrong (Raft's figure 8): they may still be cut."""
    await filled(follower, term=2)
    await follower.ask(type=PushType.COMMIT, commit_index=4)
    assert follower.ledger.committed_index == -1
    other = entry(4, term=3, body=b"other")
    assert (await follower.ask(other, type=PushType.TRUNCATE)).code == 200
    assert (await follower.ask(type=PushType.COMMIT, commit_index=3)).code == 200
    assert follower.ledger.committed_index == -1
    assert (await follower.ask(type=PushType.COMMIT, commit_index=4)).code == 200
    assert follower.ledger.committed_index == 4


async def test_a_follower_that_was_started_anew_believes_commits_of_its_term(follower: Follower) -> None:
    await filled(follower)
    follower.ledger.restart()
    follower.pushes = Pushes(follower.member, follower.ledger, follower.clock)
    await follower.ask(type=PushType.COMMIT, commit_index=3)
    assert follower.ledger.committed_index == 3


@pytest.mark.parametrize("kind", list(PushType))
async def test_who_does_not_lead_is_refused(follower: Follower, kind: PushType) -> None:
    await filled(follower)
    assert (await follower.ask(entry(5), type=kind, term=2)).code == 406
    assert (await follower.ask(entry(5), type=kind, leader_id="n2")).code == 406
    assert (await follower.ask(entry(5), type=kind, term=4)).code == 405
    follower.member.campaign("silence")
    follower.member.leader = None
    assert (await follower.ask(entry(5), type=kind, term=4)).code == 405
    assert follower.ledger.end_index == 4


async def test_a_candidate_follows_who_pushes_in_its_term(follower: Follower) -> None:
    follower.member.campaign("silence")
    assert (await follower.ask(entry(0))).code == 200
    assert follower.member.leader == "n0"
    assert follower.member.is_follower


async def test_entries_that_make_no_sense_are_refused(follower: Follower) -> None:
    wrong = msgspec.structs.replace(PushedEntry.of(entry(0)), size=7)
    for kind in (PushType.APPEND, PushType.COMPARE, PushType.TRUNCATE):
        assert (await follower.ask(type=kind, batch_entry=[wrong])).code == 411
        assert (await follower.ask(type=kind)).code == 411
    assert (await follower.ask(entry(0), entry(2))).code == 411  # no run
    assert (await follower.ask(LedgerEntry(0, 3, 1000, b"elsewhere"))).code == 406
    assert follower.ledger.end_index == -1


async def test_what_is_parked_has_a_bound(follower: Follower, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(push_module, "PARKED_MAX", 2)
    monkeypatch.setattr(push_module, "QUESTIONS_MAX", 2)
    assert [follower.push(entry(index)) for index in (7, 8)] == [[], []]
    assert [answer.code for answer in follower.push(entry(9))] == [421]
    assert [follower.push(type=PushType.COMMIT) for _ in range(2)] == [[], []]
    assert [answer.code for answer in follower.push(type=PushType.COMMIT)] == [421]


async def test_what_waits_is_answered_when_the_role_changes(follower: Follower) -> None:
    await filled(follower)
    parked = follower.push(entry(9))
    await follower.settle()
    follower.member.campaign("silence")
    assert [answer.code for answer in parked] == [406]


async def test_nothing_is_confirmed_before_it_is_safe(
    follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under synchronous flush a follower says that it has an entry when its disk has it."""
    safe = [-1]
    monkeypatch.setattr(MemoryLedger, "safe_index", property(lambda self: safe[0]))
    answers = follower.push(entry(0)) + follower.push(entry(1))
    first, second = follower.push(entry(2)), follower.push(entry(3))
    await follower.settle()
    assert follower.ledger.end_index == 3
    assert not answers + first + second
    safe[0] = 2
    follower.ledger.on_safe()
    assert [answer.code for answer in first] == [200]
    assert not second
    assert (await follower.ask(entry(3))).code == 421  # it is here, but not safe: asked again
