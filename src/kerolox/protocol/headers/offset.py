"""Offsets: a consumer's progress, and the bounds of a queue."""

from __future__ import annotations

from enum import StrEnum

from kerolox.protocol.header import Header, Int32, Int64, wire


class BoundaryType(StrEnum):
    """Which of the offsets around a point in time."""

    LOWER = "LOWER"
    UPPER = "UPPER"

    @classmethod
    def _missing_(cls, value: object) -> BoundaryType:
        return cls.UPPER if str(value).upper() == "UPPER" else cls.LOWER


class QueryOffsetRequest(Header, frozen=True, kw_only=True, rename=wire(broker_name="bname")):
    """How far is this group in this queue?"""

    consumer_group: str
    topic: str
    queue_id: Int32
    set_zero_if_not_found: bool | None = None
    broker_name: str | None = None


class UpdateOffsetRequest(Header, frozen=True, kw_only=True, rename=wire(broker_name="bname")):
    """This group is so far in this queue."""

    consumer_group: str
    topic: str
    queue_id: Int32
    commit_offset: Int64
    broker_name: str | None = None


class SearchOffsetRequest(Header, frozen=True, kw_only=True, rename=wire(broker_name="bname")):
    """The offset at this time."""

    topic: str
    queue_id: Int32
    timestamp: Int64
    boundary_type: BoundaryType | None = None
    broker_name: str | None = None


class MaxOffsetRequest(Header, frozen=True, kw_only=True, rename=wire(broker_name="bname")):
    """The offset the next message will have."""

    topic: str
    queue_id: Int32
    committed: bool = True
    broker_name: str | None = None


class MinOffsetRequest(Header, frozen=True, kw_only=True, rename=wire(broker_name="bname")):
    """The first offset still there."""

    topic: str
    queue_id: Int32
    broker_name: str | None = None


class OffsetAnswer(Header, frozen=True, kw_only=True):
    """An offset: the answer to all four questions above."""

    offset: Int64


class EarliestStoreTimeRequest(Header, frozen=True, kw_only=True, rename=wire(broker_name="bname")):
    """When was the first message still there stored?"""

    topic: str
    queue_id: Int32
    broker_name: str | None = None


class EarliestStoreTimeAnswer(Header, frozen=True, kw_only=True):
    """Then; -1 when there is none."""

    timestamp: Int64


class ResetOffsetRequest(Header, frozen=True, kw_only=True, rename=wire(is_force="isForce")):
    """Move a group to a point in time: asked of a broker (222), pushed to a consumer (220)."""

    topic: str
    group: str
    timestamp: Int64 = 0
    is_force: bool = False
    queue_id: Int32 = -1
    offset: Int64 | None = None


class ConsumerStatusRequest(Header, frozen=True, kw_only=True):
    """How far are the group's members? Asked of a broker (223) and of a consumer (221)."""

    topic: str
    group: str
    client_addr: str | None = None


class CorrectionOffsetRequest(Header, frozen=True, kw_only=True):
    """Progress of one group compared with others."""

    topic: str
    compare_group: str
    filter_groups: str | None = None  # joined by commas


class CloneOffsetRequest(Header, frozen=True, kw_only=True):
    """Give one group the progress of another."""

    src_group: str
    dest_group: str
    topic: str | None = None
    offline: bool = False
