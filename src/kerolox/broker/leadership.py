"""Whether this broker leads: takes messages, delivers those that waited, asks about transactions.

What only a leader does is done by parts that are added here. A broker that begins to lead starts them, one
that begins to follow stops them; it may do either at any time and any number of times, and a broker that
starts goes the same way. Nobody else asks for the role.

The order keeps messages from being lost or doubled. To lead: nothing more is copied, half a record at the
end of the log is cut off, what the log holds is in its queues, then each part finds out from there how far
things have come and begins, and only then messages are taken. To follow: no message is taken any more, then
each part ends what it is at, then the store takes nothing but what its leader sends, and the link to it
begins.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

from kerolox.broker.options import BrokerRole
from kerolox.store.message_store import MessageStore
from kerolox.store.state import Obstacle

log = logging.getLogger(__name__)


class Part(Protocol):
    """Does what only a leader does."""

    async def lead(self) -> None:
        """Find out how far this part's work has come, and go on from there. The store can be written."""

    async def follow(self) -> None:
        """Begin nothing new, and return when all that was begun is over. The store can still be written."""


class Link(Protocol):
    """Copies from the leader, while this broker follows."""

    async def start(self) -> None: ...

    async def stop(self) -> None:
        """Return when nothing more will be appended."""


class Leadership:
    """Leads or follows. Follows until it is started."""

    def __init__(self, store: MessageStore, role: BrokerRole) -> None:
        self.leads = False  # whether messages are taken from clients
        self._store = store
        self._follows = role is BrokerRole.SLAVE  # at the start
        self._parts: list[Part] = []
        self._leading: list[Part] = []  # in the order they began
        self._link: Link | None = None
        self._turn = asyncio.Lock()
        if self._follows:
            store.state.set(Obstacle.FOLLOWER, "this broker is a SLAVE")

    def add(self, *parts: Part) -> None:
        """Add parts. They begin in this order, and end in the opposite one."""
        self._parts += parts

    def follow_by(self, link: Link) -> None:
        """While this broker follows, it copies by this."""
        self._link = link

    async def start(self) -> None:
        """Lead or follow, as the role in the options says."""
        if not self._follows:
            await self.lead()
        elif self._link is not None:
            await self._link.start()

    async def lead(self) -> None:
        async with self._turn:
            if self.leads:
                return
            store = self._store
            if self._link is not None:
                await self._link.stop()
            if store.log.whole_end < store.log.max_offset:
                # The old leader's last record did not come to its end: nothing could be found behind it.
                await store.truncate(store.log.whole_end)
            if store.progress.flushed < store.progress.appended:
                await store.flusher.flush_all()  # which lets all of it into its queues
            store.log.renew_cursors()
            store.state.clear(Obstacle.FOLLOWER)
            try:
                for part in self._parts:
                    self._leading.append(part)
                    await part.lead()
            except BaseException as error:
                await self._end_parts()
                store.state.set(Obstacle.FOLLOWER, f"this broker could not lead: {error}")
                if self._link is not None:
                    await self._link.start()
                raise
            self.leads = True
            log.info("broker_leads")

    async def follow(self, why: str) -> None:
        """Take no messages from now on: clients are told this reason."""
        async with self._turn:
            if not self.leads:
                return
            log.info("broker_follows reason=%r", why)
            self.leads = False
            await self._end_parts()
            self._store.state.set(Obstacle.FOLLOWER, why)
            if self._link is not None:
                await self._link.start()

    async def stop(self) -> None:
        """The broker closes: the parts end, and messages are taken until the store takes none."""
        async with self._turn:
            if self._link is not None:
                await self._link.stop()
            await self._end_parts()

    async def _end_parts(self) -> None:
        while self._leading:
            await self._leading.pop().follow()
