"""Names that mean something: system topics and groups, prefixes, and which names are allowed."""

from __future__ import annotations

import re
from typing import Final

from kerolox.errors import InvalidRequest
from kerolox.protocol.limits import GROUP_LENGTH_MAX, RETRY_TOPIC_LENGTH_MAX, TOPIC_LENGTH_MAX
from kerolox.store.delay_table import SCHEDULE_TOPIC

RETRY_PREFIX: Final = "%RETRY%"
DEAD_LETTER_PREFIX: Final = "%DLQ%"
SYSTEM_PREFIX: Final = "rmq_sys_"

TEMPLATE_TOPIC: Final = "TBW102"  # new topics are made after it
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
NOT_FOR_SENDING: Final = frozenset({
    SCHEDULE_TOPIC, HALF_TOPIC, HALF_DONE_TOPIC, CHECKED_TOO_OFTEN_TOPIC, SELF_TEST_TOPIC, OFFSET_MOVED_TOPIC,
})  # fmt: skip
SYSTEM_GROUPS: Final = (
    "TOOLS_CONSUMER", "FILTERSRV_CONSUMER", "SELF_TEST_C_GROUP", "CID_ONS-HTTP-PROXY", "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION", "CID_ONSAPI_OWNER", "CID_RMQ_SYS_TRANS",
)  # fmt: skip

_ALLOWED = re.compile(r"[%|a-zA-Z0-9_-]+")


def check_topic(topic: str) -> None:
    """Raises InvalidRequest for a name no topic may have."""
    if not topic.strip():
        raise InvalidRequest("The specified topic is blank.")
    if not _ALLOWED.fullmatch(topic):
        raise InvalidRequest(
            f"The specified topic {topic!r} contains illegal characters, allowing only %|a-zA-Z0-9_-"
        )
    limit = (
        RETRY_TOPIC_LENGTH_MAX if topic.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX)) else TOPIC_LENGTH_MAX
    )
    if len(topic) > limit:
        raise InvalidRequest(f"The specified topic is {len(topic)} characters long, the limit is {limit}.")


def group_allowed(group: str) -> bool:
    return 0 < len(group) <= GROUP_LENGTH_MAX and _ALLOWED.fullmatch(group) is not None


def retry_topic(group: str) -> str:
    return RETRY_PREFIX + group


def group_of_retry_topic(topic: str) -> str:
    """The group of ``%RETRY%group``, or of ``%RETRY%group+topic`` as POP of 5.x has it."""
    name = topic.removeprefix(RETRY_PREFIX)
    group, plus, rest = name.partition("+")
    return group if plus and rest and "+" not in rest else name


def dead_letter_topic(group: str) -> str:
    return DEAD_LETTER_PREFIX + group
