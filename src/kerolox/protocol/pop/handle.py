"""Handle of a popped message: the text ``extraInfo`` of an acknowledgement, and the property ``POP_CK``.

Eight fields, separated by one space: start offset of the checkpoint, pop time, invisible time, revive queue,
retry form, broker name, queue id, queue offset. Further fields are ignored, as in RocketMQ.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple, Self

from kerolox.errors import InvalidRequest
from kerolox.protocol.limits import INT64_MAX

ORDER_QUEUE: Final = 999  # revive queue of ordered pops, which have no checkpoints
_FIELDS = 8
_NUMBER = r"(-?\d{1,19})"
_HANDLE = re.compile(
    rf"{_NUMBER} {_NUMBER} {_NUMBER} {_NUMBER} ([^ ]*) ([^ ]*) {_NUMBER} {_NUMBER}(?: |\Z)", re.ASCII
)


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
        found = _HANDLE.match(text)
        if found is None:
            raise InvalidRequest(
                f"handle {text[:200]!r}: expected {_FIELDS} fields, of which all but the fifth and sixth are "
                "numbers of 64 bits"
            )
        start, popped, invisible, revive, retry, broker, queue, offset = found.groups()
        handle = cls(
            int(start), int(popped), int(invisible), int(revive), retry, broker, int(queue), int(offset)
        )
        if max(map(abs, (*handle[:4], *handle[6:]))) > INT64_MAX:
            raise InvalidRequest(f"handle {text[:200]!r} has a number beyond 64 bits")
        return handle

    def __str__(self) -> str:
        return " ".join(map(str, self))
