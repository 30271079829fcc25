"""Where plain sends may go without a further look, as runs of them need it.

A target rests on its topic, on what its sender may do, on who leads, and on the options. Whatever of these
changes is told here: then the target is forgotten, and the next run asks the guard and Admission again.
"""

from __future__ import annotations

from typing import TypeAlias

from kerolox.broker.write.admission import Admission
from kerolox.broker.write.intake import Intake
from kerolox.errors import KeroloxError
from kerolox.protocol.bodies.topics import TopicConfig
from kerolox.protocol.send_runs import SendTarget

TARGETS_MAX = 10_000  # known at once; past that they are learned anew

# Who sends: its access key, and the address it sends from, for rights may rest on both. None where everybody
# may send everything.
Sender: TypeAlias = "tuple[bytes, bytes] | None"


class ClearedTargets:
    """Sender → topic → the queues that are cleared for plain sends."""

    def __init__(self, admission: Admission, intake: Intake) -> None:
        self._admission = admission
        self._intake = intake
        self._by_sender: dict[Sender, dict[bytes, SendTarget]] = {}
        self._count = 0

    def of(self, sender: Sender) -> dict[bytes, SendTarget]:
        """The cleared topics and queues of one sender. Not to be kept: ask again for the next run."""
        found = self._by_sender.get(sender)
        if found is None:
            found = self._by_sender[sender] = {}
        return found

    def learn(self, sender: Sender, topic: str, queue_id: int) -> bool:
        """Remember a queue as cleared for a sender that may send to the topic, if plain sends may go there;
        returns whether it is new."""
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

    # --- what they rest on ---------------------------------------------------------------------------

    def topic_changed(self, config: TopicConfig) -> None:
        self.topic_removed(config.topic_name)

    def topic_removed(self, topic: str) -> None:
        name = topic.encode()
        for known in self._by_sender.values():
            if known.pop(name, None) is not None:
                self._count -= 1

    def forget(self) -> None:
        """Forget all targets: the leader, the options, or the rights of a sender have changed."""
        self._by_sender.clear()
        self._count = 0
