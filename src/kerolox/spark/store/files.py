"""The files of a store as ranges of bytes, read without a broker, a lock or a single write.

A store may be in use while it is read, may be a copy, and may be damaged: files can be missing or cut short.
What is not there reads as nothing; the caller decides what that means.
"""

from __future__ import annotations

import os
import struct
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from kerolox.protocol.record import record_crc_ok
from kerolox.protocol.record_scan import (
    CHECK_BODY,
    PHYSICAL_OFFSET,
    PROPERTIES,
    SIZE,
    STORE_TIMESTAMP,
    TOPIC,
    Stop,
    scan,
)
from kerolox.store.disk.files import File
from kerolox.store.errors import FileMissing
from kerolox.store.log.readable_log import store_timestamp_of
from kerolox.store.offline.layout import OnlyReading, is_segment_name
from kerolox.store.queue.entry import BLANK_SIZE, SIMPLE

MAGICS = (b"\xda\xa3\x20\xa7", b"\xda\xa3\x20\xab")
BLANK_MAGIC = b"\xcb\xd4\x31\x94"
PIECE_BYTES = 1 << 20
ENTRIES_AT_ONCE = 1 << 16
NO_FILE = "the file is missing"
GONE = "the file was deleted or truncated while it was read"
# See store/FORMAT.md, "Consume queue entry".
ENTRIES = np.dtype(list(SIMPLE.fields))
_CRC_MARK = b"__CRC32#\x01"
_ZEROS = bytes(PIECE_BYTES)
_BESIDE_BODY_MAX = 1 << 17  # topic and properties have lengths of two bytes

Entries = npt.NDArray[np.void]


class RunFile(NamedTuple):
    """One file of a run."""

    start: int
    end: int
    path: str


class FileRun(NamedTuple):
    """Files that are named by where they begin. There may be gaps between them."""

    directory: str
    pieces: tuple[RunFile, ...]
    file_bytes: int  # what a whole file has
    files: OnlyReading | None = None  # where they lie, if not on disk

    @property
    def start(self) -> int:
        return self.pieces[0].start if self.pieces else 0

    @property
    def end(self) -> int:
        return self.pieces[-1].end if self.pieces else 0

    def piece_at(self, place: int) -> RunFile | None:
        number = bisect_right(self.pieces, place, key=_start_of) - 1
        if number < 0 or place >= self.pieces[number].end:
            return None
        return self.pieces[number]

    def next_start(self, place: int) -> int:
        """Return the begin of the next file; the end of the run if there is none."""
        number = bisect_right(self.pieces, place, key=_start_of)
        return self.pieces[number].start if number < len(self.pieces) else max(place, self.end)

    def between(self, low: int, high: int) -> FileRun:
        """This run with only the files that touch the range."""
        return self._replace(
            pieces=tuple(each for each in self.pieces if each.start < high and each.end > low)
        )

    def where(self, place: int) -> tuple[str, int]:
        """The path of the file and the byte in it, for people; of a missing file, the name it would have."""
        piece = self.piece_at(place)
        if piece is not None:
            return piece.path, place - piece.start
        size = self.file_bytes or 1
        first = self.start + (place - self.start) // size * size
        return os.path.join(self.directory, f"{first:020d}"), place - first


def _start_of(piece: RunFile) -> int:
    return piece.start


def find_run(directories: Sequence[str], elsewhere: OnlyReading | None = None) -> FileRun:
    """The files of a folder as a run. Where files overlap, the one before counts."""
    files = elsewhere or OnlyReading()
    found: list[RunFile] = []
    sizes: Counter[int] = Counter()
    for directory in directories:
        for name in files.list_dir(directory):
            if not is_segment_name(name):
                continue
            path = os.path.join(directory, name)
            try:
                size = files.size(path)
            except FileMissing:
                continue  # deleted meanwhile
            if size:
                found.append(RunFile(int(name), int(name) + size, path))
                sizes[size] += 1
    pieces: list[RunFile] = []
    for piece in sorted(found):
        if not pieces or piece.start >= pieces[-1].end:
            pieces.append(piece)
    whole = max(sizes, key=lambda size: (sizes[size], size), default=0)
    return FileRun(directories[0], tuple(pieces), whole, elsewhere)


class OpenFileRun:
    """Reads a run. One file is open at a time: reading goes forward."""

    def __init__(self, run: FileRun) -> None:
        self.run = run
        self._files = run.files or OnlyReading()
        self._piece: RunFile | None = None
        self._file: File | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file = self._piece = None

    def _open(self, piece: RunFile) -> File:
        if piece is not self._piece or self._file is None:
            self.close()
            self._file = self._files.open(piece.path)
            self._piece = piece
        return self._file

    def read(self, place: int, size: int) -> bytes:
        """Up to so many bytes of one file; fewer at its end, none where there is no file. Raises DiskError
        when a file that is there cannot be read: its messages must not be left out."""
        piece = self.run.piece_at(place)
        if piece is None:
            return b""
        try:
            return self._open(piece).pread(min(size, piece.end - place), place - piece.start)
        except FileMissing:
            return b""  # deleted

    def read_into(self, view: memoryview, place: int) -> int:
        """Fill the view; how much was there. It does not reach into the next file. Raises DiskError as
        :meth:`read` does."""
        piece = self.run.piece_at(place)
        if piece is None:
            return 0
        try:  # an open file on disk stays readable when it is deleted; one at an address does not
            return self._open(piece).pread_into(
                view[: min(len(view), piece.end - place)], place - piece.start
            )
        except FileMissing:
            return 0

    def written(self, low: int, high: int) -> Iterator[tuple[int, int]]:
        """The parts of a range that were ever written, as far as the file system knows."""
        for piece in self.run.between(low, high).pieces:
            start = max(low, piece.start)
            try:
                ranges = list(
                    self._open(piece).written_ranges(start - piece.start, min(high, piece.end) - piece.start)
                )
            except FileMissing:
                continue
            for first, last in ranges:
                yield piece.start + first, piece.start + last


# --- the log ------------------------------------------------------------------------------------


class LogFiles(OpenFileRun):
    """The commit log: records, and where they are not."""

    def fault_at(self, place: int, *, check: int = CHECK_BODY) -> str:
        """Why no whole record begins here; empty when one does."""
        data = self.read(place, 4096)
        size = int.from_bytes(data[:4], "big", signed=True)
        if size > len(data) == 4096 and data[4:8] in MAGICS:
            # Before much is read because of a wrong size: what is not body is small.
            piece = self.run.piece_at(place)
            at = 84 + 12 * (data[39] >> 4 & 1) + 12 * (data[39] >> 5 & 1)
            body_length = int.from_bytes(data[at : at + 4], "big", signed=True)
            if (
                not 0 <= size - at - body_length < _BESIDE_BODY_MAX
                or piece is None
                or place + size > piece.end
            ):
                return f"record size {size} with a body of {body_length} bytes"
            data = self.read(place, size)
        found = scan(data, check=check, count_max=1)
        if not found.entries:
            return found.what or (NO_FILE if not data else "no record")
        entry = found.entries[0]
        if entry[PHYSICAL_OFFSET] != place:
            return f"a record names another offset, {entry[PHYSICAL_OFFSET]}"
        if check and entry[PROPERTIES][-20:-11] == _CRC_MARK and not record_crc_ok(data[: entry[SIZE]]):
            return "a record breaks its own CRC"
        return ""

    def is_blank(self, place: int) -> bool:
        """Return True if the rest of the file is blank, so that the log continues in the next one."""
        return self.read(place, 8)[4:] == BLANK_MAGIC

    def next_record(self, low: int, high: int) -> int:
        """Return the begin of the next complete record from ``low`` on; ``high`` if there is none before it.

        The record has a magic number, consistent lengths, a body with the right CRC, and this physical
        offset.
        """
        for first, last in self.written(low, high + 4):
            place = first
            while place < min(last, high):
                data = self.read(place, min(PIECE_BYTES, last - place))
                if not data:
                    break  # it was there a moment ago
                if data == _ZEROS[: len(data)]:  # of a copy whose files have no holes: hundreds of times
                    place += len(data)
                    continue
                at = -1
                while True:
                    hits = (data.find(magic, at + 1) for magic in MAGICS)
                    at = min((hit for hit in hits if hit >= 0), default=-1)
                    if at < 0:
                        break
                    candidate = place + at - 4
                    if low <= candidate < high and not self.fault_at(candidate):
                        return candidate
                place += len(data) if place + len(data) >= last else max(1, len(data) - 3)
        return high

    def stored_ms(self, place: int) -> int:
        """Store time of the record that begins here; -1 when none does."""
        return store_timestamp_of(self.read(place, 76))

    def find_end(self, place: int, stored_ms: int = -1) -> int:
        """The end of the last whole record, looking from a place where one begins or the log ends.

        ``stored_ms``: when the record before that place was stored. A writer may be at work: bytes that are
        no record yet count as damage only if they are none on a second look, when there are whole records
        behind them. Records older than those before them are the rest of what a recovery has cut off.
        """
        end = place
        looked_at = -1
        while True:
            last_ms, place = self._walk(place)
            if last_ms >= 0:
                end, stored_ms = place, last_ms
            behind = self.next_record(place + 1, self.run.end)
            if behind >= self.run.end or self.stored_ms(behind) < stored_ms:
                return end
            if looked_at == place:
                place = behind
            else:
                looked_at = place

    def _walk(self, place: int) -> tuple[int, int]:
        """As far as records go back to back: store time of the last one, -1 without any, and its end."""
        end = place
        last_ms = -1
        size = PIECE_BYTES
        while True:
            data = self.read(place, size)
            found = scan(data, check=CHECK_BODY)
            for entry in found.entries:
                # Half of the last record of a writer at work may be there, its other half zeros.
                torn = entry[PROPERTIES].endswith(b"\0") or entry[TOPIC].endswith(b"\0")
                if entry[PHYSICAL_OFFSET] != place or torn:
                    return last_ms, end
                place = end = place + entry[SIZE]
                last_ms = entry[STORE_TIMESTAMP]
            if found.stop is Stop.BLANK:
                place = self.run.next_start(place)
            elif found.stop is Stop.INCOMPLETE and len(data) == size:
                size = PIECE_BYTES if found.entries else size * 2
                continue
            elif found.stop is not Stop.END or not found.entries:
                return last_ms, end
            size = PIECE_BYTES


# --- queues --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class QueueRange:
    """Entries of one queue."""

    topic: str
    queue_id: int
    run: FileRun
    first: int
    end: int


class QueueFiles(OpenFileRun):
    """One consume queue: its entries by number."""

    @property
    def first(self) -> int:
        return -(-self.run.start // SIMPLE.size)

    def entries(self, low: int, high: int) -> Entries:
        """These entries; zeros for those that are not there."""
        data = bytearray((high - low) * SIMPLE.size)
        view = memoryview(data)
        at = low * SIMPLE.size
        while at < high * SIMPLE.size:
            got = self.read_into(view[at - low * SIMPLE.size :], at)
            following = at + got if got else self.run.next_start(at)
            if following == at:
                break  # the last file was cut off inside of an entry
            at = following
        return np.frombuffer(data, ENTRIES)

    def entry(self, number: int) -> tuple[int, int]:
        """Place and size of a message. In a gap, those of the first one behind it."""
        at = number * SIMPLE.size
        if self.run.piece_at(at) is None:
            at = self.run.next_start(at)
        data = self.read(at, 12)
        return _place_and_size(data) if len(data) == 12 else (0, 0)

    def find_end(self, log_end: int) -> int:
        """One past the last entry whose message is wholly in the log.

        Looked for from behind: zeros in the middle are damage, not the end.
        """
        for piece in reversed(self.run.pieces):
            for low, high in reversed(list(self.written(piece.start, piece.end))):
                low_entry, entry = low // SIMPLE.size, -(-high // SIMPLE.size)
                while entry > low_entry:
                    start = max(low_entry, entry - ENTRIES_AT_ONCE)
                    found = self.entries(start, entry)
                    # Files are made full of zeros: most of the last one is passed over at once.
                    found = found[: -(-len(found.tobytes().rstrip(b"\0")) // SIMPLE.size)]
                    ends = found["place"] + found["size"].astype(np.int64)
                    good = (found["size"] > 0) & (found["place"] >= 0)
                    good &= (found["place"] < log_end) & (ends <= log_end)
                    good &= found["size"] != BLANK_SIZE
                    hits = np.flatnonzero(good)
                    if len(hits):
                        return start + int(hits[-1]) + 1
                    entry = start
        return self.first

    def search(self, low: int, high: int, wanted: Callable[[int, int], bool]) -> int:
        """The first entry for which place and size are wanted; all behind it must be."""
        while low < high:
            middle = (low + high) // 2
            if wanted(*self.entry(middle)):
                high = middle
            else:
                low = middle + 1
        return low

    def first_at(self, low: int, high: int, place: int) -> int:
        """The first entry whose message lies at this place of the log or behind it."""
        return self.search(low, high, lambda at, size: size != BLANK_SIZE and at >= place)


_place_and_size = struct.Struct(">qi").unpack
