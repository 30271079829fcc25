"""Static topics: logical queues that live on several brokers one after the other."""

from __future__ import annotations

from kerolox.protocol.bodies.body import Body


class QueueMapping(Body, frozen=True, kw_only=True):
    """Which logical queues of a topic one broker serves now: logical id → its own queue id."""

    bname: str | None = None
    curr_id_map: dict[int, int] = {}
    dirty: bool = False
    epoch: int = 0
    scope: str = "__global__"
    topic: str | None = None
    total_queues: int = 0


class QueueMappingItem(Body, frozen=True, kw_only=True):
    """One stretch of a logical queue."""

    bname: str | None = None
    end_offset: int = -1
    gen: int = 0
    logic_offset: int = 0
    queue_id: int = 0
    start_offset: int = 0
    time_of_end: int = -1
    time_of_start: int = -1


class QueueMappingDetail(QueueMapping, frozen=True, kw_only=True):
    """A queue mapping with the stretches of every logical queue."""

    hosted_queues: dict[int, tuple[QueueMappingItem, ...]] = {}
