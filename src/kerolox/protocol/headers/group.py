"""Consumer groups of a broker: settings, members, progress."""

from __future__ import annotations

from kerolox.protocol.header import Header, Int32, wire


class DeleteGroupRequest(Header, frozen=True, kw_only=True):
    """Delete a group's settings, and its progress if asked."""

    group_name: str
    clean_offset: bool = False


class GroupConfigRequest(Header, frozen=True, kw_only=True):
    """The settings of this group."""

    group: str


class AllGroupConfigRequest(Header, frozen=True, kw_only=True):
    """The settings of all groups, or (5.3) of some by their place in name order."""

    group_seq: Int32 | None = None
    max_group_num: Int32 | None = None
    data_version: str | None = None  # JSON


class AllGroupConfigAnswer(Header, frozen=True, kw_only=True):
    """How many there are in all."""

    total_group_num: Int32 | None = None


class GroupForbiddenRequest(Header, frozen=True, kw_only=True):
    """May this group read this topic? Set it, or only ask."""

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
    """How far is this group, queue by queue?"""

    consumer_group: str
    topic: str | None = None
    topic_list: str | None = None  # joined by semicolons


class BrokerConsumeStatsRequest(Header, frozen=True, kw_only=True, rename=wire(is_order="isOrder")):
    """How far are all groups?"""

    is_order: bool = False


class GroupTopicsRequest(Header, frozen=True, kw_only=True):
    """Which topics does this group consume?"""

    group: str


class GroupSubscriptionRequest(Header, frozen=True, kw_only=True):
    """What has this group subscribed of the topic?"""

    group: str
    topic: str | None = None


class ConsumeTimeSpanRequest(Header, frozen=True, kw_only=True):
    """From when to when do the group's waiting messages reach?"""

    topic: str
    group: str
