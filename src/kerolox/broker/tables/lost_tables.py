"""Handling of lost tables at the start, and of tables that do not match their store.

Tables that can be derived from the store are rebuilt, and logged as errors: topics that have messages, and
groups that have offsets or retries. A table that cannot be derived stops the start: groups without their
offsets would silently skip messages. The operator decides, by restoring the file or by ``kerolox store repair
--tables``.
"""

from __future__ import annotations

import logging

from kerolox.broker.tables.topics import Topics
from kerolox.store.message_store import MessageStore
from kerolox.store.queue.queues import Queue
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
    """Rebuild lost tables. Called when the tables are loaded, and system topics and groups exist. Raises
    TableLost."""
    no_topics = not topics.table.was_loaded and bool(topics_of(store.queues.by_topic))
    if offsets.lost or (no_topics and not topics.table.lost and not offsets.was_loaded):
        # Without any trace of earlier tables, it is unknown whether there were offsets.
        raise TableLost(offsets.path, offsets.lost or "no table is left", LOST_OFFSETS)
    if no_topics or topics.table.lost or topics.table.from_backup:
        _rebuild_topics(store, topics)
    if groups.lost or (no_topics and not groups.was_loaded):
        _rebuild_groups(topics, groups, offsets)
    if modes.lost:
        log.error(
            "table_lost path=%s reason=%r next='set the modes again; until then groups pull all topics'",
            modes.path, modes.lost,
        )  # fmt: skip
    _name_misfits(store, topics, offsets)


def check_nothing_due(delays: DelayOffsets, queue: Queue, now_ms: int) -> None:
    """Check a delay level whose progress was lost with its table. Raises TableLost if messages are due, since
    they may have been delivered already. Messages that are not due yet were not delivered."""
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
            "topics_rebuilt path=%s reason=%r topics=%d queues=%d first=%r next='they have the queues "
            "with messages, and default rights; topics without messages are lost. Compare with a copy of the "
            "table, and correct the differences: kerolox topic update, kerolox topic create'",
            table.path,
            "the backup was used" if table.from_backup else table.lost or "it contains no topic",
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
        "groups_rebuilt path=%s reason=%r groups=%d next='they have default settings: retry limits and "
        "rights are lost. Compare with a copy of the table, and correct the differences: kerolox group "
        "update'",
        groups.path, groups.lost or "no table is left", len(found),
    )  # fmt: skip


def _name_misfits(store: MessageStore, topics: Topics, offsets: ConsumerOffsets) -> None:
    """Log offsets outside of their queues, which a damaged table or a truncated log leaves."""
    count = 0
    shown: list[str] = []
    for key, queues in offsets.offsets.items():
        topic = key.partition("@")[0]
        if topics.find(topic) is None:
            continue
        for queue_id, offset in queues.items():
            end = store.queues.max_offset(topic, queue_id)
            if 0 <= offset <= end:
                continue
            count += 1
            if len(shown) < _SHOWN:
                shown.append(f"{key} queue {queue_id}: {offset} of {end}")
    if count:
        log.warning(
            "offsets_outside_of_queues path=%s count=%d first=%r next='the end of the log was lost, or the "
            "table is damaged: check these groups, and reset them: kerolox group reset'",
            offsets.path, count, "; ".join(shown),
        )  # fmt: skip
