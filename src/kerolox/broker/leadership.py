"""Role of this broker. A leader accepts messages, delivers delayed ones, and checks open transactions.

The work of a leader is done by parts that are added here. A broker that begins to lead starts them; a broker
that begins to follow stops them. It may do either at any time and any number of times, and a broker that
starts takes the same path. No other module reads the role from the options.

The order prevents lost and duplicate messages. To lead: replication stops, an incomplete record at the end of
the log is truncated, the log is dispatched to its queues, each part finds its progress from there and begins,
and only then messages are accepted. To follow: no more messages are accepted, each part finishes its current
work, the store accepts only replicated records, and the link to the leader starts.

Name servers report a follower's leader, or that none exists. Replication and the redirection of consumers are
notified of that here.

A follower may act for a leader that is gone. It serves consumers as a leader does. Only parts that can store
messages elsewhere run. It still accepts no messages, and its log does not change.
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
    """A part that does work of the leader only."""

    async def lead(self) -> None:
        """Find this part's progress and continue from there. The store can be written."""

    async def follow(self) -> None:
        """Begin nothing new, and return when all work in progress has ended. The store can still be
        written."""


class ActingPart(Part, Protocol):
    """A part that can do its work without writing to this broker's log."""

    async def act(self) -> None:
        """Find this part's progress and continue from there, storing messages elsewhere. Ended by
        :meth:`follow`."""


class Link(Protocol):
    """Replication from the leader while this broker follows."""

    async def start(self) -> None: ...

    async def stop(self) -> None:
        """Return when nothing more will be appended."""

    def part(self) -> None:
        """Forget the last leader. Called while the link is stopped."""


class Fit(Protocol):
    """Repair of tables that do not match the log, when this broker takes over from another one."""

    def lead(self) -> None:
        """Repair the tables. All confirmed records are in the queues, and no message has been accepted
        yet."""

    def act(self) -> None:
        """Repair the tables of a follower that begins to act for its leader."""


class LeaderAddress(NamedTuple):
    """Addresses of the leader."""

    address: str
    ha_address: str  # replication address; empty if unknown


class RoleChange(NamedTuple):
    """Role to take while the broker runs. Leaders have no id, whatever the settings are."""

    role: BrokerRole
    follower_id: int

    @property
    def leads(self) -> bool:
        return self.role is not BrokerRole.SLAVE

    @property
    def settings(self) -> dict[str, str]:
        return {"brokerRole": self.role.value, "brokerId": str(self.follower_id)}


class Leadership:
    """Role of this broker and its changes. A broker follows until it is started.

    ``follower_id`` is its id while it follows. Under a controller it has no role until the controller assigns
    one; until then clients get the reason in ``waits_for``.
    """

    def __init__(self, store: MessageStore, role: BrokerRole, follower_id: int = 0) -> None:
        self.waits_for = ""  # reason why the broker has no role yet; empty: it has one
        self.leads = False  # messages of clients are accepted
        self.acts = False  # a leader's other work is done, while there is no leader
        self.leader: LeaderAddress | None = None  # the leader, if it is another broker; None: unknown
        self.on_leader: list[Callable[[LeaderAddress | None], None]] = []  # called with the new one
        self._follower_id = follower_id
        self._store = store
        self._follows = role is BrokerRole.SLAVE  # role at the start
        self._parts: list[Part] = []
        self._copies: Part | None = None
        self._acting_parts: list[ActingPart] = []
        self._at_work: list[Part] = []  # in the order of their start
        self._link: Link | None = None
        self._fit: Fit | None = None
        self._has_followed = self._follows  # another broker led before this one
        self._turn = asyncio.Lock()
        store.acks.wait_for_replicas = role is BrokerRole.SYNC_MASTER
        if self._follows:
            store.state.set(Obstacle.FOLLOWER, "this broker is a SLAVE")

    @property
    def id(self) -> int:
        """Id of this broker among the brokers of its name."""
        return 0 if self.leads else self._follower_id

    @property
    def elected_role(self) -> BrokerRole:
        """``brokerRole`` of an elected broker; RocketMQ's brokers change this setting at an election."""
        return BrokerRole.SYNC_MASTER if self.leads else BrokerRole.SLAVE

    @property
    def begins_as_leader(self) -> bool:
        return not self._follows

    @property
    def serves(self) -> bool:
        """True if consumers are served here: the broker leads, or acts for a leader."""
        return self.leads or self.acts

    def wait(self, why: str) -> None:
        """Wait for a role; ``why`` is the reason that clients get."""
        self.waits_for = why
        self.refuse(why)

    def refuse(self, why: str) -> None:
        """Accept no messages from now on: another broker leads, or may lead. :meth:`follow` ends the
        parts."""
        self._store.state.set(Obstacle.FOLLOWER, why)
        self._store.state.reword(Obstacle.FOLLOWER, why)

    def follow_as(self, id: int, why: str) -> None:
        """Follow under this id; ``why`` is the reason that clients get."""
        self._follower_id = id
        self.waits_for = ""
        self._store.state.reword(Obstacle.FOLLOWER, why)

    def led_by(self, leader: LeaderAddress | None) -> None:
        """Note the leader that a name server or controller reports; None: no leader."""
        if leader == self.leader or self.leads:
            return
        log.info("leader_%s leader=%r", "gone" if leader is None else "found", leader or self.leader)
        self.leader = leader
        for told in self.on_leader:
            told(leader)

    def doubt(self) -> None:
        """Forget the leader after a report by another broker: the next answer of a name server counts as a
        change."""
        self.leader = None

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

    def took_over(self) -> None:
        """Note that another broker led when this one ran last."""
        self._has_followed = True

    async def start(self) -> None:
        """Lead or follow, according to the role in the options."""
        if not self._follows:
            await self.lead()
        elif self._link is not None:
            await self._link.start()

    async def lead(self, begin: Callable[[], Awaitable[None]] | None = None) -> None:
        """Begin to accept messages.

        ``begin`` is called when replication has stopped and the log has no incomplete record; what it writes
        precedes the first message. Its errors are raised.
        """
        async with self._turn:
            if self.leads:
                return
            await self._stop_acting()
            store = self._store
            if self._link is not None:
                await self._link.stop()
            try:
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
        """Accept no more messages; ``why`` is the reason that clients get. ``leaderless``: the new leader is
        not known yet, and this broker must not copy from the one it followed before it led."""
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
        """Stop replication: another broker leads from now on, but is not known yet."""
        async with self._turn:
            if self.leads:
                return
            self.leader = None
            if self._link is not None:
                await self._link.stop()
                self._forget_leader(self._link)
                await self._link.start()

    def _forget_leader(self, link: Link) -> None:
        """Forget the leader here and in the link: one that a name server reported a moment ago must count as
        a change when it is found again."""
        self.leader = None
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
            self.acts = True
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
            self.acts = False
            await self._end_parts()

    async def take_role(self, to: RoleChange) -> None:
        """Take another role while the broker runs."""
        self._follower_id = to.follower_id
        if to.leads:
            self._store.acks.wait_for_replicas = to.role is BrokerRole.SYNC_MASTER
            await self.lead()
        else:
            await self.follow("this broker is a SLAVE")

    async def stop(self) -> None:
        """End the parts because the broker closes. Messages are accepted until the store is closed. Followers
        copy until then, too; the caller ends replication last."""
        async with self._turn:
            if self._link is not None:
                await self._link.stop()
            self.acts = False
            await self._end_parts(but=self._copies)

    async def _end_parts(self, but: Part | None = None) -> None:
        while self._at_work and self._at_work[-1] is not but:
            await self._at_work.pop().follow()


def leadership_of(store: MessageStore, options: BrokerOptions) -> Leadership:
    """Return the initial leadership for these options. Under a controller, or in a DLedger group, the broker
    follows no leader until one is assigned or it is elected."""
    if options.ledger:
        return Leadership(store, BrokerRole.SLAVE)
    if not options.controlled:
        return Leadership(store, options.role, options.broker_id)
    leadership = Leadership(store, BrokerRole.SLAVE)
    store.acks.wait_for_replicas = True
    return leadership


def role_of(options: BrokerOptions) -> RoleChange:
    """Return the role in these options."""
    return RoleChange(options.role, options.broker_id)


def role_asked(options: BrokerOptions, wanted: Mapping[str, str]) -> RoleChange | None:
    """Return the role that changed settings ask for; None if it is the current one. Raises OptionError."""
    if not ROLE_KEYS & wanted.keys():
        return None
    if options.controlled:
        raise Refused(
            ResponseCode.SYSTEM_ERROR,
            "the role is not changed: a controller elects the leader (enableControllerMode). To elect "
            "another one: kerolox controller elect",
        )
    if options.ledger:
        raise Refused(
            ResponseCode.SYSTEM_ERROR,
            "the role is not changed: the members of the DLedger group elect the leader "
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
            f"0 with brokerRole={role.value}: leaders have the id 0. Set brokerRole=SLAVE together with it "
            "to make this broker a follower with that id",
            "update",
        )
    if not to.leads and not to.follower_id:
        raise OptionError("brokerId", 0, "1 or more with brokerRole=SLAVE: set both at once", "update")
    return None if to == role_of(options) else to


def check_role(options: BrokerOptions) -> None:
    """Raise OptionError for a follower with a leader's id, and for settings that do not go together with a
    controller or a DLedger group."""
    if options.ledger:
        _check_ledger(options)
        return
    if options.controlled:
        if options.acting:
            raise OptionError(
                "enableSlaveActingMaster", True, "false with enableControllerMode: the controller elects a "
                "leader, so no follower acts for one",
            )  # fmt: skip
        if not options.controllers:
            raise OptionError(
                "controllerAddr", "", "the addresses of the controllers, host:port, with enableControllerMode"
            )
        return
    if options.broker_id < 0:
        raise OptionError("brokerId", options.broker_id, "0 or more without enableControllerMode")
    if options.role is BrokerRole.SLAVE and not options.broker_id:
        raise OptionError("brokerId", 0, "1 or more with brokerRole=SLAVE: Slave's brokerId must be > 0")


def _check_ledger(options: BrokerOptions) -> None:
    for key, asked, why in (
        ("enableControllerMode", options.controlled, "only one of the two can elect the leader"),
        ("enableSlaveActingMaster", options.acting, "the group elects a leader"),
        ("enabledAppendPropCRC", options.record_crc, "records of DLedger logs have none"),
        (
            "enableMultiDispatch",
            options.multi_dispatch,
            "messages of DLedger logs are not dispatched to light queues",
        ),
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
            f"directories that storePathCommitLog does not use; both use {', '.join(sorted(both))}",
        )  # fmt: skip


def _places(text: str) -> set[str]:
    return {os.path.abspath(word.strip()) for word in text.split(",") if word.strip()}
