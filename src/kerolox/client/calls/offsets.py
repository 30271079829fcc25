"""Questions about the offsets of a queue, and what their answers mean."""

from __future__ import annotations

from typing import Final, NamedTuple

from kerolox.client.calls.steps import Ask
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.command import Command
from kerolox.protocol.headers.offset import (
    MaxOffsetRequest,
    MinOffsetRequest,
    OffsetAnswer,
    QueryOffsetRequest,
    UpdateOffsetRequest,
)

# The codes of answers about progress: a group that has not begun is no failure.
PROGRESS_CODES: Final = (ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND)


class Edges(NamedTuple):
    """What a queue holds: from ``first`` up to ``end``, not including it. ``follower``: the address of the
    copy that said so, which may hold less than its leader; empty: the leader itself."""

    first: int
    end: int
    follower: str = ""


def ask_first(topic: str, broker: str | None, queue_id: int) -> Ask:
    """Which is the first offset still there?"""
    return Ask(
        RequestCode.GET_MIN_OFFSET, MinOffsetRequest(topic=topic, queue_id=queue_id, broker_name=broker)
    )


def ask_end(topic: str, broker: str | None, queue_id: int) -> Ask:
    """Which offset will the next message have?"""
    return Ask(
        RequestCode.GET_MAX_OFFSET, MaxOffsetRequest(topic=topic, queue_id=queue_id, broker_name=broker)
    )


def read_edge(answer: Command) -> int:
    """The offset, of either edge. A queue that never had a message may say -1."""
    return max(0, answer.header(OffsetAnswer).offset)


def ask_progress(
    topic: str, broker: str | None, queue_id: int, group: str, *, zero_if_young: bool = False
) -> Ask:
    """How far is a group? Answered with one of PROGRESS_CODES.

    ``zero_if_young``: of a queue that has all its messages still, a new group is told 0 by the broker.
    """
    return Ask(
        RequestCode.QUERY_CONSUMER_OFFSET,
        QueryOffsetRequest(
            consumer_group=group,
            topic=topic,
            queue_id=queue_id,
            set_zero_if_not_found=None if zero_if_young else False,
            broker_name=broker,
        ),
    )


def read_progress(answer: Command) -> int | None:
    """The offset; None when the group has not begun."""
    if answer.code == ResponseCode.QUERY_NOT_FOUND:
        return None
    offset = answer.header(OffsetAnswer).offset
    return offset if offset >= 0 else None


def tell_progress(topic: str, broker: str | None, queue_id: int, group: str, offset: int) -> Ask:
    """Set how far a group is."""
    return Ask(
        RequestCode.UPDATE_CONSUMER_OFFSET,
        UpdateOffsetRequest(
            consumer_group=group, topic=topic, queue_id=queue_id, commit_offset=offset, broker_name=broker
        ),
    )
