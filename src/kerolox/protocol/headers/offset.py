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
    """Asks how far a group is in a queue."""

    consumer_group: str
    topic: str
    queue_id: Int32
    set_zero_if_not_found: bool | None = None
    broker_name: str | None = None


class UpdateOffsetRequest(Header, frozen=True, kw_only=True, rename=wire(broker_name="bname")):
    """Commits how far a group is in a queue."""

    consumer_group: str
    topic: str
    queue_id: Int32
    commit_offset: Int64
    broker_name: str | None = None


class SearchOffsetRequest(Header, frozen=True, kw_only=True, rename=wire(broker_name="bname")):
    """Asks for the offset at a time."""

    topic: str
    queue_id: Int32
    timestamp: Int64
    boundary_type: BoundaryType | None = None
    broker_name: str | None = None


class MaxOffsetRequest(Header, frozen=True, kw_only=True, rename=wire(broker_name="bname")):
    """Asks for the offset that the next message will have."""

    topic: str
    queue_id: Int32
    committed: bool = True
    broker_name: str | None = None


class MinOffsetRequest(Header, frozen=True, kw_only=True, rename=wire(broker_name="bname")):
    """Asks for the first offset that is still there."""

    topic: str
    queue_id: Int32
    broker_name: str | None = None


class OffsetAnswer(Header, frozen=True, kw_only=True):
    """The offset that one of the four requests above asked for."""

    offset: Int64


class EarliestStoreTimeRequest(Header, frozen=True, kw_only=True, rename=wire(broker_name="bname")):
    """Asks when the first message that is still there was stored."""

    topic: str
    queue_id: Int32
    broker_name: str | None = None


class EarliestStoreTimeAnswer(Header, frozen=True, kw_only=True):
    """When it was stored; -1 when there is no message."""

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
