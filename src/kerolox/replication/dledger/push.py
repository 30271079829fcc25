"""A follower's processing of pushes from its leader.

Entries arrive singly or in batches, and out of order after a repetition. They are appended strictly in order;
entries that arrive too early are parked. All entries of one pass are written together.

Questions (COMPARE, TRUNCATE, COMMIT) are processed one at a time, because they may wait for the disk;
meanwhile entries are parked. Every request is answered, with the end of this log.

Apache's leaders commit entries of earlier terms by counting replicas, which is unsafe (commit.py). So a
kerolox follower accepts the leader's committed index only once it has an entry of the leader's own term:
entries shown to readers are never truncated. A leader that requests such a truncation has lost acknowledged
entries and is rejected with that reason.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

from msgspec import UNSET

from kerolox.clock import Clock, TimerHandle
from kerolox.errors import KeroloxError, ProtocolError
from kerolox.observers import Observers
from kerolox.protocol.bodies.dledger import LedgerStatus, PushAnswer, PushRequest, PushType
from kerolox.protocol.ledger_entry import LedgerEntry
from kerolox.replication.dledger.ledger import Ledger, OutOfLedger
from kerolox.replication.dledger.member import Member

log = logging.getLogger(__name__)

PARKED_MAX = 4096  # requests; leaders have no more than 1000 open
PARKED_BYTES_MAX = 64 << 20
QUESTIONS_MAX = 64
GAP_S_MAX = 1.0  # parked for longer: what is missing before it was lost

OnAnswer = Callable[[PushAnswer], None]
Status = LedgerStatus


class Parked(NamedTuple):
    """A request whose entries wait for their turn, or for the disk."""

    request: PushRequest
    entries: list[LedgerEntry]
    on_answer: OnAnswer
    since_s: float

    @property
    def last(self) -> int:
        return self.entries[-1].index

    @property
    def size(self) -> int:
        return sum(entry.size for entry in self.entries)


class Pushes:
    """The follower's side of replication."""

    def __init__(self, member: Member, ledger: Ledger, clock: Clock) -> None:
        self.cuts_refused = 0
        # hear that entries came
        self.on_grown: Observers[[]] = Observers("entries appended")
        self._member = member
        self._ledger = ledger
        self._clock = clock
        self._parked: dict[int, Parked] = {}  # by the first index
        self._parked_bytes = 0
        self._written: deque[Parked] = deque()  # in the log, not yet safe: answered when they are
        self._questions: deque[tuple[PushRequest, OnAnswer]] = deque()
        self._worker: asyncio.Task[None] | None = None
        self._drain_soon = False
        self._look: TimerHandle | None = None
        self._own_from: int | None = None  # the first entry of the current term that was taken
        self._own_term = -1
        self._closed = False
        member.on_role.append(self._forget)
        ledger.on_safe.append(self._answer_safe)

    @property
    def is_busy(self) -> bool:
        """True while the log is being changed."""
        return self._worker is not None

    async def settled(self) -> None:
        """Wait until it is not."""
        while self._worker is not None:
            await asyncio.wait([self._worker])

    async def close(self) -> None:
        self._closed = True
        self._forget()
        if self._look is not None:
            self._look.cancel()
        await self.settled()

    # --- what comes ---------------------------------------------------------------------------

    def take(self, request: PushRequest, on_answer: OnAnswer) -> None:
        """One request of a leader. ``on_answer`` is called once, now or later."""
        refused = self._refuses(request)
        if refused is not None:
            self._answer(request, on_answer, refused)
        elif request.type is PushType.APPEND:
            self._park(request, on_answer)
        elif len(self._questions) >= QUESTIONS_MAX:
            self._answer(request, on_answer, Status.PUSH_REQUEST_IS_FULL)
        else:
            if request.type is not PushType.COMMIT:
                self._refuse_parked(Status.INCONSISTENT_STATE)
            self._questions.append((request, on_answer))
            if self._worker is None:
                self._worker = asyncio.get_running_loop().create_task(self._work())

    def _refuses(self, request: PushRequest) -> Status | None:
        """Why it is not taken at all."""
        member = self._member
        if self._closed:
            return Status.NOT_FOLLOWER
        if (
            member.is_candidate
            and member.leader is None
            and not member.must_raise
            and request.term == member.term
            and request.leader_id in member.settings.others
        ):
            member.follow(request.leader_id)  # only who leads this term pushes in it
        if request.term > member.term or not member.is_follower:
            return Status.NOT_FOLLOWER  # a heartbeat comes, and makes it one
        if request.term != member.term or request.leader_id != member.leader:
            return Status.INCONSISTENT_STATE
        return None

    # --- entries ------------------------------------------------------------------------------

    def _park(self, request: PushRequest, on_answer: OnAnswer) -> None:
        try:
            entries = request.entries
        except ProtocolError as error:
            log.warning("push_refused leader=%r error=%r", request.leader_id, str(error))
            self._answer(request, on_answer, Status.UNEXPECTED_ARGUMENT)
            return
        if not entries or not is_run(entries):
            self._answer(request, on_answer, Status.UNEXPECTED_ARGUMENT)
            return
        parked = Parked(request, entries, on_answer, self._clock.monotonic_s())
        first = entries[0].index
        if first in self._parked:
            self._answer(request, on_answer, Status.REPEATED_PUSH, entries)
        elif len(self._parked) >= PARKED_MAX or self._parked_bytes + parked.size > PARKED_BYTES_MAX:
            self._answer(request, on_answer, Status.PUSH_REQUEST_IS_FULL, entries)
        else:
            self._parked[first] = parked
            self._parked_bytes += parked.size
            if not self._drain_soon and self._worker is None:
                # In the next turn of the loop: what came together is written together.
                self._drain_soon = True
                asyncio.get_running_loop().call_soon(self._drain)

    def _unpark(self, first: int) -> Parked:
        parked = self._parked.pop(first)
        self._parked_bytes -= parked.size
        return parked

    def _drain(self) -> None:
        """Write what continues the log; look at the rest again later."""
        self._drain_soon = False
        if self._worker is not None or not self._parked:
            return
        ledger = self._ledger
        run: list[Parked] = []
        next_index = ledger.end_index + 1
        while next_index in self._parked:
            run.append(self._unpark(next_index))
            next_index = run[-1].last + 1
        if run:
            self._append(run)
        known = [first for first in self._parked if first <= ledger.end_index]
        if known:
            self._compare_known([self._unpark(first) for first in known])
        self._look_later()

    def _append(self, run: list[Parked]) -> None:
        entries = [entry for parked in run for entry in parked.entries]
        try:
            self._ledger.append_follower(entries)
        except OutOfLedger as error:
            log.warning("push_does_not_fit index=%d error=%r", entries[0].index, str(error))
            for parked in run:
                self._answer(parked.request, parked.on_answer, Status.INCONSISTENT_STATE, parked.entries)
            return
        except KeroloxError as error:
            log.error("push_not_kept index=%d error=%r next='look at the disk'", entries[0].index, str(error))
            for parked in run:
                self._answer(parked.request, parked.on_answer, Status.DISK_ERROR, parked.entries)
            return
        self._note_own(entries)
        self._commit(run[-1].request)
        self._written += run
        self._answer_safe()
        self.on_grown()

    def _answer_safe(self) -> None:
        safe = self._ledger.safe_index
        while self._written and self._written[0].last <= safe:
            parked = self._written.popleft()
            self._answer(parked.request, parked.on_answer, Status.SUCCESS, parked.entries)

    def _compare_known(self, known: list[Parked]) -> None:
        """They came before, and their answer was lost: on_answer again, if they are the same."""
        for parked in known:
            self._questions.append((parked.request, parked.on_answer))
        if self._worker is None:
            self._worker = asyncio.get_running_loop().create_task(self._work())

    # --- questions ----------------------------------------------------------------------------

    async def _work(self) -> None:
        try:
            while self._questions:
                request, on_answer = self._questions.popleft()
                status = Status.INTERNAL_ERROR
                try:
                    status = await self._settle(request)
                except ProtocolError as error:
                    log.warning("push_refused leader=%r error=%r", request.leader_id, str(error))
                    status = Status.UNEXPECTED_ARGUMENT
                except OutOfLedger as error:
                    log.info("push_inconsistent type=%s error=%r", request.type.value, str(error))
                    status = Status.INCONSISTENT_STATE
                except KeroloxError as error:
                    log.error(
                        "push_failed type=%s error=%r next='look at the disk; the leader asks again'",
                        request.type.value, str(error),
                    )  # fmt: skip
                    status = Status.DISK_ERROR
                except Exception:
                    log.exception("push_failed type=%s next='please report it'", request.type.value)
                finally:
                    self._answer(request, on_answer, status, _entries_of(request))
        finally:
            self._worker = None
            self._drain()

    async def _settle(self, request: PushRequest) -> Status:
        """The answer to a question, once what it asks for is done."""
        if self._refuses(request) is not None:
            return Status.INCONSISTENT_STATE
        if request.type is PushType.COMMIT:
            await self._find_own(request)
            self._commit(request)
            return Status.SUCCESS
        entries = request.entries
        if not entries:
            return Status.UNEXPECTED_ARGUMENT
        if request.type is PushType.TRUNCATE:
            return await self._truncate(request, entries[0])
        for entry in entries:
            if not await self._has(entry):
                return Status.INCONSISTENT_STATE
        if self._refuses(request) is not None:
            return Status.INCONSISTENT_STATE
        if entries[-1].index > self._ledger.safe_index:
            return Status.PUSH_REQUEST_IS_FULL  # it is here, but not on the disk: asked again
        return Status.SUCCESS

    async def _has(self, entry: LedgerEntry) -> bool:
        ledger = self._ledger
        if not ledger.begin_index <= entry.index <= ledger.end_index:
            return False
        (own,) = await ledger.read(entry.index, 1, entry.size)
        return own == entry

    async def _truncate(self, request: PushRequest, entry: LedgerEntry) -> Status:
        ledger = self._ledger
        same = await self._has(entry)
        if self._refuses(request) is not None:
            return Status.INCONSISTENT_STATE
        committed = ledger.committed_index
        is_gap = entry.index > ledger.end_index  # it was away for so long that the leader has nothing of it
        if not is_gap and (entry.index < committed or (entry.index == committed and not same)):
            self.cuts_refused += 1
            log.error(
                "cut_refused leader=%r term=%d index=%d committed=%d next='that leader lacks entries that "
                "were acknowledged: stop it, and let a member lead that has them'",
                request.leader_id, request.term, entry.index, committed,
            )  # fmt: skip
            return Status.INCONSISTENT_STATE
        if same and entry.index == ledger.end_index:
            return Status.SUCCESS
        log.log(
            logging.WARNING if ledger.end_index >= entry.index else logging.INFO,
            "ledger_cut leader=%r term=%d to_index=%d was=%d..%d same=%s",
            request.leader_id, request.term, entry.index, ledger.begin_index, ledger.end_index, same,
        )  # fmt: skip
        await ledger.truncate(entry)
        if not self._member.is_follower or request.term != self._member.term:
            return Status.INCONSISTENT_STATE
        self._note_own([entry])
        self._commit(request)
        self.on_grown()
        return Status.SUCCESS

    # --- how far it is committed ----------------------------------------------------------------

    def _note_own(self, entries: list[LedgerEntry]) -> None:
        """Remember where entries of the leader's own term begin."""
        term = self._member.term
        if self._own_term != term:
            self._own_term, self._own_from = term, None
        if self._own_from is None and entries[-1].term == term:
            self._own_from = next(entry.index for entry in entries if entry.term == term)

    async def _find_own(self, request: PushRequest) -> None:
        """Find the first entry of the leader's term among entries appended before this member's restart."""
        ledger = self._ledger
        index = min(request.commit_index, ledger.end_index)
        known = self._own_term == request.term and self._own_from is not None
        if known or index <= ledger.committed_index or ledger.end_term != request.term:
            return
        (entry,) = await ledger.read(index, 1, 1)
        if entry.term == self._member.term == request.term:
            self._own_term, self._own_from = entry.term, entry.index

    def _commit(self, request: PushRequest) -> None:
        ledger = self._ledger
        index = min(request.commit_index, ledger.end_index)
        is_certain = self._own_term == request.term and self._own_from is not None and index >= self._own_from
        if is_certain and index > ledger.committed_index:
            ledger.commit(index)

    # --- answers ------------------------------------------------------------------------------

    def _answer(
        self,
        request: PushRequest,
        on_answer: OnAnswer,
        status: Status,
        entries: list[LedgerEntry] | None = None,
    ) -> None:
        if entries is None:
            entries = _entries_of(request)
        answer = PushAnswer(
            begin_index=self._ledger.begin_index,
            code=status,
            count=len(entries),
            end_index=self._ledger.end_index,
            group=request.group,
            index=entries[0].index if entries else UNSET,
            term=request.term,
        )
        on_answer(answer)

    def _refuse_parked(self, status: Status) -> None:
        parked, self._parked, self._parked_bytes = self._parked, {}, 0
        for one in parked.values():
            self._answer(one.request, one.on_answer, status, one.entries)

    def _forget(self) -> None:
        """The role changed: what waits is not of this leader."""
        self._refuse_parked(Status.INCONSISTENT_STATE)
        written, self._written = self._written, deque()
        for one in written:
            self._answer(one.request, one.on_answer, Status.INCONSISTENT_STATE, one.entries)

    def _look_later(self) -> None:
        if self._parked and self._look is None and not self._closed:
            self._look = self._clock.call_later(GAP_S_MAX, self._look_at_gap)

    def _look_at_gap(self) -> None:
        """The entries before the first parked one were lost: make the leader compare again."""
        self._look = None
        self._drain()
        if self._parked and self._worker is None:
            first = min(self._parked)
            parked = self._parked[first]
            if self._clock.monotonic_s() - parked.since_s >= GAP_S_MAX:
                self._unpark(first)
                self._answer(parked.request, parked.on_answer, Status.INCONSISTENT_STATE, parked.entries)
        self._look_later()


def is_run(entries: list[LedgerEntry]) -> bool:
    """Return whether the entries are contiguous."""
    return all(
        after.index == before.index + 1 and after.pos >= before.end and after.term >= before.term
        for before, after in pairwise(entries)
    )


def _entries_of(request: PushRequest) -> list[LedgerEntry]:
    try:
        return request.entries
    except ProtocolError:
        return []
