"""``consumerOffset.json`` and ``delayOffset.json``: progress of consumers and delay levels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kerolox.clock import SYSTEM_CLOCK, Clock
from kerolox.errors import ProtocolError
from kerolox.protocol.bodies.body import from_tree
from kerolox.protocol.bodies.offsets import ConsumerOffsetTable, DelayOffsetTable, LightOffsetTable
from kerolox.protocol.bodies.topics import DataVersion
from kerolox.store.disk.files import Files, PathLike
from kerolox.store.log.cursors import LIGHT_PREFIX
from kerolox.store.tables.table import Table, unknown_members

_AT = "@"


class ConsumerOffsets(Table):
    """Consumer offsets: ``topic@group`` → queue → the offset consumed next.

    A new version is made every ``version_step`` commits. Pull offsets, and reset offsets that the group has
    not taken yet, are kept only in memory.
    """

    NAME = "consumerOffset.json"

    def __init__(
        self,
        files: Files,
        directory: PathLike,
        *,
        clock: Clock = SYSTEM_CLOCK,
        version_step: int = 500,
    ) -> None:
        super().__init__(files, directory, clock=clock)
        self.offsets: dict[str, dict[int, int]] = {}
        self.version = DataVersion()
        self._version_step = version_step
        self._commits = 0
        self._entries = 0  # upper bound of the number of queues with an offset
        self._pulls: dict[str, dict[int, int]] = {}
        self._resets: dict[str, dict[int, int]] = {}
        self._kept: dict[str, dict[int, int]] = {}  # committed while following, and ahead of the leader

    def has_room(self, topic: str, group: str, queue_id: int, limit: int) -> bool:
        """Return True if the progress in this queue may be noted: it has an offset, or fewer than ``limit``
        queues have one."""
        if self._entries < limit or queue_id in self.offsets.get(f"{topic}@{group}", ()):
            return True
        self._entries = sum(map(len, self.offsets.values()))  # some may have been removed in the meantime
        return self._entries < limit

    def commit(self, topic: str, group: str, queue_id: int, offset: int, *, state_version: int = 0) -> int:
        """Note progress; return the previous offset, -1 without one. The caller decides if an offset may
        decrease."""
        key = f"{topic}@{group}"
        queues = self.offsets.get(key)
        if queues is None:
            queues = self.offsets[key] = {}
        before = queues.get(queue_id, -1)
        if before == -1:
            self._entries += 1
        queues[queue_id] = offset
        self.changed = True
        self._commits += 1
        if self._commits % self._version_step == 0:
            self.bump(state_version)
        return before

    def keep(self, topic: str, group: str, queue_id: int) -> None:
        """Keep the last commit, made at a follower, until the leader has as much, even if the leader's table
        says less.

        The first one makes a version ahead of the leader's, so that a returning leader notices it: kerolox by
        its time, RocketMQ by its number of changes.
        """
        key = f"{topic}@{group}"
        if not self._kept:
            self.version = self.version.ahead(self._clock.wall_ms())
            self.changed = True
        self._kept.setdefault(key, {})[queue_id] = self.offsets[key][queue_id]

    def offset(self, topic: str, group: str, queue_id: int) -> int:
        """Return the offset consumed next, or the reset offset; -1 without one."""
        key = f"{topic}@{group}"
        if self._resets and (reset := self._resets.get(key)) is not None and queue_id in reset:
            return reset[queue_id]
        queues = self.offsets.get(key)
        return -1 if queues is None else queues.get(queue_id, -1)

    def queues(self, topic: str, group: str) -> dict[int, int]:
        """Return the offsets of all queues of a topic."""
        return dict(self.offsets.get(f"{topic}@{group}", {}))

    def note_pull(self, topic: str, group: str, queue_id: int, offset: int) -> None:
        key = f"{topic}@{group}"
        queues = self._pulls.get(key)
        if queues is None:
            queues = self._pulls[key] = {}
        queues[queue_id] = offset

    def pull_offset(self, topic: str, group: str, queue_id: int) -> int:
        """Return the offset of the group's last pull, else its consume offset; -1 without either."""
        pulled = self._pulls.get(f"{topic}@{group}", {}).get(queue_id)
        return self.offset(topic, group, queue_id) if pulled is None else pulled

    def reset(self, topic: str, group: str, queue_id: int, offset: int) -> None:
        """Reset a group to an offset. It applies until :meth:`take_reset`, whatever is committed
        meanwhile."""
        key = f"{topic}@{group}"
        self.offsets.setdefault(key, {})[queue_id] = offset
        self._resets.setdefault(key, {})[queue_id] = offset
        self.bump()

    def put_back(self, topic: str, group: str, before: Mapping[int, int]) -> None:
        """Undo a reset or a clone that was not saved; -1: the queue had no offset."""
        key = f"{topic}@{group}"
        queues = self.offsets.setdefault(key, {})
        for queue_id, offset in before.items():
            self.take_reset(topic, group, queue_id)
            if offset == -1:
                queues.pop(queue_id, None)
            else:
                queues[queue_id] = offset
        if not queues:
            del self.offsets[key]
        self.bump()

    def has_reset(self, topic: str, group: str, queue_id: int) -> bool:
        return queue_id in self._resets.get(f"{topic}@{group}", ())

    def take_reset(self, topic: str, group: str, queue_id: int) -> int | None:
        """Return the reset offset of a group, once; None without one."""
        if not self._resets:  # nearly always: asked by every pull
            return None
        key = f"{topic}@{group}"
        queues = self._resets.get(key)
        if queues is None:
            return None
        offset = queues.pop(queue_id, None)
        if not queues:
            del self._resets[key]
        return offset

    def topics_of(self, group: str) -> set[str]:
        return {topic for topic, other in map(_split, self.offsets) if other == group and topic}

    def groups_of(self, topic: str) -> set[str]:
        return {group for other, group in map(_split, self.offsets) if other == topic and group}

    def clone(self, topic: str, source_group: str, target_group: str) -> bool:
        """Copy the progress of a group to another; return False if it has none."""
        queues = self.offsets.get(f"{topic}@{source_group}")
        if queues is None:
            return False
        self.offsets[f"{topic}@{target_group}"] = dict(queues)
        self.bump()
        return True

    def remove_group(self, group: str) -> int:
        """Remove a group; return the number of its topics."""
        return self._remove(key for key in self._keys() if _split(key)[1] == group)

    def remove_topic(self, topic: str) -> int:
        """Remove a topic; return the number of its groups."""
        return self._remove(key for key in self._keys() if _split(key)[0] == topic)

    def remove(self, topic: str, group: str) -> int:
        return self._remove(iter((f"{topic}@{group}",)))

    def _keys(self) -> list[str]:
        return [*self.offsets, *(self._pulls.keys() | self._resets.keys()) - self.offsets.keys()]

    def _remove(self, keys: Any) -> int:
        count = 0
        for key in keys:
            self._pulls.pop(key, None)
            self._resets.pop(key, None)
            self._kept.pop(key, None)
            count += self.offsets.pop(key, None) is not None
        if count:
            self.bump()
        return count

    def set_back(self, ends: Mapping[tuple[str, int], int]) -> int:
        """Lower offsets to the new ends of truncated queues, because no group has consumed the messages that
        will follow there. Return the number of changed offsets."""
        changed = 0
        for table in (self.offsets, self._pulls, self._resets):
            for key, queues in table.items():
                topic = _split(key)[0]
                for queue_id, offset in queues.items():
                    end = ends.get((topic, queue_id))
                    if end is not None and offset > end:
                        queues[queue_id] = end
                        changed += 1
        if changed:
            self.bump()
        return changed

    def hear(self, key: str, queues: Mapping[int, int]) -> None:
        """Apply progress that was just committed at the leader, unless more was committed here."""
        kept = self._kept.get(key, {})
        own = self.offsets.setdefault(key, {})
        for queue_id, offset in queues.items():
            own[queue_id] = max(offset, kept.get(queue_id, -1))
        self.changed = True

    def replace(self, offsets: Mapping[str, Mapping[int, int]], version: DataVersion | None) -> None:
        """Replace the table, with its version if it has one."""
        self.offsets = {key: dict(queues) for key, queues in offsets.items()}
        self._entries = sum(map(len, self.offsets.values()))
        if version is not None:
            self.version = version
        self.changed = True

    def follow(self, offsets: Mapping[str, Mapping[int, int]], version: DataVersion | None) -> None:
        """Apply a leader's table, with its version.

        Offsets committed here stay until the leader has as much. So does every offset that is ahead of the
        leader's table if that table has the same version as this one, or an older: the leader may have lost
        unsaved progress.
        """
        is_newer = version is None or version.timestamp > self.version.timestamp
        floor = self._kept if is_newer else self.offsets
        merged = {key: dict(queues) for key, queues in offsets.items()}
        for key, queues in floor.items():
            advance(merged.setdefault(key, {}), queues)
        self._kept = {
            key: further
            for key, queues in self._kept.items()
            if (further := {id: at for id, at in queues.items() if at > offsets.get(key, {}).get(id, -1)})
        }
        if merged != self.offsets or version != self.version:
            self.replace(merged, version)

    def bump(self, state_version: int = 0) -> None:
        self.version = self.version.next(self._clock.wall_ms(), state_version)
        self.changed = True

    def _read(self, tree: Mapping[Any, Any]) -> None:
        content = from_tree(tree, ConsumerOffsetTable)
        self.offsets = {key: dict(queues) for key, queues in content.offset_table.items()}
        self._entries = sum(map(len, self.offsets.values()))
        self.version = content.data_version or DataVersion()
        self._other = unknown_members(tree, ConsumerOffsetTable)

    def _content(self) -> dict[str, Any]:
        topics: dict[str, list[str]] = {}
        for topic, group in map(_split, self.offsets):
            if topic and group:
                topics.setdefault(group, []).append(topic)
        return {"dataVersion": self.version, "groupTopicMap": topics, "offsetTable": self.offsets}


class LightOffsets(ConsumerOffsets):
    """Consumer offsets of a broker with light queues.

    Their many groups, with one queue each, are kept separately and in short form, as ``topic@group`` →
    offset, in another file. A broker that had no light queues before continues with its previous offsets.
    """

    NAME = "lmqConsumerOffset.json"

    def __init__(
        self, files: Files, directory: PathLike, *, clock: Clock = SYSTEM_CLOCK, version_step: int = 500
    ) -> None:
        super().__init__(files, directory, clock=clock, version_step=version_step)
        self._before = ConsumerOffsets(files, directory, clock=clock)

    def _load(self) -> bool:
        if super()._load():
            return True
        if self.lost or not self._before.load():
            return False
        self.replace(self._before.offsets, self._before.version)
        return True

    def _read(self, tree: Mapping[Any, Any]) -> None:
        super()._read(tree)
        self._other.pop("lmqOffsetTable", None)
        for key, offset in from_tree(tree, LightOffsetTable).lmq_offset_table.items():
            self.offsets[key] = {0: offset}

    def _content(self) -> dict[str, Any]:
        light = {
            key: queues[0]
            for key, queues in self.offsets.items()
            if _split(key)[1].startswith(LIGHT_PREFIX) and queues.keys() == {0}
        }
        plain = {key: queues for key, queues in self.offsets.items() if key not in light}
        return {**super()._content(), "offsetTable": plain, "lmqOffsetTable": light}


class DelayOffsets(Table):
    """Delay offsets: delay level → the offset delivered next. A new version is made every ``version_step``
    changes."""

    NAME = "delayOffset.json"

    def __init__(
        self, files: Files, directory: PathLike, *, clock: Clock = SYSTEM_CLOCK, version_step: int = 200
    ) -> None:
        super().__init__(files, directory, clock=clock)
        self.offsets: dict[int, int] = {}
        self.version = DataVersion()
        self._version_step = version_step
        self._updates = 0

    def update(self, level: int, offset: int, *, state_version: int = 0) -> None:
        self.offsets[level] = offset
        self.changed = True
        self._updates += 1
        if self._updates % self._version_step == 0:
            self.version = self.version.next(self._clock.wall_ms(), state_version)

    def overtake(self) -> None:
        """Make a version ahead of the leader's, because a follower begins to act for it."""
        self.version = self.version.ahead(self._clock.wall_ms())
        self.changed = True

    def replace(self, offsets: Mapping[int, int], version: DataVersion | None) -> None:
        """Replace the table by a leader's, with its version if it has one."""
        self.offsets = dict(offsets)
        if version is not None:
            self.version = version
        self.changed = True

    def _read(self, tree: Mapping[Any, Any]) -> None:
        content = from_tree(tree, DelayOffsetTable)
        for level, offset in content.offset_table.items():
            if offset < 0:
                raise ProtocolError(f"delay level {level} has offset {offset}, expected 0 or more")
        self.offsets = dict(content.offset_table)
        self.version = content.data_version or DataVersion()
        self._other = unknown_members(tree, DelayOffsetTable)

    def _content(self) -> dict[str, Any]:
        return {"dataVersion": self.version, "offsetTable": self.offsets}


def advance(queues: dict[int, int], others: Mapping[int, int]) -> bool:
    """Raise offsets to those that are further; return True if any changed."""
    further = {queue_id: offset for queue_id, offset in others.items() if offset > queues.get(queue_id, -1)}
    queues.update(further)
    return bool(further)


def _split(key: str) -> tuple[str, str]:
    """Split a key into topic and group; the group is empty if the key is invalid."""
    topic, _, group = key.partition(_AT)
    return topic, group
