"""Archives as sources of a new store: rows of their files become records again.

A chunk is a run of rows of one queue. The chunks of a queue are ordered by offset, across files. Fields that
an archive does not have get neutral values: bodies are not compressed, and no record belongs to a
transaction.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq

from kerolox.atomic_file import write_atomically
from kerolox.errors import OptionError
from kerolox.pipeline.archive.log import ParquetArchive
from kerolox.pipeline.lake.staging import HEAD
from kerolox.pipeline.lake.storage import Storage, open_storage
from kerolox.pipeline.transfer.chunks import Choice, Chunk
from kerolox.protocol import properties as names
from kerolox.protocol.flags import COMPRESSED, COMPRESSION_MASK, INNER_BATCH, NEEDS_UNWRAP, TRANSACTION_MASK
from kerolox.protocol.hosts import IPV4_HOST_BYTES, host_bytes
from kerolox.protocol.record import BLANK_BYTES, encode_record, topic_field
from kerolox.store.errors import StoreError

GROUPS_KEPT = 4  # row groups that a task keeps in memory
_NEEDED = ("broker", "queue_id", "queue_offset", "body")
_FLAGS_GONE = COMPRESSED | COMPRESSION_MASK | INNER_BATCH | NEEDS_UNWRAP | TRANSACTION_MASK
_NO_HOST = bytes(IPV4_HOST_BYTES)


class RowChunk(Chunk):
    """Chunk of rows of one queue in a row group of a file, from ``start`` to ``end``."""

    group: int
    broker: str
    queue_id: int
    first: int  # offsets in the queue
    last: int


class MeasuredFile(msgspec.Struct):
    """Chunks of a file of an archive."""

    chunks: list[RowChunk] = []


class ArchiveFile:
    """File of an archive."""

    def __init__(self, storage: Storage, path: str, topic: str) -> None:
        self.storage = storage
        self.path = path
        self.topic = topic

    def rows(self, group: int) -> list[dict[str, Any]]:
        with self.storage.reader(self.path) as opened, pq.ParquetFile(opened) as file:
            rows: list[dict[str, Any]] = file.read_row_group(group).to_pylist()
            return rows

    def groups(self) -> int:
        with self.storage.reader(self.path) as opened, pq.ParquetFile(opened) as file:
            missing = [name for name in _NEEDED if name not in file.schema_arrow.names]
            if missing:
                raise StoreError(
                    f"{self.path} of {self.storage} has no column {' and '.join(missing)}, so it cannot be "
                    "converted to messages."
                )
            return int(file.num_row_groups)


class ArchiveSource:
    """Archive as a source, with its files."""

    def __init__(self, address: str, choice: Choice) -> None:
        storage = open_storage(address)
        self.address = storage.address
        written = ParquetArchive(storage).files()
        self.files = [
            ArchiveFile(storage, path, file.topic)
            for path, file in sorted(written.items())
            if choice.has(file.topic)
        ]
        self.state = [self.address, [[path, file.rows] for path, file in sorted(written.items())]]
        if not written:
            raise OptionError("SOURCE", address, "an archive with files; this one has none")


def is_archive(address: str) -> bool:
    return open_storage(address).exists(HEAD)


def _ms(value: datetime | None) -> int:
    return round(value.timestamp() * 1000) if value is not None else 0


def _properties(row: dict[str, Any]) -> bytes:
    """Return packed properties; without a properties column they are made from msg_id, keys and tags."""
    given = row.get("properties")
    if isinstance(given, str):
        packed = given.encode()
    elif given is not None:
        packed = names.pack(dict(given))
    else:
        told = {names.UNIQUE_KEY: row.get("msg_id"), names.KEYS: row.get("keys"), names.TAGS: row.get("tags")}
        packed = names.pack({name: value for name, value in told.items() if value})
    return names.remove(packed, names.AT_CRC32)


def record_of(row: dict[str, Any], topic: bytes, queue_id: int, place: int, host: bytes) -> bytes:
    """Encode a row as a record. ``topic`` is the encoded topic field."""
    return encode_record(
        queue_id,
        row.get("flag") or 0,
        row["queue_offset"],
        place,
        (row.get("sys_flag") or 0) & ~_FLAGS_GONE,
        _ms(row.get("born_timestamp")),
        host_bytes(row["born_host"]) if row.get("born_host") else _NO_HOST,
        _ms(row.get("store_timestamp")),
        host or (host_bytes(row["store_host"]) if row.get("store_host") else _NO_HOST),
        row.get("reconsume_times") or 0,
        0,
        row["body"] or b"",
        topic,
        _properties(row),
    )


def measured_note(number: int) -> str:
    return f"archive-{number}.json"


def measure_file(choice: Choice, work: str, item: tuple[int, ArchiveFile]) -> MeasuredFile:
    """Run the task: find the chunks of a file and the size of their records."""
    number, file = item
    found = MeasuredFile(list(_chunks(file, choice)))
    write_atomically(Path(work) / measured_note(number), msgspec.json.encode(found))
    return found


def _chunks(file: ArchiveFile, choice: Choice) -> Iterator[RowChunk]:
    topic = topic_field(file.topic)
    for group in range(file.groups()):
        chunk: RowChunk | None = None
        for at, row in enumerate(file.rows(group)):
            size = len(record_of(row, topic, 0, 0, choice.store_host))
            if size > choice.file_bytes - BLANK_BYTES:
                raise StoreError(
                    f"row {at} of row group {group} of {file.path} needs {size} bytes, but files of the new "
                    f"log have only {choice.file_bytes}."
                )
            broker, queue_id, offset = row["broker"] or "", row["queue_id"], row["queue_offset"]
            goes_on = (
                chunk is not None
                and (chunk.broker, chunk.queue_id) == (broker, queue_id)
                and offset > chunk.last
                and chunk.size + size <= choice.chunk_bytes
            )
            if chunk is None or not goes_on:
                if chunk is not None:
                    yield chunk
                stored_ms = _ms(row.get("store_timestamp"))
                chunk = RowChunk(at, at, 0, 0, stored_ms, group, broker, queue_id, offset, offset)
            chunk.end, chunk.last = at + 1, offset
            chunk.size += size
            chunk.records += 1
        if chunk is not None:
            yield chunk


class RowWriter:
    """Converter of the rows of a file into records."""

    def __init__(self, file: ArchiveFile, choice: Choice, first_queues: dict[bytes, int]) -> None:
        self._file = file
        self._topic = topic_field(file.topic)
        self._host = choice.store_host
        self._first_queues = first_queues  # first queue id by broker
        self._groups: dict[int, list[dict[str, Any]]] = {}

    def records(self, chunk: Chunk, place: int) -> bytearray:
        assert isinstance(chunk, RowChunk)
        made = bytearray()
        queue_id = chunk.queue_id + self._first_queues[chunk.broker.encode()]
        for row in self._rows(chunk.group)[chunk.start : chunk.end]:
            made += record_of(row, self._topic, queue_id, place + len(made), self._host)
        if len(made) != chunk.size:
            raise StoreError(
                f"{self._file.path} changed since it was first read. Start again in a new directory."
            )
        return made

    def _rows(self, group: int) -> list[dict[str, Any]]:
        rows = self._groups.get(group)
        if rows is None:
            while len(self._groups) >= GROUPS_KEPT:
                del self._groups[next(iter(self._groups))]
            rows = self._groups[group] = self._file.rows(group)
        return rows

    def close(self) -> None:
        self._groups.clear()


def queue_runs(
    files: Sequence[tuple[int, str, MeasuredFile]],
) -> dict[tuple[str, str, int], list[tuple[int, RowChunk]]]:
    """Return the chunks of each queue, ordered by offset, with the number of their file.

    Keys are topic, broker and queue id. ``files``: number, topic and chunks of each file.
    """
    runs: dict[tuple[str, str, int], list[tuple[int, RowChunk]]] = {}
    for number, topic, found in files:
        for chunk in found.chunks:
            runs.setdefault((topic, chunk.broker, chunk.queue_id), []).append((number, chunk))
    for run in runs.values():
        run.sort(key=lambda each: each[1].first)
    return runs
