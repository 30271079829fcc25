"""Requests about the offsets of a queue, and the meaning of their responses."""

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

# Successful response codes about progress, including a group without progress.
PROGRESS_CODES: Final = (ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND)


class Edges(NamedTuple):
    """Offset range of a queue, from ``first`` up to but not including ``end``.

    ``follower``: the address of the follower that answered, which may be behind its leader; empty for the
    leader.
    """

    first: int
    end: int
    follower: str = ""


def ask_first(topic: str, broker: str | None, queue_id: int) -> Ask:
    """Return the request for the first stored offset."""
    return Ask(
        RequestCode.GET_MIN_OFFSET, MinOffsetRequest(topic=topic, queue_id=queue_id, broker_name=broker)
    )


def ask_end(topic: str, broker: str | None, queue_id: int) -> Ask:
    """Return the request for the offset of the next message."""
    return Ask(
        RequestCode.GET_MAX_OFFSET, MaxOffsetRequest(topic=topic, queue_id=queue_id, broker_name=broker)
    )


def read_edge(answer: Command) -> int:
    """Return the first or end offset of a response. An empty queue may answer -1, which becomes 0."""
    return max(0, answer.header(OffsetAnswer).offset)


def ask_progress(
    topic: str, broker: str | None, queue_id: int, group: str, *, zero_if_young: bool = False
) -> Ask:
    """Return the request for a group's progress. The response code is one of PROGRESS_CODES.

    ``zero_if_young``: for a queue that still has all its messages, the broker answers 0 to a new group.
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
    """Return the group's offset; None without progress."""
    if answer.code == ResponseCode.QUERY_NOT_FOUND:
        return None
    offset = answer.header(OffsetAnswer).offset
    return offset if offset >= 0 else None


def ask_commit(topic: str, broker: str | None, queue_id: int, group: str, offset: int) -> Ask:
    """Return the request that sets a group's progress."""
    return Ask(
        RequestCode.UPDATE_CONSUMER_OFFSET,
        UpdateOffsetRequest(
            consumer_group=group, topic=topic, queue_id=queue_id, commit_offset=offset, broker_name=broker
        ),
    )
