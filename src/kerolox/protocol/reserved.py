"""Names with a meaning to brokers and clients: system topics and groups, and prefixes."""

from __future__ import annotations

from collections.abc import Container
from typing import Final

RETRY_PREFIX: Final = "%RETRY%"
DEAD_LETTER_PREFIX: Final = "%DLQ%"
SYSTEM_PREFIX: Final = "rmq_sys_"
SYSTEM_GROUP_PREFIX: Final = "CID_RMQ_SYS_"
REPLY_SUFFIX: Final = "_REPLY_TOPIC"
UNDELIVERED_GROUP: Final = "kerolox_undelivered"  # group of dead letters that belong to no consumer group
LIGHT_PREFIX: Final = "%LMQ%"  # prefix of light queues, and of the groups that consume them
TRACE_PREFIX: Final = "rmq_sys_TRACE_DATA_"  # prefix of trace topics of cloud clients

TEMPLATE_TOPIC: Final = "TBW102"  # new topics copy its settings
SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"  # delayed messages by delay level, one queue each
HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
HALF_DONE_TOPIC: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
CHECKED_TOO_OFTEN_TOPIC: Final = "TRANS_CHECK_MAX_TIME_TOPIC"
SELF_TEST_TOPIC: Final = "SELF_TEST_TOPIC"
OFFSET_MOVED_TOPIC: Final = "OFFSET_MOVED_EVENT"
BENCHMARK_TOPIC: Final = "BenchmarkTest"
TRACE_TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"
TIMER_TOPIC: Final = "rmq_sys_wheel_timer"

SYSTEM_TOPICS: Final = frozenset({
    TEMPLATE_TOPIC, SCHEDULE_TOPIC, BENCHMARK_TOPIC, HALF_TOPIC, TRACE_TOPIC, HALF_DONE_TOPIC,
    CHECKED_TOO_OFTEN_TOPIC, SELF_TEST_TOPIC, OFFSET_MOVED_TOPIC, "CHECKPOINT_TOPIC",
})  # fmt: skip
# RocketMQ's six, and the timer's: brokers deliver messages found there to the topic that their properties
# name.
NOT_FOR_SENDING: Final = frozenset({
    SCHEDULE_TOPIC, HALF_TOPIC, HALF_DONE_TOPIC, CHECKED_TOO_OFTEN_TOPIC, SELF_TEST_TOPIC, OFFSET_MOVED_TOPIC,
    TIMER_TOPIC,
})  # fmt: skip
# topics through which brokers of one name find each other
MEMBER_TOPIC_PREFIX: Final = "rmq_sys_SYNC_BROKER_MEMBER_"
# topics of POP checkpoints and acknowledgements, one per cluster
REVIVE_PREFIX: Final = "rmq_sys_REVIVE_LOG_"


def is_closed(topic: str) -> bool:
    """Return whether only brokers write to a topic: neither clients nor delayed deliveries may."""
    return topic in NOT_FOR_SENDING or topic.startswith(REVIVE_PREFIX)


HALF_GROUP: Final = "CID_RMQ_SYS_TRANS"  # consumer group of the half messages
# namespace in which name servers keep the queues of ordered topics
ORDER_TOPIC_CONFIG: Final = "ORDER_TOPIC_CONFIG"
TOOLS_GROUP: Final = "TOOLS_CONSUMER"  # group of tools that only read; it exists on every broker
SYSTEM_GROUPS: Final = (
    TOOLS_GROUP, "FILTERSRV_CONSUMER", "SELF_TEST_C_GROUP", "CID_ONS-HTTP-PROXY", "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION", "CID_ONSAPI_OWNER", HALF_GROUP,
)  # fmt: skip


def is_of_system(topic: str, servers: Container[str] = ()) -> bool:
    """Return whether brokers created a topic for themselves or for a group: a system, retry, dead-letter or
    reply topic. All others are topics of users. ``servers`` are the names of clusters and brokers, which have
    topics of their own."""
    return (
        topic in SYSTEM_TOPICS
        or topic in servers
        or topic.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX, SYSTEM_PREFIX))
        or topic.endswith(REPLY_SUFFIX)
    )
