"""Ordered pops: which messages of a queue a group has, and when it may have more. Pure decisions.

A group gets the next messages of a queue when all that it has are acknowledged or over. The offset of the
group stays at the first message that is not acknowledged, so messages come again with those after them.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

import msgspec

from kerolox.protocol.pop.order_record import OrderRecord


class OrderAck(Enum):
    """Results of an ordered acknowledgement that changes nothing."""

    UNKNOWN = "the message is not of the last pop"
    OLD = "the message was popped again since"


def popped(
    before: OrderRecord | None,
    offsets: Sequence[int],
    pop_ms: int,
    invisible_ms: int,
    attempt: str | None,
) -> OrderRecord:
    """Return the record of a pop. Messages that the group had before count one more delivery."""
    counts: dict[int, int] = {}
    if before is not None:
        known = before.counts or {}
        more = 0 if attempt is not None and attempt == before.attempt else 1
        had = set(before.offsets)
        counts = {offset: known.get(offset, 0) + more for offset in offsets if offset in had}
        counts = {offset: count for offset, count in counts.items() if count > 0}
    return OrderRecord(
        pop_time=pop_ms,
        invisible_ms=invisible_ms,
        distances=(offsets[0], *(offset - offsets[0] for offset in offsets[1:])),
        counts=counts or None,
        attempt=attempt,
        saved_ms=pop_ms,
    )


def acknowledged(record: OrderRecord, offset: int, pop_ms: int) -> tuple[OrderRecord, int] | OrderAck:
    """Return the record after an acknowledgement, and the offset of the group."""
    offsets = record.offsets
    if offset not in offsets:
        return OrderAck.UNKNOWN
    if pop_ms != record.pop_time:
        return OrderAck.OLD
    acked = record.acked | 1 << offsets.index(offset)
    after = msgspec.structs.replace(record, acked=acked)
    left = [at for place, at in enumerate(offsets) if not acked >> place & 1]
    return after, left[0] if left else offsets[-1] + 1


def changed(record: OrderRecord, offset: int, pop_ms: int, visible_ms: int) -> OrderRecord:
    """Return the record with another invisible time of one message; unchanged if it was popped again."""
    if pop_ms != record.pop_time or offset not in record.offsets:
        return record
    return msgspec.structs.replace(record, visible_ms={**(record.visible_ms or {}), offset: visible_ms})
