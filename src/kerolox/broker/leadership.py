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

A follower may act for a leader that is gone: it serves consumers as a leader does, and those parts are at
work that need not write here, because they have another place to put messages. It still takes no message,
and its log stays as it is.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple, Protocol

from kerolox.broker.options import BrokerOptions, BrokerRole
from kerolox.errors import OptionError, Refused
from kerolox.options import specs
from kerolox.protocol.codes import ResponseCode
from kerolox.store.message_store import MessageStore
from kerolox.store.state import Obstacle

log = logging.getLogger(__name__)

ROLE_KEYS = frozenset({"brokerRole", "brokerId"})


class Part(Protocol):
    """Does what only a leader does."""

    async def lead(self) -> None:
        """Find out how far this part's work has come, and go on from there. The store can be written."""

    async def follow(self) -> None:
        """Begin nothing new, and return when all that was begun is over. The store can still be written."""


class ActingPart(Part, Protocol):
    """Can do its work without writing here."""

    async def act(self) -> None:
        """Find out how far this part's work has come, and go on from there, putting messages elsewhere. Ends
        by :meth:`follow`."""


class Link(Protocol):
    """Copies from the leader, while this broker follows."""

    async def start(self) -> None: ...

    async def stop(self) -> None:
        """Return when nothing more will be appended."""

    def part(self) -> None:
        """Forget whom it copied from; it is stopped."""


class Fit(Protocol):
    """Makes the tables fit the log, when this broker takes over from another one."""

    def lead(self) -> None:
        """All that is confirmed is in the queues, and no message has been taken yet."""

    def act(self) -> None:
        """The same, for a follower that begins to act for its leader."""


class LeaderAddress(NamedTuple):
    """Where a follower finds the broker that leads."""

    address: str
    ha_address: str  # where it is copied from; empty when nobody said


class RoleChange(NamedTuple):
    """A role to take while the broker runs. Leaders have no number, whatever the settings say."""

    role: BrokerRole
    follower_id: int

    @property
    def leads(self) -> bool:
        return self.role is not BrokerRole.SLAVE

    @property
    def settings(self) -> dict[str, str]:
        return {"brokerRole": self.role.value, "brokerId": str(self.follower_id)}


class Leadership:
    """Leads or follows. Follows until it is started. ``follower_id`` is its id while it follows.

    Under a controller it has no role before that has said which: until then clients are told what it waits
    for.
    """

    def __init__(self, store: MessageStore, role: BrokerRole, follower_id: int = 0) -> None:
        self.waits_for = ""  # to have a role; empty: it has one
        self.leads = False  # whether messages are taken from clients
        self.acts = False  # whether it does a leader's other work, while there is none
        self.leader: LeaderAddress | None = None  # who does, if not this one; None: nobody that is known
        self.on_leader: list[Callable[[LeaderAddress | None], None]] = []  # hears of another one, or of none
        self._follower_id = follower_id
        self._store = store
        self._follows = role is BrokerRole.SLAVE  # at the start
        self._parts: list[Part] = []
        self._copies: Part | None = None
        self._acting_parts: list[ActingPart] = []
        self._at_work: list[Part] = []  # in the order they began
        self._link: Link | None = None
        self._fit: Fit | None = None
        self._has_followed = self._follows  # another broker led before this one does
        self._turn = asyncio.Lock()
        store.acks.wait_for_replicas = role is BrokerRole.SYNC_MASTER
        if self._follows:
            store.state.set(Obstacle.FOLLOWER, "this broker is a SLAVE")

    @property
    def id(self) -> int:
        """Which broker of its name this one is."""
        return 0 if self.leads else self._follower_id

    @property
    def elected_role(self) -> BrokerRole:
        """Setting ``brokerRole`` of an elected broker, as RocketMQ's brokers change it at an election."""
        return BrokerRole.SYNC_MASTER if self.leads else BrokerRole.SLAVE

    @property
    def begins_as_leader(self) -> bool:
        return not self._follows

    @property
    def serves(self) -> bool:
        """Whether consumers are at home here: it leads, or acts for a leader."""
        return self.leads or self.acts

    def wait(self, why: str) -> None:
        """It has no role yet, for this reason."""
        self.waits_for = why
        self.refuse(why)

    def refuse(self, why: str) -> None:
        """Take no message from this moment on: another one leads, or may. :meth:`follow` ends the parts."""
        self._store.state.set(Obstacle.FOLLOWER, why)
        self._store.state.reword(Obstacle.FOLLOWER, why)

    def follow_as(self, id: int, why: str) -> None:
        """It follows under this id, and clients are told this reason."""
        self._follower_id = id
        self.waits_for = ""
        self._store.state.reword(Obstacle.FOLLOWER, why)

    def led_by(self, leader: LeaderAddress | None) -> None:
        """What a name server says, or who asked the controller: this one leads, or nobody does."""
        if leader == self.leader or self.leads:
            return
        log.info("leader_%s leader=%r", "gone" if leader is None else "found", leader or self.leader)
        self.leader = leader
        for told in self.on_leader:
            told(leader)

    def doubt(self) -> None:
        """Somebody else than a name server said who leads: the next answer of a name server is news."""
        self.leader = None

    def add(self, *parts: Part) -> None:
        """Add parts. They begin in this order, and end in the opposite one."""
        self._parts += parts

    def add_acting(self, *parts: ActingPart) -> None:
        """The same, of parts that are at work too while this broker acts for its leader."""
        self._acting_parts += parts

    def copied_by(self, part: Part) -> None:
        """Followers copy by this while this broker leads. It begins before the parts and ends when nothing
        more is stored: who waits for a copy is to hear of it."""
        self._copies = part
        self._parts.insert(0, part)

    def follow_by(self, link: Link) -> None:
        """While this broker follows, it copies by this."""
        self._link = link

    def fit_by(self, fit: Fit) -> None:
        """Tables are made to fit the log by this, before a broker that followed leads or acts."""
        self._fit = fit

    def took_over(self) -> None:
        """Another broker led when this one ran last."""
        self._has_followed = True

    async def start(self) -> None:
        """Lead or follow, as the role in the options says."""
        if not self._follows:
            await self.lead()
        elif self._link is not None:
            await self._link.start()

    async def lead(self, begin: Callable[[], Awaitable[None]] | None = None) -> None:
        """Take messages. ``begin`` is called when nothing more is copied and the log is whole: what it
        writes down is before the first message. Raises what it raises."""
        async with self._turn:
            if self.leads:
                return
            await self._stop_acting()
            store = self._store
            if self._link is not None:
                await self._link.stop()
            try:
                if store.log.whole_end < store.log.max_offset:
                    # The old leader's last record did not come to its end: nothing could be found behind it.
                    await store.truncate(store.log.whole_end)
                if store.progress.flushed < store.progress.appended:
                    await store.flusher.flush_all()  # which lets all of it into its queues
                if begin is not None:
                    await begin()
                if self._fit is not None and self._has_followed:
                    self._fit.lead()
                store.log.renew_cursors()
                store.state.clear(Obstacle.FOLLOWER)
                for part in self._parts:
                    self._at_work.append(part)
                    await part.lead()
            except BaseException as error:
                await self._end_parts()
                store.state.set(Obstacle.FOLLOWER, f"this broker could not lead: {error}")
                if self._link is not None:
                    if begin is not None:
                        self._forget_leader(self._link)
                    await self._link.start()
                raise
            self.leads = True
            self.waits_for = ""
            self.leader = None
            log.info("broker_leads")

    async def follow(self, why: str, *, leaderless: bool = False) -> None:
        """Take no messages from now on: clients are told this reason. ``leaderless``: who leads is not found
        yet, and whom this broker followed before it led is not to be copied from."""
        async with self._turn:
            if not self.leads:
                return
            log.info("broker_follows reason=%r", why)
            self.leads = False
            self._has_followed = True
            await self._end_parts(but=self._copies)
            self._store.state.set(Obstacle.FOLLOWER, why)
            await self._end_parts()
            if self._link is not None:
                if leaderless:
                    self._forget_leader(self._link)
                await self._link.start()

    async def part(self) -> None:
        """Another one leads from now on, that is not found yet: copy nothing more from the one before."""
        async with self._turn:
            if self.leads:
                return
            self.leader = None
            if self._link is not None:
                await self._link.stop()
                self._forget_leader(self._link)
                await self._link.start()

    def _forget_leader(self, link: Link) -> None:
        """Both at once: a leader that a name server told of a moment ago is news when it is found again."""
        self.leader = None
        link.part()

    async def act(self) -> None:
        """Act for a leader that is gone. Raises what keeps a part from it; then nothing is at work."""
        async with self._turn:
            if self.serves:
                return
            if self._store.progress.flushed < self._store.progress.appended:
                await self._store.flusher.flush_all()  # which lets all of it into its queues
            if self._fit is not None:
                self._fit.act()
            try:
                for part in self._acting_parts:
                    self._at_work.append(part)
                    await part.act()
            except BaseException:
                await self._end_parts()
                raise
            self.acts = True
            log.info(
                "broker_acts parts=%d %s", len(self._acting_parts),
                "next='it serves consumers until the leader is back'" if self._acting_parts else
                "next='what is due, and open transactions, wait until the leader is back, or until this "
                "broker is started with enableRemoteEscape=true'",
            )  # fmt: skip

    async def rest(self, why: str) -> None:
        """Do not act any more; return when all that was begun is over."""
        async with self._turn:
            if self.acts:
                log.info("broker_rests reason=%r", why)
                await self._stop_acting()

    async def _stop_acting(self) -> None:
        if self.acts:
            self.acts = False
            await self._end_parts()

    async def take_role(self, to: RoleChange) -> None:
        """Another role while it runs."""
        self._follower_id = to.follower_id
        if to.leads:
            self._store.acks.wait_for_replicas = to.role is BrokerRole.SYNC_MASTER
            await self.lead()
        else:
            await self.follow("this broker is a SLAVE")

    async def stop(self) -> None:
        """The broker closes: the parts end, and messages are taken until the store takes none. Until then
        followers copy, too; who closes the broker ends that last."""
        async with self._turn:
            if self._link is not None:
                await self._link.stop()
            self.acts = False
            await self._end_parts(but=self._copies)

    async def _end_parts(self, but: Part | None = None) -> None:
        while self._at_work and self._at_work[-1] is not but:
            await self._at_work.pop().follow()


def leadership_of(store: MessageStore, options: BrokerOptions) -> Leadership:
    """As the options say. Under a controller, or in a DLedger group, it follows nobody until it is told whom,
    or that it leads."""
    if options.ledger:
        return Leadership(store, BrokerRole.SLAVE)
    if not options.controlled:
        return Leadership(store, options.role, options.broker_id)
    leadership = Leadership(store, BrokerRole.SLAVE)
    store.acks.wait_for_replicas = True
    return leadership


def role_of(options: BrokerOptions) -> RoleChange:
    """The one it has."""
    return RoleChange(options.role, options.broker_id)


def role_asked(options: BrokerOptions, wanted: Mapping[str, str]) -> RoleChange | None:
    """The role that changed settings ask for; None if it is the one there is. Raises OptionError."""
    if not ROLE_KEYS & wanted.keys():
        return None
    if options.controlled:
        raise Refused(
            ResponseCode.SYSTEM_ERROR,
            "the role is not changed: a controller says who leads (enableControllerMode). Ask it for another "
            "leader: kerolox controller elect",
        )
    if options.ledger:
        raise Refused(
            ResponseCode.SYSTEM_ERROR,
            "the role is not changed: the members of its DLedger group elect who leads "
            "(enableDLegerCommitLog)",
        )
    known = {spec.key: spec for spec in specs(BrokerOptions)}
    role = known["brokerRole"].parse(wanted.get("brokerRole", options.role.value), "update")
    follower_id = known["brokerId"].parse(wanted.get("brokerId", str(options.broker_id)), "update")
    to = RoleChange(role, follower_id if role is BrokerRole.SLAVE else 0)
    if to.leads and "brokerId" in wanted and follower_id not in (0, options.broker_id):
        raise OptionError(
            "brokerId",
            follower_id,
            f"0 with brokerRole={role.value}: a broker that leads has no other number. With brokerRole=SLAVE "
            "beside it this broker follows under that number",
            "update",
        )
    if not to.leads and not to.follower_id:
        raise OptionError("brokerId", 0, "1 or more with brokerRole=SLAVE: set both at once", "update")
    return None if to == role_of(options) else to


def check_role(options: BrokerOptions) -> None:
    """Raises OptionError for a follower that calls itself the leader's number, and for what does not go
    together with a controller or a DLedger group."""
    if options.ledger:
        _check_ledger(options)
        return
    if options.controlled:
        if options.acting:
            raise OptionError(
                "enableSlaveActingMaster", True, "false with enableControllerMode: the controller elects a "
                "broker that leads, so nobody acts for one",
            )  # fmt: skip
        if not options.controllers:
            raise OptionError("controllerAddr", "", "the controllers, with enableControllerMode: host:port")
        return
    if options.broker_id < 0:
        raise OptionError("brokerId", options.broker_id, "0 or more without enableControllerMode")
    if options.role is BrokerRole.SLAVE and not options.broker_id:
        raise OptionError("brokerId", 0, "1 or more with brokerRole=SLAVE: Slave's brokerId must be > 0")


def _check_ledger(options: BrokerOptions) -> None:
    for key, asked, why in (
        ("enableControllerMode", options.controlled, "one of the two says who leads"),
        ("enableSlaveActingMaster", options.acting, "the group elects a member that leads"),
        ("enabledAppendPropCRC", options.record_crc, "records of DLedger logs have none"),
        ("enableMultiDispatch", options.multi_dispatch, "messages of DLedger logs go into no light queues"),
    ):
        if asked:
            raise OptionError(key, True, f"false with enableDLegerCommitLog: {why}")
    options.ledger_settings  # noqa: B018 — raises what is wrong with it
    # Entries and records never lie in one directory.
    plain = options.commit_log_paths or os.path.join(options.store_path, "commitlog")
    both = _places(options.ledger_paths) & (_places(plain) | _places(options.read_only_paths))
    if both:
        raise OptionError(
            "storePathDLedgerCommitLog", options.ledger_paths,
            f"other directories than storePathCommitLog has: {', '.join(sorted(both))}",
        )  # fmt: skip


def _places(text: str) -> set[str]:
    return {os.path.abspath(word.strip()) for word in text.split(",") if word.strip()}
