"""Consumer groups of a broker: settings, members, progress."""

from __future__ import annotations

from kerolox.protocol.header import Header, Int32, wire


class DeleteGroupRequest(Header, frozen=True, kw_only=True):
    """Delete a group's settings, and its progress if asked."""

    group_name: str
    clean_offset: bool = False


class GroupConfigRequest(Header, frozen=True, kw_only=True):
    """Asks for the settings of a group."""

    group: str


class AllGroupConfigRequest(Header, frozen=True, kw_only=True):
    """The settings of all groups, or (5.3) of some by their place in name order."""

    group_seq: Int32 | None = None
    max_group_num: Int32 | None = None
    data_version: str | None = None  # JSON


class AllGroupConfigAnswer(Header, frozen=True, kw_only=True):
    """How many groups there are in all."""

    total_group_num: Int32 | None = None


class GroupForbiddenRequest(Header, frozen=True, kw_only=True):
    """Sets, or asks, whether a group may read a topic."""

    group: str
    topic: str
    readable: bool | None = None


class ConsumerConnectionRequest(Header, frozen=True, kw_only=True):
    """The connections and subscriptions of a consumer group."""

    consumer_group: str


class ProducerConnectionRequest(Header, frozen=True, kw_only=True):
    """The connections of a producer group."""

    producer_group: str


class ConsumeStatsRequest(Header, frozen=True, kw_only=True):
    """Asks how far a group is, queue by queue."""

    consumer_group: str
    topic: str | None = None
    topic_list: str | None = None  # joined by semicolons


class BrokerConsumeStatsRequest(Header, frozen=True, kw_only=True, rename=wire(is_order="isOrder")):
    """Asks how far all groups of a broker are."""

    is_order: bool = False


class GroupTopicsRequest(Header, frozen=True, kw_only=True):
    """Asks which topics a group consumes."""

    group: str


class GroupSubscriptionRequest(Header, frozen=True, kw_only=True):
    """Asks what a group has subscribed of a topic."""

    group: str
    topic: str | None = None


class ConsumeTimeSpanRequest(Header, frozen=True, kw_only=True):
    """Asks from when to when the waiting messages of a group were stored."""

    topic: str
    group: str
