"""Needs of administration: topics, groups, clients, options, and messages between brokers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from kerolox.access.needs import names
from kerolox.access.needs.kinds import CHANGES, CHANGES_ACCESS, CHANGES_OPTIONS, LOOKS, each, header_of, on
from kerolox.access.resources import Need
from kerolox.access.rules import Rule, Rules, View
from kerolox.front.requests import Request
from kerolox.protocol.bodies.groups import GroupConfig, GroupConfigList
from kerolox.protocol.bodies.topics import TopicConfigList
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.headers.group import ConsumeStatsRequest
from kerolox.protocol.headers.offset import CloneOffsetRequest, CorrectionOffsetRequest
from kerolox.protocol.headers.topic import CreateTopicRequest

# --- create and update -----------------------------------------------------------------------------------


def _put_topic(name: str, view: View) -> Iterator[Need]:
    yield from names.topic(name, names.UPDATE if view.has_topic(name) else names.CREATE, view)


def _put_group(name: str, view: View) -> Need:
    return names.group(name, names.UPDATE if view.has_group(name) else names.CREATE)


def _create_topic(asked: Request[Any], view: View) -> Iterator[Need]:
    return _put_topic(header_of(asked, CreateTopicRequest).topic, view)


def _create_topics(asked: Request[None], view: View) -> Iterable[Need]:
    configs = TopicConfigList.decode(asked.body).topic_config_list
    return each(need for config in configs for need in _put_topic(config.topic_name, view))


def _put_one_group(asked: Request[None], view: View) -> Iterator[Need]:
    if asked.body:
        yield _put_group(GroupConfig.decode(asked.body).group_name, view)


def _put_groups(asked: Request[None], view: View) -> Iterable[Need]:
    configs = GroupConfigList.decode(asked.body).group_config_list
    return each(_put_group(config.group_name, view) for config in configs)


# --- the progress of groups ------------------------------------------------------------------------------


def _consume_stats(asked: Request[ConsumeStatsRequest], view: View) -> Iterable[Need]:
    """Yield the needs on the group and on the topics that the request names."""
    header = asked.header
    found = [names.group(header.consumer_group, names.GET)]
    for name in (header.topic, *(header.topic_list or "").split(";")):
        if name and name.strip():
            found += names.topic(name, names.GET, view, header.consumer_group)
    return each(found)


def _correction(asked: Request[CorrectionOffsetRequest], view: View) -> Iterable[Need]:
    """Include the groups in ``filter_groups``: the answer changes with their progress and so reveals it."""
    header = asked.header
    found = [names.group(header.compare_group, names.GET)]
    found += names.topic(header.topic, names.GET, view, header.compare_group)
    found += (names.group(name, names.GET) for name in (header.filter_groups or "").split(",") if name)
    return each(found)


def _clone(asked: Request[CloneOffsetRequest], view: View) -> Iterator[Need]:
    """Without a topic the request clones all topics that the source group consumes; only the broker knows
    them, so it needs a right to the cluster."""
    header = asked.header
    yield names.group(header.src_group, names.GET)
    yield names.group(header.dest_group, names.UPDATE)
    if header.topic is not None and header.topic.strip():
        yield from names.topic(header.topic, names.UPDATE, view, header.src_group)
    else:
        yield names.cluster(view, names.UPDATE)


# --- tables ----------------------------------------------------------------------------------------------

_CREATE_TOPIC = Rule(_create_topic, administers=True)
_TOPIC = on(topic=("topic", names.GET))
_BOTH = on(topic=("topic", names.GET), group=("group", names.GET))

TOPICS_AND_GROUPS: Rules = {
    RequestCode.UPDATE_AND_CREATE_TOPIC: _CREATE_TOPIC,
    RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC: _CREATE_TOPIC,
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: Rule(_create_topics, administers=True),
    RequestCode.DELETE_TOPIC_IN_BROKER: on(topic=("topic", names.DELETE), administers=True),
    RequestCode.GET_TOPIC_CONFIG: _TOPIC,
    RequestCode.GET_TOPIC_STATS_INFO: _TOPIC,
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: _TOPIC,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: Rule(_put_one_group, administers=True),
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: Rule(_put_groups, administers=True),
    RequestCode.DELETE_SUBSCRIPTIONGROUP: on(group=("group_name", names.DELETE), administers=True),
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: on(group=("group", names.GET)),
    RequestCode.QUERY_TOPICS_BY_CONSUMER: on(group=("group", names.GET)),
    RequestCode.GET_CONSUMER_CONNECTION_LIST: on(group=("consumer_group", names.GET)),
    RequestCode.GET_CONSUMER_RUNNING_INFO: on(group=("consumer_group", names.GET)),
    RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: _BOTH,
    RequestCode.QUERY_CONSUME_TIME_SPAN: _BOTH,
    RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: _BOTH,
    RequestCode.QUERY_CONSUME_QUEUE: on(topic=("topic", names.GET), group=("consumer_group", names.GET)),
    RequestCode.QUERY_CORRECTION_OFFSET: Rule(_correction),
    RequestCode.GET_CONSUME_STATS: Rule(_consume_stats),
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: on(
        topic=("topic", names.UPDATE), group=("group", names.UPDATE), administers=True
    ),
    RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN: on(
        topic=("topic", names.UPDATE), group=("group", names.UPDATE), administers=True
    ),
    RequestCode.CLONE_GROUP_OFFSET: Rule(_clone, administers=True),
    # The message goes to a consumer of the group. The handler checks its topic, which only the store knows.
    RequestCode.CONSUME_MESSAGE_DIRECTLY: on(
        topic=("topic", names.SUB), group=("consumer_group", names.SUB)
    ),
}  # fmt: skip

BROKER: Rules = {
    **dict.fromkeys(
        (
            RequestCode.GET_ALL_TOPIC_CONFIG,
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
            RequestCode.GET_PRODUCER_CONNECTION_LIST,
            RequestCode.GET_ALL_PRODUCER_INFO,
            RequestCode.GET_BROKER_CONSUME_STATS,
            RequestCode.VIEW_BROKER_STATS_DATA,
            RequestCode.GET_BROKER_CONFIG,
            RequestCode.GET_BROKER_RUNTIME_INFO,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER,
            RequestCode.GET_BROKER_HA_STATUS,
            RequestCode.GET_COLD_DATA_FLOW_CTR_INFO,
            RequestCode.CHECK_ROCKSDB_CQ_WRITE_PROGRESS,
            RequestCode.EXPORT_ROCKSDB_CONFIG_TO_JSON,
            # Copied by followers.
            RequestCode.GET_ALL_CONSUMER_OFFSET,
            RequestCode.GET_ALL_DELAY_OFFSET,
            RequestCode.GET_TIMER_CHECK_POINT,
            RequestCode.GET_TIMER_METRICS,
            RequestCode.GET_BROKER_EPOCH_CACHE,
        ),
        LOOKS,
    ),
    RequestCode.UPDATE_BROKER_CONFIG: CHANGES_OPTIONS,
    **dict.fromkeys(
        (
            RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE,
            RequestCode.CLEAN_UNUSED_TOPIC,
            RequestCode.DELETE_EXPIRED_COMMITLOG,
            RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG,
            RequestCode.REMOVE_COLD_DATA_FLOW_CTR_CONFIG,
            RequestCode.SET_COMMITLOG_READ_MODE,
            RequestCode.SWITCH_TIMER_ENGINE,
            RequestCode.ADD_BROKER,
            RequestCode.REMOVE_BROKER,
            # Sent by name servers, controllers and other brokers.
            RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE,
            RequestCode.EXCHANGE_BROKER_HA_INFO,
            RequestCode.WATCH_TABLES,
            RequestCode.RESET_MASTER_FLUSH_OFFSET,
            RequestCode.NOTIFY_BROKER_ROLE_CHANGED,
        ),
        CHANGES,
    ),
}

# A user who could change rules could grant himself every right, and one who could change passwords could sign
# as any user. So no rule grants this right. The handlers check again and show passwords only to Super users.
ACCESS: Rules = {
    **dict.fromkeys(
        (
            RequestCode.AUTH_CREATE_USER,
            RequestCode.AUTH_UPDATE_USER,
            RequestCode.AUTH_DELETE_USER,
            RequestCode.AUTH_CREATE_ACL,
            RequestCode.AUTH_UPDATE_ACL,
            RequestCode.AUTH_DELETE_ACL,
            RequestCode.UPDATE_AND_CREATE_ACL_CONFIG,
            RequestCode.DELETE_ACL_CONFIG,
            RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG,
        ),
        CHANGES_ACCESS,
    ),
    **dict.fromkeys(
        (
            RequestCode.AUTH_GET_USER,
            RequestCode.AUTH_LIST_USER,
            RequestCode.AUTH_GET_ACL,
            RequestCode.AUTH_LIST_ACL,
            RequestCode.GET_BROKER_CLUSTER_ACL_INFO,
            RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG,
        ),
        LOOKS,
    ),
}
