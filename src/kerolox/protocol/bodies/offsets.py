"""Tables of offsets: a broker's, a group's, a client's."""

from __future__ import annotations

from typing import Any, Self

from kerolox.protocol.bodies.body import Body, MessageQueue, from_tree
from kerolox.protocol.bodies.topics import DataVersion
from kerolox.protocol.json_dialect import ObjectKey, dumps, loads


class ConsumerOffsetTable(Body, frozen=True, kw_only=True):
    """Answer to GET_ALL_CONSUMER_OFFSET, and the broker's file: ``topic@group`` → queue → offset."""

    data_version: DataVersion | None = None
    group_topic_map: dict[str, tuple[str, ...]] | None = None  # Java derives it; no reader needs it
    offset_table: dict[str, dict[int, int]] = {}


class LightOffsetTable(Body, frozen=True, kw_only=True):
    """Additional table of brokers with light queues: ``topic@group`` → offset."""

    lmq_offset_table: dict[str, int] = {}


class DelayOffsetTable(Body, frozen=True, kw_only=True):
    """Answer to GET_ALL_DELAY_OFFSET, and the broker's file: delay level → offset."""

    data_version: DataVersion | None = None
    offset_table: dict[int, int] = {}


class CorrectionOffsets(Body, frozen=True, kw_only=True):
    """Answer to QUERY_CORRECTION_OFFSET: queue → offset."""

    correction_offsets: dict[int, int] = {}


class ConsumerStatus(Body, frozen=True, kw_only=True):
    """Progress of members: one client's table, or all clients' tables by id."""

    consumer_table: dict[str, dict[MessageQueue, int]] = {}
    message_queue_table: dict[MessageQueue, int] = {}


class ResetOffsets(Body, frozen=True, kw_only=True):
    """Offsets to continue from. Encoded as a list, not a map, for clients written in C++; both are
    decoded."""

    offset_table: dict[MessageQueue, int] = {}

    @classmethod
    def decode(cls, data: bytes | str) -> Self:
        tree = loads(data)
        if isinstance(tree, dict) and isinstance(tree.get("offsetTable"), list):
            tree = {"offsetTable": _keyed(tree["offsetTable"])}
        return from_tree(tree, cls)

    def encode_for_cpp(self) -> bytes:
        """The list form."""
        rows = [
            {
                "brokerName": queue.broker_name,
                "offset": offset,
                "queueId": queue.queue_id,
                "topic": queue.topic,
            }
            for queue, offset in sorted(self.offset_table.items())
        ]
        return dumps({"offsetTable": rows})


def _keyed(rows: list[Any]) -> dict[Any, Any]:
    table: dict[Any, Any] = {}
    for row in rows:
        if isinstance(row, dict):
            offset = row.pop("offset", 0)
            table[ObjectKey(row)] = offset
    return table
