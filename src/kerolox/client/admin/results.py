"""Results of administration. Times are milliseconds since 1970 and, as properties, datetimes in UTC."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

import msgspec

from kerolox.client.messages import Queue, Received
from kerolox.protocol.flags import PERM_READ, PERM_WRITE


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all results."""


class TopicAtBroker(Result, frozen=True, kw_only=True):
    """Settings of a topic at one broker."""

    broker: str
    write_queues: int
    read_queues: int
    perm: int  # 4 readable, 2 writable, 6 both
    ordered: bool = False
    attributes: Mapping[str, str] = {}

    @property
    def readable(self) -> bool:
        return bool(self.perm & PERM_READ)

    @property
    def writable(self) -> bool:
        return bool(self.perm & PERM_WRITE)


class Topic(Result, frozen=True, kw_only=True):
    """A topic and its settings at each broker that serves it."""

    name: str
    brokers: tuple[TopicAtBroker, ...]

    @property
    def queues(self) -> int:
        """Number of queues to write to, at all brokers."""
        return sum(broker.write_queues for broker in self.brokers)


class QueueStats(Result, frozen=True, kw_only=True):
    """Offsets of a queue: from ``first`` up to ``end``, not including it."""

    queue: Queue
    first: int
    end: int
    stored_ms: int | None = None  # time of the newest message

    @property
    def messages(self) -> int:
        """Number of messages in the queue."""
        return self.end - self.first

    @property
    def stored_at(self) -> datetime | None:
        return moment(self.stored_ms)


class GroupAtBroker(Result, frozen=True, kw_only=True):
    """Settings of a consumer group at one broker."""

    broker: str
    consume: bool  # False: its members receive nothing
    ordered: bool
    broadcast: bool  # broadcast consumption is allowed
    retries: int  # before a message becomes a dead letter
    disabled: str | None = None  # reason of the broker that disabled the group


class Group(Result, frozen=True, kw_only=True):
    """A consumer group and its settings at each broker. A group that only pulls may have none."""

    name: str
    brokers: tuple[GroupAtBroker, ...]

    @property
    def disabled(self) -> dict[str, str]:
        """Broker → its reason, of the brokers that disabled the group and gave one."""
        return {one.broker: one.disabled for one in self.brokers if one.disabled is not None}


class QueueProgress(Result, frozen=True, kw_only=True):
    """Progress of a consumer group in one queue."""

    queue: Queue
    committed: int  # offset of the next message to consume
    end: int  # offset of the next message to be stored
    in_flight: int  # messages pulled and not committed
    consumed_ms: int | None = None  # store time of the last message consumed

    @property
    def lag(self) -> int:
        """Number of messages not consumed."""
        return self.end - self.committed

    @property
    def consumed_at(self) -> datetime | None:
        return moment(self.consumed_ms)


class TopicGroup(Result, frozen=True, kw_only=True):
    """A consumer group of a topic. ``lag`` is None when the group has no progress in the topic."""

    group: str
    members: int
    lag: int | None


class GroupMember(Result, frozen=True, kw_only=True):
    """A connected member of a consumer group."""

    client_id: str
    address: str
    language: str
    version: str
    brokers: tuple[str, ...]  # that it is connected to


class GroupMembers(Result, frozen=True, kw_only=True):
    """The connected members of a consumer group and their subscriptions: topic → expression."""

    members: tuple[GroupMember, ...]
    subscriptions: Mapping[str, str] = {}
    model: str | None = None  # CLUSTERING or BROADCASTING; None without members
    type: str | None = None  # CONSUME_PASSIVELY (push) or CONSUME_ACTIVELY (pull)


class OffsetChange(Result, frozen=True, kw_only=True):
    """A queue whose committed offset was, or would be, set."""

    queue: Queue
    before: int | None  # None: the group had no progress there
    after: int


class FoundMessages(Result, frozen=True, kw_only=True):
    """Messages that were found. ``cut`` is the reason why there may be more; empty: these are all."""

    messages: tuple[Received, ...]
    cut: str = ""


class DeadLetterGroup(Result, frozen=True, kw_only=True):
    """Dead letters of a consumer group, in numbers."""

    group: str
    messages: int
    oldest_ms: int | None
    newest_ms: int | None
    brokers: tuple[str, ...]

    @property
    def oldest_at(self) -> datetime | None:
        return moment(self.oldest_ms)

    @property
    def newest_at(self) -> datetime | None:
        return moment(self.newest_ms)


class ResendResult(Result, frozen=True, kw_only=True):
    """Numbers of a run that resent dead letters, or of its preview."""

    total: int  # dead letters found
    resent: int  # in a preview: would be resent
    passed_over: int  # resent by an earlier run


class User(Result, frozen=True, kw_only=True):
    """A user of access control. Brokers that agree on type and status are listed together."""

    name: str
    super_user: bool
    enabled: bool
    brokers: tuple[str, ...]  # addresses


class Rule(Result, frozen=True, kw_only=True):
    """A rule of an access policy."""

    user: str
    resource: str  # such as Topic:orders, Group:shop-* or *
    actions: tuple[str, ...]
    allow: bool
    sources: tuple[str, ...]  # addresses and networks; empty: anywhere
    policy: str  # Custom, or Default, which applies where no rule of Custom matches
    brokers: tuple[str, ...]


def moment(time_ms: int | None) -> datetime | None:
    """Return a time in UTC; None without one."""
    return None if time_ms is None else datetime.fromtimestamp(time_ms / 1000, UTC)
