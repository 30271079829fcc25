"""Queue and index entries directly from a stretch of the log, for tools that read logs of terabytes.

Only ordinary records are processed. At the first that needs special treatment (a flag, a topic or a property
with its own rules, an offset that does not follow, damage) it stops, and the caller continues with
``record_scan.scan`` and the fillers of this package.
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
from kerolox.store.dispatch.entries import FLAGS_QUEUED, QueueRun, queue_runs
from kerolox.store.dispatch.keys import key_items
from kerolox.store.index.index_file import ITEM

# Entries by queue; packed keys; offset at which it stopped; number of records; latest store time.
LogRuns: TypeAlias = tuple[list[QueueRun], bytes, int, int, int]

_SEAL = b"__CRC32#\x01"
_SEAL_BYTES = 20
_SEAL_LEFT = 6  # matching bytes of it that cannot be chance


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
    """Return the entries of the ordinary records from ``at`` on that begin before ``before`` and end by
    ``end``. ``lies_at``: the log offset of the first byte.

    Each queue appears once. ``stops``: words that the properties of an ordinary record do not contain.
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
    """Return the packed keys of log entries. ``tags_too``: with one for the tag after those of each message,
    as Apache's broker enters since 5.4."""
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
    """Return True if the properties end, or may once have ended, in a CRC of the whole record."""
    end = properties[-_SEAL_BYTES:]
    return 0 in end or sum(map(eq, end, _SEAL)) >= _SEAL_LEFT


log_runs = compiled("log_runs", _log_runs)
