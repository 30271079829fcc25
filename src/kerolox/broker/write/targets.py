"""Queues that accept plain sends without a further check, for runs of them.

A target depends on its topic, the rights of its sender, the role of the broker, and the options. When one of
these changes, the target is forgotten, and the next run asks the guard and Admission again.
"""

from __future__ import annotations

from typing import TypeAlias

from kerolox.broker.write.admission import Admission
from kerolox.broker.write.intake import Intake
from kerolox.errors import KeroloxError
from kerolox.protocol.bodies.topics import TopicConfig
from kerolox.protocol.plain_sends import SendTarget

TARGETS_MAX = 10_000  # known at once; beyond that all are forgotten and learned again

# Identity of a sender: its access key and its source address, since rights may depend on both. None if every
# client may send everything.
Sender: TypeAlias = "tuple[bytes, bytes] | None"


class ClearedTargets:
    """Sender → topic → the queues that are cleared for plain sends."""

    def __init__(self, admission: Admission, intake: Intake) -> None:
        self._admission = admission
        self._intake = intake
        self._by_sender: dict[Sender, dict[bytes, SendTarget]] = {}
        self._count = 0

    def of(self, sender: Sender) -> dict[bytes, SendTarget]:
        """Return the cleared topics and queues of one sender. Do not keep the result: ask again for the next
        run."""
        found = self._by_sender.get(sender)
        if found is None:
            found = self._by_sender[sender] = {}
        return found

    def learn(self, sender: Sender, topic: str, queue_id: int) -> bool:
        """Clear a queue for a sender that may send to the topic, if plain sends may go there. Return whether
        it is new."""
        if not self._admission.takes_plain(topic, queue_id):
            return False
        name = topic.encode()
        target = self.of(sender).get(name)
        if target is not None and queue_id in target[2]:
            return False
        try:
            cursor = self._intake.cursor(topic, queue_id)
        except KeroloxError:
            return False
        if target is None:
            if self._count >= TARGETS_MAX:
                self.forget()
            self._count += 1
            target = self.of(sender)[name] = (cursor.topic_name, cursor.field, {})
        target[2][queue_id] = cursor
        return True

    # --- invalidation --------------------------------------------------------------------------------

    def topic_changed(self, config: TopicConfig) -> None:
        self.topic_removed(config.topic_name)

    def topic_removed(self, topic: str) -> None:
        name = topic.encode()
        for known in self._by_sender.values():
            if known.pop(name, None) is not None:
                self._count -= 1

    def forget(self) -> None:
        """Forget all targets: the role, the options, or the rights of a sender have changed."""
        self._by_sender.clear()
        self._count = 0
