"""Piece: result of a task for its part of a log, with queue entries by queue and keys in log order.

A piece has three files in the work folder, named by the start of the part. ``.entries`` has queue entries in
their final form, ``.keys`` has keys of 20 bytes (``index_file.ITEM``), and ``.piece`` is the table of
contents: for each queue its position in ``.entries`` and its runs, each with first offset and length.
``.piece`` is written after the others are on disk, so a part with this file is finished.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from kerolox.atomic_file import write_atomically
from kerolox.store.index.index_file import ITEM
from kerolox.store.queue.entry import SIMPLE

READ_BYTES = 1 << 20


class PieceRun(msgspec.Struct, array_like=True, gc=False):
    """Consecutive entries. ``extra``: further queue offsets of a batch that is stored as one record."""

    first: int
    count: int
    extra: int = 0


class PieceQueueNote(msgspec.Struct, array_like=True):
    """Entries of one queue in a piece."""

    topic: str
    queue_id: int
    at: int  # position in the file of entries, bytes
    runs: list[PieceRun]

    @property
    def count(self) -> int:
        return sum(run.count for run in self.runs)


class DamageNote(msgspec.Struct, frozen=True):
    """Bytes of the log that are not a record, followed by valid records."""

    offset: int
    valid_from: int
    what: str
    path: str
    in_file: int


class Piece(msgspec.Struct):
    """Result of one part of the log."""

    start: int  # start of the part, in the file names
    first: int  # begin of the first record
    end: int  # end of the last record, or begin of the next file
    stop: str = ""  # description of the bytes at the end of the log, if it is in this part
    records: int = 0
    keys: int = 0
    last_ms: int = 0
    queues: list[PieceQueueNote] = []
    damage: list[DamageNote] = []
    left_out: int = 0  # messages of deleted topics

    @property
    def ended(self) -> bool:
        return bool(self.stop)


def piece_path(work: Path, start: int, kind: str) -> Path:
    return work / f"{start:020d}.{kind}"


def write_piece(work: Path, piece: Piece, queues: Iterable[tuple[PieceQueueNote, bytes | bytearray]]) -> None:
    """Write the entries, then the note that finishes the part. The keys are already written."""
    at = 0
    notes: list[PieceQueueNote] = []
    with piece_path(work, piece.start, "entries").open("wb") as file:
        for note, entries in queues:
            note.at = at
            file.write(entries)
            at += len(entries)
            notes.append(note)
        file.flush()
        os.fsync(file.fileno())
    piece.queues = notes
    write_atomically(piece_path(work, piece.start, "piece"), msgspec.json.encode(piece))


def read_piece(work: Path, start: int) -> Piece | None:
    """Read the piece of a part; None if it is not finished."""
    try:
        piece = msgspec.json.decode(piece_path(work, start, "piece").read_bytes(), type=Piece)
        entries = piece_path(work, start, "entries").stat().st_size
        keys = piece_path(work, start, "keys").stat().st_size
    except (OSError, msgspec.DecodeError):
        return None
    whole = (
        sum(note.count for note in piece.queues) * SIMPLE.size == entries and piece.keys * ITEM.size == keys
    )
    return piece if whole else None


class EntriesFile:
    """Reader of the entries of a piece."""

    def __init__(self, work: Path, start: int) -> None:
        self._file = piece_path(work, start, "entries").open("rb", buffering=0)

    def __enter__(self) -> EntriesFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def runs(self, note: PieceQueueNote) -> Iterator[tuple[PieceRun, bytes]]:
        """Yield the entries of a queue in chunks of bounded size."""
        at = note.at
        for run in note.runs:
            first, left = run.first, run.count
            while left:
                count = min(left, READ_BYTES // SIMPLE.size)
                data = os.pread(self._file.fileno(), count * SIMPLE.size, at)
                yield PieceRun(first, count, run.extra), data
                at += len(data)
                first += count
                left -= count


def key_at(work: Path, start: int, number: int) -> tuple[int, int, int]:
    """Return one key of a piece: hash, physical offset, store time."""
    with piece_path(work, start, "keys").open("rb") as file:
        hash_, physical, stored_ms = ITEM.unpack(os.pread(file.fileno(), ITEM.size, number * ITEM.size))
    return hash_, physical, stored_ms


def keys_of(work: Path, start: int, low: int, high: int) -> Iterator[bytes]:
    """Yield packed keys of a piece from number ``low`` to before ``high``, in chunks of bounded size."""
    step = READ_BYTES // ITEM.size
    with piece_path(work, start, "keys").open("rb", buffering=0) as file:
        for number in range(low, high, step):
            count = min(step, high - number)
            yield os.pread(file.fileno(), count * ITEM.size, number * ITEM.size)
