"""Answers for admin tools: clusters and lists of topics."""

from __future__ import annotations

from collections.abc import Callable

from kerolox.nameserver.routes import Routes
from kerolox.protocol.bodies.routes import BrokerMemberGroup, ClusterInfo, TopicList
from kerolox.protocol.flags import TOPIC_UNIT, TOPIC_UNIT_SUBSCRIBED


def cluster_info(routes: Routes) -> ClusterInfo:
    return ClusterInfo(
        broker_addr_table={name: group.data() for name, group in routes.groups.items()},
        cluster_addr_table={cluster: tuple(sorted(names)) for cluster, names in routes.clusters.items()},
    )


def member_group(routes: Routes, cluster: str, name: str) -> BrokerMemberGroup:
    """Return the brokers of one name; an empty group if the name is unknown."""
    group = routes.groups.get(name)
    return BrokerMemberGroup(
        cluster=cluster, broker_name=name, broker_addrs={} if group is None else dict(group.addresses)
    )


def all_topics(routes: Routes) -> TopicList:
    return TopicList(topic_list=tuple(sorted(routes.topics)))


def cluster_topics(routes: Routes, cluster: str) -> TopicList:
    """Return the topics with queues in a cluster; none if the cluster is unknown."""
    topics: set[str] = set()
    for name in routes.clusters.get(cluster, ()):
        topics |= routes.groups[name].topics
    return TopicList(topic_list=tuple(sorted(topics)))


def system_topics(routes: Routes) -> TopicList:
    """Return the topics named after clusters and brokers, and the address of a broker that knows further
    ones."""
    names = set(routes.clusters).union(*routes.clusters.values())
    addresses = (group.addresses[group.lowest_id] for group in routes.groups.values() if group.addresses)
    return TopicList(topic_list=tuple(sorted(names)), broker_addr=next(addresses, None))


def unit_topics(routes: Routes) -> TopicList:
    return _flagged(routes, lambda flags: bool(flags & TOPIC_UNIT))


def unit_subscribed_topics(routes: Routes) -> TopicList:
    return _flagged(routes, lambda flags: bool(flags & TOPIC_UNIT_SUBSCRIBED))


def unit_subscribed_not_unit_topics(routes: Routes) -> TopicList:
    return _flagged(routes, lambda flags: bool(flags & TOPIC_UNIT_SUBSCRIBED) and not flags & TOPIC_UNIT)


def _flagged(routes: Routes, wanted: Callable[[int], bool]) -> TopicList:
    # One broker's flags are enough: the flags of a topic are the same at all brokers.
    return TopicList(
        topic_list=tuple(
            sorted(
                topic
                for topic, table in routes.topics.items()
                if wanted(next(iter(table.values())).topic_sys_flag)
            )
        )
    )
