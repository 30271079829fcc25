"""Take a follower's log back to the last record its leader has too, so that it can go on copying.

Offline, in this order:

1. Find out where the two logs part. Nothing is changed.
2. Everything that will go is put into a folder beside the log: the files behind the place by another name, a
   copy of the one it lies in, the tables, and a page that says what all this is. The folder has its name when
   it is whole.
3. The log is cut, with all that followed from it, by the code that does so in a running follower. Killed at
   any moment, the next start finds the store as it was, or finishes the cut.
4. The next start of the broker sets back what its tables say of the rest.
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
TABLE_BYTES_MAX = 64 << 20  # of a table that is copied
_COPY_BYTES = 8 << 20

LET_IT_LEAD = (
    "let this broker lead instead: stop the other one, start this one and run `kerolox broker promote`; then "
    "start the other one, with an empty store directory, as its follower"
)


class LeaderHasLess(KeroloxError):
    """All messages here would go, for a leader that has fewer."""

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
                f"leader's at {leader} {has}, and nothing of it is the same. The leader has lost its log, or "
                "is another broker",
                LET_IT_LEAD,
                "if the messages here are not wanted, say so: --anyway",
            )
        )


def check_worth(parting: Parting, leader: str) -> None:
    """Raise when the copy that would be given up is the better one."""
    own, there = parting.own, parting.leader
    if parting.found is Found.NOTHING_COMMON and there.end - there.low < own.end - own.low:
        raise LeaderHasLess(parting, leader)


def store_options(layout: Layout, options: StoreOptions | None) -> StoreOptions:
    """Options to open this store by; without a configuration file, those its files have."""
    files = OnlyReading()
    index = layout.path(INDEX)
    sizes = {files.size(os.path.join(index, name)) for name in files.list_dir(index)} - {0}
    if sizes - {layout.index_file_bytes}:
        raise OptionError(
            "--config-file",
            "missing" if options is None else "given",
            f"the broker's own: the files in {index} have another size than it says (maxHashSlotNum, "
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
    """Put aside what goes, and cut the log; the folder it was put into. Nobody else may use the store."""
    files = files or Files()
    with StoreLock(files, layout.root):
        aside = put_aside(parting, layout, leader, files, clock)
    store = MessageStore(options, files=files, clock=clock)
    async with store:
        if store.log.max_offset < parting.own.end or store.log.min_offset != parting.own.low:
            raise StoreError(
                f"the log holds {store.log.min_offset} to {store.log.max_offset} now, and held "
                f"{parting.own.low} to {parting.own.end} when it was compared: another process has used the "
                "store meanwhile. Nothing was cut. Try again."
            )
        store.state.set(Obstacle.FOLLOWER, "its log is taken back to what its leader has")
        await store.truncate(parting.keep_to, untold=True)
    return aside


def put_aside(parting: Parting, layout: Layout, leader: str, files: Files, clock: Clock) -> str:
    """Everything that will go, in a folder of its own. Without room for it nothing of it stays."""
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
        # The cut removes later files, and writes zeros into the one that it goes through.
        goes = segment.start > parting.keep_to
        if not goes or not files.link(segment.path, os.path.join(logs, name)):
            _copy(files, segment.path, os.path.join(logs, name))
    files.sync_dir(logs)
    _copy_tables(files, layout.path("config"), os.path.join(folder, "config"))
    about = msgspec.json.format(msgspec.json.encode(_about(parting, layout, leader, kept, clock)), indent=2)
    files.write_atomic(os.path.join(folder, ABOUT), about + b"\n")


def _about(parting: Parting, layout: Layout, leader: str, kept: list[str], clock: Clock) -> dict[str, object]:
    return {
        "what": "Messages this follower had and its leader has not, or not any more. They were put here by "
        "`kerolox store resync`, which took the log back to what both have.",
        "read": "kerolox store inspect <this folder>/commitlog/<file>: messages from `from` on are gone from "
        "the store; those before are still in it. `config` holds the tables as they were.",
        "delete": "Nothing uses this folder. Delete it when nobody misses a message.",
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
    """With its holes, flushed."""
    with files.open(source, read_only=True) as old, files.create(target) as new:
        for low, high in old.written_ranges(0, old.size):
            for at in range(low, high, _COPY_BYTES):
                new.pwrite(old.pread(min(_COPY_BYTES, high - at), at), at)
        if new.size < old.size:
            new.truncate(old.size)
        new.sync()
