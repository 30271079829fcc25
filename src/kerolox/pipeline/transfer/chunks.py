"""Chunks: short runs of records of a log that are copied to the new log together.

A chunk is read at once, and goes into one file of the new log. So the plan needs only the size of each
chunk, and a file of the new log ends at most one chunk too early.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from kerolox.atomic_file import write_atomically
from kerolox.pipeline.audit.plan import is_users
from kerolox.pipeline.rebuild.extract import LogPart, PartReader
from kerolox.pipeline.rebuild.pieces import DamageNote
from kerolox.protocol.flags import STORE_HOST_IPV6
from kerolox.protocol.hosts import IPV4_HOST_BYTES, IPV6_HOST_BYTES
from kerolox.protocol.record import BLANK_BYTES
from kerolox.protocol.record_scan import (
    PHYSICAL_OFFSET,
    QUEUE_ID,
    QUEUE_OFFSET,
    SIZE,
    STORE_TIMESTAMP,
    SYS_FLAG,
    TOPIC,
    Entry,
)
from kerolox.protocol.reserved import DEAD_LETTER_PREFIX, RETRY_PREFIX
from kerolox.store.errors import StoreError
from kerolox.store.offline.layout import Layout, OnlyReading
from kerolox.store.offline.mend import is_filler
from kerolox.store.queue.deleted_topics import DeletedTopics
from kerolox.store.rebuild import topics_left_out

CHUNK_BYTES = 1 << 20
SPAN_MAX = 8 << 20  # bytes of the old log that are read at once


class Choice(msgspec.Struct, frozen=True):
    """Choice of records to copy, and the changes in them."""

    topics: tuple[str, ...] = ()  # empty: all except internal topics
    store_host: bytes = b""  # encoded host of the new broker; empty: unchanged
    file_bytes: int = 0  # file size of the new log

    @property
    def chunk_bytes(self) -> int:
        return min(CHUNK_BYTES, self.file_bytes // 16)

    def has(self, topic: str) -> bool:
        if self.topics:
            return topic in self.topics
        return topic.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX)) or is_users(topic)

    def size_of(self, entry: Entry) -> int:
        """Return the size of the new record: hosts have two widths."""
        if not self.store_host:
            return entry[SIZE]
        old = IPV6_HOST_BYTES if entry[SYS_FLAG] & STORE_HOST_IPV6 else IPV4_HOST_BYTES
        return entry[SIZE] + len(self.store_host) - old


class Taker:
    """Filter of the records of a store."""

    def __init__(self, layout: Layout, choice: Choice) -> None:
        self._choice = choice
        self._deleted = DeletedTopics(OnlyReading(), layout.root).load()
        self._not_wanted = topics_left_out(layout)
        self._known: dict[bytes, bool] = {}

    def deleted(self, entry: Entry) -> bool:
        topic = entry[TOPIC]
        if self._not_wanted and topic in self._not_wanted:
            return True
        return bool(self._deleted) and entry[PHYSICAL_OFFSET] < self._deleted.get(topic, 0)

    def takes(self, entry: Entry) -> bool:
        topic = entry[TOPIC]
        wanted = self._known.get(topic)
        if wanted is None:
            wanted = self._known[topic] = self._choice.has(topic.decode("utf-8", "replace"))
        return wanted and not self.deleted(entry) and not is_filler(topic, entry[SYS_FLAG])


class Chunk(msgspec.Struct, array_like=True, gc=False):
    """Records of an old log from ``start`` to ``end``. Copied ones need ``size`` bytes in the new log."""

    start: int
    end: int
    size: int
    records: int
    first_ms: int


class QueueSpan(msgspec.Struct, array_like=True):
    """Messages of a queue in a part: count, first and last queue offset."""

    topic: str
    queue_id: int
    count: int
    first: int
    last: int


class ChunkedPart(msgspec.Struct):
    """Chunks and counts of a part of a log."""

    start: int
    first: int
    end: int
    stop: str = ""
    records: int = 0  # all of them
    chunks: list[Chunk] = []
    queues: list[QueueSpan] = []
    left_out: dict[str, int] = {}  # messages that are not copied, by topic
    deleted: int = 0  # messages of deleted topics
    damage: list[DamageNote] = []


def part_note(source: int, start: int) -> str:
    return f"part-{source}-{start:020d}.json"


class ChunkReader(PartReader):
    """Reader of one part of a log that finds its chunks."""

    def __init__(self, layout: Layout, part: LogPart, choice: Choice, source: int, work: Path) -> None:
        super().__init__(layout, part, work, tags_too=False)
        self._choice = choice
        self._source = source
        self._taker = Taker(layout, choice)
        self._open: Chunk | None = None
        self._spans: dict[tuple[bytes, int], QueueSpan] = {}
        self._left_out: dict[bytes, int] = {}
        self.found = ChunkedPart(part.start, part.start, part.start)

    def measure(self) -> ChunkedPart:
        self._read()
        self._segments.close()
        self._close_chunk()
        piece, found = self.piece, self.found
        found.first, found.end, found.stop = piece.first, piece.end, piece.stop
        found.records, found.damage = piece.records, piece.damage
        found.queues = list(self._spans.values())
        found.left_out = {topic.decode("utf-8", "replace"): n for topic, n in self._left_out.items()}
        path = self._work / part_note(self._source, self._part.start)
        write_atomically(path, msgspec.json.encode(found))
        return found

    def _take_fast(self, data: bytes, at: int, end: int, position: int) -> int:
        return at  # no fast path: each record is examined

    def _take_entries(self, entries: list[Entry]) -> None:
        self.piece.records += len(entries)
        takes, choice, spans = self._taker.takes, self._choice, self._spans
        most, room = choice.chunk_bytes, choice.file_bytes - BLANK_BYTES
        chunk = self._open
        for entry in entries:
            if not takes(entry):
                self._pass_over(entry)
                continue
            size, physical = choice.size_of(entry), entry[PHYSICAL_OFFSET]
            if size > room:
                raise StoreError(
                    f"the message at {physical} of the log needs {size} bytes, but files of the new log "
                    f"have only {choice.file_bytes}."
                )
            end = physical + entry[SIZE]
            if chunk is None or chunk.size + size > most or end - chunk.start > SPAN_MAX:
                self._close_chunk()
                chunk = self._open = Chunk(physical, end, 0, 0, entry[STORE_TIMESTAMP])
            chunk.end = end
            chunk.size += size
            chunk.records += 1
            key = entry[TOPIC], entry[QUEUE_ID]
            offset = entry[QUEUE_OFFSET]
            span = spans.get(key)
            if span is None:
                spans[key] = QueueSpan(key[0].decode("utf-8", "replace"), key[1], 1, offset, offset)
            else:
                span.count += 1
                span.last = offset

    def _pass_over(self, entry: Entry) -> None:
        if self._taker.deleted(entry):
            self.found.deleted += 1
        elif not is_filler(entry[TOPIC], entry[SYS_FLAG]):
            self._left_out[entry[TOPIC]] = self._left_out.get(entry[TOPIC], 0) + 1

    def _close_chunk(self) -> None:
        if self._open is not None:
            self.found.chunks.append(self._open)
            self._open = None

    def _step_over(self, position: int, what: str) -> bool:
        self._close_chunk()
        return super()._step_over(position, what)


def measure(
    layouts: list[Layout], choice: Choice, work: str, parts: tuple[int, list[LogPart]]
) -> list[ChunkedPart]:
    """Run the task: find the chunks in parts of the log of a source."""
    source, these = parts
    return [ChunkReader(layouts[source], part, choice, source, Path(work)).measure() for part in these]
