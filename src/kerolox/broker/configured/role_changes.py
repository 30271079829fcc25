"""Role changes of a running broker: promotion of a follower by hand, and demotion of a leader.

A follower leads only if no acknowledged message is lost by it, as far as that can be known: its leader is
gone, it has everything the leader was known to have, and no other follower has more. An operator can accept a
loss explicitly.
"""

from __future__ import annotations

import asyncio
import logging

from kerolox.broker.base import Base
from kerolox.broker.configured.followers_progress import FollowersProgress
from kerolox.broker.fellows.fellows import Fellows
from kerolox.broker.nameservers.room import NameServers
from kerolox.broker.role.settings import RoleChange
from kerolox.broker.tables.promotions import Promotions
from kerolox.errors import Refused, sentences
from kerolox.protocol.codes import ResponseCode
from kerolox.replication.follower import Follower

log = logging.getLogger(__name__)

FORGET_S = 120  # a name server forgets a broker this long after its last registration


class RoleChanges:
    """Checks and steps of a role change. The progress of groups is taken over from the other followers."""

    def __init__(
        self,
        base: Base,
        promotions: Promotions,
        nameservers: NameServers,
        follower: Follower,
        fellows: Fellows,
        progress: FollowersProgress,
    ) -> None:
        self._store = base.store
        self._leadership = base.leadership
        self._promotions = promotions
        self._nameservers = nameservers
        self._follower = follower
        self._fellows = fellows
        self._progress = progress

    async def check(self, to: RoleChange, *, accept_loss: bool) -> None:
        """Raise Refused with the obstacles to this change of role."""
        if not to.leads or self._leadership.leads:
            return
        others = await self._check_alone()
        losses = [*self._own_losses(), *await self._others_ahead(others)]
        if not losses:
            return
        if not accept_loss:
            raise _refused(
                f"messages would be lost: {'; '.join(losses)}",
                "bring the leader or that follower back; or, to accept the loss: kerolox broker "
                "promote --accept-loss",
            )
        log.warning("loss_accepted losses=%r", "; ".join(losses))

    async def take(self, to: RoleChange) -> None:
        """Take the role, and notify the name servers."""
        begins = to.leads and not self._leadership.leads
        if begins:
            others = sorted({address for _, address in await self._fellows.registered() or ()})
            await self._progress.take(others)
            numbers = await asyncio.gather(*[self._fellows.promotion(address) for address in others])
            await self._promotions.promote([one for one in numbers if one is not None], "by an operator")
        await self._leadership.take_role(to)
        if begins:
            await self._follower.forget_leader()
        await self._nameservers.register_role()

    async def _check_alone(self) -> set[tuple[int, str]]:
        """Return the other followers. Raises Refused while a leader is alive, or may be."""
        fellows = self._fellows
        others = await fellows.registered()
        if others is None and fellows.nameservers:
            raise _refused(
                f"none of the name servers {', '.join(fellows.nameservers)} answers, so it is not known "
                "whether another broker leads",
                "start one of them, and try again",
            )
        for id, address in sorted(others or ()):
            if id != 0:
                continue
            if await fellows.leads(address) is None:
                raise _refused(
                    f"{address} is registered as the leader, and does not answer",
                    f"name servers forget it {FORGET_S} s after its last registration; make sure that it "
                    "does not run, and try again",
                )
            raise _refused(
                f"{address} leads and answers", "stop it first: with two leaders messages are lost"
            )
        last = self._follower.leaders_end.note.address
        if last and await fellows.leads(last):
            raise _refused(
                f"{last}, which leads, answers though no name server lists it",
                "stop it first: with two leaders messages are lost",
            )
        return others or set()

    def _own_losses(self) -> list[str]:
        note, end = self._follower.leaders_end.note, self._store.log.max_offset
        losses: list[str] = []
        if not note.address and not note.refused:
            losses.append(f"this follower has never heard how far its leader was; its own log ends at {end}")
        if note.end > end:
            losses.append(
                f"{note.end - end} bytes: the log of the leader {note.address} ended at {note.end} when it "
                f"was heard of last, and this follower's ends at {end}"
            )
        if note.refused:
            losses.append(f"what the leader had behind the place where the logs part, for {note.refused}")
        return losses

    async def _others_ahead(self, others: set[tuple[int, str]]) -> list[str]:
        own = self._store.log.max_offset
        losses: list[str] = []
        for id, address in sorted(others):
            end = await self._fellows.end(address)
            if end is None:
                losses.append(f"perhaps some: follower {id} at {address} does not say how much it has")
            elif end > own:
                losses.append(
                    f"{end - own} bytes: the log of follower {id} at {address} ends at {end}, and this one's "
                    f"at {own}; promote that one"
                )
        return losses


def _refused(what: str, next_step: str) -> Refused:
    return Refused(ResponseCode.SYSTEM_ERROR, sentences(f"this follower is not promoted: {what}", next_step))
