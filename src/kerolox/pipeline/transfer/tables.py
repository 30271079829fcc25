"""Topics, groups and consumer offsets of a new store, made from those of the source stores."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

import msgspec

from kerolox.protocol.bodies.topics import TopicConfig
from kerolox.store.disk.files import Files
from kerolox.store.offline.layout import QUEUES, Layout, OnlyReading
from kerolox.store.offline.tables import CONFIG
from kerolox.store.queue.consume_queues import ConsumeQueues, flush
from kerolox.store.queue.entry import SIMPLE
from kerolox.store.rebuild import queue_end
from kerolox.store.tables.groups import GroupTable
from kerolox.store.tables.offsets import ConsumerOffsets
from kerolox.store.tables.table import Table, is_absent
from kerolox.store.tables.topics import TopicTable


class QueueMove(msgspec.Struct, frozen=True):
    """Move of a queue: its source, and its new queue id. Queue offsets do not change."""

    source: str
    topic: str
    queue_id: int
    new_queue_id: int
    messages: int
    end: int  # queue offset of the next message


class OldTables:
    """Tables of one store that can be read."""

    def __init__(self, layout: Layout) -> None:
        files, directory = OnlyReading(), layout.path(CONFIG)
        self.layout = layout
        self.root = layout.root
        self.topics = TopicTable(files, directory)
        self.groups = GroupTable(files, directory)
        self.offsets = ConsumerOffsets(files, directory)
        self.broken: list[str] = []
        for table in (self.topics, self.groups, self.offsets):
            self._take(table)

    def _take(self, table: Table) -> None:
        why = table.take(table.path)
        if why is not None and table.take(table.path + ".bak") is not None and not is_absent(why):
            self.broken.append(f"{table.path}: {why}")

    def queues(self, topic: str) -> list[int]:
        """Return the queue ids of a topic that have files."""
        names = OnlyReading().list_dir(os.path.join(self.layout.path(QUEUES), topic))
        return [int(name) for name in names if name.isascii() and name.isdigit()]

    def known_topics(self) -> set[str]:
        return {*self.topics.topics, *OnlyReading().list_dir(self.layout.path(QUEUES))}


class ArchivedBroker(OldTables):
    """Broker known only from an archive: no tables, and only queues with messages."""

    def __init__(self, root: str) -> None:
        files = OnlyReading()
        self.root = root
        self.topics, self.groups = TopicTable(files, ""), GroupTable(files, "")
        self.offsets = ConsumerOffsets(files, "")
        self.broken = []

    def queues(self, topic: str) -> list[int]:
        return []

    def known_topics(self) -> set[str]:
        return set()


class QueuePlan(msgspec.Struct):
    """Queue ids of all sources in the new store."""

    first_queues: list[dict[str, int]]  # by source: first queue id of each topic
    counts: dict[str, int]  # number of queues by topic
    moves: list[QueueMove]


def plan_queues(
    tables: Sequence[OldTables],
    found: Sequence[dict[tuple[str, int], tuple[int, int]]],
    has: Callable[[str], bool],
) -> QueuePlan:
    """Number the queues of a topic: first those of the first source, then those of the second, and so on.

    ``found``: for each source, the number of messages of each queue in its log, and the last queue offset.
    """
    plan = QueuePlan([{} for _ in tables], {}, [])
    for number, (old, messages) in enumerate(zip(tables, found, strict=True)):
        topics = {topic for topic in old.known_topics() if has(topic)} | {topic for topic, _ in messages}
        for topic in sorted(topics):
            config = old.topics.topics.get(topic)
            ids = {*old.queues(topic), *(queue_id for name, queue_id in messages if name == topic)}
            count = max(ids, default=-1) + 1
            if config is not None:
                count = max(count, config.read_queue_nums, config.write_queue_nums)
            first = plan.counts.get(topic, 0)
            plan.first_queues[number][topic] = first
            plan.counts[topic] = first + count
            for queue_id in sorted(ids):
                n, last = messages.get((topic, queue_id), (0, -1))
                end = last + 1 if n else queue_end(old.layout, topic, queue_id)
                move = QueueMove(old.root, topic, queue_id, first + queue_id, n, end)
                plan.moves.append(move)
    return plan


def write_tables(root: str, tables: Sequence[OldTables], plan: QueuePlan, *, all_groups: bool) -> int:
    """Write topics, groups and offsets of the new store. Returns the number of groups with offsets in it."""
    files, directory = Files(), os.path.join(root, CONFIG)
    files.make_dirs(directory)
    topics, groups = TopicTable(files, directory), GroupTable(files, directory)
    offsets = ConsumerOffsets(files, directory)
    with_progress: set[str] = set()
    for topic, count in sorted(plan.counts.items()):
        having = [old for old, firsts in zip(tables, plan.first_queues, strict=True) if topic in firsts]
        configs = [old.topics.topics[topic] for old in having if topic in old.topics.topics]
        if len(having) == 1 and configs:
            topics.put(configs[0])
            continue
        like = configs[0] if configs else TopicConfig(topic_name=topic)
        topics.put(msgspec.structs.replace(like, read_queue_nums=count, write_queue_nums=count))
    for old, firsts in zip(tables, plan.first_queues, strict=True):
        for key, queues in old.offsets.offsets.items():
            topic, _, group = key.partition("@")
            if topic not in firsts:
                continue
            with_progress.add(group)
            for queue_id, offset in queues.items():
                offsets.commit(topic, group, firsts[topic] + queue_id, offset)
        for name, config in old.groups.groups.items():
            if (all_groups or name in with_progress) and name not in groups.groups:
                groups.put(config)
    offsets.bump()
    for table in (topics, groups, offsets):
        table.save()
    return len(with_progress)


def write_empty_queues(layout: Layout, plan: QueuePlan) -> None:
    """Write a file of blank entries for each queue without messages, so that its offsets continue.

    The rebuild keeps these queues, as in any store.
    """
    files = Files()
    per_file = layout.queue_file_bytes // SIMPLE.size
    files.remove_tree(layout.path(QUEUES))
    queues = ConsumeQueues(files, layout.path(QUEUES), file_bytes=layout.queue_file_bytes)
    for move in plan.moves:
        if move.messages or not move.end:
            continue
        queue = queues.queue(move.topic, move.new_queue_id)
        first = (move.end - 1) - (move.end - 1) % per_file
        queue._set_end(first)
        queue.min_offset = first
        queue.extend(SIMPLE.blank * (move.end - first), first)
    flush(queues.write())
    queues.close()
