"""Stories of whole groups in virtual time: first leader, fail-over, hand-over, a lost disk, figure 8."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from kerolox.protocol.bodies.dledger import (
    AppendAnswer,
    AppendRequest,
    BeatRequest,
    GetAnswer,
    GetRequest,
    LedgerCode,
    LedgerStatus,
    MemberRequest,
    MetadataAnswer,
    PushAnswer,
    TransferRequest,
    VoteRequest,
)
from kerolox.protocol.ledger_entry import LedgerEntry
from kerolox.replication.dledger.group import NoPull
from kerolox.replication.dledger.ledger import OutOfLedger
from kerolox.replication.dledger.member import Role
from kerolox.replication.dledger.term_file import Promise

from .memory_ledger import BARRIER, MemoryLedger
from .simulation import SimNode, Simulation, run_virtual, unforeseen_errors

Story = Callable[["Group"], Awaitable[None]]


class Group(Simulation):
    """A group and questions about it."""

    def tell(self, story: Story) -> None:
        async def run() -> None:
            with unforeseen_errors(self.unforeseen):
                await self.start()
                await story(self)
                self.check_alive()
                await self.stop()

        run_virtual(run())

    async def leader(self, *, but: str = "") -> SimNode:
        """Wait for one that a majority follows."""
        found: list[SimNode] = []

        def there() -> bool:
            found[:] = [
                node
                for node in self.nodes.values()
                if node.group is not None and node.group.role is Role.LEADER and node.name != but
            ]
            return len(found) == 1 and self.following(found[0]) > len(self.peers) // 2

        await self.until(there)
        return found[0]

    def following(self, leader: SimNode) -> int:
        return sum(
            node.group is not None and node.group.leader == leader.name for node in self.nodes.values()
        )

    async def until(self, ready: Callable[[], bool], timeout_s: float = 30.0) -> float:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        while not ready():
            assert loop.time() < began_s + timeout_s, [str(node.group) for node in self.nodes.values()]
            await asyncio.sleep(0.01)
        return loop.time() - began_s

    async def send_some(self, node: SimNode, count: int = 10) -> None:
        before = len(self.acked)
        for _ in range(count):
            self.send(node)
        await self.until(lambda: len(self.acked) == before + count)


def test_one_leads_and_the_others_have_what_it_acknowledged() -> None:
    async def story(group: Group) -> None:
        leader = await group.leader()
        await group.send_some(leader, 3000)
        await group.until(lambda: len({node.ledger.committed_index for node in group.nodes.values()}) == 1)
        group.check_end()

    Group(1, 3).tell(story)


def test_a_group_of_one_leads_by_its_own_vote() -> None:
    async def story(group: Group) -> None:
        leader = await group.leader()
        await group.send_some(leader, 10)
        await leader.kill()
        leader.start()
        leader = await group.leader()
        assert leader.promise.term == 1  # not twice in one term
        await group.send_some(leader, 10)

    Group(1, 1).tell(story)


def test_of_two_members_both_are_needed() -> None:
    async def story(group: Group) -> None:
        leader = await group.leader()
        (other,) = [node for node in group.nodes.values() if node is not leader]
        await group.send_some(leader)
        await other.kill()
        before = len(group.acked)
        group.send(leader)
        await asyncio.sleep(5)
        assert len(group.acked) == before
        await group.until(lambda: leader.group is not None and leader.group.role is Role.CANDIDATE)
        other.start()
        await group.send_some(await group.leader())

    Group(1, 2).tell(story)


def test_another_one_leads_when_the_leader_is_gone() -> None:
    async def story(group: Group) -> None:
        first = await group.leader()
        await group.send_some(first)
        await first.kill()
        began_s = asyncio.get_running_loop().time()
        second = await group.leader(but=first.name)
        assert asyncio.get_running_loop().time() - began_s < 12
        await group.send_some(second)
        first.start()
        await group.until(lambda: first.ledger.committed_index == second.ledger.committed_index)
        assert first.group is not None
        assert first.group.role is Role.FOLLOWER
        group.check_end()

    Group(3, 3).tell(story)


def test_a_leader_without_a_majority_acknowledges_nothing_and_gives_up() -> None:
    async def story(group: Group) -> None:
        leader = await group.leader()
        await group.send_some(leader)
        others = [name for name in group.peers if name != leader.name]
        group.weather.cut = {(leader.name, name) for name in others} | {
            (name, leader.name) for name in others
        }
        before = len(group.acked)
        group.send(leader)
        new = await group.leader(but=leader.name)
        assert leader.group is not None
        await group.until(lambda: leader.group is not None and leader.group.role is not Role.LEADER)
        assert len(group.acked) == before
        assert leader.group.member.term < new.promise.term  # cut off, it keeps its term
        await group.send_some(new)
        group.heal()
        await group.until(lambda: leader.ledger.entries == new.ledger.entries)
        assert new.group is not None
        assert new.group.role is Role.LEADER  # the return disturbed nobody

    Group(4, 3).tell(story)


def test_a_member_whose_disk_was_lost_gets_everything_again() -> None:
    async def story(group: Group) -> None:
        leader = await group.leader()
        await group.send_some(leader, 50)
        follower = next(node for node in group.nodes.values() if node is not leader)
        await follower.kill()
        leader.ledger.drop_before(20)  # retention
        follower.ledger = MemoryLedger(follower.clock)
        follower.ledger.on_committed = follower._committed
        follower.start()
        await group.send_some(leader, 5)
        await group.until(lambda: follower.ledger.entries == leader.ledger.entries)
        assert follower.ledger.begin_index == 20

    Group(5, 3).tell(story)


def test_leadership_is_handed_over() -> None:
    async def story(group: Group) -> None:
        leader = await group.leader()
        await group.send_some(leader, 100)
        to = next(node for node in group.nodes.values() if node is not leader)
        assert leader.group is not None
        assert to.group is not None

        def asked(**changed: object) -> bytes:
            said: dict[str, object] = {
                "group": "g",
                "remote_id": leader.name,
                "transfer_id": leader.name,
                "transferee_id": to.name,
                "term": leader.promise.term,
                **changed,
            }
            return TransferRequest(**said).encode()  # type: ignore[arg-type]

        code = LedgerCode.LEADERSHIP_TRANSFER
        for wrong, status in (
            (asked(term=0), LedgerStatus.INCONSISTENT_TERM),
            (asked(transferee_id=leader.name), LedgerStatus.UNKNOWN_MEMBER),
            (asked(transferee_id="n9"), LedgerStatus.UNKNOWN_MEMBER),
            (asked(transfer_id="n9"), LedgerStatus.UNEXPECTED_ARGUMENT),
        ):
            assert (await leader.group.answer(code, wrong)).code == status  # type: ignore[attr-defined]
        answer = await leader.group.answer(code, asked())
        assert answer.code == LedgerStatus.SUCCESS  # type: ignore[attr-defined]
        assert to.group.role is Role.LEADER
        assert answer.term == to.promise.term  # type: ignore[attr-defined]
        assert await group.leader() is to
        await group.send_some(to)
        assert leader.ledger.paused is None

    Group(6, 3).tell(story)


def test_a_leader_that_stops_lets_another_one_lead_first() -> None:
    async def story(group: Group) -> None:
        leader = await group.leader()
        await group.send_some(leader, 100)
        assert leader.group is not None
        await leader.group.transfer.leave()
        await leader.kill()
        began_s = asyncio.get_running_loop().time()
        await group.send_some(await group.leader(but=leader.name))
        assert asyncio.get_running_loop().time() - began_s < 1
        other = await group.leader()
        for node in group.nodes.values():
            if node is not other:
                await node.kill()
        assert other.group is not None
        await asyncio.sleep(5)
        await other.group.transfer.leave()  # to nobody: it just goes

    Group(11, 3).tell(story)


def test_a_barrier_that_cannot_be_written_is_tried_again() -> None:
    async def story(group: Group) -> None:
        leader = await group.leader()
        await group.send_some(leader, 20)
        failed: list[str] = []

        def full(node: SimNode) -> None:
            append = node.ledger.append_barrier

            def attempt() -> None:
                if len(failed) < 3:
                    failed.append(node.name)
                    raise OutOfLedger("the disk is full")
                append()

            node.ledger.append_barrier = attempt  # type: ignore[method-assign]

        for node in group.nodes.values():
            full(node)
        group.send(leader)
        await leader.kill()
        new = await group.leader(but=leader.name)
        await group.until(lambda: new.ledger.committed_index == new.ledger.end_index)
        assert failed == [new.name] * 3
        assert new.ledger.entries[-1].body == BARRIER

    Group(12, 3).tell(story)


def test_a_leader_goes_on_when_nobody_takes_over() -> None:
    async def story(group: Group) -> None:
        leader = await group.leader()
        await group.send_some(leader, 100)
        to = next(node for node in group.nodes.values() if node is not leader)
        await to.kill()
        assert leader.group is not None
        asked = TransferRequest(
            group="g",
            remote_id=leader.name,
            transfer_id=leader.name,
            transferee_id=to.name,
            term=leader.promise.term,
        )
        answer = await leader.group.answer(LedgerCode.LEADERSHIP_TRANSFER, asked.encode())
        assert answer.code == LedgerStatus.TAKE_LEADERSHIP_FAILED  # type: ignore[attr-defined]
        await group.send_some(leader)
        await asyncio.sleep(8)
        answer = await leader.group.answer(LedgerCode.LEADERSHIP_TRANSFER, asked.encode())
        assert answer.code == LedgerStatus.FALL_BEHIND_TOO_MUCH  # type: ignore[attr-defined]

    Group(7, 3).tell(story)


@pytest.mark.parametrize("seed", range(5))
def test_a_preferred_member_comes_to_lead(seed: int) -> None:
    async def story(group: Group) -> None:
        leader = await group.leader()
        await group.send_some(leader)
        preferred = group.nodes["n2"]
        await group.until(lambda: preferred.group is not None and preferred.group.role is Role.LEADER)
        await group.send_some(preferred)
        await preferred.kill()
        other = await group.leader(but="n2")
        await group.send_some(other)
        preferred.start()
        await group.until(lambda: preferred.group is not None and preferred.group.role is Role.LEADER)
        await group.send_some(preferred)

    Group(seed, 3, preferred=("n2",)).tell(story)


def test_figure_eight() -> None:
    """An entry of an earlier term is on a majority, and yet not committed: a later leader may not have it.

    n0 led term 2 and wrote entry 1 to itself; n2 led term 3 and wrote another entry 1 to itself. n0 leads
    term 4 and copies its entry 1 to n1. Apache's leader would show it to readers now. Then n2 leads.
    """

    async def story(group: Group) -> None:
        await group.stop()
        first = LedgerEntry(0, 1, 0, b"first")
        two, three = LedgerEntry(1, 2, first.end, b"two"), LedgerEntry(1, 3, first.end, b"three")
        for name, entries in (("n0", [first, two]), ("n1", [first]), ("n2", [first, three])):
            ledger = group.nodes[name].ledger
            ledger.entries = list(entries)
            ledger.committed_index = 0
            ledger.append_barrier = lambda: None  # type: ignore[method-assign]
        group.nodes["n0"].promise = Promise(3, None)
        group.nodes["n1"].promise = Promise(3, "n2")
        group.nodes["n2"].promise = Promise(3, "n2")
        group.log = {0: first}
        for name in ("n0", "n1"):
            group.nodes[name].start()
        assert await group.leader() is group.nodes["n0"]
        await group.until(lambda: group.nodes["n1"].ledger.entries == [first, two])
        await asyncio.sleep(3)
        assert [group.nodes[name].ledger.committed_index for name in ("n0", "n1")] == [0, 0]
        await group.nodes["n0"].kill()
        group.nodes["n2"].start()
        assert await group.leader() is group.nodes["n2"]
        await group.send_some(group.nodes["n2"], 1)
        assert group.log[1] == three
        group.nodes["n0"].start()
        await group.until(lambda: group.nodes["n0"].ledger.entries == group.nodes["n2"].ledger.entries)

    Group(8, 3).tell(story)


def test_a_new_leader_commits_what_it_found_by_a_barrier() -> None:
    """What the old leader acknowledged is seen although nobody sends anything."""

    async def story(group: Group) -> None:
        leader = await group.leader()
        await group.send_some(leader, 20)
        group.send(leader)
        await leader.kill()
        new = await group.leader(but=leader.name)
        await group.until(lambda: new.ledger.committed_index == new.ledger.end_index)
        assert new.ledger.entries[-1].body == BARRIER
        assert all(group.log[index].body == body for body, index in group.acked.items())

    Group(9, 3).tell(story)


def test_requests_for_others_and_of_tools() -> None:
    async def story(group: Group) -> None:
        leader = await group.leader()
        member = leader.group
        assert member is not None

        async def ask(code: LedgerCode, asked: object) -> object:
            return await member.answer(code, asked.encode())  # type: ignore[attr-defined]

        for request, code in (
            (VoteRequest, LedgerCode.VOTE),
            (BeatRequest, LedgerCode.HEART_BEAT),
            (MemberRequest, LedgerCode.METADATA),
        ):
            answer = await ask(code, request(group="g", remote_id="n9"))
            assert answer.code == LedgerStatus.UNKNOWN_MEMBER  # type: ignore[attr-defined]
            answer = await ask(code, request(group="h", remote_id=leader.name))
            assert answer.code == LedgerStatus.UNKNOWN_GROUP  # type: ignore[attr-defined]
        pushed: list[PushAnswer] = []
        member.push(b'{"group":"h","remoteId":"%b"}' % leader.name.encode(), pushed.append)
        assert [answer.code for answer in pushed] == [LedgerStatus.UNKNOWN_GROUP]
        with pytest.raises(NoPull):
            await ask(LedgerCode.PULL, MemberRequest())

        told = await ask(LedgerCode.METADATA, MemberRequest(group="g", remote_id=leader.name))
        assert told == MetadataAnswer(group="g", leader_id=leader.name, peers=group.peers)
        kept = await ask(LedgerCode.APPEND, AppendRequest(group="g", remote_id=leader.name, body=b"tool"))
        assert isinstance(kept, AppendAnswer)
        assert (kept.code, kept.index, kept.term) == (200, leader.ledger.end_index, leader.promise.term)
        got = await ask(LedgerCode.GET, GetRequest(group="g", remote_id=leader.name, begin_index=kept.index))
        assert isinstance(got, GetAnswer)
        assert [entry.body for entry in got.entries] == [b"tool"]
        none = await ask(LedgerCode.GET, GetRequest(group="g", remote_id=leader.name, begin_index=99))
        assert none.code == LedgerStatus.INDEX_OUT_OF_RANGE  # type: ignore[attr-defined]

        other = next(node for node in group.nodes.values() if node is not leader)
        assert other.group is not None
        for code, asked in (
            (LedgerCode.APPEND, AppendRequest(group="g", remote_id=other.name, body=b"tool")),
            (LedgerCode.GET, GetRequest(group="g", remote_id=other.name)),
        ):
            refused = await other.group.answer(code, asked.encode())
            assert refused.code == LedgerStatus.NOT_LEADER  # type: ignore[attr-defined]
            assert refused.leader_id == leader.name  # type: ignore[attr-defined]

        group.weather.cut = {(a, b) for a in group.peers for b in group.peers if a != b}
        late = await ask(LedgerCode.APPEND, AppendRequest(group="g", remote_id=leader.name, body=b"late"))
        assert late.code == LedgerStatus.WAIT_QUORUM_ACK_TIMEOUT  # type: ignore[attr-defined]

    Group(10, 3).tell(story)
