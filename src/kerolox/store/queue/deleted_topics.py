"""Messages in the log that belong to deleted topics: ``kerolox.deleted``, kerolox's own note.

A deleted topic loses its queues immediately, but its messages stay in the log until their files are deleted.
A later pass over the log, after a kill or to rebuild lost queues, would enter them in queues again: the topic
would return, or its old messages would enter a new topic of the same name. RocketMQ's broker ignores the
file, and has both problems. See FORMAT.md, "Deleted topics".
"""

from __future__ import annotations

import logging

from kerolox.store.disk.files import Files, PathLike
from kerolox.store.disk.json_note import JsonNote
from kerolox.store.queue.consume_queues import ConsumeQueues

log = logging.getLogger(__name__)

NAME = "kerolox.deleted"


class DeletedTopics:
    """Deleted topics: messages of a topic before the log offset ``before[topic]`` belong to a deleted one."""

    def __init__(self, files: Files, directory: PathLike) -> None:
        self.before: dict[str, int] = {}
        self._note = JsonNote(files, directory, NAME, dict[str, int])

    def load(self) -> dict[bytes, int]:
        """Read the note, with topic names as bytes; without a note no topic was deleted. May wait. Raise
        DiskError if it cannot be read: deleted topics would return."""
        self.before = {}
        try:
            self.before = self._note.read() or {}
        except ValueError as error:
            log.warning(
                "deleted_topics_unknown path=%s error=%r next='if a deleted topic returns, delete it again'",
                self._note.path,
                str(error),
            )
        return {topic.encode(): offset for topic, offset in self.before.items()}

    def finish(self, queues: ConsumeQueues) -> None:
        """Remove queues that still exist because the process died during the deletion. Wait for the disk."""
        for topic, end in self.before.items():
            found = queues.by_topic.get(topic, {})
            if found and max(one.max_physical for one in found.values()) <= end:
                log.info("deletion_finished topic=%r", topic)
                queues.delete_topic(topic)

    def note(self, topic: str, offset: int, log_min: int) -> None:
        """Note that the topic was deleted when the log ended at ``offset``. Topics whose messages have left
        the log are dropped. Runs in a thread. Raise StoreError."""
        self._save({name: end for name, end in {**self.before, topic: offset}.items() if end > log_min})

    def fit(self, log_end: int) -> None:
        """Adjust the note to the recovered end of the log: later messages are new. Runs in a thread. Raise
        StoreError."""
        if any(end > log_end for end in self.before.values()):
            self._save({name: min(end, log_end) for name, end in self.before.items()})

    def _save(self, before: dict[str, int]) -> None:
        self._note.write(before)
        self.before = before
