"""Votes, heartbeats and rounds, as time passes: one loop that does what the member's role asks for.

Whatever changes the term or the vote is written first, one change after the other; then it is so, then it is
answered.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Sequence

from kerolox.clock import Clock
from kerolox.errors import KeroloxError
from kerolox.protocol.bodies.dledger import (
    BeatRequest,
    LedgerAnswer,
    LedgerCode,
    LedgerStatus,
    VoteAnswer,
    VoteRequest,
    VoteResult,
)
from kerolox.replication.dledger.bell import Bell
from kerolox.replication.dledger.leading import Leading
from kerolox.replication.dledger.ledger import Ledger
from kerolox.replication.dledger.member import Member, Role
from kerolox.replication.dledger.network import Network
from kerolox.replication.dledger.push import Pushes
from kerolox.replication.dledger.term_file import Promise
from kerolox.replication.dledger.votes import (
    Cast,
    Outcome,
    Pulse,
    decide_beat,
    decide_vote,
    highest_term,
    is_decided,
    judge_beats,
    judge_round,
)

log = logging.getLogger(__name__)

AT_ONCE_S = 0.02  # between two questions where the answer should be another one soon
LATE_ANSWERS_S = 0.01  # that a leader waits for when a majority has answered its heartbeat
NOT_SAVED_PAUSE_S = 1.0

Save = Callable[[Promise], Awaitable[None]]


class Elections:
    """The member's loop, and its answers to candidates and leaders."""

    def __init__(
        self,
        member: Member,
        ledger: Ledger,
        network: Network,
        pushes: Pushes,
        leading: Leading,
        save: Save,
        clock: Clock,
        chance: random.Random,
    ) -> None:
        self.led_s = 0.0  # since when it leads, or last led
        self._member = member
        self._ledger = ledger
        self._network = network
        self._pushes = pushes
        self._leading = leading
        self._save = save
        self._clock = clock
        self._chance = chance
        self._bell = Bell(clock)
        self._saving = asyncio.Lock()
        self._heard_s = clock.monotonic_s()  # of the leader
        self._next_vote_s = self._heard_s
        self._quorum_s = 0.0  # when a majority last answered the leader
        self._heard_from: dict[str, float] = {}  # by the leader
        self._beats: dict[asyncio.Task[None], None] = {}
        member.on_role.append(self._role_changed)

    # --- answers --------------------------------------------------------------------------------

    async def vote(self, asked: VoteRequest, *, from_self: bool = False) -> VoteAnswer:
        """Raises KeroloxError when the vote could not be written: then there is none."""
        member, ledger = self._member, self._ledger
        async with self._saving:
            result = decide_vote(member.voter(ledger.end_index, ledger.end_term), asked, from_self=from_self)
            if result is VoteResult.ACCEPT and member.voted_for != asked.leader_id:
                promise = Promise(member.term, asked.leader_id)
                await self._save(promise)
                member.promised(promise)
            if result is VoteResult.REJECT_TERM_NOT_READY:
                member.campaign(f"{asked.leader_id} asks for votes in term {asked.term}", asked.term)
            term = ledger.end_term if result is VoteResult.REJECT_TERM_SMALL_THAN_LEDGER else member.term
        self._bell.ring()
        return VoteAnswer(
            group=asked.group,
            leader_id=asked.leader_id,
            local_id=asked.local_id,
            remote_id=asked.remote_id,
            term=term,
            vote_result=result,
        )

    def beat(self, asked: BeatRequest) -> LedgerAnswer:
        member, ledger = self._member, self._ledger
        decided = decide_beat(member.voter(ledger.end_index, ledger.end_term), asked)
        if decided.follow:
            self._heard_s = self._clock.monotonic_s()
            member.follow(asked.leader_id)
        elif decided.raise_term:
            member.campaign(f"{asked.leader_id} leads term {asked.term}", asked.term)
            self._bell.ring()
        expired = decided.status is LedgerStatus.EXPIRED_TERM
        return LedgerAnswer(code=decided.status, term=member.term if expired else -1)

    def heard_lately(self, peer: str) -> bool:
        """Return whether the peer answered this leader's last heartbeats."""
        since_s = self._clock.monotonic_s() - self._heard_from.get(peer, -1e9)
        return since_s < 2 * self._member.settings.heartbeat_ms / 1000

    # --- the loop -------------------------------------------------------------------------------

    async def run(self) -> None:
        while True:
            try:
                role = self._member.role
                if role is Role.CANDIDATE:
                    await self._campaign()
                elif role is Role.FOLLOWER:
                    await self._watch_leader()
                else:
                    await self._lead()
            except KeroloxError as error:
                log.error(
                    "term_not_saved path=currterm error=%r next='look at the disk: this member neither votes "
                    "nor leads until it can be written'",
                    str(error),
                )
                await self._clock.sleep(NOT_SAVED_PAUSE_S)
            except Exception:
                log.exception("election_failed next='tried again: please report it'")
                await self._clock.sleep(NOT_SAVED_PAUSE_S)

    async def close(self) -> None:
        await _cancel(list(self._beats))

    def campaign_soon(self, term: int) -> None:
        """The leader hands over: be a candidate of this term, before others are."""
        settings, member = self._member.settings, self._member
        member.taking_term = term
        member.campaign("the leader hands over", term)
        delay_ms = self._chance.uniform(settings.take_vote_ms_min, settings.take_vote_ms_max)
        self._next_vote_s = self._clock.monotonic_s() + delay_ms / 1000
        self._bell.ring()

    def _role_changed(self) -> None:
        now_s = self._clock.monotonic_s()
        if self._member.is_leader:
            self.led_s = self._quorum_s = now_s
            self._heard_from.clear()
        elif self._member.is_follower:
            self._heard_s = now_s
        else:
            self._next_vote_s = now_s
        self._bell.ring()

    # --- candidate ------------------------------------------------------------------------------

    async def _campaign(self) -> None:
        member = self._member
        now_s = self._clock.monotonic_s()
        if member.must_raise:
            await self._raise_term()
            if member.taking_term != member.term:
                self._vote_in(self._pause_s())
            return
        if self._next_vote_s > now_s:
            await self._bell.wait(self._next_vote_s - now_s)
            return
        await self._pushes.settled()  # a log that is being cut has no end
        await self._leading.settled()
        if member.wants_next_term:
            await self._raise_term()
        if member.is_candidate and not member.must_raise:
            await self._round(member.term)

    async def _raise_term(self) -> None:
        member = self._member
        async with self._saving:
            if member.is_candidate:
                promise = Promise(member.next_term, None)
                await self._save(promise)
                member.promised(promise)

    async def _round(self, term: int) -> None:
        member, settings, ledger = self._member, self._member.settings, self._ledger
        end = ledger.end_index, ledger.end_term

        def request(peer: str) -> VoteRequest:
            return VoteRequest(
                group=settings.group,
                leader_id=member.self_id,
                ledger_end_index=end[0],
                ledger_end_term=end[1],
                local_id=member.self_id,
                remote_id=peer,
                term=term,
            )

        own = await self.vote(request(member.self_id), from_self=True)
        cast = [Cast(own.vote_result, own.term)]
        came = Bell(self._clock)

        async def ask(peer: str) -> None:
            try:
                data = await self._network.call(
                    peer, LedgerCode.VOTE, request(peer).encode(), settings.call_ms / 1000
                )
                answer = VoteAnswer.decode(data)
                cast.append(Cast(answer.vote_result, answer.term))
            except KeroloxError as error:
                log.debug("vote_unanswered peer=%r error=%r", peer, str(error))
                cast.append(Cast(VoteResult.UNKNOWN, -1))
            came.ring()

        tasks = [asyncio.get_running_loop().create_task(ask(peer)) for peer in settings.others]
        until_s = self._clock.monotonic_s() + (settings.heartbeat_ms + self._chance.uniform(0, 1000)) / 1000
        try:
            while not is_decided(settings.quorum, len(settings.peers), cast):
                left_s = until_s - self._clock.monotonic_s()
                if left_s <= 0 or not member.is_candidate or member.term != term:
                    break
                await came.wait(left_s)
        finally:
            await _cancel(tasks)
        if member.is_candidate and member.term == term and not member.must_raise:
            self._conclude(term, cast)

    def _conclude(self, term: int, cast: list[Cast]) -> None:
        member = self._member
        outcome = judge_round(term, member.settings.quorum, cast)
        log.log(
            logging.DEBUG if outcome is Outcome.TOO_FEW else logging.INFO,
            "ledger_round group=%r id=%r term=%d outcome=%s votes=%s",
            member.settings.group, member.self_id, term, outcome.name, [one.result.value for one in cast],
        )  # fmt: skip
        pause_s = self._pause_s()
        if outcome is Outcome.WON:
            member.lead()
        elif outcome is Outcome.HIGHER_TERM:
            member.campaign("a higher term was answered", highest_term(cast))
            self._vote_in(pause_s)
        elif outcome is Outcome.AGAIN:
            self._vote_in(AT_ONCE_S)
        elif outcome is Outcome.HAS_LEADER:
            # Apache's wait six seconds more. To be asked again changes nothing at a member that has a leader,
            # and a member that loses the same leader a moment later can vote at once.
            self._vote_in(pause_s)
        elif outcome is Outcome.BEHIND:
            self._vote_in(pause_s + 1.0)
        else:
            member.wants_next_term = outcome is Outcome.LOST
            self._vote_in(pause_s)
        if outcome not in (Outcome.WON, Outcome.AGAIN) and member.taking_term is not None:
            member.taking_term = None

    def _pause_s(self) -> float:
        settings = self._member.settings
        return self._chance.uniform(settings.vote_ms_min, settings.vote_ms_max) / 1000

    def _vote_in(self, delay_s: float) -> None:
        self._next_vote_s = self._clock.monotonic_s() + delay_s

    # --- follower -------------------------------------------------------------------------------

    async def _watch_leader(self) -> None:
        member = self._member
        left_s = self._heard_s + member.settings.silence_s - self._clock.monotonic_s()
        if left_s > 0:
            await self._bell.wait(left_s)
        else:
            member.campaign(f"nothing heard from {member.leader} for {member.settings.silence_s:g} s")

    # --- leader ---------------------------------------------------------------------------------

    async def _lead(self) -> None:
        """One heartbeat, and the time until the next."""
        member, settings, clock = self._member, self._member.settings, self._clock
        began_s = clock.monotonic_s()
        term = member.term
        answers = await self._beat_all(term)
        if not member.is_leader or member.term != term:
            return
        now_s = clock.monotonic_s()
        pulse = judge_beats(term, settings.quorum, answers)
        if pulse is Pulse.FINE:
            self._quorum_s = began_s
        elif pulse is Pulse.HIGHER_TERM:
            member.campaign("a follower has a higher term", max(data for _, data in answers))
            return
        elif pulse is Pulse.AGAIN:
            await self._bell.wait(AT_ONCE_S)
            return
        elif pulse is Pulse.TWO_LEADERS:
            member.campaign("a member follows another leader of this term")
            return
        if now_s - self._quorum_s > settings.silence_s:
            member.campaign(f"no majority answered for {settings.silence_s:g} s")
            return
        next_s = began_s + settings.heartbeat_ms / 1000
        while member.is_leader and member.term == term and next_s > (now_s := clock.monotonic_s()):
            await self._bell.wait(next_s - now_s)

    async def _beat_all(self, term: int) -> list[tuple[int, int]]:
        """Statuses and terms of those who answered: all, or a majority and those who came a little later."""
        member, settings = self._member, self._member.settings
        answers: list[tuple[int, int]] = []
        came = Bell(self._clock)

        async def ask(peer: str) -> None:
            request = BeatRequest(
                group=settings.group,
                leader_id=member.self_id,
                local_id=member.self_id,
                remote_id=peer,
                term=term,
            )
            try:
                data = await self._network.call(
                    peer, LedgerCode.HEART_BEAT, request.encode(), settings.call_ms / 1000
                )
                answer = LedgerAnswer.decode(data)
            except KeroloxError as error:
                log.debug("heartbeat_unanswered peer=%r error=%r", peer, str(error))
                answers.append((0, -1))
            else:
                if answer.code == LedgerStatus.SUCCESS and member.is_leader and member.term == term:
                    self._heard_from[peer] = self._clock.monotonic_s()
                    self._leading.follows(peer)
                elif answer.code == LedgerStatus.EXPIRED_TERM and answer.term > member.term == term:
                    member.campaign(f"{peer} has a higher term", answer.term)  # it may have answered late
                answers.append((answer.code, answer.term))
            came.ring()

        for peer in settings.others:
            # Not cancelled: who is slow to answer follows all the same. None outlives the second heartbeat.
            task = asyncio.get_running_loop().create_task(ask(peer))
            self._beats[task] = None
            task.add_done_callback(lambda task: self._beats.pop(task, None))
        until_s = self._clock.monotonic_s() + settings.heartbeat_ms / 1000
        had_quorum = False
        while len(answers) < len(settings.others) and member.is_leader and member.term == term:
            now_s = self._clock.monotonic_s()
            if not had_quorum and judge_beats(term, settings.quorum, answers) is Pulse.FINE:
                had_quorum = True
                until_s = min(until_s, now_s + LATE_ANSWERS_S)
            if until_s <= now_s:
                break
            await came.wait(until_s - now_s)
        return list(answers)


async def _cancel(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.gather(*tasks, return_exceptions=True)
