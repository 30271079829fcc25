"""Where plain sends may go without a further look, as runs of them need it.

A target rests on its topic, on what its sender may do, on who leads, and on the options. Whatever of these
changes is told here: then the target is forgotten, and the next run asks Admission again.
"""

from __future__ import annotations

from kerolox.broker.write.admission import Admission
from kerolox.broker.write.intake import Intake
from kerolox.errors import KeroloxError
from kerolox.protocol.bodies.topics import TopicConfig
from kerolox.protocol.send_runs import SendTarget

TARGETS_MAX = 10_000  # known at once; past that they are learned anew


class ClearedTargets:
    """Identity of the sender → topic → the queues that are cleared for plain sends."""

    def __init__(self, admission: Admission, intake: Intake) -> None:
        self._admission = admission
        self._intake = intake
        self._by_identity: dict[str | None, dict[bytes, SendTarget]] = {}
        self._count = 0

    def of(self, identity: str | None) -> dict[bytes, SendTarget]:
        """The cleared topics and queues of one sender. Not to be kept: ask again for the next run."""
        found = self._by_identity.get(identity)
        if found is None:
            found = self._by_identity[identity] = {}
        return found

    def learn(self, identity: str | None, topic: str, queue_id: int) -> bool:
        """Remember a queue as cleared, if plain sends of this sender may go there; returns whether it is
        new."""
        if not self._admission.takes_plain(identity, topic, queue_id):
            return False
        name = topic.encode()
        target = self.of(identity).get(name)
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
            target = self.of(identity)[name] = (cursor.topic_name, cursor.field, {})
        target[2][queue_id] = cursor
        return True

    # --- what they rest on ---------------------------------------------------------------------------

    def topic_changed(self, config: TopicConfig) -> None:
        self.topic_removed(config.topic_name)

    def topic_removed(self, topic: str) -> None:
        name = topic.encode()
        for known in self._by_identity.values():
            if known.pop(name, None) is not None:
                self._count -= 1

    def forget(self) -> None:
        """Forget all targets: the leader, the options, or the rights of a sender have changed."""
        self._by_identity.clear()
        self._count = 0
