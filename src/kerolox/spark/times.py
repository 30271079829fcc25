"""Start or end times of queues: one for all queues, per topic, or per queue."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kerolox.client.messages import Queue
from kerolox.client.names import with_namespace
from kerolox.spark.option_table import moment


@dataclass(frozen=True)
class Times:
    """Times in milliseconds since 1970. The time of a queue overrides that of its topic."""

    all_ms: int | None = None
    topics: Mapping[str, int] = field(default_factory=dict)
    queues: Mapping[Queue, int] = field(default_factory=dict)

    def of(self, queue: Queue) -> int | None:
        """Return the time of a queue; None if none was given."""
        return self.queues.get(queue, self.topics.get(queue.topic, self.all_ms))

    def in_namespace(self, namespace: str) -> Times:
        """Return the times under topic names with the namespace."""
        return Times(
            self.all_ms,
            {with_namespace(namespace, topic): at for topic, at in self.topics.items()},
            {q._replace(topic=with_namespace(namespace, q.topic)): at for q, at in self.queues.items()},
        )


def read_times(text: str) -> Times:
    """Parse ``{"orders": "15m", "clicks": {"broker-a": {"0": 1769857200000}}}``. Raises ValueError."""
    topics: dict[str, int] = {}
    queues: dict[Queue, int] = {}
    for topic, brokers in _items(json.loads(text), "topics"):
        if not isinstance(brokers, dict):
            topics[topic] = _time(brokers, topic)
            continue
        for broker, numbers in _items(brokers, f"brokers of {topic}"):
            for number, time in _items(numbers, f"queues of {topic}/{broker}"):
                if not number.isdecimal():
                    raise ValueError(f"queue {number!r} of {topic}/{broker} is no number")
                queues[Queue(topic, broker, int(number))] = _time(time, f"{topic}/{broker}/{number}")
    if not topics and not queues:
        raise ValueError("empty")
    return Times(topics=topics, queues=queues)


def _items(tree: object, what: str) -> list[tuple[str, Any]]:
    if not isinstance(tree, dict):
        raise ValueError(f"{what}: expected an object, found {json.dumps(tree)}")
    return list(tree.items())


def _time(value: object, where: str) -> int:
    if isinstance(value, str) or type(value) is int:
        try:
            return moment(str(value).strip())
        except ValueError:
            pass
    raise ValueError(f"{json.dumps(value)} of {where} is not a time")
