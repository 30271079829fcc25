"""Writer of chunks into the files of a new log: records get new offsets, queue ids and hosts."""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from kerolox.atomic_file import write_atomically
from kerolox.pipeline.transfer.archives import ArchiveFile, RowWriter
from kerolox.pipeline.transfer.chunks import Choice, Chunk, Taker
from kerolox.protocol.flags import BORN_HOST_IPV6, STORE_HOST_IPV6
from kerolox.protocol.hosts import IPV4_HOST_BYTES, IPV6_HOST_BYTES
from kerolox.protocol.record import (
    BLANK_BYTES,
    CRC_PROPERTY_BYTES,
    PHYSICAL_OFFSET_AT,
    decode_record,
    encode_blank,
    encode_message,
    seal_record,
)
from kerolox.protocol.record_scan import QUEUE_ID, SIZE, SYS_FLAG, TOPIC, Entry, Stop, scan
from kerolox.store.disk.segment import segment_name
from kerolox.store.errors import StoreError
from kerolox.store.offline.layout import Layout
from kerolox.store.offline.mend import open_log

WRITERS_MAX = 8  # files of archives that a task has open
_QUEUE_ID_AT = 12
_BORN_HOST_AT = 48
_NUMBER = struct.Struct(">i")
_PLACE = struct.Struct(">q")
_SEAL = b"__CRC32#\x01"

# First queue ids in the new store: by topic for a store, by broker for a file of an archive.
FirstQueues = Mapping[bytes, int]


class Placed(msgspec.Struct, array_like=True, gc=False):
    """Chunk of a source with its offset in the new log. ``blank``: unused bytes of the file after it."""

    source: int
    chunk: Chunk
    place: int
    blank: int = 0


class LogShare(msgspec.Struct):
    """Part of the new log that one task writes."""

    number: int
    placed: list[Placed]

    @property
    def size(self) -> int:
        return sum(each.chunk.size for each in self.placed)


def place_all(
    chunks: Sequence[tuple[int, Chunk]], begin: int, file_bytes: int, share_bytes: int
) -> tuple[list[LogShare], int]:
    """Give each chunk its offset, from ``begin`` on. Returns the shares of tasks, and the end of the log."""
    shares: list[LogShare] = []
    place, size = begin, share_bytes
    last: Placed | None = None
    for source, chunk in chunks:
        used = place % file_bytes
        if used + chunk.size + BLANK_BYTES > file_bytes:
            assert last is not None
            last.blank = file_bytes - used
            place += last.blank
        if size >= share_bytes:
            shares.append(LogShare(len(shares), []))
            size = 0
        last = Placed(source, chunk, place)
        shares[-1].placed.append(last)
        place += chunk.size
        size += chunk.size
    return shares, place


def share_note(number: int) -> str:
    return f"written-{number}.done"


class ChunkWriter:
    """Converter of the records of a chunk."""

    def __init__(self, layout: Layout, choice: Choice, first_queues: FirstQueues) -> None:
        self._segments = open_log(layout)
        self._taker = Taker(layout, choice)
        self._host = choice.store_host
        self._first_queues = first_queues

    def records(self, chunk: Chunk, place: int) -> bytearray:
        """Return the bytes of the new log at ``place``."""
        data = self._segments.read(chunk.start, chunk.end - chunk.start)
        found = scan(data, count_max=len(data))
        if found.stop is not Stop.END:
            raise self._changed(chunk)
        made = bytearray()
        at = 0
        for entry in found.entries:
            size = entry[SIZE]
            if self._taker.takes(entry):
                made += self._anew(data[at : at + size], entry, place + len(made))
            at += size
        if len(made) != chunk.size:
            raise self._changed(chunk)
        return made

    def close(self) -> None:
        self._segments.close()

    def _changed(self, chunk: Chunk) -> StoreError:
        return StoreError(
            f"the log in {self._segments.directories[0]} changed from {chunk.start} to {chunk.end} since it "
            "was first read. Is a broker running on it? Stop it, and start again in a new directory."
        )

    def _anew(self, old: bytes, entry: Entry, place: int) -> bytes | bytearray:
        queue_id = entry[QUEUE_ID] + self._first_queues[entry[TOPIC]]
        flag, host = entry[SYS_FLAG], self._host
        sealed = old[-CRC_PROPERTY_BYTES:].startswith(_SEAL)
        old_width = IPV6_HOST_BYTES if flag & STORE_HOST_IPV6 else IPV4_HOST_BYTES
        if host and len(host) != old_width:
            message = decode_record(old)
            message.queue_id, message.physical_offset, message.store_host = queue_id, place, host
            record = encode_message(message)
            return seal_record(record) if sealed else record
        new = bytearray(old)
        _NUMBER.pack_into(new, _QUEUE_ID_AT, queue_id)
        _PLACE.pack_into(new, PHYSICAL_OFFSET_AT, place)
        if host:
            # The store host follows the born host and the store time.
            at = _BORN_HOST_AT + (IPV6_HOST_BYTES if flag & BORN_HOST_IPV6 else IPV4_HOST_BYTES) + 8
            new[at : at + len(host)] = host
        return seal_record(bytes(new)) if sealed else new


class LogFiles:
    """Files of the new log that one task writes."""

    def __init__(self, directory: str, file_bytes: int) -> None:
        self._directory = directory
        self._file_bytes = file_bytes
        self._start = -1
        self._fd = -1

    def write(self, data: bytes | bytearray, place: int) -> None:
        start = place - place % self._file_bytes
        if start != self._start:
            self.close()
            path = os.path.join(self._directory, segment_name(start))
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
            os.ftruncate(self._fd, self._file_bytes)  # by the first task that opens it
            self._start = start
        view = memoryview(data)
        at = place - start
        while view:
            count = os.pwrite(self._fd, view, at)
            view, at = view[count:], at + count

    def close(self) -> None:
        if self._fd >= 0:
            os.fsync(self._fd)
            os.close(self._fd)
            self._fd = -1


def write_share(
    sources: Sequence[Layout | ArchiveFile],
    choice: Choice,
    first_queues: Sequence[FirstQueues],
    log: str,
    work: str,
    share: LogShare,
) -> None:
    """Run the task: write a part of the new log, and a note that it is done."""
    writers: dict[int, ChunkWriter | RowWriter] = {}
    files = LogFiles(log, choice.file_bytes)
    try:
        for each in share.placed:
            writer = writers.get(each.source)
            if writer is None:
                source, firsts = sources[each.source], first_queues[each.source]
                if isinstance(source, ArchiveFile):
                    if len(writers) >= WRITERS_MAX:
                        writers.pop(next(iter(writers))).close()
                    writer = RowWriter(source, choice, dict(firsts))
                else:
                    writer = ChunkWriter(source, choice, firsts)
                writers[each.source] = writer
            files.write(writer.records(each.chunk, each.place), each.place)
            if each.blank:
                files.write(encode_blank(each.blank), each.place + each.chunk.size)
    except OSError as error:
        raise StoreError(f"a part of the log could not be written to {log}: {error}") from error
    finally:
        files.close()
        for writer in writers.values():
            writer.close()
    write_atomically(Path(work) / share_note(share.number), b"true")
