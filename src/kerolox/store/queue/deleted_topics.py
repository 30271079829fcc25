"""Which messages of the log belong to topics that were deleted: ``kerolox.deleted``, our own note.

A deleted topic loses its queues at once, but its messages stay in the log until their files go. Whoever reads
the log again, after a kill or to make lost queues anew, would enter them in queues once more: the topic came
back, or its old messages came into one that was made under the same name since. RocketMQ's broker ignores the
file, and has both. See FORMAT.md, "Deleted topics".
"""

from __future__ import annotations

import logging
import os
from zlib import crc32

import msgspec

from kerolox.store.disk.files import Files, PathLike
from kerolox.store.queue.consume_queues import ConsumeQueues

log = logging.getLogger(__name__)

NAME = "kerolox.deleted"


class DeletedTopics:
    """``before[topic]``: messages of the topic that lie before this place of the log are of a deleted one."""

    def __init__(self, files: Files, directory: PathLike) -> None:
        self.path = os.path.join(os.fspath(directory), NAME)
        self.before: dict[str, int] = {}
        self._files = files

    def load(self) -> dict[bytes, int]:
        """Read the note, by names as records have them; without one nothing was deleted. May wait. Raises
        DiskError when it cannot be read: deleted topics would come back."""
        self.before = {}
        try:
            data = self._files.read_if_exists(self.path)
            if data is not None:
                line, _, rest = data.partition(b"\n")
                if int(rest[:10]) != crc32(line):
                    raise ValueError("CRC")
                self.before = msgspec.json.decode(line, type=dict[str, int])
        except (ValueError, msgspec.DecodeError) as error:
            log.warning(
                "deleted_topics_unknown path=%s error=%r next='should a deleted topic come back, delete it "
                "again'",
                self.path,
                str(error),
            )
        return {topic.encode(): offset for topic, offset in self.before.items()}

    def finish(self, queues: ConsumeQueues) -> None:
        """Remove queues that are still there because the process died in between. Waits for the disk."""
        for topic, end in self.before.items():
            found = queues.by_topic.get(topic, {})
            if found and max(one.max_physical for one in found.values()) <= end:
                log.info("deletion_finished topic=%r", topic)
                queues.delete_topic(topic)

    def note(self, topic: str, offset: int, log_min: int) -> None:
        """The topic was deleted when the log ended here. What left the log since is forgotten. For a thread.
        Raises StoreError."""
        self._save({name: end for name, end in {**self.before, topic: offset}.items() if end > log_min})

    def fit(self, log_end: int) -> None:
        """The log was found to end here: what comes behind that is new. For a thread. Raises StoreError."""
        if any(end > log_end for end in self.before.values()):
            self._save({name: min(end, log_end) for name, end in self.before.items()})

    def _save(self, before: dict[str, int]) -> None:
        line = msgspec.json.encode(before)
        self._files.write_atomic(self.path, b"%b\n%010d\n" % (line, crc32(line)))
        self.before = before
