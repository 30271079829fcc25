"""Offsets of readers: the next offset of each queue, in the forms of Spark and of users.

Users write ``{"orders": {"broker-a": {"0": 23, "1": -2}}}``: topic, broker, queue, next offset; -2 is the
earliest, -1 the latest.

Spark stores the offset at the end of a batch, and compares offsets as texts: so keys are sorted, and an
unchanged offset is returned as it is. The marked form is ``{"fmt": "rmq1", "group": "g", "ns":
"host:9876", "q": {...}}``, some parts of which are optional. ``from`` has the start offsets of the batch
that ends here, for queues whose start is not the end of the batch before: all queues in the first batch, new
queues, queues that lost messages. So a batch that is repeated after a crash is the same batch, whatever
``latest`` and ``earliest`` are by then. ``first`` marks the start offset of a query. ``last`` has the
identity of the last message before each offset (:mod:`kerolox.spark.last_read`); checkpoints of versions
before it have none.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from kerolox.client.messages import Queue
from kerolox.client.names import with_namespace
from kerolox.errors import ProtocolError
from kerolox.spark.last_read import LastRead, LastReads

EARLIEST: Final = -2
LATEST: Final = -1
FORM: Final = "rmq1"

QueueOffsets = dict[Queue, int]
Tree = dict[str, dict[str, dict[str, int]]]
LastTree = dict[str, dict[str, dict[str, list[int]]]]

T = TypeVar("T")


def queue_text(queue: Queue) -> str:
    return f"{queue.topic}/{queue.broker}/{queue.queue_id}"


def to_tree(places: Mapping[Queue, T]) -> dict[str, dict[str, dict[str, T]]]:
    """Return a nested dictionary with sorted keys."""
    tree: dict[str, dict[str, dict[str, T]]] = {}
    for queue in sorted(places):
        brokers = tree.setdefault(queue.topic, {})
        brokers.setdefault(queue.broker, {})[str(queue.queue_id)] = places[queue]
    return tree


def from_tree(tree: object) -> QueueOffsets:
    """Raises ValueError that says what is wrong."""
    found: QueueOffsets = {}
    for queue, offset in _leaves(tree):
        if type(offset) is not int or offset < EARLIEST:
            raise ValueError(f"offset {offset!r} of {queue_text(queue)} is not valid")
        found[queue] = offset
    return found


def last_tree(last: LastReads) -> LastTree:
    """Return the identities of last messages, nested like offsets."""
    return to_tree({queue: list(read) for queue, read in last.items()})


def from_last_tree(tree: object) -> LastReads:
    """Raises ValueError that says what is wrong."""
    found: LastReads = {}
    for queue, parts in _leaves(tree):
        if (
            not isinstance(parts, list)
            or len(parts) != len(LastRead._fields)
            or any(type(part) is not int for part in parts)
        ):
            raise ValueError(f"{parts!r} of {queue_text(queue)} is not an identity of a message")
        found[queue] = LastRead(*parts)
    return found


def _leaves(tree: object) -> Iterator[tuple[Queue, Any]]:
    for topic, brokers in _items(tree, "topics"):
        for broker, queues in _items(brokers, f"brokers of {topic}"):
            for number, leaf in _items(queues, f"queues of {topic}/{broker}"):
                if not number.isdecimal():
                    raise ValueError(f"queue {number!r} of {topic}/{broker} is no number")
                yield Queue(topic, broker, int(number)), leaf


def _items(tree: object, what: str) -> list[tuple[str, Any]]:
    if not isinstance(tree, dict):
        raise ValueError(f"{what}: expected an object, found {json.dumps(tree)}")
    return list(tree.items())


def read_offsets(text: str) -> str | QueueOffsets:
    """Parse ``earliest``, ``latest``, ``group``, or offsets of users. Raises ValueError."""
    if text.lower() in ("earliest", "latest", "group"):
        return text.lower()
    if not text.startswith("{"):
        raise ValueError
    return from_tree(json.loads(text))


def in_namespace(places: Mapping[Queue, int], namespace: str) -> QueueOffsets:
    """Return the offsets under topic names with the namespace."""
    return {queue._replace(topic=with_namespace(namespace, queue.topic)): at for queue, at in places.items()}


@dataclass(frozen=True)
class StreamOffset:
    """Offset of a streaming query."""

    group: str
    nameserver: str
    places: QueueOffsets = field(default_factory=dict)
    begins: QueueOffsets = field(default_factory=dict)  # starts of the batch that ends here, if needed
    first: bool = False
    last: LastReads = field(default_factory=dict)  # identity of the message before each offset, where known

    def encode(self) -> dict[str, Any]:
        form: dict[str, Any] = {"fmt": FORM}
        if self.first:
            form["first"] = True
        if self.begins:
            form["from"] = to_tree(self.begins)
        if self.last:
            form["last"] = last_tree(self.last)
        return form | {"group": self.group, "ns": self.nameserver, "q": to_tree(self.places)}

    @classmethod
    def decode(cls, form: Mapping[str, Any]) -> StreamOffset:
        if not is_marked(form):
            raise ProtocolError(
                f"{json.dumps(form)} is no offset of the format rocketmq. Does the checkpoint belong to "
                "another query? Use a separate checkpointLocation for this one"
            )
        try:
            return cls(
                group=str(form["group"]),
                nameserver=str(form.get("ns", "")),
                places=from_tree(form["q"]),
                begins=from_tree(form.get("from", {})),
                first=bool(form.get("first", False)),
                last=from_last_tree(form.get("last", {})),
            )
        except (ValueError, KeyError) as error:
            raise ProtocolError(f"{json.dumps(form)} is no offset of the format rocketmq: {error}") from None


def is_marked(form: object) -> bool:
    return isinstance(form, dict) and form.get("fmt") == FORM
