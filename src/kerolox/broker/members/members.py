"""Members of producer and consumer groups, and the subscriptions of consumer groups.

A member is one connection in one group. A connection joins by a heartbeat; it leaves by a request, by
closing, or when its heartbeats stop. Members of a consumer group divide the queues among themselves, so all
of them, including a new one, are notified when the division must be repeated.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import NamedTuple

from kerolox.broker.bounds import (
    GROUPS_OF_CLIENT_MAX,
    MEMBERS_OF_GROUP_MAX,
    MISMATCHES_TOLD_MAX,
    too_many,
)
from kerolox.broker.options import BrokerOptions
from kerolox.clock import Clock, TimerHandle
from kerolox.errors import KeroloxError, Refused
from kerolox.front.caller import Caller, CallerEvents
from kerolox.observers import Observers
from kerolox.protocol.bodies.heartbeat import (
    ConsumeFromWhere,
    ConsumerData,
    ConsumeType,
    MessageModel,
    SubscriptionData,
)
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.headers.heartbeat import ConsumerIdsChanged

log = logging.getLogger(__name__)

SCAN_S = 10.0

# Subscriptions of one member: topic, kind of expression, expression.
Subscribed = frozenset[tuple[str, str, str]]


class ConnectedClient:
    """A connected client, as described by its last heartbeat."""

    __slots__ = ("caller", "client_id", "language", "user", "version")

    def __init__(
        self,
        caller: Caller,
        client_id: str,
        language: str = "JAVA",
        version: int = 0,
        user: str | None = None,
    ) -> None:
        self.caller = caller
        self.client_id = client_id
        self.language = language
        self.version = version
        self.user = user  # user that signed the heartbeat

    @classmethod
    def of(cls, caller: Caller, client_id: str, user: str | None = None) -> ConnectedClient:
        return cls(caller, client_id, caller.language.name, caller.version, user)


class Member:
    """A client in one group."""

    __slots__ = ("client", "seen_ms", "seen_s", "wants", "warned")

    def __init__(self, client: ConnectedClient) -> None:
        self.client = client
        self.seen_s = 0.0  # time of the last heartbeat, by the monotonic clock
        self.seen_ms = 0  # the same time by the wall clock, for tools
        self.wants: Subscribed | None = None  # None until the first heartbeat with subscriptions
        # The other member, the subscriptions of this one, those of the other.
        self.warned: set[tuple[str, Subscribed, Subscribed]] = set()

    @property
    def caller(self) -> Caller:
        return self.client.caller

    @property
    def client_id(self) -> str:
        return self.client.client_id


class ProducerConnections(NamedTuple):
    """Connections of producers with one client id. The id belongs to the user that had it first, while any
    connection uses it. Another user that learns the id, from a message that asks for a reply, cannot claim
    the reply."""

    owner: str | None
    users: dict[Caller, str | None]  # user of each connection; the newest connection last


class ConsumerMembers:
    """Members of one consumer group. They share one table of subscriptions."""

    def __init__(self, group: str) -> None:
        self.group = group
        self.consume_type: ConsumeType | None = None
        self.model: MessageModel | None = None
        self.from_where: ConsumeFromWhere | None = None
        self.subscriptions: dict[str, SubscriptionData] = {}
        self.by_caller: dict[Caller, Member] = {}
        self.notify = True  # setting of the group
        self.mismatches = 0  # number of differing subscriptions found between two members

    def subscription(self, topic: str) -> SubscriptionData | None:
        return self.subscriptions.get(topic)

    @property
    def client_ids(self) -> tuple[str, ...]:
        """Client ids, one for each connection: a client with two connections is listed twice."""
        return tuple([member.client_id for member in self.by_caller.values()])

    def find(self, client_id: str) -> Member | None:
        return next((member for member in self.by_caller.values() if member.client_id == client_id), None)

    def subscribe(self, wanted: Iterable[SubscriptionData]) -> bool:
        """Take over the subscriptions of a member. Return True if the set of topics has changed.

        The newest version of each topic is kept. Topics that are no longer listed are removed.
        """
        listed: set[str] = set()
        changed = False
        for data in wanted:
            listed.add(data.topic)
            known = self.subscriptions.get(data.topic)
            if known is None:
                self.subscriptions[data.topic] = data
                changed = True
            elif data.sub_version > known.sub_version:
                self.subscriptions[data.topic] = data
        for topic in [topic for topic in self.subscriptions if topic not in listed]:
            del self.subscriptions[topic]
            changed = True
        return changed

    def differing(self, member: Member) -> list[tuple[Member, Subscribed]]:
        """Return members with other subscriptions: one for each different set of subscriptions."""
        found: dict[Subscribed, Member] = {}
        for other in self.by_caller.values():
            if other.wants is not None and other.wants != member.wants:
                found.setdefault(other.wants, other)
        return [(other, wants) for wants, other in found.items()]


class Members(CallerEvents):
    """Members of all groups."""

    def __init__(self, options: BrokerOptions, clock: Clock) -> None:
        self.consumers: dict[str, ConsumerMembers] = {}
        self.producers: dict[str, dict[Caller, Member]] = {}
        self.mismatches = 0  # in all groups since the start
        self.expired = 0  # connections closed for lack of heartbeats
        # group, subscriptions of a member: called for each heartbeat with subscriptions
        self.on_subscribed: Observers[[str, tuple[SubscriptionData, ...]]] = Observers("group subscribed")
        self.on_deserted: Observers[[str]] = Observers("group deserted")  # the last consumer of a group left
        self._options = options
        self._clock = clock
        self._consumes_in: dict[Caller, set[str]] = {}
        self._produces_in: dict[Caller, set[str]] = {}
        self._by_client: dict[str, ProducerConnections] = {}
        self._turn = 0
        self._to_notify: set[str] = set()
        self._scan: TimerHandle | None = None

    def start(self) -> None:
        """Start the scan for members without heartbeats."""
        if self._scan is None:
            self._scan = self._clock.beat(SCAN_S, self._look)

    def close(self) -> None:
        if self._scan is not None:
            self._scan.cancel()
            self._scan = None

    # --- consumers -----------------------------------------------------------------------------------

    def members(self, group: str) -> ConsumerMembers | None:
        """Return the members of a consumer group; None if it has none."""
        return self.consumers.get(group)

    def online(
        self, group: str, remark: str, code: int = ResponseCode.CONSUMER_NOT_ONLINE
    ) -> ConsumerMembers:
        """Return the members of a group. Raise Refused with this remark if it has none."""
        found = self.members(group)
        if found is None:
            raise Refused(code, remark)
        return found

    def consumer(self, group: str, client_id: str) -> Member | None:
        found = self.consumers.get(group)
        return None if found is None else found.find(client_id)

    def groups_subscribed(self, topic: str) -> set[str]:
        """Return the groups with a member here that subscribes the topic."""
        return {group for group, found in self.consumers.items() if topic in found.subscriptions}

    def join(
        self,
        client: ConnectedClient,
        data: ConsumerData,
        *,
        notify: bool = True,
        with_subscriptions: bool = True,
    ) -> bool:
        """Handle a heartbeat of a consumer. Return True if the group has changed.

        Without subscriptions it only shows that the client is alive.
        """
        group = data.group_name
        found = self.consumers.get(group)
        if found is None or client.caller not in found.by_caller:
            by_caller = None if found is None else found.by_caller
            self._check_room(self._consumes_in, by_caller, client, group)
        if found is None:
            found = self.consumers[group] = ConsumerMembers(group)
        found.consume_type = data.consume_type
        found.model = data.message_model
        found.from_where = data.consume_from_where
        found.notify = notify
        member, changed = self._seen(found.by_caller, client)
        if changed:
            self._consumes_in.setdefault(client.caller, set()).add(group)
            log.info(
                "consumer_joined group=%r client=%r peer=%s language=%s version=%d members=%d",
                group, client.client_id, client.caller.address, client.language, client.version,
                len(found.by_caller),
            )  # fmt: skip
        if with_subscriptions:
            changed |= found.subscribe(data.subscription_data_set)
            self._compare(found, member, data.subscription_data_set)
            self.on_subscribed(group, data.subscription_data_set)
        if changed:
            self._notify(found)
        return changed

    def leave(self, group: str, caller: Caller) -> bool:
        """Remove a consumer that leaves a group, and notify the others."""
        groups = self._consumes_in.get(caller)
        if groups is not None:
            groups.discard(group)
            if not groups:
                del self._consumes_in[caller]
        return self._remove_consumer(group, caller, "it unregistered")

    # --- producers -----------------------------------------------------------------------------------

    def join_producers(self, group: str, client: ConnectedClient) -> bool:
        """Handle a heartbeat of a producer. Return True if it is new."""
        found = self.producers.get(group)
        if found is None or client.caller not in found:
            self._check_room(self._produces_in, found, client, group)
        if found is None:
            found = self.producers[group] = {}
        _, changed = self._seen(found, client)
        if changed:
            self._produces_in.setdefault(client.caller, set()).add(group)
            known = self._by_client.setdefault(client.client_id, ProducerConnections(client.user, {}))
            known.users.setdefault(client.caller, client.user)
            log.info(
                "producer_joined group=%r client=%r peer=%s language=%s version=%d members=%d",
                group, client.client_id, client.caller.address, client.language, client.version, len(found),
            )  # fmt: skip
        return changed

    def leave_producers(self, group: str, caller: Caller) -> bool:
        groups = self._produces_in.get(caller)
        if groups is not None:
            groups.discard(group)
            if not groups:
                del self._produces_in[caller]
        return self._remove_producer(group, caller)

    def pick_producer(
        self, group: str, may: Callable[[ConnectedClient], bool] = lambda client: True
    ) -> Caller | None:
        """Return a connection of a producer group, in turn, if possible one that is not stalled. ``may``
        selects the clients that may be asked, since every client can claim to be in a group."""
        found = self.producers.get(group)
        if not found:
            return None
        self._turn += 1
        callers = list(found)
        start = self._turn % len(callers)
        waiting: Caller | None = None
        for caller in callers[start:] + callers[:start]:
            if caller.is_closed or not may(found[caller].client):
                continue
            if not caller.is_stalled:
                return caller
            waiting = waiting or caller
        return waiting

    def producer(self, client_id: str) -> Caller | None:
        """Return the newest open connection of a producer."""
        known = self._by_client.get(client_id)
        if known is not None:
            for caller, user in reversed(known.users.items()):
                if user == known.owner and not caller.is_closed:
                    return caller
        return None

    # --- closed connections ----------------------------------------------------------------------------

    def closed(self, caller: Caller, reason: str, /) -> None:
        """Forget the memberships of a closed connection."""
        for group in self._consumes_in.pop(caller, ()):
            self._remove_consumer(group, caller, reason)
        for group in self._produces_in.pop(caller, ()):
            self._remove_producer(group, caller)

    def expire(self) -> list[Caller]:
        """Close connections whose last heartbeat is too old."""
        latest_s = self._clock.monotonic_s() - self._options.member_timeout_ms / 1000
        tables = [found.by_caller for found in self.consumers.values()] + list(self.producers.values())
        silent = {
            caller: member for table in tables for caller, member in table.items() if member.seen_s < latest_s
        }
        for caller, member in silent.items():
            reason = f"no heartbeat for more than {self._options.member_timeout_ms / 1000:g} s"
            log.warning(
                "member_expired client=%r peer=%s reason=%r", member.client_id, caller.address, reason
            )
            self.expired += 1
            self.closed(caller, reason)
            caller.close(reason)
        return list(silent)

    def _look(self) -> None:
        self._scan = self._clock.beat(SCAN_S, self._look)
        self.expire()

    # --- inside ----------------------------------------------------------------------------------------

    def _check_room(
        self,
        groups: dict[Caller, set[str]],
        members: dict[Caller, Member] | None,
        client: ConnectedClient,
        group: str,
    ) -> None:
        """Raise if the connection is in too many groups, or the group has too many members."""
        if len(groups.get(client.caller, ())) >= GROUPS_OF_CLIENT_MAX:
            raise too_many(
                f"groups of client {client.client_id!r}", "GROUPS_OF_CLIENT_MAX", GROUPS_OF_CLIENT_MAX
            )
        if members is not None and len(members) >= MEMBERS_OF_GROUP_MAX:
            raise too_many(f"members of group {group!r}", "MEMBERS_OF_GROUP_MAX", MEMBERS_OF_GROUP_MAX)

    def _seen(self, table: dict[Caller, Member], client: ConnectedClient) -> tuple[Member, bool]:
        """Return the member, and whether it is new or has changed its client id."""
        member = table.get(client.caller)
        changed = member is None or member.client_id != client.client_id
        if member is None:
            member = table[client.caller] = Member(client)
        elif changed:
            log.warning(
                "client_renamed peer=%s was=%r now=%r next='one connection belongs to one client'",
                client.caller.address, member.client_id, client.client_id,
            )  # fmt: skip
            self._forget_name(member)
        member.client = client
        member.seen_s = self._clock.monotonic_s()
        member.seen_ms = self._clock.wall_ms()
        return member, changed

    def _remove_consumer(self, group: str, caller: Caller, reason: str) -> bool:
        found = self.consumers.get(group)
        member = None if found is None else found.by_caller.pop(caller, None)
        if found is None or member is None:
            return False
        log.info(
            "consumer_left group=%r client=%r peer=%s members=%d reason=%r",
            group, member.client_id, caller.address, len(found.by_caller), reason,
        )  # fmt: skip
        if found.by_caller:
            self._notify(found)
            return True
        del self.consumers[group]
        self.on_deserted(group)
        return True

    def _remove_producer(self, group: str, caller: Caller) -> bool:
        found = self.producers.get(group)
        member = None if found is None else found.pop(caller, None)
        if found is None or member is None:
            return False
        if not found:
            del self.producers[group]
        self._forget_name(member)
        return True

    def _forget_name(self, member: Member) -> None:
        """Forget a producer's client id, unless the connection still uses it in another group."""
        for group in self._produces_in.get(member.caller, ()):
            other = self.producers.get(group, {}).get(member.caller)
            if other is not None and other is not member and other.client_id == member.client_id:
                return
        known = self._by_client.get(member.client_id)
        if known is not None:
            known.users.pop(member.caller, None)
            if not known.users:
                del self._by_client[member.client_id]

    def _compare(self, found: ConsumerMembers, member: Member, wanted: tuple[SubscriptionData, ...]) -> None:
        """Warn if two members of a group have different subscriptions, because messages are then skipped."""
        wants = frozenset(
            [(data.topic, data.expression_type or "", data.sub_string or "") for data in wanted]
        )
        if wants == member.wants:
            return
        member.wants = wants
        for other, others in found.differing(member):
            key = (other.client_id, wants, others)
            if key in member.warned or (member.client_id, others, wants) in other.warned:
                continue
            if len(member.warned) >= MISMATCHES_TOLD_MAX:
                member.warned.clear()
            member.warned.add(key)
            found.mismatches += 1
            self.mismatches += 1
            log.warning(
                "subscription_mismatch group=%r member=%r has=%r other=%r others=%r "
                "next='give every member of a group the same subscriptions'",
                found.group, member.client_id, _text(wants - others), other.client_id, _text(others - wants),
            )  # fmt: skip

    def _notify(self, found: ConsumerMembers) -> None:
        """Notify the members soon: one notice for all changes until then."""
        if not found.notify or not self._options.notify_members or found.model is MessageModel.BROADCASTING:
            return
        if not self._to_notify:
            asyncio.get_running_loop().call_soon(self._tell)
        self._to_notify.add(found.group)

    def _tell(self) -> None:
        groups, self._to_notify = self._to_notify, set()
        for group in groups:
            found = self.consumers.get(group)
            if found is None:
                continue
            for caller in list(found.by_caller):
                try:
                    caller.tell(
                        RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, ConsumerIdsChanged(consumer_group=group)
                    )
                except KeroloxError as error:
                    log.debug("notice_failed group=%r peer=%s error=%r", group, caller.address, error)


def _text(wants: Subscribed) -> str:
    return ", ".join(f"{topic}: {expression}" for topic, _, expression in sorted(wants)) or "nothing else"
