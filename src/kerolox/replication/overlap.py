"""Comparison of the end of a follower's log with the leader's log: the last common bytes must be equal.

The protocol contains no identity. But a follower may report less than it has and then receives bytes that it
already has: it compares them, and appends nothing before all of them are equal.
"""

from __future__ import annotations

from datetime import UTC, datetime

from kerolox.protocol.record_scan import CHECK_NONE, PHYSICAL_OFFSET, scan
from kerolox.replication.link_state import CannotFollow, LinkState
from kerolox.store.errors import StoreError
from kerolox.store.log.readable_log import store_timestamp_of
from kerolox.store.message_store import MessageStore
from kerolox.store.truncate import boundaries

COMPARED_BYTES = 1 << 20
RECORD_BYTES_MAX = 5 << 20  # limit of the search for the start of the record at which the comparison begins
HEAD_BYTES = 76  # per record; contains its store time


class Overlap:
    """This follower's bytes before the end of its log, and the offset up to which the leader's are equal."""

    def __init__(self, begin: int, own: bytes) -> None:
        self.begin = begin
        self.end = begin + len(own)
        # Bytes between `begin` and here are equal. Offset 0 would mean an empty log, so the first byte of a
        # log that begins at 0 is not compared.
        self.equal = min(max(begin, 1), self.end)
        self._own = own

    @property
    def done(self) -> bool:
        return self.equal >= self.end

    def compare(self, data: bytes) -> bytes:
        """Compare the leader's next bytes and return those behind this log's end. Raises CannotFollow if they
        differ."""
        own = self._own[self.equal - self.begin :]
        there = min(len(own), len(data))
        if own[:there] != data[:there]:
            same = next(at for at in range(there) if own[at] != data[at])
            raise self._differ(self.equal + same, data[same:])
        self.equal += there
        return data[there:]

    def _differ(self, offset: int, others: bytes) -> CannotFollow:
        own = self._own
        record = self.begin
        for entry in scan(own, check=CHECK_NONE).entries:
            if entry[PHYSICAL_OFFSET] > offset:
                break
            record = entry[PHYSICAL_OFFSET]
        start = record - self.begin
        here = own[start : start + HEAD_BYTES]
        there = (own[start : offset - self.begin] + others)[:HEAD_BYTES]
        return CannotFollow(
            LinkState.DIVERGED,
            f"the two logs differ at {offset}, in the record at {record}: the leader's was stored "
            f"{when_stored(store_timestamp_of(there))}, this follower's "
            f"{when_stored(store_timestamp_of(here))}; this follower's log ends at {self.end}",
            "one of the two brokers led while the other did not follow. Decide which history to keep",
            resync=True,
        )


async def overlap_of(store: MessageStore, leader_begin: int) -> Overlap:
    """Return the last megabyte of the log, from the start of a record, without parts that the leader has
    deleted."""
    log = store.log
    end = log.max_offset
    low = max(log.min_offset, leader_begin)

    def read() -> Overlap:
        begin = max(end - COMPARED_BYTES, low)
        if end - COMPARED_BYTES > low:
            try:
                record = boundaries(store.segments, store.consume_queues, begin)[0]
            except StoreError:
                record = begin
            if low <= record and begin - record <= RECORD_BYTES_MAX:
                begin = record
        parts = []
        at = begin
        while at < end:
            size = store.segments.readable(at)
            parts.append(store.segments.read(at, min(size, end - at)))
            at += len(parts[-1])
        return Overlap(begin, b"".join(parts))

    return await store.readers.read(read)


def when_stored(stored_ms: int) -> str:
    """Return a store time as text."""
    if not 0 < stored_ms < 1 << 43:
        return "at a time that cannot be read"
    return datetime.fromtimestamp(stored_ms / 1000, UTC).strftime("at %Y-%m-%d %H:%M:%S UTC")
