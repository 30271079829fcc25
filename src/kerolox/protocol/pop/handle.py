"""Handle of a popped message: the text ``extraInfo`` of an acknowledgement, and the property ``POP_CK``.

Eight fields, separated by one space: start offset of the checkpoint, pop time, invisible time, revive queue,
retry form, broker name, queue id, queue offset. Further fields are ignored, as in RocketMQ.
"""

from __future__ import annotations

from typing import Final, NamedTuple, Self

from kerolox.errors import InvalidRequest
from kerolox.protocol.limits import INT64_MAX

ORDER_QUEUE: Final = 999  # revive queue of ordered pops, which have no checkpoints
_FIELDS = 8
_NUMBER_DIGITS_MAX = 20


class Handle(NamedTuple):
    """A popped message of one queue, and the pop that it belongs to."""

    start_offset: int  # first offset of the checkpoint
    pop_time: int
    invisible_time: int
    revive_queue: int
    retry: str  # "0": normal topic, "1" and "2": retry topic
    broker_name: str
    queue_id: int
    offset: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a handle. Raise InvalidRequest if it has too few fields, or a field that is no number."""
        fields = text.split(" ")
        if len(fields) < _FIELDS:
            raise InvalidRequest(f"handle {text[:200]!r} has {len(fields)} fields, expected {_FIELDS}")
        start, popped, invisible, revive, retry, broker, queue, offset = fields[:_FIELDS]
        return cls(
            _number(start), _number(popped), _number(invisible), _number(revive),
            retry, broker, _number(queue), _number(offset),
        )  # fmt: skip

    def __str__(self) -> str:
        return " ".join(map(str, self))


def _number(text: str) -> int:
    digits = text.removeprefix("-")
    if digits.isascii() and digits.isdigit() and len(digits) < _NUMBER_DIGITS_MAX:
        number = int(text)
        if abs(number) <= INT64_MAX:
            return number
    raise InvalidRequest(f"{text[:40]!r} in a handle is no number of 64 bits")
