"""The three strings in the header of a POP answer, from which clients compute the handles.

Items are joined by ``;`` and have three fields, separated by one space. Clients reject an answer in which the
first two fields of two items are equal.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from kerolox.errors import ProtocolError


class QueueOffsets(NamedTuple):
    """Messages of one queue in an answer: ascending offsets, read from ``start`` on."""

    retry: str
    queue_id: int
    start: int
    offsets: Sequence[int]


def start_offset_text(queues: Iterable[QueueOffsets]) -> str:
    return ";".join(f"{queue.retry} {queue.queue_id} {queue.start}" for queue in queues)


def message_offset_text(queues: Iterable[QueueOffsets]) -> str:
    return ";".join(f"{queue.retry} {queue.queue_id} {','.join(map(str, queue.offsets))}" for queue in queues)


def order_count_text(retry: str, queue_id: int, offsets: Sequence[int], counts: Mapping[int, int]) -> str:
    """Return how often messages were delivered before: an item for each that was, and one for the queue with
    the smallest count."""
    items = [f"{retry} qo{queue_id}%{offset} {counts[offset]}" for offset in offsets if counts.get(offset)]
    smallest = min((counts.get(offset, 0) for offset in offsets), default=0)
    return ";".join([*items, f"{retry} {queue_id} {smallest}"])


def read_start_offsets(text: str | None) -> dict[tuple[str, str], int]:
    """Return the start offset by retry form and queue."""
    return {key: _number(value) for key, value in _items(text).items()}


def read_message_offsets(text: str | None) -> dict[tuple[str, str], list[int]]:
    """Return the offsets by retry form and queue."""
    return {key: [*map(_number, value.split(","))] for key, value in _items(text).items()}


def read_order_counts(text: str | None) -> dict[tuple[str, str], int]:
    """Return the counts by retry form and queue, or ``qo<queue>%<offset>``."""
    return read_start_offsets(text)


def _items(text: str | None) -> dict[tuple[str, str], str]:
    found: dict[tuple[str, str], str] = {}
    if not text:
        return found
    for item in text.split(";"):
        fields = item.split(" ")
        if len(fields) != 3:
            raise ProtocolError(f"item {item[:100]!r} of a POP answer has {len(fields)} fields, expected 3")
        key = (fields[0], fields[1])
        if key in found:
            raise ProtocolError(
                f"queue {fields[1][:40]!r} of form {fields[0][:10]!r} is twice in a POP answer"
            )
        found[key] = fields[2]
    return found


def _number(text: str) -> int:
    if text.isascii() and text.isdigit() and len(text) < 20:
        return int(text)
    raise ProtocolError(f"{text[:40]!r} in a POP answer is no offset")
