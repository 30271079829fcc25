"""A member of a DLedger group: its parts, and its answers.

It knows nothing of sockets and files: requests come as bytes, others are reached by a network that is given,
and the term is kept by a function that is given. A simulator runs hundreds of them in one process.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable

from msgspec import UNSET

from kerolox.clock import SYSTEM_CLOCK, Clock
from kerolox.errors import KeroloxError
from kerolox.protocol.bodies.dledger import (
    AppendAnswer,
    AppendRequest,
    BeatRequest,
    GetAnswer,
    GetRequest,
    LedgerAnswer,
    LedgerCode,
    LedgerMessage,
    LedgerStatus,
    MemberRequest,
    MetadataAnswer,
    PushAnswer,
    PushedEntry,
    PushRequest,
    TransferRequest,
    VoteRequest,
)
from kerolox.replication.dledger.elections import Elections, Save
from kerolox.replication.dledger.leading import Leading
from kerolox.replication.dledger.ledger import Ledger
from kerolox.replication.dledger.member import Member, Role
from kerolox.replication.dledger.network import Network
from kerolox.replication.dledger.push import Pushes
from kerolox.replication.dledger.settings import GroupSettings
from kerolox.replication.dledger.term_file import Promise
from kerolox.replication.dledger.transfer import Transfer

log = logging.getLogger(__name__)

Status = LedgerStatus


class NoPull(KeroloxError):
    """51003 has a number and no meaning, in Apache's members as well."""

    def __init__(self) -> None:
        super().__init__("PULL is not supported: members push")


class LedgerGroup:
    """This member, among the others."""

    def __init__(
        self,
        settings: GroupSettings,
        ledger: Ledger,
        network: Network,
        promise: Promise,
        save: Save,
        *,
        clock: Clock = SYSTEM_CLOCK,
        chance: random.Random | None = None,
    ) -> None:
        self.settings = settings
        self.ledger = ledger
        self.member = Member(settings, promise)
        self.pushes = Pushes(self.member, ledger, clock)
        self.leading = Leading(self.member, ledger, network, clock)
        self.elections = Elections(
            self.member,
            ledger,
            network,
            self.pushes,
            self.leading,
            save,
            clock,
            chance or random.Random(),
        )
        self.transfer = Transfer(
            self.member, ledger, network, self.pushes, self.leading, self.elections, clock
        )
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def role(self) -> Role:
        return self.member.role

    @property
    def leader(self) -> str | None:
        return self.member.leader

    def start(self) -> None:
        """Vote, follow or lead from now on."""
        loop = asyncio.get_running_loop()
        self._tasks.append(loop.create_task(self.elections.run()))
        if self.settings.preferred:
            self._tasks.append(loop.create_task(self.transfer.run_preferred()))

    async def close(self) -> None:
        """Say nothing more. The log is left as it is."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
        await self.elections.close()
        await self.pushes.close()
        await self.leading.close()

    # --- requests -------------------------------------------------------------------------------

    def push(self, body: bytes, on_answer: Callable[[PushAnswer], None]) -> None:
        """51004. Raises ProtocolError."""
        request = PushRequest.decode(body)
        refused = self._not_for_us(request.group, request.remote_id)
        if refused is not None:
            on_answer(PushAnswer(code=refused, group=request.group, term=request.term))
        else:
            self.pushes.take(request, on_answer)

    def beat(self, body: bytes) -> LedgerMessage:
        """51002. Raises ProtocolError."""
        asked = BeatRequest.decode(body)
        refused = self._not_for_us(asked.group, asked.remote_id)
        return self.elections.beat(asked) if refused is None else LedgerAnswer(code=refused)

    async def answer(self, code: int, body: bytes) -> LedgerMessage:
        """Any request but a push. Raises KeroloxError."""
        if code == LedgerCode.HEART_BEAT:
            return self.beat(body)
        if code == LedgerCode.PULL:
            raise NoPull
        asked = _REQUESTS[LedgerCode(code)].decode(body)
        refused = self._not_for_us(asked.group, asked.remote_id)
        if refused is not None:
            return LedgerAnswer(code=refused)
        if isinstance(asked, VoteRequest):
            return await self.elections.vote(asked)
        if isinstance(asked, TransferRequest):
            return await self.transfer.handle(asked)
        if isinstance(asked, AppendRequest):
            return await self._append(asked)
        if isinstance(asked, GetRequest):
            return await self._get(asked)
        return MetadataAnswer(
            group=self.settings.group, leader_id=self.leader or UNSET, peers=dict(self.settings.peers)
        )

    def _not_for_us(self, group: str, to: object) -> Status | None:
        if to != self.settings.self_id:
            return Status.UNKNOWN_MEMBER
        return None if group == self.settings.group else Status.UNKNOWN_GROUP

    # --- tools ----------------------------------------------------------------------------------

    async def _append(self, asked: AppendRequest) -> LedgerMessage:
        leader = self.leader or UNSET
        if not self.member.is_leader:
            return AppendAnswer(code=Status.NOT_LEADER, group=asked.group, leader_id=leader)
        done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        try:
            entry = self.ledger.append_leader(
                asked.body, lambda how: None if done.done() else done.set_result(how)
            )
        except KeroloxError as error:
            log.info("append_refused error=%r", str(error))
            return AppendAnswer(code=Status.UNEXPECTED_ARGUMENT, group=asked.group, leader_id=leader)
        is_safe = await done
        if is_safe:
            status = Status.SUCCESS
        else:
            same = self.member.is_leader and self.member.term == entry.term
            status = Status.WAIT_QUORUM_ACK_TIMEOUT if same else Status.TERM_CHANGED
        return AppendAnswer(
            code=status,
            group=asked.group,
            index=entry.index,
            leader_id=leader,
            pos=entry.pos,
            term=entry.term,
        )

    async def _get(self, asked: GetRequest) -> LedgerMessage:
        leader = self.leader or UNSET
        ledger = self.ledger
        if not self.member.is_leader:
            return GetAnswer(code=Status.NOT_LEADER, group=asked.group, leader_id=leader)
        if not ledger.begin_index <= asked.begin_index <= ledger.committed_index:
            return GetAnswer(code=Status.INDEX_OUT_OF_RANGE, group=asked.group, leader_id=leader)
        entries = await ledger.read(asked.begin_index, 1, 1)
        return GetAnswer(entries=[PushedEntry.of(entry) for entry in entries], group=asked.group)


_REQUESTS: dict[
    LedgerCode,
    type[MemberRequest] | type[VoteRequest] | type[TransferRequest] | type[AppendRequest] | type[GetRequest],
] = {
    LedgerCode.METADATA: MemberRequest,
    LedgerCode.APPEND: AppendRequest,
    LedgerCode.GET: GetRequest,
    LedgerCode.VOTE: VoteRequest,
    LedgerCode.LEADERSHIP_TRANSFER: TransferRequest,
}
