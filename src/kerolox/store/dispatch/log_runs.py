"""From a stretch of the log straight to the entries of queues and index: for whoever reads logs of terabytes.

Only the usual records are taken. At the first that needs care (a flag, a topic or a property that has rules
of its own, an offset that does not follow, damage) it stops, and the caller goes on with
``record_scan.scan``, the fillers of this package, and what they know about all the others.
"""

from __future__ import annotations

from operator import eq
from typing import TypeAlias

from kerolox.compiled import compiled
from kerolox.protocol import properties as names
from kerolox.protocol.flags import TRANSACTION_MASK, TRANSACTION_ROLLBACK
from kerolox.protocol.java import index_hash, java_hash
from kerolox.protocol.record import MAGIC_V1
from kerolox.protocol.record_scan import (
    CHECK_BODY,
    MAGIC,
    PHYSICAL_OFFSET,
    PROPERTIES,
    QUEUE_ID,
    QUEUE_OFFSET,
    SIZE,
    STORE_TIMESTAMP,
    SYS_FLAG,
    TOPIC,
    Entry,
    scan,
)
from kerolox.store.dispatch.keys import key_items
from kerolox.store.dispatch.queues import FLAGS_QUEUED, QueueRun, queue_runs
from kerolox.store.index.index_file import ITEM

# Entries by queue; packed keys; where it stopped; how many records; the latest store time.
LogRuns: TypeAlias = tuple[list[QueueRun], bytes, int, int, int]

_SEAL = b"__CRC32#\x01"
_SEAL_BYTES = 20
_SEAL_LEFT = 6  # bytes of it that are not there by chance


def _log_runs(
    data: bytes,
    at: int,
    before: int,
    end: int,
    lies_at: int,
    stops: tuple[bytes, ...],
    special_topics: tuple[bytes, ...],
    tags_too: bool,
) -> LogRuns:
    """The entries of the usual records from ``at`` on that begin before ``before`` and do not reach over
    ``end``. ``lies_at``: the place of the first byte in the log.

    Each queue comes once. ``stops``: words that no properties of a usual record have in them.
    """
    runs: dict[tuple[bytes, int], tuple[int, list[bytes]]] = {}
    keys: list[bytes] = []
    records = last_ms = 0
    while at < before:
        found = scan(data, at, end, CHECK_BODY, 1, lies_at=lies_at)
        if not found.entries:
            break
        entry = found.entries[0]
        properties, offset = entry[PROPERTIES], entry[QUEUE_OFFSET]
        if (
            entry[MAGIC] != MAGIC_V1
            or entry[SYS_FLAG] & ~FLAGS_QUEUED
            or entry[TOPIC] in special_topics
            or _may_be_sealed(properties)
            or any(word in properties for word in stops)
        ):
            break
        run = runs.get((entry[TOPIC], entry[QUEUE_ID]))
        if run is not None and run[0] + len(run[1]) != offset:
            break
        if run is None:
            run = runs[entry[TOPIC], entry[QUEUE_ID]] = (offset, [])
        made = queue_runs([entry], ())
        assert made is not None
        run[1].append(made[0][3])
        keys.append(packed_keys([entry], tags_too))
        last_ms = max(last_ms, entry[STORE_TIMESTAMP])
        records += 1
        assert entry[PHYSICAL_OFFSET] == lies_at + at
        at += entry[SIZE]
    found_runs = [(topic, number, first, b"".join(run)) for (topic, number), (first, run) in runs.items()]
    return found_runs, b"".join(keys), at, records, last_ms


def packed_keys(entries: list[Entry], tags_too: bool) -> bytes:
    """The keys of log entries, packed. ``tags_too``: with one for the tag behind those of each message, as
    Apache's broker has entered them since 5.4."""
    if not tags_too:
        return b"".join([ITEM.pack(*item) for item in key_items(entries)])
    packed: list[bytes] = []
    for entry in entries:
        packed += [ITEM.pack(*item) for item in key_items([entry])]
        tag = names.find(entry[PROPERTIES], names.AT_TAGS)
        if tag is not None and entry[SYS_FLAG] & TRANSACTION_MASK != TRANSACTION_ROLLBACK:
            code = index_hash(java_hash(tag, java_hash(entry[TOPIC] + b"#T#")))
            packed.append(ITEM.pack(code, entry[PHYSICAL_OFFSET], entry[STORE_TIMESTAMP]))
    return b"".join(packed)


def _may_be_sealed(properties: bytes) -> bool:
    """Whether they end, or may once have ended, in a CRC of the whole record."""
    end = properties[-_SEAL_BYTES:]
    return 0 in end or sum(map(eq, end, _SEAL)) >= _SEAL_LEFT


log_runs = compiled("log_runs", _log_runs)
