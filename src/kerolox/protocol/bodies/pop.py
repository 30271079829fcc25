"""Pop: many acknowledgements at once, and who pops where."""

from __future__ import annotations

from typing import Any, Self

from kerolox.errors import ProtocolError
from kerolox.protocol.bodies.body import Body, MessageQueue, from_tree
from kerolox.protocol.bodies.groups import RequestMode
from kerolox.protocol.bodies.heartbeat import MessageModel
from kerolox.protocol.header import wire
from kerolox.protocol.json_dialect import loads

ACK_OFFSETS_MAX = 65536  # a checkpoint holds at most 32 messages; this bounds a stranger's bit set

_SHORT = {
    "bits": "b",
    "consumer_group": "c",
    "invisible_time": "it",
    "pop_time": "pt",
    "queue_id": "q",
    "retry": "r",
    "revive_queue_id": "rq",
    "start_offset": "so",
    "topic": "t",
}
_LONG = {
    "bitSet": "b",
    "consumerGroup": "c",
    "invisibleTime": "it",
    "popTime": "pt",
    "queueId": "q",
    "retry": "r",
    "reviveQueueId": "rq",
    "startOffset": "so",
    "topic": "t",
}


class BatchAck(Body, frozen=True, kw_only=True, rename=wire(**_SHORT)):
    """Acknowledged messages of one checkpoint: bit k stands for ``start_offset + k``."""

    bits: bytes = b""  # bit k is bit k % 8 of byte k // 8
    consumer_group: str | None = None
    invisible_time: int = 0
    pop_time: int = 0
    queue_id: int = 0
    retry: str | None = None
    revive_queue_id: int = 0
    start_offset: int = 0
    topic: str | None = None

    @property
    def offsets(self) -> list[int]:
        """The acknowledged offsets."""
        if len(self.bits) * 8 > ACK_OFFSETS_MAX:
            raise ProtocolError(
                f"batch ack of {len(self.bits) * 8} bits: ACK_OFFSETS_MAX is {ACK_OFFSETS_MAX}"
            )
        return [
            self.start_offset + place * 8 + bit
            for place, byte in enumerate(self.bits)
            if byte
            for bit in range(8)
            if byte >> bit & 1
        ]


def bits_of(places: list[int]) -> bytes:
    """The bit set with these bits, as short as can be."""
    word = 0
    for place in places:
        word |= 1 << place
    return word.to_bytes((word.bit_length() + 7) // 8, "little")


class BatchAckRequest(Body, frozen=True, kw_only=True):
    """Body of BATCH_ACK_MESSAGE."""

    acks: tuple[BatchAck, ...] = ()
    broker_name: str | None = None

    @classmethod
    def decode(cls, data: bytes | str) -> Self:
        """Members may have their long names, too."""
        tree = loads(data)
        if isinstance(tree, dict) and isinstance(tree.get("acks"), list):
            tree["acks"] = [_shortened(ack) for ack in tree["acks"]]
        return from_tree(tree, cls)


def _shortened(ack: Any) -> Any:
    if not isinstance(ack, dict):
        return ack
    return {_LONG.get(key, key): value for key, value in ack.items()}


class QueryAssignment(Body, frozen=True, kw_only=True):
    """Body of QUERY_ASSIGNMENT."""

    client_id: str | None = None
    consumer_group: str | None = None
    message_model: MessageModel | None = None
    strategy_name: str | None = None
    topic: str | None = None


class Assignment(Body, frozen=True, kw_only=True):
    """A queue for this client, and how to get its messages."""

    attachments: dict[str, str] | None = None
    message_queue: MessageQueue | None = None
    mode: RequestMode = RequestMode.PULL


class AssignmentAnswer(Body, frozen=True, kw_only=True):
    """Answer to QUERY_ASSIGNMENT. None, not empty, when the strategy is unknown."""

    message_queue_assignments: tuple[Assignment, ...] | None = None
