"""Check and repair of a store's tables: if they are readable, complete, and match the queues."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

import msgspec

from kerolox.store.disk.files import Files
from kerolox.store.offline.layout import QUEUES, Finding, Layout, OnlyReading
from kerolox.store.tables.filters import FilterTable
from kerolox.store.tables.groups import GroupTable
from kerolox.store.tables.offsets import ConsumerOffsets, DelayOffsets, LightOffsets
from kerolox.store.tables.rebuild import LOST_DELAYS, LOST_OFFSETS, groups_of, topics_of
from kerolox.store.tables.request_modes import RequestModes
from kerolox.store.tables.table import Table, TableBroken, is_absent, mending, noted_tables
from kerolox.store.tables.timer_counts import TimerCounts
from kerolox.store.tables.topics import TopicTable
from kerolox.store.tables.transaction_counts import TransactionCounts

CONFIG = "config"
_LOST: dict[type[Table], str] = {
    TopicTable: "Its topics can be rebuilt from the queues, with default permissions.",
    GroupTable: "Its groups can be rebuilt from offsets and retry topics, with default settings.",
    ConsumerOffsets: LOST_OFFSETS,
    LightOffsets: LOST_OFFSETS,
    DelayOffsets: LOST_DELAYS,
    RequestModes: "Without it, groups pull all topics.",
}
_DISPENSABLE: tuple[type[Table], ...] = (FilterTable, TransactionCounts, TimerCounts)
_MISFITS_SHOWN = 3


def check_tables(
    layout: Layout, files: OnlyReading, ends: Callable[[str, int], int | None], found: list[Finding]
) -> None:
    """Check all tables. ``ends`` returns the end of a queue; None if it is unknown."""
    directory = layout.path(CONFIG)
    noted = noted_tables(files, directory)
    tables: dict[type[Table], Table] = {}
    for kind in (*_LOST, *_DISPENSABLE):
        table = kind(files, directory)
        if _read(table, noted, found):
            tables[kind] = table
    queued = topics_of(_queues(layout, files))
    if queued and TopicTable not in tables and TopicTable.NAME not in noted:
        what = f"{len(queued)} topics have queues, but their table does not exist. {_LOST[TopicTable]}"
        path = os.path.join(directory, TopicTable.NAME)
        # Messages without any table: perhaps a copy of only the log.
        found.append(Finding("table: lost", path, what, mending(path), note=not tables))
    for kind in (ConsumerOffsets, LightOffsets):
        offsets = tables.get(kind)
        if isinstance(offsets, ConsumerOffsets):
            _check_offsets(offsets, ends, found)


def _read(table: Table, noted: set[str], found: list[Finding]) -> bool:
    """Read a table as a broker would, and report its problems; return True if there is one."""
    why = table.take(table.path)
    if why is None:
        return True
    backup_why = table.take(table.path + ".bak")
    if backup_why is None:
        step = "the next start uses the .bak: check the changes made since then"
        found.append(
            Finding("table: backup", table.path, f"is unreadable: {why}; its .bak is readable", step)
        )
        return True
    if is_absent(why) and is_absent(backup_why):
        if table.NAME in noted and not table.DISPENSABLE:
            what = f"was lost: {why}; its .bak: {backup_why}. {_LOST[type(table)]}"
            found.append(Finding("table: lost", table.path, what, mending(table.path)))
    else:
        what = f"is unreadable: {why}; so is its .bak: {backup_why}"
        step = "none: the next start moves it aside" if table.DISPENSABLE else mending(table.path)
        found.append(Finding("table: broken", table.path, what, step, note=table.DISPENSABLE))
    return False


def _check_offsets(
    table: ConsumerOffsets, ends: Callable[[str, int], int | None], found: list[Finding]
) -> None:
    """Report offsets that no message can have."""
    misfits = []
    for key, queues in table.offsets.items():
        topic, _, group = key.partition("@")
        for queue_id, offset in queues.items():
            end = ends(topic, queue_id)
            if end is not None and not 0 <= offset <= end:
                what = f"group {group} is at {offset} of {end} in {topic} queue {queue_id}"
                misfits.append((what, group, topic))
    for what, group, topic in misfits[:_MISFITS_SHOWN]:
        step = f"start the broker, then run: kerolox group reset {group} {topic} --to latest (or a time)"
        found.append(Finding("table: offset", table.path, what, step))
    if len(misfits) > _MISFITS_SHOWN:
        what = f"{len(misfits) - _MISFITS_SHOWN} more offsets are outside of their queues"
        found.append(Finding("table: offset", table.path, what, "kerolox group reset"))


def _queues(layout: Layout, files: Files) -> Mapping[str, list[int]]:
    root = layout.path(QUEUES)
    return {
        topic: [
            int(name)
            for name in files.list_dir(os.path.join(root, topic))
            if name.isascii() and name.isdigit()
        ]
        for topic in files.list_dir(root)
        if files.is_dir(os.path.join(root, topic))
    }


class MendedTable(msgspec.Struct):
    """Result of a table's repair."""

    path: str
    what: str
    put_aside: list[str] = []


def mend_tables(layout: Layout, files: Files) -> list[MendedTable]:
    """Rebuild lost or broken tables from the rest of the store, else empty. The caller holds the lock."""
    directory = layout.path(CONFIG)
    noted = noted_tables(files, directory)
    done: list[MendedTable] = []
    topics, groups = TopicTable(files, directory), GroupTable(files, directory)
    kind = LightOffsets if LightOffsets.NAME in noted else ConsumerOffsets
    offsets: ConsumerOffsets = kind(files, directory)
    no_tables = not noted
    for table in (topics, offsets, groups, DelayOffsets(files, directory), RequestModes(files, directory)):
        put_aside: list[str] = []
        try:
            table.load()
        except TableBroken:
            put_aside = table.put_aside()
        queued = topics_of(_queues(layout, files))
        wanted = no_tables and bool(queued) and isinstance(table, TopicTable | ConsumerOffsets)
        if table.was_loaded and not table.from_backup:
            continue
        if not table.was_loaded and not table.lost and not put_aside and not wanted:
            continue  # the table never existed
        what = "restored from its .bak" if table.from_backup else "created empty"
        if table is topics:
            new = [config for config in queued if config.topic_name not in topics.topics]
            for config in new:
                topics.put(config)
            what += f", with {len(new)} topics that have queues"
        elif table is groups:
            for group in groups_of(topics.topics, offsets.offsets):
                if group.group_name not in groups.groups:
                    groups.put(group)
            what += f", with {len(groups.groups)} groups that have offsets or retry topics"
        table.save()
        done.append(MendedTable(table.path, what, put_aside))
    return done
