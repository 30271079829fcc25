"""The role of this broker: kept here, and changed only here.

:class:`Leadership` holds one :class:`~kerolox.broker.role.value.Role`. The work of a leader is done by parts
that are added here. A broker that begins to lead starts them; a broker that begins to follow stops them. It
may do either at any time and any number of times, and a broker that starts takes the same path. Options give
the role at the start; after that every module asks the leadership.

The order prevents lost and duplicate messages. To lead: replication stops, an incomplete record at the end of
the log is truncated, the log is dispatched to its queues, each part finds its progress from there and begins,
and only then messages are accepted. To follow: no more messages are accepted, waiting senders learn that
their messages are not confirmed, each part finishes its current work, the store accepts only replicated
records, and the link to the leader starts.

The role is true after a part has failed, too. A part that cannot begin leaves the broker a follower. A part
that fails as it ends is logged by name, and the other parts end as well.

Name servers or the controller report a follower's leader, or that none exists. Replication hears it first,
then the redirection of consumers and the copies of tables. A leader that returns is announced before it is
registered: replication begins with it, and everything else waits until it is reported.

A follower may act for a leader that is gone. It serves consumers as a leader does. Only parts that can store
messages elsewhere run. It still accepts no messages, and its log does not change.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace

from kerolox.broker.options import BrokerOptions, BrokerRole
from kerolox.broker.role.mastership import NONE_YET, Mastership
from kerolox.broker.role.parts import ActingPart, Confirming, Fit, Link, Part
from kerolox.broker.role.settings import RoleChange, role_at_start
from kerolox.broker.role.value import LeaderAddress, Role
from kerolox.errors import KeroloxError
from kerolox.observers import Observers
from kerolox.store.message_store import MessageStore
from kerolox.store.state import Obstacle

log = logging.getLogger(__name__)

IS_SLAVE = "this broker is a SLAVE"


class Leadership:
    """Role of this broker and its changes. A broker follows until it is started.

    ``start`` is the role to begin with, ``follower_id`` the id while this broker follows. ``elected``: the
    role comes from an election, so an elected leader is a SYNC_MASTER, as RocketMQ's are. Until the election
    the broker has no role, and clients get the reason in ``waits_for``.
    """

    def __init__(
        self, store: MessageStore, start: BrokerRole, follower_id: int = 0, *, elected: bool = False
    ) -> None:
        self.role = Role(follower_id=follower_id, why="" if start is not BrokerRole.SLAVE else IS_SLAVE)
        # called with the new one
        self.on_leader: Observers[[LeaderAddress | None]] = Observers("leader changed")
        self._store = store
        self.elected = elected
        self.begins_as_leader = start is not BrokerRole.SLAVE
        self._parts: list[Part] = []
        self._copies: Part | None = None
        self._acting_parts: list[ActingPart] = []
        self._at_work: list[Part] = []  # in the order of their start
        self._link: Link | None = None
        self._fit: Fit | None = None
        self._confirming: Confirming | None = None
        self._has_followed = not self.begins_as_leader  # another broker led before this one
        self._turn = asyncio.Lock()
        self._wait_for_replicas(start is BrokerRole.SYNC_MASTER)
        if not self.begins_as_leader:
            self._bar(IS_SLAVE)

    # --- the role -------------------------------------------------------------------------------------

    @property
    def leads(self) -> bool:
        """True if messages of clients are accepted."""
        return self.role.leads

    @property
    def acts(self) -> bool:
        """True if a leader's other work is done here, while there is no leader."""
        return self.role.acts

    @property
    def serves(self) -> bool:
        """True if consumers are served here: the broker leads, or acts for a leader."""
        return self.role.serves

    @property
    def leader(self) -> LeaderAddress | None:
        """The leader, if it is another broker; None: unknown."""
        return self.role.leader

    @property
    def id(self) -> int:
        """Id of this broker among the brokers of its name."""
        return self.role.id

    @property
    def waits_for(self) -> str:
        """Reason why the broker has no role yet; empty: it has one."""
        return self.role.waits_for

    @property
    def as_settings(self) -> RoleChange:
        """The role as settings express it."""
        return RoleChange(self.role.name, self.role.id)

    # --- reports of the election ----------------------------------------------------------------------

    def wait(self, why: str) -> None:
        """Wait for a role; ``why`` is the reason that clients get. Ignored during a change of the role, which
        ends with a role or with a reason."""
        if self._turn.locked():
            return
        self.role = replace(self.role, is_decided=False, why=why)
        self._bar(why)

    def refuse(self, why: str) -> None:
        """Accept no messages from now on: another broker leads, or may lead. :meth:`follow` ends the
        parts."""
        self._bar(why)

    def follow_as(self, id: int, why: str, mastership: Mastership) -> None:
        """Follow under this id after an election; ``why`` is the reason that clients get."""
        self.role = replace(self.role, follower_id=id, mastership=mastership, is_decided=True, why=why)
        self._store.state.reword(Obstacle.FOLLOWER, why)

    def note(self, mastership: Mastership) -> None:
        """Note a newer mastership that leaves the role as it is."""
        self.role = replace(self.role, mastership=mastership)

    def led_by(self, leader: LeaderAddress | None) -> None:
        """Note the leader that a name server or controller reports; None: no leader."""
        if leader == self.leader or self.leads:
            return
        log.info("leader_%s leader=%r", "gone" if leader is None else "found", leader or self.leader)
        self._led_by(leader)

    def announced(self, leader: LeaderAddress) -> bool:
        """Copy from a leader that announced its return; any leader that is reported later replaces it. Return
        False if this broker leads."""
        if self.leads:
            return False
        if leader != self.leader:
            log.info("leader_returns address=%r ha_address=%r", leader.address, leader.ha_address)
            self._led_by(None, leader)
        return True

    def _led_by(self, leader: LeaderAddress | None, returning: LeaderAddress | None = None) -> None:
        before = self.leader
        self.role = replace(self.role, leader=leader, returning=returning)
        if self._link is not None:
            address, ha_address = returning or leader or ("", "")
            self._link.lead_by(ha_address, address)
        if leader != before:
            self.on_leader(leader)

    # --- parts ----------------------------------------------------------------------------------------

    def add(self, *parts: Part) -> None:
        """Add parts. They start in this order, and end in the opposite order."""
        self._parts += parts

    def add_acting(self, *parts: ActingPart) -> None:
        """Add parts that also run while this broker acts for its leader."""
        self._acting_parts += parts

    def copied_by(self, part: Part) -> None:
        """Set the replication to followers. It starts before the other parts and ends when nothing more is
        stored, so that clients waiting for a copy get an answer."""
        self._copies = part
        self._parts.insert(0, part)

    def follow_by(self, link: Link) -> None:
        """Set the replication from the leader."""
        self._link = link

    def fit_by(self, fit: Fit) -> None:
        """Set the repair of tables, done before a broker that followed leads or acts."""
        self._fit = fit

    def confirmed_by(self, replicas: Confirming) -> None:
        """Set the replicas that confirm messages. ``begin`` of :meth:`lead` names them."""
        self._confirming = replicas

    def took_over(self) -> None:
        """Note that another broker led when this one ran last."""
        self._has_followed = True

    # --- changes --------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Lead or follow, according to the role at the start."""
        if self.begins_as_leader:
            await self.lead()
        elif self._link is not None:
            await self._link.start()

    async def let_copy(self) -> None:
        """Let followers copy before this broker leads, because a leader that returns waits for them."""
        async with self._turn:
            if self._copies is not None:
                await self._begin_part(self._copies)

    async def _begin_part(self, part: Part) -> None:
        if part not in self._at_work:
            self._at_work.append(part)
        await part.lead()

    async def lead(
        self,
        begin: Callable[[], Awaitable[None]] | None = None,
        mastership: Mastership = NONE_YET,
        *,
        to: RoleChange | None = None,
    ) -> None:
        """Begin to accept messages.

        ``begin`` is called when replication has stopped and the log has no incomplete record; what it writes
        precedes the first message. Its errors are raised, and those of parts that cannot begin: the broker
        follows then, as before. ``mastership``: the election; ``to``: the role that settings ask for.
        """
        async with self._turn:
            if to is None:
                to = RoleChange(self._name_of_leader, self.role.follower_id)
            store, waited = self._store, self._store.acks.wait_for_replicas
            if self.leads:
                self._wait_for_replicas(to.role is BrokerRole.SYNC_MASTER)
                self.role = replace(self.role, name=to.role, follower_id=to.follower_id)
                return
            try:
                await self._stop_acting()
                if self._link is not None:
                    await self._link.stop()
                if store.log.whole_end < store.log.max_offset:
                    # Nothing behind the incomplete last record of the old leader could be found.
                    await store.truncate(store.log.whole_end)
                if store.progress.flushed < store.progress.appended:
                    await store.flusher.flush_all()  # dispatches all of it to its queues
                if begin is not None:
                    await begin()
                if self._fit is not None and self._has_followed:
                    self._fit.lead()
                store.log.renew_cursors()
                self._wait_for_replicas(to.role is BrokerRole.SYNC_MASTER)
                store.state.clear(Obstacle.FOLLOWER)
                for part in self._parts:
                    await self._begin_part(part)
            except BaseException as error:
                why = f"this broker could not lead: {error}"
                self.role = replace(self.role, why=why)
                self._confirm_no_more()
                await self._end_parts()
                self._bar(why)
                self._wait_for_replicas(waited)
                if self._link is not None:
                    if begin is not None:
                        self._forget_leader(self._link)
                    await self._link.start()
                raise
            self.role = Role(to.role, to.follower_id, mastership)
            log.info("broker_leads")

    async def follow(self, why: str, *, leaderless: bool = False, id: int | None = None) -> None:
        """Accept no more messages; ``why`` is the reason that clients get. ``leaderless``: the new leader is
        not known yet, and this broker must not copy from the one it followed before it led. ``id``: the id to
        follow with, if it changes."""
        async with self._turn:
            led = self.leads
            if id is not None:
                self.role = replace(self.role, follower_id=id)
            if not led:
                return
            log.info("broker_follows reason=%r", why)
            self.role = replace(self.role, name=BrokerRole.SLAVE, why=why)
            self._has_followed = True
            self._confirm_no_more()
            try:
                await self._end_parts(but=self._copies)
            finally:
                self._bar(why)
            await self._end_parts()
            if self._link is not None:
                if leaderless:
                    self._forget_leader(self._link)
                await self._link.start()

    async def part(self) -> None:
        """Stop replication: another broker leads from now on, but is not known yet."""
        async with self._turn:
            if self.leads:
                return
            self.role = replace(self.role, leader=None, returning=None)
            if self._link is not None:
                await self._link.stop()
                self._forget_leader(self._link)
                await self._link.start()

    def _forget_leader(self, link: Link) -> None:
        """Forget the leader here and in the link: one that a name server reported a moment ago must count as
        a change when it is found again."""
        self.role = replace(self.role, leader=None, returning=None)
        link.part()

    async def act(self) -> None:
        """Act for a leader that is gone. If a part fails, stop all parts and raise its error."""
        async with self._turn:
            if self.serves:
                return
            if self._store.progress.flushed < self._store.progress.appended:
                await self._store.flusher.flush_all()  # dispatches all of it to its queues
            if self._fit is not None:
                self._fit.act()
            try:
                for part in self._acting_parts:
                    self._at_work.append(part)
                    await part.act()
            except BaseException:
                await self._end_parts()
                raise
            self.role = replace(self.role, acts=True)
            log.info(
                "broker_acts parts=%d %s", len(self._acting_parts),
                "next='nothing: it serves consumers until the leader is back'" if self._acting_parts else
                "next='due messages and open transactions wait until the leader is back; to send them to "
                "another broker, start this one with enableRemoteEscape=true'",
            )  # fmt: skip

    async def rest(self, why: str) -> None:
        """Stop acting. Return when all work in progress has ended."""
        async with self._turn:
            if self.acts:
                log.info("broker_rests reason=%r", why)
                await self._stop_acting()

    async def _stop_acting(self) -> None:
        if self.acts:
            self.role = replace(self.role, acts=False)
            await self._end_parts()

    async def take_role(self, to: RoleChange) -> None:
        """Take the role that settings ask for. Raises the error of a part that cannot begin."""
        if to.leads:
            await self.lead(to=to)
        else:
            await self.follow(IS_SLAVE, id=to.follower_id)

    async def stop(self) -> None:
        """End the parts because the broker closes. Messages are accepted until the store is closed. Followers
        copy until then, too; the caller ends replication last."""
        async with self._turn:
            if self._link is not None:
                await self._link.stop()
            self.role = replace(self.role, acts=False)
            failed = await self._end_parts(but=self._copies)
            if failed is not None:
                raise failed

    async def _end_parts(self, but: Part | None = None) -> Exception | None:
        """End parts, the last one first. Return the first error; the other parts end all the same."""
        first = None
        while self._at_work and self._at_work[-1] is not but:
            part = self._at_work.pop()
            try:
                await part.follow()
            except Exception as error:
                first = first or error
                log.error(
                    "part_not_ended part=%s error=%r next='nothing: the role changes all the same'",
                    type(part).__name__, str(error), exc_info=not isinstance(error, KeroloxError),
                )  # fmt: skip
        return first

    # --- the store ------------------------------------------------------------------------------------

    def _confirm_no_more(self) -> None:
        if self._confirming is not None:
            self._confirming.rest()

    def _bar(self, why: str) -> None:
        """Let the store accept only replicated records; ``why`` is the reason that clients get."""
        self._store.state.set(Obstacle.FOLLOWER, why)
        self._store.state.reword(Obstacle.FOLLOWER, why)

    @property
    def _name_of_leader(self) -> BrokerRole:
        """Role to lead with, if no settings name one."""
        waits = self.elected or self._store.acks.wait_for_replicas
        return BrokerRole.SYNC_MASTER if waits else BrokerRole.ASYNC_MASTER

    def _wait_for_replicas(self, waits: bool) -> None:
        """Elected leaders wait for replicas by other rules: an in-sync set, or a majority."""
        if not self.elected:
            self._store.acks.wait_for_replicas = waits


def leadership_of(store: MessageStore, options: BrokerOptions) -> Leadership:
    """Return the initial leadership for these options. Under a controller, or in a DLedger group, the broker
    follows no leader until one is assigned or it is elected."""
    if options.ledger:
        return Leadership(store, BrokerRole.SLAVE, elected=True)
    if not options.controlled:
        return Leadership(store, *role_at_start(options))
    store.acks.wait_for_replicas = True
    return Leadership(store, BrokerRole.SLAVE, elected=True)
