"""Rules of names and texts that clients send, each with its code."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from kerolox.errors import InvalidRequest, KeroloxError
from kerolox.front.refusals import NOT_AUTHENTICATED, NOT_AUTHORIZED
from kerolox.front.requests import Answer
from kerolox.protocol import properties as packed
from kerolox.protocol.bodies.heartbeat import SubscriptionData
from kerolox.protocol.codes import ResponseCode
from kerolox.protocol.filters.sql import compile_filter
from kerolox.protocol.grpc.messages import Code, FilterType
from kerolox.protocol.grpc.schema import Message
from kerolox.protocol.reserved import (
    DEAD_LETTER_PREFIX,
    RETRY_PREFIX,
    SYSTEM_GROUP_PREFIX,
    is_closed,
    is_of_system,
)
from kerolox.protocol.subscription import SQL92, TAG, is_tag_type, subscription

TOPIC_MAX: Final = 127
GROUP_MAX: Final = 120
MESSAGE_GROUP_BYTES: Final = 64  # exclusive
LITE_TOPIC_BYTES: Final = 64
PROPERTIES_MAX: Final = 128
PROPERTIES_BYTES_MAX: Final = 16_384

_RULE = "names have letters, digits, %, |, _ and -"
_NAME = re.compile(r"[%|a-zA-Z0-9_-]+")
_LITE_NAME = re.compile(r"[a-zA-Z0-9_-]+")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
# Properties that decide where a message goes, or what it is: users set them by the fields made for that.
_FORGING: Final = frozenset({
    packed.SHARDING_KEY, packed.INNER_MULTI_DISPATCH, packed.INNER_NUM, packed.INNER_BASE,
    packed.CHECK_IMMUNITY_S, packed.TRANSACTION_ID, packed.TRANSACTION_CHECK_TIMES,
    "__LITE_TOPIC", "_SYS_MSG_PRIORITY_",
})  # fmt: skip
HIDDEN: Final = packed.RESERVED | _FORGING | {packed.TRACE_CONTEXT}


class Rejected(KeroloxError):
    """A request that is answered with this code and text."""

    def __init__(self, status: Code, text: str) -> None:
        super().__init__(text)
        self.status = status


# Codes of remoting that clients react to. All others are INTERNAL_SERVER_ERROR.
_FROM_REMOTING: Final[dict[int, Code]] = {
    ResponseCode.SUCCESS: Code.OK,
    ResponseCode.SYSTEM_BUSY: Code.TOO_MANY_REQUESTS,
    ResponseCode.REQUEST_CODE_NOT_SUPPORTED: Code.NOT_IMPLEMENTED,
    ResponseCode.TOPIC_NOT_EXIST: Code.TOPIC_NOT_FOUND,
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: Code.CONSUMER_GROUP_NOT_FOUND,
    ResponseCode.NO_PERMISSION: Code.FORBIDDEN,
    ResponseCode.SUBSCRIPTION_PARSE_FAILED: Code.ILLEGAL_FILTER_EXPRESSION,
}


def from_remoting(answer: Answer) -> Rejected:
    """Return the rejection that a broker's error means."""
    status = _FROM_REMOTING.get(answer.code, Code.INTERNAL_SERVER_ERROR)
    if answer.reason in (NOT_AUTHENTICATED, NOT_AUTHORIZED):
        status = Code.UNAUTHORIZED
    return Rejected(status, answer.remark or f"the broker answered {answer.code} without a text")


def resource_name(resource: Message) -> str:
    """Return the name of a topic or group as brokers know it."""
    namespace: str = resource.resource_namespace
    name: str = resource.name
    return f"{namespace}%{name}" if namespace and name else name


def check_topic(topic: str) -> str:
    """Return the name of a topic that clients may use."""
    if not topic.strip():
        raise Rejected(Code.ILLEGAL_TOPIC, "the topic is blank")
    if len(topic) > TOPIC_MAX or not _NAME.fullmatch(topic):
        raise Rejected(
            Code.ILLEGAL_TOPIC,
            f"topic {topic[:TOPIC_MAX]!r} has {len(topic)} characters; {_RULE}, {TOPIC_MAX} at most",
        )
    if is_closed(topic) or (is_of_system(topic) and not topic.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX))):
        raise Rejected(Code.ILLEGAL_TOPIC, f"topic {topic!r} belongs to the brokers")
    return topic


def check_group(group: str) -> str:
    """Return the name of a group that clients may use."""
    if not group.strip():
        raise Rejected(Code.ILLEGAL_CONSUMER_GROUP, "the consumer group is blank")
    if len(group) > GROUP_MAX or not _NAME.fullmatch(group):
        raise Rejected(
            Code.ILLEGAL_CONSUMER_GROUP,
            f"group {group[:GROUP_MAX]!r} has {len(group)} characters; {_RULE}, {GROUP_MAX} at most",
        )
    if group.startswith(SYSTEM_GROUP_PREFIX):
        raise Rejected(Code.ILLEGAL_CONSUMER_GROUP, f"group {group!r} belongs to the brokers")
    return group


def read_filter(topic: str, expression: Message) -> SubscriptionData:
    """Return the subscription that a filter expression means. Brokers check conditions of SQL92."""
    kind = SQL92 if expression.type == FilterType.SQL else TAG
    try:
        # One version for all members: the expression decides, not the time of the settings.
        return subscription(topic, expression.expression, 0, kind)
    except InvalidRequest as error:
        raise Rejected(Code.ILLEGAL_FILTER_EXPRESSION, str(error)) from error


def check_condition(wanted: SubscriptionData) -> None:
    """Check a condition of SQL92, where no broker does."""
    if is_tag_type(wanted):
        return
    try:
        compile_filter(wanted.sub_string or "")
    except InvalidRequest as error:
        raise Rejected(Code.ILLEGAL_FILTER_EXPRESSION, str(error)) from error


def check_tag(tag: str) -> None:
    if not tag.strip() or "|" in tag or _CONTROL.search(tag):
        raise Rejected(
            Code.ILLEGAL_MESSAGE_TAG, f"tag {tag[:80]!r} is blank, or holds | or a control character"
        )


def check_keys(keys: Iterable[str]) -> None:
    for key in keys:
        if not key.strip() or _CONTROL.search(key):
            raise Rejected(
                Code.ILLEGAL_MESSAGE_KEY, f"key {key[:80]!r} is blank or holds a control character"
            )


def check_message_group(group: str) -> None:
    size = len(group.encode())
    if not group.strip() or size >= MESSAGE_GROUP_BYTES or _CONTROL.search(group):
        raise Rejected(
            Code.ILLEGAL_MESSAGE_GROUP,
            f"message group {group[:80]!r} is blank, holds a control character, or has {size} bytes; "
            f"the limit is {MESSAGE_GROUP_BYTES - 1}",
        )


def check_lite_topic(lite_topic: str) -> None:
    if len(lite_topic) > LITE_TOPIC_BYTES or not _LITE_NAME.fullmatch(lite_topic):
        raise Rejected(
            Code.ILLEGAL_LITE_TOPIC,
            f"lite topic {lite_topic[:80]!r}: names have letters, digits, _ and -, "
            f"{LITE_TOPIC_BYTES} at most",
        )


def check_properties(user: Mapping[str, str], tag: str, keys: Iterable[str]) -> None:
    """Check the properties of a user, and the size of all together."""
    if len(user) > PROPERTIES_MAX:
        raise Rejected(
            Code.MESSAGE_PROPERTIES_TOO_LARGE, f"{len(user)} user properties, the limit is {PROPERTIES_MAX}"
        )
    size = len(tag.encode()) + sum(len(key.encode()) for key in keys)
    for name, value in user.items():
        if name in packed.RESERVED or name in _FORGING:
            raise Rejected(Code.ILLEGAL_MESSAGE_PROPERTY_KEY, f"property {name!r} is reserved")
        if not name or _CONTROL.search(name) or _CONTROL.search(value):
            raise Rejected(
                Code.ILLEGAL_MESSAGE_PROPERTY_KEY,
                f"property {name[:80]!r} = {value[:80]!r} holds a control character or has no name",
            )
        size += len(name.encode()) + len(value.encode())
    if size > PROPERTIES_BYTES_MAX:
        raise Rejected(
            Code.MESSAGE_PROPERTIES_TOO_LARGE,
            f"user properties, tag and keys have {size} bytes, the limit is {PROPERTIES_BYTES_MAX}",
        )
