"""What a start does about tables that were lost, or do not fit the store they lie in.

What the store itself tells is made again, and said aloud: the topics that have messages, the groups that have
offsets or retries. What nothing else tells stops the start: groups without their offsets would silently skip
messages. The operator decides, by restoring the file or by ``kerolox store repair --tables``.
"""

from __future__ import annotations

import logging

from kerolox.broker.tables.topics import Topics
from kerolox.store.message_store import MessageStore
from kerolox.store.queue.consume_queue import ConsumeQueue
from kerolox.store.tables.groups import GroupTable
from kerolox.store.tables.offsets import ConsumerOffsets, DelayOffsets
from kerolox.store.tables.rebuild import LOST_DELAYS, LOST_OFFSETS, groups_of, topics_of
from kerolox.store.tables.request_modes import RequestModes
from kerolox.store.tables.table import TableLost

log = logging.getLogger(__name__)

_SHOWN = 5  # offsets shown


def mind_lost_tables(
    store: MessageStore, topics: Topics, groups: GroupTable, offsets: ConsumerOffsets, modes: RequestModes
) -> None:
    """Make lost tables again. Called after the tables were loaded and the broker's own topics and groups
    made. Raises TableLost."""
    no_topics = not topics.table.was_loaded and bool(topics_of(store.queues.by_topic))
    if offsets.lost or (no_topics and not topics.table.lost and not offsets.was_loaded):
        # With not even a note that there were tables, nobody knows whether there were offsets.
        raise TableLost(offsets.path, offsets.lost or "no table is left", LOST_OFFSETS)
    if no_topics or topics.table.lost or topics.table.from_backup:
        _rebuild_topics(store, topics)
    if groups.lost or (no_topics and not groups.was_loaded):
        _rebuild_groups(topics, groups, offsets)
    if modes.lost:
        log.error(
            "table_lost path=%s reason=%r next='groups pull all topics now: set the modes again'",
            modes.path, modes.lost,
        )  # fmt: skip
    _name_misfits(store, topics, offsets)


def check_nothing_due(delays: DelayOffsets, queue: ConsumeQueue, now_ms: int) -> None:
    """Check a delay level whose progress was lost with its table. Messages that are due may have been
    delivered already: then raises TableLost. Messages that are not yet due were not delivered."""
    first = queue.entry(queue.min_offset)
    if first is not None and first[2] <= now_ms:
        raise TableLost(delays.path, delays.lost, LOST_DELAYS)


def _rebuild_topics(store: MessageStore, topics: Topics) -> None:
    table = topics.table
    found = [config for config in topics_of(store.queues.by_topic) if topics.find(config.topic_name) is None]
    for config in found:
        table.put(config)
    if found or not table.from_backup:
        log.error(
            "topics_rebuilt path=%s reason=%r topics=%d queues=%d first=%r next='they have the queues that "
            "hold messages, and the usual rights; topics without messages are gone. Compare with a copy of "
            "the table, and set what differs: kerolox topic update, kerolox topic create'",
            table.path,
            "the backup was used" if table.from_backup else table.lost or "it says nothing of any topic",
            len(found),
            sum(config.write_queue_nums for config in found),
            found[0].topic_name if found else "-",
        )


def _rebuild_groups(topics: Topics, groups: GroupTable, offsets: ConsumerOffsets) -> None:
    found = [
        config
        for config in groups_of(topics.table.topics, offsets.offsets)
        if config.group_name not in groups.groups
    ]
    for config in found:
        groups.put(config)
    log.error(
        "groups_rebuilt path=%s reason=%r groups=%d next='they have the usual settings: retry limits, rights "
        "and whether they may consume are lost. Compare with a copy of the table, and set what differs'",
        groups.path, groups.lost or "no table is left", len(found),
    )  # fmt: skip


def _name_misfits(store: MessageStore, topics: Topics, offsets: ConsumerOffsets) -> None:
    """Log the offsets that no message can have had, as a damaged table or a cut log leaves them."""
    count = 0
    shown: list[str] = []
    for key, queues in offsets.offsets.items():
        topic = key.partition("@")[0]
        if topics.find(topic) is None:
            continue
        for queue_id, offset in queues.items():
            end = store.max_offset(topic, queue_id)
            if 0 <= offset <= end:
                continue
            count += 1
            if len(shown) < _SHOWN:
                shown.append(f"{key} queue {queue_id}: {offset} of {end}")
    if count:
        log.warning(
            "offsets_outside_of_queues path=%s count=%d first=%r next='the end of the log was lost, or the "
            "table is damaged: look at these groups, and set them: kerolox group reset'",
            offsets.path, count, "; ".join(shown),
        )  # fmt: skip
