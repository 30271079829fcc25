"""Start of a broker whose settings make it a leader: it does not become a second one, and it takes back what
its followers did meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from kerolox.broker.base import Base
from kerolox.broker.configured.hand_back import HandBack, waits_for_followers
from kerolox.broker.fellows.fellows import Fellows
from kerolox.broker.tables.promotions import Promotions
from kerolox.replication.follower import Follower


class LeaderStart:
    """Steps of the start. ``only_followers`` opens the ports to followers, and to nobody else, in its
    context."""

    def __init__(
        self,
        base: Base,
        promotions: Promotions,
        fellows: Fellows,
        hand_back: HandBack,
        follower: Follower,
        only_followers: Callable[[], AbstractAsyncContextManager[None]],
    ) -> None:
        self._base = base
        self._promotions = promotions
        self._fellows = fellows
        self._hand_back = hand_back
        self._follower = follower
        self._only_followers = only_followers

    async def check(self) -> None:
        """Raise AnotherLeads if another broker of the name leads. Count the start as a promotion if this
        broker followed when it ran last."""
        leadership = self._base.leadership
        if not leadership.begins_as_leader:
            return
        if self._fellows.nameservers:
            await self._fellows.refuse_second_leader(str(self._base.store.root), self._promotions.number)
        if await self._follower.has_followed():
            leadership.took_over()
            await self._promotions.promote((), "it followed when it ran last")
            await self._follower.forget_leader()

    async def lead(self) -> None:
        """Lead or follow, according to the settings. A leader first takes over the progress of its followers
        from the time when it was away; only followers may connect meanwhile."""
        leadership = self._base.leadership
        if leadership.begins_as_leader and self._fellows.nameservers:
            if waits_for_followers(self._base.options):
                await leadership.let_copy()
                async with self._only_followers():
                    await self._hand_back.take()
            else:
                await self._hand_back.take()
        await leadership.start()
