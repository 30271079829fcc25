"""All queues of a store: ``consumequeue/<topic>/<queue id>/``.

The event loop owns the table. A flush round is :meth:`ConsumeQueues.write` on the loop, then :func:`flush` of
its result in a thread.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from heapq import nlargest
from operator import attrgetter
from types import MappingProxyType

from kerolox.store.disk.files import Files, PathLike
from kerolox.store.disk.segment import OpenFiles
from kerolox.store.disk.segments import Segments
from kerolox.store.errors import StoreError
from kerolox.store.queue.consume_queue import ConsumeQueue, QueueCut
from kerolox.store.queue.entry import SIMPLE
from kerolox.store.queue.extended_queue import ExtendedQueue, NotedMessage
from kerolox.store.queue.extension import FILE_BYTES, QueueExtension

logger = logging.getLogger(__name__)

LOOKED_AT = 16  # queues that are searched for the start of a record
_NAME_BYTES_MAX = 255  # maximum length of a directory name, on every file system in use


class ConsumeQueues:
    """Queues by topic and queue id.

    ``by_topic`` may be read directly; queues are added by :meth:`queue` and removed by :meth:`delete_topic`.
    """

    def __init__(
        self,
        files: Files,
        directory: PathLike,
        *,
        file_bytes: int = SIMPLE.per_file * SIMPLE.size,
        open_files: OpenFiles | None = None,
        extension_directory: PathLike | None = None,
        extension_file_bytes: int = FILE_BYTES,
        extended: bool = False,
    ) -> None:
        self.directory = os.fspath(directory)
        self.by_topic: dict[str, dict[int, ConsumeQueue]] = {}
        self._files = files
        self._file_bytes = file_bytes
        self._open_files = OpenFiles(files) if open_files is None else open_files
        self._extensions = None if extension_directory is None else os.fspath(extension_directory)
        self._extension_file_bytes = extension_file_bytes
        self._extended = extended  # also for queues without an extension yet
        self.noted = NotedMessage()  # set by the filler of extended queues
        self._waiting: list[ConsumeQueue] = []  # queues with unwritten entries
        self._warm: list[ConsumeQueue] = []  # queues that had some in the last round
        self._unflushed: list[Segments] = []  # files written in a round that failed half-way
        self._gone = self.directory + ".gone"  # files of removed queues, until a thread removes them
        self._gone_count = 0

    def __iter__(self) -> Iterator[ConsumeQueue]:
        for queues in list(self.by_topic.values()):
            yield from list(queues.values())

    def __len__(self) -> int:
        return sum(map(len, self.by_topic.values()))

    def find(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        queues = self.by_topic.get(topic)
        return None if queues is None else queues.get(queue_id)

    def next_offset(self, topic: str, queue_id: int) -> int:
        """Return the offset after the last entry of a queue; 0 if it does not exist."""
        queue = self.find(topic, queue_id)
        return 0 if queue is None else queue.next_offset

    def queue(self, topic: str, queue_id: int) -> ConsumeQueue:
        """Return the queue, created if necessary. Its directory appears with its first entries."""
        queue = self.find(topic, queue_id)
        if queue is None:
            queue = self._make(topic, queue_id)
        return queue

    def _make(self, topic: str, queue_id: int) -> ConsumeQueue:
        if queue_id < 0:
            raise StoreError(f"queue id of topic {topic!r} is {queue_id}, expected 0 or more")
        path = os.path.join(self._topic_path(topic), str(queue_id))
        segments = Segments(
            self._files, path, self._file_bytes, open_files=self._open_files, grows=True, remade=True
        )
        extension = self._extension(topic, queue_id)
        queue = (
            ConsumeQueue(topic, queue_id, segments, self._waiting)
            if extension is None
            else ExtendedQueue(
                topic, queue_id, segments, self._waiting, extension, self.noted, writes=self._extended
            )
        )
        self.by_topic.setdefault(topic, {})[queue_id] = queue
        return queue

    def _extension(self, topic: str, queue_id: int) -> QueueExtension | None:
        if self._extensions is None:
            return None
        path = os.path.join(self._extensions, topic, str(queue_id))
        if not self._extended and not self._files.is_dir(path):
            return None
        return QueueExtension(
            Segments(
                self._files,
                path,
                self._extension_file_bytes,
                open_files=self._open_files,
                grows=True,
                remade=True,
            )
        )

    def _topic_path(self, topic: str) -> str:
        # The name comes from the network and becomes a directory.
        if (
            not topic
            or topic in (".", "..")
            or any(bad in topic for bad in "/\\\0")
            or len(topic.encode("utf-8", "replace")) > _NAME_BYTES_MAX
        ):
            raise StoreError(
                f"topic {topic!r} is not a valid directory name: expected 1 to {_NAME_BYTES_MAX} bytes "
                "without / and \\"
            )
        return os.path.join(self.directory, topic)

    # Start

    def load(self) -> None:
        """Find the queues and their files; :meth:`recover` then reads them."""
        self._remove_left()
        for topic in self._files.list_dir(self.directory):
            path = os.path.join(self.directory, topic)
            if not self._files.is_dir(path):
                logger.warning("stray_file_ignored path=%s next='move it away'", path)
                continue
            for name in self._files.list_dir(path):
                if not (name.isascii() and name.isdigit() and self._files.is_dir(os.path.join(path, name))):
                    logger.warning(
                        "stray_name_ignored path=%s next='move it away: queues are directories named by a "
                        "number'",
                        os.path.join(path, name),
                    )
                    continue
                refuse_leading_zeros(os.path.join(path, name))
                self._make(topic, int(name)).load()

    def _remove_left(self) -> None:
        """Remove files of removed queues that a kill, or a failed removal, has left."""
        try:
            self._files.remove_tree(self._gone)
        except StoreError as error:
            logger.warning(
                "gone_queues_not_removed error=%r next='no action needed: it is retried'", str(error)
            )
            left = [int(name) for name in self._files.list_dir(self._gone) if name.isdigit()]
            self._gone_count = max(left, default=0)

    def recover(
        self,
        *,
        crashed: bool,
        safe_physical: int | None = None,
        verified_ends: Mapping[ConsumeQueue, int] = MappingProxyType({}),
    ) -> None:
        """Find the end of every queue. Wait for the disk. After a crash the next round flushes them all.

        Entries of messages before ``safe_physical`` are known to be flushed. For queues in ``verified_ends``,
        entries from that offset on are cut off and rebuilt from the log.
        """
        for queue in self:
            queue.recover(crashed=crashed, safe_physical=safe_physical, verified_end=verified_ends.get(queue))
        if crashed and self._files.is_dir(self.directory):
            self._files.sync_dir(self.directory)
            self._files.sync_dir(os.path.dirname(self.directory))

    @property
    def max_physical(self) -> int:
        """Return the end of the last message entered in any queue; -1 without any."""
        return max((queue.max_physical for queue in self), default=-1)

    # Flushing

    def write(self) -> list[Segments]:
        """Write all tails to their files; return the files to :func:`flush` in a thread.

        A queue that cannot be written stays for the next round; the others are written, then the first error
        is raised, and :meth:`take_unflushed` returns the files to flush.
        """
        waiting = self._waiting[:]
        self._waiting.clear()  # the queues share this list object
        written: list[Segments] = []
        failed: list[ConsumeQueue] = []
        first_error: StoreError | None = None
        for queue in waiting:
            try:
                segments = queue.write()
            except StoreError as error:
                failed.append(queue)
                first_error = first_error or error
                continue
            if isinstance(queue, ExtendedQueue) and queue.extension.segments.flush_targets():
                written.append(queue.extension.segments)  # flushed before the entries that point into it
            if segments is not None:
                written.append(segments)
        self._waiting += failed
        now_warm = set(waiting)
        for queue in self._warm:
            if queue not in now_warm:
                queue.cool()
        self._warm = waiting
        self._unflushed += written
        if first_error is not None:
            raise first_error
        return self.take_unflushed()

    def take_unflushed(self) -> list[Segments]:
        """Return the written and unflushed files."""
        result, self._unflushed = self._unflushed, []
        return result

    def not_flushed(self, written: list[Segments]) -> None:
        """Keep the files that a round could not flush for the next one."""
        self._unflushed = list(dict.fromkeys([*written, *self._unflushed]))

    def unflushed_bytes(self) -> int:
        """Return the bytes in memory of files that could not be flushed."""
        return sum(segments.unflushed_bytes for segments in self._unflushed)

    # Truncation

    def place_before(self, physical: int) -> int:
        """Return the beginning of a message at or before this log offset, a late one; 0 if none is found.
        Looks at the queues with the newest messages. May wait."""
        newest = nlargest(LOOKED_AT, self, key=attrgetter("max_physical"))
        return max((queue.place_before(physical) for queue in newest), default=0)

    def plan_cut(self, physical: int) -> list[QueueCut]:
        """Return the queues that a cut of the log shortens, with their new ends. May wait."""
        cuts = [queue.plan_cut(physical) for queue in self]
        return [cut for cut in cuts if cut is not None]

    def lower_to(self, cuts: Iterable[QueueCut]) -> None:
        """Make the planned ends valid for all later reads. The files are not changed."""
        for cut in cuts:
            cut.queue.lower_to(cut)
            if cut.leaves_nothing:
                self.drop(cut.queue)

    def clear_behind(self, cuts: Iterable[QueueCut]) -> None:
        """Cut the files. Waits for the disk."""
        for cut in cuts:
            if cut.leaves_nothing:
                self.remove_files(cut.queue)
            else:
                cut.queue.clear_behind()

    def truncate_to_physical(self, physical: int) -> None:
        """Remove the entries of messages at or after this log offset. Wait for the disk."""
        for queue in self:
            queue.truncate_to_physical(physical)

    def correct_min_offsets(self, log_min: int) -> None:
        """Update the queues after a change of the commit log's beginning. May wait for the disk."""
        for queue in self:
            queue.correct_min_offset(log_min)

    def delete_before(self, log_min: int) -> int:
        """Remove files whose messages have all left the commit log; return their number. Runs in a thread."""
        return sum(queue.delete_before(log_min) for queue in self)

    def last_place(self, topic: str) -> int:
        """Return the end of a topic's last message in the log; -1 if its queues hold none."""
        return max((queue.max_physical for queue in self.by_topic.get(topic, {}).values()), default=-1)

    def delete_topic(self, topic: str) -> bool:
        """Remove the queues of a topic; return False if there are none. Raise StoreError with nothing
        changed.

        Their directories are only moved aside, in one step each, so that a new topic of the same name finds
        nothing of them; :meth:`remove_gone` removes the files.
        """
        queues = self.by_topic.get(topic)
        if queues is None:
            return False
        self._move_aside(topic, queues.values())
        del self.by_topic[topic]
        gone = set(queues.values())
        self._waiting[:] = [queue for queue in self._waiting if queue not in gone]
        self._warm = [queue for queue in self._warm if queue not in gone]
        for queue in queues.values():
            queue.forget_files()
        try:
            self._files.sync_dir(self.directory)
            self._files.sync_dir(os.path.dirname(self.directory))
        except StoreError as error:  # after a power loss the note of deleted topics removes them again
            logger.warning("deletion_not_flushed topic=%r error=%r", topic, str(error))
        return True

    def _move_aside(self, topic: str, queues: Iterable[ConsumeQueue]) -> None:
        for queue in queues:
            queue.close_idle()
        places = [] if self._extensions is None else [os.path.join(self._extensions, topic)]
        moved: list[tuple[str, str]] = []
        try:
            for place in (*places, self._topic_path(topic)):
                if self._files.is_dir(place):
                    self._files.make_dirs(self._gone)
                    target = self._next_gone()
                    self._files.rename(place, target)
                    moved.append((target, place))
        except StoreError:
            for target, place in moved:
                self._files.rename(target, place)
            raise

    def begin_anew(self, queue: ConsumeQueue) -> None:
        """Let a queue begin at 0 again. Runs on the loop: :meth:`remove_gone` removes its files."""
        if not self._gone_count:
            self._files.make_dirs(self._gone)
        queue.delete(self._next_gone)

    def _next_gone(self) -> str:
        self._gone_count += 1
        return os.path.join(self._gone, str(self._gone_count))

    @property
    def gone(self) -> int:
        """Return the number of files and directories that wait for removal."""
        return self._gone_count

    def remove_gone(self, count: int) -> None:
        """Remove the first ``count`` files and directories of removed queues. Waits for the disk: call it in
        a thread. Tries all, then raises the first error."""
        if not count:
            return
        first_error: StoreError | None = None
        for name in self._files.list_dir(self._gone):
            path = os.path.join(self._gone, name)
            try:
                if not name.isdigit() or int(name) > count:
                    continue
                if self._files.is_dir(path):
                    self._files.remove_tree(path)
                else:
                    self._files.remove(path)
            except StoreError as error:
                first_error = first_error or error
        if first_error is not None:
            raise first_error

    def drop(self, queue: ConsumeQueue) -> None:
        """Forget a queue without entries. Its files stay until :meth:`remove_files`."""
        of_topic = self.by_topic.get(queue.topic, {})
        of_topic.pop(queue.queue_id, None)
        if not of_topic:
            self.by_topic.pop(queue.topic, None)
        self._waiting[:] = [other for other in self._waiting if other is not queue]
        self._warm = [other for other in self._warm if other is not queue]

    def remove_files(self, queue: ConsumeQueue) -> None:
        """Remove the files of a dropped queue. Wait for the disk."""
        queue.delete()
        for directory in (self.directory, self._extensions):
            if directory is not None:
                path = os.path.join(directory, queue.topic)
                if self._files.remove_tree(os.path.join(path, str(queue.queue_id))):
                    self._files.sync_dir(path)

    def delete_all(self) -> None:
        """Remove every queue, because the commit log they point into does not exist."""
        for topic in list(self.by_topic):
            self.delete_topic(topic)

    def close(self) -> None:
        """Write unwritten entries and close the descriptors. To keep the data safe, flush before."""
        for queue in self:
            queue.close()
        self._waiting.clear()
        self._warm.clear()


def refuse_leading_zeros(path: str) -> None:
    """Raise if the number of a queue's directory has leading zeros."""
    name = os.path.basename(path)
    if name != str(int(name)):
        raise StoreError(
            f"{path} has leading zeros, so it is not the directory of queue {int(name)}. Rename or move it, "
            "then restart.",
            path=path,
        )


def flush(written: Iterable[Segments]) -> None:
    """Flush the written files. Waits for the disk: call it in a thread.

    Tries all, then raises the first error.
    """
    first_error: StoreError | None = None
    for segments in written:
        try:
            segments.flush()
        except StoreError as error:
            first_error = first_error or error
    if first_error is not None:
        raise first_error
