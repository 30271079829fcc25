"""Truncate a follower's log to the last record that its leader has too, so that replication can continue.

Offline, in this order:

1. Find the last common record. Nothing is changed.
2. Copy everything that will be removed to a folder beside the log: links to the later files, a copy of the
   file that contains the offset, the tables, and a page that describes them. The folder gets its final name
   once it is complete.
3. Truncate the log and everything derived from it, with the code of a running follower. After a crash at any
   moment the next start finds the store unchanged, or finishes the truncation.
4. The next start of the broker resets its tables accordingly.
"""

from __future__ import annotations

import os
import time
from dataclasses import replace

import msgspec

from kerolox.clock import SYSTEM_CLOCK, Clock
from kerolox.errors import KeroloxError, OptionError, sentences
from kerolox.replication.overlap import when_stored
from kerolox.replication.own_log import OwnLog
from kerolox.replication.parting import Found, Parting
from kerolox.store.disk.files import Files
from kerolox.store.disk.lock import StoreLock
from kerolox.store.errors import DiskError, StoreError
from kerolox.store.message_store import MessageStore
from kerolox.store.offline.layout import INDEX, Layout, OnlyReading
from kerolox.store.options import StoreOptions
from kerolox.store.state import Obstacle

PREFIX = "resync-"
UNFINISHED = ".unfinished"
ABOUT = "README.json"
TABLE_BYTES_MAX = 64 << 20  # limit of a copied table
_COPY_BYTES = 8 << 20

LET_IT_LEAD = (
    "make this broker the leader instead: stop the other one, start this one and run `kerolox broker "
    "promote`; then start the other one, with an empty store directory, as its follower"
)


class LeaderHasLess(KeroloxError):
    """Resync would remove all messages here in favor of a leader that has fewer."""

    def __init__(self, parting: Parting, leader: str) -> None:
        own, there = parting.own, parting.leader
        has = (
            f"holds {there.end - there.low} bytes, {there.low} to {there.end}"
            if there.end > there.low
            else "is empty"
        )
        super().__init__(
            sentences(
                f"this store has more than the leader: its log holds {own.end - own.low} bytes, {own.low} to "
                f"{own.end}, and the last message was stored {when_stored(parting.behind.last_ms)}; the "
                f"leader's at {leader} {has}, and no part of it is equal. The leader lost its log, or "
                "is another broker",
                LET_IT_LEAD,
                "to discard the messages here, use --anyway",
            )
        )


def check_worth(parting: Parting, leader: str) -> None:
    """Raise if the copy to be given up is the better one."""
    own, there = parting.own, parting.leader
    if parting.found is Found.NOTHING_COMMON and there.end - there.low < own.end - own.low:
        raise LeaderHasLess(parting, leader)


def store_options(layout: Layout, options: StoreOptions | None) -> StoreOptions:
    """Return options to open this store; without a configuration file they are derived from the store's
    files."""
    files = OnlyReading()
    index = layout.path(INDEX)
    sizes = {files.size(os.path.join(index, name)) for name in files.list_dir(index)} - {0}
    if sizes - {layout.index_file_bytes}:
        raise OptionError(
            "--config-file",
            "missing" if options is None else "given",
            f"the broker's own: the files in {index} have a different size than configured (maxHashSlotNum, "
            "maxIndexNum)",
        )
    if options is not None:
        return replace(options, store_path=layout.root)
    return StoreOptions(
        store_path=layout.root,
        commit_log_file_bytes=layout.log_file_bytes,
        queue_file_bytes=layout.queue_file_bytes,
        index_slots=layout.index_slots,
        index_entries=layout.index_entries,
        light_queues=layout.light_queues,
        fill_light_queues=layout.light_queues,
        disk_free_enough=1,
    )


async def carry_out(
    parting: Parting,
    layout: Layout,
    options: StoreOptions,
    leader: str,
    *,
    files: Files | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> str:
    """Copy the part to be removed and truncate the log. Return the folder of the copy. No other process may
    use the store."""
    files = files or Files()
    with StoreLock(files, layout.root):
        aside = put_aside(parting, layout, leader, files, clock)
    store = MessageStore(options, files=files, clock=clock)
    async with store:
        if store.log.max_offset < parting.own.end or store.log.min_offset != parting.own.low:
            raise StoreError(
                f"the log now holds {store.log.min_offset} to {store.log.max_offset}, but held "
                f"{parting.own.low} to {parting.own.end} when it was compared: another process has used the "
                "store meanwhile. Nothing was truncated. Try again."
            )
        store.state.set(Obstacle.FOLLOWER, "its log is being truncated to the part common with its leader")
        await store.truncate(parting.keep_to, untold=True)
    return aside


def put_aside(parting: Parting, layout: Layout, leader: str, files: Files, clock: Clock) -> str:
    """Copy everything that will be removed to a new folder and return it. If the disk is full, the partial
    copy is removed."""
    moment = time.strftime("%Y%m%d-%H%M%S", time.localtime(clock.wall_ms() / 1000))
    target = base = layout.path(PREFIX + moment)
    number = 2
    while files.exists(target) or files.exists(target + UNFINISHED):
        target, number = f"{base}-{number}", number + 1
    fresh = target + UNFINISHED
    try:
        _fill(fresh, parting, layout, leader, files, clock)
    except DiskError:
        files.remove_tree(fresh)
        raise
    files.rename(fresh, target)
    files.sync_dir(layout.root)
    return target


def _fill(folder: str, parting: Parting, layout: Layout, leader: str, files: Files, clock: Clock) -> None:
    logs = os.path.join(folder, "commitlog")
    files.make_dirs(logs)
    kept = []
    for segment in OwnLog(layout).files:
        if segment.end <= parting.keep_to:
            continue
        name = os.path.basename(segment.path)
        kept.append(name)
        # Truncation removes later files, and overwrites the end of the file that contains the offset with
        # zeros.
        goes = segment.start > parting.keep_to
        if not goes or not files.link(segment.path, os.path.join(logs, name)):
            _copy(files, segment.path, os.path.join(logs, name))
    files.sync_dir(logs)
    _copy_tables(files, layout.path("config"), os.path.join(folder, "config"))
    about = msgspec.json.format(msgspec.json.encode(_about(parting, layout, leader, kept, clock)), indent=2)
    files.write_atomic(os.path.join(folder, ABOUT), about + b"\n")


def _about(parting: Parting, layout: Layout, leader: str, kept: list[str], clock: Clock) -> dict[str, object]:
    return {
        "what": "Messages of this follower that its leader lacks, or has deleted. They were moved here by "
        "`kerolox store resync`, which truncated the log to the common part.",
        "read": "kerolox store inspect <this folder>/commitlog/<file>: messages from `from` on were removed "
        "from the store; earlier ones are still in it. `config` has the previous tables.",
        "delete": "kerolox does not use this folder. Delete it when its messages are not needed.",
        "madeAtMs": clock.wall_ms(),
        "store": layout.root,
        "leader": leader,
        "why": parting.found.value,
        "from": parting.behind.begin,
        "to": parting.behind.end,
        "messages": parting.behind.records,
        "firstStoredMs": parting.behind.first_ms,
        "lastStoredMs": parting.behind.last_ms,
        "lastCommonMs": parting.common_ms,
        "files": kept,
    }


def _copy_tables(files: Files, source: str, target: str) -> None:
    names = [name for name in files.list_dir(source) if not files.is_dir(os.path.join(source, name))]
    if not names:
        return
    files.make_dirs(target)
    for name in names:
        if files.size(os.path.join(source, name)) <= TABLE_BYTES_MAX:
            _copy(files, os.path.join(source, name), os.path.join(target, name))
    files.sync_dir(target)


def _copy(files: Files, source: str, target: str) -> None:
    """Copy a file, with its holes, and flush it."""
    with files.open(source, read_only=True) as old, files.create(target) as new:
        for low, high in old.written_ranges(0, old.size):
            for at in range(low, high, _COPY_BYTES):
                new.pwrite(old.pread(min(_COPY_BYTES, high - at), at), at)
        if new.size < old.size:
            new.truncate(old.size)
        new.sync()
