"""Filter of a read by a consumer group, and the refusal of such a read."""

from __future__ import annotations

from typing import NamedTuple

from kerolox.broker.consume.message_waits import PropertyFilter
from kerolox.errors import Refused
from kerolox.protocol import properties as packed
from kerolox.protocol.bodies.heartbeat import SubscriptionData
from kerolox.protocol.subscription import ALL, tag_hash
from kerolox.store.queue.reading import QueueFilter, RecordFilter, UnitFilter


class ReadRefused(Refused):
    """Rejection of a read by a group, with the type of the missing permission."""

    def __init__(self, code: int, remark: str, forbidden_type: int | None = None) -> None:
        self.forbidden_type = forbidden_type
        super().__init__(code, remark)


class ReadFilter(NamedTuple):
    """Filter of a read, with one form for each kind of data; None accepts every message."""

    by_queue: QueueFilter | None = None  # checks queue entries; may accept too many
    by_unit: UnitFilter | None = None  # checks the extension of the queue; may accept too many
    by_record: RecordFilter | None = None  # checks the records that the others accepted
    by_properties: PropertyFilter | None = None  # checks the properties of a message that has just arrived


def tag_filter(wanted: SubscriptionData) -> ReadFilter:
    if wanted.sub_string == ALL or wanted.class_filter_mode:
        return ReadFilter()
    codes = wanted.code_set

    def by_code(tags_code: int) -> bool:
        return tags_code in codes

    def by_properties(properties: bytes) -> bool:
        tag = packed.find(properties, packed.AT_TAGS)
        return (0 if tag is None else tag_hash(tag)) in codes

    return ReadFilter(by_queue=by_code, by_properties=by_properties)
