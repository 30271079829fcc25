"""Subscriptions of consumers: tags, their hashes, and the subscription data that contains them.

The broker compares hashes, which may collide; the client compares the tags themselves.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from kerolox.errors import InvalidRequest
from kerolox.protocol import properties as names
from kerolox.protocol.bodies.heartbeat import SubscriptionData
from kerolox.protocol.java import java_hash, wrap32

ALL: Final = "*"
TAG: Final = "TAG"
SQL92: Final = "SQL92"

_TAGS_CACHED_MAX: Final = 8192
_TAG_CACHED_LENGTH_MAX: Final = 64  # a longer one would let its sender fill the memory
_BLANKS: Final = "".join(map(chr, range(0x21)))  # what Java's trim takes away: all up to the space


def tag_hash(tag: str | bytes) -> int:
    """Return the hash of a tag as queue entries contain it: signed 32 bits, 0 for no tag."""
    return _remembered_hash(tag) if len(tag) <= _TAG_CACHED_LENGTH_MAX else java_hash(tag)


_remembered_hash: Final = lru_cache(_TAGS_CACHED_MAX)(java_hash)


def tag_hash_of(packed_properties: bytes) -> int:
    """Return the hash of the tag in packed properties."""
    tag = names.find(packed_properties, names.AT_TAGS)
    return tag_hash(tag) if tag else 0


def subscription(
    topic: str, expression: str | None, version_ms: int, expression_type: str | None = TAG
) -> SubscriptionData:
    """Return subscription data for ``A

    B``, for ``*`` (all), or for an SQL92 condition.

    ``version_ms`` is the wall time of its creation: a broker keeps the newest of a group.
    """
    if expression_type and expression_type != TAG:
        if not expression:
            raise InvalidRequest(f"subscription of {topic!r}: {expression_type} needs an expression")
        return _data(topic, expression, frozenset(), version_ms, expression_type)
    if not expression or expression == ALL:
        return _data(topic, ALL, frozenset(), version_ms, TAG)
    if not expression.replace("||", ""):
        raise InvalidRequest(f"subscription of {topic!r}: {expression!r} names no tag; {ALL!r} means all")
    tags = frozenset(tag for part in expression.split("||") if (tag := part.strip(_BLANKS)))
    return _data(topic, expression, tags, version_ms, TAG)


def is_tag_type(subscription: SubscriptionData) -> bool:
    return not subscription.expression_type or subscription.expression_type == TAG


def matches_hash(subscription: SubscriptionData, tags_code: int) -> bool:
    """Return whether a queue entry with this hash may match; always True for subscriptions other than by
    tags."""
    if subscription.class_filter_mode or not is_tag_type(subscription) or subscription.sub_string == ALL:
        return True
    return wrap32(tags_code) in subscription.code_set


def matches_tag(subscription: SubscriptionData, tag: str) -> bool:
    """Return whether a message with this tag ("" for none) matches, as checked by the client."""
    if subscription.class_filter_mode or not subscription.tags_set:
        return True
    return tag in subscription.tags_set


def _data(
    topic: str, expression: str, tags: frozenset[str], version_ms: int, expression_type: str
) -> SubscriptionData:
    return SubscriptionData(
        topic=topic,
        sub_string=expression,
        tags_set=tags,
        code_set=frozenset(map(tag_hash, tags)),
        sub_version=version_ms,
        expression_type=expression_type,
    )
