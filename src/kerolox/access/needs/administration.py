"""Needs of administration: topics, groups, clients, options, and messages between brokers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from kerolox.access.needs import names
from kerolox.access.needs.kinds import each, header_of
from kerolox.front.needs import Need, Rule, View
from kerolox.front.requests import Request
from kerolox.protocol.bodies.groups import GroupConfig, GroupConfigList
from kerolox.protocol.bodies.topics import TopicConfigList
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


# --- rules -----------------------------------------------------------------------------------------------

CREATE_TOPIC = Rule(_create_topic, administers=True)
CREATE_TOPICS = Rule(_create_topics, administers=True)
CREATE_GROUP = Rule(_put_one_group, administers=True)
CREATE_GROUPS = Rule(_put_groups, administers=True)
CONSUME_STATS = Rule(_consume_stats)
CORRECTION = Rule(_correction)
CLONE = Rule(_clone, administers=True)
