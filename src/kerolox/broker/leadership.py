"""Whether this broker leads: takes messages, delivers those that waited, asks about transactions.

What only a leader does is done by parts that are added here. A broker that begins to lead starts them, one
that begins to follow stops them; it may do either at any time and any number of times, and a broker that
starts goes the same way. Nobody else asks for the role.

The order keeps messages from being lost or doubled. To lead: nothing more is copied, half a record at the
end of the log is cut off, what the log holds is in its queues, then each part finds out from there how far
things have come and begins, and only then messages are taken. To follow: no message is taken any more, then
each part ends what it is at, then the store takes nothing but what its leader sends, and the link to it
begins.

Name servers tell a follower where its leader is, or that there is none. Who copies from it, or sends
consumers there, hears of that here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import NamedTuple, Protocol

from kerolox.broker.options import BrokerOptions, BrokerRole
from kerolox.errors import OptionError
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


class LeaderAddress(NamedTuple):
    """Where a follower finds the broker that leads."""

    address: str
    ha_address: str  # where it is copied from; empty when nobody said


class Leadership:
    """Leads or follows. Follows until it is started. ``follower_id`` is its id while it follows."""

    def __init__(self, store: MessageStore, role: BrokerRole, follower_id: int = 0) -> None:
        self.leads = False  # whether messages are taken from clients
        self.leader: LeaderAddress | None = None  # who does, if not this one; None: nobody that is known
        self.on_leader: list[Callable[[LeaderAddress | None], None]] = []  # hears of another one, or of none
        self._follower_id = follower_id
        self._store = store
        self._follows = role is BrokerRole.SLAVE  # at the start
        self._parts: list[Part] = []
        self._copies: Part | None = None
        self._leading: list[Part] = []  # in the order they began
        self._link: Link | None = None
        self._turn = asyncio.Lock()
        store.acks.wait_for_replicas = role is BrokerRole.SYNC_MASTER
        if self._follows:
            store.state.set(Obstacle.FOLLOWER, "this broker is a SLAVE")

    @property
    def id(self) -> int:
        """Which broker of its name this one is."""
        return 0 if self.leads else self._follower_id

    def led_by(self, leader: LeaderAddress | None) -> None:
        """What a name server says: this one leads, or nobody does."""
        if leader == self.leader or self.leads:
            return
        log.info("leader_%s leader=%r", "gone" if leader is None else "found", leader or self.leader)
        self.leader = leader
        for told in self.on_leader:
            told(leader)

    def add(self, *parts: Part) -> None:
        """Add parts. They begin in this order, and end in the opposite one."""
        self._parts += parts

    def copied_by(self, part: Part) -> None:
        """Followers copy by this while this broker leads. It begins before the parts and ends when nothing
        more is stored: who waits for a copy is to hear of it."""
        self._copies = part
        self._parts.insert(0, part)

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
            self.leader = None
            log.info("broker_leads")

    async def follow(self, why: str) -> None:
        """Take no messages from now on: clients are told this reason."""
        async with self._turn:
            if not self.leads:
                return
            log.info("broker_follows reason=%r", why)
            self.leads = False
            await self._end_parts(but=self._copies)
            self._store.state.set(Obstacle.FOLLOWER, why)
            await self._end_parts()
            if self._link is not None:
                await self._link.start()

    async def stop(self) -> None:
        """The broker closes: the parts end, and messages are taken until the store takes none. Until then
        followers copy, too; who closes the broker ends that last."""
        async with self._turn:
            if self._link is not None:
                await self._link.stop()
            await self._end_parts(but=self._copies)

    async def _end_parts(self, but: Part | None = None) -> None:
        while self._leading and self._leading[-1] is not but:
            await self._leading.pop().follow()


def check_role(options: BrokerOptions) -> None:
    """Raises OptionError for a follower that calls itself the leader's number."""
    if options.role is BrokerRole.SLAVE and not options.broker_id:
        raise OptionError("brokerId", 0, "1 or more with brokerRole=SLAVE: Slave's brokerId must be > 0")
